"""Flat tokens: upstream's `[batch, sequence, …]` becomes vLLM's `[tokens, …]`.

Heads are kept folded into the last axis, `[tokens, heads * size]`, as the rotary
and attention layers want them; they are split only for what works on one head, a
norm over the head size. So a transpose to `[batch, heads, sequence, size]` folds
them again, and a view that only leads to such a transpose goes together with it.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value
from transpiler.edits import Change, parenthesised, receiver
from transpiler.fusions.fusion import (
    Work,
    distinct_values,
    forward_of,
    is_identity,
    operand_of,
    statements_of,
    users_of,
)
from transpiler.fusions.projections import is_interface_call
from transpiler.lower.axes import HEADS, TOKENS, Axes
from transpiler.refusal import Refused
from transpiler.tree import code, nodes_within

RULE = "flat tokens"


def lower_layout(work: Work, scope: Scope) -> None:
    """Rewrite the layout operations of a forward.

    Raises:
        Refused: [layout] for an operation that has no flat form.
    """
    lower_passing(work, scope)
    flow = forward_of(scope)
    axes = Axes(work, scope)
    check_folded(scope, axes)
    edits = work.edits_of(scope)
    for node in flow.calls:
        value = flow.values.get(node)
        if value is None or not isinstance(node.func, cst.Attribute):
            continue
        if work.is_norm(scope, value) and is_folded(scope, axes, operand_of(value)):
            heads = heads_of(scope, axes, value, node)
            edits.refine(node, RULE, apart(heads), [node.args[0].value])
            continue
        if node in edits.expressions:
            continue
        if node.func.attr.value == "contiguous":
            edits.replace(node, RULE, receiver, [node.func.value])
        elif value.op == "method" and value.name in {"view", "transpose"}:
            change = change_of(scope, axes, value)
            if change is not None:
                edits.replace(node, RULE, change, [node.func.value])


def lower_passing(work: Work, scope: Scope) -> None:
    """Calls that return their operand when nothing is trained are that operand."""
    flow = forward_of(scope)
    edits = work.edits_of(scope)
    for node in flow.calls:
        function = flow.values.get(node.func)
        passes = function is not None and function.op == "passes"
        if node in edits.expressions or not (passes or is_dropout(node)):
            continue
        if node.args and is_identity(flow, node, flow.values[node]):
            edits.replace(node, "no training", first_argument, [node.args[0].value])


def change_of(scope: Scope, axes: Axes, value: Value) -> Change | None:
    """What becomes of one view or transpose; None when it stays as it is."""
    before, after = axes.of(value.args[0]), axes.of(value)
    if value.name == "view":
        if TOKENS in {before[0], after[0]} or before == after:
            return receiver
        if HEADS in after:
            return receiver if only_folded(scope, axes, value) else None
        if is_attended(value.args[0]):
            return receiver
        raise axes.refuse("heads are joined before attention", value)
    if is_attended(value.args[0]):
        raise axes.refuse("the attention's output is transposed", value)
    if len(before) == 4 and before[2] is HEADS and after[1] is HEADS:
        return receiver if is_folded(scope, axes, value.args[0]) else fold
    raise axes.refuse("a transpose that does not bring the heads forward", value)


def only_folded(scope: Scope, axes: Axes, view: Value) -> bool:
    """Whether every reader of a heads view takes folded heads: a transpose, rotary."""
    users = users_of(scope, view)
    return bool(users) and all(
        (user.op == "method" and user.name == "transpose" and axes.of(user)[1] is HEADS)
        or (user.op == "call" and user.name in axes.work.applies)
        for user in users
    )


def is_attended(value: Value) -> bool:
    """Whether a value is the attention's output, which vLLM returns folded."""
    return value.op == "item" and value.name == "0" and is_interface_call(value.args[0])


