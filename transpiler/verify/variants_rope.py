"""Rotary variants, for every family whose rotary class is Llama's.

Left out because upstream itself fails on them: `partial_rotary_factor` with a rope type
other than default (`cos` is narrower than the heads), an unknown `rope_type`, and a
type without its required keys (both a KeyError).
"""

from __future__ import annotations

from typing import Any

from transpiler.verify.variants import Expected, Variant, equal_or_raises, raises

ORIGINAL = 32
# Below and above ORIGINAL; a continuation of 10 crosses it in the second prompt.
CROSSING = (5, 27, 60)
# All of them above 64, the original length of the longrope variants.
LONG = (66, 80, 101)
SHORT_FACTOR = [1.0 + 0.05 * i for i in range(16)]
LONG_FACTOR = [1.0 + 0.5 * i for i in range(16)]

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": ORIGINAL,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": SHORT_FACTOR,
    "long_factor": LONG_FACTOR,
    "original_max_position_embeddings": 64,
}
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
PAST_THE_TABLE = (
    "factor",
    "original_max_position_embeddings",
    "max_position_embeddings",
)


def rope(name: str, parameters: dict[str, Any], **changes: Any) -> Variant:
    """Return a variant with these `rope_parameters`, theta 10000 unless given."""
    config = {"rope_parameters": {"rope_theta": 10000.0, **parameters}}
    changes = {"prompt_lengths": CROSSING, **changes}
    return Variant(name, config, **changes)


def old_rope(name: str, theta: float, scaling: dict[str, Any] | None) -> Variant:
    """Return a variant in the old spelling: `rope_theta` and `rope_scaling`."""
    config = {"rope_theta": theta, "rope_scaling": scaling}
    return Variant(name, config, prompt_lengths=CROSSING)


def trained_64(
    name: str,
    parameters: dict[str, Any],
    max_model_len: int = 64,
    expected: Expected | None = None,
) -> Variant:
    """Return a variant of a model trained to 64 positions, in an engine of a length."""
    config = {
        "rope_parameters": {"rope_theta": 10000.0, **parameters},
        "max_position_embeddings": 64,
    }
    return Variant(
        name,
        config,
        prompt_lengths=(5, 17, 40),
        max_model_len=max_model_len,
        expected=expected or Expected(),
    )


SPELLINGS = (
    rope("rope-theta", {"rope_type": "default", "rope_theta": 500000.0}),
    old_rope("rope-old-theta", 500000.0, None),
    old_rope("rope-old-linear", 500000.0, {"type": "linear", "factor": 4.0}),
    old_rope("rope-old-yarn", 10000.0, {**YARN, "type": "yarn"}),
    old_rope("rope-old-llama3", 500000.0, LLAMA3),
)

