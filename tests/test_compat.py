"""What `make compat` finds, tried with the vLLM that is installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
GOOD = """
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.models.utils import AutoWeightsLoader, maybe_prefix


def build(config, weights, options):
    RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
    RMSNorm(config.hidden_size, **options)
    maybe_prefix("", *options)
    return AutoWeightsLoader(weights).load_weights(weights)
"""
# Each is GOOD with one text put for another, and how the one finding starts.
BROKEN = {
    "keyword": ("eps=config", "epsilon=config", "7: RMSNorm: got an unexpected"),
    "missing": (
        "AutoWeightsLoader(weights)",
        "AutoWeightsLoader()",
        "10: AutoWeightsLoader: missing a required argument: 'module'",
    ),
    "too_many": ('"", *options', '"", "", ""', "9: maybe_prefix: too many positional"),
    "local_name": (
        '    maybe_prefix("", *options)',
        "    from vllm.config import NoConfig",
        "9: No module named 'vllm.config.NoConfig'",
    ),
    "name": ("import RMSNorm", "import Norm", "2: ImportError: cannot import name"),
}
CHECK = """
import json, sys
from pathlib import Path
sys.path[:0] = sys.argv[1:]
import compat
found = {
    path.stem: [f"{it.line}: {it.text}" for it in compat.find_problems(path, path.stem)]
    for path in Path(sys.argv[1]).glob("*.py")
}
print(json.dumps(found))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict[str, list[str]]:
    """What is found in each, by name; one process, since vLLM takes long to import."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "good.py").write_text(GOOD)
    for name, (line, changed, _) in BROKEN.items():
        assert line in GOOD
        (folder / f"{name}.py").write_text(GOOD.replace(line, changed))
    run = subprocess.run(
        [sys.executable, "-c", CHECK, str(folder), str(ROOT / "tests")],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_nothing_is_found_where_all_fits(found):
    assert found["good"] == []


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_broken_is_found(found, name):
    (problem,) = found[name]
    assert problem.startswith(BROKEN[name][-1])
