"""Inline: a method that is called once stands where it is called.

Upstream may keep a part of a forward in a method of its own. Where that method is
`return <expression>` and is called once, the expression in the place of the call is
the same program, and everything after this step sees one forward. Assignments before
the `return` stand before the statement of the call, where they bind no name that the
forward has for something else.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import libcst as cst

from transpiler.analyse.names import assigned_names
from transpiler.analyse.statements import MODULE_METHODS
from transpiler.edits import Fate, parenthesised
from transpiler.rewrite import is_docstring, simple_targets
from transpiler.tree import (
    Leaving,
    Left,
    code,
    nodes_within,
    plain_names,
    statements_within,
)

FATE = Fate("rewritten", "stands where it is called")


@dataclass
class Inlined:
    """A file whose methods of one expression stand where they are called.

    Attributes:
        tree: The file.
        origins: The upstream node of each node that had to be made anew.
        fates: Fates of the statements of the methods that went.
    """

    tree: cst.Module
    origins: dict[cst.CSTNode, cst.CSTNode] = field(default_factory=dict)
    fates: dict[cst.CSTNode, Fate] = field(default_factory=dict)

    def origin(self, node: cst.CSTNode) -> cst.CSTNode:
        """The upstream node that a node comes from."""
        while node in self.origins:
            node = self.origins[node]
        return node


@dataclass(frozen=True)
class Helper:
    """A method that may be inlined, with its one call.

    Attributes:
        method: The method.
        lines: Its assignments.
        expression: What it returns.
        call: The call.
        statement: The statement of the call, where there are assignments.
        given: Operands of the call by parameter.
    """

    method: cst.FunctionDef
    lines: tuple[cst.SimpleStatementLine, ...]
    expression: cst.BaseExpression
    call: cst.Call
    statement: cst.CSTNode | None
    given: dict[str, cst.BaseExpression]


class Moving(Leaving):
    """Applies replacements, and remembers where every new node comes from."""

    def __init__(
        self,
        inlined: Inlined,
        replaced: dict[cst.CSTNode, cst.BaseExpression],
        before: dict[cst.CSTNode, list[cst.BaseStatement]],
        removed: cst.CSTNode | None = None,
    ) -> None:
        super().__init__()
        self.inlined = inlined
        self.replaced = replaced
        self.before = before
        self.removed = removed

    def left(self, original: cst.CSTNode, updated: cst.CSTNode) -> Left:
        """Replace, remove, or note the node's origin."""
        if original is self.removed:
            return cst.RemoveFromParent()
        if original in self.replaced:
            return self.replaced[original]
        if updated is not original:
            self.inlined.origins[updated] = original
        if original in self.before and isinstance(updated, cst.BaseStatement):
            return cst.FlattenSentinel([*self.before[original], updated])
        return updated


def inline_methods(tree: cst.Module, text: str) -> Inlined:
    """A file with each method of one expression in the place of its one call."""
    inlined = Inlined(tree)
    called = set(re.findall(r"\bself\s*\.\s*(\w+)\s*\(", text)) - MODULE_METHODS
    while (found := next(helpers(inlined.tree, called), None)) is not None:
        substitute(inlined, found)
    return inlined


def helpers(tree: cst.Module, called: set[str]) -> Iterator[Helper]:
    """Methods of one expression that a forward of their class calls, once."""
    classes = [node for node in tree.body if isinstance(node, cst.ClassDef)]
    methods = {m.name.value for c in classes for m in methods_of(c)}
    if not methods & called:
        return
    named = Counter(
        node.attr.value
        for node in nodes_within(tree)
        if isinstance(node, cst.Attribute)
    )
    bases = {code(base.value) for cls in classes for base in cls.bases}
    for cls in classes:
        own = methods_of(cls)
        forward = next((m for m in own if m.name.value == "forward"), None)
        for method in own if cls.name.value not in bases else ():
            name = method.name.value
            if name not in called or named[name] != 1 or forward is None:
                continue
            helper = helper_of(method, forward)
            if helper is not None:
                yield helper


def methods_of(cls: cst.ClassDef) -> list[cst.FunctionDef]:
    """The methods that a class itself has."""
    return [item for item in cls.body.body if isinstance(item, cst.FunctionDef)]


def helper_of(method: cst.FunctionDef, forward: cst.FunctionDef) -> Helper | None:
    """A method with its call in a forward, where the two can be joined."""
    *lines, last = [line for line in method.body.body if not is_docstring(line)]
    small = last.body[0] if isinstance(last, cst.SimpleStatementLine) else None
    params = method.params
    special = params.kwonly_params or params.posonly_params or params.star_kwarg
    starred = isinstance(params.star_arg, cst.Param)
    if not isinstance(small, cst.Return) or small.value is None:
        return None
    if special or starred or method.decorators or method.asynchronous:
        return None
    calls = [
        node
        for node in nodes_within(forward)
        if isinstance(node, cst.Call) and code(node.func) == f"self.{method.name.value}"
    ]
    names = [parameter.name.value for parameter in params.params]
    if len(calls) != 1 or names[:1] != ["self"]:
        return None
    given = given_to(calls[0], names[1:])
    if lines:
        return helper_with_lines(method, lines, small.value, forward, calls[0], given)
    reads = Counter(node.value for node in plain_names(small.value))
    local = {*assigned_names(forward), *(p.name.value for p in forward.params.params)}
    free = set(reads) - set(names)
    if given is None or free & local or assigned_names(small.value):
        return None
    if any(n > 1 and not is_plain(given[k]) for k, n in reads.items() if k in given):
        return None
    return Helper(method, (), small.value, calls[0], None, given)