def check_folded(scope: Scope, axes: Axes) -> None:
    """No module but a norm is called on heads that the flat layout has folded.

    Raises:
        Refused: [layout].
    """
    values = distinct_values(scope)
    if not any(v.op == "method" and v.name in {"view", "transpose"} for v in values):
        return
    for value in values:
        if value.op != "module" or value.args[0].op != "child":
            continue
        if axes.work.is_norm(scope, value) and head_size(scope, axes, value):
            continue
        for operand in (*value.args[1:], *(v for _, v in value.keywords)):
            if axes.is_tensor(operand) and is_folded(scope, axes, operand):
                raise axes.refuse("a module on heads that are folded", value)


def is_folded(scope: Scope, axes: Axes, value: Value) -> bool:
    """Whether a tensor has heads upstream and none in the flat layout."""
    if HEADS not in axes.of(value):
        return False
    if value in axes.work.turned:
        return is_folded(scope, axes, axes.work.turned[value])
    if value.op == "method" and value.name == "view":
        return only_folded(scope, axes, value)
    if value.op == "method" and value.name != "transpose":
        return is_folded(scope, axes, value.args[0])
    if value.op == "item" and value.args[0].name in axes.work.applies:
        return is_folded(scope, axes, value.args[0].args[int(value.name)])
    if value.op in {"binary", "call", "choice", "module"}:
        parts = [part for part in value.args if axes.is_tensor(part)]
        folded = {is_folded(scope, axes, part) for part in parts}
        if len(folded) > 1:
            raise axes.refuse("heads that are folded meet others", value)
        return True in folded
    return True


def head_size(scope: Scope, axes: Axes, value: Value) -> str:
    """The attribute that holds the size of the heads that a norm is called on."""
    size = axes.of(value)[-1]
    held = (name for name, (v, _) in scope.init.assigned.items() if v is size)
    return next(held, "")


def heads_of(scope: Scope, axes: Axes, value: Value, node: cst.Call) -> str:
    """The method call that takes folded heads apart for a norm, as source text."""
    graph, size = axes.work.program.graph, axes.of(value)[-1]
    names = forward_of(scope).environments[
        statements_of(scope.cls.method("forward"))[node]
    ]
    for name, known in names.items():
        if known.op != "tuple" or len(known.args) != 3:
            continue
        if axes.after_tokens(known.args) == (graph.const(-1), size):
            return f"view({name})"
    return f"unflatten(-1, (-1, self.{head_size(scope, axes, value)}))"


def is_dropout(node: cst.Call) -> bool:
    """Whether a call that returns its operand is torch's functional dropout."""
    return isinstance(node.func, cst.Attribute) and node.func.attr.value == "dropout"


def first_argument(node: cst.BaseExpression) -> cst.BaseExpression:
    """`f(x, …)` as `x`."""
    return cst.ensure_type(node, cst.Call).args[0].value


def fold(node: cst.BaseExpression) -> cst.BaseExpression:
    """`x.transpose(…)` as `x.flatten(-2)`."""
    inner = parenthesised(receiver(node))
    return cst.Call(
        func=cst.Attribute(value=inner, attr=cst.Name("flatten")),
        args=[cst.Arg(cst.parse_expression("-2"))],
    )


def apart(heads: str) -> Change:
    """A change of `norm(x)`, which gets the heads one by one and hands them on folded.

    Args:
        heads: The method call that takes them apart.
    """

    def change(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        operand = code(parenthesised(call.args[0].value))
        return cst.parse_expression(f"{code(call.func)}({operand}.{heads}).flatten(-2)")

    return change


def check_flat(work: Work, scope: Scope) -> None:
    """No tensor is indexed or measured by axes that the flat layout has not.

    Raises:
        Refused: [layout] for a subscript of a tensor in a forward.
    """
    edits = work.edits_of(scope)
    gone = {node for line in edits.statements for node in nodes_within(line)}
    for node, value in forward_of(scope).values.items():
        if node in edits.expressions or node in gone:
            continue
        if isinstance(node, cst.Subscript) and value.op == "subscript":
            base = value.args[0]
            if base.op in {"module", "method", "carried", "looped", "item"}:
                raise Refused("layout", "a tensor is indexed", node)
