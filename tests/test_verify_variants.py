"""The data of the proof: consistent, and about every field that upstream reads."""

from __future__ import annotations

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest

from transpiler.verify.families import FAMILIES
from transpiler.verify.fields import config_reads
from transpiler.verify.variants import Outcome, Tensors, UnknownNameError

OTHER_CLASS = "read by another configuration class of the file"
# Fields that upstream's classes read and no variant changes, each with its reason.
UNVARIED = {
    "_sliding_window_pattern": OTHER_CLASS,
    "dtype": "the engine's own precision",
    "eos_token_id": "the tokenizer's and sampler's",
    "head_dim": "no field of these: a stray one is tried on qwen2",
    "layerdrop": "serving: not training",
    "max_position_embeddings": "the length of a table",
    "mm_tokens_per_image": OTHER_CLASS,
    "text_config": OTHER_CLASS,
    "vision_config": OTHER_CLASS,
}
# Dropouts, which only training applies.
DROPOUT = re.compile(r".*(dropout|pdrop|dropout_prob)$")
GENERATED = Path(__file__).resolve().parents[1] / "generated"
ONE = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@ONE
def test_every_field_upstream_reads_is_varied(family):
    varied = {key for variant in family.variants for key in variant.config}
    assert without_reason(family.read - varied, UNVARIED) == []


def without_reason(fields, reasons):
    """Those of some fields that have no reason and are no dropout."""
    left = fields - set(reasons)
    return sorted(name for name in left if not DROPOUT.fullmatch(name))


def test_every_reason_is_needed():
    needed: set[str] = set()
    for family in FAMILIES:
        varied = {key for variant in family.variants for key in variant.config}
        needed |= family.read - varied
    assert sorted(set(UNVARIED) - needed) == []


@ONE
def test_the_default_config_has_what_the_fields_name(family):
    assert set(family.config) - {"model_type"} <= set(family.fields)


@ONE
def test_names_are_unique_and_kebab(family):
    names = [variant.name for variant in family.variants]
    assert len(names) == len(set(names))
    assert all(name == name.lower().replace("_", "-") for name in names)
    assert names[0] == "default"


@ONE
def test_prompts_fit_the_engine_and_differ_in_length(family):
    for variant in family.variants:
        longest = max(variant.prompt_lengths) + variant.new_tokens
        assert longest <= variant.max_model_len, variant.name
        assert len(set(variant.prompt_lengths)) > 1, variant.name
        assert variant.new_tokens >= 8, variant.name


@ONE
def test_names_are_given_where_an_error_is_expected(family):
    for variant in family.variants:
        expected = variant.expected
        named = bool(expected.names) or variant.tensors != Tensors()
        raising = expected.outcome in (Outcome.RAISES, Outcome.EITHER)
        assert named if raising else not expected.names


@ONE
def test_no_two_variants_are_the_same(family):
    seen = [str(replace(v, name="")) for v in family.variants]
    assert len(set(seen)) == len(seen)


def test_unknown_variant_suggests_near_names():
    with pytest.raises(UnknownNameError, match=r"near: .*rope-yarn"):
        FAMILIES[0].find_variants(("rope-yran",))


def test_absent_keys_are_left_out_and_overrides_win():
    family = FAMILIES[0]
    (variant,) = family.find_variants(("rms-norm-eps",))
    assert family.config_json(variant)["rms_norm_eps"] == 1e-2
    assert family.config_json(variant)["architectures"] == [family.architecture]


# Fields that upstream reads and a generated file does not, each with its reason.
READ_ELSEWHERE = {
    "_sliding_window_pattern": OTHER_CLASS,
    "attn_logit_softcapping": "set by gemma3's attention and read by nothing",
    "dtype": "the engine's own precision",
    "eos_token_id": "the tokenizer's and sampler's",
    "head_dim": "read by rope_arguments",
    "layerdrop": "serving: not training",
    "max_position_embeddings": "read by rope_arguments",
    "max_window_layers": "the configuration derives layer_types from it",
    "mm_tokens_per_image": OTHER_CLASS,
    "no_rope_layer_interval": "the configuration derives no_rope_layers from it",
    "original_max_position_embeddings": "read by rope_arguments",
    "pad_token_id": "the embedding's row is what the checkpoint says",
    "rope_parameters": "read by rope_arguments",
    "sliding_window_pattern": "the configuration derives layer_types from it",
    "text_config": OTHER_CLASS,
    "use_sliding_window": "the configuration derives sliding_window from it",
    "vision_config": OTHER_CLASS,
}


@ONE
def test_every_field_upstream_reads_is_read_by_the_generated_file(family):
    text = (GENERATED / f"{family.name}.py").read_text()
    found = set(config_reads(ast.parse(text)))
    assert without_reason(family.read - found, READ_ELSEWHERE) == []


def test_every_such_reason_is_needed():
    missing: set[str] = set()
    for family in FAMILIES:
        text = (GENERATED / f"{family.name}.py").read_text()
        missing |= family.read - set(config_reads(ast.parse(text)))
    assert sorted(set(READ_ELSEWHERE) - missing) == []
