"""Sizes that two ranks cannot share are refused, and the message names the field.

That two ranks give the same numbers is in `test_engine_conditions.py`.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.engine import EngineOptions, Implementation, Kind
from transpiler.verify.families import FAMILIES
from transpiler.verify.family import Family
from transpiler.verify.isolate import Failure, Finished, import_once, in_child
from transpiler.verify.ranks import run_ranks
from transpiler.verify.run import find_name
from transpiler.verify.variants import Split, Variant

pytestmark = pytest.mark.engine
TRIED = [family for family in FAMILIES if family.name in ("llama", "qwen3")]


@pytest.mark.parametrize(
    ("field", "config"),
    [
        ("num_attention_heads", {"num_attention_heads": 3, "num_key_value_heads": 3}),
        ("num_key_value_heads", {"num_attention_heads": 6, "num_key_value_heads": 3}),
        ("intermediate_size", {"intermediate_size": 175}),
    ],
)
@pytest.mark.parametrize("family", TRIED, ids=lambda f: f.name)
def test_sizes_that_do_not_divide_are_named(
    family: Family, field: str, config: dict[str, int], tmp_path: Path
) -> None:
    variant = Variant("indivisible", {"hidden_size": 96, "head_dim": 32, **config})
    import_once()
    written = in_child(partial(write_checkpoint, tmp_path, family, variant, 0))
    assert isinstance(written, Finished)
    target = family.target
    implementation = Implementation(Kind.UNDER_TEST, family.architecture, target)
    options = EngineOptions(variant.max_model_len)
    request = request_of(family, variant, 0)
    failed = in_child(
        partial(run_ranks, tmp_path, request, implementation, options, Split.TENSORS)
    )
    assert isinstance(failed, Failure), failed
    # vLLM's own check of the attention heads comes first and says it in words.
    words = field.removeprefix("num_").replace("_", " ")
    assert find_name(failed, (field, words)), failed
