"""What a fusion is, what it works on, and what it leaves behind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import libcst as cst

from transpiler.analyse.flow import Flow
from transpiler.analyse.program import Child, Program, Scope
from transpiler.analyse.values import Value
from transpiler.edits import Edits
from transpiler.fusions.heads import Projection
from transpiler.fusions.norms import Norm
from transpiler.refusal import Refused
from transpiler.rewrite import is_docstring
from transpiler.tree import children, code, nodes_within, plain_names

if TYPE_CHECKING:
    from transpiler.fusions.parts import Split

LINEAR = "torch.nn.Linear"


@dataclass(frozen=True)
class Outcome:
    """What came of one fusion at one place.

    Attributes:
        scope: Class name.
        fusion: Name of the fusion.
        detail: What was merged into what, or the reason of a refusal.
        code: Refusal code, empty when fused.
        node: The upstream node, for line and column.
    """

    scope: str
    fusion: str
    detail: str
    code: str = ""
    node: cst.CSTNode | None = None


@dataclass(frozen=True)
class Shard:
    """Where the weights of a merged-away projection go.

    Attributes:
        owner: Class whose children these are.
        source: Upstream attribute name.
        target: Name of the merged layer.
        shard: vLLM's shard id, as source text; empty for a projection that holds all
            shards, and keeps its name.
    """

    owner: str
    source: str
    target: str
    shard: str


@dataclass
class Work:
    """A program being transpiled: edits per class, and facts rules share.

    Attributes:
        program: The analysed program.
        norms: Norm classes that a table knows, and torch's own.
        rotaries: Rotary classes that a table serves, with their row.
        applies: Apply functions that a table serves, with their row.
        eager: Attention functions that a table serves, with their row.
        embeddings: Token embeddings that a table serves: row, and parameters by role.
        turned: What vLLM's rotary embedding returns, with the operand it turned.
        edits: Edits of each class.
        shards: Merged projections, in order.
        outcomes: What each fusion did or refused.
        with_positions: Classes whose forward takes `positions`.
        with_residual: Classes whose forward takes and returns the residual.
        single_result: Classes whose forward lost all results but the first.
        signatures: Parameters that each rewritten forward keeps.
        projections: Query, key and value projections of each attention.
        sharded: Norms over a width that ranks share, by class and name, with the
            arguments that say so.
        refused: Fields of the config that may not be true.
        model_checks: Statements that refuse configs, put into the model's constructor.
        renames: Beginnings of checkpoint names, old and new.
        by_head: Linears whose rows come head by head: class, name, number of heads.
        parts: What a divided linear is divided into, each with its division.
        merged: Name of the layer that gives query, key and value, by class.
    """

    program: Program
    norms: dict[str, Norm]
    rotaries: dict[str, str]
    applies: dict[str, str]
    eager: dict[str, str]
    embeddings: dict[str, tuple[str, dict[str, Value]]]
    turned: dict[Value, Value] = field(default_factory=dict)
    edits: dict[str, Edits] = field(default_factory=dict)
    shards: list[Shard] = field(default_factory=list)
    outcomes: list[Outcome] = field(default_factory=list)
    with_positions: set[str] = field(default_factory=set)
    with_residual: dict[str, str] = field(default_factory=dict)
    single_result: set[str] = field(default_factory=set)
    signatures: dict[str, list[str]] = field(default_factory=dict)
    projections: dict[str, list[Projection]] = field(default_factory=dict)
    sharded: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    refused: set[Value] = field(default_factory=set)
    model_checks: list[str] = field(default_factory=list)
    renames: tuple[tuple[str, str], ...] = ()
    parts: dict[Value, Split] = field(default_factory=dict)
    merged: dict[str, str] = field(default_factory=dict)
    by_head: list[tuple[str, str, str]] = field(default_factory=list)

    def edits_of(self, scope: Scope) -> Edits:
        """The edits of a class."""
        return self.edits.setdefault(scope.name, Edits())

    def scopes(self) -> list[Scope]:
        """Classes with a forward to rewrite, callers first."""
        return [s for s in self.program.scopes.values() if s.forward is not None]

    def scope(self, name: str) -> Scope:
        """A class by name."""
        return self.program.scopes[name]

    def is_norm(self, scope: Scope, value: Value) -> Child | None:
        """The norm child whose call a value is."""
        child = child_of(scope, value)
        known = child is not None and child.kind in self.norms and not child.choice
        return child if known else None


class Fusion(ABC):
    """Merges operations; a refused fusion leaves correct, unfused code.

    `find` yields every place that looks like the pattern, `check` proves that the
    rewrite keeps the value or raises `Refused`, `rewrite` records edits.
    """

    name: str

    @abstractmethod
    def find(self, work: Work, scope: Scope) -> Iterator[Value]:
        """Values of the class's forward that the pattern matches."""

    @abstractmethod
    def fuse(self, work: Work, scope: Scope, value: Value) -> str:
        """Check one match, record its edits, and say what was merged into what.

        Raises:
            Refused: The rewrite cannot be proven to keep the value.
        """

    def run(self, work: Work) -> None:
        """Apply the fusion everywhere it matches; refusals go to the report."""
        for scope in work.scopes():
            for value in list(self.find(work, scope)):
                try:
                    detail = self.fuse(work, scope, value)
                except Refused as refused:
                    outcome = Outcome(
                        scope.name,
                        self.name,
                        refused.reason,
                        refused.code,
                        refused.node,
                    )
                    work.outcomes.append(outcome)
                else:
                    work.outcomes.append(Outcome(scope.name, self.name, detail))


