"""Write a tiny random checkpoint whose weights make mistakes visible.

With Transformers' own initialisation (0.02, zero biases, unit norms) a forgotten bias
changes nothing and a wrong activation hides below float noise. Here biases are of the
order of one, norm weights are away from one, and matrices keep their input's scale.
"""

from __future__ import annotations

import json
import random
import zlib
from pathlib import Path
from typing import Any

from transpiler.verify.outputs import Request
from transpiler.verify.variants import Family, Head, Tensors, Variant

# Standard deviations. A matrix multiplies its input's scale by GAIN; the head's gives
# logits a spread of about 3, far from uniform and not yet one token with all the mass.
# The embedding has the head's, since it may be the head.
GAIN = 1.0
HEAD_GAIN = 3.0
BIAS = 0.5
NORM = 0.3


def write_checkpoint(folder: Path, family: Family, variant: Variant, seed: int) -> None:
    """Write `config.json` and `model.safetensors` of a variant into `folder`.

    The same seed gives the same tensors whatever the other variants are.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_config(folder, family, variant)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = {n: random_like(n, p, seed) for n, p in model.named_parameters()}
    _edit(tensors, variant.tensors, seed)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})


def write_config(folder: Path, family: Family, variant: Variant) -> None:
    """Write the `config.json` of a variant into `folder`."""
    text = json.dumps(family.config_json(variant), indent=1)
    (folder / "config.json").write_text(text)


def request_of(family: Family, variant: Variant, seed: int) -> Request:
    """Return a variant's prompts: random token ids of its lengths, each after a 0."""
    vocab_size = family.config_json(variant)["vocab_size"]
    draw = random.Random(f"{seed} {variant.prompt_lengths}")
    prompts = tuple(
        (0, *(draw.randrange(vocab_size) for _ in range(length - 1)))
        for length in variant.prompt_lengths
    )
    return Request(prompts, variant.new_tokens)


def random_like(name: str, initial: Any, seed: int) -> Any:
    """A float32 tensor in the place of a parameter as upstream's constructor makes it.

    A norm's weight that is zero at first is added to one: it is drawn about zero.
    """
    return random_tensor(name, tuple(initial.shape), seed, bool(initial.any()))


def random_tensor(
    name: str, shape: tuple[int, ...], seed: int, about_one: bool = True
) -> Any:
    """A float32 tensor for a parameter, from its name, shape and the seed.

    Args:
        name: Its name in the checkpoint.
        shape: Its shape.
        seed: What it is drawn from, with its name.
        about_one: Whether a vector that is no bias is drawn about one, or zero.
    """
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    noise = torch.randn(shape, generator=generator)
    if name.endswith(".bias"):
        return noise * BIAS
    if len(shape) == 1:
        return about_one + noise * NORM
    is_head = name.startswith("lm_head") or name.endswith("embed_tokens.weight")
    gain = HEAD_GAIN if is_head else GAIN
    return noise * gain / shape[-1] ** 0.5


def _edit(tensors: dict[str, Any], edits: Tensors, seed: int) -> None:
    """Change what the checkpoint holds as a variant asks."""
    head = "lm_head.weight"
    (embedding,) = (name for name in tensors if name.endswith("embed_tokens.weight"))
    if edits.head is Head.ABSENT:
        tensors.pop(head, None)
    elif edits.head is Head.COPY:
        tensors[head] = tensors[embedding].clone()
    elif edits.head is Head.DIFFERENT:
        tensors[head] = random_tensor(head, tuple(tensors[embedding].shape), seed)
    for name, shape in edits.added.items():
        tensors[name] = random_tensor(name, shape, seed)
    for old, new in edits.renamed.items():
        tensors[new] = tensors.pop(old)
    for name in edits.dropped:
        del tensors[name]
