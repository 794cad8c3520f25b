"""The report: what was fused and what was not, per model and class, with reasons."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from transpiler.fusions.fusion import Outcome
from transpiler.pipeline import Transpiled
from transpiler.read import Source

REPORT = "REPORT.md"
TITLE = """# What was fused

Written by `make transpile`. One section per generated file; a refused fusion leaves
correct, unfused code.
"""


@dataclass(frozen=True)
class Written:
    """What is written of one model, and said of it.

    Attributes:
        name: The model.
        text: Its generated file.
        section: Its section of the report.
        lines: Its fusions, applied and refused.
    """

    name: str
    text: str
    section: str
    lines: tuple[str, ...]


def written(transpiled: Transpiled) -> Written:
    """What is to be written of a model that was walked."""
    source = transpiled.source
    lines = tuple(line_of(source, outcome) for outcome in transpiled.outcomes)
    return Written(source.name, transpiled.text, section_of(transpiled), lines)


def line_of(source: Source, outcome: Outcome) -> str:
    """One outcome as a compiler prints it."""
    if not outcome.code:
        return f"{outcome.scope}: {outcome.fusion}: {outcome.detail}"
    return (
        f"{source.where(outcome.node)}: {outcome.scope}: {outcome.fusion} refused "
        f"[{outcome.code}]: {outcome.detail}"
    )


def section_of(transpiled: Transpiled) -> str:
    """The section of one model in the report."""
    source = transpiled.source
    rows = [
        f"| {outcome.scope} | {outcome.fusion} | {state(source, outcome)} |"
        for outcome in transpiled.outcomes
    ]
    table = ["| class | fusion | outcome |", "|---|---|---|", *rows]
    return f"## {source.name}\n\nFrom `{source.path}`.\n\n" + "\n".join(table) + "\n"


def state(source: Source, outcome: Outcome) -> str:
    """Outcome cell of a row."""
    if not outcome.code:
        return outcome.detail
    return f"refused [{outcome.code}] at {source.where(outcome.node)}: {outcome.detail}"


def merged(report: str, sections: Iterable[Written], names: Iterable[str]) -> str:
    """A report in which these models' sections are replaced.

    Args:
        report: The text of the report so far, may be empty.
        sections: Models that were transpiled now.
        names: Models whose files exist; others lose their section.
    """
    parts = re.split(r"^(?=## )", report, flags=re.MULTILINE)[1:]
    found = {part.splitlines()[0][3:].strip(): part.strip() + "\n" for part in parts}
    found |= {made.name: made.section for made in sections}
    kept = [found[name] for name in sorted(names) if name in found]
    return "\n".join([TITLE, *kept])
