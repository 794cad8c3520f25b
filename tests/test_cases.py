"""Each case file becomes what it says: refused there, fused as before, or otherwise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest
from case_files import Case, all_cases, body_of, unedited

from transpiler.fusions.fusion import Outcome
from transpiler.pipeline import transpile_source
from transpiler.refusal import Refused

ALL = list(all_cases())


def line_at(case: Case, where: str) -> str:
    """Source line of a place `file:line:column` of an edited file."""
    assert re.fullmatch(r"[^:]+:\d+:\d+", where), where
    return case.source().text.splitlines()[int(where.split(":")[1]) - 1].strip()


def applied(outcomes: Iterable[Outcome]) -> Counter[str]:
    """How often each fusion was applied."""
    return Counter(outcome.fusion for outcome in outcomes if not outcome.code)


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    source = case.source()
    if case.code and not case.fusion:
        with pytest.raises(Refused) as refused:
            transpile_source(source)
        assert refused.value.code == case.code, refused.value
        assert case.at in line_at(case, source.where(refused.value.node))
        return
    made = transpile_source(source)
    body = body_of(made)
    before = unedited(case.model)
    assert (body == body_of(before)) == (case.expect == "same")
    lost = applied(before.outcomes) - applied(made.outcomes)
    if case.expect in ("same", "fused"):
        assert not lost
    elif case.code:
        refusals = [
            line_at(case, source.where(outcome.node))
            for outcome in made.outcomes
            if (outcome.fusion, outcome.code) == (case.fusion, case.code)
        ]
        assert any(case.at in line for line in refusals), made.outcomes
    elif case.fusion:
        assert case.fusion in lost
    for text in case.has:
        assert text in body
    for text in case.lacks:
        assert text not in body
