"""`generated/PROOF.json`: what has been proven of which bytes.

The registry is derived from it, so it holds only what a full passing run has shown,
and nothing that depends on the machine or the day.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transpiler.emit.registry import digests_of

NAME = "PROOF.json"


@dataclass(frozen=True)
class Proven:
    """What a full passing run showed of one generated file.

    `equal` are variant names; `raises` maps variant names to the config field or tensor
    that the `ValueError` names; `fails` are those that upstream itself does not run;
    `pending` are variants not run.
    """

    architecture: str
    equal: tuple[str, ...]
    raises: Mapping[str, str] = field(default_factory=dict)
    fails: tuple[str, ...] = ()
    pending: tuple[str, ...] = ()


def record(generated: Path, file: str, proven: Proven, transformers: str) -> None:
    """Write the entry of `generated/file`, leaving the others as they are.

    Entries proven against another `transformers` version are dropped.

    Raises:
        OSError: the generated file or the record cannot be read or written.
        ValueError: the existing record is no JSON.
    """
    files = _files(generated, transformers)
    files[file] = {
        "architecture": proven.architecture,
        **digests_of(generated / file),
        "equal": sorted(proven.equal),
        "raises": dict(proven.raises),
        "upstream_fails": sorted(proven.fails),
        "pending": sorted(proven.pending),
    }
    _write(generated, files, transformers)


def remove(generated: Path, file: str, transformers: str) -> None:
    """Remove the entry of a file that is no longer proven, if there is one.

    Raises:
        OSError: the record cannot be read or written.
        ValueError: the existing record is no JSON.
    """
    if not (generated / NAME).exists():
        return
    files = _files(generated, transformers)
    files.pop(file, None)
    _write(generated, files, transformers)


def _files(generated: Path, transformers: str) -> dict[str, Any]:
    path = generated / NAME
    if not path.exists():
        return {}
    existing = json.loads(path.read_text(encoding="utf-8"))
    if existing["transformers"] != transformers:
        return {}
    files: dict[str, Any] = existing["files"]
    return files


def _write(generated: Path, files: dict[str, Any], transformers: str) -> None:
    content = {"transformers": transformers, "files": files}
    text = json.dumps(content, indent=2, sort_keys=True) + "\n"
    partial = generated / f"{NAME}.partial"
    partial.write_text(text, encoding="utf-8")
    partial.replace(generated / NAME)
