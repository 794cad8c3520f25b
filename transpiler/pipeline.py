"""The walk: read, analyse, specialise, fuse, lower, emit, check."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import libcst as cst

from transpiler.analyse.bodies import match_function, parameters_of
from transpiler.analyse.inline import Inlined, inline_methods
from transpiler.analyse.module import (
    ModelingModule,
    analyse_module,
    check_decorators,
    check_neutral,
    the_causal_class,
)
from transpiler.analyse.program import Scope
from transpiler.check import check
from transpiler.edits import Fate
from transpiler.emit.imports import NoOrigin
from transpiler.emit.text import text_of
from transpiler.fusions import FUSIONS, eager, embeddings, norms, rotaries
from transpiler.fusions.fusion import Outcome, Work, distinct_values
from transpiler.fusions.parts import find_parts
from transpiler.lower.attention import lower_attention
from transpiler.lower.calls import lower_calls
from transpiler.lower.causal import lower_causal
from transpiler.lower.classes import Lowered, lower_class
from transpiler.lower.flat import check_flat, lower_layout
from transpiler.lower.model import lower_model
from transpiler.lower.operations import check_stated
from transpiler.lower.parallel import lower_activations, lower_linears
from transpiler.lower.renames import renamed_prefixes
from transpiler.read import Source, read
from transpiler.refusal import Refused
from transpiler.specialise import specialise
from transpiler.tree import nodes_within


@dataclass(frozen=True)
class Transpiled:
    """What the walk makes of one modeling file.

    Attributes:
        source: What was read.
        text: The generated file.
        architecture: Name of the causal class.
        outcomes: Fusions applied and refused.
        fates: Fate of every upstream statement on the path.
    """

    source: Source
    text: str
    architecture: str
    outcomes: tuple[Outcome, ...]
    fates: dict[cst.CSTNode, Fate]


def transpile(model: str, root: Path | None = None) -> Transpiled:
    """Walk one model from its name or path to the text of its generated file.

    Raises:
        BadInput: The input is not a modeling file.
        Refused: Something on the path cannot be accounted for.
    """
    return transpile_source(read(model, root))


def transpile_source(source: Source) -> Transpiled:
    """Walk one source that has been read.

    Raises:
        Refused: [too-deep], and what the steps refuse.
    """
    try:
        return walked(source)
    except RecursionError:
        node = the_causal_class(analyse_module(source.tree, source.architectures)).node
        raise Refused("too-deep", "too long a chain of operations", node) from None


def walked(source: Source) -> Transpiled:
    """Walk one source, and say of each node where it stands upstream."""
    inlined = inline_methods(source.tree, source.text)
    try:
        made = stepped(source, inlined.tree)
    except Refused as refused:
        refused.node = inlined.origin(refused.node) if refused.node else None
        refused.causes = tuple(from_upstream(inlined, o) for o in refused.causes)
        raise
    fates = {inlined.origin(node): fate for node, fate in made.fates.items()}
    outcomes = tuple(from_upstream(inlined, outcome) for outcome in made.outcomes)
    return replace(made, outcomes=outcomes, fates={**fates, **inlined.fates})


def from_upstream(inlined: Inlined, outcome: Outcome) -> Outcome:
    """An outcome at the upstream node that its own node comes from."""
    node = inlined.origin(outcome.node) if outcome.node is not None else None
    return replace(outcome, node=node)


def stepped(source: Source, tree: cst.Module) -> Transpiled:
    """Walk one tree, step by step."""
    module = analyse_module(tree, source.architectures)
    work = prepared(module)
    work.renames = renamed_prefixes(source, work)
    for fusion in FUSIONS:
        fusion.run(work)
    try:
        lowered = lower(work)
    except Refused as refused:
        refused.causes = tuple(outcome for outcome in work.outcomes if outcome.code)
        raise
    ordered = [lowered[name] for name in module.classes if name in lowered]
    try:
        text = text_of(
            source, module.imports, [item.node for item in ordered], work.outcomes
        )
    except NoOrigin as missing:
        node = first_use(work, missing.name)
        raise Refused(missing.code, missing.reason, node) from None
    fates = {node: fate for item in ordered for node, fate in item.fates.items()}
    check(work, text, fates)
    return Transpiled(
        source, text, work.program.causal.name, tuple(work.outcomes), fates
    )


def first_use(work: Work, name: str) -> cst.CSTNode:
    """Where upstream first says a name that the output cannot explain."""
    for scope in work.scopes():
        for node in nodes_within(scope.cls.node):
            if isinstance(node, cst.Name) and node.value == name:
                return node
    return work.program.causal.cls.node


def prepared(module: ModelingModule) -> Work:
    """Look every class and function up in the tables, then evaluate the program."""
    known_norms = dict(norms.TORCH_NORMS)
    known_rotaries = {}
    known_embeddings = {}
    for name, cls in module.classes.items():
        if (norm := norms.norm_of(cls, module)) is not None:
            known_norms[name] = norm
        elif (row := rotaries.row_of(cls, module)) is not None:
            known_rotaries[name] = row
        elif (found := embeddings.match_embedding(cls, module)) is not None:
            check_neutral(cls, module, "forward")
            known_embeddings[name] = found
    applies = known_functions(module, rotaries.texts(rotaries.APPLIES))
    eagers = known_eagers(module)
    leaves = frozenset({*known_norms, *known_rotaries, *known_embeddings})
    program = specialise(module, leaves)
    work = Work(program, known_norms, known_rotaries, applies, eagers, known_embeddings)
    for scope in program.scopes.values():
        made: dict[norms.Row, list[str]] = {}
        for child in scope.children.values():
            if child.kind in known_norms:
                made.setdefault(known_norms[child.kind].row, []).append(child.name)
        for norm_row, names in made.items():
            detail = f"{', '.join(names)} -> {norm_row.layer}"
            work.outcomes.append(Outcome(scope.name, norm_row.rule, detail))
        if scope.forward is not None:
            find_parts(work, scope)
    return work


def known_functions(module: ModelingModule, rows: dict[str, str]) -> dict[str, str]:
    """Functions that a table knows, taking their operands in the row's order."""
    found: dict[str, str] = {}
    for name, function in module.functions.items():
        match = match_function(name, module, rows)
        if match is None:
            continue
        check_decorators(function, module)
        row_names = parameters_of(rows[match[0]])
        ours = [parameter.name.value for parameter in function.params.params]
        places = {n: ours.index(v.name) for n, v in match[1].items()}
        if all(row_names.index(n) == place for n, place in places.items()):
            found[name] = match[0]
    return found


