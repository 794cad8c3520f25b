"""A real vLLM engine on the CPU, running the class under test or another one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np

from transpiler.verify.outputs import Answer, LogProbs, Request

# An engine that goes out of scope shuts itself down, which takes longer than its run.
# Its process is a child that ends without teardown, so it is kept to the end.
_STARTED: list[Any] = []


class Kind(Enum):
    """Whose implementation of an architecture the engine runs."""

    UNDER_TEST = "under test"
    VLLM = "vllm"
    TRANSFORMERS = "transformers"


@dataclass(frozen=True)
class Implementation:
    """What the engine runs for `architecture`.

    `target` says where the class under test is, as `module:Class` or
    `path/to/file.py:Class`; it is empty for vLLM's own class and the backend.
    """

    kind: Kind
    architecture: str
    target: str = ""


@dataclass(frozen=True)
class EngineOptions:
    """How the engine is set up.

    Attributes:
        max_model_len: longest sequence, in tokens.
        settings: further arguments of `vllm.LLM`, over the ones used here.
        sampling: further arguments of `vllm.SamplingParams`, likewise.
        compiling: leave torch.compile on; off, an eager engine starts sooner.
    """

    max_model_len: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    sampling: Mapping[str, Any] = field(default_factory=dict)
    compiling: bool = False


def start(
    checkpoint: Path, implementation: Implementation, options: EngineOptions
) -> Any:
    """Start an engine on a checkpoint and return the `vllm.LLM`.

    Run it in a child of `isolate.in_child`: an engine changes its process for good.

    Raises:
        ImportError: the class under test cannot be imported.
        ValueError: the class refused the config or the checkpoint.
    """
    import torch
    from vllm import LLM

    torch.set_num_threads(1)
    if not options.compiling:
        # vLLM's sampler compiles a small function at its first use even when eager is
        # enforced: over a second, or many where no C++ cache is warm.
        torch._dynamo.config.disable = True
    _register(implementation)
    arguments: dict[str, Any] = {
        "model": str(checkpoint),
        "skip_tokenizer_init": True,
        "dtype": "float32",
        "enforce_eager": not options.compiling,
        "max_model_len": options.max_model_len,
        "distributed_executor_backend": "uni",
        "kv_cache_memory_bytes": 64 << 20,
        "max_logprobs": -1,
        "disable_log_stats": True,
        "model_impl": "vllm",
    }
    if implementation.kind is Kind.TRANSFORMERS:
        arguments["model_impl"] = "transformers"
    llm = LLM(**{**arguments, **options.settings})
    _STARTED.append(llm)
    return llm


def generate(llm: Any, request: Request, options: EngineOptions) -> tuple[Answer, ...]:
    """Run all prompts as one batch; return tokens and log-probabilities of each."""
    from vllm import SamplingParams

    arguments: dict[str, Any] = {
        "temperature": 0,
        "ignore_eos": True,
        "detokenize": False,
        "max_tokens": request.new_tokens,
        "logprobs": -1,
        "prompt_logprobs": -1,
        "flat_logprobs": True,
    }
    sampling = SamplingParams(**{**arguments, **options.sampling})
    prompts = [{"prompt_token_ids": list(prompt)} for prompt in request.prompts]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    vocab_size = llm.llm_engine.model_config.get_vocab_size()
    return tuple(_answer(output, vocab_size) for output in outputs)


def load_class(target: str) -> Any:
    """Import the class that `target` names, from a module or from a file.

    Raises:
        ImportError: there is no such module, file or class.
    """
    place, _, name = target.rpartition(":")
    if place.endswith(".py"):
        path = Path(place).resolve()
        spec = importlib.util.spec_from_file_location(f"under_test_{path.stem}", path)
        if spec is None or spec.loader is None or not path.exists():
            raise ImportError(f"no such file: {place}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(place)
    if not hasattr(module, name):
        raise ImportError(f"{place} has no class {name}")
    return getattr(module, name)


def _register(implementation: Implementation) -> None:
    """Give vLLM the classes themselves: a lazy one is inspected in a new process."""
    from vllm import ModelRegistry

    architecture = implementation.architecture
    if implementation.kind is Kind.TRANSFORMERS:
        architecture = "TransformersForCausalLM"
    if implementation.kind is Kind.UNDER_TEST:
        model_class = load_class(implementation.target)
    else:
        model_class = ModelRegistry.models[architecture].load_model_cls()
    ModelRegistry.register_model(architecture, model_class)


def _answer(output: Any, vocab_size: int) -> Answer:
    completion = output.outputs[0]
    prompt = output.prompt_logprobs
    return Answer(
        tokens=tuple(completion.token_ids),
        prompt=_dense(prompt, vocab_size, skip=1),
        decode=_dense(completion.logprobs, vocab_size, skip=0),
    )


def _dense(flat: Any, vocab_size: int, skip: int) -> LogProbs:
    """Return vLLM's flat log-probabilities as `[positions, vocab_size]`.

    The first prompt position has none and is skipped; no answer gives no positions.
    """
    positions = 0 if flat is None else max(len(flat) - skip, 0)
    dense = np.full((positions, vocab_size), -np.inf)
    for row in range(positions):
        first, last = flat.start_indices[row + skip], flat.end_indices[row + skip]
        dense[row, flat.token_ids[first:last]] = flat.logprobs[first:last]
    return dense
