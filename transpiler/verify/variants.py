"""What is proven: variants of a family's config, and their expected outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from typing import Any


class Outcome(Enum):
    """What must happen when the engine is given a variant's checkpoint."""

    EQUAL = "equal"
    RAISES = "raises"
    EITHER = "either"
    UPSTREAM_FAILS = "upstream fails"


class Head(Enum):
    """What the checkpoint holds under `lm_head.weight`."""

    AS_SAVED = "as saved"
    ABSENT = "absent"
    COPY = "copy of the embedding"
    DIFFERENT = "different from the embedding"


class Split(Enum):
    """What two ranks share out."""

    TENSORS = "tensor_parallel_size"
    LAYERS = "pipeline_parallel_size"


@dataclass(frozen=True)
class Expected:
    """The outcome a variant must have.

    `names` are the config fields of which a `ValueError` must name one; empty where
    the outcome is `EQUAL`, or the tensor that the variant changes must be named.
    """

    outcome: Outcome = Outcome.EQUAL
    names: tuple[str, ...] = ()


# Upstream itself cannot be made from the config, or does not run.
UPSTREAM_FAILS = Expected(Outcome.UPSTREAM_FAILS)


def raises(*names: str) -> Expected:
    """Expect a `ValueError` at construction or load that names one of `names`."""
    return Expected(Outcome.RAISES, names)


def equal_or_raises(*names: str) -> Expected:
    """Expect equal numbers or a `ValueError` naming one of `names`: never wrong."""
    return Expected(Outcome.EITHER, names)


class Pick(Enum):
    """A tensor of the second layer, or beside the layers, by its place."""

    FIRST = "the layer's first matrix"
    SECOND = "its second"
    PENULTIMATE = "its last but one"
    LAST = "its last matrix"
    BIAS = "its first bias, or its first matrix"
    NORM = "its last vector that is no bias, or its first matrix"
    FINAL = "the last tensor before the head"
    HEAD = "the head"


@dataclass(frozen=True)
class Tensors:
    """How the checkpoint's tensors differ from those upstream would save.

    Attributes:
        head: What stands under the head's name.
        dropped: A tensor that is left out.
        renamed: A tensor that has another name.
        biased: A tensor whose module, or the embedding where that has a bias, gets a
            bias that upstream does not know.
        saved_as: Beginnings of names by what older checkpoints say, which upstream
            renames while it loads.
        added: Names and shapes of further tensors, `{layer}` standing for the second
            layer's.
    """

    head: Head = Head.AS_SAVED
    dropped: Pick | None = None
    renamed: Pick | None = None
    biased: Pick | None = None
    saved_as: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Variant:
    """One config of a family, its checkpoint, its prompts and its expected outcome.

    `config` overrides keys of the family's `config.json`; `absent` removes some.
    `prompt_lengths` are in tokens; every prompt is continued by `new_tokens`. With a
    `split` the engine runs on two ranks.
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    tensors: Tensors = field(default_factory=Tensors)
    prompt_lengths: tuple[int, ...] = (5, 17, 40)
    new_tokens: int = 10
    max_model_len: int = 128
    expected: Expected = field(default_factory=Expected)
    split: Split | None = None


class UnknownNameError(LookupError):
    """A model or variant that does not exist, with near names in the message."""


def require_known(kind: str, name: str, known: list[str]) -> None:
    """Check that `name` is one of `known`.

    Raises:
        UnknownNameError: it is not; the message suggests near names.
    """
    if name in known:
        return
    near = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"; near: {', '.join(near)}" if near else f"; known: {', '.join(known)}"
    raise UnknownNameError(f"unknown {kind} {name!r}{hint}")
