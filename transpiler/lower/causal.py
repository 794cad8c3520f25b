"""The causal class: head, logits, weight names and the interfaces vLLM asks for.

Upstream's forward ends in `lm_head(hidden_states)`; vLLM asks for hidden states
first and for the logits of some of them later. Anything else between the model and
the logits is refused.

Refused when, besides what is listed below
    child: the class has a module besides the head and the model.
"""

from __future__ import annotations

import ast

import libcst as cst

from transpiler.analyse.bodies import parameter_names
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value, is_const
from transpiler.edits import Fate, statement
from transpiler.fusions.fusion import (
    LINEAR,
    Work,
    bias_of,
    check_linear,
    forward_of,
    size_of,
)
from transpiler.lower.classes import Lowered, class_fates
from transpiler.lower.model import EMBEDDING
from transpiler.lower.operations import check_kept
from transpiler.refusal import Refused
from transpiler.tree import code, statements_within

RULE = "head and shell"
EMBEDDING_ARGUMENTS = ("num_embeddings", "embedding_dim")
INPUTS = {"tokens?": "input_ids", "positions": "position_ids", "param": "inputs_embeds"}


def lower_causal(work: Work, scope: Scope) -> Lowered:
    """Lower the class that vLLM loads.

    Raises:
        Refused: [head] when the logits are more than the head of the model's result.
    """
    head, model = check_head(work, scope)
    check_kept(work, scope, [], [])
    owner = work.scope(model.kind)
    embedding = work.program.only_child(owner, EMBEDDING)
    text = TEMPLATE.format(
        name=scope.name,
        mapper=mapper_text(work),
        packed=packed_text(work),
        embedding=embedding.name,
        head=head.name,
        model=model.name,
        model_class=model.kind,
        vocabulary=size_of(scope, head, 1)[1],
        width=size_of(scope, head, 0)[1],
    )
    node = cst.ensure_type(statement(text), cst.ClassDef)
    fates = class_fates(scope)
    for method in ("__init__", "forward"):
        fates[scope.cls.method(method)] = Fate("rewritten", RULE)
        for inner in statements_within(scope.cls.method(method)):
            fates[inner] = Fate("rewritten", RULE)
    return Lowered(scope.name, node, fates)


def check_head(work: Work, scope: Scope) -> tuple[Child, Child]:
    """The head and the model, with nothing else between them and the logits."""
    flow = forward_of(scope)
    where = scope.cls.method("forward")
    result = flow.result
    if result is None or not result.name.startswith("modeling_outputs."):
        raise Refused("head", "the result is not one of Transformers' outputs", where)
    logits = result.keyword("logits")
    if logits is None or logits.op != "module" or logits.args[0].op != "child":
        raise Refused("head", "the logits are not the head's output", where)
    head = scope.children.get(logits.args[0].name)
    if head is None or head.kind != LINEAR:
        raise Refused("head", "the head is not a linear", where)
    if not is_const(bias_of(scope, head)[0], False):
        raise Refused("head", "the head may have a bias", head.call)
    check_linear(head)
    hidden = all_tokens(logits.args[1])
    first = hidden.op == "subscript" and is_const(hidden.args[1], 0)
    if not first and (hidden.op != "attr" or hidden.name != "last_hidden_state"):
        raise Refused("head", "the head does not read the model's result", where)
    call = hidden.args[0]
    model = scope.children.get(call.args[0].name) if call.op == "module" else None
    if model is None or flow.writes:
        raise Refused("head", "the head does not read the model's result", where)
    check_inputs(work, call, model, where)
    check_class_facts(work, scope, head, model)
    others = [c.name for c in scope.children.values() if c not in (head, model)]
    if others:
        raise Refused("child", f"self.{others[0]} is not lowered", scope.cls.node)
    return head, model


