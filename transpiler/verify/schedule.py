"""What the engine's scheduler really did: chunks, cached prefixes, preemptions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Schedule:
    """The scheduler's steps, as they come.

    Attributes:
        steps: per step, request id → tokens scheduled.
        cached: request id → tokens of its prompt found in the prefix cache.
        preemptions: how often a running request lost its place.
    """

    steps: list[Mapping[str, int]] = field(default_factory=list)
    cached: dict[str, int] = field(default_factory=dict)
    preemptions: int = 0

    @property
    def together(self) -> int:
        """How many requests the fullest step held."""
        return max(map(len, self.steps), default=0)

    def chunks(self, prompt_lengths: tuple[int, ...]) -> tuple[int, ...]:
        """In how many steps each prompt was computed, in order of arrival.

        Of a request that was preempted, or had a cached prefix, it says nothing.
        """
        order = list(dict.fromkeys(name for step in self.steps for name in step))
        found = []
        for name, length in zip(order, prompt_lengths, strict=True):
            count = 0
            for step in self.steps:
                if length > 0 and name in step:
                    count += 1
                    length -= step[name]
            found.append(count)
        return tuple(found)


def watch(llm: Any) -> Schedule:
    """Return the schedule of what `llm` is asked from now on, kept as it runs."""
    schedule = Schedule()
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    original = scheduler.schedule

    def recorded(*args: Any, **kwargs: Any) -> Any:
        output = original(*args, **kwargs)
        if output.num_scheduled_tokens:
            schedule.steps.append(dict(output.num_scheduled_tokens))
        for new in output.scheduled_new_reqs:
            schedule.cached[new.req_id] = new.num_computed_tokens
        schedule.preemptions += len(output.preempted_req_ids or ())
        return output

    scheduler.schedule = recorded
    return schedule
