"""The proof of every checked-in file, without the backend's column.

Two variants of each family run here, and all of those whose file is not the one that
`make verify` proved last.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from transpiler.emit.registry import proven
from transpiler.verify.families import FAMILIES
from transpiler.verify.family import Family
from transpiler.verify.variants import Variant

GENERATED = Path(__file__).resolve().parents[1] / "generated"


def find_cases() -> Iterator[tuple[Family, Variant]]:
    known = proven(GENERATED)
    for family in FAMILIES:
        yield family, family.variants[0]
        yield family, family.telling
        if family.name not in known or not is_whole(family):
            for variant in family.variants[1:]:
                yield family, variant


def is_whole(family: Family) -> bool:
    """Whether the proof is about the variants that there are."""
    entry = json.loads((GENERATED / "PROOF.json").read_text())["files"][
        f"{family.name}.py"
    ]
    done = {*entry["equal"], *entry["raises"], *entry.get("upstream_fails", ())}
    return done == {variant.name for variant in family.variants}


CASES = [
    pytest.param(family, variant, id=f"{family.name}-{variant.name}")
    for family, variant in find_cases()
]


@pytest.mark.engine
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_generated_class_equals_upstream(family: Family, variant: Variant) -> None:
    from transpiler.verify.isolate import import_once
    from transpiler.verify.run import Plan, prove_variant

    import_once()
    target = family.target
    result = prove_variant(Plan(family, target, with_backend=False), variant)
    assert result.passed, result.detail