def check_inputs(work: Work, call: Value, model: Child, where: cst.CSTNode) -> None:
    """The model is made from the config and called with what the engine gives.

    Raises:
        Refused: [model-call] when the class changes an input, or makes the model with
            more than the config: the generated class does neither.
    """
    made = [*model.value.args, *(v for _, v in model.value.keywords)]
    if [operand.op for operand in made] != ["config"]:
        raise Refused("model-call", "not made from the config alone", model.call)
    given = [*call.args[1:], *(v for _, v in call.keywords)]
    for operand in given:
        parts = {part.op for part in operand.walk()}
        plain = operand.op in {"tokens?", "positions", "param"}
        if parts & {"tokens?", "positions", "param"} and not plain:
            raise Refused("model-call", "an input of the model is changed", where)
    kinds = sorted(v.op for v in given if v.op in {"tokens?", "positions", "param"})
    if kinds != ["param", "positions", "tokens?"]:
        raise Refused("model-call", "the model is given other inputs", where)
    places = parameter_names(work.scope(model.kind).cls.method("forward"))
    for name, operand in (*zip(places, call.args[1:], strict=False), *call.keywords):
        wanted = INPUTS.get(operand.op)
        if wanted is not None and name != wanted:
            raise Refused("model-call", f"{wanted} is given as {name}", where)


def check_class_facts(work: Work, scope: Scope, head: Child, model: Child) -> None:
    """What the class says of tied weights and precision is what is generated.

    Raises:
        Refused: [tied-weights] when the head is not tied to the embedding by the
            config's switch; [keep-in-fp32] when modules keep another precision.
    """
    owner = work.scope(model.kind)
    embedding = work.program.only_child(owner, EMBEDDING)
    sizes = [size_of(scope, head, i)[0] for i in (1, 0)]
    ours = [embedding.argument(*at) for at in enumerate(EMBEDDING_ARGUMENTS)]
    if any(
        node is None or owner.init.values[node] is not size
        for node, size in zip(ours, sizes, strict=True)
    ):
        raise Refused("tied-weights", "head and embedding differ in size", head.call)
    tied = {f"{head.name}.weight": f"{model.name}.{embedding.name}.weight"}
    for other in work.program.scopes.values():
        facts = class_facts(work, other.name)
        node = facts.get("_tied_weights_keys", "None")
        if literal(node) != (tied if other is scope else None):
            raise Refused(
                "tied-weights", f"_tied_weights_keys is {node}", other.cls.node
            )
        for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
            if facts.get(name, "None") not in {"None", "[]"}:
                raise Refused("keep-in-fp32", f"{name} is set", other.cls.node)


def literal(text: str) -> object:
    """The constant that a text is, or the text itself."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def class_facts(work: Work, name: str) -> dict[str, str]:
    """Class attributes of a class and its bases in the file, as source text."""
    cls = work.program.module.classes[name]
    found: dict[str, str] = {}
    for base in reversed(cls.bases):
        if base in work.program.module.classes:
            found |= class_facts(work, base)
    for line in cls.node.body.body:
        if isinstance(line, cst.SimpleStatementLine):
            for small in line.body:
                if isinstance(small, cst.Assign):
                    for target in small.targets:
                        found[code(target.target)] = code(small.value)
                elif isinstance(small, cst.AnnAssign) and small.value is not None:
                    found[code(small.target)] = code(small.value)
    return found


def all_tokens(value: Value) -> Value:
    """`x[:, slice(0, None), :]` is x."""
    if value.op != "subscript" or value.args[1].op != "tuple":
        return value
    for part in value.args[1].args:
        if part.op != "slice":
            return value
        start, stop, step = part.args
        begins = is_const(start, None) or is_const(start, 0)
        if not (begins and is_const(stop, None) and is_const(step, None)):
            return value
    return value.args[0]


def mapper_text(work: Work) -> str:
    """Checkpoint names of merged projections, scoped by the owner's attribute."""
    entries = [
        (f".{path}.{shard.source}", f".{path}.{shard.target}", shard.shard)
        for shard in work.shards
        for path in owners(work, shard.owner)
    ]
    renamed = [(old, new) for old, new, _ in entries]
    for path in dict.fromkeys(old.split(".")[1] for old, _ in renamed):
        for held in holders(work, path):
            check_renamed(work, held, path, renamed)
    return " ".join(f'"{old}": ("{new}", {shard}),' for old, new, shard in entries)


