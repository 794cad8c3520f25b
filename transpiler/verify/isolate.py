"""Import the heavy libraries once, then run each step in a forked child.

An engine leaves global state behind (process groups, caches, patched classes), and
importing vLLM takes seconds. A fork gives every step a fresh engine for the price of
milliseconds, as long as the parent has started no threads.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import os
import pickle
import re
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

# Read by the libraries when they are imported, so set before that.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}

# What an engine imports on first use: in the parent it is paid once.
PRELOADED = (
    "torch",
    "transformers",
    "vllm.entrypoints.llm",
    "vllm.model_executor.layers.quantization.online.base",
    "vllm.model_executor.models.transformers",
    "vllm.v1.worker.cpu_model_runner",
    "vllm.v1.worker.cpu_worker",
)


@dataclass(frozen=True)
class Cause:
    """One exception of a chain: its class name, whether it is a `ValueError`, text."""

    kind: str
    is_value_error: bool
    text: str


@dataclass(frozen=True)
class Failure:
    """Why a child gave no result: its exceptions, outermost first, or how it ended."""

    causes: tuple[Cause, ...]
    log: str

    def last_line(self) -> str:
        """Return the innermost exception, or the log's last line, as one line."""
        if self.causes:
            cause = self.causes[-1]
            first = cause.text.strip().splitlines() or [""]
            return f"{cause.kind}: {first[0]}"
        lines = [line for line in self.log.splitlines() if line.strip()]
        return lines[-1].strip() if lines else "ended without a word"


@dataclass(frozen=True)
class Finished(Generic[T]):
    """What a child returned, and what it wrote to stdout and stderr meanwhile."""

    value: T
    log: str


@functools.cache
def import_once() -> None:
    """Import torch, Transformers and vLLM in this process, ready to be forked.

    Raises:
        ImportError: one of them is not installed.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # Where this project is installed its plugin would take the place of what is tried.
    os.environ["VLLM_PLUGINS"] = ""
    with warnings.catch_warnings():
        # About the libraries' own deprecations; where tests turn them into errors,
        # these would not import.
        warnings.simplefilter("ignore")
        for module in PRELOADED:
            importlib.import_module(module)
        replace_kernels_once()
    # An engine start collects garbage five times: over the libraries' objects that
    # costs a second. Frozen objects are also left unwritten, so pages stay shared.
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)


def replace_kernels_once() -> None:
    """Put vLLM's CPU kernels in the place of Triton's now, not at each engine start.

    It looks for them in all modules, which is half of what a start costs.
    """
    from vllm.platforms import current_platform

    platform = type(current_platform)
    if hasattr(platform, "register_triton_kernel_overrides"):
        platform.register_triton_kernel_overrides()
        platform.register_triton_kernel_overrides = classmethod(lambda _: None)


def in_child(
    function: Callable[[], T], timeout: float = 120.0
) -> Finished[T] | Failure:
    """Run `function` in a forked child and return its value, or why there is none.

    The value must be picklable. The child's stdout and stderr go to a log.
    """
    with tempfile.TemporaryDirectory(prefix="verify-") as name:
        folder = Path(name)
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _child(function, folder)
        status = _wait(pid, timeout)
        log = (folder / "log").read_text(errors="replace")
        record = folder / "result"
        if status is None:
            return Failure((), f"{log}\nno result within {timeout:.0f} s")
        if not record.exists():
            return Failure((), f"{log}\nchild ended with status {status}")
        result: T | Failure = pickle.loads(record.read_bytes())
        if isinstance(result, Failure):
            return Failure(result.causes, log)
        return Finished(result, log)


def find_name(failure: Failure, names: tuple[str, ...]) -> str:
    """Return the first of `names` that a `ValueError` of a failure names, or empty.

    A name must stand alone: `factor` is not named by `attention_factor`.
    """
    texts = [cause.text for cause in failure.causes if cause.is_value_error]
    for name in names:
        alone = re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")
        if any(alone.search(text) for text in texts):
            return name
    return ""


def _wait(pid: int, timeout: float) -> int | None:
    """Wait for a child; return its exit status, or None after killing it."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _child(function: Callable[[], object], folder: Path) -> None:
    """Run `function`, leave its value or failure in `folder`, and end the process."""
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout = sys.stderr = os.fdopen(log, "w", buffering=1)
    warnings.resetwarnings()
    with _Recorded(folder / "result") as record:
        record.keep(function())
    sys.stdout.flush()
    # No teardown: an engine's takes longer than its run, and there is nothing to save.
    os._exit(0)


class _Recorded:
    """Write what is kept, or the exception that leaves the block, to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> _Recorded:
        return self

    def keep(self, value: object) -> None:
        """Write `value` to the file, whole or not at all."""
        partial = self._path.with_suffix(".partial")
        partial.write_bytes(pickle.dumps(value))
        partial.rename(self._path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if error is not None:
            sys.excepthook(type(error), error, trace)
            self.keep(Failure(_causes(error), ""))
        return True


def _causes(error: BaseException) -> tuple[Cause, ...]:
    """Return an exception and what it was raised from, outermost first."""
    chain: list[Cause] = []
    link: BaseException | None = error
    while link is not None:
        is_value_error = isinstance(link, ValueError)
        chain.append(Cause(type(link).__name__, is_value_error, str(link)))
        link = link.__cause__ or (
            None if link.__suppress_context__ else link.__context__
        )
    return tuple(chain)
