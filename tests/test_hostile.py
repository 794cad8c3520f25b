"""Hostile files are refused or handled: never executed, bounded, and nothing else."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow
SECONDS, MEMORY = 60, 1 << 30
DEEP = "x = " + "(" * 5000 + "1" + ")" * 5000 + "\n"
NESTED = "".join(f"{'    ' * i}if x:\n" for i in range(95)) + "    " * 95 + "pass\n"

TEXTS = {
    "long": b"x = 1\n" * 100_000,
    "far-too-long": b"x = 1\n" * 20_000,
    "long-line": b"x = [" + b"1, " * 300_000 + b"]\n",
    "deep-brackets": DEEP.encode(),
    "deep-blocks": NESTED.encode(),
    "deep-operators": ("x = " + "-" * 20_000 + "1\n").encode(),
    "null-bytes": b"x = 1\x00\n",
    "latin": b"# -*- coding: latin-1 -*-\nx = '\xe4'\n",
    "utf-16": "x = 1\n".encode("utf-16"),
    "bom": b"\xef\xbb\xbfx = 1\n",
    "tabs": b"class A:\n\tdef f(self):\n        return 1\n",
    "carriage-returns": b"class A:\r    pass\r",
    "empty": b"",
    "huge-number": b"x = " + b"9" * 100_000 + b"\n",
    "surrogates": b"x = '\xed\xa0\x80'\n",
    "executes": b"import os\nos.system('touch executed')\nopen('executed', 'w')\n",
    "exits": b"raise SystemExit(0)\n",
    "shadows": b"import builtins\nbuiltins.open = None\n",
}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, with a bound on time and memory."""

    def bound() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    return subprocess.run(
        [sys.executable, "-m", "transpiler", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        preexec_fn=bound,
        check=False,
    )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def is_one_line(done: subprocess.CompletedProcess[str]) -> bool:
    lines = done.stderr.splitlines()
    return len(lines) == 1 and "Traceback" not in done.stderr and done.stdout == ""


@pytest.mark.parametrize("name", TEXTS)
def test_a_hostile_file_is_refused(name: str, tmp_path: Path) -> None:
    source = tmp_path / "modeling_hostile.py"
    source.write_bytes(TEXTS[name])
    out = tmp_path / "out"
    out.mkdir()
    before = files(tmp_path)
    done = run(tmp_path, "transpile", str(source), "--output", str(out))
    assert done.returncode in (1, 2)
    assert is_one_line(done), done.stderr
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    ["../../x", "..", "/etc/passwd", "llama/../llama", "a\nb", "", " ", "x" * 5000],
)
def test_a_hostile_name_reaches_nothing(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = files(tmp_path)
    done = run(tmp_path, "transpile", name, "--output", str(out))
    assert done.returncode in (1, 2)
    assert "Traceback" not in done.stderr
    assert files(tmp_path) == before


def test_a_loop_of_links_is_no_file(tmp_path: Path) -> None:
    one, two = tmp_path / "modeling_one.py", tmp_path / "modeling_two.py"
    one.symlink_to(two)
    two.symlink_to(one)
    done = run(tmp_path, "transpile", str(one))
    assert done.returncode == 2
    assert is_one_line(done), done.stderr
