"""Each case file becomes what it says: refused there, fused as before, or otherwise."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import pytest
from case_files import Case, all_cases, body_of, unedited
from libcst import CSTNode

from transpiler.fusions.fusion import Outcome
from transpiler.pipeline import transpile_source
from transpiler.read import Source
from transpiler.refusal import Refused

ALL = list(all_cases())


def line_at(source: Source, node: CSTNode | None) -> str:
    """The source line that a refusal points at, or the file."""
    where = source.where(node)
    if ":" not in where:
        return where
    assert re.fullmatch(r"[^:]+:\d+:\d+", where), where
    return source.text.splitlines()[int(where.split(":")[1]) - 1].strip()


def applied(outcomes: Iterable[Outcome]) -> Counter[str]:
    """How often each fusion was applied."""
    return Counter(outcome.fusion for outcome in outcomes if not outcome.code)


def check_fusions_refused(
    case: Case, source: Source, outcomes: Iterable[Outcome]
) -> None:
    """Each fusion that the case says is refused there, with that code."""
    found = {
        (outcome.fusion, outcome.code, line_at(source, outcome.node))
        for outcome in outcomes
        if outcome.code
    }
    own = ((case.fusion, case.code, case.at),) if case.fusion and case.code else ()
    for fusion, code, at in (*own, *case.also):
        same = [line for name, said, line in found if (name, said) == (fusion, code)]
        assert any(at in line for line in same), found


@pytest.mark.parametrize("case", ALL, ids=lambda case: case.name)
def test_case(case: Case) -> None:
    source = case.source()
    if case.code and not case.fusion:
        with pytest.raises(Refused) as refused:
            transpile_source(source)
        assert refused.value.code == case.code, refused.value
        assert case.at in line_at(source, refused.value.node)
        check_fusions_refused(case, source, refused.value.causes)
        return
    made = transpile_source(source)
    body = body_of(made)
    before = unedited(case.model)
    assert (body == body_of(before)) == (case.expect == "same")
    lost = applied(before.outcomes) - applied(made.outcomes)
    if case.expect in ("same", "fused"):
        assert not lost
    elif case.code:
        check_fusions_refused(case, source, made.outcomes)
    elif case.fusion:
        assert case.fusion in lost
    for text in case.has:
        assert text in body
    for text in case.lacks:
        assert text not in body
