"""What the generated files import, where no engine on this machine shows it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from vllm.model_executor.models.utils import StageMissingLayer, WeightsMapper

from transpiler.runtime.rotary import rope_arguments
from transpiler.runtime.weights import strict_weights

pytestmark = pytest.mark.slow
TIED = ("lm_head.weight", "model.embed.weight")


class Quantized:
    """A quantization method: its layer's weight goes by other names."""


class Inner(nn.Module):
    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(4, 2)
        self.norm = nn.LayerNorm(2, bias=False)
        self.qkv_proj = nn.Linear(2, 6, bias=bias)


class Model(nn.Module):
    """A causal model as `strict_weights` sees it."""

    hf_to_vllm_mapper = WeightsMapper(
        orig_to_new_stacked={
            f".{name}_proj": (".qkv_proj", name) for name in ("q", "k", "v")
        }
    )

    def __init__(self, bias: bool = False, **given: Any) -> None:
        super().__init__()
        self.model = Inner(bias)
        self.lm_head = nn.Linear(2, 4, bias=False)
        self.config = SimpleNamespace(tie_word_embeddings=given.get("tied", False))
        self.load_config = SimpleNamespace(load_format=given.get("format", "auto"))
        self.quant_config = given.get("quantization")
        if self.quant_config is not None:
            self.model.qkv_proj.quant_method = Quantized()  # type: ignore[assignment]


def tensors(**more: torch.Tensor) -> dict[str, torch.Tensor]:
    found = {f"model.{name}_proj.weight": torch.ones(2, 2) for name in ("q", "k", "v")}
    found["model.embed.weight"] = found["lm_head.weight"] = torch.ones(4, 2)
    found["model.norm.weight"] = torch.ones(2)
    return found | {name.replace("__", "."): value for name, value in more.items()}


def loaded(model: Model, given: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, _ in strict_weights(model, given.items(), TIED)]


def without(name: str) -> dict[str, torch.Tensor]:
    return {key: value for key, value in tensors().items() if key != name}


def test_a_whole_checkpoint_passes() -> None:
    assert loaded(Model(), tensors()) == list(tensors())


@pytest.mark.parametrize("quantization", [None, "fp8"])
@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed.weight"])
def test_what_is_never_quantized_must_be_there(name: str, quantization: str) -> None:
    with pytest.raises(ValueError, match=name):
        loaded(Model(quantization=quantization), without(name))


def test_a_quantized_layer_needs_its_bias() -> None:
    model = Model(bias=True, quantization="fp8")
    with pytest.raises(ValueError, match=r"q_proj\.bias"):
        loaded(model, tensors())


def test_a_quantized_weight_goes_by_other_names() -> None:
    given = without("model.q_proj.weight") | {"model.q_proj.qweight": torch.ones(1)}
    loaded(Model(quantization="awq"), given)


@pytest.mark.parametrize("quantization", [None, "fp8"])
def test_a_bias_without_a_place_is_refused(quantization: str | None) -> None:
    given = tensors(model__q_proj__bias=torch.ones(2))
    with pytest.raises(ValueError, match=r"q_proj\.bias"):
        loaded(Model(quantization=quantization), given)


def test_a_bias_of_zeros_beside_quantized_weights_is_none() -> None:
    loaded(Model(quantization="gptq"), tensors(model__q_proj__bias=torch.zeros(2)))


def test_a_tied_head_of_another_precision_is_another() -> None:
    given = tensors()
    given["lm_head.weight"] = torch.ones(4, 2).to(torch.float8_e4m3fn)
    with pytest.raises(ValueError, match="tie_word_embeddings"):
        loaded(Model(tied=True), given)


def test_a_bias_that_an_adapter_takes_is_not_missed() -> None:
    model = Model()
    model.lm_head = StageMissingLayer("head")  # type: ignore[assignment]
    model.score = nn.Linear(2, 3, bias=False)
    given = without("lm_head.weight") | {"score.weight": torch.ones(3, 2)}
    for name, _ in strict_weights(model, given.items(), TIED):
        if name == "score.weight":
            model.score.bias = nn.Parameter(torch.ones(3))
    assert model.is_loaded


@pytest.mark.parametrize("form", ["dummy", "sharded_state", "tensorizer"])
def test_later_parts_are_no_whole_checkpoint(form: str) -> None:
    part = {"model.norm.weight": torch.ones(2)}
    assert loaded(Model(format=form), part) == list(part)


def test_lora_wraps_a_layer_that_can_be_loaded_again() -> None:
    model = Model()
    loaded(model, tensors())
    inner = model.model.qkv_proj
    wrapped = nn.Module()
    wrapped.base_layer = inner
    model.model.qkv_proj = wrapped  # type: ignore[assignment]
    loaded(model, tensors())


def longrope(longest: int) -> dict[str, Any]:
    config = SimpleNamespace(
        head_dim=32,
        max_position_embeddings=256,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "short_factor": [1.0],
            "long_factor": [2.0],
            "original_max_position_embeddings": 64,
        },
    )
    engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=longest))
    return rope_arguments(config, engine)["rope_parameters"]  # type: ignore[arg-type]


def test_engines_of_one_process_do_not_share_a_longrope() -> None:
    """vLLM keeps one embedding for equal arguments, and picks factors by length."""
    assert longrope(64) != longrope(128)


def test_a_table_that_shrinks_has_a_row_for_every_position() -> None:
    """vLLM gives it the given length times the factor."""
    parameters = {"rope_type": "linear", "rope_theta": 1e4, "factor": 0.5}
    config = SimpleNamespace(
        head_dim=32, max_position_embeddings=64, rope_parameters=parameters
    )
    engine = SimpleNamespace(model_config=SimpleNamespace(max_model_len=128))
    found = rope_arguments(config, engine)  # type: ignore[arg-type]
    assert found["max_position"] * 0.5 >= 128


@pytest.mark.parametrize(("said", "raises"), [("0", 0), ("false", 0), ("1", 1)])
def test_the_strict_switch(
    said: str, raises: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_TRANSPILED_STRICT", said)
    if not raises:
        longrope(128)
        return
    with pytest.raises(ValueError, match="longrope"):
        longrope(128)
