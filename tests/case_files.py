"""Case files: one small edit of an upstream file, and what must become of it.

A case is a text file `cases/<room>/<name>.diff`; the room is a fusion, a lowering or
a file of `analyse/`:

    # what is special in it, where the name does not say it
    model: llama
    expect: qkv refused [different-input] at key_states = self.k_proj(hidden_states * 2)
    lacks: qkv_proj
    @@ -249 +249 @@
    -        key_states = self.k_proj(hidden_states)…
    +        key_states = self.k_proj(hidden_states * 2)…

`expect:` says one of

- `refused [code] at SOURCE`: no file is written; the refusal points at that line;
- `FUSION refused [code] at SOURCE`: written, without that fusion at that line;
- `same`: written, byte for byte as without the edit, header aside;
- `fused`: written otherwise, and every fusion applied as without the edit;
- `unfused FUSION`: written, and that fusion is absent somewhere it was before.

`also:`, any number of times, is a fusion refused before: `FUSION refused [code] at
SOURCE`. `has:` and `lacks:` are texts of the output, `\\n` for a new
line. A hunk is put at the place nearest to its line number where its text stands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import libcst as cst

from transpiler.pipeline import Transpiled, transpile_source
from transpiler.read import Source, read

CASES = Path(__file__).parent / "cases"
HUNK = re.compile(r"@@ -(\d+)(?:,\d+)? \+\d+(?:,\d+)? @@")
EXPECT = re.compile(
    r"(?:(?P<fusion>[a-z ]+) )?refused \[(?P<code>[a-z0-9-]+)\] at (?P<at>.+)"
    r"|same|fused|unfused (?P<absent>[a-z ]+)"
)


@dataclass(frozen=True)
class Case:
    """One case file.

    Attributes:
        name: `<room>/<name>`.
        model: Upstream model that is edited.
        expect: What must come of it, as written.
        fusion: The fusion that is refused, empty when the file is.
        code: Code of the refusal, empty when there is none.
        at: The source line that the refusal points at, or a part of it.
        also: Fusions that were refused before: fusion, code, source line.
        has: Texts of the output.
        lacks: Texts that the output must not have.
        hunks: Line number, lines before, lines after.
    """

    name: str
    model: str
    expect: str
    fusion: str
    code: str
    at: str
    also: tuple[tuple[str, str, str], ...]
    has: tuple[str, ...]
    lacks: tuple[str, ...]
    hunks: tuple[tuple[int, str, str], ...]

    def source(self) -> Source:
        """The edited upstream file."""
        original = upstream(self.model)
        text = original.text
        drift = 0
        for line, old, new in self.hunks:
            start = nearest(text, old, line + drift, self.name)
            text = text[:start] + new + text[start + len(old) :]
            drift += new.count("\n") - old.count("\n")
        return replace(original, text=text, tree=cst.parse_module(text))


def nearest(text: str, old: str, line: int, name: str) -> int:
    """Offset of the occurrence of whole lines that is nearest to a line number."""
    starts = [
        found.start() for found in re.finditer("^" + re.escape(old), text, re.MULTILINE)
    ]
    assert starts, f"{name}: upstream has no such lines:\n{old}"
    return min(starts, key=lambda start: abs(text.count("\n", 0, start) + 1 - line))


def case_of(path: Path) -> Case:
    """Read one case file."""
    name = f"{path.parent.name}/{path.stem}"
    head, *rest = re.split(r"^(?=@@)", path.read_text("utf-8"), flags=re.MULTILINE)
    said: dict[str, list[str]] = {}
    for line in head.splitlines():
        if line.startswith("# "):
            continue
        key, _, value = line.partition(": ")
        said.setdefault(key, []).append(value.replace("\\n", "\n"))
    keys = {"model", "expect", "also", "has", "lacks"}
    assert said.keys() <= keys, f"{name}: {list(said)}"
    (model,), (expect,) = said["model"], said["expect"]
    found = EXPECT.fullmatch(expect)
    assert found is not None, f"{name}: expect: {expect}"
    return Case(
        name,
        model,
        expect,
        found["fusion"] or found["absent"] or "",
        found["code"] or "",
        found["at"] or "",
        tuple(refusal_of(text, name) for text in said.get("also", ())),
        tuple(said.get("has", ())),
        tuple(said.get("lacks", ())),
        tuple(hunk_of(text, name) for text in rest),
    )


def refusal_of(text: str, name: str) -> tuple[str, str, str]:
    """Fusion, code and source line of `FUSION refused [code] at SOURCE`."""
    found = EXPECT.fullmatch(text)
    assert found is not None, f"{name}: also: {text}"
    return found["fusion"], found["code"], found["at"]


def hunk_of(text: str, name: str) -> tuple[int, str, str]:
    """Line number, old and new lines of a hunk."""
    head, *lines = text.splitlines(keepends=True)
    found = HUNK.match(head)
    assert found is not None, f"{name}: {head}"
    assert all(line[0] in " +-" for line in lines), f"{name}: {head}"
    old = "".join(line[1:] for line in lines if line[0] in " -")
    new = "".join(line[1:] for line in lines if line[0] in " +")
    return int(found[1]), old, new


def all_cases() -> Iterator[Case]:
    """Every case, by room and name."""
    for path in sorted(CASES.glob("*/*.diff")):
        yield case_of(path)


@cache
def upstream(model: str) -> Source:
    """An upstream file as it is."""
    return read(model)


@cache
def unedited(model: str) -> Transpiled:
    """What the walk makes of an upstream file as it is."""
    return transpile_source(upstream(model))


def body_of(transpiled: Transpiled) -> str:
    """A generated text without its header, which holds digests."""
    return transpiled.text.partition('"""Inference-only')[2]
