"""The causal class: head, logits, weight names and the interfaces vLLM asks for.

Upstream's forward ends in `lm_head(hidden_states)`; vLLM asks for hidden states
first and for the logits of some of them later.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.edits import Fate, statement
from transpiler.fusions.fusion import Work, size_of
from transpiler.lower.classes import Lowered, class_fates
from transpiler.lower.embedding import the_embedding
from transpiler.lower.head import the_head
from transpiler.lower.operations import check_kept
from transpiler.refusal import Refused
from transpiler.tree import statements_within

RULE = "head and shell"


def lower_causal(work: Work, scope: Scope) -> Lowered:
    """Lower the class that vLLM loads."""
    head = the_head(work, scope)
    check_kept(work, scope, [], [])
    owner = work.scope(head.model.kind)
    embedding = the_embedding(work, owner).child
    vocabulary = size_of(scope, head.linear, 1)[1]
    text = TEMPLATE.format(
        name=scope.name,
        mapper=prefixes_text(work) + mapper_text(work),
        packed=packed_text(work),
        lora="" if work.by_head else "SupportsLoRA, ",
        rows=rows_text(work),
        embedding=embedding.name,
        head=head.linear.name,
        model=head.model.name,
        model_class=head.model.kind,
        vocabulary=vocabulary,
        width=size_of(scope, head.linear, 0)[1],
        bias=f"bias={head.bias}," if head.bias else "",
        processor=", ".join([vocabulary, *head.changes]),
        given_bias=f", self.{head.linear.name}.bias" if head.bias else "",
    )
    node = cst.ensure_type(statement(text), cst.ClassDef)
    fates = class_fates(scope)
    for method in ("__init__", "forward"):
        fates[scope.cls.method(method)] = Fate("rewritten", RULE)
        for inner in statements_within(scope.cls.method(method)):
            fates[inner] = Fate("rewritten", RULE)
    return Lowered(scope.name, node, fates)


def prefixes_text(work: Work) -> str:
    """Beginnings of checkpoint names that Transformers renames."""
    entries = ", ".join(f'"{old}": "{new}"' for old, new in work.renames)
    return f"orig_to_new_prefix={{{entries}}}, " if entries else ""


def mapper_text(work: Work) -> str:
    """Checkpoint names of merged projections, scoped by the owner's attribute."""
    entries = [
        (f".{path}.{shard.source}", f".{path}.{shard.target}", shard.shard)
        for shard in work.shards
        if shard.shard
        for path in owners(work, shard.owner)
    ]
    renamed = [(old, new) for old, new, _ in entries]
    for path in dict.fromkeys(old.split(".")[1] for old, _ in renamed):
        for held in holders(work, path):
            check_renamed(work, held, path, renamed)
    text = " ".join(f'"{old}": ("{new}", {shard}),' for old, new, shard in entries)
    return f"orig_to_new_stacked={{{text}}}" if entries else ""


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


def rows_text(work: Work) -> str:
    """Statement that orders the rows of packed projections, empty without any.

    vLLM takes the rows of a LoRA adapter as they come, so that such a model has none.
    """
    entries = [
        f'".{path}.{name}.": {heads}'
        for owner, name, heads in work.by_head
        for path in owners(work, owner)
    ]
    if not entries:
        return ""
    table = ", ".join(entries)
    return f"weights = ungrouped_rows(self, weights, {{{table}}})\n        "


TEMPLATE = """
class {name}(nn.Module, {lora}SupportsPP, SupportsQuant, SupportsEagle3):
    hf_to_vllm_mapper = WeightsMapper({mapper})
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
                {bias}
                quant_config=vllm_config.quant_config,
                prefix=maybe_prefix(prefix, "{head}"),
            )
            if config.tie_word_embeddings:
                self.{head} = self.{head}.tie_weights(self.{model}.{embedding})
        else:
            self.{head} = PPMissingLayer()
        self.logits_processor = LogitsProcessor({processor})
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
        return self.logits_processor(self.{head}, hidden_states{given_bias})

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        weights = strict_weights(
            self, weights, tied=("{head}.weight", "{model}.{embedding}.weight")
        )
        {rows}return AutoWeightsLoader(self).load_weights(
            weights, mapper=self.hf_to_vllm_mapper
        )
"""
