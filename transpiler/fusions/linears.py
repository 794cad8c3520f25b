"""Texts of vLLM's linear layers, and the checks that stand before them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from transpiler.analyse.values import Value

if TYPE_CHECKING:
    from transpiler.fusions.heads import Heads, Projection


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
    fields = field_of(size, text)
    extra = ", replicable=True" if replicable else ""
    return f'require_divisible({text}, "{fields}"{extra})'


def layer(kind: str, name: str, *arguments: str) -> str:
    """Statement that makes a vLLM linear layer under an attribute name."""
    inner = ", ".join(arguments)
    return (
        f"self.{name} = {kind}({inner}, quant_config=vllm_config.quant_config, "
        f'prefix=f"{{prefix}}.{name}", return_bias=False)'
    )


def share_checks(query: Heads, key: Heads) -> list[str]:
    """Statements that refuse heads which the ranks cannot share."""
    checks = [divisible(query.count, query.text)]
    if key.count is not query.count:
        checks.append(divisible(key.count, key.text, replicable=True))
    return checks


def multiples(projections: list[Projection]) -> list[str]:
    """Statements that refuse sizes which are no multiples, where heads rest on it."""
    found: list[str] = []
    for projection in projections:
        for need in projection.heads.needs:
            fields = (field_of(need.size, need.text), field_of(need.by, need.by_text))
            said = ", ".join(f'"{name}"' for name in fields)
            found.append(f"require_multiple({need.text}, {need.by_text}, {said})")
    return list(dict.fromkeys(found))


def field_of(size: Value, text: str) -> str:
    """The config fields that a size comes from, for a message."""
    return " * ".join(config_fields(size)) or text
