"""Generated classes ask no more of the machine than vLLM's own."""

from __future__ import annotations

import tempfile
from functools import cache, partial
from pathlib import Path

import pytest

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.counts import implementation_of
from transpiler.verify.engine import EngineOptions, Kind
from transpiler.verify.families import EXEMPLARS
from transpiler.verify.family import Family
from transpiler.verify.isolate import Finished, import_once, in_child
from transpiler.verify.operations import (
    Kernels,
    Operations,
    count_kernels,
    count_operations,
)
from transpiler.verify.variants import Variant

pytestmark = pytest.mark.engine

FOUR_LAYERS = Variant(
    "four-layers", {"num_hidden_layers": 4}, prompt_lengths=(5,), new_tokens=3
)
# Share of the Transformers backend's operations that is allowed.
BACKEND_SHARE = 0.55
# At four layers: operations of vLLM's own class and of the backend, then kernels.
OWN = {"llama": 103, "qwen3": 127}
BACKEND = {"llama": 237, "qwen3": 245}
KERNELS = {"llama": 40, "qwen3": 56}

# `make operations` counts those of every family.
families = pytest.mark.parametrize("family", EXEMPLARS, ids=lambda f: f.name)
OPTIONS = EngineOptions(max_model_len=64)


@cache
def operations_of(family_name: str, kind: Kind) -> Operations:
    (family,) = (f for f in EXEMPLARS if f.name == family_name)
    import_once()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder)
        request = request_of(family, FOUR_LAYERS, 0)
        implementation = implementation_of(family, kind)
        writing = partial(write_checkpoint, checkpoint, family, FOUR_LAYERS, 0)
        assert isinstance(in_child(writing), Finished)
        counted = in_child(
            partial(count_operations, checkpoint, request, implementation, OPTIONS)
        )
    assert isinstance(counted, Finished), counted.last_line()
    return counted.value


def kernels_of(family: Family, kind: Kind) -> Kernels:
    import_once()
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder)
        implementation = implementation_of(family, kind)
        writing = partial(write_checkpoint, checkpoint, family, FOUR_LAYERS, 0)
        assert isinstance(in_child(writing), Finished)
        counted = in_child(
            partial(count_kernels, checkpoint, implementation, 64), timeout=300
        )
    assert isinstance(counted, Finished), counted.last_line()
    return counted.value


@families
def test_operations_no_more_than_own_class(family: Family) -> None:
    generated = operations_of(family.name, Kind.UNDER_TEST)
    own = operations_of(family.name, Kind.VLLM)
    assert generated.total <= own.total, generated.beyond(own)


@families
def test_operations_within_share_of_backend(family: Family) -> None:
    generated = operations_of(family.name, Kind.UNDER_TEST)
    backend = operations_of(family.name, Kind.TRANSFORMERS)
    assert generated.total <= BACKEND_SHARE * backend.total, generated.counts


@pytest.mark.parametrize("name", OWN)
def test_count_is_the_known_one(name: str) -> None:
    assert operations_of(name, Kind.VLLM).total == OWN[name]
    assert operations_of(name, Kind.TRANSFORMERS).total == BACKEND[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_no_more_than_own_class(name: str) -> None:
    (family,) = (f for f in EXEMPLARS if f.name == name)
    generated = kernels_of(family, Kind.UNDER_TEST)
    own = kernels_of(family, Kind.VLLM)
    assert own.kernels == KERNELS[name]
    assert generated.graphs == 1
    assert generated.kernels <= own.kernels
