"""A refusal: what cannot be accounted for, where, and in one clause why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from libcst import CSTNode

if TYPE_CHECKING:
    from transpiler.fusions.fusion import Outcome


class Refused(Exception):
    """Raised below `match`, `check` or a lowering; caught only in the pipeline.

    Args:
        code: Stable kebab-case code, documented where it is raised.
        reason: One clause in lower case that names the thing in source spelling.
        node: The upstream node it is about; gives line and column.

    Attributes:
        causes: Fusions that were refused before, one of which may be the cause.
    """

    causes: tuple[Outcome, ...] = ()

    def __init__(self, code: str, reason: str, node: CSTNode | None = None) -> None:
        super().__init__(f"[{code}]: {reason}")
        self.code = code
        self.reason = reason
        self.node = node


class BadInput(Exception):
    """A user's mistake: one clear line and exit status 2."""
