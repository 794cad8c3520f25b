"""The command: usage errors in one line, and when the record changes."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from transpiler.verify import __main__ as command
from transpiler.verify.families import FAMILIES

pytest.importorskip("numpy")

FAMILY = FAMILIES[0]
FILE = f"{FAMILY.name}.py"


@pytest.fixture
def generated(tmp_path, monkeypatch):
    """A folder with one generated file, in place of the project's own."""
    monkeypatch.setattr(command, "GENERATED", tmp_path)
    (tmp_path / FILE).write_text("text")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["lama"], "unknown model 'lama'; near: llama, glm, olmo"),
        (
            ["llama", "--variant", "defalt"],
            "unknown llama variant 'defalt'; near: default",
        ),
        (["--class", "a:B"], "--class needs exactly one MODEL"),
        (
            ["llama", "--class", "a.B"],
            "--class 'a.B' is not module:Class or path/to/file.py:Class",
        ),
        (
            ["llama", "mistral"],
            "generated/mistral.py does not exist: make transpile MODEL=mistral",
        ),
    ],
)
def test_usage_error_is_one_line_and_status_2(generated, arguments, line):
    result = CliRunner().invoke(command.app, arguments)
    assert result.exit_code == 2
    assert result.output == line + "\n"


def results(*, failing=None, variants=FAMILY.variants):
    from transpiler.verify.run import Result

    return [
        Result(
            variant,
            passed=variant.name != failing,
            named=variant.expected.names[0] if variant.expected.names else "",
            detail="1.0e+00 is above the bar 1.0e-04",
        )
        for variant in variants
    ]


def entries(folder):
    return json.loads((folder / "PROOF.json").read_text())["files"]


def test_full_passing_run_is_recorded(generated):
    command._record(FAMILY, FAMILY.variants, results())
    entry = entries(generated)[FILE]
    assert sorted([*entry["equal"], *entry["raises"]]) == sorted(
        variant.name for variant in FAMILY.variants
    )
    assert entry["raises"]["not-causal"] == "is_causal"


def test_part_of_a_run_records_nothing(generated):
    part = FAMILY.variants[:2]
    command._record(FAMILY, part, results(variants=part))
    assert not (generated / "PROOF.json").exists()


@pytest.mark.parametrize("variants", [FAMILY.variants, FAMILY.variants[:1]])
def test_failed_run_removes_the_entry(generated, variants):
    command._record(FAMILY, FAMILY.variants, results())
    failed = results(failing="default", variants=variants)
    command._record(FAMILY, variants, failed)
    assert entries(generated) == {}


def test_table_says_why_what_failed_did():
    from rich.console import Console

    from transpiler.verify.table import find_notes, summary_of, table_of

    rows = results(failing="default")
    console = Console(width=120, record=True, quiet=False)
    console.print(table_of("llama", rows))
    assert "failed" in console.export_text().splitlines()[2]
    assert next(find_notes(rows)) == "default: 1.0e+00 is above the bar 1.0e-04"
    assert summary_of(rows).startswith(f"{len(rows) - 1} of {len(rows)} variants")
