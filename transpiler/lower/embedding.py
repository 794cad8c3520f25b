"""The token embedding: vLLM's vocabulary-parallel one, and its scale.

`embed_input_ids` is what vLLM asks for embeddings with, which it may change and then
give to the forward. So it does what upstream does to what it looked up, and nothing
that upstream does to given embeddings as well.

Refused when
    embedding: there is not one look-up of the tokens in one embedding, its result is
        changed before given embeddings come in, or an argument is not known.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from transpiler.analyse.module import EMBEDDING
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value
from transpiler.edits import statement
from transpiler.fusions.fusion import Work, distinct_values, forward_of, users_of
from transpiler.fusions.moved import check_moved
from transpiler.refusal import Refused
from transpiler.tree import code

RULE = "embedding"
ARGUMENTS = ("num_embeddings", "embedding_dim", "padding_idx")


@dataclass(frozen=True)
class TokenEmbedding:
    """The embedding that tokens are looked up in.

    Attributes:
        child: The module.
        vocabulary: Expression of its number of rows.
        width: Expression of its width.
        scale: Expression of what the rows are multiplied by, if anything.
        scale_name: Attribute of the model that holds the scale.
        is_rounded: Whether the scale has the precision of the weight.
    """

    child: Child
    vocabulary: cst.BaseExpression
    width: cst.BaseExpression
    scale: cst.BaseExpression | None = None
    scale_name: str = ""
    is_rounded: bool = False


def the_embedding(work: Work, scope: Scope) -> TokenEmbedding:
    """The embedding of the class that holds the layers.

    Raises:
        Refused: [embedding].
    """
    lookups = [
        value
        for value in distinct_values(scope)
        if value.op == "module" and value.args[1:] and value.args[1].op == "tokens?"
    ]
    kinds = {EMBEDDING, *work.embeddings}
    held = [child for child in scope.children.values() if child.kind in kinds]
    if len(lookups) != 1 or not held:
        what = f"{len(lookups)} look-ups of the tokens, {len(held)} known embeddings"
        raise Refused("embedding", what, held[0].call if held else scope.cls.node)
    (lookup,) = lookups
    child = scope.children[lookup.args[0].name]
    if child not in held:
        raise Refused("embedding", f"{child.kind} is not in the table", child.call)
    if len(lookup.args) != 2 or lookup.keywords:
        raise Refused("embedding", "not one look-up of the tokens", child.call)
    for user in users_of(scope, lookup):
        if user.op != "choice" or any(
            side is not lookup and side.op != "param" for side in user.args[1:]
        ):
            raise Refused("embedding", "the look-up is changed", child.call)
    return described(work, scope, child)


def stream_width(work: Work) -> Value | None:
    """The width of what the layers hand on: of the model's one embedding."""
    kinds = {EMBEDDING, *work.embeddings}
    found = [
        scope.init.values[described(work, scope, child).width]
        for scope in work.program.scopes.values()
        for child in scope.children.values()
        if child.kind in kinds
    ]
    return found[0] if len(found) == 1 else None


def described(work: Work, scope: Scope, child: Child) -> TokenEmbedding:
    """What the constructor call of an embedding says."""
    places = {name: (place, name) for place, name in enumerate(ARGUMENTS)}
    row = ""
    if child.kind in work.embeddings:
        row, roles = work.embeddings[child.kind]
        parameters = work.scope(child.kind).cls.method("__init__").params.params
        ours = [parameter.name.value for parameter in parameters[1:]]
        places = {
            role: (ours.index(value.name), value.name)
            for role, value in roles.items()
            if not role.startswith("forward.")
        }
    check_arguments(child, [name for _, name in places.values()])
    given = {role: child.argument(*place) for role, place in places.items()}
    vocabulary, width = given["num_embeddings"], given["embedding_dim"]
    scale = given.get("embed_scale")
    if vocabulary is None or width is None or (row and scale is None):
        raise Refused("embedding", "a size or a scale is not given", child.call)
    found = TokenEmbedding(child, vocabulary, width)
    if scale is None:
        return found
    name = "embed_scale"
    if name in {*scope.children, *scope.init.assigned, *scope.cls.methods}:
        raise Refused("embedding", f"self.{name} exists", child.call)
    return TokenEmbedding(child, vocabulary, width, scale, name, row == "buffer")


def check_arguments(child: Child, known: list[str]) -> None:
    """An embedding is given what its row, or torch's class, is known to take."""
    for place, arg in enumerate(child.call.args):
        if arg.star or (arg.keyword is None and place >= len(known)):
            raise Refused("embedding", f"{code(arg)} is not known", child.call)
        if arg.keyword is not None and arg.keyword.value not in known:
            raise Refused("embedding", f"{arg.keyword.value}= is not known", child.call)


def construct_embedding(work: Work, scope: Scope, made: TokenEmbedding) -> None:
    """The embedding on the ranks that use it, and the scale beside it."""
    edits = work.edits_of(scope)
    init = scope.cls.method("__init__")
    name = made.child.name
    check_moved(scope, made.width, init)
    edits.swap(
        made.child.statement,
        RULE,
        [
            "if get_pp_group().is_first_rank or "
            "(config.tie_word_embeddings and get_pp_group().is_last_rank) or "
            "spec_decode_needs_target_embed(vllm_config):\n"
            f"    self.{name} = VocabParallelEmbedding("
            f"{code(made.vocabulary)}, {code(made.width)}, "
            "quant_config=vllm_config.quant_config, "
            f'prefix=f"{{prefix}}.{name}")\n'
            "else:\n"
            f"    self.{name} = PPMissingLayer()\n"
        ],
    )
    if made.scale is None:
        return
    text = code(made.scale)
    if made.is_rounded:
        text = f"nn.Buffer(torch.tensor({text}), persistent=False)"
    edits.append(made.child.statement, [f"self.{made.scale_name} = {text}"])
    flow = forward_of(scope)
    for node in flow.calls:
        if code(node.func) == f"self.{name}":
            edits.replace(node, RULE, by_method, [arg.value for arg in node.args])


def by_method(node: cst.BaseExpression) -> cst.BaseExpression:
    """`self.embedding(tokens)` as `self.embed_input_ids(tokens)`."""
    call = cst.ensure_type(node, cst.Call)
    return call.with_changes(func=cst.parse_expression("self.embed_input_ids"))


def embed_method(made: TokenEmbedding) -> cst.FunctionDef:
    """`embed_input_ids`: the look-up, scaled."""
    scaled = f" * self.{made.scale_name}" if made.scale is not None else ""
    text = (
        "def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:\n"
        f"    return self.{made.child.name}(input_ids){scaled}\n"
    )
    return cst.ensure_type(statement(text), cst.FunctionDef)
