"""Arguments of vLLM's `get_rope` that give Transformers' numbers.

`get_rope` obeys keys that Transformers ignores and ignores some that Transformers
obeys. For each rope type exactly the keys are passed on that Transformers'
`ROPE_INIT_FUNCTIONS` (or the model's default rope) reads at the pinned version;
where vLLM's numbers would still differ a `ValueError` names the field.
"""

from __future__ import annotations

import math
import os
from typing import Any

from vllm.config import VllmConfig
from vllm.logger import init_logger

logger = init_logger(__name__)

# Keys each rope type reads upstream besides `rope_theta`.
KEYS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": (
        "factor",
        "low_freq_factor",
        "high_freq_factor",
        "original_max_position_embeddings",
    ),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    ),
    "longrope": ("short_factor", "long_factor", "original_max_position_embeddings"),
}
# With one of these vLLM hands a multimodal model's language part positions by axis.
SECTIONS = {"mrope_section", "xdrope_section"}
STRICT = "VLLM_TRANSPILED_STRICT"
OFF = {"", "0", "false", "no", "off"}


def rope_arguments(
    config: Any,
    vllm_config: VllmConfig,
    *,
    layer_type: str | None = None,
    is_partial: bool = False,
    has_alpha: bool = False,
    is_neox_style: bool | None = None,
    head_size: int | None = None,
) -> dict[str, Any]:
    """`max_position` and `rope_parameters` for `get_rope`.

    Args:
        config: The text config; `config.rope_parameters` in its standard form.
        vllm_config: The engine's config, for `max_model_len`.
        layer_type: The layer's type, where each has `rope_parameters` of its own.
        is_partial: Whether upstream turns the first `partial_rotary_factor` of a head.
        has_alpha: Whether upstream's dynamic type reads `alpha`.
        is_neox_style: Handed on to `get_rope` when given.
        head_size: The attention's head size, where it may not be the config's.

    Raises:
        ValueError: The rope type is unknown, or the engine may reach positions where
            vLLM's rope is not Transformers'.
    """
    given = config.rope_parameters
    if layer_type is not None:
        given = given[layer_type]
    if given is None:
        raise ValueError(f"rope_parameters: none for layers of type {layer_type!r}")
    given = dict(given)
    kind = given.get("rope_type", "default")
    if kind not in KEYS:
        raise ValueError(f"rope_parameters: rope_type={kind!r} is not supported")
    if kind == "longrope" and is_neox_style is False:
        raise ValueError(
            "rope_parameters: vLLM has no rope_type='longrope' for interleaved heads"
        )
    check_width(config, given, is_partial, head_size)
    own = {key for key in SECTIONS if getattr(config, key, None) is not None}
    for key in sorted(own | (SECTIONS & given.keys())):
        raise ValueError(
            f"rope_parameters: {key} gives each token several positions, the model "
            "takes one; VLLM_TRANSPILED=0 gives vLLM's own classes"
        )
    longest = vllm_config.model_config.max_model_len
    trained = config.max_position_embeddings
    parameters = {"rope_type": kind, "rope_theta": given["rope_theta"]}
    parameters |= {k: given[k] for k in KEYS[kind] if given.get(k) is not None}
    if is_partial:
        parameters["partial_rotary_factor"] = given.get("partial_rotary_factor", 1.0)
    if "factor" in parameters:  # vLLM asks whether it is a float.
        parameters["factor"] = float(parameters["factor"])
    position = max(trained, longest)
    if kind == "linear":  # vLLM's table has so many times the factor rows.
        position = math.ceil(position / min(1.0, parameters["factor"]))
    elif kind == "llama3":
        check_llama3(parameters)
    elif kind == "dynamic":
        position = trained
        if has_alpha and given.get("alpha"):  # vLLM lets it, too, go before the factor.
            parameters["alpha"] = given["alpha"]
        check_dynamic(trained, longest)
    elif kind == "yarn":
        if "factor" not in parameters:
            original = given["original_max_position_embeddings"]
            parameters["factor"] = trained / original
        # Upstream reads a null as false, vLLM's default is true.
        parameters["truncate"] = bool(config.rope_parameters.get("truncate", True))
        check_yarn(parameters, longest)
    elif kind == "longrope":
        position = trained
        parameters |= longrope(given, trained, longest)
    arguments = {"max_position": position, "rope_parameters": parameters}
    if is_neox_style is not None:
        arguments["is_neox_style"] = is_neox_style
    return arguments


