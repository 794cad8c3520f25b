"""The command that times a generated class beside vLLM's own and the backend."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROWS = (
    "construction",
    "decode, batch 1,",
    "decode, batch 16,",
    "prefill",
    "operations",
)


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "transpiler.verify.bench", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )


def test_unknown_model_is_status_2_with_near_names() -> None:
    ran = bench("lama")
    assert ran.returncode == 2
    assert "near: llama" in ran.stderr


@pytest.mark.engine
@pytest.mark.slow
def test_three_classes_side_by_side_with_ratios() -> None:
    ran = bench("llama", "--rounds", "1")
    assert ran.returncode == 0, ran.stderr
    lines = ran.stdout.splitlines()
    for row in ROWS:
        (line,) = [line for line in lines if line.startswith(row)]
        numbers = [float(cell) for cell in line.split()[-5:]]
        assert min(numbers) > 0, line
