"""The generated classes under the ways to run an engine that a CPU has.

Each condition must have happened, and a class broken in one place must fail it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from transpiler.verify.conditions import CONDITIONS, Verdict, try_condition
from transpiler.verify.families import FAMILIES
from transpiler.verify.family import Family
from transpiler.verify.isolate import import_once
from transpiler.verify.run import Plan
from transpiler.verify.trial import Condition
from transpiler.verify.variants import Variant

pytestmark = pytest.mark.engine
GENERATED = Path(__file__).resolve().parents[1] / "generated"
TRIED = [family for family in FAMILIES if family.name in ("llama", "qwen3")]
LLAMA = TRIED[0]
BY_NAME = {condition.name: condition for condition in CONDITIONS}

# Condition, what is replaced in generated/llama.py, by what, and what is then said.
BROKEN = [
    ("prefix-is-path", '{prefix}.o_proj"', '{prefix}.out"', "o_proj"),
    (
        "loaded-once",
        "return AutoWeights",
        "weights = [*weights] * 2; return AutoWeights",
        "elements",
    ),
    ("quantized-with-ignore-list", '"q_proj", "k_proj", "v_proj"', "", "qkv_proj"),
    ("ignore-list-names-one-shard", '"q_proj", "k_proj", "v_proj"', "", "only these"),
    (
        "aux-hidden-states",
        "aux_hidden_states, idx + 1",
        "aux_hidden_states, idx",
        "states",
    ),
    ("bfloat16", "return down_proj", "return round_off(down_proj)", "from the truth"),
    ("lora", '"gate_proj", "up_proj"', '"up_proj", "gate_proj"', "from upstream"),
    ("compiled", "return down_proj", "return by_size(down_proj)", "GuardManager"),
]
# Put at the end of the broken file.
FUNCTIONS = """

def round_off(x):
    return x.to(torch.float8_e5m2).to(x.dtype)


def by_size(x):
    return x * 1 if x.shape[0] > 64 else x
"""


def verdict_of(condition: Condition, target: str, family: Family) -> Verdict:
    import_once()
    plan = Plan(family, target, with_backend=False, timeout=300)
    return try_condition(plan, condition)


@pytest.mark.parametrize("condition", CONDITIONS, ids=lambda c: c.name)
@pytest.mark.parametrize("family", TRIED, ids=lambda f: f.name)
def test_condition_happens_and_holds(family: Family, condition: Condition) -> None:
    target = family.target
    verdict = verdict_of(condition, target, family)
    assert verdict.evidence is not None, verdict.detail


@pytest.mark.parametrize(
    ("name", "old", "new", "said"), BROKEN, ids=[case[0] for case in BROKEN]
)
def test_broken_class_fails_its_condition(
    name: str, old: str, new: str, said: str, tmp_path: Path
) -> None:
    text = (GENERATED / "llama.py").read_text(encoding="utf-8")
    assert old in text, "nothing to break"
    scratch = tmp_path / "broken.py"
    scratch.write_text(text.replace(old, new) + FUNCTIONS, encoding="utf-8")
    verdict = verdict_of(BY_NAME[name], f"{scratch}:{LLAMA.architecture}", LLAMA)
    assert verdict.evidence is None, verdict.evidence
    assert said in verdict.detail


@pytest.mark.parametrize("name", ["chunked-prefill", "prefix-cache", "preemption"])
def test_condition_that_does_not_happen_is_no_success(name: str) -> None:
    short = Variant("short", prompt_lengths=(5, 9), new_tokens=2)
    target = f"generated.llama:{LLAMA.architecture}"
    verdict = verdict_of(replace(BY_NAME[name], variant=short), target, LLAMA)
    assert verdict.evidence is None, verdict.evidence
