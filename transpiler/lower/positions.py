"""Positions: learned embeddings of them, and upstream's names that the output takes.

Upstream's `position_ids` are vLLM's `positions`. A table of learned positions is whole
on the first rank, which alone reads it.

Refused when
    positions: an embedding of anything but positions, or one that is never read, or
        after the first rank's part.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.module import EMBEDDING
from transpiler.analyse.names import assigned_names
from transpiler.analyse.program import Child, Scope
from transpiler.fusions.fusion import Work, child_of, forward_of
from transpiler.lower.embedding import ARGUMENTS, check_arguments
from transpiler.lower.operations import RESERVED
from transpiler.refusal import Refused
from transpiler.tree import code, nodes_within, plain_names

RULE = "positions"


def lower_positions(work: Work, scope: Scope, tokens: Child) -> None:
    """Name positions as vLLM does, and make their embeddings on the first rank.

    Args:
        work: The program.
        scope: The class that holds the layers.
        tokens: The token embedding.

    Raises:
        Refused: [positions].
    """
    for child in scope.children.values():
        cls = work.program.module.classes.get(child.kind)
        own = cls is not None and bool(cls.library_base)
        if child is not tokens and (own or child.kind == EMBEDDING):
            check_read(scope, child)
            if not own:
                check_arguments(child, list(ARGUMENTS))
            first_rank_only(work, scope, child)
    edits = work.edits_of(scope)
    function = scope.cls.method("forward")
    for node, value in forward_of(scope).values.items():
        if isinstance(node, cst.Name) and value.op == "positions":
            edits.replace_text(node, RULE, "positions")
    taken = RESERVED & set(assigned_names(function.body))
    for name in plain_names(function.body):
        if name.value in taken and name not in edits.expressions:
            edits.replace_text(name, RULE, f"{name.value}_")


def check_read(scope: Scope, child: Child) -> None:
    """An embedding looks positions up, before the loop over the layers."""
    flow = forward_of(scope)
    body = scope.cls.method("forward").body.body
    first: set[cst.CSTNode] = set()
    for line in body:
        if isinstance(line, cst.For):
            break
        first |= set(nodes_within(line))
    calls = [
        (node, value)
        for node in flow.calls
        if (value := flow.values.get(node)) and child_of(scope, value) is child
    ]
    if not calls:
        raise Refused("positions", f"self.{child.name} is never read", child.call)
    for node, value in calls:
        operands = [*value.args[1:], *(v for _, v in value.keywords)]
        if not any(v.op == "positions" for v in operands) or node not in first:
            raise Refused("positions", f"self.{child.name} is read otherwise", node)
        if child.kind == EMBEDDING and len(operands) > 1:
            raise Refused("positions", f"self.{child.name} is read otherwise", node)


def first_rank_only(work: Work, scope: Scope, child: Child) -> None:
    """The embedding as upstream makes it, on the first rank."""
    work.edits_of(scope).swap(
        child.statement,
        RULE,
        [
            "if get_pp_group().is_first_rank:\n"
            f"    self.{child.name} = {code(child.call)}\n"
            f"else:\n    self.{child.name} = PPMissingLayer()\n"
        ],
    )
