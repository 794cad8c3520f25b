"""Add norm: a residual addition and the norm that reads it become one kernel.

`s = residual + x; y = norm(s)` where `s` is also the next residual is what vLLM's
norms compute at once: `y, s = norm(x, residual)`, in the memory of `x` and `residual`.
Here the pair stands in one forward; `layer_add_norm` does the same across layers.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.program import Child, Scope, element_list
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import (
    Fusion,
    Work,
    block_of,
    distinct_values,
    forward_of,
    the_node,
    users_of,
)
from transpiler.fusions.reads import is_plain, readers, reads, roots
from transpiler.fusions.sums import (
    NormCall,
    addition_of,
    is_copy,
    name_read,
    norm_call,
)
from transpiler.fusions.widths import is_as_wide
from transpiler.lower.embedding import stream_width
from transpiler.refusal import Refused


class AddNorm(Fusion):
    """Fuse residual additions within a layer.

    Refused when
        add-shape: the sum is not `name = a + b` of a name and something else.
        extra-use: the sum is read by more than one norm and the next addition.
        norm-alone: vLLM's layer for the norm adds no residual.
        norm-shape: the norm is not given one name in a statement of the forward.
        not-adjacent: other statements stand between the sum and its norm.
        operand-read: an operand, which the fused norm overwrites, is read again.
        operands: they share memory, or differ in width or precision.
        residual-name: the sum is not read under one name, free to be bound there.
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
        child = work.is_norm(scope, norms[0])
        if child is None or len(users) != 2 or [o.op for o in others] != ["binary"]:
            raise Refused("extra-use", f"the sum is read {len(users)} times", where)
        block = block_of(scope)
        addition = addition_of(scope, value)
        norm = norm_call(scope, norms[0])
        start, stop = block.index(addition.statement), block.index(norm.statement)
        between = block[start + 1 : stop]
        if stop < start or not all(is_copy(scope, s, value) for s in between):
            raise Refused(
                "not-adjacent", "statements between the sum and its norm", where
            )
        after = [s for s in block[stop + 1 :] if is_copy(scope, s, value)]
        name = name_read(scope, others[0], value)
        check_operands(work, scope, value, child, where, is_local=True)
        rest = [s for s in block[stop + 1 :] if s not in after]
        check_reads(work, scope, rest, value, name, norm)
        edits = work.edits_of(scope)
        addition.remove(edits, self.name)
        for copied in (*between, *after):
            edits.swap(copied, self.name, [])
        called = f"self.{child.name}({addition.held}, {addition.residual})"
        norm.put(edits, self.name, [f"{norm.name}, {name} = {called}"])
        return f"+ and {child.name}"


def loop_call(work: Work, scope: Scope) -> tuple[Scope, Value] | None:
    """The call of this class in another class's loop, with that class."""
    for model in work.scopes():
        for value in distinct_values(model):
            if value.op == "module" and value.args[0].op == "element":
                child = model.children.get(element_list(value.args[0]) or "")
                if child is not None and child.kind == scope.name:
                    return model, value
    return None


def layer_input(scope: Scope, call: Value) -> Value:
    """What a layer is called with as its first operand."""
    name = scope.cls.method("forward").params.params[1].name.value
    given = call.args[1] if len(call.args) > 1 else call.keyword(name)
    if given is None:
        raise Refused("extra-use", "the layer has no first operand", scope.cls.node)
    return given


def check_operands(
    work: Work,
    scope: Scope,
    value: Value,
    norm: Child,
    where: cst.CSTNode,
    *,
    is_local: bool,
) -> None:
    """A sum that a fused norm may compute in the memory of its two operands.

    Args:
        work: The program.
        scope: The class.
        value: The sum.
        norm: A norm of the class that reads such a sum.
        where: Where to refuse.
        is_local: Whether the sum and its norm stand in one forward; the operands'
            memory must then be free after the sum, also for the caller that gave it.

    Raises:
        Refused: [norm-alone], [operands], [operand-read].
    """
    check_adds(work, norm)
    one, two = value.args
    if roots(work, one) & roots(work, two) or not (is_plain(one) and is_plain(two)):
        raise Refused("operands", "the operands may differ or share memory", where)
    width = norm_width(work, scope, norm)
    for operand in (one, two):
        if width is None or not is_as_wide(work, operand, width):
            raise Refused("operands", "an operand may not be as wide", where)
    given = forward_of(scope).environments[block_of(scope)[0]].values()
    memory = roots(work, one) | roots(work, two)
    if is_local and any(roots(work, known) & memory for known in given):
        found = loop_call(work, scope)
        if found is None or readers(work, found[0], layer_input(scope, found[1])) != [
            found[1]
        ]:
            raise Refused("operand-read", "the caller may read an operand", where)


def check_adds(work: Work, norm: Child) -> None:
    """vLLM's layer for a norm can add a residual before it.

    Raises:
        Refused: [norm-alone].
    """
    layer = work.norms[norm.kind].row
    if not layer.adds:
        raise Refused("norm-alone", f"{layer.layer} adds no residual", norm.call)


def norm_width(work: Work, scope: Scope, norm: Child) -> Value | None:
    """The width that a norm is made for, None where its class says it."""
    known = work.norms[norm.kind]
    if "hidden_size" not in known.places:
        return stream_width(work)
    made = known.width(norm)
    return scope.init.values[made] if made is not None else None


def check_reads(
    work: Work,
    scope: Scope,
    rest: list[cst.CSTNode],
    value: Value,
    name: str,
    norm: NormCall,
) -> None:
    """After a fused norm its sum has one name, and its operands are not read.

    Args:
        work: The program.
        scope: The class.
        rest: Statements after the norm that stay.
        value: The sum, or what stands for it.
        name: The name that the fused norm binds to it.
        norm: The norm's call.

    Raises:
        Refused: [residual-name], [operand-read].
    """
    flow = forward_of(scope)
    old = flow.environments[norm.statement].get(name)
    own = {norm.node.args[0].value} if norm.node.args else set()
    if not norm.is_whole:
        rest = [norm.statement, *rest]
        if norm.name == name:
            raise Refused("residual-name", f"{name} is the norm's too", norm.node)
    memory: frozenset[Value] = frozenset()
    if value.op == "binary":
        memory = roots(work, value.args[0]) | roots(work, value.args[1])
    for node in reads(scope, rest):
        if node in own:
            continue
        known = flow.values[node]
        if known is value:
            if node.value != name:
                raise Refused("residual-name", f"it is read as {node.value}", node)
        elif node.value == name and known is old:
            raise Refused("residual-name", f"{name} is still read", node)
        elif roots(work, known) & memory:
            raise Refused("operand-read", f"{node.value} is overwritten", node)