def helper_with_lines(
    method: cst.FunctionDef,
    lines: Sequence[cst.CSTNode],
    expression: cst.BaseExpression,
    forward: cst.FunctionDef,
    call: cst.Call,
    given: dict[str, cst.BaseExpression] | None,
) -> Helper | None:
    """A method of assignments and a `return`, called as a statement's whole value.

    It takes names, and binds only names that the forward has not, or does not read
    after the call.
    """
    body = list(forward.body.body)
    place = next((s for s in body if called_by(s) is call), None)
    assigned = [line for line in lines if is_assignment(line)]
    if given is None or place is None or len(assigned) != len(lines):
        return None
    if not all(isinstance(operand, cst.Name) for operand in given.values()):
        return None
    own = {name for line in lines for name in assigned_names(line)}
    local = {*assigned_names(forward), *(p.name.value for p in forward.params.params)}
    after = {
        node.value
        for statement in body[body.index(place) + 1 :]
        for node in plain_names(statement)
    }
    same = {n for n, v in given.items() if isinstance(v, cst.Name) and v.value == n}
    operands = {code(operand) for name, operand in given.items() if name not in same}
    reads = {n.value for line in [*lines, expression] for n in plain_names(line)}
    if (own & local) - same or own & (operands | after) or own & (set(given) - same):
        return None
    if (reads - set(given) - own - {"self"}) & local or assigned_names(expression):
        return None
    kept = tuple(line for line in assigned if isinstance(line, cst.SimpleStatementLine))
    return Helper(method, kept, expression, call, place, given)


def called_by(statement: cst.CSTNode) -> cst.CSTNode | None:
    """The value of a statement that is one assignment."""
    if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1:
        small = statement.body[0]
        return small.value if isinstance(small, cst.Assign) else None
    return None


def is_assignment(line: cst.CSTNode) -> bool:
    """Whether a statement does nothing but bind plain names."""
    return called_by(line) is not None and simple_targets(line) is not None


def given_to(call: cst.Call, names: list[str]) -> dict[str, cst.BaseExpression] | None:
    """Operands of a call by parameter, None unless each is given, once."""
    given: dict[str, cst.BaseExpression] = {}
    for place, arg in enumerate(call.args):
        if arg.star or (arg.keyword is None and place >= len(names)):
            return None
        name = arg.keyword.value if arg.keyword is not None else names[place]
        if name in given:
            return None
        given[name] = arg.value
    return given if set(given) == set(names) else None


def is_plain(node: cst.BaseExpression) -> bool:
    """Whether an expression may be written twice: a name."""
    return isinstance(node, cst.Name)


def substitute(inlined: Inlined, helper: Helper) -> None:
    """Put a helper's expression, with what it is given, in the place of its call."""
    reads: dict[cst.CSTNode, cst.BaseExpression] = {}
    for part in (*helper.lines, helper.expression):
        for node in plain_names(part):
            given = helper.given.get(node.value)
            if given is not None and code(given) != node.value:
                reads[node] = copied(inlined, given)
    lines = [line.visit(Moving(inlined, reads, {})) for line in helper.lines]
    expression = helper.expression.visit(Moving(inlined, reads, {}))
    if not isinstance(expression, cst.BaseExpression):
        raise AssertionError("an expression stays one")
    joined = parenthesised(expression)
    if any(
        isinstance(node, cst.Arg | cst.Assign | cst.Return)
        and node.value is helper.call
        for node in nodes_within(inlined.tree)
    ):
        joined = expression
    if joined is not expression:
        inlined.origins[joined] = helper.expression
    before: dict[cst.CSTNode, list[cst.BaseStatement]] = {}
    if helper.statement is not None:
        before[helper.statement] = [
            line for line in lines if isinstance(line, cst.BaseStatement)
        ]
    moving = Moving(inlined, {helper.call: joined}, before, helper.method)
    tree = inlined.tree.visit(moving)
    for gone in (helper.method, *statements_within(helper.method)):
        inlined.fates[inlined.origin(gone)] = FATE
    inlined.tree = cst.ensure_type(tree, cst.Module)


def copied(inlined: Inlined, node: cst.BaseExpression) -> cst.BaseExpression:
    """A copy of an expression, in brackets where it needs them."""
    copy = node.deep_clone()
    for new, old in zip(nodes_within(copy), nodes_within(node), strict=True):
        inlined.origins[new] = old
    whole = parenthesised(copy)
    inlined.origins.setdefault(whole, node)
    return whole
