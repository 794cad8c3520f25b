"""An attempt at what may fail in any way, since a mutated file may do anything."""

from __future__ import annotations

from types import TracebackType


class Attempt:
    """A block whose exception is kept, not raised; interrupts pass.

    Attributes:
        error: What the block raised, None when it came to its end.
    """

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if isinstance(error, Exception):
            self.error = error.with_traceback(None)
            return True
        return False

    def said(self) -> str:
        """The exception in one line, empty where there is none."""
        if self.error is None:
            return ""
        first = (str(self.error).strip().splitlines() or [""])[0]
        return f"{type(self.error).__name__}: {first}"
