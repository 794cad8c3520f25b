"""The condition of torch.compile: one graph, for every batch size, equal numbers."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from transpiler.verify.compare import compare
from transpiler.verify.engine import generate, start
from transpiler.verify.outputs import Answer, Reference
from transpiler.verify.trial import Condition, Evidence, Trial, require, required
from transpiler.verify.variants import Variant

# How many prompts run at once. The first also compiles a function of vLLM's sampler.
# A graph traced for two tokens or more is guarded against one by torch itself.
GUARDED = (3, 2, 5)
UNGUARDED = (1,)


@dataclass(frozen=True)
class _Compiled:
    """What a compiled engine did.

    Attributes:
        backend: what vLLM compiles with.
        graphs: how many graphs there were after the start and after each batch.
        answers: of each batch in turn.
    """

    backend: str
    graphs: tuple[int, ...]
    answers: tuple[tuple[Answer, ...], ...]


def compiled(trial: Trial) -> Evidence:
    """Inductor compiles one graph, and no batch size asks for another."""
    found = trial.in_child(lambda: _run(trial))
    require(found.backend == "inductor", f"compiled with {found.backend!r}")
    started, first, *later = found.graphs
    require(started == 1, f"{started} graphs at the start")
    require({first} == set(later), f"graphs after each batch: {found.graphs[1:]}")
    reference = trial.reference()
    comparisons = [
        required(compare(Reference(reference.answers[:size], reference.noise), answers))
        for size, answers in zip((*GUARDED, *UNGUARDED), found.answers, strict=True)
    ]
    worst = max(comparisons, key=lambda comparison: comparison.largest)
    return Evidence(f"one graph, kept in batches of {GUARDED} and {UNGUARDED}", worst)


def _run(trial: Trial) -> _Compiled:
    """Start a compiled engine whose graph keeps its guards, and run the batches.

    vLLM drops the guards, so that a graph made for one size would run for all. Kept,
    one that fails raises.
    """
    from torch._dynamo.utils import counters

    os.environ.update(
        VLLM_DISABLE_COMPILE_CACHE="1",
        VLLM_USE_AOT_COMPILE="1",
        VLLM_USE_BYTECODE_HOOK="0",
    )
    shapes = {"dynamic_shapes_config": {"evaluate_guards": True}}
    options = replace(trial.options(compilation_config=shapes), compiling=True)
    llm = start(trial.checkpoint, trial.implementation, options)
    request, stats = trial.request, counters["stats"]
    graphs, answers = [stats["unique_graphs"]], []
    for size in (*GUARDED, *UNGUARDED):
        if size in UNGUARDED:
            llm.apply_model(_drop_guards)
        batch = replace(request, prompts=request.prompts[:size])
        answers.append(generate(llm, batch, options))
        graphs.append(stats["unique_graphs"])
    config = llm.llm_engine.vllm_config.compilation_config
    return _Compiled(config.backend, tuple(graphs), tuple(answers))


def _drop_guards(model: Any) -> None:
    model.model.aot_compiled_fn.disable_guard_check()


# Two layers: the first starts the residual stream, the others add to it.
TWO_LAYERS = {"num_hidden_layers": 2}
FIVE_PROMPTS = Variant("compiled", TWO_LAYERS, prompt_lengths=(5, 17, 40, 2, 9))
COMPILE = (Condition("compiled", compiled, FIVE_PROMPTS),)
