"""Parallel linears: how the linears that no fusion took are spread over the ranks.

A linear whose output leads, element by element, to another linear of the same
forward is split by columns; the one that it leads to is split by rows and sums over
the ranks. A linear that stands alone is replicated. Between the two a rank has only
its share of the width, which must not meet a whole tensor, nor leave the forward.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from transpiler.analyse.expressions import LEARNED
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import (
    LINEAR,
    Work,
    bias_of,
    distinct_values,
    forward_of,
    linear_of,
    operand_of,
    single_call,
    size_of,
    statements_of,
    the_node,
)
from transpiler.fusions.linears import divisible, layer
from transpiler.fusions.moved import check_moved
from transpiler.fusions.projections import is_interface_call
from transpiler.lower.axes import HEADS, Axes
from transpiler.refusal import Refused
from transpiler.tree import code, nodes_within

RULE = "parallel linears"
# Norms of which the runtime has one that sums over the ranks.
SHARDED = frozenset({"RMSNorm"})
ACTIVATIONS = "activations.ACT2FN"


def lower_linears(work: Work, scope: Scope) -> None:
    """Replace the `nn.Linear`s of a class that no fusion took.

    Raises:
        Refused: [parallel] for a linear that is not called once, or stands between
            two others, or behind something that needs the whole width, and for a share
            of a width that meets a whole tensor.
    """
    calls: dict[str, Value] = {}
    for value in distinct_values(scope):
        child = linear_of(scope, value)
        if child is not None:
            if child.name in calls:
                raise Refused(
                    "parallel", f"self.{child.name} is called twice", child.call
                )
            single_call(scope, child, value)
            calls[child.name] = value
    feeds = {
        name: producers(work, scope, value.args[1]) for name, value in calls.items()
    }
    feeding = {name for found in feeds.values() for name in found}
    taken = {s.source for s in work.shards if s.owner == scope.name}
    Shares(work, scope, taken | feeding, {n for n, f in feeds.items() if f}).check()
    edits = work.edits_of(scope)
    for child in scope.children.values():
        if child.kind != LINEAR or child.name in taken:
            continue
        if child.name not in calls:
            raise Refused("parallel", f"self.{child.name} is never called", child.call)
        if feeds[child.name] and child.name in feeding:
            raise Refused("parallel", f"self.{child.name} is between two", child.call)
        kind = "ReplicatedLinear"
        checks: list[str] = []
        if feeds[child.name]:
            kind = "RowParallelLinear"
        elif child.name in feeding:
            kind = "ColumnParallelLinear"
            checks = column_checks(work, scope, child)
        arguments = [size_of(scope, child, 0)[1], size_of(scope, child, 1)[1]]
        arguments.append(f"bias={bias_of(scope, child)[1]}")
        edits.swap(
            child.statement, RULE, [*checks, layer(kind, child.name, *arguments)]
        )


def lower_activations(work: Work, scope: Scope) -> None:
    """Replace the activations of a class that no fusion took."""
    edits = work.edits_of(scope)
    owners = statements_of(scope.cls.method("__init__"))
    learned = [
        drop_learned(work, scope, name)
        for name, (value, _) in scope.init.assigned.items()
        if value.op == "subscript" and value.name == LEARNED
    ]
    for node, value in scope.init.values.items():
        is_looked_up = value.op == "subscript" and value.args[0].name == ACTIVATIONS
        if not is_looked_up or not isinstance(node, cst.Subscript):
            continue
        if owners[node] not in edits.statements:
            key = next(n for n in nodes_within(node) if isinstance(n, cst.Index)).value
            more = ", learned=True" if owners[node] in learned else ""
            text = f"activation({code(key)}{more})"
            edits.replace_text(node, "activation", text, [key])


def drop_learned(work: Work, scope: Scope, name: str) -> cst.CSTNode:
    """Drop the test that makes an activation anew; the statement that made it first.

    Raises:
        Refused: [activation] when it is not `self.x = …; if …: self.x = …`.
    """
    body = scope.cls.method("__init__").body.body
    made = [
        line
        for line in body
        if any(
            isinstance(node, cst.AssignTarget) and code(node.target) == f"self.{name}"
            for node in nodes_within(line)
        )
    ]
    again = made[-1].body.body if isinstance(made[-1], cst.If) else []
    if len(made) != 2 or len(again) != 1 or getattr(made[-1], "orelse", None):
        where = scope.statement_of(name)
        raise Refused("activation", f"self.{name} is made otherwise", where)
    work.edits_of(scope).swap(made[-1], "activation", [])
    return made[0]


@dataclass
class Shares:
    """Which values of a forward a rank has only its share of.

    Attributes:
        work: The program.
        scope: The class.
        split: Linears that give each rank a share of their output.
        joining: Linears that take shares and sum over the ranks.
    """

    work: Work
    scope: Scope
    split: set[str]
    joining: set[str]
    known: dict[Value, bool] = field(default_factory=dict)

    def check(self) -> None:
        """Every share reaches a linear that joins the ranks, and nothing else.

        Raises:
            Refused: [parallel].
        """
        for value in distinct_values(self.scope):
            self.is_share(value)
        result = forward_of(self.scope).result
        if result is not None and self.is_share(result):
            raise self.refusal("a share of the width leaves the forward", result)

    def is_share(self, value: Value) -> bool:
        """Whether a rank has only a part of a value's width.

        Raises:
            Refused: [parallel] when a share meets a whole tensor or an unknown module.
        """
        if value not in self.known:
            self.known[value] = self.find(value)
        return self.known[value]

    def find(self, value: Value) -> bool:
        """By kind of operation."""
        if value.op in {"carried", "looped", "param", "const", "config", "child"}:
            return False
        if value.op == "attr" and value.name in {"shape", "dtype", "device"}:
            return False
        if value.op == "item" and value.args[0].name in self.work.applies:
            return self.is_share(value.args[0].args[int(value.name)])
        if value.op == "item" and is_interface_call(value.args[0]):
            return value.name == "0"
        operands = [*value.args, *(v for _, v in value.keywords)]
        if value.op == "call" and (
            is_interface_call(value) or value.name in self.work.applies
        ):
            return any(self.is_share(operand) for operand in operands)
        shares = [operand for operand in operands if self.is_share(operand)]
        child = linear_of(self.scope, value)
        if child is not None:
            if bool(shares) != (child.name in self.joining):
                raise self.refusal(f"self.{child.name} gets a share of a width", value)
            return child.name in self.split
        if value.op == "module" and shares and not self.work.is_norm(self.scope, value):
            raise self.refusal("a module gets a share of a width", value)
        axes = Axes(self.work, self.scope)
        whole = [o for o in operands if axes.is_tensor(o) and o not in shares]
        is_display = value.op in {"tuple", "list", "dict"}
        if shares and whole and value.op != "module" and not is_display:
            raise self.refusal("a share of a width meets a whole tensor", value)
        return bool(shares)

    def refusal(self, reason: str, value: Value) -> Refused:
        """A refusal at the node that computes a value."""
        nodes = forward_of(self.scope).nodes_of(value)
        return Refused("parallel", reason, nodes[-1] if nodes else self.scope.cls.node)


def column_checks(work: Work, scope: Scope, child: Child) -> list[str]:
    """Statement that the output of a column-parallel linear can be shared evenly."""
    for projection in work.projections.get(scope.name, []):
        if projection.child is child:
            return [divisible(projection.heads.count, projection.heads.text)]
    size, text = size_of(scope, child, 1)
    return [divisible(size, text)]


def producers(work: Work, scope: Scope, value: Value) -> set[str]:
    """Linears whose outputs reach a value element by element or through attention."""
    child = linear_of(scope, value)
    if child is not None:
        return {child.name}
    if value.op in {"carried", "looped", "param", "const"}:
        return set()
    operands = [*value.args, *(v for _, v in value.keywords)]
    if value.op == "module":
        if value.args[0].op != "child" or value.args[0].args[0].name != scope.name:
            return set()
        norm = work.is_norm(scope, value)
        given = operand_of(value) if norm is not None else None
        if norm is None and len(value.args) > 1:
            given = value.args[1]
        found = producers(work, scope, given) if given is not None else set()
        if found and norm is not None and given is not None:
            shape = Axes(work, scope).of(given)
            if len(shape) != 4 or HEADS not in shape:
                work.sharded[(scope.name, norm.name)] = shard(
                    work, scope, norm, value, found
                )
        return found
    if value.op == "attr" and value.name == "shape":
        return set()
    found = set()
    for operand in operands:
        found |= producers(work, scope, operand)
    return found


def shard(
    work: Work, scope: Scope, norm: Child, value: Value, found: set[str]
) -> list[str]:
    """Arguments of a norm over a width that the ranks share.

    Args:
        work: The program.
        scope: The class.
        norm: The norm.
        value: Its call.
        found: Linears that its operand comes from.
    """
    node = the_node(scope, value, f"self.{norm.name}")
    edits = work.edits_of(scope)
    owner = statements_of(scope.cls.method("forward"))[node]
    fused = node in edits.expressions or owner in edits.statements
    calls = [v for v in distinct_values(scope) if work.is_norm(scope, v) is norm]
    known = work.norms[norm.kind].row.layer in SHARDED
    if fused or len(calls) != 1 or not known:
        raise Refused("parallel", "a norm over a shared width", node)
    projections = work.projections.get(scope.name, [])
    if any(p.heads.part is not None for p in projections):
        raise Refused("parallel", "a norm over a shared part of a width", node)
    kept = {p.child.name: p for p in projections if p.role != "query"}
    if not found <= set(kept):
        return []
    for name in found:
        out = kept[name].child.argument(1, "out_features")
        check_moved(scope, out, norm.statement)
    return [f"num_heads={kept[min(found)].heads.text}"]
