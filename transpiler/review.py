"""For the reviewer: upstream against generated, and the fate of every statement."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator

import black
import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from transpiler.emit.text import MODE
from transpiler.fusions import FUSIONS
from transpiler.pipeline import Transpiled
from transpiler.report import line_of
from transpiler.tree import statements_within

Statements = (cst.SimpleStatementLine, cst.BaseCompoundStatement)


def diff_lines(transpiled: Transpiled) -> Iterator[str]:
    """Unified diff of each class, each removed statement followed by its rule."""
    upstream = black.format_str(transpiled.source.text, mode=MODE)
    rules = rules_by_line(transpiled, upstream)
    old, new = classes_of(upstream), classes_of(transpiled.text)
    for name, (start, lines) in old.items():
        if name not in new:
            continue
        yield f"=== {name}"
        yield from class_diff(lines, new[name][1], start, rules)


def class_diff(
    old: list[str], new: list[str], start: int, rules: dict[int, str]
) -> Iterator[str]:
    """Diff of one class; rules are by line of the formatted upstream file."""
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    for kind, i, j, k, m in matcher.get_opcodes():
        if kind == "equal":
            yield from (f"  {line}" for line in old[i:j])
            continue
        for offset in range(i, j):
            rule = rules.get(start + offset, "")
            yield f"- {old[offset]}" + (f"    # {rule}" if rule else "")
        yield from (f"+ {line}" for line in new[k:m])


def classes_of(text: str) -> dict[str, tuple[int, list[str]]]:
    """First line (from 1) and lines of each class."""
    lines = text.splitlines()
    found: dict[str, tuple[int, list[str]]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found[node.name] = (first, lines[first - 1 : node.end_lineno])
    return found


def rules_by_line(transpiled: Transpiled, upstream: str) -> dict[int, str]:
    """Rule of each line of the formatted upstream file, by matching statements."""
    formatted = cst.parse_module(upstream)
    wrapper = MetadataWrapper(formatted, unsafe_skip_copy=True)
    where = wrapper.resolve(PositionProvider)
    found: dict[int, str] = {}
    ours = statements_within(transpiled.source.tree)
    theirs = statements_within(formatted)
    for original, shown in zip(ours, theirs, strict=True):
        fate = transpiled.fates.get(original)
        if fate is None:
            continue
        if isinstance(shown, cst.FunctionDef | cst.ClassDef):
            for decorator in shown.decorators:
                found[where[decorator].start.line] = "dropped: decorator"
        span = where[shown.name] if isinstance(shown, cst.ClassDef) else where[shown]
        last = span.end.line
        if isinstance(shown, cst.BaseCompoundStatement):
            last = span.start.line
            if isinstance(shown, cst.FunctionDef):
                last = where[shown.body].start.line - 1
        for line in range(span.start.line, last + 1):
            found[line] = f"{fate.kind}: {fate.rule}" if fate.rule else "kept: moved"
    return found


def explained(transpiled: Transpiled) -> Iterator[str]:
    """Per class and fusion what came of it, then the fate of every statement."""
    source = transpiled.source
    names = ["rms norm", *(fusion.name for fusion in FUSIONS), "attention"]
    scopes = list(dict.fromkeys(o.scope for o in transpiled.outcomes))
    for scope in scopes:
        yield scope
        for name in names:
            here = [
                o for o in transpiled.outcomes if (o.scope, o.fusion) == (scope, name)
            ]
            if not here:
                yield f"  {name}: absent"
            for outcome in here:
                text = line_of(source, outcome).removeprefix(f"{scope}: ")
                yield f"  {text}"
    for node, fate in sorted(
        transpiled.fates.items(), key=lambda item: source.positions[item[0]]
    ):
        if isinstance(node, Statements):
            yield f"{source.where(node)}: {fate.kind} {fate.rule}".rstrip()
