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
from transpiler.fusions.reads import known_at, readers, roots
from transpiler.fusions.rotaries import APPLIES, CLASSES, Apply, Table
from transpiler.fusions.rotary_part import (
    Part,
    check_width,
    parts_of,
    rewrite_parts,
)
from transpiler.lower.axes import HEADS, Axes
from transpiler.lower.window import is_own_place, text_of
from transpiler.refusal import Refused
from transpiler.tree import code


class Rotary(Fusion):
    """Replace cosine and sine tables and the apply function by `get_rope`.

    Refused when
        unknown-rotary: cos and sin do not come from a rotary class of the table.
        unknown-apply: the apply function is not of the table, or not of the same row.
        positions: the rotary class is not called with the engine's positions.
        layer-type: the rotary class is asked for another type than the layer's own.
        head-axis: the apply function's `unsqueeze_dim` is not the axis of the heads.
        head-size: no attribute of the class holds the head size.
        rotary-config: the rotary module is made from more or other than the config that
            the class takes.
        part: the attention turns a part of each head by itself, in another way than
            slices, turn and join of the width that the config says.
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
        parts = parts_of(work, scope, value, node)
        table, apply = self.pair(work, child, value, bool(parts), node)
        operands = [*rotary.args[1:], *(v for _, v in rotary.keywords)]
        if [v.op for v in operands[1:2]] != ["positions"] or (
            operands[0].op not in {"choice", "module", "binary", "param"}
        ):
            raise Refused("positions", f"self.{child.name} takes other positions", node)
        kind = self.type_of(scope, table, operands[2:], node)
        whole = [part.whole for part in parts] if parts else list(value.args[:2])
        self.check_reads(work, scope, value, whole, parts or [], node)
        axes = Axes(work, scope)
        self.check_axes(work, scope, value, whole, axes, node)
        size = axes.of(whole[0])[-1]
        held = [n for n, (v, _) in scope.init.assigned.items() if v is size]
        if not held:
            raise Refused("head-size", "no attribute holds the head size", node)
        taken = (*scope.children, *scope.init.assigned)
        if "rotary_emb" in taken or scope.name in work.with_positions:
            raise Refused("name-taken", "self.rotary_emb exists", scope.cls.node)
        for part in parts or ():
            check_width(part, size, node)
        edits = work.edits_of(scope)
        for place, operand in enumerate(whole):
            result = work.program.graph.make("item", str(place), (value,))
            work.turned[parts[place].joined if parts else result] = operand
        if parts:
            rewrite_parts(work, scope, parts, node, self.name)
        keeps = [] if parts else [arg.value for arg in node.args[:2]]
        edits.replace(node, self.name, rotated, keeps)
        last = scope.cls.method("__init__").body.body[-1]
        given = [self.config_of(scope, child), "vllm_config"]
        if kind:
            given.append(f"layer_type={kind}")
        if table.has_alpha:
            given.append("has_alpha=True")
        if table.is_partial:
            given.append("is_partial=True")
        if not reads_head_dim(size):
            given.append(f"head_size=self.{held[0]}")
        style = "is_neox_style=True, "
        if apply.style == "pairs":
            style = ""
            given.append("is_neox_style=False")
        edits.append(
            last,
            [
                f"self.rotary_emb = get_rope(self.{held[0]}, {style}"
                f"**rope_arguments({', '.join(given)}))"
            ],
        )
        model_edits = work.edits_of(owner)
        if child.statement not in model_edits.statements:
            model_edits.swap(child.statement, self.name, [])
        work.with_positions.add(scope.name)
        return f"{child.kind} + {value.name} -> get_rope"

    def type_of(
        self, scope: Scope, table: Table, operands: list[Value], node: cst.Call
    ) -> str:
        """The layer's own type in the attention's constructor, if one is asked for."""
        if not table.is_by_type and not operands:
            return ""
        config = [n for n, v in scope.parameters.items() if v.op == "config"]
        places = [n for n, v in scope.parameters.items() if v.op == "element"]
        kind = operands[0] if len(operands) == 1 and table.is_by_type else None
        if (
            kind is None
            or kind.op != "subscript"
            or not is_own_place(scope, kind)
            or not config
            or not places
        ):
            raise Refused("layer-type", "not the type of the layer itself", node)
        return text_of(kind, config[0], places[0], node)

    def check_reads(
        self,
        work: Work,
        scope: Scope,
        value: Value,
        whole: list[Value],
        parts: list[Part],
        node: cst.Call,
    ) -> None:
        """What is turned in place is read by nothing that stays."""
        known = known_at(scope, node)
        if roots(work, whole[0]) & roots(work, whole[1]):
            raise Refused("operand-read", "query and key share memory", node)
        own = {value}
        for part in parts:
            own |= {part.first, part.rest, part.joined}
        for operand in whole:
            if not set(readers(work, scope, operand, known)) <= own:
                raise Refused("operand-read", "an operand is read again", node)

    def pair(
        self, work: Work, child: Child, value: Value, sliced: bool, node: cst.Call
    ) -> tuple[Table, Apply]:
        """The rows of class and apply function, which must fit each other."""
        row = work.rotaries.get(child.kind)
        if row is None:
            raise Refused("unknown-rotary", f"{child.kind} is not in the table", node)
        table, apply = CLASSES[row], APPLIES.get(work.applies.get(value.name, ""))
        if (
            apply is None
            or apply.doubled != table.doubled
            or (apply.is_partial or sliced) != table.is_partial
        ):
            raise Refused(
                "unknown-apply", f"{value.name} is not the pair of {child.kind}", node
            )
        return table, apply

    def config_of(self, scope: Scope, child: Child) -> str:
        """The name of the config, which must be all that made the rotary module."""
        made = [*child.value.args, *(v for _, v in child.value.keywords)]
        names = [n for n, v in scope.parameters.items() if v.op == "config"]
        if [operand.op for operand in made] != ["config"] or not names:
            raise Refused("rotary-config", "not made from the config", child.call)
        return names[0]

    def check_axes(
        self,
        work: Work,
        scope: Scope,
        value: Value,
        whole: list[Value],
        axes: Axes,
        node: cst.Call,
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
        for operand in whole:
            shape = axes.of(operand)
            if len(shape) != 4 or number not in (1, 2) or shape[number] is not HEADS:
                raise Refused("head-axis", f"the heads are not axis {number}", node)


def reads_head_dim(size: Value) -> bool:
    """Whether a head size is `config.head_dim` wherever the config has one.

    That is what the rotary classes of the table take; another may differ from it.
    """
    if size.op == "bool" and size.name == "or":
        size = size.args[0]
    is_read = size.op in {"attr", "getattr"} and size.args[0].op == "config"
    return is_read and size.name == "head_dim"


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
