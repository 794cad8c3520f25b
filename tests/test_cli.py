"""Bad input: one clear line, the right exit status, nothing written or changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m transpiler` as a user would, from the project's folder."""
    return subprocess.run(
        [sys.executable, "-m", "transpiler", *arguments],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def said(result: subprocess.CompletedProcess[str], status: int) -> str:
    """The one line that a failed command says."""
    assert result.returncode == status, result.stderr
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    return lines[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "out"
    target.mkdir()
    return target


def refused(folder: Path, *arguments: str, status: int) -> str:
    line = said(run("transpile", *arguments, "--output", str(folder)), status)
    assert list(folder.iterdir()) == []
    return line


def test_unknown_model_suggests_near_names(folder: Path) -> None:
    line = refused(folder, "lama", status=2)
    assert "unknown model 'lama'" in line
    assert "llama" in line


@pytest.mark.parametrize(
    ("content", "status", "word"),
    [
        (b"", 1, "no-causal-class"),
        (b"x = 1\n", 1, "no-causal-class"),
        (b"def broken(:\n", 2, "syntax error"),
        (b"a = '\xff\xfe'\n", 2, "UTF-8"),
        (b"a = 1\x00\n", 2, "syntax error"),
    ],
    ids=["empty", "no-model", "syntax-error", "not-utf8", "null-byte"],
)
def test_a_file_that_is_no_modeling_file(
    tmp_path: Path, folder: Path, content: bytes, status: int, word: str
) -> None:
    path = tmp_path / "modeling_bad.py"
    path.write_bytes(content)
    assert word in refused(folder, str(path), status=status)


@pytest.mark.parametrize("model", ["t5", "bart"])
def test_an_encoder_decoder_model(folder: Path, model: str) -> None:
    assert "modeling_" in refused(folder, model, status=1)


@pytest.mark.parametrize("model", ["gptj", "falcon", "bloom"])
def test_attention_without_the_interface(folder: Path, model: str) -> None:
    assert f"modeling_{model}.py" in refused(folder, model, status=1)


def test_a_path_that_is_not_there(folder: Path) -> None:
    assert "cannot read" in refused(folder, "nowhere/modeling_x.py", status=2)


def test_a_target_that_is_no_folder(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("mine")
    line = said(run("transpile", "llama", "--output", str(target)), 2)
    assert "is not a folder" in line
    assert target.read_text() == "mine"


def test_a_target_that_cannot_be_written(folder: Path) -> None:
    (folder / "llama.py").mkdir()
    line = said(run("transpile", "llama", "--output", str(folder)), 2)
    assert "cannot write" in line
    assert [path.name for path in folder.iterdir()] == ["llama.py"]


def test_a_file_edited_by_hand_needs_force(folder: Path) -> None:
    out = ("--output", str(folder))
    assert run("transpile", "llama", *out).returncode == 0
    path = folder / "llama.py"
    written = path.read_text()
    edited = written.replace("self.scaling", "self.scale")
    path.write_text(edited)
    assert "--force" in said(run("transpile", "llama", *out), 2)
    assert path.read_text() == edited
    assert run("transpile", "llama", "--force", *out).returncode == 0
    assert path.read_text() == written


@pytest.mark.parametrize("version", ["", "4.57.0"], ids=["missing", "another"])
def test_transformers_of_another_version(
    tmp_path: Path, folder: Path, version: str
) -> None:
    """A package that hides the installed one, or says another version."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.metadata, importlib.util\n"
        f"version = {version!r}\n"
        "find, told = importlib.util.find_spec, importlib.metadata.version\n"
        "def spec(name, *rest):\n"
        "    return None if name == 'transformers' and not version "
        "else find(name, *rest)\n"
        "importlib.util.find_spec = spec\n"
        "importlib.metadata.version = "
        "lambda name: version if name == 'transformers' else told(name)\n"
    )
    command = ("transpile", "llama", "--output", str(folder))
    line = said(run(*command, PYTHONPATH=f"{tmp_path}:{ROOT}"), 2)
    assert "5.19.0" in line
    assert "pip install --no-deps transformers==" in line
    assert list(folder.iterdir()) == []


def test_check_shows_the_difference_and_what_repairs_it(folder: Path) -> None:
    out = ("--output", str(folder))
    assert run("transpile", "llama", *out).returncode == 0
    assert run("check", *out).returncode == 0
    path = folder / "llama.py"
    path.write_text(path.read_text().replace("self.scaling", "self.scale"))
    result = run("check", *out)
    assert "make transpile" in said(result, 1)
    assert "+        self.scaling = self.head_dim**-0.5" in result.stdout


def test_diff_shows_a_rule_for_every_removed_line() -> None:
    lines = run("diff", "qwen3").stdout.splitlines()
    removed = [line for line in lines if line.startswith("- ") and line[2:].strip()]
    assert removed
    assert [line for line in removed if "    # " not in line] == []


def test_explain_says_what_was_fused_and_every_fate() -> None:
    text = run("explain", "llama").stdout
    assert "qkv: q_proj + k_proj + v_proj -> qkv_proj" in text
    assert "glu: absent" in text
    assert "dropped serving facts" in text


@pytest.mark.parametrize("command", ["transpile", "check", "coverage"])
def test_a_folder_that_is_not_there_is_told_before_any_work(
    command: str, tmp_path: Path
) -> None:
    line = said(run(command, "--output", str(tmp_path / "none")), 2)
    assert "is not a folder" in line
