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

from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value, is_const
from transpiler.edits import Fate, code, statement
from transpiler.fusions.fusion import LINEAR, Work, bias_of, forward_of, size_of
from transpiler.lower.classes import Lowered, class_fates
from transpiler.lower.model import EMBEDDING
from transpiler.refusal import Refused
from transpiler.rewrite import statements_within

RULE = "head and shell"


def lower_causal(work: Work, scope: Scope) -> Lowered:
    """Lower the class that vLLM loads.

    Raises:
        Refused: [head] when the logits are more than the head of the model's result.
    """
    head, model = check_head(work, scope)
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
    logits = dict(result.keywords).get("logits") if result is not None else None
    if logits is None or logits.op != "module" or logits.args[0].op != "child":
        raise Refused("head", "the logits are not the head's output", where)
    head = scope.children.get(logits.args[0].name)
    if head is None or head.kind != LINEAR:
        raise Refused("head", "the head is not a linear", where)
    if not is_const(bias_of(scope, head)[0], False):
        raise Refused("head", "the head may have a bias", head.call)
    hidden = all_tokens(logits.args[1])
    if hidden.op != "attr" or hidden.name != "last_hidden_state":
        raise Refused("head", "the head does not read the model's result", where)
    call = hidden.args[0]
    model = scope.children.get(call.args[0].name) if call.op == "module" else None
    if model is None or flow.writes:
        raise Refused("head", "the head does not read the model's result", where)
    check_class_facts(work, scope, head, model)
    others = [c.name for c in scope.children.values() if c not in (head, model)]
    if others:
        raise Refused("child", f"self.{others[0]} is not lowered", scope.cls.node)
    return head, model


def check_class_facts(work: Work, scope: Scope, head: Child, model: Child) -> None:
    """What the class says of tied weights and precision is what is generated.

    Raises:
        Refused: [tied-weights] when the head is not tied to the embedding by the
            config's switch; [keep-in-fp32] when modules keep another precision.
    """
    owner = work.scope(model.kind)
    embedding = work.program.only_child(owner, EMBEDDING)
    tied = {f"{head.name}.weight": f"{model.name}.{embedding.name}.weight"}
    facts = class_facts(work, scope.name)
    node = facts.get("_tied_weights_keys", "None")
    if ast.literal_eval(node) != tied:
        raise Refused("tied-weights", f"_tied_weights_keys is {node}", scope.cls.node)
    for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
        if facts.get(name, "None") not in {"None", "[]"}:
            raise Refused("keep-in-fp32", f"{name} is set", scope.cls.node)


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
                    target = code(small.targets[0].target)
                    found[target] = code(small.value)
    return found


def all_tokens(value: Value) -> Value:
    """`x[:, slice(0, None), :]` is x."""
    if value.op != "subscript" or value.args[1].op != "tuple":
        return value
    for part in value.args[1].args:
        bounds = part.args
        if part.op != "slice" or not all(
            is_const(bound, None) or is_const(bound, 0) for bound in bounds
        ):
            return value
    return value.args[0]


def mapper_text(work: Work) -> str:
    """Checkpoint names of merged projections, scoped by the owner's attribute."""
    lines: list[str] = []
    for shard in work.shards:
        lines += [
            f'".{path}.{shard.source}": (".{path}.{shard.target}", {shard.shard}),'
            for path in owners(work, shard.owner)
        ]
    return " ".join(lines)


def owners(work: Work, name: str) -> list[str]:
    """Attribute names under which a class is held, in order."""
    found: dict[str, None] = {}
    for scope in work.program.scopes.values():
        for child in scope.children.values():
            if child.kind == name:
                found[child.name] = None
    return list(found)


def packed_text(work: Work) -> str:
    """`packed_modules_mapping`: merged layer -> its shards, by leaf name."""
    merged: dict[str, list[str]] = {}
    for shard in work.shards:
        names = merged.setdefault(shard.target, [])
        if shard.source not in names:
            names.append(shard.source)
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
