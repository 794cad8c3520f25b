"""Variants of what a checkpoint holds: tied heads, unknown and missing tensors."""

from __future__ import annotations

from transpiler.verify.variants import Expected, Head, Tensors, Variant, raises

LAYER = "model.layers.1"
TIED = {"tie_word_embeddings": True}


def unknown(name: str, tensor: str, *shape: int, merged: str = "") -> Variant:
    """Return a variant with a tensor that upstream does not know.

    `merged` is what the tensor's name becomes where its layer is merged.
    """
    edits = Tensors(added={tensor: shape})
    return Variant(name, tensors=edits, expected=raises_naming(tensor, merged))


def missing(name: str, tensor: str, merged: str = "") -> Variant:
    """Return a variant without a tensor that upstream would make up at random."""
    edits = Tensors(dropped=(tensor,))
    return Variant(name, tensors=edits, expected=raises_naming(tensor, merged))


def raises_naming(tensor: str, merged: str = "") -> Expected:
    """Expect an error that names a tensor, from the model or from `model` downwards.

    Of a weight that has no home the module's name is enough.
    """
    names = [tensor, f"{LAYER}.{merged}"] if merged else [tensor]
    names += [name.removeprefix("model.") for name in names]
    names += [name.removesuffix(".weight") for name in names]
    return raises(*dict.fromkeys(names))


HEADS = (
    Variant("tied", TIED),
    Variant("tied-head-copy", TIED, tensors=Tensors(head=Head.COPY)),
    # Neither upstream nor vLLM ties what the checkpoint holds apart.
    Variant("tied-head-different", TIED, tensors=Tensors(head=Head.DIFFERENT)),
    missing("untied-head-missing", "lm_head.weight"),
)

UNKNOWN = (
    unknown("unknown-bias-attention", f"{LAYER}.self_attn.o_proj.bias", 128),
    unknown(
        "unknown-bias-mlp",
        f"{LAYER}.mlp.gate_proj.bias",
        176,
        merged="mlp.gate_up_proj.bias",
    ),
    unknown("unknown-bias-norm", f"{LAYER}.input_layernorm.bias", 128),
    unknown("unknown-bias-head", "lm_head.bias", 320),
    unknown("unknown-tensor", f"{LAYER}.mlp.extra_proj.weight", 128, 128),
    # What old checkpoints carry and upstream knows to skip: its own rotary buffer.
    Variant(
        "old-rotary-buffer",
        tensors=Tensors(added={f"{LAYER}.self_attn.rotary_emb.inv_freq": (16,)}),
    ),
)

MISSING = (
    missing("missing-tensor", f"{LAYER}.mlp.down_proj.weight"),
    missing("missing-norm", "model.norm.weight"),
    # Its merged layer is named as loaded all the same, by the other two shards.
    missing(
        "missing-shard-attention",
        f"{LAYER}.self_attn.k_proj.weight",
        merged="self_attn.qkv_proj.weight",
    ),
    missing(
        "missing-shard-mlp",
        f"{LAYER}.mlp.up_proj.weight",
        merged="mlp.gate_up_proj.weight",
    ),
    Variant(
        "renamed-tensor",
        tensors=Tensors(
            renamed={f"{LAYER}.mlp.down_proj.weight": f"{LAYER}.mlp.down.weight"}
        ),
        expected=raises_naming(f"{LAYER}.mlp.down.weight"),
    ),
)

TENSORS = (*HEADS, *UNKNOWN, *MISSING)

# For families whose q, k and v have a bias whatever the config says.
QKV_BIASES = (
    missing(
        "missing-bias-shard",
        f"{LAYER}.self_attn.k_proj.bias",
        merged="self_attn.qkv_proj.bias",
    ),
)

# For families whose q, k and v have none unless the config says so.
UNKNOWN_QKV_BIAS = (
    unknown(
        "unknown-bias-query",
        f"{LAYER}.self_attn.q_proj.bias",
        128,
        merged="self_attn.qkv_proj.bias",
    ),
)
