"""The record of what is proven."""

from __future__ import annotations

import hashlib
import json

from transpiler.emit import registry
from transpiler.emit.registry import registry_text, runtime_digest, stale
from transpiler.verify.proof import NAME, Proven, record, remove

PROVEN = Proven("LlamaForCausalLM", ("tied", "default"), {"not-causal": "is_causal"})


def written(folder):
    return json.loads((folder / NAME).read_text())


def test_entry_says_what_was_proven_of_which_bytes(tmp_path):
    (tmp_path / "llama.py").write_bytes(b"text\n")
    record(tmp_path, "llama.py", PROVEN, "5.19.0")
    assert written(tmp_path) == {
        "transformers": "5.19.0",
        "runtime": runtime_digest(),
        "files": {
            "llama.py": {
                "architecture": "LlamaForCausalLM",
                "sha256": hashlib.sha256(b"text\n").hexdigest(),
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
            (folder / name).write_text(name)
            record(folder, name, PROVEN, "5.19.0")
    assert (one / NAME).read_bytes() == (other / NAME).read_bytes()
    assert list(written(one)["files"]) == ["a.py", "b.py"]
    assert [path.name for path in sorted(one.iterdir())] == [NAME, "a.py", "b.py"]


def test_entry_is_removed(tmp_path):
    for name in ("a.py", "b.py"):
        (tmp_path / name).write_text(name)
        record(tmp_path, name, PROVEN, "5.19.0")
    remove(tmp_path, "a.py", "5.19.0")
    assert list(written(tmp_path)["files"]) == ["b.py"]


def test_removing_from_no_record_writes_none(tmp_path):
    remove(tmp_path, "a.py", "5.19.0")
    assert not (tmp_path / NAME).exists()


def test_another_upstream_version_starts_anew(tmp_path):
    for name, version in (("a.py", "5.18.0"), ("b.py", "5.19.0")):
        (tmp_path / name).write_text(name)
        record(tmp_path, name, PROVEN, version)
    assert written(tmp_path)["transformers"] == "5.19.0"
    assert list(written(tmp_path)["files"]) == ["b.py"]


def test_another_runtime_makes_every_proof_stale(tmp_path, monkeypatch):
    runtime = tmp_path / "runtime"
    runtime.mkdir()
    monkeypatch.setattr(registry, "RUNTIME", runtime)
    (tmp_path / "llama.py").write_text("text")
    record(tmp_path, "llama.py", PROVEN, "5.19.0")
    assert stale(tmp_path) == []
    assert "LlamaForCausalLM" in registry_text(tmp_path)
    (runtime / "activation.py").write_text("changed")
    assert stale(tmp_path) == ["llama.py"]
    assert "LlamaForCausalLM" not in registry_text(tmp_path)
