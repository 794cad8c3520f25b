"""A norm over a shared width: the ranks together give what one gives alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.layernorm import RMSNorm

from transpiler.runtime import norm as room
from transpiler.runtime.norm import HeadLayerNorm, ShardedRMSNorm

pytestmark = pytest.mark.slow
HEADS, SIZE, EPS = 4, 6, 0.1
WEIGHT = torch.rand(HEADS * SIZE) + 0.5


def alone(x: torch.Tensor, dtype: torch.dtype | None) -> torch.Tensor:
    norm = RMSNorm(HEADS * SIZE, EPS, dtype=dtype)
    norm.weight.data.copy_(WEIGHT)
    return norm(x)


@pytest.mark.parametrize("dtype", [None, torch.float32])
@pytest.mark.parametrize(
    ("ranks", "heads"), [(1, None), (2, None), (4, HEADS), (8, HEADS)]
)
def test_the_ranks_give_what_one_gives(
    ranks: int,
    heads: int | None,
    dtype: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = torch.randn(3, HEADS * SIZE, dtype=torch.bfloat16)
    held = x.chunk(min(ranks, heads or ranks), -1)
    shares = [share for share in held for _ in range(ranks // len(held))]
    means = [share.float().pow(2).mean(-1, keepdim=True) for share in shares]
    total = torch.stack(means).sum(0)

    def summed(mean: torch.Tensor) -> torch.Tensor:
        assert any(torch.equal(mean, known) for known in means)
        return total

    monkeypatch.setattr(room, "get_tensor_model_parallel_world_size", lambda: ranks)
    monkeypatch.setattr(room, "tensor_model_parallel_all_reduce", summed)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with set_current_vllm_config(VllmConfig()):
            wanted = alone(x, dtype).chunk(len(held), -1)
            for rank, share in enumerate(shares):
                monkeypatch.setattr(
                    room, "get_tensor_model_parallel_rank", lambda rank=rank: rank
                )
                norm = ShardedRMSNorm(HEADS * SIZE, EPS, heads, dtype)
                norm.weight.weight_loader(norm.weight, WEIGHT)
                torch.testing.assert_close(
                    norm(share), wanted[rank * len(held) // ranks]
                )
    finally:
        torch.set_default_dtype(before)


def test_a_weight_of_another_width_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(room, "get_tensor_model_parallel_world_size", lambda: 1)
    monkeypatch.setattr(room, "get_tensor_model_parallel_rank", lambda: 0)
    with set_current_vllm_config(VllmConfig()):
        norm = ShardedRMSNorm(8, EPS, 2)
    with pytest.raises(ValueError, match="hidden_size=8 over a width of 4"):
        norm(torch.ones(1, 4))
    with pytest.raises(ValueError, match="shape"):
        norm.weight.weight_loader(norm.weight, torch.ones(4))


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_each_rank_has_the_weights_of_its_heads(
    ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = torch.randn(3, HEADS, SIZE), torch.rand(HEADS, SIZE) + 0.5
    wanted = nn.functional.layer_norm(x, (SIZE,), eps=EPS) * weight
    monkeypatch.setattr(room, "get_tensor_model_parallel_world_size", lambda: ranks)
    parts = min(ranks, HEADS)
    for rank in range(ranks):
        monkeypatch.setattr(
            room, "get_tensor_model_parallel_rank", lambda rank=rank: rank
        )
        norm = HeadLayerNorm(HEADS, SIZE, EPS)
        norm.weight.weight_loader(norm.weight, weight)
        part = rank * parts // ranks
        share, own = x.chunk(parts, 1)[part], wanted.chunk(parts, 1)[part]
        torch.testing.assert_close(norm(share), own)
