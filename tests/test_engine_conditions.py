"""The generated classes under every way to run an engine that a CPU has."""

from __future__ import annotations

import pytest

from transpiler.verify.conditions import CONDITIONS, try_condition
from transpiler.verify.families import FAMILIES
from transpiler.verify.isolate import import_once
from transpiler.verify.run import Plan
from transpiler.verify.trial import Condition
from transpiler.verify.variants import Family

pytestmark = pytest.mark.engine
TRIED = [family for family in FAMILIES if family.name in ("llama", "qwen3")]


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: c.name)
@pytest.mark.parametrize("family", TRIED, ids=lambda f: f.name)
def test_condition_happens_and_holds(family: Family, condition: Condition) -> None:
    import_once()
    target = f"generated.{family.name}:{family.architecture}"
    plan = Plan(family, target, with_backend=False, timeout=300)
    verdict = try_condition(plan, condition)
    assert verdict.evidence is not None, verdict.detail
