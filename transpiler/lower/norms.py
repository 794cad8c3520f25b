"""Norms: upstream's constructor calls as vLLM's, and who has them.

A norm that only the last rank calls is made there alone; one over a width that ranks
share sums over them.

Refused when
    norm-arguments: a norm is made without its width or epsilon, over several axes, or
        with an argument that the layer has not.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.program import Child, Scope
from transpiler.fusions.fusion import Work, distinct_values, linear_of, operand_of
from transpiler.fusions.projections import sources
from transpiler.lower.axes import HEADS, WIDTH, Axes
from transpiler.lower.embedding import stream_width
from transpiler.refusal import Refused
from transpiler.tree import code


def lower_norm(work: Work, scope: Scope, child: Child, ranks: str = "") -> None:
    """Replace the constructor call of a norm.

    Args:
        work: The program.
        scope: The class that makes it.
        child: The norm.
        ranks: The test that a rank which has it passes, empty for all of them.
    """
    lines = f"self.{child.name} = {layer_text(work, scope, child)}"
    if child.choice is not None:
        lines += f" if {code(child.choice.test)} else {code(child.choice.orelse)}"
    if ranks:
        lines = (
            f"if {ranks}:\n    {lines}\n"
            f"else:\n    self.{child.name} = PPMissingLayer()\n"
        )
    rule = work.norms[child.kind].row.rule
    work.edits_of(scope).swap(child.statement, rule, [lines])


def layer_text(work: Work, scope: Scope, child: Child) -> str:
    """vLLM's norm with what upstream's is given."""
    norm = work.norms[child.kind]
    arguments: list[str] = []
    layer = norm.row.layer
    for role, (place, name, default) in norm.places.items():
        given = child.argument(place, name)
        if role not in norm.row.takes:
            usual = default is None or code(default) in ("True", "None")
            if given is not None or not usual:
                raise Refused("norm-arguments", f"{name}= is not known", child.call)
            continue
        if given is not None and scope.init.values[given].op in ("tuple", "list"):
            layer, given = norm.row.by_head, heads_and_size(work, scope, child, given)
        text = text_of(default if given is None else given)
        if not text and (norm.row.body or role == "hidden_size"):
            raise Refused("norm-arguments", f"no {name}", child.call)
        if role == "hidden_size":
            arguments.insert(0, text)
        elif text:
            arguments.append(f"{role}={text}")
    if "hidden_size" not in norm.places:
        arguments.insert(0, width_text(work, scope, child))
    if layer == norm.row.by_head:
        return f"{layer}({', '.join(arguments)})"
    sharded = work.sharded.get((scope.name, child.name))
    arguments += [*(sharded or ()), *norm.row.extra]
    layer = layer if sharded is None else f"Sharded{layer}"
    return f"{layer}({', '.join(arguments)})"


def heads_and_size(
    work: Work, scope: Scope, child: Child, given: cst.BaseExpression
) -> cst.BaseExpression:
    """The two axes of a norm with a weight of each head, without brackets.

    They must be the heads of a projection that it is called on, and their size.
    """
    row = work.norms[child.kind].row
    sizes = scope.init.values[given].args
    axes = Axes(work, scope)
    heads = {p.child.name: p.heads.count for p in work.projections.get(scope.name, [])}
    calls = [v for v in distinct_values(scope) if work.is_norm(scope, v) is child]
    for call in calls:
        shape = axes.of(operand_of(call))
        made = [linear_of(scope, v) for v in sources(work, scope, operand_of(call))]
        found = [heads.get(linear.name) if linear else None for linear in made]
        if shape[2:] != (HEADS, sizes[-1]) or found != [sizes[0]] or len(sizes) != 2:
            raise Refused("norm-arguments", "a norm over several axes", given)
    if not row.by_head or not calls or not isinstance(given, cst.Tuple):
        raise Refused("norm-arguments", "a norm over several axes", given)
    return given


def width_text(work: Work, scope: Scope, child: Child) -> str:
    """The width of a norm whose class does not say it: of what it is called on."""
    axes = Axes(work, scope)
    calls = [v for v in distinct_values(scope) if work.is_norm(scope, v) is child]
    widths = {axes.of(operand_of(call))[-1] for call in calls}
    held = scope.init.held[child.statement]
    if len(widths) == 1 and WIDTH not in widths:
        found = [f"self.{name}" for name, value in held.items() if value in widths]
    else:
        width = stream_width(work)
        is_field = width is not None and width.op == "attr"
        names = [n for n, v in scope.parameters.items() if v.op == "config"]
        found = [f"{n}.{width.name}" for n in names if width is not None and is_field]
    if not found or len(widths) != 1:
        raise Refused("norm-arguments", "no width", child.call)
    return found[0]


def text_of(node: cst.BaseExpression | None) -> str:
    """An argument as source text, without brackets around it."""
    return code(node.with_changes(lpar=[], rpar=[])) if node is not None else ""


def is_last(work: Work, scope: Scope, child: Child) -> bool:
    """Whether a norm is called after the layers only."""
    calls = [v for v in distinct_values(scope) if work.is_norm(scope, v) is child]
    return all(any(part.op == "looped" for part in call.walk()) for call in calls)
