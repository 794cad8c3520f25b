"""Conditions of a model that is built and loaded: names, tensors, quantized layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from transpiler.verify.engine import Implementation
from transpiler.verify.trial import Condition, Evidence, NotMet, Trial, require
from transpiler.verify.variants import Variant

SELF_ATTN = "model.layers.0.self_attn"
# Weights of 8 bits per channel, activations of 8 bits per token.
QUANTIZED = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}
PLAIN = {"UnquantizedLinearMethod", "UnquantizedEmbeddingMethod"}


def quantized_but_for(*names: str) -> Variant:
    """Return a variant with all linear layers quantized, except `names`."""
    config = {**QUANTIZED, "ignore": ["lm_head", *names]}
    return Variant("quantized", {"quantization_config": config})


def prefix_is_path(trial: Trial) -> Evidence:
    """Every linear and attention layer has its attribute path as its prefix."""

    def walk(llm: Any) -> tuple[dict[str, str], int]:
        (found,) = llm.apply_model(_prefixes)
        return found, llm.llm_engine.model_config.hf_config.num_hidden_layers

    prefixes, layers = trial.in_engine(walk, trial.options())
    wrong = {path: prefix for path, prefix in prefixes.items() if path != prefix}
    require(not wrong, f"prefixes are not the paths: {wrong}")
    # In each layer qkv, o, gate_up, down and the attention.
    inside = sum(".layers." in path for path in prefixes)
    require(inside == 5 * layers, f"{inside} layers with a prefix in {layers} layers")
    return Evidence(f"{len(prefixes)} prefixes are paths")


def loaded_once(trial: Trial) -> Evidence:
    """Every element of every parameter is copied from the checkpoint exactly once."""
    counts = trial.in_child(lambda: _copies(trial))
    wrong = {name: times for name, times in counts.items() if set(times) != {1}}
    require(not wrong, f"times that elements were loaded: {wrong}")
    elements = sum(times[1] for times in counts.values())
    return Evidence(f"{elements} elements of {len(counts)} parameters loaded once")


def quantized_with_ignore_list(trial: Trial) -> Evidence:
    """Layers of the ignore list stay plain, under their merged name; others do not."""
    methods, own = (_methods(trial, i) for i in (trial.implementation, trial.own))
    require(methods == own, f"{methods} but in vLLM's own class {own}")
    plain = [path for path, method in methods.items() if method in PLAIN]
    ignored = f"{SELF_ATTN}.qkv_proj"
    require(ignored in plain, f"{ignored} is quantized with {methods.get(ignored)}")
    others = [p for p in plain if p not in (ignored, "lm_head", "model.embed_tokens")]
    require(not others, f"not quantized: {others}")
    quantized = [method for method in methods.values() if method not in PLAIN]
    require(len(quantized) > 0, "nothing is quantized")
    kinds = ", ".join(sorted(set(quantized)))
    return Evidence(f"{ignored} plain, {len(quantized)} others {kinds}")


def ignore_list_names_one_shard(trial: Trial) -> Evidence:
    """With one of the merged projections ignored vLLM refuses, as in its own class."""
    refusals = []
    for implementation in (trial.implementation, trial.own):
        try:
            _methods(trial, implementation)
        except NotMet as refusal:
            refusals.append(str(refusal))
    require(len(refusals) == 2, f"only these refused: {refusals}")
    require(refusals[0] == refusals[1], " is not ".join(refusals))
    require(f"{SELF_ATTN}.qkv_proj" in refusals[0], refusals[0])
    return Evidence(f"refused: {refusals[0]}")


def _prefixes(model: Any) -> dict[str, str]:
    """Return path → prefix of the layers that the cache or quantization look up."""
    from vllm.model_executor.layers.attention import Attention
    from vllm.model_executor.layers.linear import LinearBase

    found = {}
    for path, module in model.named_modules():
        if isinstance(module, LinearBase):
            found[path] = module.prefix
        elif isinstance(module, Attention):
            found[path] = module.layer_name
    return found


def _methods(trial: Trial, implementation: Implementation) -> dict[str, str]:
    """Return path → name of the quantization method, of a model without weights.

    Raises:
        NotMet: the model was refused.
    """

    def look(model: Any) -> dict[str, str]:
        from vllm.model_executor.layers.linear import LinearBase
        from vllm.model_executor.layers.vocab_parallel_embedding import (
            VocabParallelEmbedding,
        )

        return {
            path: type(getattr(module, "scheme", module.quant_method)).__name__
            for path, module in model.named_modules()
            if isinstance(module, LinearBase | VocabParallelEmbedding)
        }

    def built(llm: Any) -> dict[str, str]:
        found: dict[str, str] = llm.apply_model(look)[0]
        return found

    options = trial.options(load_format="dummy")
    return trial.in_engine(built, options, implementation)


def _copies(trial: Trial) -> dict[str, Counter[int]]:
    """Return of each parameter how many elements were loaded how often."""
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from transpiler.verify.engine import start

    counts: dict[str, Counter[int]] = {}
    load: Callable[..., None] = DefaultModelLoader.load_weights

    def counted(self: Any, model: Any, *args: Any) -> None:
        written = _written(model, lambda: load(self, model, *args))
        for name, times in written.items():
            counts[name] = Counter(times.tolist())

    DefaultModelLoader.load_weights = counted
    start(trial.checkpoint, trial.implementation, trial.options())
    return counts


def _written(model: Any, load: Callable[[], None]) -> dict[str, Any]:
    """Return of each parameter how often each element was copied into by `load`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    times = {
        name: torch.zeros(p.untyped_storage().nbytes() // p.itemsize, dtype=torch.int)
        for name, p in model.named_parameters()
    }
    at = {p.untyped_storage().data_ptr(): n for n, p in model.named_parameters()}

    absent = torch.empty(0)

    class Recording(TorchDispatchMode):
        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            target = args[0] if function == torch.ops.aten.copy_.default else absent
            name = at.get(target.untyped_storage().data_ptr())
            if name:
                place = (target.size(), target.stride(), target.storage_offset())
                times[name].as_strided(*place).add_(1)
            return function(*args, **(kwargs or {}))

    with Recording():
        load()
    return times


ALL_THREE = tuple(f"{SELF_ATTN}.{part}_proj" for part in "qkv")
CONSTRUCTION = (
    Condition("prefix-is-path", prefix_is_path),
    Condition("loaded-once", loaded_once),
    Condition(
        "quantized-with-ignore-list",
        quantized_with_ignore_list,
        quantized_but_for(*ALL_THREE),
    ),
    Condition(
        "ignore-list-names-one-shard",
        ignore_list_names_one_shard,
        quantized_but_for(ALL_THREE[0]),
    ),
)
