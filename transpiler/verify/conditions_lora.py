"""The condition of LoRA: an adapter on every projection, as if it had been merged."""

from __future__ import annotations

import json
import shutil
import zlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from transpiler.verify.compare import BAR, compare
from transpiler.verify.engine import generate
from transpiler.verify.outputs import Answer
from transpiler.verify.trial import Condition, Evidence, Trial, require, required

RANK = 8
ALPHA = 4
# A gap of vLLM's CPU platform.
NO_PROMPT_POSITIONS = (
    "with LoRA on, log-probabilities of the prompt fail in the head's CPU kernel"
)
PROJECTIONS = ("q", "k", "v", "o", "gate", "up", "down")
WEIGHTS = "model.safetensors"
# An adapter that changes less than this could be lost without being missed.
LEAST_CHANGE = 100 * BAR


def lora(trial: Trial) -> Evidence:
    """The engine adds what upstream computes with the adapter merged."""
    adapter, merged = trial.checkpoint / "adapter", trial.checkpoint / "merged"
    adapted = trial.in_child(
        lambda: _write(trial.checkpoint, adapter, merged, trial.plan.seed)
    )
    layers = trial.plan.family.config_json(trial.variant)["num_hidden_layers"]
    expected = layers * len(PROJECTIONS)
    require(adapted == expected, f"{adapted} of {expected} projections adapted")
    settings = {"enable_lora": True, "max_loras": 1, "max_lora_rank": RANK}
    options = replace(trial.options(**settings), sampling={"prompt_logprobs": None})

    def run(llm: Any) -> tuple[tuple[Answer, ...], tuple[Answer, ...]]:
        from vllm.lora.request import LoRARequest

        plain = generate(llm, trial.request, options)
        request = LoRARequest("adapter", 1, str(adapter))
        llm.generate = partial(llm.generate, lora_request=request)
        return plain, generate(llm, trial.request, options)

    plain, with_adapter = trial.in_engine(run, options)
    base = trial.reference()
    truth = replace(trial, checkpoint=merged).reference()
    required(compare(base, plain, prompt_positions=False))
    change = compare(base, truth.answers).largest
    require(change > LEAST_CHANGE, f"the adapter changes only {change:.1e}")
    comparison = required(compare(truth, with_adapter, prompt_positions=False))
    happened = f"{adapted} projections adapted, a change of {change:.1f}"
    return Evidence(happened, comparison, (NO_PROMPT_POSITIONS,))


def _write(checkpoint: Path, adapter: Path, merged: Path, seed: int) -> int:
    """Write an adapter, and a checkpoint it is merged into; return its projections."""
    import torch
    from safetensors.torch import load_file, save_file

    weights = load_file(checkpoint / WEIGHTS)
    factors = {}
    for name in [n for n in weights if n.endswith(_SUFFIXES)]:
        rows, columns = weights[name].shape
        drawing = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
        down = torch.randn((RANK, columns), generator=drawing) / columns**0.5
        up = torch.randn((rows, RANK), generator=drawing) / RANK
        weights[name] += ALPHA / RANK * up @ down
        place = f"base_model.model.{name.removesuffix('.weight')}"
        factors[f"{place}.lora_A.weight"] = down
        factors[f"{place}.lora_B.weight"] = up
    adapter.mkdir()
    save_file(factors, adapter / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "bias": "none",
        "target_modules": [f"{projection}_proj" for projection in PROJECTIONS],
    }
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    merged.mkdir()
    shutil.copy(checkpoint / "config.json", merged)
    save_file(weights, merged / WEIGHTS, metadata={"format": "pt"})
    return len(factors) // 2


_SUFFIXES = tuple(f".{projection}_proj.weight" for projection in PROJECTIONS)
LORA = (Condition("lora", lora),)
