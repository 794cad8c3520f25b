"""Texts: what the config says, as source of a generated constructor."""

from __future__ import annotations

from transpiler.analyse.values import Value


def config_text(value: Value, config: str = "config", layer: str = "") -> str | None:
    """A value that only the config and a layer's place decide, as source text.

    Args:
        value: The value.
        config: Name of the config there.
        layer: Name of the layer's place there.

    Returns:
        None for a value that has no such text.
    """
    texts = [config_text(arg, config, layer) for arg in value.args]
    known = [text for text in texts if text is not None]
    if value.op in {"index", "element"}:
        return layer or None
    if len(known) < len(texts):
        return None
    match value.op:
        case "const":
            return repr(value.constant).replace("'", '"')
        case "config":
            return config
        case "attr":
            return f"{known[0]}.{value.name}"
        case "getattr":
            return f'getattr({known[0]}, "{value.name}", {", ".join(known[1:])})'
        case "compare" if all(arg.op != "compare" for arg in value.args):
            return f"{known[0]} {value.name} {known[1]}"
        case "subscript":
            return f"{known[0]}[{known[1]}]"
        case "dict":
            entries = [
                (key, config_text(entry, config, layer))
                for key, entry in value.keywords
            ]
            if any(text is None for _, text in entries):
                return None
            inner = ", ".join(f'"{key}": {text}' for key, text in entries)
            return f"{{{inner}}}"
    return None
