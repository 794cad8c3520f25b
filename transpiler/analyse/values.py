"""Values: what an expression of the source computes, as a graph of pure terms.

Two expressions have the same `Value` (one object) exactly when they are the same
operation on the same values, so "the same input" is an identity check: rebinding
a name gives another value, and a write in place gives every alias a new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

COMMUTATIVE = frozenset({"+", "*"})


@dataclass(frozen=True, eq=False, slots=True)
class Value:
    """One operation of the graph.

    Attributes:
        op: Kind: `param`, `const`, `self`, `config`, `child`, `attr`, `call`,
            `method`, `module`, `binary`, `compare`, `unary`, `bool`, `choice`,
            `tuple`, `list`, `dict`, `item`, `subscript`, `slice`, `starred`, `name`,
            `parameter`, `carried`, `result`, `written`.
        name: Operator, attribute, function, method or parameter name.
        args: Operands in order.
        keywords: Keyword operands, sorted by name.
        constant: The Python value of a `const`.
    """

    op: str
    name: str = ""
    args: tuple[Value, ...] = ()
    keywords: tuple[tuple[str, Value], ...] = ()
    constant: object = None

    def __repr__(self) -> str:
        inner = [repr(arg) for arg in self.args]
        inner += [f"{key}={value!r}" for key, value in self.keywords]
        if self.op == "const":
            return repr(self.constant)
        return f"{self.op}:{self.name}({', '.join(inner)})"

    def keyword(self, name: str) -> Value | None:
        """The keyword operand of that name."""
        return dict(self.keywords).get(name)

    def walk(self) -> Iterator[Value]:
        """This value and all it is computed from, each once."""
        seen: set[Value] = set()
        stack = [self]
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            yield value
            stack.extend(value.args)
            stack.extend(operand for _, operand in value.keywords)


Key = tuple[
    str, str, tuple[Value, ...], tuple[tuple[str, Value], ...], str, type[object]
]


@dataclass
class Graph:
    """Makes values, the same object for the same operation on the same operands."""

    known: dict[Key, Value] = field(default_factory=dict)
    fresh_count: int = 0

    def make(
        self,
        op: str,
        name: str = "",
        args: tuple[Value, ...] = (),
        keywords: tuple[tuple[str, Value], ...] = (),
        constant: object = None,
    ) -> Value:
        """The value of an operation."""
        keywords = tuple(sorted(keywords, key=lambda pair: pair[0]))
        key = (op, name, args, keywords, repr(constant), type(constant))
        found = self.known.get(key)
        if found is None:
            found = self.known[key] = Value(op, name, args, keywords, constant)
        return found

    def const(self, constant: object) -> Value:
        """The value of a Python constant."""
        return self.make("const", constant=constant)

    def replaced(self, value: Value, old: Value, new: Value) -> Value:
        """A value with another one in the place of an operand, at any depth."""
        if value is old:
            return new
        args = tuple(self.replaced(arg, old, new) for arg in value.args)
        keywords = tuple((k, self.replaced(v, old, new)) for k, v in value.keywords)
        if args == value.args and keywords == value.keywords:
            return value
        return self.make(value.op, value.name, args, keywords, value.constant)

    def fresh(self, op: str, name: str, *args: Value) -> Value:
        """A value equal to no other: unknown, or changed by a write in place."""
        self.fresh_count += 1
        return self.make(op, name, args, constant=self.fresh_count)


def is_const(value: Value | None, constant: object) -> bool:
    """Whether a value is this very constant (`True` is not `1`)."""
    return (
        value is not None
        and value.op == "const"
        and type(value.constant) is type(constant)
        and value.constant == constant
    )


def is_one_of(value: Value, element: Value) -> bool:
    """Whether a value is among those that a loop's element stands for."""
    over = element.args[0]
    while over.op == "call" and over.name in {"set", "sorted"} and len(over.args) == 1:
        over = over.args[0]
    return value is element or (value.op == "subscript" and value.args[0] is over)


def is_forward(step: Value) -> bool:
    """Whether a slice with this step starts at its lower bound."""
    if step.op != "const":
        return False
    return step.constant is None or (
        isinstance(step.constant, int) and step.constant > 0
    )


def unify(
    pattern: Value, value: Value, bound: dict[str, Value]
) -> dict[str, Value] | None:
    """Match a value against a pattern; operands of `+` and `*` in either order.

    Args:
        pattern: A value in which each `hole` of one name must bind one value.
        value: The value to match.
        bound: Holes bound so far; not changed.

    Returns:
        All bindings, or None when the value is not of the pattern.
    """
    if pattern.op == "hole":
        if pattern.name in bound:
            return bound if bound[pattern.name] is value else None
        return {**bound, pattern.name: value}
    if (
        pattern.op != value.op
        or pattern.name != value.name
        or len(pattern.args) != len(value.args)
        or [key for key, _ in pattern.keywords] != [key for key, _ in value.keywords]
        or (pattern.op == "const" and not is_const(value, pattern.constant))
    ):
        return None
    ours = [*pattern.args, *(operand for _, operand in pattern.keywords)]
    theirs = [*value.args, *(operand for _, operand in value.keywords)]
    found = unify_all(ours, theirs, bound)
    if found is None and pattern.op == "binary" and pattern.name in COMMUTATIVE:
        found = unify_all(ours, theirs[::-1], bound)
    return found


def unify_all(
    patterns: list[Value], values: list[Value], bound: dict[str, Value]
) -> dict[str, Value] | None:
    """Match several values in turn, one set of bindings for all."""
    found: dict[str, Value] | None = bound
    for pattern, value in zip(patterns, values, strict=True):
        if found is None:
            return None
        found = unify(pattern, value, found)
    return found


def fold_binary(symbol: str, left: object, right: object) -> object:
    """A constant operation on numbers, None when it is not one."""
    if isinstance(left, bool) and isinstance(right, bool) and symbol == "^":
        return left != right
    if not (isinstance(left, int | float) and isinstance(right, int | float)):
        return None
    if symbol == "+":
        return left + right
    if symbol == "-":
        return left - right
    if symbol == "*":
        return left * right
    return None


def is_activation(value: Value) -> bool:
    """Whether a value is a tensor that a module or arithmetic made."""
    if value.op == "item":
        return is_activation(value.args[0])
    return value.op in {"module", "binary", "carried", "looped", "method"}
