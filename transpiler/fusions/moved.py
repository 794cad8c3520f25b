"""Moved: constructor expressions that the output has in another place.

A merged layer stands where the first of its parts stood, the attention at the end. The
sizes that they are given must mean there what they meant where upstream wrote them.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.program import Child, Scope
from transpiler.refusal import Refused
from transpiler.tree import code, nodes_within, plain_names

CONSTANTS = frozenset({"True", "False", "None"})


def check_moved(
    scope: Scope, node: cst.BaseExpression | None, place: cst.CSTNode
) -> None:
    """An expression of the constructor has the same value at another place.

    Args:
        scope: The class.
        node: The expression; none is a default, which is the same everywhere.
        place: The statement before which it is put; the constructor for its end.

    Raises:
        Refused: [moved] when a name or attribute in it is another value there, or none.
    """
    if node is None:
        return
    init = scope.init
    names, held = init.environments[place], init.held[place]
    for name in plain_names(node):
        known = init.values.get(name)
        if known is None or known.op == "name" or name.value in CONSTANTS:
            continue
        if names.get(name.value) is not known:
            raise Refused("moved", f"{name.value} is another value there", node)
    for part in nodes_within(node):
        if not isinstance(part, cst.Attribute) or code(part.value) != "self":
            continue
        if held.get(part.attr.value) is not init.values.get(part):
            raise Refused("moved", f"{code(part)} is another value there", node)


def check_arguments(child: Child, scope: Scope, place: cst.CSTNode) -> None:
    """Sizes and bias of a linear have the same value at another place."""
    for position, keyword in enumerate(("in_features", "out_features", "bias")):
        check_moved(scope, child.argument(position, keyword), place)
