"""What a stranger reads first says what is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import generated

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKED = dict(
    line.split("==")
    for line in (ROOT / "tests" / "requirements.txt").read_text().splitlines()
    if "==" in line and not line.startswith("#")
)


def test_the_readme_and_help_show_every_make_target():
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True)
    assert set(re.findall(r"^make ([a-z-]+)", shown.stdout, re.MULTILINE)) == targets
    readme = set(
        re.findall(r"^\| `make ([a-z-]+)", (ROOT / "README.md").read_text(), re.M)
    )
    assert readme == targets - {"help"}


def test_every_pin_of_the_project_is_the_locked_one():
    extras = PROJECT["optional-dependencies"]
    pinned = [*PROJECT["dependencies"], *extras["verify"], *extras["dev"]]
    for name, version in (line.split("==") for line in pinned if "==" in line):
        assert LOCKED[name] == version
    for line in PROJECT["dependencies"]:
        assert re.split(r"[=>]", line)[0] in LOCKED


def test_the_versions_that_the_plugin_asks_for_are_the_documented_ones():
    low, high = generated.VLLM
    assert f"vllm>={low},<{high}" in PROJECT["optional-dependencies"]["serve"]
    assert LOCKED["transformers"] == generated.TRANSFORMERS
    assert f"transformers {generated.TRANSFORMERS}" in (ROOT / "README.md").read_text()


def test_the_lock_names_no_place_of_one_machine():
    text = (ROOT / "tests" / "requirements.txt").read_text()
    assert not re.search(r"file:|://| @ |^-", text, re.MULTILINE)
