"""Mappings: entries of a dict, and attributes whose name is made from a text.

A loop that does nothing but fill an own dict gives it one entry that stands for all,
as a comprehension would; looked up by one of the loop's keys it is that key's entry.
"""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst

from transpiler.analyse.expressions import Expressions
from transpiler.analyse.values import Graph, Value
from transpiler.refusal import Refused


class Mappings(Expressions):
    """The part of `Evaluator` that follows stores by key; never used alone.

    Attributes:
        given: Values of the function's parameters.
        is_table: Whether a body is evaluated to be compared with a table's.
    """

    def __init__(
        self,
        graph: Graph,
        resolve: Callable[[str], str],
        attribute: Callable[[str], Value] | None = None,
    ) -> None:
        super().__init__(graph, resolve, attribute)
        self.given: list[Value] = []
        self.is_table = False

    def store(self, target: cst.Subscript, value: Value) -> None:
        """`base[key] = value`: a new dict, or a write in place.

        Raises:
            Refused: [alias] for a dict that another name, or a caller, may hold too.
        """
        base = self.value(target.value)
        key = self.index_of(target)
        if self.mapped(target, base, key, value):
            return
        if base.op == "dict" and key.op == "const":
            keywords = tuple(
                (name, old) for name, old in base.keywords if name != key.constant
            )
            stored = self.graph.make(
                "dict", keywords=(*keywords, (str(key.constant), value))
            )
            holders = [name for name, v in self.names.items() if base in v.walk()]
            outside = any(base in given.walk() for given in self.given)
            if len(holders) != 1 or outside:
                raise Refused("alias", "a dict that has another name", target)
            self.names[holders[0]] = stored
        else:
            self.write(base, target)

    def mapped(
        self, target: cst.Subscript, base: Value, key: Value, value: Value
    ) -> bool:
        """`base[k] = f(k)` for the k of a loop, the first entries of an own dict."""
        if base.op != "dict" or base.keywords or base.constant is None:
            return False
        if key.op != "element" or any(part.op == "carried" for part in value.walk()):
            return False
        made = self.graph.make("mapped", args=(key, self.guarded(value)))
        held = {name: v for name, (v, _) in self.flow.assigned.items()}
        holders = [name for name, v in self.names.items() if base in v.walk()]
        owners = [name for name, v in held.items() if base in v.walk()]
        if any(base in given.walk() for given in self.given):
            return False
        if isinstance(target.value, cst.Name) and [*holders, *owners] == [
            target.value.value
        ]:
            self.names[holders[0]] = made
            return True
        if not holders and len(owners) == 1 and held[owners[0]] is base:
            self.flow.assigned[owners[0]] = (made, target)
            return self.is_table
        return False

    def guarded(self, value: Value) -> Value:
        """A value that is only there where the tests around it hold."""
        missing = self.graph.make("missing")
        for test, sense in reversed(self.guards):
            value = self.merge(test, *((value, missing) if sense else (missing, value)))
        return value

    def by_type(self, name: str, args: list[Value]) -> Value | None:
        """`setattr(self, f"{kind}_x", v)` in a loop, and `getattr` of the same name.

        The attribute is kept by its name with a hole for the kind.
        """
        text = args[1]
        kinds = [part for part in text.args if part.op != "const"]
        if not self.is_table or text.op != "text" or len(kinds) != 1:
            return None
        parts = ("{}" if p is kinds[0] else str(p.constant) for p in text.args)
        key = "".join(parts)
        if name == "setattr" and kinds[0].op == "element" and len(args) == 3:
            self.flow.assigned[key] = (
                self.graph.make("mapped", args=(kinds[0], self.guarded(args[2]))),
                self.flow.calls[-1],
            )
            return self.graph.const(None)
        found = self.attribute(key) if self.attribute is not None else text
        if name == "getattr" and len(args) == 2 and found.op == "mapped":
            return self.graph.replaced(found.args[1], found.args[0], kinds[0])
        return self.graph.fresh("unknown", name)

    def merge_held(
        self,
        test: Value,
        before: dict[str, tuple[Value, cst.CSTNode]],
        yes: dict[str, tuple[Value, cst.CSTNode]],
        no: dict[str, tuple[Value, cst.CSTNode]],
    ) -> dict[str, tuple[Value, cst.CSTNode]]:
        """Attributes after both sides of an undecided test, with a place of each."""
        missing = self.graph.make("missing")
        found: dict[str, tuple[Value, cst.CSTNode]] = {}
        for name in {**yes, **no}:
            sides = [side[name] for side in (yes, no) if name in side]
            new = [side for side in sides if side is not before.get(name)]
            values = [side[name][0] if name in side else missing for side in (yes, no)]
            value = self.merge(test, *values)
            if len(sides) == 1 and sides[0][0].op == "mapped":  # Its entry is guarded.
                value = sides[0][0]
            found[name] = (value, (new or sides)[0][1])
        return found
