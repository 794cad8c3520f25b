"""A slice of the fuzzer with a fixed seed, and faults that it must find."""

from __future__ import annotations

from collections import Counter

import pytest

from transpiler.analyse import calls
from transpiler.analyse.evaluate import Evaluator
from transpiler.fusions import qkv
from transpiler.fusions.fusion import Shard
from transpiler.lower import attention
from transpiler.verify.families import EXEMPLARS
from transpiler.verify.fuzz import FAULTS, STAY_FUSED, judged
from transpiler.verify.judge import Finding, Mutant, Verdict
from transpiler.verify.mutate import CHANGING, KEEPING

pytestmark = pytest.mark.engine
MODELS = [family.name for family in EXEMPLARS]
KEPT = {mutation.name for mutation in KEEPING}
# One of each mutation, over all families.
SLICE = len((*KEEPING, *CHANGING))
BAD = (Verdict.WRONG, Verdict.CRASH)


def verdicts(found: list[tuple[Mutant, Finding]]) -> Counter[Verdict]:
    return Counter(finding.verdict for _, finding in found)


def test_no_mutant_is_wrong() -> None:
    found = judged(MODELS, SLICE, seed=7, processes=2)
    assert [f.detail for _, f in found if f.verdict in BAD] == []
    assert verdicts(found)[Verdict.FAULT] <= FAULTS * len(found)
    kept = verdicts([pair for pair in found if set(pair[0].names) <= KEPT])
    tried = kept.total() - kept[Verdict.FAULT] - kept[Verdict.NONE]
    assert kept[Verdict.EQUAL] >= STAY_FUSED * tried


def wrong(name: str) -> list[str]:
    """What is found wrong among mutants of one mutation."""
    place = [mutation.name for mutation in (*KEEPING, *CHANGING)].index(name)
    found = judged(["llama"], 8 * len((*KEEPING, *CHANGING)), 7, 2, only=place)
    assert {mutant.names[-1] for mutant, _ in found} == {name}
    return [f.detail for _, f in found if f.verdict is Verdict.WRONG]


def test_a_write_that_is_overlooked_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong("written-in-place") == []
    monkeypatch.setattr(Evaluator, "write", lambda *_: None)
    monkeypatch.setattr(calls, "has_effect", lambda _: False)
    assert wrong("written-in-place")


def test_projections_taken_by_their_size_are_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert wrong("operands-swapped") == []

    def by_size(owner: str, source: str, target: str, shard: str) -> Shard:
        """The widest is the query; of two alike the first that is made is the key."""
        return Shard(owner, source, target, f'"{source[0]}"')

    monkeypatch.setattr(qkv, "Shard", by_size)
    assert wrong("operands-swapped")


def test_a_keyword_that_is_ignored_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wrong("unknown-keyword") == []
    known = attention.SILENT | {"softcap", "s_aux"}
    monkeypatch.setattr(attention, "SILENT", known)
    assert wrong("unknown-keyword")
