"""The layer loop: a forward spread over pipeline ranks.

What stands before the loop runs on the first rank, what stands after it on the
last; what the layers hand on travels between. Nothing after the loop may read what
only the first rank computed.

Refused when
    loop: there is not one loop that carries one value, or it does more than its layer.
    pipeline: the loop or the tail reads what only the first rank computes.
    model-result: the forward does not end with a return.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.names import assigned_names
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value
from transpiler.edits import Fate, Statement, statement
from transpiler.fusions.fusion import Work, forward_of
from transpiler.lower.classes import parsed
from transpiler.lower.operations import check_kept
from transpiler.refusal import Refused
from transpiler.rewrite import Line, Rewriting, names_read, without_first_blank
from transpiler.tree import code, plain_names

RULE = "layer loop"
PLACE = "idx"


def lower_loop(
    work: Work, scope: Scope, layers: Child
) -> tuple[cst.FunctionDef, dict[cst.CSTNode, Fate], list[str]]:
    """The forward over pipeline ranks, fates, and the names that ranks hand on."""
    function = scope.cls.method("forward")
    every = [node for node in function.body.body if isinstance(node, cst.For)]
    values = forward_of(scope).values
    loops = [node for node in every if is_over(values[node.iter])] or every
    if len(loops) != 1:
        raise Refused("loop", f"{scope.name} has {len(loops)} loops", function)
    loop = loops[0]
    carried = the_carried(scope, loop)
    residual = layers.kind in work.with_residual
    handed = [carried, "residual"] if residual else [carried]
    rewriting = Rewriting(work.edits_of(scope), forward_of(scope))
    index = list(function.body.body).index(loop)
    body = list(function.body.body[:index])
    inner = rewriting.block(loop.body.body)
    read = {carried}.union(*(names_read(line.node) for line in inner))
    for line in function.body.body[index + 1 :]:
        read |= names_read(line)
    inner = rewriting.without_dead(inner, read)
    needed = set[str]().union(*(names_read(line.node) for line in inner))
    before = rewriting.function(body, keep={*needed, carried})
    after = rewriting.function(function.body.body[index + 1 :])
    rewriting.fates[loop] = Fate("rewritten", RULE)
    rewriting.fates[function] = Fate("rewritten", "signature")
    left = [*rewriting.left, *inner_left(inner)]
    check_kept(work, scope, left, [*before, *(line.node for line in inner), *after])
    check_ranks(scope, before, [line.node for line in inner], after, carried, loop)
    step = without_first_blank([line.node for line in inner])
    if residual:
        step = [with_second_target(line, carried) for line in step]
    name = loop_target(scope, loop, layers)
    lines: list[Statement] = [
        first_rank(before, handed),
        *parsed(
            [
                "remote_aux = self.collect_remote_aux_hidden_states("
                "intermediate_tensors)",
                "aux_hidden_states: list[torch.Tensor] = []",
                "if get_pp_group().is_first_rank and 0 in self.aux_hidden_state_layers:"
                "\n    # A copy: the first layer writes over it.\n"
                f"    aux_hidden_states.append({carried}.clone())\n",
            ]
        ),
        loop_statement(
            place_name(scope, loop, name, step), name, layers, step, carried, residual
        ),
        *parsed([hand_on(handed)]),
        *with_aux(after, carried),
    ]
    header = (
        "def forward(self, input_ids: torch.Tensor | None, positions: torch.Tensor, "
        "intermediate_tensors: IntermediateTensors | None = None, "
        "inputs_embeds: torch.Tensor | None = None) -> torch.Tensor | "
        "IntermediateTensors | tuple[torch.Tensor, list[torch.Tensor]]:\n"
        "    pass\n"
    )
    made = cst.ensure_type(statement(header), cst.FunctionDef)
    return (
        made.with_changes(
            body=cst.IndentedBlock(lines), leading_lines=[cst.EmptyLine(indent=False)]
        ),
        rewriting.fates,
        handed,
    )


def is_over(over: Value) -> bool:
    """Whether a loop is over modules, counted or sliced or not."""
    while over.op == "subscript" or over.name == "enumerate":
        over = over.args[0]
    return over.op == "child"


def inner_left(inner: list[Line]) -> list[cst.CSTNode]:
    """Upstream statements that stay in the loop."""
    return [line.origin for line in inner if line.origin is not None]


def the_carried(scope: Scope, loop: cst.For) -> str:
    """The one name that the loop carries from layer to layer."""
    names = list(scope.loops.get(loop, {}))
    if len(names) != 1:
        raise Refused("loop", f"the loop carries {', '.join(names) or 'nothing'}", loop)
    return names[0]


def check_ranks(
    scope: Scope,
    before: list[Statement],
    inner: list[Statement],
    after: list[Statement],
    carried: str,
    loop: cst.For,
) -> None:
    """Loop and tail read nothing that only the first rank has."""
    first: set[str] = set()
    for line in before:
        first |= set(assigned_names(line))
    for line in (*inner, *after):
        lost = (names_read(line) & first) - {carried}
        if lost:
            raise Refused(
                "pipeline", f"{sorted(lost)[0]} is computed before the loop", loop
            )


def first_rank(before: list[Statement], handed: list[str]) -> Statement:
    """The branch that embeds tokens, or takes what the rank before handed on."""
    made = cst.ensure_type(
        statement(
            "if get_pp_group().is_first_rank:\n    pass\nelse:\n"
            + "".join(f'    {n} = intermediate_tensors["{n}"]\n' for n in handed)
        ),
        cst.If,
    )
    own = list(before)
    if len(handed) > 1:
        own.append(statement("residual = None"))
    return made.with_changes(body=cst.IndentedBlock(own))


def loop_target(scope: Scope, loop: cst.For, layers: Child) -> str:
    """The name of the layer in a loop over the layers, counted or not.

    Raises:
        Refused: [loop] for a loop over anything else, or more than the layers.
    """
    target: cst.BaseExpression = loop.target
    over = forward_of(scope).values[loop.iter]
    if over.name == "enumerate" and len(over.args) == 1 and not over.keywords:
        over = over.args[0]
        if isinstance(target, cst.Tuple) and len(target.elements) == 2:
            place, layer = (element.value for element in target.elements)
            target = layer if isinstance(place, cst.Name) else target
    if over.op == "subscript":
        over = over.args[0]
    if over.op != "child" or over.name != layers.name:
        raise Refused("loop", f"the loop is not over self.{layers.name}", loop)
    if not isinstance(target, cst.Name):
        raise Refused("loop", "the loop binds more than a place and a layer", loop)
    return target.value


def with_second_target(line: Statement, carried: str) -> Statement:
    """`x = layer(…)` as `x, residual = layer(…)`."""
    small = cst.ensure_type(line, cst.SimpleStatementLine).body[0]
    if isinstance(small, cst.Assign) and code(small.targets[0].target) == carried:
        return statement(f"{carried}, residual = {code(small.value)}")
    raise Refused("loop", "the loop does more than call the layer", line)


def place_name(scope: Scope, loop: cst.For, layer: str, step: list[Statement]) -> str:
    """The name of the layer's place in the loop: upstream's where the body reads it.

    Raises:
        Refused: [loop] for a body that reads another name which the loop binds, or a
            place that is not counted from the first layer.
    """
    read: set[str] = set()
    for line in step:
        read |= names_read(line)
    targets = [n.value for n in plain_names(loop.target)]
    found = [name for name in targets if name in read and name != layer]
    for name in found:
        value = forward_of(scope).environments[loop.body][name]
        over = value.args[0] if value.op == "index" else None
        over = over.args[0] if over is not None and over.op == "subscript" else over
        if over is None or over.op != "child" or len(found) > 1:
            raise Refused("loop", f"{name} is not the layer's place", loop)
        return name
    if PLACE in read:
        raise Refused("loop", f"{PLACE} is a name of the output", loop)
    return PLACE


def loop_statement(
    place: str,
    name: str,
    layers: Child,
    step: list[Statement],
    carried: str,
    residual: bool,
) -> Statement:
    """The loop over this rank's layers."""
    kept = (
        f"    self._maybe_add_hidden_state(aux_hidden_states, {place} + 1, "
        f"{carried}, residual)\n"
    )
    if not residual:  # A copy, since the next layer may write over it.
        kept = (
            f"    if {place} + 1 in self.aux_hidden_state_layers:\n"
            f"        aux_hidden_states.append({carried}.clone())\n"
        )
    made = cst.ensure_type(
        statement(
            f"for {place}, {name} in enumerate("
            f"islice(self.{layers.name}, self.start_layer, self.end_layer), "
            f"start=self.start_layer):\n{kept}"
        ),
        cst.For,
    )
    return made.with_changes(body=made.body.with_changes(body=[*step, *made.body.body]))


def hand_on(handed: list[str]) -> str:
    """What a rank that is not the last returns."""
    pairs = ", ".join(f'"{name}": {name}' for name in handed)
    return (
        "if not get_pp_group().is_last_rank:\n"
        f"    return IntermediateTensors({{{pairs}, "
        "**self.pack_local_aux_hidden_states(aux_hidden_states)})\n"
    )


def with_aux(after: list[Statement], carried: str) -> list[Statement]:
    """The tail, with auxiliary hidden states returned when some were asked for."""
    tail = list(after)
    last = tail[-1]
    if not isinstance(last, cst.SimpleStatementLine) or not isinstance(
        last.body[0], cst.Return
    ):
        raise Refused("model-result", "the forward does not end with a return", last)
    given = last.body[0].value
    text = code(given) if given is not None else ""
    return [
        *tail[:-1],
        *parsed(
            [
                "aux_hidden_states = remote_aux + aux_hidden_states",
                f"if aux_hidden_states:\n    return {text}, aux_hidden_states\n",
                f"return {text}",
            ]
        ),
    ]
