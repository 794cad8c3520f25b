"""The proof of every checked-in file, every variant, without the backend's column."""

from __future__ import annotations

import pytest

from transpiler.verify.families import FAMILIES
from transpiler.verify.variants import Family, Variant

CASES = [
    pytest.param(family, variant, id=f"{family.name}-{variant.name}")
    for family in FAMILIES
    for variant in family.variants
]


@pytest.mark.engine
@pytest.mark.parametrize(("family", "variant"), CASES)
def test_generated_class_equals_upstream(family: Family, variant: Variant) -> None:
    from transpiler.verify.isolate import import_once
    from transpiler.verify.run import Plan, prove_variant

    import_once()
    target = f"generated.{family.name}:{family.architecture}"
    result = prove_variant(Plan(family, target, with_backend=False), variant)
    assert result.passed, result.detail
