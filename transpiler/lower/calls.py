"""Calls: what a forward passes to the modules of the file, as they are called now.

A forward that lost parameters or results, or got the positions, is called without or
with them; constants that it keeps as defaults are passed by name.

Refused when
    arguments: a call gives a forward what it still takes by `*` or `**` only.
    results: a result that is gone is unpacked in another way than `x, _ = …`.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.arguments import default_of
from transpiler.analyse.program import Child, Scope, element_list
from transpiler.analyse.values import Value
from transpiler.edits import Change
from transpiler.fusions.fusion import Work, block_of, forward_of, is_identity
from transpiler.refusal import Refused
from transpiler.tree import code


def lower_calls(work: Work, scope: Scope) -> None:
    """Fit the calls of a forward to what their callees take and return now."""
    flow = forward_of(scope)
    edits = work.edits_of(scope)
    for node in flow.calls:
        value = flow.values.get(node)
        if value is not None and is_identity(flow, node, value):
            continue
        child = called_child(scope, value)
        if child is not None and child.kind in work.norms and node.args[0].keyword:
            edits.replace(node, "signature", by_position, [node.args[0].value])
        if child is None or child.kind not in work.signatures:
            continue
        if child.kind in work.with_positions:
            work.with_positions.add(scope.name)
        callee = work.scope(child.kind)
        edits.replace(
            node, "signature", fitted(work, callee), passed(work, callee, node)
        )
        if child.kind in work.single_result:
            take_first(work, scope, node)


def by_position(node: cst.BaseExpression) -> cst.BaseExpression:
    """A norm's call without the name of its operand, which is another in vLLM."""
    call = cst.ensure_type(node, cst.Call)
    return call.with_changes(args=[cst.Arg(call.args[0].value)])


def called_child(scope: Scope, value: Value | None) -> Child | None:
    """The child of this class that a module call is of, through a loop or not."""
    if value is None or value.op != "module":
        return None
    target = value.args[0]
    name = element_list(target) if target.op == "element" else target.name
    return scope.children.get(name or "")


def passed(work: Work, callee: Scope, node: cst.Call) -> list[cst.CSTNode]:
    """Arguments of a call that the rewritten callee still takes.

    Raises:
        Refused: [arguments].
    """
    function = callee.cls.method("forward")
    parameters = [p.name.value for p in function.params.params][1:]
    found: dict[str, cst.CSTNode] = {}
    for position, arg in enumerate(node.args):
        if not arg.star:
            name = arg.keyword.value if arg.keyword else parameters[position]
            found[name] = arg.value
    kept = work.signatures[callee.name]
    optional = optional_of(callee)
    for name in kept:
        default = optional.get(name)
        known = default_of(default, work.program.graph, function) if default else None
        if name not in found and known is not bound_of(callee)[name]:
            raise Refused("arguments", f"{name} is not given by itself", node)
    return [value for name, value in found.items() if name in kept]


def bound_of(scope: Scope) -> dict[str, Value]:
    """What the parameters of a forward are bound to."""
    return forward_of(scope).environments[scope.cls.method("forward").body.body[0]]


def optional_of(scope: Scope) -> dict[str, cst.Param]:
    """Parameters of a forward that keep their default: constants in every call."""
    bound = bound_of(scope)
    return {
        parameter.name.value: parameter
        for parameter in scope.cls.method("forward").params.params[1:]
        if parameter.default is not None and bound[parameter.name.value].op == "const"
    }


def fitted(work: Work, callee: Scope) -> Change:
    """A change of a call: arguments without parameter go, new ones come."""
    kept = work.signatures[callee.name]
    parameters = [p.name.value for p in callee.cls.method("forward").params.params][1:]
    residual = work.with_residual.get(callee.name)
    optional = optional_of(callee)

    def change(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        arguments: list[str] = []
        keyword_seen = False
        for position, arg in enumerate(call.args):
            if arg.star:
                continue
            name = arg.keyword.value if arg.keyword else parameters[position]
            if name not in kept:
                keyword_seen = True
                continue
            text = code(arg.value)
            by_name = arg.keyword is not None or name in optional
            keyword_seen = keyword_seen or by_name
            arguments.append(f"{name}={text}" if keyword_seen else text)
            if name == residual:
                arguments.append("residual=residual" if keyword_seen else "residual")
        if callee.name in work.with_positions:
            arguments.append("positions=positions")
        return call.with_changes(
            args=cst.ensure_type(
                cst.parse_expression(f"f({', '.join(arguments)})"), cst.Call
            ).args
        )

    return change


def take_first(work: Work, scope: Scope, node: cst.Call) -> None:
    """`x, _ = self.child(…)` becomes `x = …` for a child with one result left."""
    flow = forward_of(scope)
    for read, value in flow.values.items():
        if (
            value.op == "item"
            and value.name != "0"
            and value.args[0] is flow.values[node]
        ):
            raise Refused("results", "a result that is gone is read", read)
    edits = work.edits_of(scope)
    for found in block_of(scope):
        if not isinstance(found, cst.SimpleStatementLine):
            continue
        assign = found.body[0]
        if isinstance(assign, cst.Assign) and assign.value is node:
            target = assign.targets[0].target
            if isinstance(target, cst.Tuple) and len(target.elements) == 2:
                edits.replace(
                    target,
                    "signature",
                    lambda t: cst.ensure_type(t, cst.Tuple).elements[0].value,
                )
                return
    raise Refused("results", "a result that is gone is not simply unpacked", node)
