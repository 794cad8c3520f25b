"""The proof itself, on a class that is known: vLLM's own."""

from __future__ import annotations

import os

import pytest

from transpiler.verify.families import FAMILIES

pytestmark = pytest.mark.engine
FAMILY = FAMILIES[0]


@pytest.fixture(scope="module", autouse=True)
def _imported():
    from transpiler.verify.isolate import import_once

    import_once()


def prove(name, target="", backend=False):
    from transpiler.verify.run import Plan, prove_variant

    (variant,) = FAMILY.find_variants((name,))
    return prove_variant(Plan(FAMILY, target, with_backend=backend), variant)


def test_equal_variant_passes_with_its_backend():
    result = prove("default", backend=True)
    assert result.passed, result.detail
    assert 0 < result.comparison.prompt < result.comparison.bar
    assert 0 < result.comparison.decode < result.comparison.bar
    assert result.backend.is_equal


def test_wrong_numbers_fail():
    result = prove("stray-partial-rotary-factor")
    assert not result.passed
    assert result.comparison.largest > 1
    assert "is above the bar" in result.detail


def test_error_that_names_the_tensor_passes():
    result = prove("missing-norm")
    assert result.passed, result.detail
    assert result.named == "model.layers.1.post_attention_layernorm.weight"


def test_start_without_the_expected_error_fails():
    result = prove("unknown-bias-norm")
    assert not result.passed
    assert result.detail == "started, where it must raise a ValueError"


def test_error_instead_of_numbers_fails_with_its_last_line():
    result = prove("act-gelu")
    assert not result.passed
    assert result.detail.startswith("ValueError: Unsupported activation: gelu")


def test_error_of_another_kind_fails(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(f"class {FAMILY.architecture}:\n    broken = no_such_name\n")
    result = prove("not-causal", f"{path}:{FAMILY.architecture}")
    assert not result.passed
    assert "NameError: name 'no_such_name' is not defined" in result.detail


def test_missing_class_is_said():
    result = prove("default", "transpiler.verify.run:NoSuchClass")
    assert result.detail == (
        "ImportError: transpiler.verify.run has no class NoSuchClass"
    )


def test_same_seed_gives_the_same_checkpoint(tmp_path):
    from functools import partial

    from transpiler.verify.checkpoint import write_checkpoint
    from transpiler.verify.isolate import in_child

    (variant,) = FAMILY.find_variants(("biases",))
    contents = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        folder = tmp_path / name
        folder.mkdir()
        in_child(partial(write_checkpoint, folder, FAMILY, variant, seed))
        contents.append((folder / "model.safetensors").read_bytes())
    assert contents[0] == contents[1] != contents[2]


def test_no_plugin_takes_the_place_of_what_is_tried() -> None:
    """Where this project is installed, its own plugin would."""
    from transpiler.verify.isolate import import_once

    import_once()
    assert os.environ["VLLM_PLUGINS"] == ""
