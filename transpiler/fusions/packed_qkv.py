"""Packed QKV: one linear that gives query, key and value becomes `QKVParallelLinear`.

Its rows are those of the three, one after the other, or head by head; either way each
is exactly one row of query, key or value. In the first order vLLM's layer loads the
tensor as it is; in the second its rows are put in the first order when it is loaded,
so that the three are split alike. The layer keeps its upstream name.

Refused when
    same-projection: the three are not all that the linear is divided into.
    head-size: the head sizes differ.
    head-count: key and value heads differ, or their number is no config field where it
        is needed when the rows are put in order.
    column-order: the columns are in neither order, or are not divided in one place.
    name-taken: a name that the split binds is bound before.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value
from transpiler.edits import receiver
from transpiler.fusions.fusion import (
    Shard,
    Work,
    assigned_name,
    bias_of,
    block_of,
    forward_of,
    size_of,
    statements_of,
    the_node,
)
from transpiler.fusions.heads import Projection
from transpiler.fusions.linears import layer, multiples, share_checks
from transpiler.fusions.moved import check_arguments
from transpiler.fusions.parts import Axis, Columns, Split
from transpiler.fusions.sizes import Size, number
from transpiler.refusal import Refused
from transpiler.tree import code

NAMES = ("query_states", "key_states", "value_states")


def divide(work: Work, scope: Scope, found: list[Projection], rule: str) -> str:
    """Replace one linear that gives query, key and value, and its division.

    Args:
        work: The program.
        scope: The class.
        found: Query, key and value, parts of one linear.
        rule: Name of the fusion.
    """
    split = next(work.parts[p.heads.part] for p in found if p.heads.part in work.parts)
    parts = [p.heads.part for p in found]
    query, key, _ = found
    if set(parts) != set(split.parts) or len(set(parts)) != 3:
        raise Refused("same-projection", "not three parts of one linear", query.call)
    if len({p.heads.size for p in found}) != 1:
        raise Refused("head-size", "head sizes differ", query.call)
    if key.heads.count is not found[2].heads.count:
        raise Refused("head-count", "key and value heads differ", query.call)
    child = query.child
    columns = [split.parts[part] for part in parts if part is not None]
    is_by_head = layout(columns, split.width, query)
    check_arguments(child, scope, child.statement)
    edits = work.edits_of(scope)
    for value in split.chain:
        node = cst.ensure_type(the_node(scope, value, "a view"), cst.Call)
        func = cst.ensure_type(node.func, cst.Attribute)
        edits.replace(node, rule, receiver, [func.value])
    shares = (
        f"split([size // self.{child.name}.tp_size "
        f"for size in self.{child.name}.output_sizes], -1)"
    )
    if split.divided is not None:
        rewrite_call(work, scope, split, rule, shares)
    else:
        rewrite_slices(work, scope, [p for p in parts if p], rule, shares)
    arguments = [
        size_of(scope, child, 0)[1],
        query.heads.size_text,
        query.heads.text,
        key.heads.text,
        f"bias={bias_of(scope, child)[1]}",
    ]
    edits.swap(
        child.statement,
        rule,
        [
            *share_checks(query.heads, key.heads),
            *multiples(found),
            layer("QKVParallelLinear", child.name, *arguments),
        ],
    )
    work.merged[scope.name] = child.name
    work.shards.append(Shard(scope.name, child.name, child.name, ""))
    if is_by_head:
        heads = config_text(query.heads.count, query)
        work.by_head.append((scope.name, child.name, heads))
    return f"{child.name} -> [q, k, v]"


def config_text(value: Value, query: Projection) -> str:
    """A config value as source text in the causal class.

    Raises:
        Refused: [head-count] for a value that is not one field.
    """
    if value.op == "attr" and value.args[0].op == "config":
        return f"self.config.{value.name}"
    raise Refused("head-count", "the heads are not a config field", query.call)


def layout(columns: list[Columns], width: Size, query: Projection) -> bool:
    """Whether the three come head by head; else one after the other.

    Raises:
        Refused: [column-order] when it is neither, or columns are left out.
    """
    axes = [[axis for axis in c.axes if axis is not None] for c in columns]
    start = number(0)
    if all(len(a) == 1 and a[0].stride == number(1) for a in axes):
        for one, (axis,) in zip(columns, axes, strict=True):
            if one.start != start:
                break
            start = start + axis.size
        else:
            if start == width:
                return False
    size = axes[0][-1].size
    row = Axis(size, number(1))
    group = size * number(3)
    if all(
        len(a) == 2
        and a[1] == row
        and a[0] == Axis(axes[0][0].size, group)
        and c.start == size * number(place)
        for place, (a, c) in enumerate(zip(axes, columns, strict=True))
    ):
        return True
    raise Refused(
        "column-order", f"self.{query.child.name} is divided otherwise", query.call
    )


def rewrite_call(
    work: Work, scope: Scope, split: Split, rule: str, shares: str
) -> None:
    """`x.chunk(3, -1)` becomes a split into the shares of a rank."""
    assert split.divided is not None
    node = cst.ensure_type(the_node(scope, split.divided, "the division"), cst.Call)
    if not isinstance(node.func, cst.Attribute) or node.func.attr.value not in {
        "chunk",
        "split",
    }:
        raise Refused("column-order", "not divided by a method", node)

    def divided(call: cst.BaseExpression) -> cst.BaseExpression:
        return cst.parse_expression(f"{code(receiver(call))}.{shares}")

    work.edits_of(scope).replace(node, rule, divided, [node.func.value])


def rewrite_slices(
    work: Work, scope: Scope, parts: list[Value], rule: str, shares: str
) -> None:
    """Slices of a name become one split into the shares of a rank, before the first.

    Raises:
        Refused: [column-order] when they are not slices of one name in one block.
    """
    edits = work.edits_of(scope)
    owners = statements_of(scope.cls.method("forward"))
    nodes = [the_node(scope, part, "a slice") for part in parts]
    block = block_of(scope)
    places = [owners[node] for node in nodes]
    bases = {code(node.value) for node in nodes if isinstance(node, cst.Subscript)}
    if len(bases) != 1 or any(place not in block for place in places):
        raise Refused("column-order", "not slices of one name", nodes[0])
    (base,) = bases
    names: list[str | None] = [assigned_name(place) for place in places]
    if None in names or len(set(names)) != 3:
        names = list(NAMES)
    flow = forward_of(scope)
    first = min(places, key=block.index)
    held = flow.values[cst.ensure_type(nodes[0], cst.Subscript).value]
    if flow.environments[first].get(base) is not held:
        raise Refused("column-order", f"{base} is another value here", first)
    for name, place in zip(names, places, strict=True):
        for before in (first, place):
            if name in flow.environments[before]:
                raise Refused("name-taken", f"{name} is bound before", place)
    edits.insert(first, [f"{', '.join(str(n) for n in names)} = {base}.{shares}"])
    for node, name in zip(nodes, names, strict=True):
        edits.replace_text(node, rule, str(name))
