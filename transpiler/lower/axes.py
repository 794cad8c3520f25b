"""Axes: which axes a tensor of upstream has, in order.

Upstream computes on `[batch, sequence, …]`; vLLM on flat `[tokens, …]`. To drop a
transpose or keep a view, the lowering must know what each axis is. An axis is
`BATCH`, `SEQUENCE`, `HEADS`, or the value of its size.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from transpiler.analyse.module import EMBEDDING
from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value, is_const
from transpiler.refusal import Refused

if TYPE_CHECKING:
    from transpiler.fusions.fusion import Work

BATCH = Value("axis", "batch")
SEQUENCE = Value("axis", "sequence")
HEADS = Value("axis", "heads")
WIDTH = Value("axis", "width")
TOKENS = Value("axis", "tokens")  # batch and sequence as one
Shape = tuple[Value, ...]
TENSOR_WORDS = "carried item looped method module param positions tokens?"
TENSORS = frozenset(TENSOR_WORDS.split())


@dataclass
class Axes:
    """Axes of the values of one class's forward."""

    work: Work
    scope: Scope
    known: dict[Value, Shape] = field(default_factory=dict)

    def of(self, value: Value) -> Shape:
        """Axes of a tensor.

        Raises:
            Refused: [layout] for an operation whose axes are not followed.
        """
        if value not in self.known:
            self.known[value] = self.find(value)
        return self.known[value]

    def refuse(self, what: str, value: Value) -> Refused:
        """A refusal at the node that computes a value, in this class or a caller's."""
        for scope in (self.scope, *self.work.scopes()):
            nodes = scope.forward.nodes_of(value) if scope.forward is not None else []
            if nodes:
                place = -1 if scope is self.scope else 0
                return Refused("layout", what, nodes[place])
        return Refused("layout", what, self.scope.cls.node)

    def find(self, value: Value) -> Shape:
        """Axes by kind of operation."""
        if value in self.work.parts:
            columns = self.work.parts[value].parts[value]
            return columns.shape(self.work.program.graph)
        if value in self.work.turned:
            return self.of(self.work.turned[value])
        match value.op:
            case "module":
                return self.of_module(value)
            case "param":
                return (BATCH, SEQUENCE, WIDTH)
            case "positions" | "tokens?":
                return (BATCH, SEQUENCE)
            case "carried" | "looped":
                return self.of(value.args[0])
            case "choice":
                return self.alike(value, list(value.args[1:]))
            case "method":
                return self.of_method(value)
            case "item":
                return self.of_item(value)
            case "binary" if value.name in {"+", "-", "*", "/", "**"}:
                return self.alike(value, [a for a in value.args if self.is_tensor(a)])
            case "call" if value.args and self.is_tensor(value.args[-1]):
                return self.of(value.args[-1])
        raise self.refuse(f"the axes of {value.op} {value.name} are not known", value)

    def alike(self, value: Value, operands: list[Value]) -> Shape:
        """Axes of an operation on tensors of the same axes; widths may differ."""
        shapes = [self.of(operand) for operand in operands]
        if not shapes or len({shape[:-1] for shape in shapes}) != 1:
            raise self.refuse("operands of different axes", value)
        return shapes[0]

    def is_tensor(self, value: Value) -> bool:
        """Whether a value is a tensor rather than a number, size or config value."""
        if value in self.work.parts:
            return True
        if value.op == "item" and value.args[0].op == "attr":
            return value.args[0].name != "shape"
        if value.op in TENSORS:
            return True
        if value.op == "choice":
            return any(self.is_tensor(side) for side in value.args[1:])
        if value.op in {"binary", "call"}:
            return any(self.is_tensor(arg) for arg in value.args)
        return False

    def of_module(self, value: Value) -> Shape:
        """A module keeps all axes but the last."""
        given = [*value.args[1:2], value.keyword("hidden_states")]
        if len(value.args) + len(value.keywords) == 2:
            given = [*value.args[1:], *(v for _, v in value.keywords)]
        operand = given[0]
        if operand is None:
            raise self.refuse("a module call without operand", value)
        owner = value.args[0].args[0].name if value.args[0].op == "child" else ""
        scope = self.work.program.scopes.get(owner)
        child = scope.children.get(value.args[0].name) if scope else None
        cls = self.work.program.module.classes.get(child.kind) if child else None
        if child is not None and (
            child.kind == EMBEDDING or (cls is not None and cls.library_base)
        ):
            return (BATCH, SEQUENCE, WIDTH)
        before = self.of(operand)
        if value.args[0].op == "base":
            return (*before, WIDTH)
        if child is not None and child.kind in self.work.norms:
            return before
        return (*before[:-1], WIDTH)

    def of_method(self, value: Value) -> Shape:
        """Views, transposes and elementwise methods."""
        before = self.of(value.args[0])
        if value.name == "view":
            return self.of_view(value, before)
        if value.name == "transpose":
            axes = list(before)
            one, two = (self.number(arg, value) for arg in value.args[1:3])
            axes[one], axes[two] = axes[two], axes[one]
            return tuple(axes)
        if value.name in {"to", "clamp", "tanh", "sigmoid", "neg", "pow"}:
            return before
        raise self.refuse(f".{value.name}() is not followed", value)

    def number(self, value: Value, whole: Value) -> int:
        """An axis number that must be a constant."""
        if value.op != "const" or not isinstance(value.constant, int):
            raise self.refuse("an axis that is not a constant", whole)
        return value.constant

    def of_view(self, value: Value, before: Shape) -> Shape:
        """`view(*x.shape[:-1], n, size)` splits the last axis, `(…, -1)` joins."""
        if self.is_joined(value, before):
            return (TOKENS, *before[2:])
        if len(value.args) == 2 and self.is_shape(value.args[1]):
            shape = self.of(value.args[1].args[0])
            if shape in {before, (BATCH, SEQUENCE, *before[1:])}:
                return shape
        rest = self.after_tokens(value.args[1:])
        if rest is None:
            raise self.refuse("a view that does not start with *x.shape[:-1]", value)
        flat = before[:2] == (BATCH, SEQUENCE)
        if len(rest) == 2 and len(before) == 3 and flat:
            return (*before[:-1], HEADS, rest[1])
        if len(rest) == 1 and is_const(rest[0], -1) and len(before) == 4 and flat:
            return (*before[:2], WIDTH)
        raise self.refuse("a view of another shape", value)

    def is_joined(self, value: Value, before: Shape) -> bool:
        """Whether a view of `[batch, sequence, width]` is `x.view(-1, x.shape[-1])`."""
        width = value.args[-1]
        return (
            len(value.args) == 3
            and is_const(value.args[1], -1)
            and before[:2] == (BATCH, SEQUENCE)
            and len(before) == 3
            and width.op == "subscript"
            and is_const(width.args[1], -1)
            and self.is_shape(width.args[0])
            and width.args[0].args[0] is value.args[0]
        )

    def after_tokens(self, shape: tuple[Value, ...]) -> tuple[Value, ...] | None:
        """What follows batch and sequence in a view's sizes, None if they do not lead.

        They are `*x.shape[:-1]` or `*x.shape[:2]`, or two sizes `batch, sequence`.
        """
        if shape and shape[0].op == "starred":
            return shape[1:] if self.is_leading(shape[0].args[0]) else None
        if len(shape) > 2 and self.is_measure(shape[0], 0):
            is_left = is_const(shape[1], -1) and not any(
                is_const(size, -1) for size in shape[2:]
            )
            return shape[2:] if is_left or self.is_measure(shape[1], 1) else None
        return None

    def is_leading(self, value: Value) -> bool:
        """Whether a value is batch and sequence of a `[batch, sequence, …]` tensor."""
        if value.op != "subscript" or not self.is_shape(value.args[0]):
            return False
        bounds = value.args[1]
        ends = {3: (-1, 2), 4: (-2, 2)}[len(self.of(value.args[0].args[0]))]
        return (
            bounds.op == "slice"
            and is_const(bounds.args[0], None)
            and any(is_const(bounds.args[1], end) for end in ends)
            and is_const(bounds.args[2], None)
        )

    def is_measure(self, value: Value, place: int) -> bool:
        """Whether a value is batch (0) or sequence (1), taken from a tensor's shape."""
        if value.op == "item":
            return value.name == str(place) and self.is_shape(value.args[0])
        return (
            value.op == "subscript"
            and is_const(value.args[1], place)
            and self.is_shape(value.args[0])
        )

    def is_shape(self, value: Value) -> bool:
        """Whether a value is the shape of a tensor that starts with batch, sequence."""
        if value.op != "attr" or value.name != "shape":
            return False
        shape = self.of(value.args[0])
        return shape[:2] == (BATCH, SEQUENCE) and len(shape) in {3, 4}

    def of_item(self, value: Value) -> Shape:
        """Results of the apply function, the interface and other modules."""
        call = value.args[0]
        if call.op == "call" and call.name in self.work.applies:
            return self.of(call.args[int(value.name)])
        if call.op == "call" and call.args and call.args[0].op == "call":
            if value.name != "0":
                raise self.refuse("attention weights are read", value)
            query = self.of(call.args[2])
            return (query[0], query[2], query[1], query[3])
        if call.op == "module":
            return (BATCH, SEQUENCE, WIDTH)
        raise self.refuse("an item of an unknown result", value)
