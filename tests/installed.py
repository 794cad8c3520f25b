"""Installs the project as a user would, and runs vLLM engines beside that install."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# One line printed is the result; `see` runs in the worker and tells of its model.
RUN = """
import json, os, sys

def see(model):
    text = getattr(model, "language_model", model)
    bases = [base.__module__ for base in type(text).__mro__]
    ours = next((base for base in bases if base.startswith("generated.")), None)
    misnamed = [  # caches and quantization are looked up under these names
        name for name, module in model.named_modules()
        if getattr(module, "layer_name", name) != name
        or getattr(module, "prefix", name) != name
    ]
    return {
        "pid": os.getpid(), "class": type(model).__name__, "ours": ours,
        "misnamed": misnamed,
    }

def main(asked):
    from vllm import LLM, SamplingParams
    engine = {
        "dtype": "float32", "enforce_eager": True, "max_model_len": 64,
        "kv_cache_memory_bytes": 64 << 20, **asked["engine"],
    }
    llm = LLM(**engine)
    prompt = asked.get("prompt", {"prompt_token_ids": [1, 2, 3, 4]})
    if "image" in asked:
        from PIL import Image
        with Image.open(asked["image"]) as image:
            prompt["multi_modal_data"] = {"image": image.convert("RGB")}
    if engine.get("runner") == "pooling":
        (out,) = llm.encode([prompt], pooling_task=engine["convert"], use_tqdm=False)
        answer = out.outputs.data.flatten().tolist()
    else:
        greedy = SamplingParams(
            temperature=0, ignore_eos=True, detokenize=False, max_tokens=5
        )
        (out,) = llm.generate([prompt], greedy, use_tqdm=False)
        answer = list(out.outputs[0].token_ids)
    workers = llm.apply_model(see)
    told = {"answer": answer, "pid": os.getpid(), "workers": workers}
    print("RESULT", json.dumps(told), flush=True)

if __name__ == "__main__":
    import engine_run  # so that `see` has a home that a worker can import
    engine_run.main(json.loads(sys.argv[1]))
"""


@dataclass(frozen=True)
class Site:
    """A folder that the project was installed into, and what to run beside it."""

    folder: Path

    def run(
        self, arguments: list[str], **environment: str
    ) -> subprocess.CompletedProcess:
        """Run Python with the folder on its path, in a scratch working directory."""
        clean = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VLLM_", "TRANSPILED_"))
        }
        environment = {
            **clean,
            "PYTHONPATH": str(self.folder),
            "HF_HUB_OFFLINE": "1",
            "VLLM_CACHE_ROOT": str(self.folder.parent / "cache"),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
            **environment,
        }
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=self.folder.parent,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
        )

    def engine(self, asked: dict, **environment: str) -> subprocess.CompletedProcess:
        """Start an engine, ask it for one answer; see `RUN`."""
        script = self.folder.parent / "engine_run.py"
        script.write_text(RUN)
        if "VLLM_ENABLE_V1_MULTIPROCESSING" not in environment:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
            one_process = {"distributed_executor_backend": "uni", **asked["engine"]}
            asked = {**asked, "engine": one_process}
        return self.run([str(script), json.dumps(asked)], **environment)


def result(run: subprocess.CompletedProcess) -> dict:
    """What the engine answered."""
    assert run.returncode == 0, run.stderr[-4000:]
    (line,) = [line for line in run.stdout.splitlines() if line.startswith("RESULT ")]
    return json.loads(line.removeprefix("RESULT "))


def install(folder: Path, files: dict[str, str] | None = None) -> Site:
    """Install a copy of the project, with `files` put over its own, under `folder`."""
    source = folder / "source"
    skip = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for package in ("transpiler", "generated"):
        shutil.copytree(ROOT / package, source / package, ignore=skip)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    for name, text in (files or {}).items():
        (source / name).write_text(text)
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    pip += ["--no-deps", "--no-build-isolation", "--target", str(site)]
    subprocess.run([*pip, str(source)], check=True)
    return Site(site)
