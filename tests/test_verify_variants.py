"""The data of the proof: consistent, and about every field that upstream reads."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

import pytest

from transpiler.verify.families import FAMILIES
from transpiler.verify.variants import Outcome, UnknownNameError

# Fields that upstream's classes read and no variant changes, each with its reason.
UNVARIED = {
    "attention_dropout": "serving: not training",
    "initializer_range": "serving: weights come from a checkpoint",
    "use_cache": "serving: no cache object",
    "_attn_implementation": "the engine's attention serves",
    "bos_token_id": "the tokenizer's and sampler's",
    "eos_token_id": "the tokenizer's and sampler's",
    "pretraining_tp": "read by nothing",
    "architectures": "how the engine finds the class",
}
ONE = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def upstream(family, kind):
    """Return the tree of an upstream file of a family, without importing anything."""
    package = importlib.util.find_spec("transformers")
    if package is None:
        pytest.skip("transformers is not installed")
    folder = Path(package.origin).parent / "models" / family.name
    return ast.parse((folder / f"{kind}_{family.name}.py").read_text("utf-8"))


def find_config_reads(tree):
    """Yield the names read as `config.x`, `self.config.x` or `getattr(config, "x")`."""
    configs = ("config", "self.config")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in configs:
            yield node.attr
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr":
            thing, name = node.args[:2]
            if ast.unparse(thing) in configs and isinstance(name, ast.Constant):
                yield name.value


def find_fields(tree):
    """Yield the annotated fields of a file's configuration class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from (s.target.id for s in node.body if isinstance(s, ast.AnnAssign))


@ONE
def test_every_field_upstream_reads_is_varied(family):
    reads = set(find_config_reads(upstream(family, "modeling")))
    fields = set(find_fields(upstream(family, "configuration")))
    varied = {key for variant in family.variants for key in variant.config}
    unvaried = sorted((reads | fields) - varied - set(UNVARIED))
    assert unvaried == []


def test_every_reason_is_needed():
    needed = {"architectures"}
    for family in FAMILIES:
        needed |= set(find_config_reads(upstream(family, "modeling")))
        needed |= set(find_fields(upstream(family, "configuration")))
    assert sorted(set(UNVARIED) - needed) == []


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
        assert bool(expected.names) is (expected.outcome is not Outcome.EQUAL)


@ONE
def test_no_two_variants_are_the_same(family):
    seen = [(str(v.config), str(v.tensors), v.max_model_len) for v in family.variants]
    assert len(set(seen)) == len(seen)


def test_unknown_variant_suggests_near_names():
    with pytest.raises(UnknownNameError, match=r"near: .*rope-yarn"):
        FAMILIES[0].find_variants(("rope-yran",))


def test_absent_keys_are_left_out_and_overrides_win():
    family = FAMILIES[0]
    (variant,) = family.find_variants(("eps",))
    assert family.config_json(variant)["rms_norm_eps"] == 1e-2
    assert family.config_json(variant)["architectures"] == [family.architecture]
