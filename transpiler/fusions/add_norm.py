"""Add norm: a residual addition and the norm that reads it become one kernel.

`s = residual + x; y = norm(s)` where `s` is also the next residual is what vLLM's
norms compute at once: `y, s = norm(x, residual)`. Within a layer the pair stands in
one forward; across the layer boundary the last addition of a layer is read by the
first norm of the next layer and by the model's final norm, so the layer hands on
both operands and whoever comes next adds them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import libcst as cst

from transpiler.analyse.program import Child, Scope, element_list
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import (
    Fusion,
    Work,
    assigned_name,
    distinct_values,
    forward_of,
    the_node,
    users_of,
)
from transpiler.refusal import Refused

RESIDUAL = "residual"


@dataclass(frozen=True)
class Addition:
    """`name = a + b` with two plain names, as a statement of a forward."""

    value: Value
    statement: cst.CSTNode
    residual: str
    branch: str


class AddNorm(Fusion):
    """Fuse residual additions within a layer.

    Refused when
        add-shape: the sum is not a statement `name = a + b` of two names.
        extra-use: the sum is read by more than one norm and the next addition.
        norm-shape: the norm's call is not a statement `name = self.norm(sum)`.
        not-adjacent: other statements stand between the sum and its norm.
        residual-name: the next addition does not read the sum under one name.
    """

    name = "add norm"

    def find(self, work: Work, scope: Scope) -> Iterator[Value]:
        """Sums that a norm of the class reads."""
        for value in distinct_values(scope):
            if value.op == "binary" and value.name == "+":
                users = users_of(scope, value)
                if any(work.is_norm(scope, user) for user in users):
                    yield value

    def fuse(self, work: Work, scope: Scope, value: Value) -> str:
        """Check and fuse one sum with its norm."""
        users = users_of(scope, value)
        norms = [user for user in users if work.is_norm(scope, user)]
        others = [user for user in users if user not in norms]
        where = the_node(scope, value, "the sum")
        if len(norms) != 1 or len(others) != 1 or others[0].op != "binary":
            raise Refused("extra-use", f"the sum is read {len(users)} times", where)
        block = block_of(scope)
        addition = addition_of(scope, value)
        norm_at, norm_name = norm_statement(scope, norms[0])
        start, stop = block.index(addition.statement), block.index(norm_at)
        between = block[start + 1 : stop]
        if stop < start or not all(is_copy(scope, s, value) for s in between):
            raise Refused(
                "not-adjacent", "statements between the sum and its norm", where
            )
        after = [s for s in block[stop + 1 :] if is_copy(scope, s, value)]
        name = name_read(scope, others[0], value)
        child = work.is_norm(scope, norms[0])
        edits = work.edits_of(scope)
        edits.swap(addition.statement, self.name, [])
        for copied in (*between, *after):
            edits.swap(copied, self.name, [])
        edits.swap(
            norm_at,
            self.name,
            [
                f"{norm_name}, {name} = self.{child.name if child else ''}"
                f"({addition.branch}, {addition.residual})"
            ],
        )
        return f"+ and {child.name if child else ''}"


class LayerAddNorm(Fusion):
    """Fuse the last addition of a layer with the norm that comes next.

    Refused when
        add-shape: the sum is not a statement `name = a + b` of two names.
        extra-use: the layer's input is read by more than its first norm and addition,
            or its output by more than the next layer and the final norm.
        norm-shape: a norm's call is not a statement `name = self.norm(input)`.
        not-first: other statements stand before the layer's first norm.
        residual-name: the input is not read under one name by the first addition.
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
        carried = call.args[1]
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
        if len(norms) != 1 or len(others) != 1 or others[0].op != "binary":
            raise Refused("extra-use", f"the input is read {len(users)} times", where)
        final_at, final_name, final = self.final_norm(work, model, call)
        handed = argument_of(model, final_at)
        block = block_of(scope)
        norm_at, norm_name = norm_statement(scope, norms[0])
        before = block[: block.index(norm_at)]
        if not all(is_copy(scope, s, carried) for s in before):
            raise Refused("not-first", "statements before the first norm", where)
        parameter = parameter_of(scope, carried)
        name = RESIDUAL
        read = name_read(scope, others[0], carried)
        if read not in (name, parameter):
            raise Refused("residual-name", f"the input is read as {read}", where)
        if read == parameter:
            raise Refused("residual-name", "the input has no second name", where)
        first = work.is_norm(scope, norms[0])
        edits = work.edits_of(scope)
        for copied in before:
            edits.swap(copied, self.name, [])
        norm = f"self.{first.name if first else ''}"
        edits.swap(
            norm_at,
            self.name,
            [
                f"if {name} is None:\n"
                f"    {name} = {parameter}\n"
                f"    {norm_name} = {norm}({parameter})\n"
                f"else:\n"
                f"    {norm_name}, {name} = {norm}({parameter}, {name})\n"
            ],
        )
        edits.swap(addition.statement, self.name, [])
        returned = [
            node
            for node in forward_of(scope).nodes_of(value)
            if isinstance(node, cst.Name)
        ][-1]
        edits.replace_text(
            returned, self.name, f"{addition.branch}, {addition.residual}"
        )
        work.edits_of(model).swap(
            final_at,
            self.name,
            [f"{final_name}, _ = self.{final.name}({handed}, {name})"],
        )
        work.with_residual[scope.name] = parameter
        return f"+ and the next {first.name if first else ''} or {final.name}"

    def final_norm(
        self, work: Work, model: Scope, call: Value
    ) -> tuple[cst.CSTNode, str, Child]:
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
        statement, name = norm_statement(model, users[0])
        return statement, name, child


