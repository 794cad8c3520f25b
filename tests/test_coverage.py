"""All modeling files of Transformers: what is emitted imports, what is not says why."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from transpiler.coverage import coverage_text, modeling_files, tried
from transpiler.pipeline import transpile_source
from transpiler.read import find_transformers, read
from transpiler.verify.isolate import Finished, import_once, in_child
from transpiler.verify.scratch import generated_module

ROOT, _ = find_transformers()
COVERAGE = Path(__file__).resolve().parents[1] / "generated" / "COVERAGE.md"
EMITTED = re.findall(r"^- `(.*)`$", COVERAGE.read_text(), re.MULTILINE)
# Attention without the interface, no attention at all, caches and masks of their own.
OTHER_KINDS = ("bamba", "bloom", "diffllama", "falcon", "gptj", "mamba")


@pytest.mark.parametrize("model", OTHER_KINDS)
def test_other_kinds_are_refused_with_a_line_and_a_reason(model: str) -> None:
    row = tried(ROOT, ROOT / "models" / model / f"modeling_{model}.py")
    assert row.code
    assert row.reason
    assert re.fullmatch(rf"modeling_{model}\.py:\d+:\d+", row.where), row


def test_the_table_counts_every_file_once() -> None:
    files = modeling_files(ROOT)
    counts = re.findall(r"^\| [a-z0-9-]+ \| (\d+) \|", COVERAGE.read_text(), re.M)
    assert sum(map(int, counts)) + len(EMITTED) == len(files) == 507


def test_the_table_does_not_depend_on_the_order_of_files() -> None:
    files = modeling_files(ROOT)[:6]
    rows = [tried(ROOT, path) for path in files]
    assert coverage_text(rows) == coverage_text(rows[::-1])


@pytest.mark.engine
@pytest.mark.parametrize("path", EMITTED)
def test_what_is_emitted_imports(path: str) -> None:
    source = replace(read(str(ROOT / path), ROOT), path=path)
    made = transpile_source(source)

    def importing() -> bool:
        with generated_module(source.name, made.text) as module:
            return hasattr(module, made.architecture)

    import_once()
    found = in_child(importing)
    assert isinstance(found, Finished), found
    assert found.value
