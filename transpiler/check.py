"""Step 7, check: what every generated file must satisfy before it is written."""

from __future__ import annotations

import ast
import re

import libcst as cst

from transpiler.edits import Fate
from transpiler.fusions.fusion import Work
from transpiler.refusal import Refused
from transpiler.rewrite import is_docstring
from transpiler.tree import statements_within


def check(work: Work, text: str, fates: dict[cst.CSTNode, Fate]) -> None:
    """Refuse to write a file that is not whole.

    Raises:
        Refused: [no-fate], [attribute].
        AssertionError: The transpiler made something wrong: a fault of its own.
    """
    compile(text, "<generated>", "exec", dont_inherit=True)
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            check_attributes(node, work.program.module.classes[node.name].node)
    check_merged(work, text)
    check_fates(work, fates)


def check_fates(work: Work, fates: dict[cst.CSTNode, Fate]) -> None:
    """Every statement of every constructor and forward on the path has one fate."""
    for scope in work.scopes():
        for method in ("__init__", "forward"):
            for node in statements_within(scope.cls.method(method)):
                if node not in fates and not is_docstring(node):
                    raise Refused("no-fate", "a statement is not accounted for", node)


def check_attributes(node: ast.ClassDef, where: cst.CSTNode) -> None:
    """Every `self.x` that a class reads is one that it sets or inherits."""
    bound: set[str] = {
        item.name for item in node.body if isinstance(item, ast.FunctionDef)
    }
    read: dict[str, int] = {}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            bound.add(inner.id)
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.value, ast.Name)
            and inner.value.id == "self"
        ):
            if isinstance(inner.ctx, ast.Store):
                bound.add(inner.attr)
            else:
                read.setdefault(inner.attr, inner.lineno)
    missing = sorted(set(read) - bound - INHERITED)
    if missing:
        raise Refused(
            "attribute",
            f"{node.name} reads self.{missing[0]}, which nothing sets",
            where,
        )


INHERITED = frozenset(
    {
        "_maybe_add_hidden_state",
        "aux_hidden_state_layers",
        "collect_remote_aux_hidden_states",
        "pack_local_aux_hidden_states",
    }
)


def check_merged(work: Work, text: str) -> None:
    """No merged-away projection is left in its class, and each has one home."""
    for shard in (s for s in work.shards if s.target != s.source):
        body = re.split(rf"^class {shard.owner}\b", text, flags=re.MULTILINE)[1]
        body = re.split(r"^class ", body, flags=re.MULTILINE)[0]
        if re.search(rf"self\.{shard.source}\b", body):
            raise AssertionError(f"self.{shard.source} is merged away and still used")