def check_width(
    config: Any, given: dict[str, Any], is_partial: bool, head_size: int | None
) -> None:
    """Upstream's rotary class takes its own head size and width from the config."""
    size = getattr(config, "head_dim", None)
    size = size or config.hidden_size // config.num_attention_heads
    if head_size is not None and size != head_size:
        raise ValueError(
            f"head_dim={size} is not the size of the attention's heads, {head_size}"
        )
    factor, kind = given.get("partial_rotary_factor", 1.0), given.get("rope_type")
    if not is_partial and kind != "default" and factor != 1.0:
        raise ValueError(
            f"rope_parameters: partial_rotary_factor with rope_type={kind!r} is "
            "rejected upstream"
        )
    width = int(size * factor)
    if is_partial and (width % 2 or not 0 < width <= size):
        raise ValueError(
            f"rope_parameters: partial_rotary_factor={factor} turns {width} of {size} "
            "elements; vLLM needs an even number of them"
        )


def check_dynamic(trained: int, longest: int) -> None:
    """Past the trained length upstream changes the base with every longer batch."""
    if longest > trained:
        raise ValueError(
            f"rope_parameters: rope_type='dynamic' is served up to "
            f"max_position_embeddings={trained}; set max_model_len={trained} or less "
            f"(it is {longest})"
        )


def check_llama3(parameters: dict[str, Any]) -> None:
    """Where the two bands overlap vLLM gives the high one the precedence."""
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    if high < low:
        raise ValueError(
            f"rope_parameters: high_freq_factor={high} is below low_freq_factor={low}"
        )


def check_yarn(parameters: dict[str, Any], longest: int) -> None:
    """vLLM's table ends at the original length times the factor."""
    # Upstream reads 0 as "not given" for the two betas.
    for key in ("beta_fast", "beta_slow"):
        if not parameters.get(key, 1):
            del parameters[key]
    rows = int(
        parameters["original_max_position_embeddings"] * float(parameters["factor"])
    )
    if longest > rows:
        raise ValueError(
            f"rope_parameters: rope_type='yarn' is served up to "
            f"original_max_position_embeddings * factor = {rows}; "
            f"max_model_len is {longest}"
        )


def longrope(given: dict[str, Any], trained: int, longest: int) -> dict[str, Any]:
    """Magnitudes as upstream computes them, and the one known difference."""
    original = given["original_max_position_embeddings"]
    if longest > trained:
        raise ValueError(
            f"rope_parameters: rope_type='longrope' is served up to "
            f"max_position_embeddings={trained}; max_model_len is {longest}"
        )
    if longest > original:
        message = (
            "longrope: vLLM uses the long factors for every sequence of this engine "
            f"(max_model_len={longest} > {original}); Transformers uses the short ones "
            f"for batches up to {original} tokens"
        )
        if os.environ.get(STRICT, "").lower() not in OFF:
            raise ValueError(f"rope_parameters: {message}")
        logger.warning_once(message)
    scale = given.get("attention_factor")
    if scale is None:
        factor = given.get("factor")
        factor = trained / original if factor is None else factor
        scale = 1.0
        if factor > 1.0:
            scale = math.sqrt(1 + math.log(factor) / math.log(original))
    # vLLM picks the factors by the engine's length and keeps one embedding for equal
    # arguments: the length makes those of two engines of a process differ.
    return {"short_mscale": scale, "long_mscale": scale, "max_model_len": longest}
