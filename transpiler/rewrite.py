"""The engine that applies edits: statement by statement, then what has no reader goes.

Every upstream statement comes out with exactly one fate. Comments before a
statement that goes move to the next one of its block.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import libcst as cst

from transpiler.analyse.flow import Flow
from transpiler.analyse.names import assigned_names
from transpiler.edits import Edits, Fate, Statement, in_place_of
from transpiler.refusal import Refused
from transpiler.tree import Leaving, children, nodes_within, statements_within


@dataclass
class Line:
    """One statement of the output with the upstream statement it comes from.

    Attributes:
        node: The statement.
        origin: Where it comes from.
        rule: What changed it.
        sides: Of an `if` that only the config decides, both blocks.
    """

    node: Statement
    origin: cst.CSTNode | None
    rule: str | None = None
    sides: tuple[list[Line], list[Line]] | None = None


@dataclass
class Rewriting:
    """The rewriting of one function.

    Attributes:
        edits: What to change.
        flow: Decided tests and writes of the function.
        fates: Fate of each upstream statement, filled in.
        left: Upstream statements that are in the output, as they were or edited.
    """

    edits: Edits
    flow: Flow
    fates: dict[cst.CSTNode, Fate] = field(default_factory=dict)
    left: list[cst.CSTNode] = field(default_factory=list)

    def function(
        self, body: Sequence[cst.CSTNode], keep: Iterable[str] = ()
    ) -> list[Statement]:
        """The new statements of a function body.

        Args:
            body: Upstream statements.
            keep: Names that something outside the body reads.
        """
        lines = self.block(body)
        lines = self.without_dead(lines, set(keep))
        self.left += [
            line.origin
            for line in lines
            if line.origin is not None and line.origin not in self.edits.statements
        ]
        return without_first_blank([line.node for line in lines])

    def block(self, body: Sequence[cst.CSTNode]) -> list[Line]:
        """Rewrite the statements of one block."""
        lines: list[Line] = []
        pending: list[cst.EmptyLine] = []
        for node in body:
            made = self.one(node)
            if node in self.edits.statements:
                pending += [line for line in comments_of(node) if line.comment]
                pending += trailing_comments(node) if made else []
            for line in made:
                if pending and line.origin is not None:
                    line.node = with_comments(line.node, pending)
                    pending = []
                lines.append(line)
        return lines

    def one(self, node: cst.CSTNode) -> list[Line]:
        """Rewrite one statement.

        Raises:
            Refused: [one-line] for a block that stands on the line of its header.
        """
        if isinstance(node, cst.BaseSmallStatement):
            raise Refused("one-line", "a block on the line of its header", node)
        edits = self.edits
        extra = [Line(new, None) for new in edits.before.get(node, [])]
        after = [Line(new, None) for new in edits.after.get(node, [])]
        if is_docstring(node):
            self.fates[node] = Fate("dropped", "docstring")
            return [*extra, *after]
        if node in edits.statements:
            rule = edits.rules[node]
            made = [Line(new, node, rule) for new in edits.statements[node]]
            self.fates[node] = Fate("rewritten" if made else "dropped", rule)
            self.cover(node, self.fates[node])
            return [*extra, *made, *after]
        if isinstance(node, cst.If) and node in self.flow.tests:
            live: Sequence[cst.CSTNode] = ()
            if self.flow.tests[node]:
                live = node.body.body
            elif isinstance(node.orelse, cst.Else):
                live = node.orelse.body.body
            elif isinstance(node.orelse, cst.If):
                live = [node.orelse]
            self.fates[node] = Fate("dropped", "serving facts")
            made = self.block(live)
            self.cover(node, Fate("dropped", "serving facts"))
            return [*extra, *made, *after]
        if isinstance(node, cst.If):
            return [*extra, self.undecided(node), *after]
        new = node.visit(Apply(edits, self.flow))
        if not isinstance(new, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            raise AssertionError(f"not a statement: {type(new)}")
        rules = sorted(self.rules_within(node))
        changed = not new.deep_equals(node)
        self.fates[node] = (
            Fate("rewritten", " + ".join(rules)) if changed else Fate("kept", "")
        )
        return [*extra, Line(new, node, " + ".join(rules) or None), *after]

    def undecided(self, node: cst.If) -> Line:
        """An `if` that only the config decides: kept, both sides rewritten."""
        self.fates[node] = Fate("kept", "")
        other: list[Line] = []
        if isinstance(node.orelse, cst.Else):
            other = self.block(node.orelse.body.body)
        elif isinstance(node.orelse, cst.If):
            other = [self.undecided(node.orelse)]
        test = node.test.visit(Apply(self.edits, self.flow))
        sides = (self.block(node.body.body), other)
        return Line(with_sides(node.with_changes(test=test), sides), node, None, sides)

    def cover(self, node: cst.CSTNode, fate: Fate) -> None:
        """Statements inside one that went share its fate, their own aside."""
        for inner in statements_within(node):
            self.fates.setdefault(inner, fate)

    def rules_within(self, node: cst.CSTNode) -> set[str]:
        """Rules of the expression edits inside a statement."""
        found: set[str] = set()
        for inner in nodes_within(node):
            if inner in self.edits.expressions:
                found.add(self.edits.rules[inner])
            if isinstance(inner, cst.IfExp) and inner in self.flow.tests:
                found.add("serving facts")
        return found

    def without_dead(self, lines: list[Line], live: set[str]) -> list[Line]:
        """Drop assignments that nothing reads any more, from the last to the first."""
        writers = [node for _, node in self.flow.writes]
        kept: list[Line] = []
        for line in reversed(lines):
            targets = stored_names(line.node)
            writes = line.origin is not None and any(
                node in writers for node in nodes_within(line.origin)
            )
            dead = targets is not None and not (set(targets) & live) and not writes
            if (dead or is_identity(line.node)) and line.origin is not None:
                rule = line.rule or "no reader left"
                fate = Fate("rewritten" if line.rule else "dropped", rule)
                self.fates[line.origin] = fate
                self.fates |= dict.fromkeys(statements_within(line.origin), fate)
                continue
            if line.sides is not None:
                self.prune(line, live)
            live -= set(simple_targets(line.node) or ())
            live |= names_read(line.node)
            kept.append(line)
        return kept[::-1]

    def prune(self, line: Line, live: set[str]) -> None:
        """Drop what has no reader from both sides of an `if`; no side gets empty."""
        if line.sides is None or not isinstance(line.node, cst.If):
            raise AssertionError("not an undecided if")
        sides = []
        for side in line.sides:
            kept = self.without_dead(side, set(live)) or side
            for gone in side:
                if gone not in kept and gone.origin is not None:
                    self.edits.swap(gone.origin, "no reader left", [])
            sides.append(kept)
        line.sides = (sides[0], sides[1])
        line.node = with_sides(line.node, line.sides)


def with_sides(node: cst.If, sides: tuple[list[Line], list[Line]]) -> cst.If:
    """An `if` with the lines of its two blocks."""
    body, other = (without_first_blank([line.node for line in side]) for side in sides)
    node = node.with_changes(body=node.body.with_changes(body=body))
    if isinstance(node.orelse, cst.If):
        return node.with_changes(orelse=other[0])
    if node.orelse is not None:
        block = node.orelse.body.with_changes(body=other)
        return node.with_changes(orelse=node.orelse.with_changes(body=block))
    return node


class Apply(Leaving):
    """Applies expression edits and decided conditional expressions."""

    def __init__(self, edits: Edits, flow: Flow) -> None:
        super().__init__()
        self.edits = edits
        self.flow = flow

    def left(self, original: cst.CSTNode, updated: cst.CSTNode) -> cst.CSTNode:
        """Rewrite a node whose parts are rewritten already."""
        if isinstance(updated, cst.IfExp) and original in self.flow.tests:
            decided = self.flow.tests[original]
            updated = in_place_of(updated, updated.body if decided else updated.orelse)
        change = self.edits.expressions.get(original)
        if change is None or not isinstance(updated, cst.BaseExpression):
            return updated
        return in_place_of(updated, change(updated))


def is_docstring(node: cst.CSTNode) -> bool:
    """Whether a statement is a bare string."""
    small = only_part(node)
    return isinstance(small, cst.Expr) and isinstance(
        small.value, cst.SimpleString | cst.ConcatenatedString
    )


def only_part(node: cst.CSTNode) -> cst.BaseSmallStatement | None:
    """The one small statement of a line, None for anything else."""
    if isinstance(node, cst.SimpleStatementLine) and len(node.body) == 1:
        return node.body[0]
    return None


def is_identity(node: cst.CSTNode) -> bool:
    """Whether a statement is `x = x` or `x, y = x, y`."""
    assign = only_part(node)
    if not isinstance(assign, cst.Assign) or len(assign.targets) != 1:
        return False
    target, value = assign.targets[0].target, assign.value
    if isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
        target = target.with_changes(lpar=value.lpar, rpar=value.rpar)
    elif not isinstance(value, cst.Name):
        return False
    return simple_targets(node) is not None and target.deep_equals(value)


def simple_targets(node: cst.CSTNode) -> list[str] | None:
    """Names that an assignment binds, None when it does anything else."""
    if not isinstance(node, cst.SimpleStatementLine) or len(node.body) != 1:
        return None
    small = node.body[0]
    if isinstance(small, cst.AnnAssign) and small.value is None:
        return None
    if not isinstance(small, cst.Assign | cst.AnnAssign):
        return None
    targets = (
        [t.target for t in small.targets]
        if isinstance(small, cst.Assign)
        else [small.target]
    )
    for target in targets:
        elements = target.elements if isinstance(target, cst.Tuple) else [target]
        for element in elements:
            name = element.value if isinstance(element, cst.BaseElement) else element
            if not isinstance(name, cst.Name):
                return None
    return assigned_names(node)


def stored_names(node: cst.CSTNode) -> list[str] | None:
    """Local names that a statement does nothing but store to, None if it does more.

    Besides assignments: `name[key] = value`, and an `if` or loop of such statements.
    """
    if isinstance(node, cst.If | cst.For):
        found = assigned_names(node) if isinstance(node, cst.For) else []
        sides: list[cst.CSTNode] = list(node.body.body)
        if isinstance(node.orelse, cst.Else):
            sides += node.orelse.body.body
        elif node.orelse is not None:
            sides.append(node.orelse)
        for inner in sides:
            names = stored_names(inner)
            if names is None:
                return None
            found += names
        return found
    assign = only_part(node)
    if isinstance(assign, cst.Assign) and len(assign.targets) == 1:
        target = assign.targets[0].target
        if isinstance(target, cst.Subscript) and isinstance(target.value, cst.Name):
            return [target.value.value]
    return simple_targets(node)


def names_read(node: cst.CSTNode) -> set[str]:
    """Names that a statement reads, its own targets aside."""
    found: set[str] = set()

    def read(node: cst.CSTNode) -> None:
        match node:
            case cst.Name():
                found.add(node.value)
            case cst.AssignTarget(target=cst.Name() | cst.Tuple()):
                pass
            case cst.AnnAssign():
                if node.value is not None:
                    read(node.value)
            case cst.Attribute() | cst.Arg():
                read(node.value)
            case _:
                for child in children(node):
                    read(child)

    read(node)
    return found


def comments_of(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """Blank and comment lines before a statement."""
    return list(getattr(node, "leading_lines", ()))


def trailing_comments(node: cst.CSTNode) -> list[cst.EmptyLine]:
    """The comment at the end of a statement's line, as a line of its own."""
    trailing = getattr(node, "trailing_whitespace", None)
    comment = trailing.comment if trailing is not None else None
    return [cst.EmptyLine(comment=comment)] if comment is not None else []


def with_comments(node: Statement, lines: list[cst.EmptyLine]) -> Statement:
    """A statement with comment lines put before its own; blanks only at the top."""
    every = [*lines, *comments_of(node)]
    comments = [line for line in every if line.comment is not None]
    blanks = [line for line in every if line.comment is None][:1]
    return node.with_changes(leading_lines=[*blanks, *comments])


def without_first_blank(body: list[Statement]) -> list[Statement]:
    """The statements of a block that does not start with a blank line."""
    if not body:
        return body
    comments = [line for line in comments_of(body[0]) if line.comment is not None]
    return [body[0].with_changes(leading_lines=comments), *body[1:]]
