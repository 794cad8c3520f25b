"""The README's table of families, derived from the report and the proof."""

from __future__ import annotations

import json
import re
from pathlib import Path

from transpiler.emit.registry import PROOF, proven

BEGIN, END = "<!-- families:begin -->", "<!-- families:end -->"


def with_families(readme: str, folder: Path, report: str) -> str:
    """A README with the table between its two markers written anew.

    Args:
        readme: The text of the README; returned as it is when it has no markers.
        folder: The folder of the generated files and the proof.
        report: The text of the report, one section per model.
    """
    start, middle, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not middle or not end:
        return readme
    return f"{start}{BEGIN}\n{table(folder, report)}{END}{tail}"


def table(folder: Path, report: str) -> str:
    """One row a model: what was fused, what was refused, how much is proven."""
    rows = ["| file | architecture | fusions | proof |", "|---|---|---|---|"]
    known = proven(folder)
    for section in re.split(r"^## ", report, flags=re.MULTILINE)[1:]:
        name = section.splitlines()[0].strip()
        outcomes = re.findall(
            r"^\| \w+ \| ([a-z ]+) \| (.*) \|$", section, re.MULTILINE
        )
        fused = dict.fromkeys(
            f for f, said in outcomes if not said.startswith("refused")
        )
        fused.pop("fusion", None)
        proof = summary(folder, name) if name in known else "not proven: not registered"
        architecture = known.get(name, "")
        rows.append(f"| {name} | {architecture} | {', '.join(fused)} | {proof} |")
    return "".join(f"{row}\n" for row in rows)


def summary(folder: Path, name: str) -> str:
    """How many variants of a model are equal, and how many raise as they must."""
    entry = json.loads((folder / PROOF).read_text(encoding="utf-8"))["files"][
        f"{name}.py"
    ]
    return (
        f"{len(entry['equal'])} variants equal, {len(entry['raises'])} refused by name"
    )
