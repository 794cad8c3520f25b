"""Norms over what the tensor-parallel ranks share.

vLLM's `RMSNorm` takes the mean of the columns that a rank has, and its one layer that
sums over the ranks belongs to a model, with one order of rounding. vLLM's `LayerNorm`
has one weight for all heads.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
    tensor_model_parallel_all_reduce,
)
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.utils import set_weight_attrs


def load_part(param: nn.Parameter, loaded: torch.Tensor, parts: int) -> None:
    """Copy this rank's part of a weight; with fewer parts than ranks, each has copies.

    Raises:
        ValueError: The weight has another shape.
    """
    if loaded.shape != (param.shape[0] * parts, *param.shape[1:]):
        raise ValueError(f"a norm's weight of shape {tuple(loaded.shape)}")
    copies = get_tensor_model_parallel_world_size() // parts
    part = get_tensor_model_parallel_rank() // copies
    param.data.copy_(loaded.chunk(parts)[part])


class HeadLayerNorm(nn.Module):
    """Layer norm of each head, `[tokens, heads, size]`, with a weight of its own.

    Args:
        num_heads: Number of heads of all ranks; ranks beyond them hold copies.
        head_size: Size of a head.
        eps: Added to the variance.
    """

    def __init__(self, num_heads: int, head_size: int, eps: float) -> None:
        super().__init__()
        parts = min(get_tensor_model_parallel_world_size(), num_heads)
        self.weight = nn.Parameter(torch.ones(num_heads // parts, head_size))
        self.eps = eps
        load = partial(load_part, parts=parts)
        set_weight_attrs(self.weight, {"weight_loader": load})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise in float32, and round after the weight."""
        full = nn.functional.layer_norm(x.float(), x.shape[-1:], eps=self.eps)
        return (full * self.weight.float()).to(x.dtype)


class ShardedRMSNorm(RMSNorm):
    """`RMSNorm` between a layer that splits its columns and one that joins them.

    Args:
        hidden_size: The whole width.
        eps: Added to the mean of the squares.
        num_heads: Heads that make the width, where ranks beyond them hold copies, as
            key and value heads may be held.
        dtype: Precision of the weight, by default the model's.
    """

    def __init__(
        self,
        hidden_size: int,
        eps: float,
        num_heads: int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        ranks = get_tensor_model_parallel_world_size()
        parts = min(ranks, num_heads or ranks)
        super().__init__(hidden_size // parts, eps, dtype=dtype)
        self.ranks, self.parts = ranks, parts
        load = partial(load_part, parts=parts)
        set_weight_attrs(self.weight, {"weight_loader": load})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise `[..., width of this rank]` by the mean over all ranks.

        Raises:
            ValueError: The width is not what the norm is made for.
        """
        if x.shape[-1] != self.hidden_size:
            raise ValueError(
                f"a norm of hidden_size={self.hidden_size * self.parts} "
                f"over a width of {x.shape[-1] * self.parts}"
            )
        if self.ranks == 1:
            return super().forward(x)
        full = x.to(torch.float32)
        mean = full.pow(2).mean(-1, keepdim=True)
        mean = tensor_model_parallel_all_reduce(mean) / self.ranks
        full = full * torch.rsqrt(mean + self.variance_epsilon)
        return (full.to(self.weight.dtype) * self.weight).to(x.dtype)
