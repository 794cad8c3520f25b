"""GLU: `act(gate(x)) * up(x)` becomes `act_and_mul(gate_up(x))`.

Gate and up read the same value, so one matmul of twice the width gives both; the
act-and-mul layer splits it and computes the same product. With an activation that
vLLM has no kernel for, `transpiler.runtime` computes exactly act times up.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value, is_const
from transpiler.fusions.fusion import (
    Fusion,
    Shard,
    Work,
    bias_of,
    check_still,
    distinct_values,
    forward_of,
    linear_of,
    single_call,
    size_of,
    statements_of,
    the_node,
    users_of,
)
from transpiler.fusions.linears import divisible, layer
from transpiler.fusions.moved import check_arguments
from transpiler.refusal import Refused
from transpiler.tree import code


class GLU(Fusion):
    """Merge the gate and up projections of a gated MLP into one matmul.

    Refused when
        different-input: gate and up read different values.
        unequal-shards: gate and up differ in output or input width.
        unequal-bias: one has a bias that the other has not.
        extra-use: a projection, or the activated gate, is used elsewhere too.
        input-rebound: the input's name means another value at the product.
        linear-arguments: a projection is made with more than sizes and bias.
        call-shape: a projection is called with more than one input.
        activation: the activation is not `ACT2FN[config.…]` held by one attribute.
        moved: a size means another value where the first of the two is made.
        name-taken: the class has an attribute `gate_up_proj` already.
    """

    name = "glu"

    def find(self, work: Work, scope: Scope) -> Iterator[Value]:
        """Products of an activated linear and a linear."""
        for value in distinct_values(scope):
            if value.op == "binary" and value.name == "*" and sides(scope, value):
                yield value

    def fuse(self, work: Work, scope: Scope, value: Value) -> str:
        """Check and merge one gated MLP."""
        found = sides(scope, value)
        if found is None:
            raise AssertionError("not a match")
        activated, up_value = found
        gate_value = activated.args[-1]
        gate, up = linear_of(scope, gate_value), linear_of(scope, up_value)
        if gate is None or up is None:
            raise AssertionError("not a match")
        product = the_node(scope, value, "the gated product")
        gate_call = single_call(scope, gate, gate_value)
        up_call = single_call(scope, up, up_value)
        if gate_value.args[1] is not up_value.args[1]:
            raise Refused(
                "different-input",
                f"self.{gate.name} and self.{up.name} read different values",
                up_call,
            )
        owner = statements_of(scope.cls.method("forward"))[product]
        check_still(scope, gate_call.args[0].value, owner)
        for position, side in ((1, "output"), (0, "input")):
            if size_of(scope, gate, position)[0] is not size_of(scope, up, position)[0]:
                raise Refused(
                    "unequal-shards", f"gate and up differ in {side} width", up.call
                )
        bias = bias_of(scope, gate)[0]
        other = bias_of(scope, up)[0]
        if bias is not other and not (
            bias.op == "const" and is_const(other, bias.constant)
        ):
            raise Refused("unequal-bias", "gate and up differ in bias", up.call)
        check_used_once(scope, product, gate_value, activated, up_value)
        act, act_statement, key = activation_of(scope, activated)
        if "gate_up_proj" in scope.children or "gate_up_proj" in scope.init.assigned:
            raise Refused("name-taken", "self.gate_up_proj exists", scope.cls.node)
        first, second = sorted(
            (gate, up), key=lambda c: list(scope.children).index(c.name)
        )
        check_arguments(gate, scope, first.statement)
        edits = work.edits_of(scope)
        size, size_text = size_of(scope, gate, 1)
        passed = gate_call.args[0].value
        text = f"self.{act}(self.gate_up_proj({code(passed)}))"
        edits.replace_text(product, self.name, text, [passed])
        edits.swap(
            first.statement,
            self.name,
            merged_layer(scope, gate, "gate_up_proj", size, size_text),
        )
        edits.swap(second.statement, self.name, [])
        edits.swap(act_statement, self.name, [f"self.{act} = act_and_mul({key})"])
        work.shards.append(Shard(scope.name, gate.name, "gate_up_proj", "0"))
        work.shards.append(Shard(scope.name, up.name, "gate_up_proj", "1"))
        return f"{gate.name} + {up.name} -> gate_up_proj"


def check_used_once(
    scope: Scope, product: cst.CSTNode, gate: Value, activated: Value, up: Value
) -> None:
    """Gate, activated gate and up are read by the product alone.

    Raises:
        Refused: [extra-use].
    """
    for value, what in ((gate, "gate"), (activated, "gate"), (up, "up")):
        if len(users_of(scope, value)) != 1:
            raise Refused("extra-use", f"the {what} is used elsewhere too", product)


def merged_layer(
    scope: Scope, linear: Child, name: str, size: Value, text: str
) -> list[str]:
    """Statements that make the layer of gate and up, each of a size, as a linear is."""
    width, bias = size_of(scope, linear, 0)[1], bias_of(scope, linear)[1]
    sizes = f"[{text}, {text}]"
    kind = "MergedColumnParallelLinear"
    made = layer(kind, name, width, sizes, f"bias={bias}")
    return [divisible(size, text), made]


def sides(scope: Scope, product: Value) -> tuple[Value, Value] | None:
    """The activated gate and the up projection of a product, in either order."""
    for activated, up in (product.args, product.args[::-1]):
        if (
            activated.op == "call"
            and activated.args
            and linear_of(scope, activated.args[-1]) is not None
            and linear_of(scope, up) is not None
        ):
            return activated, up
    return None


def activation_of(scope: Scope, activated: Value) -> tuple[str, cst.CSTNode, str]:
    """Attribute that holds the activation, its statement, and the text of its key.

    Raises:
        Refused: [activation] when it is not `self.<act> = ACT2FN[<key>]`, used once.
    """
    function = activated.args[0]
    call = the_node(scope, activated, "the activated gate")
    if (
        len(activated.args) != 2
        or activated.keywords
        or function.op != "subscript"
        or function.args[0].name != "activations.ACT2FN"
    ):
        raise Refused("activation", "the activation is not ACT2FN[...]", call)
    held = [
        name for name, (value, _) in scope.init.assigned.items() if value is function
    ]
    if len(held) != 1 or len(forward_of(scope).nodes_of(function)) != 1:
        raise Refused("activation", "the activation has more than one use", call)
    target = scope.init.assigned[held[0]][1]
    statement = statements_of(scope.cls.method("__init__"))[target]
    (key,) = [
        node
        for node in scope.init.nodes_of(function.args[1])
        if statements_of(scope.cls.method("__init__")).get(node) is statement
    ]
    return held[0], statement, code(key)
