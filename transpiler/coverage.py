"""Coverage: every modeling file of Transformers tried, and why most are refused.

Nothing is written but the table; a file that is emitted here is not registered, which
only its proof does.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from transpiler.pipeline import transpile_source
from transpiler.read import UPSTREAM_VERSION, read
from transpiler.refusal import BadInput, Refused

COVERAGE = "COVERAGE.md"
NOT_A_FILE = "bad-input"
TITLE = f"""# What is transpiled

Written by `make coverage`: every modeling file of transformers {UPSTREAM_VERSION},
emitted, or refused by the first thing that could not be accounted for. What is emitted
is served only once it is proven (README).
"""


@dataclass(frozen=True)
class Tried:
    """What came of one modeling file.

    Attributes:
        path: Its path within the Transformers package.
        code: Refusal code, empty where a file would be written.
        where: File, line and column of the refusal.
        reason: What was found there.
    """

    path: str
    code: str = ""
    where: str = ""
    reason: str = ""


def modeling_files(root: Path) -> list[Path]:
    """Every modeling file of a Transformers package, by path."""
    return sorted(root.glob("models/*/modeling_*.py"))


def tried(root: Path, path: Path) -> Tried:
    """Try one modeling file; only a refusal is caught."""
    shown = path.relative_to(root).as_posix()
    try:
        source = replace(read(str(path), root), path=shown)
    except BadInput as bad:
        return Tried(shown, NOT_A_FILE, shown, str(bad))
    try:
        transpile_source(source)
    except Refused as refused:
        where = source.where(refused.node)
        return Tried(shown, refused.code, where, refused.reason)
    return Tried(shown)


def all_tried(root: Path, files: Sequence[Path]) -> Iterator[Tried]:
    """Try files on all cores, in their order."""
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(tried, [root] * len(files), files, chunksize=4)


def coverage_text(rows: Sequence[Tried]) -> str:
    """The table: what is emitted, then refusals by code with one example each."""
    emitted = sorted(row.path for row in rows if not row.code)
    by_code: dict[str, list[Tried]] = defaultdict(list)
    for row in rows:
        if row.code:
            by_code[row.code].append(row)
    lines = [TITLE, f"{len(rows)} files: {len(emitted)} emitted, the others refused.\n"]
    lines += [f"- `{path}`" for path in emitted]
    lines += ["", "| code | files | for example | reason |", "|---|---|---|---|"]
    for code in sorted(by_code, key=lambda code: (-len(by_code[code]), code)):
        found = by_code[code]
        first = min(found, key=lambda row: row.path)
        reason = first.reason.replace("|", "\\|").splitlines()[0]
        lines.append(f"| {code} | {len(found)} | `{first.where}` | {reason} |")
    return "\n".join(lines) + "\n"