def known_eagers(module: ModelingModule) -> dict[str, str]:
    """Attention functions that the table knows, taking operands as the interface does.

    The first operands are given by position, the others by the row's own names.
    """
    found: dict[str, str] = {}
    for name, function in module.functions.items():
        match = match_function(name, module, eager.ROWS)
        if match is None:
            continue
        check_decorators(function, module)
        ours = [parameter.name.value for parameter in function.params.params]
        first = [match[1][n].name for n in eager.POSITIONAL if n in match[1]]
        rest = {n for n in match[1] if n not in eager.POSITIONAL}
        places = [ours.index(n) for n in first]
        wanted = [i for i, n in enumerate(eager.POSITIONAL) if n in match[1]]
        if places == wanted and all(match[1][n].name == n for n in rest):
            found[name] = match[0]
    return found


def lower(work: Work) -> dict[str, Lowered]:
    """Lower every class on the path, callees first."""
    lowered: dict[str, Lowered] = {}
    scopes = work.scopes()
    causal = work.program.causal
    for scope in scopes:
        check_stated(work, scope)
        lower_attention(work, scope)
    for scope in reversed(scopes):
        if scope is causal:
            lowered[scope.name] = lower_causal(work, scope)
            continue
        lower_calls(work, scope)
        if holds_layers(scope):
            lowered[scope.name] = lower_model(work, scope)
        else:
            lower_layout(work, scope)
            check_flat(work, scope)
            lower_linears(work, scope)
            lower_activations(work, scope)
            lowered[scope.name] = lower_class(work, scope)
    return lowered


def holds_layers(scope: Scope) -> bool:
    """Whether a class holds a list of layers that its forward loops over."""
    return any(child.many for child in scope.children.values()) and any(
        value.op == "element" for value in distinct_values(scope)
    )
