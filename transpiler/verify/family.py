"""A family of models: its smallest sensible config, and the variants that prove it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from transpiler.verify.fields import (
    Field,
    attribute_map,
    fields_of,
    fields_read,
    is_validated,
)
from transpiler.verify.found import SIZES, Ground, find_variants
from transpiler.verify.variants import Expected, Outcome, Variant, require_known

PARTIAL = "partial_rotary_factor"


@dataclass(frozen=True)
class Family:
    """A model as `transpile` names it.

    Attributes:
        name: Its name.
        architecture: Name of its class, both upstream and in the generated file.
        overrides: What its smallest config says besides the sizes that every family
            has, `model_type` where that is not the name.
        extra: Variants besides those that its fields ask for.
        expected: Outcomes that differ from what is expected everywhere, by variant.
    """

    name: str
    architecture: str
    overrides: Mapping[str, Any] = field(default_factory=dict)
    extra: tuple[Variant, ...] = ()
    expected: Mapping[str, Expected] = field(default_factory=dict)

    @property
    def model_type(self) -> str:
        """What `config.json` calls the model."""
        return str(self.overrides.get("model_type", self.name))

    @property
    def target(self) -> str:
        """The generated class, as `module:Class`."""
        return f"generated.{self.name}:{self.architecture}"

    @cached_property
    def fields(self) -> dict[str, Field]:
        """The fields of its configuration class."""
        return fields_of(self.name, self.model_type)

    @cached_property
    def read(self) -> frozenset[str]:
        """The fields that its upstream classes read."""
        aliases = attribute_map(self.name, self.model_type)
        read = fields_read(self.name, self.architecture)
        return frozenset(aliases.get(name, name) for name in read)

    @cached_property
    def config(self) -> dict[str, Any]:
        """The smallest sensible config: sizes of those fields that it has."""
        aliases = attribute_map(self.name, self.model_type)
        config: dict[str, Any] = {"model_type": self.model_type}
        for name, size in SIZES.items():
            own = aliases.get(name, name)
            if own in self.fields:
                config[own] = size
        for name, known in self.fields.items():
            # A token beyond the small vocabulary is none.
            if name == "pad_token_id" and isinstance(known.default, int):
                config[name] = 0
        return {**config, **self.overrides}

    @cached_property
    def variants(self) -> tuple[Variant, ...]:
        """What is proven: found by the fields that it reads, and the extra ones.

        Raises:
            UnknownNameError: `expected` names none of them.
        """
        validated = is_validated(self.name, self.model_type)
        ground = Ground(self.config, self.fields, self.read, validated)
        found = [*find_variants(ground), *self.extra]
        for name in self.expected:
            require_known(f"{self.name} variant", name, [v.name for v in found])
        return tuple(
            replace(v, expected=self.expected.get(v.name, v.expected)) for v in found
        )

    @cached_property
    def telling(self) -> Variant:
        """One variant that shows as much as one can: all that is off, and windows."""
        config: dict[str, Any] = {}
        prompts = Variant.prompt_lengths
        for variant in self.variants:
            windowed = variant.name in ("window-8", "layer-types-mixed")
            switched = variant.name.endswith("-on") and variant.config
            equal = variant.expected.outcome is Outcome.EQUAL
            if equal and (windowed or switched):
                config |= variant.config
                prompts = variant.prompt_lengths if windowed else prompts
        return Variant("telling", config, prompt_lengths=prompts)

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
        """Return what the `config.json` of this variant's checkpoint holds.

        Rope parameters that the family always has stay where a variant has its own.
        """
        merged = {"architectures": [self.architecture], **self.config, **variant.config}
        own = self.config.get("rope_parameters")
        if own is not None and isinstance(merged.get("rope_parameters"), dict):
            rope = {**own, **merged["rope_parameters"]}
            pairs = int(merged.get("head_dim", 32) * rope.get(PARTIAL, 1.0)) // 2
            for key in ("short_factor", "long_factor"):
                if key in rope:
                    rope[key] = rope[key][:pairs]
            merged["rope_parameters"] = rope
        return {key: merged[key] for key in merged if key not in variant.absent}
