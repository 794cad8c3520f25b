"""Rotary: a known (class, apply function) pair becomes vLLM's rotary embedding.

Upstream computes cosines and sines once at model level and hands them down. With a
pair that the table knows, each attention builds `get_rope` (vLLM shares equal ones)
and gets `positions` instead; `rope_arguments` passes on exactly the keys that
upstream's functions read, and raises where vLLM's numbers would differ.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import (
    Fusion,
    Work,
    distinct_values,
    forward_of,
    the_node,
)
from transpiler.fusions.reads import readers, roots
from transpiler.lower.axes import HEADS, Axes
from transpiler.refusal import Refused
from transpiler.tree import code

STYLES = {"half": True}


class Rotary(Fusion):
    """Replace cosine and sine tables and the apply function by `get_rope`.

    Refused when
        unknown-rotary: cos and sin do not come from a rotary class of the table.
        unknown-apply: the apply function is not of the table, or not of the same row.
        positions: the rotary class is not called with the engine's positions.
        head-axis: the apply function's `unsqueeze_dim` is not the axis of the heads.
        head-size: no attribute of the class holds the head size.
        rotary-config: the rotary module is made from more or other than the config that
            the class takes.
        operand-read: query or key, which vLLM turns in place, are read again
            or share memory.
        name-taken: the class has an attribute `rotary_emb` already, or a second call.
    """

    name = "rotary"

    def find(self, work: Work, scope: Scope) -> Iterator[Value]:
        """Calls that take both results of a rotary module."""
        for value in distinct_values(scope):
            if value.op == "call" and value.name in work.program.module.functions:
                names = [a.name for a in value.args if is_table(work, a)]
                if names == ["0", "1"]:
                    yield value

    def fuse(self, work: Work, scope: Scope, value: Value) -> str:
        """Check and replace one call of the apply function."""
        node = the_node(scope, value, value.name)
        if not isinstance(node, cst.Call):
            raise AssertionError("not a call")
        rotary = value.args[2].args[0]
        owner = work.scope(rotary.args[0].args[0].name)
        child = owner.children[rotary.args[0].name]
        row = work.rotaries.get(child.kind)
        if row is None:
            raise Refused("unknown-rotary", f"{child.kind} is not in the table", node)
        if work.applies.get(value.name) != row:
            raise Refused(
                "unknown-apply", f"{value.name} is not the pair of {child.kind}", node
            )
        operands = [*rotary.args[1:], *(v for _, v in rotary.keywords)]
        if [v.op for v in operands[1:]] != ["positions"] or (
            operands[0].op not in {"choice", "module", "binary", "param"}
        ):
            raise Refused("positions", f"self.{child.name} takes other positions", node)
        query, key = value.args[:2]
        if roots(work, query) & roots(work, key):
            raise Refused("operand-read", "query and key share memory", node)
        for operand in (query, key):
            if readers(work, scope, operand) != [value]:
                raise Refused("operand-read", "an operand is read again", node)
        axes = Axes(work, scope)
        self.check_axes(work, scope, value, axes, node)
        size = axes.of(value.args[0])[-1]
        held = [n for n, (v, _) in scope.init.assigned.items() if v is size]
        if not held:
            raise Refused("head-size", "no attribute holds the head size", node)
        taken = (*scope.children, *scope.init.assigned)
        if "rotary_emb" in taken or scope.name in work.with_positions:
            raise Refused("name-taken", "self.rotary_emb exists", scope.cls.node)
        edits = work.edits_of(scope)
        edits.replace(node, self.name, rotated, [arg.value for arg in node.args[:2]])
        last = scope.cls.method("__init__").body.body[-1]
        config = self.config_of(scope, child)
        edits.append(
            last,
            [
                f"self.rotary_emb = get_rope(self.{held[0]}, "
                f"is_neox_style={STYLES[row]}, **rope_arguments({config}, vllm_config))"
            ],
        )
        model_edits = work.edits_of(owner)
        if child.statement not in model_edits.statements:
            model_edits.swap(child.statement, self.name, [])
        work.with_positions.add(scope.name)
        return f"{child.kind} + {value.name} -> get_rope"

    def config_of(self, scope: Scope, child: Child) -> str:
        """The name of the config, which must be all that made the rotary module."""
        made = [*child.value.args, *(v for _, v in child.value.keywords)]
        names = [n for n, v in scope.parameters.items() if v.op == "config"]
        if [operand.op for operand in made] != ["config"] or not names:
            raise Refused("rotary-config", "not made from the config", child.call)
        return names[0]

    def check_axes(
        self, work: Work, scope: Scope, value: Value, axes: Axes, node: cst.Call
    ) -> None:
        """The axis that cos and sin are broadcast over is the axis of the heads."""
        function = work.program.module.functions[value.name]
        names = [p.name.value for p in function.params.params]
        given = dict(zip(names, value.args, strict=False)) | dict(value.keywords)
        # The table holds only functions of (q, k, cos, sin, unsqueeze_dim) in order.
        dim = given.get(names[4])
        default = function.params.params[4].default
        number = (
            int(code(default))
            if dim is None and isinstance(default, cst.Integer)
            else dim.constant if dim is not None and dim.op == "const" else None
        )
        for operand in value.args[:2]:
            shape = axes.of(operand)
            if len(shape) != 4 or number not in (1, 2) or shape[number] is not HEADS:
                raise Refused("head-axis", f"the heads are not axis {number}", node)


def is_table(work: Work, value: Value) -> bool:
    """Whether a value is one of the two results of a rotary-like module."""
    return (
        value.op == "item"
        and value.args[0].op == "module"
        and value.args[0].args[0].op == "child"
        and value.args[0].args[0].args[0].name in work.program.scopes
        and any(operand.op == "positions" for operand in value.args[0].walk())
    )


def rotated(call: cst.BaseExpression) -> cst.BaseExpression:
    """`apply(q, k, cos, sin)` as `self.rotary_emb(positions, q, k)`."""
    call = cst.ensure_type(call, cst.Call)
    query, key = (code(arg.value) for arg in call.args[:2])
    return cst.parse_expression(f"self.rotary_emb(positions, {query}, {key})")


def rotary_calls(work: Work, scope: Scope) -> list[Value]:
    """Calls of rotary modules in a forward, for the reason why they go."""
    return [
        value
        for value in distinct_values(scope)
        if value.op == "module"
        and value.args[0].op == "child"
        and (child := scope.children.get(value.args[0].name)) is not None
        and child.kind in work.rotaries
        and forward_of(scope).nodes_of(value)
    ]
