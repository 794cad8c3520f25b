"""Files on disk: written whole or not at all, and never over somebody's edit."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from transpiler.refusal import BadInput

SEAL = "# sha256 of the rest: "


def sealed(head: str, body: str) -> str:
    """A text whose head ends with the digest of its body."""
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f"{head}{SEAL}{digest}\n{body}"


def is_sealed(text: str) -> bool:
    """Whether a generated text is as it was written."""
    _, found, rest = text.partition(SEAL)
    digest, newline, body = rest.partition("\n")
    return (
        bool(found and newline) and digest == hashlib.sha256(body.encode()).hexdigest()
    )


def check_unedited(path: Path) -> None:
    """Refuse to overwrite a file that was edited by hand, or is not ours.

    Raises:
        BadInput: The file's text is not what its seal says.
    """
    if path.is_file() and not is_sealed(
        path.read_text(encoding="utf-8", errors="replace")
    ):
        raise BadInput(f"{path} was edited by hand: use --force to overwrite it")


def write(path: Path, text: str) -> None:
    """Replace a file by a text in one step.

    Raises:
        BadInput: The target cannot be written; nothing is changed then.
    """
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".transpile-")
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
        raise BadInput(f"cannot write {path}: {error.strerror}") from None
