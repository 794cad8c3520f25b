"""The installed plugin in real vLLM processes; the model is vLLM's own, renamed."""

from __future__ import annotations

import json

import pytest
from installed import Site, install, result

REGISTRY = """
TRANSFORMERS = "5.19.0"
VLLM = ("0.32", "0.34")
ARCHITECTURES = {"LlamaForCausalLM": "generated.llama:LlamaForCausalLM"}
"""
STAND_IN = """
from vllm.model_executor.models.llama import LlamaForCausalLM as Native


class LlamaForCausalLM(Native):
    def __init__(self, *, vllm_config, prefix=""):
        super().__init__(vllm_config=vllm_config, prefix=prefix)
"""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "head_dim": 32,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 128,
}
PEEK = """
from vllm.plugins import load_general_plugins
from vllm.model_executor.models import ModelRegistry
load_general_plugins()
load_general_plugins()
print(ModelRegistry.models["LlamaForCausalLM"].module_name)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Site:
    files = {"generated/registry.py": REGISTRY, "generated/llama.py": STAND_IN}
    return install(tmp_path_factory.mktemp("plugin"), files)


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> dict:
    """Engine arguments for a checkpoint that is only a config."""
    model = tmp_path_factory.mktemp("llama")
    (model / "config.json").write_text(json.dumps(CONFIG))
    return {"model": str(model), "load_format": "dummy", "skip_tokenizer_init": True}


@pytest.mark.parametrize(
    ("environment", "module"),
    [
        ({}, "generated.llama"),
        ({"VLLM_TRANSPILED": "-llama"}, "vllm.model_executor.models.llama"),
        ({"VLLM_PLUGINS": ""}, "vllm.model_executor.models.llama"),
        ({"VLLM_PLUGINS": "generated"}, "generated.llama"),
    ],
)
def test_what_vllm_has_registered(site, environment, module):
    run = site.run(["-c", PEEK], **environment)
    assert run.stdout.splitlines()[-1:] == [module], run.stderr
    assert "vllm-transpiler" not in run.stderr


@pytest.mark.parametrize("distribution", ["transformers", "vllm"])
def test_another_version_is_one_line_on_stderr(site, tmp_path, distribution):
    other = tmp_path / f"{distribution}-5.0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text(f"Name: {distribution}\nVersion: 5.0.1\n")
    peek = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{PEEK}"
    run = site.run(["-c", peek])
    assert run.stdout.splitlines()[-1:] == ["vllm.model_executor.models.llama"]
    (line,) = [line for line in run.stderr.splitlines() if "vllm-transpiler" in line]
    assert f"{distribution} 5.0.1" in line


def test_a_broken_plugin_shows_its_cause_and_leaves_vllms_class(tmp_path):
    files = {"generated/registry.py": "broken on purpose"}
    run = install(tmp_path, files).run(["-c", PEEK])
    assert run.stdout.splitlines()[-1:] == ["vllm.model_executor.models.llama"]
    told = run.stdout + run.stderr
    assert "Failed to load plugin generated" in told
    assert "broken on purpose" in told


@pytest.mark.engine
@pytest.mark.parametrize(("method", "ranks"), [("fork", 1), ("spawn", 2)])
def test_the_override_holds_in_every_process(site, engine, method, ranks):
    run = site.engine(
        {"engine": {**engine, "tensor_parallel_size": ranks}},
        VLLM_ENABLE_V1_MULTIPROCESSING="1",
        VLLM_WORKER_MULTIPROC_METHOD=method,
    )
    got = result(run)
    assert [worker["ours"] for worker in got["workers"]] == ["generated.llama"] * ranks
    assert len({got["pid"], *(worker["pid"] for worker in got["workers"])}) == 1 + ranks


@pytest.mark.engine
@pytest.mark.parametrize(
    ("impl", "ours"),
    [("auto", "generated.llama"), ("vllm", "generated.llama"), ("transformers", None)],
)
def test_the_override_holds_for_vllms_implementations(site, engine, impl, ours):
    got = result(site.engine({"engine": {**engine, "model_impl": impl}}))
    assert [worker["ours"] for worker in got["workers"]] == [ours]


@pytest.mark.engine
def test_the_switch_is_a_variable_that_vllm_accepts(site, engine):
    asked = {"engine": {**engine, "fail_on_environ_validation": True}}
    got = result(site.engine(asked, VLLM_TRANSPILED="none"))
    assert [worker["ours"] for worker in got["workers"]] == [None]


@pytest.mark.engine
def test_a_broken_module_shows_its_cause(tmp_path, engine):
    broken = f"from vllm.model_executor.layers import no_such_layer\n{STAND_IN}"
    files = {"generated/registry.py": REGISTRY, "generated/llama.py": broken}
    run = install(tmp_path, files).engine({"engine": engine})
    assert run.returncode != 0
    assert "ImportError: cannot import name 'no_such_layer'" in run.stdout
    assert "generated/llama.py" in run.stdout
