"""Two ranks give the same numbers; sizes they cannot share are refused."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import pytest

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.compare import compare
from transpiler.verify.engine import EngineOptions, Implementation, Kind
from transpiler.verify.families import FAMILIES
from transpiler.verify.isolate import Failure, Finished, import_once, in_child
from transpiler.verify.oracle import consult
from transpiler.verify.ranks import Split, run_ranks
from transpiler.verify.run import find_name
from transpiler.verify.variants import Family, Variant

pytestmark = pytest.mark.engine
BY_NAME = {family.name: family for family in FAMILIES}
SECONDS = 120.0


def on_ranks(family: Family, variant: Variant, split: Split, folder: Path) -> object:
    """The engine's answers on two ranks, or how it failed."""
    import_once()
    written = in_child(partial(write_checkpoint, folder, family, variant, 0), SECONDS)
    assert isinstance(written, Finished)
    target = f"generated.{family.name}:{family.architecture}"
    implementation = Implementation(Kind.UNDER_TEST, family.architecture, target)
    options = EngineOptions(variant.max_model_len)
    request = request_of(family, variant, 0)
    running = partial(run_ranks, folder, request, implementation, options, split)
    return in_child(running, SECONDS)


@pytest.mark.parametrize("split", Split, ids=lambda s: s.name.lower())
@pytest.mark.parametrize("variant", ["default", "mqa", "tied"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_two_ranks_equal_upstream(name: str, variant: str, split: Split) -> None:
    family = BY_NAME[name]
    (chosen,) = family.find_variants((variant,))
    with tempfile.TemporaryDirectory() as folder:
        answers = on_ranks(family, chosen, split, Path(folder))
        assert isinstance(answers, Finished), answers
        request = request_of(family, chosen, 0)
        reference = in_child(partial(consult, Path(folder), request), SECONDS)
    assert isinstance(reference, Finished)
    prompts = split is Split.TENSORS
    found = compare(reference.value, answers.value, prompt_positions=prompts)
    assert found.is_equal, found


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("num_attention_heads", {"num_attention_heads": 3, "num_key_value_heads": 3}),
        ("num_key_value_heads", {"num_attention_heads": 6, "num_key_value_heads": 3}),
        ("intermediate_size", {"intermediate_size": 175}),
    ],
)
def test_sizes_that_do_not_divide_are_named(
    field: str, config: dict[str, int], tmp_path: Path
) -> None:
    sizes = {"hidden_size": 96, "head_dim": 32, **config}
    variant = Variant("indivisible", sizes)
    failed = on_ranks(BY_NAME["llama"], variant, Split.TENSORS, tmp_path)
    assert isinstance(failed, Failure), failed
    # vLLM's own check of the heads comes first and says it in words.
    assert find_name(failed, (field, field[4:].replace("_", " "))), failed
