"""Parallel linears: how the linears that no fusion took are spread over the ranks.

A linear whose output leads, element by element, to another linear of the same
forward is split by columns; the one that it leads to is split by rows and sums over
the ranks. A linear that stands alone is replicated.
"""

from __future__ import annotations

from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import (
    LINEAR,
    Work,
    bias_of,
    distinct_values,
    linear_of,
    single_call,
    size_of,
)
from transpiler.fusions.linears import divisible, layer
from transpiler.lower.axes import HEADS, Axes
from transpiler.refusal import Refused

RULE = "parallel linears"


def lower_linears(work: Work, scope: Scope) -> None:
    """Replace the `nn.Linear`s of a class that no fusion took.

    Raises:
        Refused: [parallel] for a linear that is not called once, or stands between
            two others, or behind something that needs the whole width.
    """
    calls: dict[str, Value] = {}
    for value in distinct_values(scope):
        child = linear_of(scope, value)
        if child is not None:
            if child.name in calls:
                raise Refused(
                    "parallel", f"self.{child.name} is called twice", child.call
                )
            calls[child.name] = value
    taken = {s.source for s in work.shards if s.owner == scope.name}
    feeds = {
        name: producers(work, scope, value.args[1]) for name, value in calls.items()
    }
    feeding = {name for found in feeds.values() for name in found}
    edits = work.edits_of(scope)
    for child in scope.children.values():
        if child.kind != LINEAR or child.name in taken:
            continue
        if child.name not in calls:
            raise Refused("parallel", f"self.{child.name} is never called", child.call)
        single_call(scope, child, calls[child.name])
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


def column_checks(work: Work, scope: Scope, child: Child) -> list[str]:
    """Statement that the output of a column-parallel linear can be shared evenly."""
    for projection in work.projections.get(scope.name, []):
        if projection.child is child:
            return [divisible(projection.heads, projection.heads_text)]
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
        found = producers(work, scope, value.args[1]) if len(value.args) > 1 else set()
        if found and work.is_norm(scope, value):
            shape = Axes(work, scope).of(value.args[1])
            if len(shape) != 4 or HEADS not in shape:
                raise Refused("parallel", "a norm over a shared width", scope.cls.node)
        return found
    if value.op == "attr" and value.name == "shape":
        return set()
    found = set()
    for operand in operands:
        found |= producers(work, scope, operand)
    return found
