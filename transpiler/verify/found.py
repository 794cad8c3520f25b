"""Variants that the fields of a family ask for: each tried away from its default.

A field counts if the upstream modeling or configuration file reads it, or if vLLM
reads it where upstream does not (the stray ones).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from transpiler.verify.fields import Field
from transpiler.verify.variants import (
    UPSTREAM_FAILS,
    Expected,
    Split,
    Variant,
    equal_or_raises,
    raises,
)
from transpiler.verify.variants_rope import ROPES
from transpiler.verify.variants_tensors import TENSORS

# vLLM's CPU attention knows heads of 32, 64, 80, 96, 112, 128 and more, no smaller.
SIZES: Mapping[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
ODD_SIZES = {
    "vocab_size": 259,
    "hidden_size": 102,
    "intermediate_size": 101,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 32,
}
ACTIVATIONS = ("gelu", "relu2", "silu")
SLIDING, FULL = "sliding_attention", "full_attention"
WINDOWED = {"sliding_window": 8, "num_hidden_layers": 4}
PROMPTS = (5, 17, 32)
# What vLLM reads for some model, and the field that a family must not read for it to
# be a stray one; none for those of which some may be read.
STRAYS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    (
        "scales",
        "",
        {
            "logit_scale": 0.5,
            "final_logit_softcapping": 5.0,
            "attn_logit_softcapping": 5.0,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.5,
        },
    ),
    ("attention-bias", "attention_bias", {"attention_bias": True}),
    ("mlp-bias", "mlp_bias", {"mlp_bias": True}),
    ("sliding-window", "sliding_window", {"sliding_window": 8}),
    (
        "layer-types",
        "layer_types",
        {"sliding_window": 8, "layer_types": [FULL, SLIDING, FULL]},
    ),
)


@dataclass(frozen=True)
class Ground:
    """What variants are found from.

    Attributes:
        config: The family's smallest config.
        fields: The annotated fields of its configuration class.
        read: Those that upstream reads.
        is_validated: Whether the class refuses heads that do not divide the width.
    """

    config: Mapping[str, Any]
    fields: Mapping[str, Field]
    read: frozenset[str]
    is_validated: bool

    def value(self, name: str) -> Any:
        """What a field is in the family's own config."""
        return self.config.get(name, self.fields[name].default)

    def has(self, *names: str) -> bool:
        """Whether all are fields of the configuration."""
        return all(name in self.fields for name in names)


def find_variants(ground: Ground) -> Iterator[Variant]:
    """Yield the variants of a family."""
    fields, read = ground.fields, ground.read
    yield from shapes(ground)
    for name in sorted(read & set(fields)):
        field = fields[name]
        kind = next((kind for kind in KINDS if kind in field.types), None)
        if kind is not None and name not in ELSEWHERE and "drop" not in name:
            yield from KINDS[kind](ground, name)
    yield from windows(ground)
    if "rope_parameters" in read:
        yield from ROPES
    yield from TENSORS
    yield from RANKS
    yield Variant("not-causal", {"is_causal": False}, expected=raises("is_causal"))
    for name, field_name, stray in STRAYS:
        unread = {key: stray[key] for key in stray if key not in read}
        if unread and field_name not in read:
            yield Variant(f"stray-{name}", unread if not field_name else stray)


def shapes(ground: Ground) -> Iterator[Variant]:
    """Head counts, head sizes and widths that do not divide."""
    # Grouped queries: two heads to one of keys and values.
    yield Variant("default")
    if ground.has("num_key_value_heads"):
        yield Variant("mqa", {"num_key_value_heads": 1})
        yield Variant("mha", {"num_key_value_heads": 4})
        if "None" in ground.fields["num_key_value_heads"].types:
            yield Variant("kv-heads-null", {"num_key_value_heads": None})
    if ground.has("head_dim"):
        yield Variant("head-dim-64", {"head_dim": 64})
        yield Variant("head-dim-80", {"head_dim": 80})
        yield Variant("odd-sizes", ODD_SIZES)
        uneven = {"hidden_size": 130}
        expected = UPSTREAM_FAILS if ground.is_validated else Expected()
        yield Variant("heads-do-not-divide", uneven, expected=expected)
    else:
        yield Variant("head-dim-64", {"hidden_size": 256})
        odd = {key: ODD_SIZES[key] for key in ODD_SIZES if key in ground.fields}
        yield Variant("odd-sizes", {**odd, "hidden_size": 192})
    yield Variant("pad-token", {"pad_token_id": 0})
    yield Variant("one-layer", {"num_hidden_layers": 1})


