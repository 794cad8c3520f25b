"""Texts of vLLM's linear layers, and the checks that stand before them."""

from __future__ import annotations

from transpiler.analyse.values import Value


def config_fields(value: Value) -> list[str]:
    """Names of the config fields that a value is computed from, in order met."""
    found = [
        part.name
        for part in value.walk()
        if part.op in {"attr", "getattr"} and part.args[0].op == "config"
    ]
    return list(dict.fromkeys(found))


def divisible(size: Value, text: str, replicable: bool = False) -> str:
    """Statement that refuses a size which the tensor-parallel ranks cannot share."""
    fields = " * ".join(config_fields(size)) or text
    extra = ", replicable=True" if replicable else ""
    return f'require_divisible({text}, "{fields}"{extra})'


def layer(kind: str, name: str, *arguments: str) -> str:
    """Statement that makes a vLLM linear layer under an attribute name."""
    inner = ", ".join(arguments)
    return (
        f"self.{name} = {kind}({inner}, quant_config=vllm_config.quant_config, "
        f'prefix=f"{{prefix}}.{name}", return_bias=False)'
    )
