"""Reads: who else sees the memory that a fused layer writes, or a name that it binds.

vLLM's fused norms and rotary embeddings work in place: after the call their operands
hold the results. So what they are given may not be read again, under any name or view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import (
    Work,
    distinct_values,
    forward_of,
)
from transpiler.tree import plain_names

# Tests, and whether they hold.
Known = tuple[tuple[Value, bool], ...]
# Operations whose result may be the same memory.
VIEW_WORDS = """
    chunk expand flatten movedim narrow permute select split squeeze t to transpose
    type_as unbind unflatten unsqueeze view
"""
VIEWS = frozenset(VIEW_WORDS.split())
MEASURES = frozenset({"device", "dtype", "shape"})


def roots(work: Work, value: Value, known: Known = ()) -> frozenset[Value]:
    """The values whose memory a value may share, views looked through.

    A module may return what it was given, as may an activation: one is the identity.
    The parts of a divided linear share nothing.

    Args:
        work: The program.
        value: The value.
        known: Tests whose outcome is known where the value is read.
    """
    if value in work.parts:
        return frozenset({value})
    if value.op == "choice":
        sides = [
            side
            for side, sense in zip(value.args[1:], (True, False), strict=True)
            if (value.args[0], not sense) not in known
        ]
        return frozenset().union(*(roots(work, side, known) for side in sides))
    if value.op in {"tuple", "list"}:
        return frozenset().union(*(roots(work, part, known) for part in value.args))
    is_view = (
        (value.op == "method" and value.name in VIEWS)
        or (value.op == "attr" and value.name not in MEASURES)
        or value.op in {"item", "subscript", "starred"}
    )
    if is_view and value.args:
        return roots(work, value.args[0], known)
    own = frozenset({value})
    inner = work.program.results.get(value)
    if value.op == "call" and value.args and value.args[0].op == "subscript":
        return own.union(*(roots(work, operand, known) for operand in value.args[1:]))
    return own | roots(work, inner, known) if inner is not None else own


def readers(work: Work, scope: Scope, value: Value, known: Known = ()) -> list[Value]:
    """Operations of a forward that read a value's memory, views of it aside.

    What the forward returns is read by its caller.
    """
    memory = roots(work, value, known)
    found: list[Value] = []
    for user in distinct_values(scope):
        operands = [*user.args, *(operand for _, operand in user.keywords)]
        measured = user.op == "attr" and user.name in MEASURES
        if roots(work, user, known) & memory or measured or user.op == "choice":
            continue
        if any(roots(work, operand, known) & memory for operand in operands):
            found.append(user)
    result = forward_of(scope).result
    if result is not None and roots(work, result, known) & memory:
        found.append(result)
    return found


def known_at(scope: Scope, node: cst.CSTNode) -> Known:
    """Tests whose outcome is known where a call is made, `not` taken off."""
    return tuple(
        (test.args[0], not sense) if test.name == "not" else (test, sense)
        for test, sense in forward_of(scope).guards[node]
    )


def reads(scope: Scope, statements: Sequence[cst.CSTNode]) -> Iterator[cst.Name]:
    """Names that statements read."""
    flow = forward_of(scope)
    for statement in statements:
        for node in plain_names(statement):
            if node in flow.values:
                yield node


def is_plain(value: Value) -> bool:
    """Whether a value is a tensor in the precision of the activations."""
    if value.op in {"carried", "looped", "module", "param"}:
        return True
    if value.op == "item":
        return is_plain(value.args[0])
    if value.op == "choice":
        return all(is_plain(side) for side in value.args[1:])
    if value.op == "binary" and value.name in {"+", "-", "*", "/"}:
        scalars = {"attr", "const", "getattr"}
        tensors = [arg for arg in value.args if arg.op not in scalars]
        return bool(tensors) and all(is_plain(arg) for arg in tensors)
    return False