def check_renamed(
    work: Work, held: Scope, path: str, renamed: list[tuple[str, str]]
) -> None:
    """The entries, which vLLM applies as parts of names, rename what was merged.

    Raises:
        Refused: [weight-names] for a name that they would leave, or change as well.
    """
    for name in held.children:
        ours = (
            s.target for s in work.shards if (s.owner, s.source) == (held.name, name)
        )
        text, wanted = f".{path}.{name}.", f".{path}.{next(ours, name)}."
        for old, new in renamed:
            text = text.replace(old, new, 1)
        if text != wanted:
            raise Refused(
                "weight-names", f"{path}.{name} is renamed otherwise", held.cls.node
            )


def owners(work: Work, name: str) -> list[str]:
    """Attribute names under which a class is held, in order."""
    found: dict[str, None] = {}
    for scope in work.program.scopes.values():
        for child in scope.children.values():
            if child.kind == name:
                found[child.name] = None
    return list(found)


def holders(work: Work, path: str) -> list[Scope]:
    """The classes that are held under an attribute name."""
    found: dict[str, Scope] = {}
    for scope in work.program.scopes.values():
        child = scope.children.get(path)
        held = work.program.scopes.get(child.kind) if child is not None else None
        if held is not None:
            found[held.name] = held
    return list(found.values())


def packed_text(work: Work) -> str:
    """`packed_modules_mapping`: merged layer -> its shards, by leaf name.

    Raises:
        Refused: [weight-names] for a merged layer with other shards in another class.
    """
    merged: dict[str, list[str]] = {}
    for shard in work.shards:
        same = [s for s in work.shards if s.target == shard.target]
        names = [s.source for s in same if s.owner == shard.owner]
        if merged.setdefault(shard.target, names) != names:
            raise Refused(
                "weight-names",
                f"self.{shard.target} is merged from other layers elsewhere",
                work.scope(shard.owner).cls.node,
            )
    return ", ".join(
        f'"{target}": [{", ".join(repr(n) for n in names)}]'
        for target, names in merged.items()
    )


TEMPLATE = """
class {name}(nn.Module, SupportsLoRA, SupportsPP, SupportsQuant, SupportsEagle3):
    hf_to_vllm_mapper = WeightsMapper(orig_to_new_stacked={{{mapper}}})
    packed_modules_mapping = {{{packed}}}
    embedding_modules = {{
        "{embedding}": "input_embeddings",
        "{head}": "output_embeddings",
    }}

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = ""):
        super().__init__()
        config = vllm_config.model_config.hf_config.get_text_config()
        self.config = config
        self.quant_config = vllm_config.quant_config
        self.load_config = vllm_config.load_config
        self.{model} = {model_class}(
            vllm_config=vllm_config, prefix=maybe_prefix(prefix, "{model}")
        )
        if get_pp_group().is_last_rank:
            self.{head} = ParallelLMHead(
                {vocabulary},
                {width},
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix, "{head}"),
            )
            if config.tie_word_embeddings:
                self.{head} = self.{head}.tie_weights(self.{model}.{embedding})
        else:
            self.{head} = PPMissingLayer()
        self.logits_processor = LogitsProcessor({vocabulary})
        self.make_empty_intermediate_tensors = (
            self.{model}.make_empty_intermediate_tensors
        )

    def embed_input_ids(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.{model}.embed_input_ids(input_ids)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: IntermediateTensors | None = None,
        inputs_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor | IntermediateTensors | tuple[torch.Tensor, list[torch.Tensor]]:
        return self.{model}(input_ids, positions, intermediate_tensors, inputs_embeds)

    def compute_logits(self, hidden_states: torch.Tensor) -> torch.Tensor | None:
        return self.logits_processor(self.{head}, hidden_states)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        weights = strict_weights(
            self, weights, tied=("{head}.weight", "{model}.{embedding}.weight")
        )
        return AutoWeightsLoader(self).load_weights(
            weights, mapper=self.hf_to_vllm_mapper
        )
"""
