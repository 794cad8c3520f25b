"""Checkpoints that Transformers would not load the same way are refused.

vLLM's loader drops an unexpected `*.bias` and a second copy of a tied embedding
without a word; a forgotten bias then loads cleanly and answers nonsense.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.model_executor.layers.vocab_parallel_embedding import (
    UnquantizedEmbeddingMethod,
)
from vllm.model_executor.models.utils import (
    AutoWeightsLoader,
    StageMissingLayer,
    is_pp_missing_parameter,
)

from transpiler.runtime.activation import LoadedXIELU

UNQUANTIZED = (UnquantizedLinearMethod, UnquantizedEmbeddingMethod)
# Formats whose tensors do not come in one call: made up, sharded, or later in parts.
IN_PARTS = frozenset(
    {
        "dummy",
        "ipc_cache",
        "modelexpress",
        "runai_streamer_sharded",
        "sharded_state",
        "tensorizer",
    }
)


def strict_weights(
    model: Any,
    weights: Iterable[tuple[str, torch.Tensor]],
    tied: tuple[str, str],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Pass checkpoint tensors on, refusing what upstream would not accept.

    Args:
        model: The causal model; its `hf_to_vllm_mapper`, `config`, `quant_config` and
            `load_config` are read.
        weights: Checkpoint names and tensors.
        tied: Names of the head and of the embedding that it may be tied to.

    Raises:
        ValueError: A tensor that no layer has (of a quantized layer, only a bias), or a
            parameter, or a shard of one, that no tensor gives; a tied head that
            differs from the embedding, which upstream would not tie.
    """
    known = parameter_names(model)
    first = not getattr(model, "is_loaded", False)
    is_tied = first and bool(model.config.tie_word_embeddings)
    digests: dict[str, str] = {}
    seen: dict[str, set[object]] = {}
    for name, tensor in weights:
        mapped: str | None = model.hf_to_vllm_mapper.map_name(name)
        is_dropped = name.endswith(".bias") and bool(torch.any(tensor != 0))
        if model.quant_config is None or is_dropped:
            check_place(model, name, mapped, known)
        seen.setdefault(mapped or "", set()).add(shard_of(model, name))
        if is_tied and mapped in tied:
            digests[mapped] = digest_of(tensor)
            check_tied(digests, tied)
        yield name, tensor
    in_parts = model.load_config.load_format in IN_PARTS
    if first and not in_parts and is_whole(model):
        check_complete(model, seen, known, filled_parts(model, tied))
    model.is_loaded = True


def parameter_names(model: Any) -> set[str]:
    """Names of a model's parameters, those of layers that LoRA wraps as without it.

    A learned activation may have buffers in the checkpoint too.
    """
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for prefix, module in model.named_modules():
        if isinstance(module, LoadedXIELU):
            names |= {name for name, _ in module.named_buffers(prefix)}
    return {name.replace(".base_layer.", ".") for name in names}


def is_whole(model: Any) -> bool:
    """Whether the model is not the language part of another one.

    A language part is loaded in as many calls as the checkpoint has runs of its
    tensors, of which none knows to be the last. Its layers are registered under
    longer names than their own.
    """
    for name, module in model.named_modules():
        if hasattr(module, "layer_name"):
            own = name.replace(".base_layer", "")
            return bool(module.layer_name == own)
    return True


def shard_of(model: Any, name: str) -> object:
    """Shard that a checkpoint tensor is of a merged parameter, None for a whole one."""
    for part, (_, shard) in model.hf_to_vllm_mapper.orig_to_new_stacked.items():
        if part in name:
            return shard
    return None


def needed(model: Any) -> Iterator[str]:
    """Parameters that the checkpoint must give under their own names, each once.

    Quantization stores a weight under names of its own, and a bias never.
    """
    given: set[int] = set()
    for prefix, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        is_quantized = method is not None and not isinstance(method, UNQUANTIZED)
        for name, parameter in module.named_parameters(prefix, recurse=False):
            if id(parameter) not in given and not (
                is_quantized and not name.endswith(".bias")
            ):
                yield name.replace(".base_layer.", ".")
            given.add(id(parameter))
        if isinstance(module, LoadedXIELU):
            yield from (name for name, _ in module.named_buffers(prefix))


def filled_parts(model: Any, tied: tuple[str, str]) -> set[str]:
    """Attributes of the model whose parameters the checkpoint must give.

    vLLM's adapters add a pooler, which is filled from elsewhere, and a score, which
    is made from the head where the model still has one.
    """
    head, inner = (name.partition(".")[0] for name in tied)
    is_headless = isinstance(getattr(model, head), StageMissingLayer)
    return {inner, "score"} if is_headless else {inner, head}


def check_complete(
    model: Any, seen: dict[str, set[object]], known: set[str], parts: set[str]
) -> None:
    """Every known parameter of these parts was given, a merged one with all shards.

    A bias of the score, which an adapter adds while the tensors pass, is not known.
    """
    stacked = model.hf_to_vllm_mapper.orig_to_new_stacked
    for name in needed(model):
        if name not in known or name.partition(".")[0] not in parts:
            continue
        wanted = {shard for target, shard in stacked.values() if f"{target}." in name}
        missing = (wanted or {None}) - seen.get(name, set())
        if missing:
            sources = [
                name.replace(target, part)
                for part, (target, shard) in stacked.items()
                if f"{target}." in name and shard in missing
            ]
            raise ValueError(
                f"the checkpoint lacks {', '.join(sources or [name])}, "
                f"which {type(model).__name__} needs"
            )


def check_place(model: Any, name: str, mapped: str | None, known: set[str]) -> None:
    """A tensor of the checkpoint must have a place in the model.

    Only the tables that old checkpoints hold of rotary embeddings are passed over,
    by Transformers as by vLLM.
    """
    if mapped is None or mapped in known or is_pp_missing_parameter(mapped, model):
        return
    if AutoWeightsLoader.REMOVE_UNUSED_ROTARY_EMBEDS_MAPPER.map_name(name) is None:
        return
    # vLLM's adapters make a subclass; the generated one has the mapper.
    generated = next(c for c in type(model).__mro__ if "hf_to_vllm_mapper" in vars(c))
    raise ValueError(
        f"checkpoint tensor {name!r} has no place in {type(model).__name__}; "
        f"VLLM_TRANSPILED=-{generated.__name__} gives vLLM's own class"
    )


def digest_of(tensor: torch.Tensor) -> str:
    """Digest of a tensor's type, shape and bytes; the tensor itself may be reused."""
    raw = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)
    kind = f"{tensor.dtype} {tuple(tensor.shape)}"
    return kind + hashlib.blake2b(raw.numpy().data).hexdigest()


def check_tied(digests: dict[str, str], tied: tuple[str, str]) -> None:
    """A tied head must be the embedding."""
    if len({digests[name] for name in tied if name in digests}) > 1:
        raise ValueError(
            f"tie_word_embeddings is set, but checkpoint tensors {tied[0]!r} and "
            f"{tied[1]!r} differ; set tie_word_embeddings=false to use both"
        )
