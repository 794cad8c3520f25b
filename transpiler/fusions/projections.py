"""Projections: the linear behind a query, key or value, with its heads.

What reaches the attention interface is followed back through rotary, norms and head
views to one linear, or to one part of a linear that gives several.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Graph, Value, is_const
from transpiler.fusions.fusion import Work, linear_of, single_call, size_of
from transpiler.fusions.heads import Heads, Multiple, Projection
from transpiler.fusions.sizes import NONE, Needs, Size, shared, size_from
from transpiler.lower.axes import Axes
from transpiler.refusal import Refused
from transpiler.tree import code


def is_interface_call(value: Value) -> bool:
    """Whether a value is a call of Transformers' attention interface."""
    return (
        value.op == "call"
        and bool(value.args)
        and value.args[0].op == "call"
        and value.args[0].name == "modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface"
    )


def sources(work: Work, scope: Scope, value: Value) -> set[Value]:
    """Linear calls, and parts of one, that a value is computed from.

    Rotary is followed per operand.
    """
    if value in work.parts or linear_of(scope, value) is not None:
        return {value}
    if value in work.turned:
        return sources(work, scope, work.turned[value])
    operands = list(value.args) + [operand for _, operand in value.keywords]
    if value.op == "item" and value.args[0].op == "call":
        call = value.args[0]
        if call.name in work.applies:
            operands = [call.args[int(value.name)]]
    if value.op in {"carried", "looped", "param"}:
        return set()
    if value.op == "attr" and value.name in {"shape", "dtype", "device"}:
        return set()
    found: set[Value] = set()
    if value.op == "module":
        operands = operands[1:] if child_here(scope, value) else []
    for operand in operands:
        found |= sources(work, scope, operand)
    return found


def child_here(scope: Scope, value: Value) -> bool:
    """Whether a module call is of a child of this class."""
    return value.args[0].op == "child" and value.args[0].args[0].name == scope.name


def projection_of(
    work: Work, scope: Scope, axes: Axes, role: str, operand: Value
) -> Projection:
    """The linear that a query, key or value comes from, with heads and head size.

    Raises:
        Refused: [not-one-projection].
    """
    found = sources(work, scope, operand)
    where = scope.cls.method("forward")
    if len(found) != 1:
        raise Refused(
            "not-one-projection", f"{role} comes from {len(found)} linears", where
        )
    (value,) = found
    split = work.parts.get(value)
    linear = split.linear if split is not None else value
    child = linear_of(scope, linear)
    if child is None:
        raise AssertionError(role)
    call = single_call(scope, child, linear)
    size = axes.of(operand)[-1]
    graph = work.program.graph
    if split is not None:
        *rest, last = [axis for axis in split.parts[value].axes if axis is not None]
        width = rest[0].size * last.size if rest else last.size
        heads = heads_in(scope, graph, child, width, size, split.parts[value].needs)
        heads = replace(heads, part=value)
    else:
        heads = said_heads(scope, child, size) or heads_in(
            scope, graph, child, size_from(graph, size_of(scope, child, 1)[0]), size
        )
    projection = Projection(role, child, linear, call, heads)
    check_views(work, scope, projection, operand)
    return projection


def said_heads(scope: Scope, child: Child, size: Value) -> Heads | None:
    """Heads of a linear whose width is written as heads times head size."""
    node = child.argument(1, "out_features")
    if isinstance(node, cst.BinaryOperation) and isinstance(
        node.operator, cst.Multiply
    ):
        for heads, other in ((node.left, node.right), (node.right, node.left)):
            if scope.init.values[other] is size:
                count = scope.init.values[heads]
                return Heads(count, code(heads), size, code(other))
    return None


def heads_in(
    scope: Scope,
    graph: Graph,
    child: Child,
    width: Size,
    size: Value,
    before: Needs = NONE,
) -> Heads:
    """Heads that are a width over the head size.

    Raises:
        Refused: [head-count].
    """
    heads, more = shared(graph, width, size_from(graph, size))
    count = heads.value(graph) if heads is not None else None
    pairs = [*before, *(pair for pair in more if pair not in before)]
    wanted = [count, size, *(side for pair in pairs for side in pair)]
    texts = {value: text_at(scope, value, child.statement) for value in wanted}
    if count is None or None in texts.values():
        raise Refused(
            "head-count",
            f"the width of self.{child.name} is not heads times the head size",
            child.call,
        )
    said = {value: str(text) for value, text in texts.items() if value is not None}
    needs = tuple(Multiple(a, said[a], b, said[b]) for a, b in pairs)
    return Heads(count, said[count], size, said[size], needs)


def text_at(scope: Scope, value: Value | None, place: cst.CSTNode) -> str | None:
    """A config value as source text at a place of the constructor.

    An attribute that holds it there, or else an expression that reads the config.
    """
    if value is None:
        return None
    if value.op == "const":
        return repr(value.constant)
    for name, known in scope.init.held[place].items():
        if known is value:
            return f"self.{name}"
    for name, known in scope.init.environments[place].items():
        if known is value and known.op != "config":
            return name
    config = next((n for n, v in scope.parameters.items() if v.op == "config"), None)
    if value.op == "attr" and value.args[0].op == "config" and config is not None:
        return f"{config}.{value.name}"
    return None


def check_views(
    work: Work, scope: Scope, projection: Projection, operand: Value
) -> None:
    """A view that says the number of heads says this one.

    Raises:
        Refused: [head-count]; with `view(batch, -1, heads, size)` the tokens of a
            config with another number would be others.
    """
    graph = work.program.graph
    heads = size_from(graph, projection.heads.count)
    for value in layout_before(work, scope, operand):
        said = value.args[-2]
        if not is_const(said, -1) and size_from(graph, said) != heads:
            raise Refused(
                "head-count",
                f"{projection.role} is viewed as another number of heads",
                projection.call,
            )


def layout_before(work: Work, scope: Scope, value: Value) -> list[Value]:
    """The heads views between a projection and a value."""
    if value in work.parts or linear_of(scope, value) is not None:
        return []
    operands = value.args
    if value.op == "item" and value.args[0].name in work.applies:
        operands = (value.args[0].args[int(value.name)],)
    if value.op in {"attr", "carried", "child", "looped", "param"}:
        return []
    is_view = value.op == "method" and value.name == "view" and len(value.args) > 3
    found = [value] if is_view else []
    for operand in operands:
        found += layout_before(work, scope, operand)
    return found
