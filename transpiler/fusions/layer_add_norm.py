"""Layer add norm: the last addition of a layer and the next norm become one kernel.

The sum that a layer returns is read by the first norm of the next layer, which keeps it
as its residual, or by the model's final norm. So the layer hands on both operands,
and whoever comes next adds them: `y, s = norm(x, residual)`.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.names import assigned_names
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value
from transpiler.edits import Edits
from transpiler.fusions.add_norm import (
    check_adds,
    check_operands,
    check_reads,
    layer_input,
    loop_call,
    norm_width,
)
from transpiler.fusions.fusion import (
    Fusion,
    Work,
    assigned_name,
    block_of,
    distinct_values,
    forward_of,
    the_node,
    users_of,
)
from transpiler.fusions.sums import (
    Addition,
    NormCall,
    addition_of,
    is_copy,
    name_read,
    norm_call,
    small_of,
)
from transpiler.refusal import Refused
from transpiler.rewrite import is_docstring
from transpiler.tree import code

RESIDUAL = "residual"


class LayerAddNorm(Fusion):
    """Fuse the last addition of a layer with the norm that comes next.

    Refused when
        add-shape: the sum is not `name = a + b` or `return a + b` of a name.
        extra-use: the layer's input is read by more than its first norm and addition,
            or its output by more than the next layer and the final norm.
        norm-shape: a norm is not given one name in a statement of its forward.
        norm-alone: vLLM's layer for one of the norms adds no residual.
        loop-shape: the loop does more than call the layer.
        not-first: other statements stand before the layer's first norm.
        not-last: other statements stand between the layer's sum and its return.
        operands: as within a layer.
        residual-name: the input is not read as `residual`, free to be bound there.
    """

    name = "layer add norm"

    def find(self, work: Work, scope: Scope) -> Iterator[Value]:
        """Sums that a looped layer returns."""
        result = forward_of(scope).result
        is_sum = result is not None and result.op == "binary" and result.name == "+"
        if result is not None and is_sum and loop_call(work, scope) is not None:
            yield result

    def fuse(self, work: Work, scope: Scope, value: Value) -> str:
        """Check both ends of the layer and the model around it, then fuse."""
        found = loop_call(work, scope)
        if found is None:
            raise AssertionError("no loop")
        model, call = found
        carried = layer_input(scope, call)
        self.check_loop(model, call)
        if carried.op != "carried":
            raise Refused(
                "extra-use", "the loop changes the layer's input", model.cls.node
            )
        if users_of(scope, value):
            raise Refused("extra-use", "the layer's sum is read again", scope.cls.node)
        addition = addition_of(scope, value)
        users = users_of(scope, carried)
        norms = [user for user in users if work.is_norm(scope, user)]
        others = [user for user in users if user not in norms]
        where = scope.cls.method("forward")
        first = work.is_norm(scope, norms[0]) if norms else None
        if first is None or len(users) != 2 or [o.op for o in others] != ["binary"]:
            raise Refused("extra-use", f"the input is read {len(users)} times", where)
        check_operands(work, scope, value, first, scope.cls.node, is_local=False)
        last, final = self.final_norm(work, model, call)
        check_adds(work, final)
        if norm_width(work, scope, first) is not norm_width(work, model, final):
            raise Refused("operands", "the final norm is not as wide", final.call)
        around = model.cls.method("forward")
        if {RESIDUAL, "_"} & {
            *assigned_names(around),
            *forward_of(model).environments[around],
        }:
            raise Refused("residual-name", "the model has a name of it", around)
        block = block_of(scope)
        norm = norm_call(scope, norms[0])
        before = block[: block.index(norm.statement)]
        if not all(is_copy(scope, s, carried) or is_docstring(s) for s in before):
            raise Refused("not-first", "statements before the first norm", where)
        parameter = parameter_of(scope, carried)
        if RESIDUAL in forward_of(scope).environments[block[0]]:
            raise Refused("residual-name", "the layer has a parameter of it", where)
        name = RESIDUAL
        read = name_read(scope, others[0], carried)
        if read not in (name, parameter):
            raise Refused("residual-name", f"the input is read as {read}", where)
        if read == parameter:
            raise Refused("residual-name", "the input has no second name", where)
        start = block.index(norm.statement) + 1
        after = [s for s in block[start:] if is_copy(scope, s, carried)]
        rest = [s for s in block[start:] if s not in after]
        check_reads(work, scope, rest, carried, name, norm)
        tail = block[block.index(addition.statement) :]
        copies = tail[1:-1]
        if not is_return(tail[-1]) or not all(is_copy(scope, s, value) for s in copies):
            raise Refused("not-last", "statements after the layer's sum", where)
        edits = work.edits_of(scope)
        for copied in (*before, *after, *copies):
            edits.swap(copied, self.name, [])
        called = f"self.{first.name}"
        norm.put(
            edits,
            self.name,
            [
                f"if {name} is None:\n"
                f"    {name} = {parameter}\n"
                f"    {norm.name} = {called}({parameter})\n"
                f"else:\n"
                f"    {norm.name}, {name} = {called}({parameter}, {name})\n"
            ],
        )
        self.hand_on(edits, addition, tail[-1])
        summed = f"self.{final.name}({code(last.node.args[0].value)}, {name})"
        last.put(work.edits_of(model), self.name, [f"{last.name}, _ = {summed}"])
        work.with_residual[scope.name] = parameter
        return f"+ and the next {first.name} or {final.name}"

    def hand_on(self, edits: Edits, addition: Addition, end: cst.CSTNode) -> None:
        """Return branch and residual in the place of their sum."""
        if addition.statement is end:

            def pair(node: cst.BaseExpression) -> cst.BaseExpression:
                branch = code(addition.kept_side(node))
                return cst.parse_expression(f"{branch}, {addition.residual}")

            edits.replace(addition.node, self.name, pair, [addition.branch])
            return
        addition.remove(edits, self.name)
        returned = getattr(small_of(end), "value", None)
        if returned is not None:
            text = f"{addition.held}, {addition.residual}"
            edits.replace_text(returned, self.name, text)

    def check_loop(self, model: Scope, call: Value) -> None:
        """The loop does nothing but call the layer: `x = layer(…)`."""
        node = the_node(model, call, "the layer")
        for loop in model.loops:
            body = cst.ensure_type(loop, cst.For).body.body
            owner = body[0]
            if (
                len(body) == 1
                and assigned_name(owner) is not None
                and isinstance(owner, cst.SimpleStatementLine)
                and getattr(owner.body[0], "value", None) is node
            ):
                return
        raise Refused("loop-shape", "the loop does more than call the layer", node)

    def final_norm(
        self, work: Work, model: Scope, call: Value
    ) -> tuple[NormCall, Child]:
        """The norm after the loop, which must be the only reader of its result."""
        looped = [v for v in distinct_values(model) if v.op == "looped"]
        after = [v for v in looped if v.args[0] is call]
        if len(after) != 1:
            raise Refused(
                "extra-use", "the layer's result is not carried", model.cls.node
            )
        users = users_of(model, after[0])
        child = work.is_norm(model, users[0]) if len(users) == 1 else None
        if child is None:
            raise Refused("extra-use", "no one final norm reads it", model.cls.node)
        return norm_call(model, users[0]), child


def is_return(statement: cst.CSTNode) -> bool:
    """Whether a statement is `return …`."""
    return isinstance(statement, cst.SimpleStatementLine) and isinstance(
        statement.body[0], cst.Return
    )


def parameter_of(scope: Scope, value: Value) -> str:
    """The parameter of a forward that has this value."""
    first = forward_of(scope).environments[block_of(scope)[0]]
    for name, known in first.items():
        if known is value:
            return name
    raise Refused(
        "extra-use", "the layer does not get the loop's value", scope.cls.node
    )
