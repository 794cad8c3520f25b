"""Widths: how wide the last axis of a tensor is, as a value of the constructors.

A sum may broadcast an operand of width 1; vLLM's fused norms, which compute in the
memory of their operands, may not.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import LINEAR, Work, size_of
from transpiler.refusal import Refused

EMBEDDING = "torch.nn.Embedding"


def width_of(work: Work, value: Value) -> Value | None:
    """The width of a tensor, None when nothing says it.

    Results of modules are followed into their forwards, other operations through
    their operands.
    """
    if value.op == "module" and value.args[0].op == "child":
        owner = work.scope(value.args[0].args[0].name)
        return width_after(work, owner, owner.children[value.args[0].name], value)
    if value.op == "item" and value.args[0].op == "module":
        return width_of(work, value.args[0])
    operands = value.args[1:] if value.op == "choice" else value.args
    found = {width_of(work, operand) for operand in operands} - {None}
    return found.pop() if len(found) == 1 else None


def width_after(work: Work, owner: Scope, child: Child, call: Value) -> Value | None:
    """The width of what a module gives."""
    if child.kind == LINEAR:
        return size_of(owner, child, 1)[0]
    if child.kind == EMBEDDING:
        node = child.argument(1, "embedding_dim")
        return owner.init.values[node] if node is not None else None
    if child.kind in work.norms:
        return width_of(work, call.args[1]) if len(call.args) > 1 else None
    inner = work.program.scopes.get(child.kind)
    result = inner.forward.result if inner and inner.forward else None
    if result is not None and result.op in {"tuple", "list"}:
        result = result.args[0]
    return width_of(work, result) if result is not None else None


def check_widths(
    work: Work, scope: Scope, value: Value, norm: Child, where: cst.CSTNode
) -> None:
    """No operand of a sum is known to be of another width than the norm that reads it.

    Raises:
        Refused: [operands].
    """
    name = work.norms[norm.kind][1]["hidden_size"].name
    width = norm.argument(0, name)
    for operand in value.args:
        ours = width_of(work, operand)
        if ours and (width is None or scope.init.values[width] is not ours):
            raise Refused("operands", "an operand is not as wide", where)
