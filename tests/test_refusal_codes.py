"""Every refusal code is documented where it is raised, used, and tested."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from case_files import all_cases, upstream

from transpiler.analyse.module import analyse_module
from transpiler.check import check_fates
from transpiler.pipeline import prepared
from transpiler.refusal import Refused

ROOT = Path(__file__).resolve().parents[1] / "transpiler"
FILES = sorted(p for p in ROOT.rglob("*.py") if "verify" not in p.parts)
CODE = r"[a-z0-9]+(?:-[a-z0-9]+)*"


def raised(tree: ast.Module) -> set[str]:
    """Codes in `Refused("code", …)` of a file, and of its kinds of `Refused`."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    makes = ("Refused", "super().__init__")
    firsts = [c.args[0] for c in calls if c.args and ast.unparse(c.func) in makes]
    said = [first.value for first in firsts if isinstance(first, ast.Constant)]
    return {code for code in said if isinstance(code, str)}


def documented(tree: ast.Module) -> set[str]:
    """Codes that a file's docstrings name, as `[code]` or in a list `code: …`."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, kinds)]
    text = "\n".join(texts)
    bracketed = re.findall(rf"(?:^|[\s(])\[({CODE})\]", text)
    refusals = re.findall(r"^Refused when.*\n((?:    .*\n?)+)", text, re.MULTILINE)
    listed = re.findall(rf"^ {{4}}({CODE}): ", "\n".join(refusals), re.MULTILINE)
    return {*bracketed, *listed}


def codes(kind: str) -> dict[str, set[str]]:
    """Codes raised or documented in each file."""
    read = {"raised": raised, "documented": documented}[kind]
    return {
        str(path.relative_to(ROOT)): read(ast.parse(path.read_text("utf-8")))
        for path in FILES
    }


def test_codes_are_documented_in_the_file_that_raises_them() -> None:
    said = codes("documented")
    missing = {path: found - said[path] for path, found in codes("raised").items()}
    assert {path: lost for path, lost in missing.items() if lost} == {}


def test_documented_codes_are_raised() -> None:
    used = set().union(*codes("raised").values())
    stale = {path: said - used for path, said in codes("documented").items()}
    assert {path: lost for path, lost in stale.items() if lost} == {}


def test_a_statement_without_a_fate_is_refused() -> None:
    """No source is known that comes this far, so no case file can show it."""
    work = prepared(analyse_module(upstream("llama").tree))
    with pytest.raises(Refused, match=r"\[no-fate\]"):
        check_fates(work, {})


def test_every_code_has_a_case() -> None:
    tested = defaultdict(list, {"no-fate": ["the test above"]})
    for case in all_cases():
        for code in (case.code, *(code for _, code, _ in case.also)):
            tested[code].append(case.name)
    assert set().union(*codes("raised").values()) - set(tested) == set()
