"""Tree: plain questions asked of syntax nodes, by every room."""

from __future__ import annotations

from dataclasses import fields
from functools import cache, lru_cache
from typing import cast

import libcst as cst

# Nodes that hold no code.
LAYOUT = (
    cst.BaseParenthesizableWhitespace,
    cst.Comma,
    cst.EmptyLine,
    cst.LeftParen,
    cst.RightParen,
    cst.TrailingWhitespace,
)


@cache
def fields_of(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Fields of a kind of node that may hold code."""
    return tuple(
        field.name
        for field in fields(kind)
        if not field.name.startswith(("whitespace", "leading", "lines", "lpar", "rpar"))
    )


@lru_cache(maxsize=1 << 17)
def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """The nodes of code directly below a node; libcst's own are found by copying."""
    found: list[cst.CSTNode] = []
    for name in fields_of(type(node)):
        value = getattr(node, name)
        parts = value if isinstance(value, list | tuple) else (value,)
        found += [
            part
            for part in parts
            if isinstance(part, cst.CSTNode) and not isinstance(part, LAYOUT)
        ]
    return tuple(found)


Left = cst.CSTNode | cst.RemovalSentinel | cst.FlattenSentinel[cst.BaseStatement]


class Leaving(cst.CSTTransformer):
    """Says of each node what it becomes, its parts being done, whatever its kind."""

    def left(self, original: cst.CSTNode, updated: cst.CSTNode) -> Left:
        """What a node becomes.

        Args:
            original: The node.
            updated: The node with what its parts became.
        """
        raise NotImplementedError

    def on_leave(
        self, original_node: cst.CSTNodeT, updated_node: cst.CSTNodeT
    ) -> cst.CSTNodeT | cst.RemovalSentinel | cst.FlattenSentinel[cst.CSTNodeT]:
        """Ask `left`; libcst's types say that a node keeps its kind."""
        return cast(cst.CSTNodeT, self.left(original_node, updated_node))


def nodes_within(node: cst.CSTNode) -> list[cst.CSTNode]:
    """A node and all nodes below it, in source order."""
    found = [node]
    for child in children(node):
        found += nodes_within(child)
    return found


def statements_within(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Statements strictly inside a compound statement."""
    kinds = (cst.SimpleStatementLine, cst.BaseCompoundStatement)
    return [inner for inner in nodes_within(node)[1:] if isinstance(inner, kinds)]


def code(node: cst.CSTNode) -> str:
    """Text of an expression or statement."""
    return cst.Module(body=[]).code_for_node(node)


def plain_names(node: cst.CSTNode) -> list[cst.Name]:
    """All plain names in an expression, attribute and keyword names aside."""
    if isinstance(node, cst.Name):
        return [node]
    if isinstance(node, cst.Attribute):
        return plain_names(node.value)
    if isinstance(node, cst.Arg):
        return plain_names(node.value)
    return [name for child in children(node) for name in plain_names(child)]