def loop_call(work: Work, scope: Scope) -> tuple[Scope, Value] | None:
    """The call of this class in another class's loop, with that class."""
    for model in work.scopes():
        for value in distinct_values(model):
            if value.op == "module" and value.args[0].op == "element":
                child = model.children.get(element_list(value.args[0]) or "")
                if child is not None and child.kind == scope.name:
                    return model, value
    return None


def block_of(scope: Scope) -> list[cst.CSTNode]:
    """The statements of a forward."""
    return list(scope.cls.method("forward").body.body)


def addition_of(scope: Scope, value: Value) -> Addition:
    """A sum as a statement `name = a + b`, the residual being the older operand.

    Raises:
        Refused: [add-shape] when it is not such a statement.
    """
    node = the_node(scope, value, "the sum")
    for statement in block_of(scope):
        if (
            assigned_name(statement) is not None
            and isinstance(node, cst.BinaryOperation)
            and isinstance(node.left, cst.Name)
            and isinstance(node.right, cst.Name)
            and node in [getattr(s, "value", None) for s in statement.body]  # type: ignore[attr-defined]
        ):
            left, right = node.left.value, node.right.value
            if forward_of(scope).values[node.right] in older(scope, value):
                left, right = right, left
            return Addition(value, statement, left, right)
    raise Refused("add-shape", "the sum is not `name = a + b`", node)


def older(scope: Scope, value: Value) -> list[Value]:
    """Operands of a sum that other operands are computed from: the residual."""
    one, two = value.args
    return [a for a, b in ((one, two), (two, one)) if a in list(b.walk())]


def norm_statement(scope: Scope, value: Value) -> tuple[cst.CSTNode, str]:
    """The statement `name = self.norm(x)` of a norm's call, and the name."""
    node = the_node(scope, value, "the norm")
    for statement in block_of(scope):
        name = assigned_name(statement)
        if name is not None and node in [
            getattr(s, "value", None) for s in statement.body  # type: ignore[attr-defined]
        ]:
            return statement, name
    raise Refused("norm-shape", "the norm's result is not assigned to a name", node)


def argument_of(scope: Scope, statement: cst.CSTNode) -> str:
    """The name that a norm's statement `name = self.norm(x)` passes.

    Raises:
        Refused: [norm-shape] when it passes anything but one name.
    """
    small = cst.ensure_type(statement, cst.SimpleStatementLine).body[0]
    call = small.value if isinstance(small, cst.Assign | cst.AnnAssign) else None
    if isinstance(call, cst.Call) and len(call.args) == 1:
        passed = call.args[0].value
        if isinstance(passed, cst.Name):
            return passed.value
    raise Refused("norm-shape", "the norm is not given one name", statement)


def is_copy(scope: Scope, statement: cst.CSTNode, value: Value) -> bool:
    """Whether a statement is `name = other` of that value."""
    if assigned_name(statement) is None or not isinstance(
        statement, cst.SimpleStatementLine
    ):
        return False
    source = getattr(statement.body[0], "value", None)
    return (
        isinstance(source, cst.Name) and forward_of(scope).values.get(source) is value
    )


def name_read(scope: Scope, user: Value, value: Value) -> str:
    """The name under which an addition reads a value.

    Raises:
        Refused: [residual-name] when it is no plain name.
    """
    node = the_node(scope, user, "the addition")
    if isinstance(node, cst.BinaryOperation):
        for side in (node.left, node.right):
            if isinstance(side, cst.Name) and forward_of(scope).values[side] is value:
                return side.value
    raise Refused("residual-name", "the sum is not read under a name", node)


def parameter_of(scope: Scope, value: Value) -> str:
    """The parameter of a forward that has this value."""
    first = forward_of(scope).environments[block_of(scope)[0]]
    for name, known in first.items():
        if known is value:
            return name
    raise Refused(
        "extra-use", "the layer does not get the loop's value", scope.cls.node
    )
