"""Variants of what a checkpoint holds: tied heads, unknown and missing tensors."""

from __future__ import annotations

from transpiler.verify.variants import (
    Expected,
    Head,
    Outcome,
    Pick,
    Tensors,
    Variant,
)

TIED = {"tie_word_embeddings": True}
NAMED = Expected(Outcome.RAISES)

HEADS = (
    Variant("tied", TIED),
    Variant("tied-head-copy", TIED, tensors=Tensors(head=Head.COPY)),
    # Neither upstream nor vLLM ties what the checkpoint holds apart.
    Variant("tied-head-different", TIED, tensors=Tensors(head=Head.DIFFERENT)),
    Variant(
        "untied-head-missing",
        {"tie_word_embeddings": False},
        tensors=Tensors(dropped=Pick.HEAD),
        expected=NAMED,
    ),
)


def missing(name: str, pick: Pick) -> Variant:
    """A checkpoint without a tensor that upstream would make up at random."""
    tensors = Tensors(dropped=pick)
    return Variant(f"missing-{name}", tensors=tensors, expected=NAMED)


def biased(name: str, pick: Pick) -> Variant:
    """A checkpoint with a bias that upstream does not know."""
    tensors = Tensors(biased=pick)
    return Variant(f"unknown-bias-{name}", tensors=tensors, expected=NAMED)


UNKNOWN = (
    biased("first", Pick.FIRST),
    biased("penultimate", Pick.PENULTIMATE),
    biased("last", Pick.LAST),
    biased("norm", Pick.NORM),
    biased("head", Pick.HEAD),
    Variant(
        "unknown-tensor",
        tensors=Tensors(added={"{layer}.extra_proj.weight": (128, 128)}),
        expected=NAMED,
    ),
    # What old checkpoints carry and upstream knows to skip: its own rotary buffer.
    Variant(
        "old-rotary-buffer",
        tensors=Tensors(added={"{layer}.self_attn.rotary_emb.inv_freq": (16,)}),
    ),
)

# Of merged layers the other shards name the layer as loaded all the same.
MISSING = (
    missing("first", Pick.FIRST),
    missing("second", Pick.SECOND),
    missing("penultimate", Pick.PENULTIMATE),
    missing("last", Pick.LAST),
    missing("bias", Pick.BIAS),
    missing("norm", Pick.NORM),
    missing("final", Pick.FINAL),
    Variant("renamed-tensor", tensors=Tensors(renamed=Pick.LAST), expected=NAMED),
)

TENSORS = (*HEADS, *UNKNOWN, *MISSING)
