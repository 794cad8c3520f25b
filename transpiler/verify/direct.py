"""The fast oracle: an upstream class against the class generated from the same text.

Both run in one process, from one checkpoint, over the same tokens, and every logit is
compared. vLLM's layers and loader are the real ones; only what `REPLACED` names is not,
since its cache and backends are the engine's. It does the prefill alone: decoding stays
with the engine, which stays the judge.
"""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transpiler.verify.checkpoint import parameters_of
from transpiler.verify.reference import reference_attention
from transpiler.verify.scratch import generated_module, upstream_module

# What a generated module is given in the place of a vLLM class, by name.
REPLACED = {"Attention": reference_attention}


@dataclass(frozen=True)
class Stage:
    """What the two classes are made from and asked.

    Attributes:
        model: Upstream's name of the family.
        architecture: Name of the class.
        folder: Where `config.json` is.
        prompts: Token ids.
        max_model_len: Longest sequence that vLLM is set up for, in tokens.
    """

    model: str
    architecture: str
    folder: Path
    prompts: tuple[tuple[int, ...], ...]
    max_model_len: int = 128


def drawn_tensors(
    stage: Stage, text: str, seed: int = 0, known_as: Callable[[str], str] = str
) -> dict[str, Any]:
    """Random tensors for every parameter of upstream's class, by checkpoint name.

    Args:
        stage: Where the config is.
        text: The modeling file, perhaps edited.
        seed: What they are drawn from, with name and shape.
        known_as: The name that a parameter is drawn by, where an edit renamed it.
    """
    with upstream_module(stage.model, text) as module:
        model = getattr(module, stage.architecture)(upstream_config(stage))
    known = parameters_of(model)
    return {name: known.drawn(name, seed, known_as(name)) for name in known.shapes}


def upstream_logits(stage: Stage, text: str, tensors: Mapping[str, Any]) -> Any:
    """Logits of upstream's class, `[tokens of all prompts, vocab_size]`, float32."""
    import torch

    with upstream_module(stage.model, text) as module, torch.inference_mode():
        model = getattr(module, stage.architecture).from_pretrained(
            None,
            config=upstream_config(stage),
            state_dict=dict(tensors),
            dtype=torch.float32,
        )
        prompts = [torch.tensor([list(prompt)]) for prompt in stage.prompts]
        return torch.cat([model(p, use_cache=False).logits[0] for p in prompts])


def generated_logits(stage: Stage, text: str, tensors: Mapping[str, Any]) -> Any:
    """Logits of the generated class, `[tokens of all prompts, vocab_size]`, float32.

    Raises:
        ValueError: The class refused the config or the tensors.
    """
    import torch
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    lengths = [len(prompt) for prompt in stage.prompts]
    with generated_module(stage.model, text) as module, torch.inference_mode():
        for name, made in REPLACED.items():
            if hasattr(module, name):
                setattr(module, name, made(lengths))
        kind = getattr(module, stage.architecture)
        config = engine_config(stage, kind)
        with set_current_vllm_config(config), set_forward_context(None, config):
            model = loaded(kind, config, tensors)
            tokens = torch.tensor([t for prompt in stage.prompts for t in prompt])
            positions = torch.cat([torch.arange(length) for length in lengths])
            return model.compute_logits(model(tokens, positions, None, None)).float()


def upstream_config(stage: Stage) -> Any:
    """The config as Transformers reads it, for eager attention."""
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(stage.folder, attn_implementation="eager")


def engine_config(stage: Stage, kind: type[Any]) -> Any:
    """The config as vLLM reads it, in a process that is the only rank."""
    from vllm import ModelRegistry
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.rotary_embedding import _ROPE_DICT

    # An engine has a process of its own, and keeps its rotary embeddings by arguments
    # that leave its own length out.
    _ROPE_DICT.clear()
    # The class itself: a lazy one is inspected in a new process.
    ModelRegistry.register_model(stage.architecture, kind)
    config = EngineArgs(
        model=str(stage.folder),
        skip_tokenizer_init=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=stage.max_model_len,
        model_impl="vllm",
    ).create_engine_config()
    join_alone(config)
    return config


def join_alone(config: Any) -> None:
    """Make this process the only rank, once."""
    from vllm.config import set_current_vllm_config
    from vllm.distributed import (
        ensure_model_parallel_initialized,
        init_distributed_environment,
        model_parallel_is_initialized,
    )

    if model_parallel_is_initialized():
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with set_current_vllm_config(config):
        address = f"tcp://127.0.0.1:{port}"
        init_distributed_environment(1, 0, address, 0, "gloo")
        ensure_model_parallel_initialized(1, 1)


def loaded(kind: type[Any], config: Any, tensors: Mapping[str, Any]) -> Any:
    """A model that vLLM's own loader made and filled with these tensors."""
    return loader_class()(kind, tensors).load_model(config, config.model_config)


@functools.cache
def loader_class() -> type[Any]:
    """vLLM's loader, given a class and tensors instead of a registry and files."""
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.model_executor.model_loader.utils import initialize_model

    class GivenLoader(BaseModelLoader):
        def __init__(self, kind: type[Any], tensors: Mapping[str, Any]) -> None:
            self.kind, self.tensors = kind, tensors

        def download_model(self, model_config: Any) -> None:
            """Nothing is downloaded."""

        def create_model(self, vllm_config: Any, **_: Any) -> Any:
            return initialize_model(vllm_config, model_class=self.kind)

        def load_weights(self, model: Any, model_config: Any) -> None:
            model.load_weights(iter(self.tensors.items()))

    return GivenLoader
