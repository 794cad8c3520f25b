"""Rows of packed projections that checkpoints hold in another order.

vLLM's `QKVParallelLinear` loads `[q | k | v]`, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch


def ungrouped_rows(
    model: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    packed: Mapping[str, int],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Put the rows of packed projections, which come head by head, in vLLM's order.

    Args:
        model: The causal model; its `quant_config` is read.
        weights: Checkpoint names and tensors.
        packed: Numbers of heads, by the part of the names that says the projection.

    Raises:
        ValueError: The checkpoint is quantized: its scales and packed rows are not
            put in order.
    """
    if model.quant_config is not None:
        names = ", ".join(name.strip(".") for name in packed)
        raise ValueError(
            f"quantization: the rows of {names} come head by head, which is served "
            "unquantized only"
        )
    for name, tensor in weights:
        for part, heads in packed.items():
            if part in name:
                rows = tensor.unflatten(0, (heads, 3, -1))
                tensor = rows.transpose(0, 1).flatten(0, 2)
        yield name, tensor
