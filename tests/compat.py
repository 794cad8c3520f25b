"""Checks the generated modules against a vLLM release that this machine cannot run.

The release's wheel is for CUDA, but its Python part imports on any machine. It is
downloaded once, unpacked under .compat/ without its binaries, and put before the
installed vLLM. Then every generated module is imported, every name it takes from vLLM
is looked up, and every call of such a name is bound to the signature it has there.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import logging
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RELEASE = "0.33.0"
ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Check every generated module; one line each."""
    try:
        library = fetched(RELEASE, ROOT / ".compat")
    except subprocess.CalledProcessError as error:
        print(f"vllm {RELEASE} could not be downloaded (pip exit {error.returncode})")
        return 1
    logging.disable(logging.WARNING)  # that the binaries are missing
    sys.path[:0] = [str(library), str(ROOT)]
    modules = generated_modules(ROOT / "generated")
    failed = 0
    for path in modules:
        problems = list(find_problems(path, f"generated.{path.stem}"))
        failed += bool(problems)
        place = path.relative_to(ROOT)
        for problem in problems:
            print(f"{place}:{problem.line}: {problem.text}")
        if not problems:
            print(f"{place}: fits vllm {RELEASE}")
    print(f"{len(modules) - failed} of {len(modules)} modules fit vllm {RELEASE}")
    return 1 if failed else 0


def generated_modules(folder: Path) -> list[Path]:
    """The model files, without the plugin and the registry."""
    other = {"__init__.py", "registry.py"}
    return [path for path in sorted(folder.glob("*.py")) if path.name not in other]


def fetched(release: str, cache: Path) -> Path:
    """The folder with the Python part of a vLLM release, downloaded if need be."""
    library = cache / f"vllm-{release}"
    if library.is_dir():
        return library
    print(f"downloading vllm {release} (its Python part is kept under {cache.name}/)")
    cache.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        # Any platform's wheel has the same Python part: the one that always exists.
        pip = [sys.executable, "-m", "pip", "download", "-qq", "--no-deps"]
        pip += ["--disable-pip-version-check", "--only-binary=:all:", "--abi=abi3"]
        pip += ["--platform=manylinux_2_28_x86_64", "--dest", scratch]
        subprocess.run([*pip, f"vllm=={release}"], check=True)
        unpacked = Path(scratch, "unpacked")
        with zipfile.ZipFile(next(Path(scratch).glob("*.whl"))) as wheel:
            wheel.extractall(unpacked, filter(is_python_part, wheel.namelist()))
        unpacked.rename(library)
    return library


def is_python_part(name: str) -> bool:
    """Whether a file of the wheel is needed to import its modules."""
    return name.endswith((".py", "/METADATA")) or (
        name.endswith(".json") and "/configs/" not in name
    )


@dataclass(frozen=True)
class Problem:
    """What does not fit, and on which line of the generated file."""

    line: int
    text: str


def find_problems(path: Path, module: str) -> Iterator[Problem]:
    """What in the module at `path` does not fit the vLLM that is imported."""
    try:
        importlib.import_module(module)
    except Exception as error:  # whatever a module raises on import is the finding
        yield Problem(failing_line(error, path), f"{type(error).__name__}: {error}")
        return
    tree = ast.parse(path.read_text())
    names: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and is_vllm(node.module):
            for alias in node.names:
                try:
                    found = looked_up(node.module, alias.name)
                except (ImportError, AttributeError) as error:
                    yield Problem(node.lineno, str(error))
                else:
                    names[alias.asname or alias.name] = found
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from find_call_problems(node, names)


def failing_line(error: BaseException, path: Path) -> int:
    """The last line of the file at `path` that the traceback goes through."""
    line, traceback = 1, error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_filename == str(path):
            line = traceback.tb_lineno
        traceback = traceback.tb_next
    return line


def is_vllm(module: str | None) -> bool:
    """Whether an import is from vLLM."""
    return module is not None and module.partition(".")[0] == "vllm"


def looked_up(module: str, name: str) -> object:
    """What `from module import name` gives."""
    owner = importlib.import_module(module)
    if hasattr(owner, name):
        return getattr(owner, name)
    return importlib.import_module(f"{module}.{name}")


def find_call_problems(call: ast.Call, names: dict[str, object]) -> Iterator[Problem]:
    """Why a call of one of `names` does not bind to its signature."""
    spelled = ast.unparse(call.func)
    first, *attributes = spelled.split(".")
    if first not in names:
        return
    function = names[first]
    for attribute in attributes:
        if not hasattr(function, attribute):
            yield Problem(call.lineno, f"{spelled}: {first} has no {attribute}")
            return
        function = getattr(function, attribute)
    positional: list[object] = [
        None for argument in call.args if not isinstance(argument, ast.Starred)
    ]
    if inspect.isclass(function):
        # Not signature(function): vLLM's layers have a `__new__` that takes anything.
        function = function.__init__
        positional.insert(0, None)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    keywords = {word.arg: None for word in call.keywords if word.arg is not None}
    open_ended = len(keywords) < len(call.keywords) or any(
        isinstance(argument, ast.Starred) for argument in call.args
    )
    try:
        bind = signature.bind_partial if open_ended else signature.bind
        bind(*positional, **keywords)
    except TypeError as error:
        yield Problem(call.lineno, f"{spelled}: {error}")


if __name__ == "__main__":
    sys.exit(main())
