"""Operations: what may stay in a forward as upstream wrote it.

Flat tokens change the meaning of every operation that names an axis, and a write in
place may reach what another statement reads. So what is left as it was must be on a
list: module calls, element by element arithmetic, and what the lowerings made.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value
from transpiler.fusions.fusion import Work, forward_of
from transpiler.refusal import Refused

# Functions and methods that work on each element alone.
ELEMENTWISE = frozenset(
    {
        "abs",
        "clamp",
        "exp",
        "gelu",
        "neg",
        "relu",
        "rsqrt",
        "sigmoid",
        "silu",
        "softplus",
        "sqrt",
        "tanh",
        "to",
    }
)
ARITHMETIC = frozenset({"+", "-", "*", "/", "**", "//", "%"})
# Results that are no tensors: sizes, settings, callables.
SETTINGS = frozenset({"getattr", "slice"})


def check_stated(work: Work, scope: Scope) -> None:
    """Refuse a class whose forward writes in place or whose constructor does more.

    Raises:
        Refused: [writes-in-place]; [stateful] for a forward that sets an attribute;
            [parameter] for a parameter or tensor of a class
            that no table describes; [constructor-effect] for a call in the
            constructor that is made for its effect.
    """
    for _, node in forward_of(scope).writes:
        raise Refused("writes-in-place", "a value is written in place", node)
    for name, (_, node) in forward_of(scope).assigned.items():
        raise Refused("stateful", f"the forward sets self.{name}", node)
    for name, (value, node) in scope.init.assigned.items():
        if value.op == "call" and value.name.startswith("torch."):
            made = value.name.removeprefix("torch.")
            if name not in scope.children:
                raise Refused("parameter", f"self.{name} is a {made}", node)
    for line in scope.cls.method("__init__").body.body:
        if not isinstance(line, cst.SimpleStatementLine):
            raise Refused("constructor-effect", "a compound statement", line)
        for small in line.body:
            if isinstance(small, cst.Expr) and isinstance(small.value, cst.Call):
                text = cst.Module(body=[]).code_for_node(small.value)
                if not text.startswith("super().__init__(") and (
                    text != "self.post_init()"
                ):
                    raise Refused("constructor-effect", f"{text} is not known", line)


def check_kept(
    work: Work, scope: Scope, statements: list[cst.CSTNode], loop: str = ""
) -> None:
    """Refuse a statement that stays although its operations have no flat meaning.

    Args:
        work: The program.
        scope: The class.
        statements: Upstream statements that are left in the output.
        loop: Name of a loop's layer, whose calls are module calls.

    Raises:
        Refused: [operation] for an operation that is not on the list.
    """
    flow = forward_of(scope)
    for statement in statements:
        for node in kept_nodes(work, scope, statement):
            value = flow.values.get(node)
            if value is not None and not is_allowed(work, node, value):
                what = value.name or value.op
                raise Refused("operation", f"{what} is not followed", node)


def kept_nodes(work: Work, scope: Scope, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Nodes of a statement, less those that an edit takes out."""
    edits = work.edits_of(scope)
    if node in edits.expressions:
        for kept in edits.keeps.get(node, ()):
            yield from kept_nodes(work, scope, kept)
        return
    decided = forward_of(scope).tests.get(node)
    yield node
    if isinstance(node, cst.IfExp) and decided is not None:
        yield from kept_nodes(work, scope, node.body if decided else node.orelse)
        return
    for child in node.children:
        yield from kept_nodes(work, scope, child)


def is_allowed(work: Work, node: cst.CSTNode, value: Value) -> bool:
    """Whether one kept expression means the same on flat tokens."""
    if isinstance(node, cst.Call):
        if value.op == "module" or value.op in SETTINGS:
            return True
        if value.op == "method":
            return value.name in ELEMENTWISE or value.name == "view"
        if value.op == "call" and value.args and value.args[0].op == "subscript":
            return value.args[0].args[0].name == "activations.ACT2FN"
        last = value.name.rpartition(".")[2]
        return value.op == "const" or (
            value.name.startswith("torch.") and last in ELEMENTWISE
        )
    if isinstance(node, cst.Subscript) and value.op == "subscript":
        return value.args[0].name == "shape" or value.args[0].op == "attr"
    if isinstance(node, cst.BinaryOperation):
        return value.op == "const" or value.name in ARITHMETIC
    return True
