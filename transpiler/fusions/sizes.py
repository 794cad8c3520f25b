"""Sizes: widths and offsets as sums of products of config values.

Two widths that are written differently, `n * d + 2 * (n * d)` and `3 * n * d`, are one
size here. What is no sum, difference or product stands for itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from transpiler.analyse.values import Graph, Value

Factors = tuple[Value, ...]
Needs = frozenset[tuple[Value, Value]]
NONE: Needs = frozenset()


@dataclass(frozen=True)
class Size:
    """A sum of whole multiples of products; each product's factors in one order."""

    terms: frozenset[tuple[Factors, int]]

    def __add__(self, other: Size) -> Size:
        return total([*self.terms, *other.terms])

    def __sub__(self, other: Size) -> Size:
        return total([*self.terms, *((f, -n) for f, n in other.terms)])

    def __mul__(self, other: Size) -> Size:
        return total(
            [
                (ordered((*ours, *theirs)), n * m)
                for ours, n in self.terms
                for theirs, m in other.terms
            ]
        )

    def over(self, other: Size) -> Size | None:
        """The exact quotient by one product, None where there is none."""
        if len(other.terms) != 1:
            return None
        ((divisor, by),) = other.terms
        found: list[tuple[Factors, int]] = []
        for factors, count in self.terms:
            rest = Counter(factors)
            rest.subtract(divisor)
            if count % by or min(rest.values(), default=0) < 0:
                return None
            found.append((ordered(tuple(rest.elements())), count // by))
        return total(found)

    def value(self, graph: Graph) -> Value | None:
        """The number or config value that it is, None if it is made of several."""
        if len(self.terms) != 1:
            return None
        ((factors, count),) = self.terms
        if not factors:
            return graph.const(count)
        return factors[0] if len(factors) == 1 and count == 1 else None


def ordered(factors: Factors) -> Factors:
    """Factors in one order of this process."""
    return tuple(sorted(factors, key=id))


def total(terms: list[tuple[Factors, int]]) -> Size:
    """The sum of these terms, like ones joined."""
    sums: dict[Factors, int] = {}
    for factors, count in terms:
        sums[factors] = sums.get(factors, 0) + count
    return Size(frozenset((f, n) for f, n in sums.items() if n))


def number(count: int) -> Size:
    """A number."""
    return Size(frozenset({((), count)} if count else ()))


def size_from(graph: Graph, value: Value) -> Size:
    """The size that a value is."""
    if value.op == "const" and type(value.constant) is int:
        return number(value.constant)
    if value.op == "binary" and value.name in {"+", "-", "*"}:
        one, two = (size_from(graph, side) for side in value.args)
        sums = {"+": one.__add__, "-": one.__sub__, "*": one.__mul__}
        return sums[value.name](two)
    if value.op == "call" and value.name == "int" and len(value.args) == 1:
        inner = value.args[0]
        if inner.op == "binary" and inner.name == "/":
            # Of whole numbers that are no multiples of each other both round down.
            return size_from(graph, graph.make("binary", "//", inner.args))
    return Size(frozenset({((value,), 1)}))


def shared(graph: Graph, whole: Size, by: Size) -> tuple[Size | None, Needs]:
    """A quotient, and what it rests on: `a // (a // n)` is n where n divides a."""
    exact = whole.over(by)
    if exact is not None or len(by.terms) != 1:
        return exact, NONE
    ((factors, count),) = by.terms
    for factor in factors:
        if factor.op != "binary" or factor.name != "//":
            continue
        over, under = factor.args
        rest = list(factors)
        rest.remove(factor)
        left = whole.over(Size(frozenset({(ordered((*rest, over)), count)})))
        if left is not None:
            return left * size_from(graph, under), frozenset({(over, under)})
    return None, NONE
