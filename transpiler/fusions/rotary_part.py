"""Rotary part: an attention that turns the first part of each head by itself.

Upstream may slice query and key, turn the first slices and join them to the rest.
vLLM's rotary embedding does that in one call on whole heads, when the slices are as
wide as it reads from the config.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Graph, Value, is_const
from transpiler.fusions.fusion import (
    Work,
    assigned_name,
    block_of,
    forward_of,
    statements_of,
    users_of,
)
from transpiler.refusal import Refused
from transpiler.tree import nodes_within

FACTOR = "partial_rotary_factor"


@dataclass(frozen=True)
class Part:
    """A query or key of which the first part is turned.

    Attributes:
        whole: What is sliced.
        first: The slice that is turned.
        rest: The slice that is not.
        pair: Both, after the turn.
        joined: Both as one tensor again.
        width: Width of the first slice.
    """

    whole: Value
    first: Value
    rest: Value
    pair: Value
    joined: Value
    width: Value


def parts_of(
    work: Work, scope: Scope, call: Value, node: cst.CSTNode
) -> list[Part] | None:
    """Query and key of an apply call as parts of heads, None when they are whole.

    Raises:
        Refused: [part] when what is sliced is not simply joined again.
    """
    bounds = [first_part(operand) for operand in call.args[:2]]
    if bounds == [None, None]:
        return None
    graph = work.program.graph
    parts = []
    for place, bound in enumerate(bounds):
        if bound is None:
            raise Refused("part", "query or key alone is sliced", node)
        first = call.args[place]
        whole = first.args[0]
        rest = sliced(graph, whole, bound, graph.const(None))
        turned = graph.make("item", str(place), (call,))
        pair = graph.make("tuple", args=(turned, rest))
        joined = graph.make("call", "torch.cat", (pair, graph.const(-1)))
        part = Part(whole, first, rest, pair, joined, bound)
        check_users(scope, part, turned, call, node)
        parts.append(part)
    return parts


def first_part(value: Value) -> Value | None:
    """The width n of `x[..., :n]`."""
    if value.op != "subscript" or value.args[1].op != "tuple":
        return None
    *before, bounds = value.args[1].args
    if len(before) != 1 or not is_const(before[0], ...) or bounds.op != "slice":
        return None
    start, stop, step = bounds.args
    return stop if is_const(start, None) and is_const(step, None) else None


def sliced(graph: Graph, whole: Value, start: Value, stop: Value) -> Value:
    """`whole[..., start:stop]`."""
    bounds = graph.make("slice", args=(start, stop, graph.const(None)))
    key = graph.make("tuple", args=(graph.const(...), bounds))
    return graph.make("subscript", args=(whole, key))


def check_users(
    scope: Scope, part: Part, turned: Value, call: Value, node: cst.CSTNode
) -> None:
    """Nothing but the turn and the join reads a slice."""
    allowed = {
        part.first: {call},
        part.rest: {part.pair},
        turned: {part.pair},
        part.pair: {part.joined},
    }
    for value, users in allowed.items():
        found = {
            user
            for user in users_of(scope, value)
            if not (user.op == "tuple" and not users_of(scope, user))
        }
        if found != users:
            raise Refused("part", "the slices are not turned and joined again", node)


def check_width(part: Part, size: Value, node: cst.CSTNode) -> None:
    """The slice is `int(head size * config.rope_parameters[partial_rotary_factor])`.

    Raises:
        Refused: [part] for another width.
    """
    width = part.width
    product = width.args[0] if width.op == "call" and width.name == "int" else width
    factors = product.args if product.op == "binary" and product.name == "*" else ()
    others = [factor for factor in factors if factor is not size]
    if width is product or len(others) != 1 or not is_factor(others[0]):
        raise Refused("part", "the width of the slice is not known", node)


def is_factor(value: Value) -> bool:
    """Whether a value is the config's `partial_rotary_factor`."""
    looked_up = value.op == "subscript" or (
        value.op == "method" and value.name == "get"
    )
    if not looked_up or len(value.args) > 3 or value.keywords:
        return False
    holder, key, *default = value.args
    return (
        holder.op == "attr"
        and holder.name == "rope_parameters"
        and holder.args[0].op == "config"
        and is_const(key, FACTOR)
        and all(is_const(other, 1.0) for other in default)
    )


def rewrite_parts(
    work: Work, scope: Scope, parts: Sequence[Part], node: cst.CSTNode, rule: str
) -> None:
    """The turn on whole heads in the place of slices, turn and join.

    Raises:
        Refused: [part] when turn and joins are not three statements in a row that
            bind names.
    """
    flow = forward_of(scope)
    owners = statements_of(scope.cls.method("forward"))
    block = block_of(scope)
    turn = owners[node]
    joins = []
    for part in parts:
        calls = [n for n in flow.nodes_of(part.joined) if isinstance(n, cst.Call)]
        joins.append(owners[calls[0]] if len(calls) == 1 else turn)
    index = block.index(turn) if turn in block else len(block)
    names = [assigned_name(join) for join in joins]
    if set(block[index + 1 : index + 3]) != set(joins) or None in names:
        raise Refused("part", "turn and joins are not statements in a row", node)
    held = flow.environments[turn]
    given = []
    for part, name in zip(parts, names, strict=True):
        known = [n for n, value in held.items() if value is part.whole]
        if not known:
            raise Refused("part", "what is sliced has no name", node)
        given.append(name if name in known else known[0])
    edits = work.edits_of(scope)
    text = f"self.rotary_emb(positions, {', '.join(str(n) for n in given)})"
    edits.swap(turn, rule, [f"{', '.join(str(n) for n in names)} = {text}"])
    for join in joins:
        edits.swap(join, rule, [])
    slices = {part.first for part in parts} | {part.rest for part in parts}
    for statement in block[:index]:
        if any(flow.values.get(n) in slices for n in nodes_within(statement)):
            edits.swap(statement, rule, [])
