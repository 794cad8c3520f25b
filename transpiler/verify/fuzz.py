"""Mutated modeling files: is what is made of them ever wrong?

As a command: ``python -m transpiler.verify.fuzz [MODEL] [--number N] [--seed S]``.
"""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from transpiler.verify.families import chosen
from transpiler.verify.isolate import import_once
from transpiler.verify.judge import Finding, Judge, Mutant, Verdict
from transpiler.verify.mutate import CHANGING, KEEPING
from transpiler.verify.report_case import write_case

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
FAILURES = Path("fuzz-failures")
# Mutants that one process judges: caches and graphs grow with each.
LIFE = 30
# How often a mutant has a second mutation, one that keeps the numbers, under the first.
DOUBLED = 0.3
# At most this part of the mutants may be mutations that do not do what they say.
FAULTS = 0.05
# Of each keeping mutation's mutants, this part must be fused as before.
STAY_FUSED = 0.9


def mutants(models: list[str], number: int, seed: int) -> Iterator[Mutant]:
    """`number` mutants, the same for the same seed, over all mutations in turn."""
    kinds = [*KEEPING, *CHANGING]
    for index in range(number):
        draw = random.Random(f"{seed} {index}")
        first = kinds[index % len(kinds)]
        names = [first.name]
        if draw.random() < DOUBLED:
            names.insert(0, draw.choice(KEEPING).name)
        turn, kind = divmod(index, len(kinds))
        model = models[(turn + kind) % len(models)]
        yield Mutant(model, tuple(names), f"{seed} {index}")


def judged(
    models: list[str],
    number: int,
    seed: int,
    processes: int,
    only: int | None = None,
) -> list[tuple[Mutant, Finding]]:
    """Mutants with what came of them.

    Args:
        models: Whose files are mutated.
        number: How many mutants are planned.
        seed: What they are drawn from.
        processes: How many judge them.
        only: Place of the one mutation whose mutants are judged; None for all.
    """
    import_once()
    planned = list(mutants(models, number, seed))
    if only is not None:
        planned = planned[only :: len((*KEEPING, *CHANGING))]
    with tempfile.TemporaryDirectory(prefix="verify-fuzz-") as folder:
        families = tuple(chosen(models))
        judge = Judge(Path(folder), families)
        judge.prepare()
        with get_context("fork").Pool(processes, judge.start, (), LIFE) as pool:
            found = pool.imap(judge.judge, planned)
            findings = list(track(found, "mutants", len(planned), disable=number < 200))
    return list(zip(planned, findings, strict=True))


@app.command()
def fuzz(
    model: Annotated[str | None, typer.Argument(help="All, if none.")] = None,
    number: Annotated[int, typer.Option(min=1)] = 1000,
    seed: int = 0,
    processes: Annotated[int, typer.Option(min=1)] = 2,
) -> None:
    """Mutate modeling files and compare; exit status 1 if one is wrong or crashes."""
    models = [family.name for family in chosen([model] if model else None)]
    found = judged(models, number, seed, processes)
    console = Console(width=140)
    console.print(table_of(found))
    for mutant, finding in found:
        if finding.verdict in (Verdict.WRONG, Verdict.CRASH):
            path = write_case(FAILURES, mutant, finding)
            console.print(f"{finding.verdict.value}: {finding.detail}: {path}")
        elif finding.verdict is Verdict.FAULT:
            console.print(f"fault: {mutant.title}: {finding.detail}")
    failed = shortfalls(found)
    for line in failed:
        console.print(line)
    raise typer.Exit(1 if failed else 0)


def shortfalls(found: list[tuple[Mutant, Finding]]) -> list[str]:
    """What keeps a run from passing, a line each."""
    counts = Counter(finding.verdict for _, finding in found)
    lines = [
        f"{counts[verdict]} {verdict.value}"
        for verdict in (Verdict.WRONG, Verdict.CRASH)
        if counts[verdict]
    ]
    if counts[Verdict.FAULT] > FAULTS * len(found):
        lines.append(f"{counts[Verdict.FAULT]} faults of mutations, over 5 %")
    for mutation in KEEPING:
        own = [
            finding.verdict
            for mutant, finding in found
            if mutant.names == (mutation.name,)
            and finding.verdict not in (Verdict.FAULT, Verdict.NONE)
        ]
        if own and own.count(Verdict.EQUAL) < STAY_FUSED * len(own):
            stayed = f"{own.count(Verdict.EQUAL)} of {len(own)}"
            lines.append(f"{mutation.name}: {stayed} fused as before")
    return lines


def table_of(found: list[tuple[Mutant, Finding]]) -> Table:
    """One row a mutation: how many mutants came to which verdict."""
    table = Table(box=None, pad_edge=False)
    columns = list(Verdict)
    for name in ("mutation", "tried", *(verdict.value for verdict in columns)):
        table.add_column(name, justify="left" if name == "mutation" else "right")
    rows: dict[str, Counter[Verdict]] = {}
    for mutant, finding in found:
        rows.setdefault(mutant.names[-1], Counter())[finding.verdict] += 1
    rows["all"] = sum(rows.values(), Counter())
    for name, counts in rows.items():
        cells = [str(counts[verdict]) for verdict in columns]
        table.add_row(name, str(counts.total()), *cells)
    return table


if __name__ == "__main__":
    app(prog_name="python -m transpiler.verify.fuzz")
