"""The record of what is proven."""

from __future__ import annotations

import hashlib
import json

from transpiler.emit import registry
from transpiler.emit.registry import registry_text, stale
from transpiler.verify.proof import NAME, Proven, record, remove

PROVEN = Proven("LlamaForCausalLM", ("tied", "default"), {"not-causal": "is_causal"})


def written(folder):
    return json.loads((folder / NAME).read_text())


def test_entry_says_what_was_proven_of_which_bytes(tmp_path):
    (tmp_path / "llama.py").write_bytes(b'"text"\n')
    record(tmp_path, "llama.py", PROVEN, "5.19.0")
    assert written(tmp_path) == {
        "transformers": "5.19.0",
        "files": {
            "llama.py": {
                "architecture": "LlamaForCausalLM",
                "sha256": hashlib.sha256(b'"text"\n').hexdigest(),
                "runtime": hashlib.sha256().hexdigest(),
                "equal": ["default", "tied"],
                "raises": {"not-causal": "is_causal"},
                "upstream_fails": [],
                "pending": [],
            }
        },
    }


def test_other_entries_stay_and_order_does_not_matter(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, names in ((one, ("a.py", "b.py")), (other, ("b.py", "a.py"))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text(repr(name))
            record(folder, name, PROVEN, "5.19.0")
    assert (one / NAME).read_bytes() == (other / NAME).read_bytes()
    assert list(written(one)["files"]) == ["a.py", "b.py"]
    assert [path.name for path in sorted(one.iterdir())] == [NAME, "a.py", "b.py"]


def test_entry_is_removed(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(repr(name))
        record(tmp_path, name, PROVEN, "5.19.0")
    remove(tmp_path, "a.py", "5.19.0")
    assert list(written(tmp_path)["files"]) == ["b.py"]


def test_removing_from_no_record_writes_none(tmp_path):
    remove(tmp_path, "a.py", "5.19.0")
    assert not (tmp_path / NAME).exists()


def test_another_upstream_version_starts_anew(tmp_path):
    for name, version in (("a.py", "5.18.0"), ("b.py", "5.19.0")):
        (tmp_path / name).write_text(repr(name))
        record(tmp_path, name, PROVEN, version)
    assert written(tmp_path)["transformers"] == "5.19.0"
    assert list(written(tmp_path)["files"]) == ["b.py"]


def test_a_changed_part_of_the_runtime_makes_its_importers_stale(tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    package = "transpiler.runtime"
    parts = {
        "__init__": f"from {package}.outer import outer\n"
        f"from {package}.other import x\n",
        "outer": f"from {package}.inner import inner\n",
        "inner": "def inner(): pass\n",
        "other": "x = 1\n",
    }
    for name, text in parts.items():
        (runtime / f"{name}.py").write_text(text)
    monkeypatch.setattr(registry, "RUNTIME", runtime)
    (tmp_path / "llama.py").write_text(f"from {package} import outer\n")
    (tmp_path / "qwen3.py").write_text("import torch\n")
    for name in ("llama.py", "qwen3.py"):
        record(tmp_path, name, PROVEN, "5.19.0")
    assert stale(tmp_path) == []
    assert "generated.llama" in registry_text(tmp_path)
    (runtime / "other.py").write_text("x = 2\n")
    assert stale(tmp_path) == []
    (runtime / "inner.py").write_text("def inner(): return 1\n")
    assert stale(tmp_path) == ["llama.py"]
    assert "generated.llama" not in registry_text(tmp_path)
    assert "generated.qwen3" in registry_text(tmp_path)
