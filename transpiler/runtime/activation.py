"""Act-and-mul for every activation that Transformers knows.

vLLM has fused kernels for a few activations only, and its hand-written models
refuse or replace the others.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.activations import ACT2FN
from vllm.model_executor.layers.activation import get_act_and_mul_fn
from vllm.platforms import current_platform

# Names under which vLLM's fused kernel computes exactly Transformers' activation.
FUSED = frozenset({"silu", "swish", "gelu", "gelu_pytorch_tanh"})


class ActAndMul(nn.Module):
    """`act(x[..., :d]) * x[..., d:]` with Transformers' own activation.

    Args:
        name: Key of `ACT2FN`, for example `relu2`.

    Raises:
        ValueError: The activation has parameters, which the checkpoint names otherwise.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self.act = ACT2FN[name]
        if isinstance(self.act, nn.Module) and any(True for _ in self.act.parameters()):
            raise ValueError(f"hidden_act={name!r} has parameters of its own")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gate and up side by side, `[..., 2 * d]`, to `[..., d]`."""
        gate, up = x.chunk(2, -1)
        return self.act(gate) * up


def act_and_mul(name: str) -> nn.Module:
    """The layer that computes `ACT2FN[name](gate) * up` of a merged projection.

    Args:
        name: Key of `ACT2FN`.

    Raises:
        ValueError: Transformers has no activation of that name, or it is learned.
    """
    if name not in ACT2FN:
        raise ValueError(f"hidden_act={name!r} is not an activation of Transformers")
    # vLLM's tanh kernel falls back to the exact GELU on ROCm: another function.
    exact = not (name == "gelu_pytorch_tanh" and current_platform.is_rocm())
    if name in FUSED and exact:
        return get_act_and_mul_fn(name)
    return ActAndMul(name)
