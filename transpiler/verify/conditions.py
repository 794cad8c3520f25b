"""The ways to run an engine under which a class must still equal upstream.

As a command: ``python -m transpiler.verify.conditions [MODEL ...]``.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from transpiler.verify.conditions_compile import COMPILE
from transpiler.verify.conditions_construction import CONSTRUCTION
from transpiler.verify.conditions_lora import LORA
from transpiler.verify.conditions_ranks import RANKED
from transpiler.verify.conditions_scheduling import SCHEDULING
from transpiler.verify.conditions_states import STATES
from transpiler.verify.families import chosen
from transpiler.verify.isolate import import_once
from transpiler.verify.run import Plan
from transpiler.verify.trial import Condition, Evidence, NotMet, trial_of

CONDITIONS: tuple[Condition, ...] = (
    *SCHEDULING,
    *RANKED,
    *CONSTRUCTION,
    *STATES,
    *LORA,
    *COMPILE,
)
TIMEOUT = 300.0

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


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


@app.command()
def conditions(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="All, if none.")
    ] = None,
) -> None:
    """Try generated classes under every condition; exit status 1 if one fails."""
    families = chosen(models)
    import_once()
    console = Console(width=140)
    failed = False
    for family in families:
        target = family.target
        plan = Plan(family, target, with_backend=False, timeout=TIMEOUT)
        verdicts = [try_condition(plan, condition) for condition in CONDITIONS]
        failed = failed or any(verdict.evidence is None for verdict in verdicts)
        console.print(_table(family.name, verdicts))
    raise typer.Exit(1 if failed else 0)


def _table(title: str, verdicts: list[Verdict]) -> Table:
    """Return one row a condition: evidence, distance from upstream, gaps of vLLM."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("condition", "what happened", "off by", "seconds", "worked round"):
        table.add_column(name)
    for verdict in verdicts:
        evidence, off = verdict.evidence, ""
        if evidence is not None and evidence.comparison is not None:
            off = f"{evidence.comparison.largest:.1e}"
        happened = evidence.happened if evidence else f"FAILED: {verdict.detail}"
        gaps = "; ".join(evidence.gaps) if evidence else ""
        table.add_row(verdict.condition, happened, off, f"{verdict.seconds:.1f}", gaps)
    return table


if __name__ == "__main__":
    app(prog_name="python -m transpiler.verify.conditions")
