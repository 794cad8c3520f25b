"""Checkpoints that Transformers would not load the same way are refused.

vLLM's loader drops an unexpected `*.bias` and a second copy of a tied embedding
without a word; a forgotten bias then loads cleanly and answers nonsense.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from vllm.model_executor.models.utils import is_pp_missing_parameter


def strict_weights(
    model: nn.Module,
    weights: Iterable[tuple[str, torch.Tensor]],
    tied: tuple[str, str],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Pass checkpoint tensors on, refusing what upstream would not accept.

    Args:
        model: The causal model; its `hf_to_vllm_mapper`, `config` and `quant_config`
            are read.
        weights: Checkpoint names and tensors.
        tied: Names of the head and of the embedding that it may be tied to.

    Raises:
        ValueError: A bias that no layer has, when nothing is quantized; a tied head
            that differs from the embedding, which upstream would not tie.
    """
    known = set(dict(model.named_parameters(remove_duplicate=False)))
    is_tied = bool(model.config.tie_word_embeddings)
    pair: dict[str, torch.Tensor] = {}
    for name, tensor in weights:
        if name.endswith(".bias") and model.quant_config is None:
            check_bias(model, name, known)
        if is_tied and name in tied:
            pair[name] = tensor
            if len(pair) == 2:
                check_tied(pair, tied)
                pair.clear()
        yield name, tensor


def check_bias(model: Any, name: str, known: set[str]) -> None:
    """A bias of the checkpoint must have a place in the model."""
    mapped = model.hf_to_vllm_mapper.map_name(name)
    if mapped is None or mapped in known or is_pp_missing_parameter(mapped, model):
        return
    raise ValueError(f"checkpoint tensor {name!r} has no place in {type(model).__name__}")


def check_tied(pair: dict[str, torch.Tensor], tied: tuple[str, str]) -> None:
    """A tied head must be the embedding."""
    head, embedding = (pair[name] for name in tied)
    if head.shape != embedding.shape or not torch.equal(head, embedding):
        raise ValueError(
            f"tie_word_embeddings is set, but checkpoint tensors {tied[0]!r} and "
            f"{tied[1]!r} differ; set tie_word_embeddings=false to use both"
        )
