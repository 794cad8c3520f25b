"""Packed GLU: a linear that gives gate and up side by side, shared half by half.

`gate, up = gate_up(x).chunk(2, -1); act(gate) * up` is what an act-and-mul layer
computes from the whole of it. The linear keeps its name and its tensor; only its class
knows that each rank gets a share of both halves. With the up half first
`transpiler.runtime` computes exactly act times up from the halves as they come.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import (
    Fusion,
    Shard,
    Work,
    check_still,
    distinct_values,
    linear_of,
    single_call,
    statements_of,
    the_node,
)
from transpiler.fusions.glu import activation_of, check_used_once, merged_layer
from transpiler.fusions.parts import Axis
from transpiler.fusions.projections import text_at
from transpiler.fusions.sizes import number
from transpiler.refusal import Refused
from transpiler.tree import code


class PackedGLU(Fusion):
    """Split a packed gate and up projection evenly over the ranks.

    Refused when
        column-order: gate and up are not the two halves of the linear's output.
        half-width: the width of a half is no config value.
        extra-use: a half, or the activated one, is used elsewhere too.
        input-rebound: the input's name means another value at the product.
        linear-arguments: the linear is made with more than sizes and bias.
        call-shape: the linear is called with more than one input.
        activation: the activation is not `ACT2FN[config.…]` held by one attribute.
    """

    name = "packed glu"

    def find(self, work: Work, scope: Scope) -> Iterator[Value]:
        """Products of an activated part of a linear and another part of it."""
        for value in distinct_values(scope):
            if value.op == "binary" and value.name == "*" and halves(work, value):
                yield value

    def fuse(self, work: Work, scope: Scope, value: Value) -> str:
        """Check and rewrite one gated MLP."""
        activated, up = halves(work, value) or (value, value)
        gate = activated.args[-1]
        split = work.parts[up]
        child = linear_of(scope, split.linear)
        if child is None:
            raise AssertionError("not a match")
        product = the_node(scope, value, "the gated product")
        call = single_call(scope, child, split.linear)
        starts = [split.parts[part].start for part in (gate, up)]
        halved = split.width.over(number(2))
        row = (None, None, Axis(halved, number(1))) if halved is not None else ()
        if (
            halved is None
            or len(split.parts) != 2
            or any(columns.axes != row for columns in split.parts.values())
            or set(starts) != {number(0), halved}
        ):
            raise Refused(
                "column-order", f"self.{child.name} is not divided in halves", call
            )
        owner = statements_of(scope.cls.method("forward"))[product]
        check_still(scope, call.args[0].value, owner)
        check_used_once(scope, product, gate, activated, up)
        act, act_statement, key = activation_of(scope, activated)
        size = halved.value(work.program.graph)
        text = text_at(scope, size, child.statement)
        if size is None or text is None:
            raise Refused("half-width", f"half of self.{child.name} has no name", call)
        is_gate_first = starts[0] == number(0)
        edits = work.edits_of(scope)
        passed = call.args[0].value
        edits.replace_text(
            product,
            self.name,
            f"self.{act}(self.{child.name}({code(passed)}))",
            [passed],
        )
        for part in (gate, up):
            node = the_node(scope, part, "a half") if part.op == "subscript" else None
            if isinstance(node, cst.Subscript):
                edits.replace_text(node, self.name, code(node.value))
        made = merged_layer(scope, child, child.name, size, text)
        edits.swap(child.statement, self.name, made)
        order = "" if is_gate_first else ", gate_first=False"
        edits.swap(
            act_statement, self.name, [f"self.{act} = act_and_mul({key}{order})"]
        )
        work.shards.append(Shard(scope.name, child.name, child.name, ""))
        halves_text = "gate | up" if is_gate_first else "up | gate"
        return f"{child.name} -> [{halves_text}]"


def halves(work: Work, product: Value) -> tuple[Value, Value] | None:
    """The activated part and the other one, in either order of the product."""
    for activated, up in (product.args, product.args[::-1]):
        split = work.parts.get(up)
        if (
            split is not None
            and activated.op == "call"
            and activated.args
            and work.parts.get(activated.args[-1]) is split
            and activated.args[-1] is not up
        ):
            return activated, up
    return None
