"""Every refusal code is documented in the file that raises it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1] / "transpiler"
FILES = sorted(p for p in ROOT.rglob("*.py") if "verify" not in p.parts)


def raised(tree: ast.Module) -> set[str]:
    """Codes in `Refused("code", …)` of a file."""
    return {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Refused"
        and isinstance(node.args[0], ast.Constant)
        and isinstance(node.args[0].value, str)
    }


def documented(tree: ast.Module) -> set[str]:
    """Codes that a file's docstrings name, as `[code]` or `code: …`."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    texts = [ast.get_docstring(n) or "" for n in ast.walk(tree) if isinstance(n, kinds)]
    text = "\n".join(texts)
    bracketed = re.findall(r"\[([a-z][a-z0-9-]+)\]", text)
    listed = re.findall(r"^\s*([a-z0-9]+(?:-[a-z0-9]+)*): ", text, re.MULTILINE)
    return {*bracketed, *listed}


def test_codes_are_documented_in_the_file_that_raises_them() -> None:
    missing = {}
    for path in FILES:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lost = raised(tree) - documented(tree)
        if lost:
            missing[path.name] = sorted(lost)
    assert missing == {}
