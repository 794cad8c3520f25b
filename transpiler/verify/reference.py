"""Plain causal attention in the place of vLLM's `Attention`, for a whole prefill.

It takes what vLLM's takes, and refuses what it does not honour.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def reference_attention(lengths: Sequence[int]) -> type[Any]:
    """A class like `vllm.model_executor.layers.attention.Attention`, without a cache.

    Args:
        lengths: Lengths of the prompts that follow each other in the flat tokens.
    """
    import torch
    from vllm.config import get_current_vllm_config

    class ReferenceAttention(torch.nn.Module):
        """Softmax of scaled scores over the keys that mask and window leave."""

        def __init__(
            self,
            num_heads: int,
            head_size: int,
            scale: float,
            num_kv_heads: int | None = None,
            *,
            cache_config: Any = None,
            quant_config: Any = None,
            logits_soft_cap: float | None = None,
            per_layer_sliding_window: int | None = None,
            sinks: Any = None,
            head_size_v: int | None = None,
            prefix: str = "",
        ) -> None:
            super().__init__()
            self.head_size, self.scale = head_size, scale
            self.head_size_v = head_size_v or head_size
            self.groups = num_heads // (num_kv_heads or num_heads)
            self.soft_cap, self.sinks = logits_soft_cap, sinks
            # As vLLM's, it falls back to the engine's window.
            config = cache_config or get_current_vllm_config().cache_config
            self.window = per_layer_sliding_window or config.sliding_window

        def forward(self, query: Any, key: Any, value: Any) -> Any:
            """Flat `[tokens, heads * size]` each, to `[tokens, heads * size of v]`."""
            parts = zip(
                *(x.split(list(lengths)) for x in (query, key, value)), strict=True
            )
            return torch.cat([self.attend(*part) for part in parts])

        def attend(self, query: Any, key: Any, value: Any) -> Any:
            """The attention within one prompt."""
            tokens = query.shape[0]
            query = query.view(tokens, -1, self.head_size).transpose(0, 1)
            key = key.view(tokens, -1, self.head_size).transpose(0, 1)
            value = value.view(tokens, -1, self.head_size_v).transpose(0, 1)
            key, value = (x.repeat_interleave(self.groups, 0) for x in (key, value))
            scores = query @ key.transpose(1, 2) * self.scale
            if self.soft_cap:
                scores = self.soft_cap * torch.tanh(scores / self.soft_cap)
            place = torch.arange(tokens)
            hidden = place[None] > place[:, None]
            if self.window is not None:
                hidden |= place[None] <= place[:, None] - self.window
            scores = scores.masked_fill(hidden, float("-inf"))
            if self.sinks is not None:
                sinks = self.sinks[:, None, None].expand(-1, tokens, 1)
                scores = torch.cat([scores, sinks], -1)
            weights = scores.softmax(-1)[..., :tokens]
            return (weights @ value).transpose(0, 1).reshape(tokens, -1)

    return ReferenceAttention
