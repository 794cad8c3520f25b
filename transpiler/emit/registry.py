"""`generated/registry.py`, derived from the proof: what is not proven is not in it."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from transpiler.read import UPSTREAM_VERSION
from transpiler.refusal import BadInput

VLLM = ("0.32", "0.34")
PROOF = "PROOF.json"
REGISTRY = "registry.py"
PACKAGE = "transpiler.runtime"
RUNTIME = Path(__file__).parents[1] / "runtime"

TEMPLATE = '''# Written by `make transpile` and `make verify`. Do not edit.
"""What vLLM is told: the proven architectures and the versions they are proven with."""

TRANSFORMERS = "{transformers}"
VLLM = ("{low}", "{high}")  # from the first on, up to but not with the second
ARCHITECTURES: dict[str, str] = {{{entries}}}
'''


def registry_text(folder: Path) -> str:
    """The registry for a folder of generated files and its proof.

    A file whose bytes are not those that were proven is left out.

    Raises:
        BadInput: The proof is not readable.
    """
    lines = [
        f'\n    "{architecture}": "generated.{name}:{architecture}",'
        for name, architecture in sorted(proven(folder).items())
    ]
    entries = "".join(lines) + ("\n" if lines else "")
    return TEMPLATE.format(
        transformers=UPSTREAM_VERSION, low=VLLM[0], high=VLLM[1], entries=entries
    )


def proven(folder: Path) -> dict[str, str]:
    """Model name -> architecture of every file whose bytes were proven."""
    return {
        Path(file).stem: entry["architecture"]
        for file, entry in entries(folder).items()
        if not entry["pending"] and is_current(folder / file, entry)
    }


def stale(folder: Path) -> list[str]:
    """Names of files in the proof that have changed since, alone or by `runtime/`."""
    found = entries(folder).items()
    return sorted(file for file, entry in found if not is_current(folder / file, entry))


def entries(folder: Path) -> dict[str, Any]:
    """What the proof says of each file, nothing where it is of another Transformers.

    Raises:
        BadInput: The proof is not readable.
    """
    path = folder / PROOF
    if not path.is_file():
        return {}
    try:
        proof = json.loads(path.read_text(encoding="utf-8"))
        if proof["transformers"] != UPSTREAM_VERSION:
            return {}
        return {f: {"pending": [], **entry} for f, entry in proof["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadInput(f"{path} is not a proof record: {error}") from None


def is_current(file: Path, entry: Mapping[str, Any]) -> bool:
    """Whether a file, and what it imports of `runtime/`, is what was proven."""
    said = {key: entry.get(key) for key in ("sha256", "runtime")}
    return file.is_file() and digests_of(file) == said


def digests_of(file: Path) -> dict[str, str]:
    """Digests of a file's bytes, and of the parts of `runtime/` that it imports."""
    content = file.read_bytes()
    runtime = hashlib.sha256()
    for part in runtime_parts(content.decode("utf-8")):
        runtime.update(part.read_bytes())
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        "runtime": runtime.hexdigest(),
    }


def runtime_parts(text: str) -> list[Path]:
    """Files of `runtime/` that a text imports, those that they import among them."""
    known = {
        alias.name: node.module
        for node in imports_of((RUNTIME / "__init__.py").read_text("utf-8"))
        for alias in node.names
    }
    found: set[Path] = set()
    waiting = [text]
    while waiting:
        for node in imports_of(waiting.pop()):
            for alias in node.names:
                module = node.module if node.module != PACKAGE else known[alias.name]
                part = RUNTIME / f"{(module or '').rpartition('.')[2]}.py"
                if part not in found:
                    found.add(part)
                    waiting.append(part.read_text("utf-8"))
    return sorted(found)


def imports_of(text: str) -> Iterator[ast.ImportFrom]:
    """Imports of `runtime/`, or of parts of it, in a text."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PACKAGE):
            yield node
