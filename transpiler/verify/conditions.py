"""The ways to run an engine under which a class must still equal upstream."""

from __future__ import annotations

import time
from dataclasses import dataclass

from transpiler.verify.conditions_compile import COMPILE
from transpiler.verify.conditions_construction import CONSTRUCTION
from transpiler.verify.conditions_lora import LORA
from transpiler.verify.conditions_scheduling import SCHEDULING
from transpiler.verify.conditions_states import STATES
from transpiler.verify.run import Plan
from transpiler.verify.trial import Condition, Evidence, NotMet, trial_of

CONDITIONS: tuple[Condition, ...] = (
    *SCHEDULING,
    *CONSTRUCTION,
    *STATES,
    *LORA,
    *COMPILE,
)


@dataclass(frozen=True)
class Verdict:
    """What came of one condition: evidence that it held, or why it did not."""

    condition: str
    evidence: Evidence | None
    detail: str
    seconds: float


def try_condition(plan: Plan, condition: Condition) -> Verdict:
    """Run one condition on the plan's class. `isolate.import_once` comes first."""
    began = time.monotonic()
    evidence, detail = None, ""
    try:
        with trial_of(plan, condition.variant) as trial:
            evidence = condition.run(trial)
    except NotMet as reason:
        detail = str(reason)
    return Verdict(condition.name, evidence, detail, time.monotonic() - began)
