"""Checkpoints that Transformers would not load the same way are refused.

vLLM's loader drops an unexpected `*.bias` and a second copy of a tied embedding
without a word; a forgotten bias then loads cleanly and answers nonsense.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    StageMissingLayer,
    is_pp_missing_parameter,
)


def strict_weights(
    model: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    tied: tuple[str, str],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Pass checkpoint tensors on, refusing what upstream would not accept.

    Args:
        model: The causal model; its `hf_to_vllm_mapper`, `config`, `quant_config` and
            `load_config` are read.
        weights: Checkpoint names and tensors.
        tied: Names of the head and of the embedding that it may be tied to.

    Raises:
        ValueError: A tensor that no layer has, or a parameter (or a shard of one) that
            no tensor gives, when nothing is quantized; a tied head that differs from
            the embedding, which upstream would not tie.
    """
    known = dict(model.named_parameters(remove_duplicate=False))
    plain = model.quant_config is None
    is_tied = bool(model.config.tie_word_embeddings)
    pair: dict[str, torch.Tensor] = {}
    seen: dict[str, set[object]] = {}
    for name, tensor in weights:
        if plain:
            mapped = mapped_name(model, name)
            check_place(model, name, mapped, known)
            seen.setdefault(mapped or "", set()).add(shard_of(model, name))
        if is_tied and name in tied:
            pair[name] = tensor
            if len(pair) == 2:
                check_tied(pair, tied)
                pair.clear()
        yield name, tensor
    # Weights of a dummy model come later and in parts, as do later updates.
    first = not getattr(model, "is_loaded", False)
    is_dummy = model.load_config.load_format == "dummy"
    if plain and first and not is_dummy and is_whole(model):
        check_complete(model, seen, filled_parts(model, tied))
    model.is_loaded = True


def is_whole(model: Any) -> bool:
    """Whether the model is not the language part of another one.

    A language part is loaded in as many calls as the checkpoint has runs of its
    tensors, of which none knows to be the last. Its layers are registered under
    longer names than their own.
    """
    for name, module in model.named_modules():
        if hasattr(module, "layer_name"):
            return bool(module.layer_name == name)
    return True


def filled_parts(model: Any, tied: tuple[str, str]) -> set[str]:
    """Attributes of the model whose parameters the checkpoint must give.

    vLLM's adapters add a pooler, which is filled from elsewhere, and a score, which
    is made from the head where the model still has one.
    """
    head, inner = (name.partition(".")[0] for name in tied)
    is_headless = isinstance(getattr(model, head), StageMissingLayer)
    return {inner, "score"} if is_headless else {inner, head}


def mapped_name(model: Any, name: str) -> str | None:
    """Name of the parameter that a checkpoint tensor goes to."""
    mapped: str | None = model.hf_to_vllm_mapper.map_name(name)
    return mapped


def shard_of(model: Any, name: str) -> object:
    """Shard that a checkpoint tensor is of a merged parameter, None for a whole one."""
    for part, (_, shard) in model.hf_to_vllm_mapper.orig_to_new_stacked.items():
        if part in name:
            return shard
    return None


def check_complete(model: Any, seen: dict[str, set[object]], parts: set[str]) -> None:
    """Every parameter of these parts was given, a merged one with all its shards."""
    stacked = model.hf_to_vllm_mapper.orig_to_new_stacked
    for name, _ in model.named_parameters():
        if name.partition(".")[0] not in parts:
            continue
        wanted = {shard for target, shard in stacked.values() if f"{target}." in name}
        missing = (wanted or {None}) - seen.get(name, set())
        if missing:
            sources = [
                name.replace(target, part)
                for part, (target, shard) in stacked.items()
                if f"{target}." in name and shard in missing
            ]
            raise ValueError(
                f"the checkpoint lacks {', '.join(sources or [name])}, "
                f"which {type(model).__name__} needs"
            )


def check_place(
    model: Any, name: str, mapped: str | None, known: dict[str, nn.Parameter]
) -> None:
    """A tensor of the checkpoint must have a place in the model.

    Only the tables that old checkpoints hold of rotary embeddings are passed over,
    by Transformers as by vLLM.
    """
    if mapped is None or mapped in known or is_pp_missing_parameter(mapped, model):
        return
    if AutoWeightsLoader.REMOVE_UNUSED_ROTARY_EMBEDS_MAPPER.map_name(name) is None:
        return
    # vLLM's adapters make a subclass; the generated one has the mapper.
    generated = next(c for c in type(model).__mro__ if "hf_to_vllm_mapper" in vars(c))
    raise ValueError(
        f"checkpoint tensor {name!r} has no place in {type(model).__name__}; "
        f"VLLM_TRANSPILED=-{generated.__name__} gives vLLM's own class"
    )


def check_tied(pair: dict[str, torch.Tensor], tied: tuple[str, str]) -> None:
    """A tied head must be the embedding."""
    head, embedding = (pair[name] for name in tied)
    if head.shape != embedding.shape or not torch.equal(head, embedding):
        raise ValueError(
            f"tie_word_embeddings is set, but checkpoint tensors {tied[0]!r} and "
            f"{tied[1]!r} differ; set tie_word_embeddings=false to use both"
        )
