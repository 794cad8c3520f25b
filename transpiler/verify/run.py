"""Prove one variant, or all of a family: checkpoint, oracle, engine, verdict."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.compare import Comparison, compare
from transpiler.verify.engine import (
    EngineOptions,
    Implementation,
    Kind,
    generate,
    start,
)
from transpiler.verify.family import Family
from transpiler.verify.isolate import Failure, find_name, in_child
from transpiler.verify.oracle import consult
from transpiler.verify.outputs import Answer, Reference, Request
from transpiler.verify.ranks import run_ranks
from transpiler.verify.variants import Outcome, Split, Variant


@dataclass(frozen=True)
class Plan:
    """How a family is proven: the class under test and what else is run.

    `target` is `module:Class` or `path/to/file.py:Class`, or empty to put vLLM's own
    class to the test; `timeout` is seconds per child.
    """

    family: Family
    target: str
    seed: int = 0
    with_backend: bool = True
    timeout: float = 120.0

    @property
    def implementation(self) -> Implementation:
        """The class under test."""
        kind = Kind.UNDER_TEST if self.target else Kind.VLLM
        return Implementation(kind, self.family.architecture, self.target)


@dataclass(frozen=True)
class Result:
    """What came of one variant.

    Attributes:
        variant: the variant.
        passed: whether the expected outcome was met.
        comparison: how far the class under test is from upstream, where it ran.
        named: the field or tensor that the expected `ValueError` named, or empty.
        detail: why it did not pass, one line, or empty.
        backend: the Transformers backend on the same checkpoint: its comparison, why
            it gave none, or None where it was not asked.
        seconds: wall time of the variant without the backend.
        backend_seconds: wall time of the backend.
        upstream_fails: whether upstream itself cannot be made, or does not run.
    """

    variant: Variant
    passed: bool
    comparison: Comparison | None = None
    named: str = ""
    detail: str = ""
    backend: Comparison | str | None = None
    seconds: float = 0.0
    backend_seconds: float = 0.0
    upstream_fails: bool = False


def prove_variant(plan: Plan, variant: Variant) -> Result:
    """Run one variant and judge it. `isolate.import_once` must have been called."""
    with tempfile.TemporaryDirectory(prefix="verify-checkpoint-") as name:
        checkpoint = Path(name)
        began = time.monotonic()
        result = _judge(plan, variant, checkpoint)
        seconds = time.monotonic() - began
        if isinstance(result, _Compared):
            backend = _run_backend(plan, variant, checkpoint, result.reference)
            result = Result(
                variant,
                result.comparison.is_equal,
                result.comparison,
                detail=_shortfall(result.comparison),
                backend=backend,
            )
        spent = time.monotonic() - began - seconds
    return replace(result, seconds=seconds, backend_seconds=spent)


def run_class(
    checkpoint: Path,
    request: Request,
    implementation: Implementation,
    options: EngineOptions,
) -> tuple[Answer, ...]:
    """Start an engine in this process, answer the request, return the answers."""
    return generate(start(checkpoint, implementation, options), request, options)


@dataclass(frozen=True)
class _Compared:
    reference: Reference
    comparison: Comparison


def _judge(plan: Plan, variant: Variant, checkpoint: Path) -> Result | _Compared:
    """Return a comparison where the class ran, else the whole result."""
    writing = partial(write_checkpoint, checkpoint, plan.family, variant, plan.seed)
    written = in_child(writing, plan.timeout)
    fails = variant.expected.outcome is Outcome.UPSTREAM_FAILS
    if isinstance(written, Failure):
        detail = f"checkpoint: {written.last_line()}"
        return Result(variant, fails, detail=detail, upstream_fails=True)
    if variant.expected.outcome in (Outcome.RAISES, Outcome.EITHER):
        names = (*variant.expected.names, *written.value)
        refusal = _judge_start(plan, variant, checkpoint, names)
        if refusal is not None:
            return refusal
    return _judge_numbers(plan, variant, checkpoint)


def _judge_start(
    plan: Plan, variant: Variant, checkpoint: Path, names: tuple[str, ...]
) -> Result | None:
    """Return the result of an engine start, or None if it started and may.

    `names` are the fields and tensors of which an error must name one.
    """
    options = EngineOptions(variant.max_model_len)
    implementation = plan.implementation

    def starting() -> None:
        start(checkpoint, implementation, options)

    started = in_child(starting, plan.timeout)
    if isinstance(started, Failure):
        named = find_name(started, names)
        if named:
            return Result(variant, True, named=named)
        wanted = " or ".join(names)
        return _failed(variant, f"no ValueError names {wanted}: {started.last_line()}")
    if variant.expected.outcome is Outcome.RAISES:
        return _failed(variant, "started, where it must raise a ValueError")
    return None


def _judge_numbers(
    plan: Plan, variant: Variant, checkpoint: Path
) -> Result | _Compared:
    request = request_of(plan.family, variant, plan.seed)
    reference = in_child(partial(consult, checkpoint, request), plan.timeout)
    fails = variant.expected.outcome is Outcome.UPSTREAM_FAILS
    if isinstance(reference, Failure):
        detail = f"upstream: {reference.last_line()}"
        return Result(variant, fails, detail=detail, upstream_fails=True)
    if fails:
        return _failed(variant, "upstream runs, where it must fail")
    options = EngineOptions(variant.max_model_len)
    asked = (checkpoint, request, plan.implementation, options)
    running = partial(run_class, *asked)
    if variant.split is not None:
        running = partial(run_ranks, *asked, variant.split)
    answers = in_child(running, plan.timeout)
    if isinstance(answers, Failure):
        return _failed(variant, answers.last_line())
    # The first pipeline rank has no log-probabilities of the prompt.
    whole = variant.split is not Split.LAYERS
    comparison = compare(reference.value, answers.value, prompt_positions=whole)
    return _Compared(reference.value, comparison)


def _run_backend(
    plan: Plan, variant: Variant, checkpoint: Path, reference: Reference
) -> Comparison | str | None:
    """Run the Transformers backend on the same checkpoint, if asked for."""
    if not plan.with_backend or variant.split is not None:
        return None
    request = request_of(plan.family, variant, plan.seed)
    options = EngineOptions(variant.max_model_len)
    implementation = Implementation(Kind.TRANSFORMERS, plan.family.architecture)
    running = partial(run_class, checkpoint, request, implementation, options)
    answers = in_child(running, plan.timeout)
    if isinstance(answers, Failure):
        return answers.last_line()
    return compare(reference, answers.value)


def _shortfall(comparison: Comparison) -> str:
    """Return why a comparison is not equal, or empty."""
    if comparison.is_equal:
        return ""
    if comparison.largest > comparison.bar:
        return f"{comparison.largest:.1e} is above the bar {comparison.bar:.1e}"
    return "greedy tokens differ"


def _failed(variant: Variant, detail: str) -> Result:
    return Result(variant, False, detail=detail)
