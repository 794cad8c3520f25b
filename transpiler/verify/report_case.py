"""A failing mutant as a case file, to be finished and put into `tests/cases`."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from transpiler.verify.judge import Finding, Mutant


def write_case(folder: Path, mutant: Mutant, finding: Finding) -> Path:
    """Write a mutant's edit as a case file; returns its path."""
    folder.mkdir(exist_ok=True)
    name = re.sub(r"[^a-z0-9]+", "-", mutant.title.lower()).strip("-")
    lines = difflib.unified_diff(
        finding.before.splitlines(keepends=True),
        finding.after.splitlines(keepends=True),
        n=1,
    )
    hunks = "".join(list(lines)[2:])
    head = (
        f"# {finding.detail}\nmodel: {mutant.model}\nexpect: refused [code] at SOURCE\n"
    )
    path = folder / f"{name}.diff"
    path.write_text(head + hunks, encoding="utf-8")
    return path
