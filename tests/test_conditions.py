"""Chunked prefill, prefix-cache hits, preemption and compilation change no number."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.compare import compare
from transpiler.verify.conditions import Watched, watch
from transpiler.verify.engine import EngineOptions, Implementation, Kind
from transpiler.verify.families import FAMILIES
from transpiler.verify.isolate import Finished, import_once, in_child
from transpiler.verify.oracle import consult
from transpiler.verify.variants import Variant

pytestmark = pytest.mark.engine
BY_NAME = {family.name: family for family in FAMILIES}
NO_PROMPTS = {"prompt_logprobs": None}
SECONDS = 240.0


def run(
    name: str, options: dict[str, Any], variant: Variant, rounds: int = 1
) -> Watched:
    """Watch a generated class, having asserted that it equals upstream."""
    import_once()
    family = BY_NAME[name]
    target = f"generated.{family.name}:{family.architecture}"
    implementation = Implementation(Kind.UNDER_TEST, family.architecture, target)
    request = request_of(family, variant, 0)
    set_up = EngineOptions(variant.max_model_len, **options)
    with tempfile.TemporaryDirectory() as name_of:
        folder = Path(name_of)
        wrote = in_child(partial(write_checkpoint, folder, family, variant, 0), SECONDS)
        assert isinstance(wrote, Finished)
        reference = in_child(partial(consult, folder, request), SECONDS)
        watching = partial(watch, folder, request, implementation, set_up, rounds)
        watched = in_child(watching, SECONDS)
    assert isinstance(reference, Finished)
    assert isinstance(watched, Finished), watched
    prompts = "prompt_logprobs" not in options.get("sampling", {})
    found = compare(reference.value, watched.value.answers, prompt_positions=prompts)
    assert found.is_equal, found
    return watched.value


names = pytest.mark.parametrize("name", ["llama", "qwen3"])


@names
def test_chunked_prefill(name: str) -> None:
    settings = {
        "enable_chunked_prefill": True,
        "max_num_batched_tokens": 16,
        "max_num_seqs": 4,
        "enable_prefix_caching": False,
    }
    assert run(name, {"settings": settings}, Variant("chunks")).chunks > 1


@names
def test_prefix_cache_hit(name: str) -> None:
    settings = {"enable_prefix_caching": True, "block_size": 32}
    variant = Variant("prefix", prompt_lengths=(70, 40), max_model_len=96)
    options = {"settings": settings, "sampling": NO_PROMPTS}
    assert run(name, options, variant, rounds=2).cached > 0


@names
def test_preemption(name: str) -> None:
    settings = {
        "num_gpu_blocks_override": 5,
        "block_size": 32,
        "enable_prefix_caching": False,
    }
    variant = Variant(
        "preempted", prompt_lengths=(30, 31, 29), new_tokens=40, max_model_len=96
    )
    options = {"settings": settings, "sampling": NO_PROMPTS}
    assert run(name, options, variant).preempted > 0


@names
def test_compiled_with_inductor(name: str) -> None:
    assert run(name, {"compiling": True}, Variant("compiled")).answers
