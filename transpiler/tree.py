"""Tree: plain questions asked of syntax nodes, by every room."""

from __future__ import annotations

from functools import lru_cache

import libcst as cst


@lru_cache(maxsize=1 << 17)
def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """The nodes directly below a node; libcst finds them by a copying visit."""
    return tuple(node.children)


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
