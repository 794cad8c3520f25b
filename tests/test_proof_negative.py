"""The negative proof: whatever is broken in a generated file, the proof shows it.

Each case edits the text of `generated/<family>.py` in one place, as a mistaken rewrite
would, and the proof of one variant must then be off by more than ten times its bar.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from transpiler.verify.families import EXEMPLARS
from transpiler.verify.family import Family

GENERATED = Path(__file__).resolve().parents[1] / "generated"
TEN_BARS = 1e-3


def with_argument(call: str, keyword: str, value: str) -> Callable[[str], str]:
    """Return an edit: every `call(...)` gets `keyword=value`, added or replaced."""

    def edit(text: str) -> str:
        calls = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Call) and ast.unparse(node.func) == call
        ]
        spans = []
        for node in calls:
            given = [k.value for k in node.keywords if k.arg == keyword]
            if given:
                start = offset(text, given[0].lineno, given[0].col_offset)
                end = offset(text, given[0].end_lineno, given[0].end_col_offset)
                spans.append((start, end, value))
            else:
                start = offset(text, node.func.end_lineno, node.func.end_col_offset)
                last = max(node.args, key=lambda a: a.end_lineno, default=None)
                if last is not None:
                    start = offset(text, last.end_lineno, last.end_col_offset)
                spans.append((start, start, f", {keyword}={value}"))
        for start, end, new in sorted(spans, reverse=True):
            text = text[:start] + new + text[end:]
        return text

    return edit


def offset(text: str, line: int, column: int) -> int:
    """Return the position in an ASCII text of a line (from 1) and column (from 0)."""
    return sum(map(len, text.splitlines(keepends=True)[: line - 1])) + column


def swapped(pattern: str, one: str, other: str) -> Callable[[str], str]:
    """Return an edit: `one` and `other` change places after `pattern`."""
    both = re.compile(rf"({pattern})({re.escape(one)}|{re.escape(other)})")
    new = {one: other, other: one}
    return lambda text: both.sub(lambda m: m[1] + new[m[2]], text)


def replaced(pattern: str, new: str) -> Callable[[str], str]:
    """Return an edit: a regular expression's matches become `new`."""
    return lambda text: re.sub(pattern, new, text)


@dataclass(frozen=True)
class Break:
    """One thing broken on purpose, and the variant that must show it."""

    name: str
    variant: str
    edit: Callable[[str], str]
    families: tuple[str, ...] = tuple(family.name for family in EXEMPLARS)


WINDOWED = ("qwen2", "qwen3")
BIAS_UNUSED = with_argument("QKVParallelLinear", "skip_bias_add", "True")
BREAKS = (
    Break("bias-dropped", "attention-bias-on", BIAS_UNUSED, ("llama", "qwen3")),
    Break("bias-dropped", "default", BIAS_UNUSED, ("qwen2",)),
    Break(
        "mlp-bias-dropped",
        "mlp-bias-on",
        with_argument("MergedColumnParallelLinear", "skip_bias_add", "True"),
        ("llama",),
    ),
    Break("q-and-k-swapped", "mha", swapped(r'qkv_proj",\s*', '"q"', '"k"')),
    Break("gate-and-up-swapped", "default", swapped(r'gate_up_proj",\s*', "0", "1")),
    Break("eps-changed", "rms-norm-eps", replaced(r"config\.rms_norm_eps", "1e-6")),
    Break(
        "rope-style-flipped",
        "default",
        with_argument("get_rope", "is_neox_style", "False"),
    ),
    Break(
        "gelu-for-gelu-tanh",
        "act-gelu-pytorch-tanh",
        replaced(r"config\.hidden_act", '"gelu"'),
    ),
    Break("scale-changed", "default", replaced(r"\*\*\s*-0\.5", "**-0.48")),
    Break(
        "window-ignored",
        "window-8",
        with_argument("Attention", "per_layer_sliding_window", "2**20"),
        ("mistral",),
    ),
    Break(
        "window-ignored",
        "window-mixed",
        with_argument("Attention", "per_layer_sliding_window", "None"),
        WINDOWED,
    ),
    Break(
        "window-on-full-layers",
        "window-mixed",
        with_argument("Attention", "per_layer_sliding_window", "config.sliding_window"),
        WINDOWED,
    ),
    Break(
        "k-norm-for-q",
        "default",
        replaced(r"self\.q_norm\(", "self.k_norm("),
        ("qwen3",),
    ),
)
CASES = [
    pytest.param(family, broken, id=f"{family.name}-{broken.name}")
    for family in EXEMPLARS
    for broken in BREAKS
    if family.name in broken.families
]


@pytest.mark.engine
@pytest.mark.parametrize(("family", "broken"), CASES)
def test_broken_text_fails_by_ten_bars(
    family: Family, broken: Break, tmp_path: Path
) -> None:
    """The proof of a file broken in one place is off by more than ten bars."""
    from transpiler.verify.isolate import import_once
    from transpiler.verify.run import Plan, prove_variant

    import_once()
    text = (GENERATED / f"{family.name}.py").read_text(encoding="utf-8")
    edited = broken.edit(text)
    assert edited != text, "the edit found nothing to break"
    compile(edited, "broken", "exec")
    scratch = tmp_path / f"{family.name}_broken.py"
    scratch.write_text(edited, encoding="utf-8")
    (variant,) = family.find_variants((broken.variant,))
    plan = Plan(family, f"{scratch}:{family.architecture}", with_backend=False)
    result = prove_variant(plan, variant)
    assert result.comparison is not None, result.detail
    assert not result.passed
    assert result.comparison.largest > TEN_BARS
