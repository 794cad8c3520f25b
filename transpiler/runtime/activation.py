"""Every activation that Transformers knows, alone and as act-and-mul.

vLLM has fused kernels for a few activations only, and its hand-written models
refuse or replace the others.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn
from transformers.activations import ACT2FN
from vllm.model_executor.layers.activation import (
    XIELU,
    get_act_and_mul_fn,
    get_act_fn,
)
from vllm.platforms import current_platform

# Names under which vLLM's fused kernel computes exactly Transformers' activation.
FUSED = frozenset({"silu", "swish", "gelu", "gelu_pytorch_tanh"})
# The fields of configs that name one.
FIELDS = "hidden_act, hidden_activation or activation_function"
ALONE = frozenset({"gelu_fast", "gelu_new", "quick_gelu", "relu2"})


class LoadedXIELU(XIELU):
    """vLLM's layer, which leaves two buffers alone that checkpoints may hold."""

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Fill parameters and buffers; the names of those filled."""
        held = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        loaded = set()
        for name, tensor in weights:
            held[name].data.copy_(tensor.view(held[name].shape))
            loaded.add(name)
        self._beta_scalar, self._eps_scalar = self.beta.item(), self.eps.item()
        return loaded


def activation(name: str, learned: bool = False) -> nn.Module:
    """The layer that computes `ACT2FN[name]`.

    Args:
        name: Key of `ACT2FN`, for example `relu2`.
        learned: Whether upstream makes one with parameters in the model's precision.

    Raises:
        ValueError: Transformers has no activation of that name, or it has parameters,
            of which nothing says how ranks share them.
    """
    if name not in ACT2FN:
        raise ValueError(f"{FIELDS}: {name!r} is not an activation of Transformers")
    if name == "xielu" and learned:
        return LoadedXIELU(dtype=torch.get_default_dtype())
    if name in ALONE:
        return get_act_fn(name)
    act: nn.Module = ACT2FN[name]
    if any(True for _ in act.parameters()):
        raise ValueError(f"{FIELDS}: {name!r} has parameters of its own")
    return act


class ActAndMul(nn.Module):
    """`act(x[..., :d]) * x[..., d:]` with Transformers' own activation.

    Args:
        name: Key of `ACT2FN`, for example `relu2`.
        gate_first: Whether the first half is the one that is activated.
    """

    def __init__(self, name: str, gate_first: bool = True) -> None:
        super().__init__()
        self.act = activation(name)
        self.gate_first = gate_first

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Gate and up side by side, `[..., 2 * d]`, to `[..., d]`."""
        first, second = x.chunk(2, -1)
        gate, up = (first, second) if self.gate_first else (second, first)
        return self.act(gate) * up


def act_and_mul(name: str, gate_first: bool = True) -> nn.Module:
    """The layer that computes `ACT2FN[name](gate) * up` of a merged projection.

    Args:
        name: Key of `ACT2FN`.
        gate_first: Whether the gate is the first half, as in all vLLM's kernels.

    Raises:
        ValueError: Transformers has no activation of that name, or it is learned.
    """
    # vLLM's tanh kernel falls back to the exact GELU on ROCm: another function.
    exact = not (name == "gelu_pytorch_tanh" and current_platform.is_rocm())
    if name in FUSED and exact and gate_first:
        return get_act_and_mul_fn(name)
    return ActAndMul(name, gate_first)
