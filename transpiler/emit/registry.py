"""`generated/registry.py`, derived from the proof: what is not proven is not in it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from transpiler.read import UPSTREAM_VERSION
from transpiler.refusal import BadInput

VLLM = ("0.32", "0.34")
PROOF = "PROOF.json"
REGISTRY = "registry.py"
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
    path = folder / PROOF
    if not path.is_file():
        return {}
    try:
        proof = json.loads(path.read_text(encoding="utf-8"))
        if not is_current(proof):
            return {}
        return {
            Path(file).stem: entry["architecture"]
            for file, entry in proof["files"].items()
            if not entry["pending"] and digest_of(folder / file) == entry["sha256"]
        }
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{path} is not a proof record: {error}") from None


def is_current(proof: dict[str, object]) -> bool:
    """Whether a proof is of this Transformers version and this `runtime/`."""
    ours = (UPSTREAM_VERSION, runtime_digest())
    return (proof["transformers"], proof.get("runtime")) == ours


def stale(folder: Path) -> list[str]:
    """Names of files in the proof that have changed since, alone or by `runtime/`."""
    path = folder / PROOF
    if not path.is_file():
        return []
    proof = json.loads(path.read_text(encoding="utf-8"))
    files = proof["files"]
    if not is_current(proof):
        return sorted(files)
    return sorted(f for f, e in files.items() if digest_of(folder / f) != e["sha256"])


def runtime_digest() -> str:
    """Digest of the layers that generated files import."""
    digest = hashlib.sha256()
    for path in sorted(RUNTIME.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def digest_of(path: Path) -> str:
    """Digest of a file's bytes, empty when there is none."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
