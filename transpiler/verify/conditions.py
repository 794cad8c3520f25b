"""Conditions of a running engine, each with the evidence that it really happened.

The scheduler of an in-process engine is watched while it answers: how many steps a
prompt took, how many of its tokens were found in the prefix cache, how often a
request was put back for want of memory.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transpiler.verify.engine import EngineOptions, Implementation, generate, start
from transpiler.verify.outputs import Answer, Request


@dataclass(frozen=True)
class Watched:
    """Answers with what the scheduler did for them.

    Attributes:
        answers: one per prompt.
        chunks: largest number of steps over which one prompt was spread.
        cached: tokens that were found in the prefix cache.
        preempted: times that a running request was put back.
    """

    answers: tuple[Answer, ...]
    chunks: int
    cached: int
    preempted: int


def watch(
    checkpoint: Path,
    request: Request,
    implementation: Implementation,
    options: EngineOptions,
    rounds: int = 1,
) -> Watched:
    """Answer a request `rounds` times in one engine; the last answers, all evidence.

    Run it in a child of `isolate.in_child`.

    Raises:
        ValueError: the class refused the config or the checkpoint.
    """
    llm = start(checkpoint, implementation, options)
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    chunks: Counter[str] = Counter()
    found = {"cached": 0, "preempted": 0}
    schedule, preempt = scheduler.schedule, scheduler._preempt_request

    def watched_schedule(*args: Any, **kwargs: Any) -> Any:
        output = schedule(*args, **kwargs)
        for new in output.scheduled_new_reqs:
            found["cached"] += new.num_computed_tokens
        for name, count in output.num_scheduled_tokens.items():
            chunks[name] += count > 1
        return output

    def watched_preempt(*args: Any, **kwargs: Any) -> Any:
        found["preempted"] += 1
        return preempt(*args, **kwargs)

    scheduler.schedule = watched_schedule
    scheduler._preempt_request = watched_preempt
    answers: tuple[Answer, ...] = ()
    for _ in range(rounds):
        answers = generate(llm, request, options)
    return Watched(answers, max(chunks.values()), found["cached"], found["preempted"])
