"""The inner model: embedding, layer loop and final norm, over pipeline ranks.

What stands before the loop runs on the first rank, what stands after it on the
last; what the layers hand on travels between. Nothing after the loop may read what
only the first rank computed.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.evaluate import assigned_names
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value, is_const
from transpiler.edits import Fate, Statement, code, statement
from transpiler.fusions.fusion import Work, distinct_values, forward_of
from transpiler.lower.classes import (
    Lowered,
    attributes_read,
    lower_children,
    lower_constructor,
    parsed,
)
from transpiler.lower.operations import check_kept
from transpiler.lower.window import CAUSAL, mask_checks
from transpiler.refusal import Refused
from transpiler.rewrite import Line, Rewriting, names_read

RULE = "layer loop"
EMBEDDING = "torch.nn.Embedding"
# Attributes that vLLM reads from outside.
SHELL = frozenset({"config", "make_empty_intermediate_tensors"})


def lower_model(work: Work, scope: Scope) -> Lowered:
    """Lower the class that holds the embedding and the layers.

    Raises:
        Refused: [loop], [layers], [embedding], [pipeline], [model-result].
    """
    layers = the_layers(work, scope)
    embedding = work.program.only_child(scope, EMBEDDING)
    check_embedding(scope, embedding)
    lower_result(work, scope)
    work.model_checks += [CAUSAL, *mask_checks(work, scope, forward_of(scope))]
    forward, fates = lower_loop(work, scope, layers, embedding)
    construct_layers(work, scope, layers, embedding)
    lower_children(work, scope)
    read = {*attributes_read(forward), *SHELL}
    for check in work.model_checks:
        read |= attributes_read(statement(check))
    init, more = lower_constructor(work, scope, read)
    init = shelled(work, scope, init)
    embed = cst.ensure_type(
        statement(
            "def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:\n"
            f"    return self.{embedding.name}(input_ids)\n"
        ),
        cst.FunctionDef,
    )
    node = cst.ensure_type(
        statement(
            f"@support_torch_compile\nclass {scope.name}(nn.Module, EagleModelMixin):\n"
            "    supports_aux_hidden_states_over_pp = True\n"
        ),
        cst.ClassDef,
    )
    node = node.with_changes(
        body=node.body.with_changes(body=[*node.body.body, init, embed, forward])
    )
    return Lowered(scope.name, node, {**more, **fates})


def the_layers(work: Work, scope: Scope) -> Child:
    """The list of layers that the forward loops over, all of them in order."""
    many = [child for child in scope.children.values() if child.many]
    if len(many) != 1:
        raise Refused("layers", f"{scope.name} has {len(many)} lists", scope.cls.node)
    child = many[0]
    made = scope.init.assigned[child.name][0]
    over = made.args[0].args[1] if made.args and made.args[0].op == "each" else None
    count = over.args[0] if over is not None and over.name == "range" else None
    if count is None or over is None or len(over.args) != 1:
        raise Refused(
            "layers", f"self.{child.name} is not made over range(n)", child.call
        )
    for value in distinct_values(scope):
        if value.op == "subscript" and value.args[0].name == child.name:
            bounds = value.args[1]
            whole = bounds.op == "slice" and is_const(bounds.args[0], None)
            if not whole or bounds.args[1] is not count:
                raise Refused(
                    "layers", f"self.{child.name} is sliced otherwise", scope.cls.node
                )
    return child


def check_embedding(scope: Scope, child: Child) -> None:
    """Vocabulary, width and padding index are all that the embedding is given."""
    for arg in child.call.args[3:]:
        raise Refused("embedding", f"{code(arg)} is not known", child.call)
    for arg in child.call.args:
        if arg.keyword is not None and arg.keyword.value not in {
            "num_embeddings",
            "embedding_dim",
            "padding_idx",
        }:
            raise Refused("embedding", f"{arg.keyword.value}= is not known", child.call)


def lower_result(work: Work, scope: Scope) -> None:
    """`return Output(last_hidden_state=x, …)` returns x."""
    edits = work.edits_of(scope)
    flow = forward_of(scope)
    result = flow.result
    if result is None or result.op != "call" or "BaseModelOutput" not in result.name:
        raise Refused("model-result", "not a BaseModelOutput", scope.cls.node)
    for node in flow.nodes_of(result):
        if isinstance(node, cst.Call):
            kept = [
                a
                for a in node.args
                if a.keyword and a.keyword.value == "last_hidden_state"
            ]
            if len(kept) != 1:
                raise Refused("model-result", "no last_hidden_state", node)

            def only(call: cst.BaseExpression) -> cst.BaseExpression:
                for arg in cst.ensure_type(call, cst.Call).args:
                    if arg.keyword and arg.keyword.value == "last_hidden_state":
                        return arg.value
                raise AssertionError

            edits.replace(node, "model result", only)


def lower_loop(
    work: Work, scope: Scope, layers: Child, embedding: Child
) -> tuple[cst.FunctionDef, dict[cst.CSTNode, Fate]]:
    """The forward over pipeline ranks."""
    function = scope.cls.method("forward")
    loops = [node for node in function.body.body if isinstance(node, cst.For)]
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
    needed: set[str] = set()
    for line in inner:
        needed |= names_read(line.node)
    before = rewriting.function(body, keep={*needed, carried})
    after = rewriting.function(function.body.body[index + 1 :])
    rewriting.fates[loop] = Fate("rewritten", RULE)
    check_kept(work, scope, [*rewriting.left, *inner_left(inner)])
    check_ranks(scope, before, [line.node for line in inner], after, carried, loop)
    step = [line.node for line in inner]
    if residual:
        step = [with_second_target(line, carried) for line in step]
    name = loop_target(loop)
    lines: list[Statement] = [
        first_rank(before, handed, embedding),
        *parsed(
            [
                "remote_aux = self.collect_remote_aux_hidden_states("
                "intermediate_tensors)",
                "aux_hidden_states: list[torch.Tensor] = []",
                "if get_pp_group().is_first_rank:\n"
                "    self._maybe_add_hidden_state(aux_hidden_states, self.start_layer, "
                f"{carried}, {'residual' if residual else 'None'})\n",
            ]
        ),
        loop_statement(name, layers, step, carried, residual),
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
    )


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


def first_rank(
    before: list[Statement], handed: list[str], embedding: Child
) -> Statement:
    """The branch that embeds tokens, or takes what the rank before handed on."""
    made = cst.ensure_type(
        statement(
            "if get_pp_group().is_first_rank:\n    pass\nelse:\n"
            "    assert intermediate_tensors is not None\n"
            + "".join(f'    {n} = intermediate_tensors["{n}"]\n' for n in handed)
        ),
        cst.If,
    )
    own = list(before)
    if len(handed) > 1:
        own.append(statement("residual = None"))
    return made.with_changes(body=cst.IndentedBlock(own))


def loop_target(loop: cst.For) -> str:
    """The name of the layer in the loop."""
    target: cst.BaseExpression = loop.target
    if isinstance(target, cst.Tuple):
        target = target.elements[-1].value
    return cst.ensure_type(target, cst.Name).value


def with_second_target(line: Statement, carried: str) -> Statement:
    """`x = layer(…)` as `x, residual = layer(…)`."""
    small = cst.ensure_type(line, cst.SimpleStatementLine).body[0]
    if isinstance(small, cst.Assign) and code(small.targets[0].target) == carried:
        return statement(f"{carried}, residual = {code(small.value)}")
    raise Refused("loop", "the loop does more than call the layer", line)


def loop_statement(
    name: str, layers: Child, step: list[Statement], carried: str, residual: bool
) -> Statement:
    """The loop over this rank's layers."""
    made = cst.ensure_type(
        statement(
            f"for idx, {name} in enumerate("
            f"islice(self.{layers.name}, self.start_layer, self.end_layer), "
            "start=self.start_layer):\n"
            "    self._maybe_add_hidden_state(aux_hidden_states, idx + 1, "
            f"{carried}, {'residual' if residual else 'None'})\n"
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


def construct_layers(work: Work, scope: Scope, layers: Child, embedding: Child) -> None:
    """Constructors of the embedding, the layer list and what the last rank has."""
    edits = work.edits_of(scope)
    vocabulary, width = (code(arg.value) for arg in embedding.call.args[:2])
    edits.swap(
        embedding.statement,
        "embedding",
        [
            "if get_pp_group().is_first_rank or "
            "(config.tie_word_embeddings and get_pp_group().is_last_rank) or "
            "spec_decode_needs_target_embed(vllm_config):\n"
            f"    self.{embedding.name} = VocabParallelEmbedding("
            f"{vocabulary}, {width}, "
            "quant_config=vllm_config.quant_config, "
            f'prefix=f"{{prefix}}.{embedding.name}")\n'
            "else:\n"
            f"    self.{embedding.name} = PPMissingLayer()\n"
        ],
    )
    arguments = []
    for arg in layers.call.args:
        value = scope.init.values[arg.value]
        text = (
            "extract_layer_index(prefix)" if value.op == "element" else code(arg.value)
        )
        arguments.append(f"{arg.keyword.value}={text}" if arg.keyword else text)
    count = code(count_node(scope, layers))
    edits.swap(
        layers.statement,
        RULE,
        [
            "self.start_layer, self.end_layer, "
            f"self.{layers.name} = make_layers({count}, lambda prefix: {layers.kind}("
            f"{', '.join(arguments)}, vllm_config=vllm_config, prefix=prefix), "
            f'prefix=f"{{prefix}}.{layers.name}")'
        ],
    )
    for child in scope.children.values():
        if child.kind in work.norms:
            last_rank_only(work, scope, child)
    handed = '["hidden_states", "residual"]'
    if layers.kind not in work.with_residual:
        handed = '["hidden_states"]'
    edits.append(
        scope.cls.method("__init__").body.body[-1],
        [
            "self.make_empty_intermediate_tensors = "
            f"make_empty_intermediate_tensors_factory({handed}, {width})"
        ],
    )


def last_rank_only(work: Work, scope: Scope, child: Child) -> None:
    """A norm after the loop exists on the last rank only."""
    from transpiler.lower.classes import norm_text

    work.edits_of(scope).swap(
        child.statement,
        "rms norm",
        [
            f"if get_pp_group().is_last_rank:\n    {norm_text(work, child)}\n"
            f"else:\n    self.{child.name} = PPMissingLayer()\n"
        ],
    )


def count_node(scope: Scope, layers: Child) -> cst.BaseExpression:
    """The number of layers in the comprehension that makes them."""
    for node, value in scope.init.values.items():
        if isinstance(node, cst.Call) and value.op == "call" and value.name == "range":
            return node.args[0].value
    raise Refused("layers", "no range", layers.call)


def shelled(work: Work, scope: Scope, init: cst.FunctionDef) -> cst.FunctionDef:
    """The constructor as vLLM calls it: `(*, vllm_config, prefix="")`."""
    made = cst.ensure_type(
        statement(
            'def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):\n'
            "    pass\n"
        ),
        cst.FunctionDef,
    )
    body = [line for line in init.body.body if isinstance(line, cst.BaseStatement)]
    start: list[cst.BaseStatement] = [
        statement("config = vllm_config.model_config.hf_text_config"),
        statement("self.config = config"),
        *(statement(check) for check in work.model_checks if "self." not in check),
        statement(
            "# Each attention says its own window; none may use the engine's.\n"
            "vllm_config.cache_config.sliding_window = None"
        ),
    ]
    late = [statement(check) for check in work.model_checks if "self." in check]
    rest = [line for line in body[1:] if code(line).strip() != "self.config = config"]
    return made.with_changes(
        body=cst.IndentedBlock([body[0], *start, *rest, *late]),
        leading_lines=[cst.EmptyLine(indent=False)],
    )


def handed_values(work: Work, scope: Scope) -> list[Value]:
    """Values that the loop carries."""
    return [v for v in distinct_values(scope) if v.op == "carried"]