# Questions that fusions ask of a flow


def forward_of(scope: Scope) -> Flow:
    """The flow of a class's forward."""
    if scope.forward is None:
        raise AssertionError(f"{scope.name} was not entered")
    return scope.forward


def child_of(scope: Scope, value: Value) -> Child | None:
    """The child whose call a value is: `self.<child>(…)`."""
    if value.op != "module" or value.args[0].op != "child":
        return None
    owner = value.args[0].args[0].name
    return scope.children.get(value.args[0].name) if owner == scope.name else None


def operand_of(call: Value) -> Value:
    """The operand of a norm's call, which takes one, by position or by name."""
    return [*call.args[1:], *(operand for _, operand in call.keywords)][0]


def linear_of(scope: Scope, value: Value) -> Child | None:
    """The linear child whose call a value is."""
    child = child_of(scope, value)
    return child if child is not None and child.kind == LINEAR else None


def distinct_values(scope: Scope) -> list[Value]:
    """Every value of a forward once, in the order met."""
    return list(dict.fromkeys(forward_of(scope).values.values()))


def users_of(scope: Scope, value: Value) -> list[Value]:
    """Values of a forward that have this one as a direct operand."""
    return [
        user
        for user in distinct_values(scope)
        if value in user.args or any(value is operand for _, operand in user.keywords)
    ]


def the_node(scope: Scope, value: Value, what: str) -> cst.CSTNode:
    """The one operation node that computes a value, names that hold it aside.

    Raises:
        Refused: [extra-use] when it is computed at more than one place, or at none.
    """
    flow = forward_of(scope)
    nodes = [
        node
        for node in flow.nodes_of(value)
        if not isinstance(node, cst.Name | cst.NamedExpr)
        and node not in flow.tests
        and not is_identity(flow, node, value)
    ]
    if len(nodes) != 1:
        where = nodes[-1] if nodes else scope.cls.method("forward")
        raise Refused("extra-use", f"{what} is computed {len(nodes)} times", where)
    return nodes[0]


def is_identity(flow: Flow, node: cst.CSTNode, value: Value) -> bool:
    """Whether a node is a call that returns its receiver or first operand."""
    if not isinstance(node, cst.Call):
        return False
    parts = [arg.value for arg in node.args[:1]]
    if isinstance(node.func, cst.Attribute):
        parts.append(node.func.value)
    return any(flow.values.get(part) is value for part in parts)


