"""The inner model: its constructor, and its forward as `loop` makes it.

Embedding and head norm exist only on the ranks that use them.

Refused when, besides what is listed below
    child: the model holds a linear of its own.
    constructor: the model's constructor does not begin with its base's, or reads more
        than the config.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from transpiler.analyse.module import ModelingClass
from transpiler.analyse.names import is_configuration
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import is_const
from transpiler.edits import statement
from transpiler.fusions.fusion import (
    LINEAR,
    Work,
    distinct_values,
    forward_of,
)
from transpiler.lower.classes import (
    Lowered,
    attributes_read,
    lower_children,
    lower_constructor,
)
from transpiler.lower.embedding import (
    construct_embedding,
    embed_method,
    the_embedding,
)
from transpiler.lower.flat import lower_passing
from transpiler.lower.loop import RULE, lower_loop
from transpiler.lower.norms import is_last, lower_norm
from transpiler.lower.positions import lower_positions
from transpiler.lower.window import mask_checks
from transpiler.refusal import Refused
from transpiler.rewrite import names_read
from transpiler.tree import code, nodes_within

# Attributes that vLLM reads from outside.
SHELL = frozenset({"config", "make_empty_intermediate_tensors"})


def lower_model(work: Work, scope: Scope) -> Lowered:
    """Lower the class that holds the embedding and the layers.

    Raises:
        Refused: [loop], [layers], [pipeline], [model-result], and what the embedding,
            `config_check` and the masks refuse.
    """
    layers = the_layers(work, scope)
    embedding = the_embedding(work, scope)
    lower_result(work, scope)
    work.model_checks[:0] = [config_check(work, scope)]
    work.model_checks += mask_checks(work, scope, forward_of(scope))
    construct_embedding(work, scope, embedding)
    lower_positions(work, scope, embedding.child)
    lower_passing(work, scope)
    forward, fates, handed = lower_loop(work, scope, layers)
    construct_layers(work, scope, layers, code(embedding.width), handed)
    lower_children(work, scope)
    embed = embed_method(embedding)
    read = {*attributes_read(forward), *attributes_read(embed), *SHELL}
    for check in work.model_checks:
        read |= attributes_read(statement(check))
    init, more = lower_constructor(work, scope, read)
    init = shelled(work, scope, init)
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


def config_check(work: Work, scope: Scope) -> str:
    """Statement that refuses a config of another class: another model's semantics.

    Raises:
        Refused: [config-class] when the constructor does not say which class it takes.
    """
    causal = work.program.causal.name
    given = [p.annotation for p in scope.cls.method("__init__").params.params[1:]]
    for annotation in (*given, *annotations_of(work, scope.cls)):
        if annotation is not None:
            name = code(annotation.annotation)
            if is_configuration(work.program.module.resolve(name)):
                return f'require_config(config, {name}, "{causal}")'
    raise Refused("config-class", "the config's class is not annotated", scope.cls.node)


def annotations_of(work: Work, cls: ModelingClass) -> Iterator[cst.Annotation]:
    """What a class and its bases in the file say that `config` is.

    Transformers takes the config's class from there.
    """
    for line in cls.node.body.body:
        small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
        if isinstance(small, cst.AnnAssign) and code(small.target) == "config":
            yield small.annotation
    for base in cls.bases:
        if base in work.program.module.classes:
            yield from annotations_of(work, work.program.module.classes[base])


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
            whole = bounds.op == "slice" and all(
                is_const(bounds.args[i], None) for i in (0, 2)
            )
            if not whole or bounds.args[1] is not count:
                raise Refused(
                    "layers", f"self.{child.name} is sliced otherwise", scope.cls.node
                )
    return child


def lower_result(work: Work, scope: Scope) -> None:
    """`return Output(last_hidden_state=x, …)` returns x."""
    edits = work.edits_of(scope)
    flow = forward_of(scope)
    result = flow.result
    if result is None or not result.name.startswith("modeling_outputs.BaseModelOutput"):
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

            edits.replace(node, "model result", only, [kept[0].value])


def construct_layers(
    work: Work, scope: Scope, layers: Child, width: str, handed: list[str]
) -> None:
    """Constructors of the layer list and what the last rank has."""
    edits = work.edits_of(scope)
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
        if child.kind == LINEAR:
            raise Refused("child", f"self.{child.name} is not lowered", child.call)
        if child.kind in work.norms:
            ranks = "get_pp_group().is_last_rank" if is_last(work, scope, child) else ""
            lower_norm(work, scope, child, ranks)
    keys = ", ".join(f'"{name}"' for name in handed)
    edits.append(
        scope.cls.method("__init__").body.body[-1],
        [
            "self.make_empty_intermediate_tensors = "
            f"make_empty_intermediate_tensors_factory([{keys}], {width})"
        ],
    )


def count_node(scope: Scope, layers: Child) -> cst.BaseExpression:
    """The number of layers in the comprehension that makes them."""
    for node in nodes_within(layers.statement):
        if isinstance(node, cst.BaseSimpleComp) and node.elt is layers.call:
            return cst.ensure_type(node.for_in.iter, cst.Call).args[0].value
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
    if code(body[0]).strip() != "super().__init__()":
        raise Refused("constructor", "super().__init__ is not first", scope.cls.node)
    for name, value in scope.parameters.items():
        if value.op != "config" and any(name in names_read(line) for line in body):
            raise Refused("constructor", f"{name} is read", scope.cls.node)
    start: list[cst.BaseStatement] = [
        statement("config = vllm_config.model_config.hf_config.get_text_config()"),
        statement("self.config = config"),
        *(statement(check) for check in work.model_checks),
        statement(
            "# Each attention says its own window; none may use the engine's.\n"
            "vllm_config.cache_config.sliding_window = None"
        ),
    ]
    rest = [line for line in body[1:] if code(line).strip() != "self.config = config"]
    return made.with_changes(
        body=cst.IndentedBlock([body[0], *start, *rest]),
        leading_lines=[cst.EmptyLine(indent=False)],
    )