def switch(ground: Ground, name: str) -> Iterator[Variant]:
    """A boolean the other way."""
    value = not ground.value(name)
    yield Variant(f"{dashed(name)}-{'on' if value else 'off'}", {name: value})


def factor(ground: Ground, name: str) -> Iterator[Variant]:
    """A number away from what it is: a small one is an epsilon."""
    value = ground.value(name)
    if value is None or value == 0:
        other = 0.5
    elif abs(value) < 1e-3:
        other = 1e-2
    else:
        other = value / 10 if value >= 10 else value * 0.6
    yield Variant(dashed(name), {name: other})
    if "None" in ground.fields[name].types and value is not None:
        yield nothing(name)


def count(ground: Ground, name: str) -> Iterator[Variant]:
    """A whole number that is no size of the model: half of it, and none."""
    value = ground.value(name)
    if isinstance(value, int):
        yield Variant(dashed(name), {name: max(1, value // 2)})
    if "None" in ground.fields[name].types and value is not None:
        yield nothing(name)


def activation(ground: Ground, name: str) -> Iterator[Variant]:
    """Activations that have a kernel of their own, and some that have none."""
    if "act" not in name:
        return
    for other in ACTIVATIONS:
        if other != ground.value(name):
            yield Variant(f"act-{dashed(other)}", {name: other})
    yield Variant("act-tanh", {name: "tanh"}, expected=equal_or_raises(name))
    # It has a parameter, which no fused activation has.
    yield Variant("act-prelu", {name: "prelu"}, expected=equal_or_raises(name))


def nothing(name: str) -> Variant:
    """A field that is null, which a class may refuse."""
    return Variant(f"{dashed(name)}-null", {name: None}, expected=equal_or_raises(name))


def windows(ground: Ground) -> Iterator[Variant]:
    """Windows of all layers, or of some."""
    if "sliding_window" not in ground.read:
        return
    optional = "None" in ground.fields["sliding_window"].types
    if "layer_types" not in ground.read:
        # A window of 0 is left out: upstream then masks every key, and eager (a mean
        # over all tokens, later ones too) and sdpa disagree on what that means.
        if optional:
            yield Variant("window-off", {"sliding_window": None})
        for size in (4096, 8, 1):
            yield Variant(f"window-{size}", {"sliding_window": size})
        return
    used = {"use_sliding_window": True} if ground.has("use_sliding_window") else {}
    windowed = {**WINDOWED, **used}
    for name, kinds in (
        ("mixed", [SLIDING, FULL, SLIDING, FULL]),
        ("full-first", [FULL, FULL, SLIDING, SLIDING]),
        ("full", [FULL] * 4),
        ("sliding", [SLIDING] * 4),
    ):
        config = {**windowed, "layer_types": kinds}
        yield Variant(f"layer-types-{name}", config, prompt_lengths=PROMPTS)
    yield Variant("layer-types-own", windowed, prompt_lengths=PROMPTS)
    if optional:
        yield Variant(
            "layer-types-no-window",
            {**windowed, "sliding_window": None, "layer_types": [SLIDING] * 4},
            expected=equal_or_raises("sliding_window"),
        )


def dashed(name: str) -> str:
    """A field's name as a variant's."""
    return name.strip("_").replace("_", "-")


# Two key heads, so that each rank has one, and both ends of a tied pair.
RANKS = (
    Variant("tensor-parallel", split=Split.TENSORS),
    Variant("pipeline-parallel", {"tie_word_embeddings": True}, split=Split.LAYERS),
)
KINDS: dict[str, Callable[[Ground, str], Iterator[Variant]]] = {
    "bool": switch,
    "float": factor,
    "int": count,
    "str": activation,
}
# Fields that other variants change together with what belongs to them, and dropouts,
# which training alone applies.
ELSEWHERE = frozenset(
    {
        *SIZES,
        "layer_types",
        "rope_parameters",
        "sliding_window",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "initializer_range",
        "attention_dropout",
    }
) - {"rms_norm_eps"}
