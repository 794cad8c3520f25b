"""Write a tiny random checkpoint whose weights make mistakes visible.

With Transformers' own initialisation (0.02, zero biases, unit norms) a forgotten bias
changes nothing and a wrong activation hides below float noise. Here biases are of the
order of one, norm weights are away from one, and matrices keep their input's scale.
"""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transpiler.verify.family import Family
from transpiler.verify.outputs import Request
from transpiler.verify.variants import Head, Pick, Tensors, Variant

# Standard deviations. A matrix multiplies its input's scale by GAIN; the head's gives
# logits a spread of about 3, far from uniform and not yet one token with all the mass.
# The embedding has the head's, since it may be the head.
GAIN = 1.0
HEAD_GAIN = 3.0
BIAS = 0.5
NORM = 0.3


@dataclass(frozen=True)
class Parameters:
    """The parameters of an upstream class.

    Attributes:
        shapes: Their shapes by name, each once.
        embedding: Name of the token embedding's.
        head: Name of the head's.
        zero: Names of those that are all zero at first: weights that one is added to.
        buffers: What else a checkpoint holds, at first, by name.
    """

    shapes: Mapping[str, tuple[int, ...]]
    embedding: str
    head: str
    zero: frozenset[str]
    buffers: Mapping[str, Any]

    def drawn(self, name: str, seed: int, known_as: str = "") -> Any:
        """A float32 tensor for one, from the name it is known as, shape and seed."""
        if name in self.buffers:
            first = self.buffers[name]
            spread = random_tensor(known_as or name, (first.numel(),), seed)
            return first * spread.view(first.shape)
        gain = HEAD_GAIN if name in (self.embedding, self.head) else GAIN
        mean = 0.0 if name in self.zero else 1.0
        return random_tensor(known_as or name, self.shapes[name], seed, gain, mean)


def parameters_of(model: Any) -> Parameters:
    """The parameters of a model as Transformers' constructor makes it."""
    names = {id(module): name for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    stored = model.state_dict()
    buffers = {n: b.float() for n, b in model.named_buffers() if n in stored}
    return Parameters(
        {n: tuple(p.shape) for n, p in (*model.named_parameters(), *buffers.items())},
        f"{names[id(embedding)]}.weight",
        f"{names[id(head)]}.weight",
        frozenset(name for name, p in model.named_parameters() if not p.any()),
        buffers,
    )


def write_checkpoint(
    folder: Path, family: Family, variant: Variant, seed: int
) -> tuple[str, ...]:
    """Write `config.json` and `model.safetensors` of a variant into `folder`.

    The same seed gives the same tensors whatever the other variants are.

    Returns:
        Names of the tensors that the variant changed.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    write_config(folder, family, variant)
    config = AutoConfig.from_pretrained(folder)
    known = parameters_of(AutoModelForCausalLM.from_config(config, dtype=torch.float32))
    tensors = {name: known.drawn(name, seed) for name in known.shapes}
    changed = edited(tensors, known, variant.tensors, seed)
    save_file(tensors, str(folder / "model.safetensors"), metadata={"format": "pt"})
    return changed


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


def random_tensor(
    name: str,
    shape: tuple[int, ...],
    seed: int,
    gain: float = GAIN,
    mean: float = 1.0,
) -> Any:
    """A float32 tensor for a parameter.

    Args:
        name: Its name in the checkpoint; one that ends in `.bias` is drawn about zero.
        shape: Its shape.
        seed: What it is drawn from, with its name.
        gain: What a matrix multiplies its input's scale by.
        mean: What the elements of another vector are drawn about.
    """
    import torch

    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    noise = torch.randn(shape, generator=generator)
    if name.endswith(".bias"):
        return noise * BIAS
    if len(shape) == 1:
        return mean + noise * NORM
    return noise * gain / shape[-1] ** 0.5


def edited(
    tensors: dict[str, Any], known: Parameters, edits: Tensors, seed: int
) -> tuple[str, ...]:
    """Change what the checkpoint holds as a variant asks; names of what was changed."""
    head, shape = known.head, known.shapes[known.embedding]
    if edits.head is Head.ABSENT:
        tensors.pop(head, None)
    elif edits.head is Head.COPY:
        tensors[head] = tensors[known.embedding].clone()
    elif edits.head is Head.DIFFERENT:
        tensors[head] = random_tensor(head, shape, seed, HEAD_GAIN)
    changed = []
    for new, old in edits.saved_as.items():
        for name in [name for name in tensors if name.startswith(new)]:
            changed.append(old + name.removeprefix(new))
            tensors[changed[-1]] = tensors.pop(name)
    for name, shape in edits.added.items():
        changed.append(name.format(layer=layer_of(known)))
        tensors[changed[-1]] = random_tensor(changed[-1], shape, seed)
    if edits.biased is not None:
        weight = picked(known, edits.biased)
        name = weight.removesuffix("weight") + "bias"
        if name in tensors:
            weight = known.embedding
            name = weight.removesuffix("weight") + "bias"
        changed.append(name)
        tensors[name] = random_tensor(name, known.shapes[weight][:1], seed)
    if edits.renamed is not None:
        name = picked(known, edits.renamed)
        changed.append(name.replace(".weight", "_other.weight"))
        tensors[changed[-1]] = tensors.pop(name)
    if edits.dropped is not None:
        changed.append(picked(known, edits.dropped))
        del tensors[changed[-1]]
    return tuple(changed)


def layer_of(known: Parameters) -> str:
    """The second layer's name."""
    found = (re.match(r"(.*?\.1)\.", name) for name in known.shapes)
    return next(match[1] for match in found if match)


def picked(known: Parameters, pick: Pick) -> str:
    """The name of a parameter by its place."""
    layer = layer_of(known)
    own = [name for name in known.shapes if name.startswith(f"{layer}.")]
    matrices = [name for name in own if len(known.shapes[name]) > 1]
    biases = [name for name in own if name.endswith(".bias")]
    vectors = [n for n in own if n not in biases and len(known.shapes[n]) == 1]
    rest = [name for name in known.shapes if name != known.head]
    return {
        Pick.FIRST: matrices[0],
        Pick.SECOND: matrices[1],
        Pick.PENULTIMATE: matrices[-2],
        Pick.LAST: matrices[-1],
        Pick.BIAS: [*biases, matrices[0]][0],
        Pick.NORM: [matrices[0], *vectors][-1],
        Pick.FINAL: rest[-1],
        Pick.HEAD: known.head,
    }[pick]
