"""What is proven: families of models, variants of their configs, expected outcomes."""

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


class Head(Enum):
    """What the checkpoint holds under `lm_head.weight`."""

    AS_SAVED = "as saved"
    ABSENT = "absent"
    COPY = "copy of the embedding"
    DIFFERENT = "different from the embedding"


@dataclass(frozen=True)
class Expected:
    """The outcome a variant must have.

    `names` are the config fields or tensors of which a `ValueError` must name one;
    empty where the outcome is `EQUAL`.
    """

    outcome: Outcome = Outcome.EQUAL
    names: tuple[str, ...] = ()


def raises(*names: str) -> Expected:
    """Expect a `ValueError` at construction or load that names one of `names`."""
    return Expected(Outcome.RAISES, names)


def equal_or_raises(*names: str) -> Expected:
    """Expect equal numbers or a `ValueError` naming one of `names`: never wrong."""
    return Expected(Outcome.EITHER, names)


@dataclass(frozen=True)
class Tensors:
    """How the checkpoint's tensors differ from those upstream would save.

    `added` maps new tensor names to shapes, `renamed` old names to new ones.
    """

    head: Head = Head.AS_SAVED
    added: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    renamed: Mapping[str, str] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True)
class Variant:
    """One config of a family, its checkpoint, its prompts and its expected outcome.

    `config` overrides keys of the family's `config.json`; `absent` removes some.
    `prompt_lengths` are in tokens; every prompt is continued by `new_tokens`.
    """

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    tensors: Tensors = field(default_factory=Tensors)
    prompt_lengths: tuple[int, ...] = (5, 17, 40)
    new_tokens: int = 10
    max_model_len: int = 128
    expected: Expected = field(default_factory=Expected)


@dataclass(frozen=True)
class Family:
    """A model as `transpile` names it, its smallest sensible config and its variants.

    `config` holds `model_type` and every size; `architecture` is the class name both
    upstream and in the generated file.
    """

    name: str
    architecture: str
    config: Mapping[str, Any]
    variants: tuple[Variant, ...]

    def find_variants(self, names: tuple[str, ...]) -> tuple[Variant, ...]:
        """Return the variants called `names` in the family's order, or all for none.

        Raises:
            UnknownNameError: a name is no variant of this family.
        """
        known = [variant.name for variant in self.variants]
        for name in names:
            require_known(f"{self.name} variant", name, known)
        return tuple(v for v in self.variants if not names or v.name in names)

    def config_json(self, variant: Variant) -> dict[str, Any]:
        """Return what the `config.json` of this variant's checkpoint holds."""
        merged = {"architectures": [self.architecture], **self.config, **variant.config}
        return {key: merged[key] for key in merged if key not in variant.absent}


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
