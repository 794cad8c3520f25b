"""Widths: how wide a tensor of activations is, followed into the modules that make it.

A fused norm works on operands of one width; upstream's `+` would broadcast.
"""

from __future__ import annotations

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import Work, child_of, linear_of, size_of

SCALARS = frozenset({"attr", "const", "getattr"})


def is_as_wide(work: Work, value: Value, width: Value) -> bool:
    """Whether all that makes a value says this width; a forward's input says none.

    Args:
        work: The program.
        value: A tensor of activations.
        width: The wanted size of its last axis.
    """
    if value.op in {"carried", "param"}:
        return True
    if value.op == "item" and value.args[0].op == "module":
        return is_made_so(work, value.args[0], int(value.name), width)
    if value.op == "module":
        return is_made_so(work, value, None, width)
    if value.op in {"binary", "choice", "looped"}:
        sides = value.args[1:] if value.op == "choice" else value.args
        tensors = [side for side in sides if side.op not in SCALARS]
        return all(is_as_wide(work, side, width) for side in tensors)
    return False


def is_made_so(work: Work, call: Value, index: int | None, width: Value) -> bool:
    """Whether a result of a module call has this width.

    Args:
        work: The program.
        call: The call.
        index: Which of several results; None for the only one.
        width: The wanted size of the last axis.
    """
    scope = owner_of(work, call)
    child = child_of(scope, call) if scope is not None else None
    if scope is None or child is None:
        return False
    if linear_of(scope, call) is not None:
        return size_of(scope, child, 1)[0] is width
    if child.kind in work.norms:
        return len(call.args) == 2 and is_as_wide(work, call.args[1], width)
    inner = work.program.scope_of(child)
    result = inner.forward.result if inner is not None and inner.forward else None
    if inner is None or result is None:
        return False
    if index is not None:
        if result.op != "tuple" or index >= len(result.args):
            return False
        result = result.args[index]
    return is_as_wide(work, result, width)


def owner_of(work: Work, call: Value) -> Scope | None:
    """The class whose child a module call calls."""
    called = call.args[0]
    return work.program.scopes.get(called.args[0].name) if called.args else None
