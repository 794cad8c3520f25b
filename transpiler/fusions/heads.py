"""Heads: what a projection of an attention gives, and how many of them."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from transpiler.analyse.program import Child
from transpiler.analyse.values import Value


@dataclass(frozen=True)
class Multiple:
    """A size that must be a multiple of another, each with its source text."""

    size: Value
    text: str
    by: Value
    by_text: str


@dataclass(frozen=True)
class Heads:
    """The heads that a projection gives.

    Attributes:
        count: Their number, and as source text.
        size: The size of one, and as source text.
        needs: Sizes of which the first must be a multiple of the second, with texts.
        part: The part of a linear's output that they are, None for all of it.
    """

    count: Value
    text: str
    size: Value
    size_text: str
    needs: tuple[Multiple, ...] = ()
    part: Value | None = None


@dataclass(frozen=True)
class Projection:
    """The linear that a query, key or value comes from.

    Attributes:
        role: `query`, `key` or `value`.
        child: The linear.
        value: Its call, as a value.
        call: Its call.
        heads: The heads that it gives.
    """

    role: str
    child: Child
    value: Value
    call: cst.Call
    heads: Heads