def single_call(scope: Scope, child: Child, value: Value) -> cst.Call:
    """The one call of a child, written `self.<child>(x)`, nothing else refers to it.

    A test that the facts decide, such as `self.<child> is not None`, is no reference.

    Raises:
        Refused: [extra-use] for another call or reference; [call-shape] for a call
            that does not have exactly one positional argument.
    """
    node = the_node(scope, value, f"self.{child.name}")
    reference = value.args[0]
    flow = forward_of(scope)
    held = [node for node in flow.tests if isinstance(node, cst.If | cst.IfExp)]
    tested = {inner for node in held for inner in nodes_within(node.test)}
    references = [n for n in flow.nodes_of(reference) if n not in tested]
    if len(references) != 1:
        raise Refused(
            "extra-use", f"self.{child.name} is used {len(references)} times", node
        )
    check_linear(child)
    is_one = len(value.args) == 2 and not value.keywords
    if not isinstance(node, cst.Call) or not is_one or node.args[0].star:
        raise Refused(
            "call-shape", f"self.{child.name} is not called with one operand", node
        )
    return node


def check_still(scope: Scope, argument: cst.CSTNode, statement: cst.CSTNode) -> None:
    """The names of an argument must mean the same where a merged call is put.

    Raises:
        Refused: [input-rebound] when one is another value there.
    """
    flow = forward_of(scope)
    names = flow.environments[statement]
    for node in plain_names(argument):
        if node.value in names and names[node.value] is not flow.values.get(node):
            raise Refused("input-rebound", f"{node.value} is another value here", node)


def check_linear(child: Child) -> None:
    """A linear is given its sizes and its bias, and nothing else.

    Raises:
        Refused: [linear-arguments] for another argument, such as a dtype.
    """
    known = {"in_features", "out_features", "bias"}
    for position, arg in enumerate(child.call.args):
        if arg.star or position > 2 or (arg.keyword and arg.keyword.value not in known):
            raise Refused("linear-arguments", "an argument is not known", arg)


def block_of(scope: Scope) -> list[cst.CSTNode]:
    """The statements of a forward, docstring aside, branches always taken opened."""
    tests = forward_of(scope).tests

    def live(block: Sequence[cst.CSTNode]) -> Iterator[cst.CSTNode]:
        for node in block:
            if not isinstance(node, cst.If) or node not in tests:
                if not is_docstring(node):
                    yield node
            elif tests[node]:
                yield from live(node.body.body)
            elif isinstance(node.orelse, cst.Else):
                yield from live(node.orelse.body.body)
            elif node.orelse is not None:
                yield from live([node.orelse])

    return list(live(scope.cls.method("forward").body.body))


def statements_of(function: cst.FunctionDef) -> dict[cst.CSTNode, cst.CSTNode]:
    """The statement that each node of a function belongs to."""
    found: dict[cst.CSTNode, cst.CSTNode] = {}

    def fill(node: cst.CSTNode, owner: cst.CSTNode | None) -> None:
        if isinstance(node, cst.SimpleStatementLine | cst.BaseCompoundStatement):
            owner = node
        if owner is not None:
            found[node] = owner
        for child in children(node):
            fill(child, owner)

    for statement in function.body.body:
        fill(statement, None)
    return found


def assigned_name(statement: cst.CSTNode) -> str | None:
    """The name that a statement `name = …` binds."""
    if not isinstance(statement, cst.SimpleStatementLine) or len(statement.body) != 1:
        return None
    small = statement.body[0]
    if isinstance(small, cst.Assign) and len(small.targets) == 1:
        target = small.targets[0].target
        return target.value if isinstance(target, cst.Name) else None
    if isinstance(small, cst.AnnAssign) and isinstance(small.target, cst.Name):
        return small.target.value
    return None


def bias_of(scope: Scope, child: Child) -> tuple[Value, str]:
    """Whether a linear has a bias: value and source text (torch's default is True)."""
    node = child.argument(2, "bias")
    if node is None:
        return value_of_constant(scope, True), "True"
    return scope.init.values[node], code(node)


def value_of_constant(scope: Scope, constant: object) -> Value:
    """The value of a constant in the program's graph."""
    for value in scope.init.values.values():
        if value.op == "const" and value.constant is constant:
            return value
    return Value("const", constant=constant)


def size_of(scope: Scope, child: Child, position: int) -> tuple[Value, str]:
    """Input (0) or output (1) width of a linear: value and source text.

    Raises:
        Refused: [linear-arguments] when the constructor call does not say it.
    """
    node = child.argument(position, ("in_features", "out_features")[position])
    if node is None:
        raise Refused("linear-arguments", f"self.{child.name} has no size", child.call)
    return scope.init.values[node], code(node)
