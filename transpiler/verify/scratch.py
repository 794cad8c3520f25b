"""Modules made from a text, for as long as a block lasts."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

COUNT = itertools.count()


@contextmanager
def upstream_module(model: str, text: str) -> Iterator[ModuleType]:
    """A modeling file's text as a module of Transformers' package of that model.

    It is executed: only texts that came from an installed file belong here.

    Args:
        model: Name of the package under `transformers.models`.
        text: The text, perhaps edited.
    """
    package = f"transformers.models.{model}"
    importlib.import_module(package)
    with _loaded(f"{package}.modeling_scratch_{next(COUNT)}", model, text) as module:
        yield module


@contextmanager
def generated_module(model: str, text: str) -> Iterator[ModuleType]:
    """A generated file's text as a module."""
    with _loaded(f"scratch_{next(COUNT)}", model, text) as module:
        yield module


@contextmanager
def _loaded(name: str, model: str, text: str) -> Iterator[ModuleType]:
    """Import a text under a name; Transformers' decorators read the file's own name."""
    with tempfile.TemporaryDirectory(prefix="verify-scratch-") as folder:
        path = Path(folder) / model / f"modeling_{model}.py"
        path.parent.mkdir()
        path.write_text(text, encoding="utf-8")
        spec = importlib.util.spec_from_file_location(name, path)
        if spec is None or spec.loader is None:
            raise ImportError(name)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
            yield module
        finally:
            del sys.modules[name]