SCALED = (
    rope("rope-linear", {"rope_type": "linear", "factor": 4.0}),
    Variant(
        "rope-linear-past-trained",
        {
            "max_position_embeddings": 32,
            "rope_parameters": {
                "rope_type": "linear",
                "rope_theta": 10000.0,
                "factor": 4.0,
            },
        },
        prompt_lengths=CROSSING,
    ),
    # JSON has whole numbers too, and a factor may shrink.
    rope("rope-linear-whole", {"rope_type": "linear", "factor": 2}),
    rope(
        "rope-linear-below-one",
        {"rope_type": "linear", "factor": 0.5},
        prompt_lengths=(5, 17, 40),
        max_model_len=64,
    ),
    rope("rope-llama3", LLAMA3),
    rope(
        "rope-llama3-bands-swapped",
        {**LLAMA3, "low_freq_factor": 4.0, "high_freq_factor": 1.0},
        expected=equal_or_raises("high_freq_factor"),
    ),
    Variant(
        "rope-llama3-original-outside",
        {
            "original_max_position_embeddings": 16,
            "rope_parameters": {"rope_theta": 10000.0, **LLAMA3},
        },
        prompt_lengths=CROSSING,
    ),
    rope("rope-yarn", YARN),
    rope("rope-yarn-attention-factor", {**YARN, "attention_factor": 1.5}),
    rope("rope-yarn-mscale", {**YARN, "mscale": 1.4, "mscale_all_dim": 0.6}),
    rope("rope-yarn-mscale-alone", {**YARN, "mscale": 1.4}),
    rope("rope-yarn-no-truncate", {**YARN, "truncate": False}),
    rope("rope-yarn-null-truncate", {**YARN, "truncate": None}),
    rope("rope-yarn-betas", {**YARN, "beta_fast": 4.0, "beta_slow": 0.5}),
    # Upstream takes defaults for null betas, the ratio of lengths for a null factor.
    rope(
        "rope-yarn-null-betas",
        {**YARN, "beta_fast": None, "beta_slow": None},
        expected=equal_or_raises("beta_fast", "beta_slow"),
    ),
    rope(
        "rope-yarn-null-factor",
        {**YARN, "factor": None},
        expected=equal_or_raises("factor"),
    ),
    # vLLM's table ends at factor times the original length, upstream's nowhere.
    rope(
        "rope-yarn-past-factor",
        {**YARN, "factor": 2.0},
        expected=equal_or_raises(*PAST_THE_TABLE),
    ),
)

DYNAMICS = (
    trained_64("rope-dynamic", DYNAMIC),
    # vLLM obeys both keys, upstream reads neither.
    trained_64("rope-dynamic-stray-alpha", {**DYNAMIC, "alpha": 8.0}),
    trained_64("rope-dynamic-stray-trained", {**DYNAMIC, "max_trained_positions": 16}),
    trained_64(
        "rope-dynamic-past-trained",
        DYNAMIC,
        max_model_len=128,
        expected=raises("max_position_embeddings", "rope_type", "rope_parameters"),
    ),
)

LONGROPES = (
    rope("rope-longrope-short", LONGROPE, prompt_lengths=(5, 17, 40), max_model_len=64),
    rope("rope-longrope-long", LONGROPE, prompt_lengths=LONG),
    # Keys that vLLM obeys and upstream does not read.
    rope(
        "rope-longrope-stray-mscale",
        {**LONGROPE, "short_mscale": 2.0, "long_mscale": 2.0},
        prompt_lengths=LONG,
    ),
    rope(
        "rope-longrope-attention-factor",
        {**LONGROPE, "attention_factor": 2.0},
        prompt_lengths=LONG,
    ),
    rope("rope-longrope-factor", {**LONGROPE, "factor": 8.0}, prompt_lengths=LONG),
)

STRAYS = (
    # Upstream's default rope reads rope_theta alone; vLLM's obeys all of these.
    Variant("stray-partial-rotary-factor", {"partial_rotary_factor": 0.5}),
    Variant("stray-rotary-pct", {"rotary_pct": 0.5}),
    rope(
        "stray-rope-keys",
        {"rope_type": "default", "partial_rotary_factor": 0.5, "rope_dim": 16},
    ),
    # Upstream has this type in its table; vLLM's layer of that name is Gemma's.
    rope(
        "rope-proportional",
        {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
        expected=equal_or_raises("rope_type", "rope_parameters"),
    ),
)

ALL = {v.name: v for v in (*SPELLINGS, *SCALED, *DYNAMICS, *LONGROPES, *STRAYS)}
# One of each type, for every family; what is stray, and what vLLM's differs in.
ROPES = tuple(
    ALL[name]
    for name in (
        "rope-theta",
        "rope-linear",
        "rope-llama3",
        "rope-yarn",
        "rope-dynamic",
        "rope-dynamic-past-trained",
        "rope-longrope-short",
        "rope-longrope-long",
        "stray-rope-keys",
        "rope-proportional",
    )
)
# The rest tries the code that all share in `runtime/`.
FURTHER_ROPES = tuple(variant for variant in ALL.values() if variant not in ROPES)
