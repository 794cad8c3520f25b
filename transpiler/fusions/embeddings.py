"""Table of token embedding bodies: an embedding whose output is scaled.

The scale stands outside vLLM's embedding: given embeddings are not scaled upstream, and
the head may be tied to the weight.

Refused when
    embedding-scale: the pretrained class does not fill the scale's buffer, which no
        checkpoint holds, with what the constructor gave it.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.bodies import match_class
from transpiler.analyse.module import ModelingClass, ModelingModule
from transpiler.analyse.values import Value
from transpiler.refusal import Refused
from transpiler.tree import code, nodes_within

# Rounded to the weight's precision: gemma, gemma2, gemma3, vaultgemma.
BUFFER = """
class Embedding(nn.Embedding):
    def __init__(self, num_embeddings, embedding_dim, padding_idx, embed_scale):
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.given_scale = embed_scale
        self.embed_scale = nn.Buffer(torch.tensor(embed_scale), persistent=False)

    def forward(self, input_ids):
        return super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)
"""

# A number of Python, never rounded: biogpt.
NUMBER = """
class Embedding(nn.Embedding):
    def __init__(self, num_embeddings, embedding_dim, padding_idx, embed_scale):
        super().__init__(num_embeddings, embedding_dim, padding_idx)
        self.embed_scale = embed_scale

    def forward(self, input_ids):
        return super().forward(input_ids) * self.embed_scale
"""

ROWS = {"buffer": BUFFER, "number": NUMBER}


def match_embedding(
    cls: ModelingClass, module: ModelingModule
) -> tuple[str, dict[str, Value]] | None:
    """The row an embedding class matches, with its parameters by role.

    Raises:
        Refused: [embedding-scale].
    """
    found = match_class(cls, module, ROWS)
    if found is not None and found[0] == "buffer":
        check_filled(cls, module, found[1]["embed_scale"].name)
    return found


def check_filled(cls: ModelingClass, module: ModelingModule, scale: str) -> None:
    """`_init_weights`, which fills what no checkpoint holds, gives the scale itself.

    Args:
        cls: The embedding's class.
        module: The modeling module.
        scale: The constructor's parameter.
    """
    init = cls.method("__init__")
    held = {
        code(node.value): code(node.targets[0].target).removeprefix("self.")
        for node in nodes_within(init)
        if isinstance(node, cst.Assign)
    }
    (buffer,) = (name for text, name in held.items() if "Buffer" in text)
    wanted = f"init.constant_(module.{buffer}, module.{held.get(scale)})"
    known = module.resolve("init.constant_") == "initialization.constant_"
    others = [other.node for other in module.classes.values() if other is not cls]
    nodes = [node for other in others for node in nodes_within(other)]
    filled = any(
        isinstance(node, cst.If)
        and code(node.test) == f"isinstance(module, {cls.name})"
        and code(node.body).strip() == wanted
        for node in nodes
    )
    said = [n for n in nodes if isinstance(n, cst.Attribute) and n.attr.value == buffer]
    if not known or not filled or len(said) != 1:
        raise Refused("embedding-scale", f"self.{buffer} is filled otherwise", init)
