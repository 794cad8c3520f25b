"""The whole walk: deterministic, stable, light, and what it writes is in order."""

from __future__ import annotations

import ast
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import black
import libcst as cst
import pytest

from transpiler.analyse.module import analyse_module
from transpiler.emit.text import MODE
from transpiler.fusions.fusion import LINEAR
from transpiler.pipeline import transpile
from transpiler.read import read
from transpiler.rewrite import is_docstring
from transpiler.tree import statements_within

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "generated"
MODELS = sorted(json.loads((GENERATED / "PROOF.json").read_text())["files"])
NAMES = [Path(file).stem for file in MODELS]


@pytest.mark.parametrize("seed", ["0", "1", "random"])
def test_bytes_do_not_depend_on_seed_folder_or_order(tmp_path: Path, seed: str) -> None:
    names = NAMES if seed == "0" else NAMES[::-1]
    out = tmp_path / "out"
    out.mkdir()
    subprocess.run(
        [sys.executable, "-m", "transpiler", *names, "--output", str(out)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
    )
    for file in (*MODELS, "REPORT.md"):
        assert (out / file).read_bytes() == (GENERATED / file).read_bytes()


@pytest.mark.parametrize("name", NAMES)
def test_generated_file_is_in_order(name: str) -> None:
    text = (GENERATED / f"{name}.py").read_text()
    head, _, body = text.partition('"""Inference-only')
    assert len(body.splitlines()) <= 400
    assert black.format_str('"""Inference-only' + body, mode=MODE) in text
    assert "SPDX-License-Identifier: Apache-2.0" in head
    for line in read(name).licence:
        assert line in head.splitlines()
    assert f"make transpile MODEL={name}" in head
    assert "transformers 5.19.0" in head
    assert f"models/{name}/modeling_{name}.py" in head
    assert "DO NOT EDIT" in head
    assert "sha256" in head
    assert "TODO" not in text


@pytest.mark.parametrize("name", NAMES)
def test_a_second_pass_finds_nothing_to_fuse(name: str) -> None:
    """No linear, norm or rotary class of upstream is left to match."""
    module = analyse_module(cst.parse_module((GENERATED / f"{name}.py").read_text()))
    calls = [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse((GENERATED / f"{name}.py").read_text()))
        if isinstance(node, ast.Call)
    ]
    assert not [call for call in calls if module.resolve(call) == LINEAR]
    tables = ("Norm", "RotaryEmbedding", "ScaledWordEmbedding")
    assert not [cls for cls in module.classes if cls.endswith(tables)]
    assert not module.functions


@pytest.mark.parametrize("name", NAMES)
def test_every_statement_has_one_fate(name: str) -> None:
    transpiled = transpile(name)
    module = analyse_module(transpiled.source.tree)
    written = {
        node.name
        for node in ast.parse(transpiled.text).body
        if isinstance(node, ast.ClassDef)
    }
    assert transpiled.architecture in written
    for cls in module.classes.values():
        if cls.name in written:
            for method in ("__init__", "forward"):
                for node in statements_within(cls.methods[method]):
                    assert node in transpiled.fates or is_docstring(node)


@pytest.mark.slow
def test_time_and_memory_of_the_whole_process(tmp_path: Path) -> None:
    """At most three times a process that parses the source and formats the output."""
    least = (
        "import black, libcst, importlib.util, pathlib\n"
        "root = pathlib.Path(importlib.util.find_spec('transformers').origin).parent\n"
        "path = root / 'models/llama/modeling_llama.py'\n"
        "libcst.parse_module(path.read_text())\n"
        f"text = pathlib.Path({str(GENERATED / 'llama.py')!r}).read_text()\n"
        "black.format_str(text, mode=black.Mode())\n"
    )
    whole = [sys.executable, "-m", "transpiler"]
    commands = {
        "least": [sys.executable, "-c", least],
        "whole": [*whole, "llama", "--output", str(tmp_path)],
    }
    seconds: dict[str, list[float]] = {"least": [], "whole": []}
    for _ in range(6):
        for key, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
            seconds[key].append(time.perf_counter() - began)
    ratio = statistics.median(seconds["whole"]) / statistics.median(seconds["least"])
    assert ratio <= 3, seconds
    assert peak_of(commands["whole"]) < 200


def peak_of(command: list[str]) -> float:
    """Peak memory of one process, in MB.

    It is started from a small process: a child's peak begins with its parent's size.
    """
    launch = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", launch, *command],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    return int(ended.stdout) / 1024
