"""Sums and norms as they stand in a forward, and what is put in their place.

A residual addition is `name = residual + branch` or `return residual + branch`; a norm
is called in a statement of its own, `name = self.norm(x)`, or within another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value
from transpiler.edits import Edits
from transpiler.fusions.fusion import assigned_name, block_of, forward_of, the_node
from transpiler.refusal import Refused
from transpiler.tree import nodes_within


@dataclass(frozen=True)
class Addition:
    """A sum of a plain name, the residual, and a branch.

    Attributes:
        node: The sum.
        statement: The statement that assigns or returns it.
        residual: Name of the older operand.
        branch: The other operand.
        name: The name that the sum is bound to, empty where it is returned.
    """

    node: cst.BinaryOperation
    statement: cst.CSTNode
    residual: str
    branch: cst.BaseExpression
    name: str

    @property
    def held(self) -> str:
        """The name that holds the branch once the sum is gone."""
        return self.branch.value if isinstance(self.branch, cst.Name) else self.name

    def remove(self, edits: Edits, rule: str) -> None:
        """Leave the branch where the sum was, under a name that there is."""
        if isinstance(self.branch, cst.Name):
            edits.swap(self.statement, rule, [])
        else:
            edits.replace(self.node, rule, self.kept_side, [self.branch])

    def kept_side(self, node: cst.BaseExpression) -> cst.BaseExpression:
        """The branch of the rewritten sum."""
        whole = cst.ensure_type(node, cst.BinaryOperation)
        return whole.left if self.branch is self.node.left else whole.right


@dataclass(frozen=True)
class NormCall:
    """A norm's call in a forward.

    Attributes:
        node: The call.
        statement: The statement that it stands in.
        name: The name that holds its result, once it is fused.
        is_whole: Whether the statement is `name = self.norm(x)`.
    """

    node: cst.Call
    statement: cst.CSTNode
    name: str
    is_whole: bool

    def put(self, edits: Edits, rule: str, lines: Sequence[str]) -> None:
        """Put a fused norm, which binds `name`, in the place of the call."""
        if self.is_whole:
            edits.swap(self.statement, rule, lines)
        else:
            edits.insert(self.statement, lines)
            edits.replace_text(self.node, rule, self.name)


def addition_of(scope: Scope, value: Value) -> Addition:
    """A sum with its statement, the residual being the older operand.

    Raises:
        Refused: [add-shape] when it is not `name = a + b` or `return a + b` of a name
            and something else, or binds the residual's own name.
    """
    node = the_node(scope, value, "the sum")
    for statement in block_of(scope):
        small = small_of(statement)
        whole = getattr(small, "value", None)
        if not isinstance(node, cst.BinaryOperation) or whole is not node:
            continue
        name = assigned_name(statement)
        if name is None and not isinstance(small, cst.Return):
            continue
        left, right = node.left, node.right
        if forward_of(scope).values[right] in older(value):
            left, right = right, left
        if not isinstance(left, cst.Name):
            left, right = right, left
        is_plain = isinstance(right, cst.Name)
        if isinstance(left, cst.Name) and (is_plain or name != left.value):
            return Addition(node, statement, left.value, right, name or "")
    raise Refused("add-shape", "the sum is not `name = a + b` of a name", node)


def older(value: Value) -> list[Value]:
    """Operands of a sum that other operands are computed from: the residual."""
    one, two = value.args
    return [a for a, b in ((one, two), (two, one)) if a in list(b.walk())]


def norm_call(scope: Scope, value: Value) -> NormCall:
    """A norm's call; within another statement its operand's name takes the result.

    Raises:
        Refused: [norm-shape] when it is in no plain statement of the forward, or is
            not given one name.
    """
    node = cst.ensure_type(the_node(scope, value, "the norm"), cst.Call)
    for statement in block_of(scope):
        small = small_of(statement)
        name = assigned_name(statement)
        if name is not None and getattr(small, "value", None) is node:
            return NormCall(node, statement, name, is_whole=True)
        if small is not None and node in nodes_within(small):
            passed = node.args[0].value if len(node.args) == 1 else None
            if isinstance(passed, cst.Name):
                return NormCall(node, statement, passed.value, is_whole=False)
    raise Refused("norm-shape", "the norm is not given one name in a statement", node)


def small_of(statement: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one small statement of a line."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        return statement.body[0]
    return None


def is_copy(scope: Scope, statement: cst.CSTNode, value: Value) -> bool:
    """Whether a statement is `name = other` of that value."""
    if assigned_name(statement) is None:
        return False
    source = getattr(small_of(statement), "value", None)
    return (
        isinstance(source, cst.Name) and forward_of(scope).values.get(source) is value
    )


def name_read(scope: Scope, user: Value, value: Value) -> str:
    """The name under which an addition reads a value.

    Raises:
        Refused: [residual-name] when it is no plain name.
    """
    node = the_node(scope, user, "the addition")
    if isinstance(node, cst.BinaryOperation):
        for side in (node.left, node.right):
            if isinstance(side, cst.Name) and forward_of(scope).values[side] is value:
                return side.value
    raise Refused("residual-name", "the sum is not read under a name", node)
