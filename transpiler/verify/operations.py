"""How much work a forward is: operations of a decode step, kernels of inductor.

Times on a shared CPU say little; counts say exactly what a class asks of a GPU. Both
functions start an engine: run them in a child of `isolate.in_child`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transpiler.verify.engine import EngineOptions, Implementation, generate, start
from transpiler.verify.outputs import Request


@dataclass(frozen=True)
class Operations:
    """The operations of one decode step by name, each with how often it was called."""

    counts: Mapping[str, int]

    @property
    def total(self) -> int:
        """How many operations there are, views and allocations among them."""
        return sum(self.counts.values())

    def beyond(self, other: Operations) -> dict[str, int]:
        """Return by name how many more calls there are than in `other`."""
        return dict(Counter(self.counts) - Counter(other.counts))


@dataclass(frozen=True)
class Kernels:
    """What inductor made of a model.

    `graphs` is how many graphs dynamo traced and `kernels` how many kernels inductor
    generated for them.
    """

    graphs: int
    kernels: int


def count_operations(
    checkpoint: Path,
    request: Request,
    implementation: Implementation,
    options: EngineOptions,
) -> Operations:
    """Return the operations of the model's last forward, which is a decode step.

    A call of a vLLM `CustomOp` (norm, act-and-mul, rotary, …) counts as one operation,
    `CustomOp.<class>`: what it falls apart into on a CPU is one kernel on a GPU.

    Raises:
        ValueError: the request makes no decode step.
    """
    if request.new_tokens < 2:
        raise ValueError("the first new token comes from the prompt's own step")
    llm = start(checkpoint, implementation, options)
    steps: list[Counter[str]] = []
    llm.apply_model(lambda model: _count_forwards(model, steps))
    generate(llm, request, options)
    return Operations(dict(steps[-1]))


def count_kernels(
    checkpoint: Path, implementation: Implementation, max_model_len: int
) -> Kernels:
    """Return what inductor makes of the model when the engine starts."""
    from torch._dynamo.utils import counters
    from torch._inductor import metrics

    # A graph from the cache would have no kernels.
    os.environ["VLLM_DISABLE_COMPILE_CACHE"] = "1"
    start(checkpoint, implementation, EngineOptions(max_model_len, compiling=True))
    return Kernels(counters["stats"]["unique_graphs"], metrics.generated_kernel_count)


def _count_forwards(model: Any, steps: list[Counter[str]]) -> None:
    """Wrap a model's forward: each call appends its operations to `steps`."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from vllm.model_executor.custom_op import CustomOp

    inside: list[CustomOp] = []

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if not inside:
                steps[-1][str(function)] += 1
            return function(*args, **(kwargs or {}))

    forward: Callable[..., Any] = model.forward
    whole: Callable[..., Any] = CustomOp.forward

    def counted(*args: Any, **kwargs: Any) -> Any:
        steps.append(Counter())
        with Counting():
            return forward(*args, **kwargs)

    def as_one(self: Any, *args: Any, **kwargs: Any) -> Any:
        if steps and not inside:
            steps[-1][f"CustomOp.{type(self).__name__}"] += 1
        inside.append(self)
        try:
            return whole(self, *args, **kwargs)
        finally:
            inside.pop()

    CustomOp.forward = as_one
    model.forward = counted
