"""Parts: a linear whose output is divided, and which of its columns each part has.

A packed projection gives several tensors at once: its output is viewed, transposed and
then chunked, split, sliced or indexed. The columns of a tensor are followed through
that as sizes and strides, so that `[q | k | v]` and `[head][q | k | v]` are told apart
by arithmetic, and a division that leaves columns out, or has some twice, is seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Graph, Value, is_const
from transpiler.fusions.fusion import Work, distinct_values, linear_of, users_of
from transpiler.fusions.reads import MEASURES
from transpiler.fusions.sizes import NONE, Needs, Size, number, shared, size_from
from transpiler.lower.axes import BATCH, HEADS, SEQUENCE, WIDTH, Axes, Shape
from transpiler.refusal import Refused

ONE = number(1)
LAYOUT = frozenset({"transpose", "view"})


@dataclass(frozen=True)
class Axis:
    """An axis over columns: how many, and how far apart they are."""

    size: Size
    stride: Size


@dataclass(frozen=True)
class Columns:
    """The columns of a linear that a tensor holds.

    Attributes:
        axes: Its axes in order; None is one of the two that count tokens.
        start: The first column.
        needs: Pairs of sizes of which the first must be a multiple of the second.
    """

    axes: tuple[Axis | None, ...]
    start: Size
    needs: Needs = frozenset()

    def shape(self, graph: Graph) -> Shape:
        """The axes as `Axes` names them."""
        tokens = iter((BATCH, SEQUENCE))
        columns = sum(axis is not None for axis in self.axes)
        names = [next(tokens) if axis is None else HEADS for axis in self.axes]
        last = self.axes[-1]
        size = last.size.value(graph) if columns > 1 and last is not None else None
        return (*names[:-1], WIDTH if size is None else size)


@dataclass(frozen=True)
class Split:
    """A linear whose output is divided.

    Attributes:
        linear: Its call.
        width: The number of its columns.
        chain: Views and transposes between the linear and the division, in order.
        divided: The call that divides, None where each part is a subscript.
        parts: The parts, with their columns.
    """

    linear: Value
    width: Size
    chain: tuple[Value, ...]
    divided: Value | None
    parts: dict[Value, Columns]


def find_parts(work: Work, scope: Scope) -> None:
    """Record the parts of every linear of a class whose output is divided."""
    for value in distinct_values(scope):
        child = linear_of(scope, value)
        out = child.argument(1, "out_features") if child is not None else None
        if out is None:
            continue
        width = size_from(work.program.graph, scope.init.values[out])
        try:
            split = find_split(Axes(work, scope), scope, value, width)
        except Refused:  # a view of axes that are not followed divides nothing
            continue
        if split is not None:
            work.parts |= dict.fromkeys(split.parts, split)


def find_split(axes: Axes, scope: Scope, linear: Value, width: Size) -> Split | None:
    """How the output of a linear is divided, None when it is not, or not known how."""
    graph = axes.work.program.graph
    columns: Columns | None = Columns((None, None, Axis(width, ONE)), number(0))
    chain: list[Value] = []
    value = linear
    users = list(tensor_users(scope, value))
    while len(users) == 1 and users[0].op == "method" and users[0].name in LAYOUT:
        if users[0].args[0] is not value or columns is None:
            return None
        value = users[0]
        chain.append(value)
        columns = moved(axes, value, columns)
        users = list(tensor_users(scope, value))
    if columns is None or not users:
        return None
    divided = None
    if len(users) == 1 and users[0].op == "method" and users[0].args[0] is value:
        (divided,) = users
        parts = cut(graph, divided, columns, list(tensor_users(scope, divided)))
    else:
        parts = {user: taken(graph, user, columns) for user in users}
    known = {part: found for part, found in parts.items() if found is not None}
    if len(known) != len(parts) or len(known) < 2:
        return None
    return Split(linear, width, tuple(chain), divided, known)


def tensor_users(scope: Scope, value: Value) -> Iterator[Value]:
    """Operations that read more of a value than its measures."""
    for user in users_of(scope, value):
        if not (user.op == "attr" and user.name in MEASURES):
            yield user


def moved(axes: Axes, value: Value, before: Columns) -> Columns | None:
    """The columns of a view or transpose of a tensor of these."""
    if value.name == "transpose":
        numbers = [arg.constant for arg in value.args[1:]]
        found = list(before.axes)
        one, two = (n if isinstance(n, int) else len(found) for n in numbers)
        if not all(-len(found) <= n < len(found) for n in (one, two)):
            return None
        found[one], found[two] = found[two], found[one]
        return replace(before, axes=tuple(found))
    rest = axes.after_tokens(value.args[1:])
    last = before.axes[-1]
    if rest is None or last is None or before.axes[:-1] != (None, None):
        return None
    graph = axes.work.program.graph
    sizes = [None if is_const(v, -1) else size_from(graph, v) for v in rest]
    known = ONE
    for size in sizes:
        known = known if size is None else known * size
    stride, made, needs = last.stride, list[Axis | None](), before.needs
    if None not in sizes:
        needs |= shared(graph, last.size, known)[1]
    for size in reversed(sizes):
        filled, more = (
            (size, NONE) if size is not None else shared(graph, last.size, known)
        )
        if filled is None:
            return None
        needs |= more
        made.insert(0, Axis(filled, stride))
        stride = stride * filled
    return Columns((None, None, *made), before.start, needs)


def cut(
    graph: Graph, call: Value, before: Columns, items: list[Value]
) -> dict[Value, Columns | None]:
    """The results of a `chunk` or `split`, all of which must be there."""
    given = dict(call.keywords)
    numbers = [*call.args[1:], *given.values()]
    at = numbers[1].constant if len(numbers) == 2 else None
    last = before.axes[-1]
    is_last = at in {-1, len(before.axes) - 1} and type(at) is int
    if call.name not in {"chunk", "split"} or last is None or not is_last:
        return {}
    sizes = widths(graph, call.name, numbers[0], last.size)
    if sizes is None or {item.op for item in items} != {"item"}:
        return {}
    found: dict[Value, Columns | None] = {}
    start = before.start
    for place, size in enumerate(sizes):
        part = graph.make("item", str(place), (call,))
        axis = Axis(size, last.stride)
        found[part] = replace(before, axes=(*before.axes[:-1], axis), start=start)
        start = start + size * last.stride
    return found if set(items) == set(found) else {}


def widths(graph: Graph, name: str, said: Value, whole: Size) -> list[Size] | None:
    """Widths that `chunk(n)`, `split(width)` or `split(widths)` gives, in order."""
    if name == "chunk":
        count = said.constant if type(said.constant) is int else 0
        each = whole.over(number(count)) if count else None
        return None if each is None else [each] * count
    if said.op in {"tuple", "list"}:
        sizes = [size_from(graph, value) for value in said.args]
    else:
        each = size_from(graph, said)
        times = whole.over(each)
        ((_, count),) = times.terms if times is not None and times.terms else ((0, 0),)
        sizes = [each] * count if times == number(count) else []
    summed = number(0)
    for size in sizes:
        summed = summed + size
    return sizes if summed == whole else None


def taken(graph: Graph, user: Value, before: Columns) -> Columns | None:
    """The columns of `x[..., a:b]` or `x[..., n, :]`."""
    if user.op != "subscript" or user.args[1].op != "tuple":
        return None
    first, *keys = user.args[1].args
    if not is_const(first, ...) or len(keys) >= len(before.axes):
        return None
    kept = len(before.axes) - len(keys)
    axes, start = list(before.axes[:kept]), before.start
    for key, axis in zip(keys, before.axes[kept:], strict=True):
        if axis is None or (key.op == "slice" and not is_const(key.args[2], None)):
            return None
        if key.op != "slice":
            start = start + size_from(graph, key) * axis.stride
            continue
        lower, upper = key.args[:2]
        low = number(0) if is_const(lower, None) else size_from(graph, lower)
        high = axis.size if is_const(upper, None) else size_from(graph, upper)
        axes.append(Axis(high - low, axis.stride))
        start = start + low * axis.stride
    return replace(before, axes=tuple(axes), start=start)
