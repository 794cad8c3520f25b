"""Edits: what fusions and lowerings ask for, keyed by upstream node.

Rules never touch the tree. They say what becomes of an expression or a statement;
the rewriting engine applies all of it in one pass, and the same record is the log
of fates that `explain`, `diff` and the checks read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from transpiler.tree import code

Change = Callable[[cst.BaseExpression], cst.BaseExpression]
Statement = cst.SimpleStatementLine | cst.BaseCompoundStatement


@dataclass(frozen=True)
class Fate:
    """What became of one upstream statement.

    Attributes:
        kind: `kept`, `rewritten` or `dropped`.
        rule: The fusion, lowering or serving fact that decided it.
    """

    kind: str
    rule: str


@dataclass
class Edits:
    """All edits of one class."""

    expressions: dict[cst.CSTNode, Change] = field(default_factory=dict)
    statements: dict[cst.CSTNode, list[Statement]] = field(default_factory=dict)
    before: dict[cst.CSTNode, list[Statement]] = field(default_factory=dict)
    after: dict[cst.CSTNode, list[Statement]] = field(default_factory=dict)
    rules: dict[cst.CSTNode, str] = field(default_factory=dict)
    keeps: dict[cst.CSTNode, tuple[cst.CSTNode, ...]] = field(default_factory=dict)
    removed_children: dict[str, str] = field(default_factory=dict)

    def replace(
        self,
        node: cst.CSTNode,
        rule: str,
        change: Change,
        keeps: Sequence[cst.CSTNode] = (),
    ) -> None:
        """Rewrite an expression.

        Args:
            node: The upstream expression.
            rule: The fusion or lowering that asks for it.
            change: Gets the expression with its own parts rewritten.
            keeps: Parts of `node` that stay in the output.
        """
        if node in self.expressions:
            raise AssertionError(f"two edits of one expression: {rule}")
        self.expressions[node] = change
        self.rules[node] = rule
        self.keeps[node] = tuple(keeps)

    def refine(
        self,
        node: cst.CSTNode,
        rule: str,
        change: Change,
        keeps: Sequence[cst.CSTNode] = (),
    ) -> None:
        """Rewrite an expression, after what another rule makes of it."""
        first = self.expressions.pop(node, None)
        whole = change if first is None else lambda made: change(first(made))
        self.replace(node, rule, whole, keeps)

    def replace_text(
        self,
        node: cst.CSTNode,
        rule: str,
        text: str,
        keeps: Sequence[cst.CSTNode] = (),
    ) -> None:
        """Rewrite an expression to a text."""
        self.replace(node, rule, lambda _: cst.parse_expression(text), keeps)

    def swap(self, node: cst.CSTNode, rule: str, lines: Sequence[str]) -> None:
        """Put statements in the place of a statement; none drops it."""
        if node in self.statements:
            raise AssertionError(f"two edits of one statement: {rule}")
        self.statements[node] = [statement(line) for line in lines]
        self.rules[node] = rule

    def insert(self, node: cst.CSTNode, lines: Sequence[str]) -> None:
        """Put statements before a statement."""
        self.before.setdefault(node, []).extend(statement(line) for line in lines)

    def append(self, node: cst.CSTNode, lines: Sequence[str]) -> None:
        """Put statements after a statement."""
        self.after.setdefault(node, []).extend(statement(line) for line in lines)


def statement(text: str) -> Statement:
    """One statement from its text."""
    parsed = cst.parse_statement(text)
    if not isinstance(parsed, cst.SimpleStatementLine | cst.BaseCompoundStatement):
        raise AssertionError(text)
    return parsed


def parenthesised(node: cst.BaseExpression) -> cst.BaseExpression:
    """The expression in brackets when it must not be torn apart by its context."""
    loose = (
        cst.BinaryOperation,
        cst.BooleanOperation,
        cst.IfExp,
        cst.Comparison,
        cst.UnaryOperation,
        cst.Lambda,
        cst.NamedExpr,
    )
    if isinstance(node, loose) and not node.lpar:
        return node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return node


def in_place_of(old: cst.BaseExpression, new: cst.BaseExpression) -> cst.BaseExpression:
    """An expression where another one stood, in brackets if it could be torn apart."""
    if new.lpar or isinstance(new, cst.Name):
        return new
    if old.lpar:
        return new.with_changes(lpar=old.lpar, rpar=old.rpar)
    if not isinstance(new, cst.Tuple) and "\n" in code(new):
        return new.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
    return parenthesised(new)


def receiver(node: cst.BaseExpression) -> cst.BaseExpression:
    """`x.method(…)` as `x`."""
    return cst.ensure_type(cst.ensure_type(node, cst.Call).func, cst.Attribute).value
