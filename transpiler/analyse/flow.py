"""What evaluation of one function found."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from transpiler.analyse.values import Value


@dataclass
class Flow:
    """What evaluation of one function found.

    Attributes:
        values: Value of each evaluated expression node.
        calls: Every call that was evaluated, in order.
        guards: For each call the undecided tests it stands under, with their sense.
        tests: Decided tests of `if` statements and conditional expressions.
        assigned: Value that a `self.<name>` assignment gives, with its statement.
        writes: Calls and statements that write a value in place.
        effects: Calls that may do more than compute their value.
        alone: Values of modules that a statement changed in place, under one name.
        bound: Assignments within expressions (`:=`).
        environments: Local names before each statement, and after the function.
        held: Attributes that were assigned before each statement, and at the end.
        result: What the function returns.
    """

    values: dict[cst.CSTNode, Value] = field(default_factory=dict)
    calls: list[cst.Call] = field(default_factory=list)
    guards: dict[cst.CSTNode, tuple[tuple[Value, bool], ...]] = field(
        default_factory=dict
    )
    tests: dict[cst.CSTNode, bool] = field(default_factory=dict)
    assigned: dict[str, tuple[Value, cst.CSTNode]] = field(default_factory=dict)
    writes: list[tuple[Value, cst.CSTNode]] = field(default_factory=list)
    environments: dict[cst.CSTNode, dict[str, Value]] = field(default_factory=dict)
    held: dict[cst.CSTNode, dict[str, Value]] = field(default_factory=dict)
    effects: list[cst.Call] = field(default_factory=list)
    bound: list[cst.NamedExpr] = field(default_factory=list)
    alone: list[tuple[Value, cst.Call]] = field(default_factory=list)
    result: Value | None = None

    def nodes_of(self, value: Value) -> list[cst.CSTNode]:
        """Every expression that computes a value, in source order."""
        return [node for node, known in self.values.items() if known is value]
