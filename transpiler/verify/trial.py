"""What every engine condition needs: a checkpoint, upstream's answers, a verdict.

A condition is a way to run an engine (chunked prefill, two ranks, a LoRA adapter, …)
under which the class under test must still equal upstream, and it is worth something
only if it really happened: each returns `Evidence` of that.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.compare import Comparison, compare
from transpiler.verify.engine import EngineOptions, Implementation, Kind, start
from transpiler.verify.isolate import Failure, in_child
from transpiler.verify.oracle import consult
from transpiler.verify.outputs import Answer, Reference, Request
from transpiler.verify.run import Plan
from transpiler.verify.variants import Variant

T = TypeVar("T")


class NotMet(Exception):
    """A condition did not happen, or did not hold; the message says which and how."""


@dataclass(frozen=True)
class Evidence:
    """That a condition happened, and how far the engine then is from upstream.

    Attributes:
        happened: what was seen, as a person reads it, for example `3 preemptions`.
        comparison: the distance from upstream, where numbers are compared.
        gaps: gaps of vLLM's CPU platform that were worked round.
    """

    happened: str
    comparison: Comparison | None = None
    gaps: tuple[str, ...] = ()


@dataclass(frozen=True)
class Trial:
    """A variant's checkpoint on disk and what is asked of it."""

    plan: Plan
    variant: Variant
    checkpoint: Path

    @property
    def request(self) -> Request:
        """The prompts of the variant."""
        return request_of(self.plan.family, self.variant, self.plan.seed)

    @property
    def implementation(self) -> Implementation:
        """The class under test."""
        return self.plan.implementation

    @property
    def own(self) -> Implementation:
        """The class that vLLM itself has for the architecture."""
        return Implementation(Kind.VLLM, self.plan.family.architecture)

    def options(self, **settings: Any) -> EngineOptions:
        """The variant's engine with further arguments of `vllm.LLM`."""
        return EngineOptions(self.variant.max_model_len, settings)

    def in_child(self, function: Callable[[], T]) -> T:
        """Run `function` in a child and return its value.

        Raises:
            NotMet: it failed.
        """
        outcome = in_child(function, self.plan.timeout)
        if isinstance(outcome, Failure):
            raise NotMet(outcome.last_line())
        return outcome.value

    def in_engine(
        self,
        work: Callable[[Any], T],
        options: EngineOptions,
        implementation: Implementation | None = None,
    ) -> T:
        """Start an engine in a child, give it to `work`, return what that returns.

        Raises:
            NotMet: the engine or `work` failed.
        """
        chosen = implementation or self.implementation

        def working() -> T:
            return work(start(self.checkpoint, chosen, options))

        return self.in_child(working)

    def reference(self, request: Request | None = None) -> Reference:
        """Upstream's answers to `request`, or to the variant's own prompts."""
        asked = request or self.request
        return self.in_child(partial(consult, self.checkpoint, asked))

    def compared(
        self, answers: tuple[Answer, ...], prompt_positions: bool = True
    ) -> Comparison:
        """The distance of answers to the variant's prompts from upstream's.

        Raises:
            NotMet: they are not equal.
        """
        return required(compare(self.reference(), answers, prompt_positions))


def required(comparison: Comparison) -> Comparison:
    """Return a comparison that is equal.

    Raises:
        NotMet: it is not.
    """
    if not comparison.is_equal:
        tokens = "equal" if comparison.tokens_equal else "different"
        raise NotMet(
            f"{comparison.largest:.1e} from upstream, bar {comparison.bar:.1e}, "
            f"{tokens} tokens"
        )
    return comparison


def require(happened: bool, what: str) -> None:
    """Check that something happened.

    Raises:
        NotMet: it did not.
    """
    if not happened:
        raise NotMet(what)


@dataclass(frozen=True)
class Condition:
    """A way to run the engine, and the variant it is tried on."""

    name: str
    run: Callable[[Trial], Evidence]
    variant: Variant = field(default_factory=lambda: Variant("default"))


@contextmanager
def trial_of(plan: Plan, variant: Variant) -> Iterator[Trial]:
    """Write the variant's checkpoint for as long as the block lasts.

    Raises:
        NotMet: upstream has no such checkpoint.
    """
    with tempfile.TemporaryDirectory(prefix="verify-checkpoint-") as name:
        trial = Trial(plan, variant, Path(name))
        trial.in_child(
            partial(write_checkpoint, trial.checkpoint, plan.family, variant, plan.seed)
        )
        yield trial
