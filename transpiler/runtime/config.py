"""Configs that a generated class serves.

vLLM gives a class whatever config names its architecture, of whatever class.
"""

from __future__ import annotations

from transformers import PretrainedConfig


def require_config(
    config: PretrainedConfig, kind: type[PretrainedConfig], architecture: str
) -> None:
    """Refuse a config that upstream's class would not read as it is read here.

    Args:
        config: The config that vLLM gives.
        kind: Upstream's config class; `AutoConfig` makes another family's of some
            configs that still name this architecture.
        architecture: Name of the generated class, for the switch in the message.

    Raises:
        ValueError: It is of another class, or asks for attention that is not causal.
    """
    switch = f"VLLM_TRANSPILED=-{architecture} gives vLLM's own class"
    if not isinstance(config, kind):
        raise ValueError(
            f"model_type={config.model_type!r}: generated for {named(kind)}, "
            f"not {named(type(config))}; {switch}"
        )
    if not getattr(config, "is_causal", True):
        raise ValueError(f"is_causal=False: generated for causal attention; {switch}")


def named(kind: type) -> str:
    """Full name of a class: remote code may have one of the same short name."""
    return f"{kind.__module__}.{kind.__qualname__}"
