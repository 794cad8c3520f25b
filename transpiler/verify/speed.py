"""How long an implementation takes: to be built, to decode, to prefill.

Every measurement is a fresh engine in a forked child, and the implementations take
turns, so that a slow minute of the machine falls on all of them. Seconds are of CPU
time: an engine runs on one thread, and what else the machine does is left out.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

from transpiler.verify.engine import EngineOptions, Implementation, start
from transpiler.verify.isolate import Failure, in_child

# Tokens that each decode prompt is continued by, and that each prefill prompt has.
NEW_TOKENS = 128
PROMPT_TOKENS = 256
PROMPTS = 8
VOCABULARY = 2048


@dataclass(frozen=True)
class Speed:
    """One round's measurements of one implementation.

    Attributes:
        construction: seconds that the model's constructor takes, weights apart.
        decode_1: new tokens per second of one prompt.
        decode_16: new tokens per second of a batch of 16 prompts.
        prefill: prompt tokens per second of a batch of long prompts.
    """

    construction: float
    decode_1: float
    decode_16: float
    prefill: float


def measure(
    checkpoint: Path, implementation: Implementation, options: EngineOptions
) -> Speed:
    """Start an engine and time it. Run it in a child of `isolate.in_child`.

    Raises:
        ImportError: the class under test cannot be imported.
        ValueError: the class refused the config or the checkpoint.
    """
    spent = _time_constructor()
    llm = start(checkpoint, implementation, options)
    short = _prompts(16, 4)
    long = _prompts(PROMPTS, PROMPT_TOKENS)
    # Not timed: what only the first step of each kind pays.
    _seconds(llm, short, 2)
    _seconds(llm, long[:1], 1)
    return Speed(
        spent[0],
        NEW_TOKENS / _seconds(llm, short[:1], NEW_TOKENS),
        16 * NEW_TOKENS / _seconds(llm, short, NEW_TOKENS),
        PROMPTS * PROMPT_TOKENS / _seconds(llm, long, 1),
    )


def measure_rounds(
    checkpoint: Path,
    implementations: Mapping[str, Implementation],
    options: EngineOptions,
    rounds: int,
) -> Iterator[tuple[str, Speed | Failure]]:
    """Yield the name of an implementation and a measurement, in turns.

    Each round begins with another one. One that failed once is left out thereafter.
    """
    names = list(implementations)
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            measuring = partial(measure, checkpoint, implementations[name], options)
            outcome = in_child(measuring, 300.0)
            if isinstance(outcome, Failure):
                names = [other for other in names if other != name]
                yield name, outcome
            else:
                yield name, outcome.value
        if not names:
            return


def median_of(speeds: Sequence[Speed]) -> Speed:
    """Return the median of each measurement over the rounds."""
    return Speed(
        *(
            statistics.median(getattr(speed, field.name) for speed in speeds)
            for field in fields(Speed)
        )
    )


def _time_constructor() -> list[float]:
    """Return a list that gets the seconds of each model built from now on."""
    from vllm.model_executor.model_loader import base_loader

    spent: list[float] = []
    build: Callable[..., Any] = base_loader.initialize_model

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.process_time()
        model = build(*args, **kwargs)
        spent.append(time.process_time() - began)
        return model

    base_loader.initialize_model = timed
    return spent


def _prompts(count: int, length: int) -> list[dict[str, list[int]]]:
    """Return `count` prompts of `length` random token ids, always the same."""
    draw = random.Random(f"{count} {length}")
    return [
        {"prompt_token_ids": [draw.randrange(VOCABULARY) for _ in range(length)]}
        for _ in range(count)
    ]


def _seconds(llm: Any, prompts: list[dict[str, list[int]]], new_tokens: int) -> float:
    """Return the CPU time of a batch, prompts and all."""
    from vllm import SamplingParams

    sampling = SamplingParams(
        temperature=0, ignore_eos=True, detokenize=False, max_tokens=new_tokens
    )
    began = time.process_time()
    llm.generate(prompts, sampling, use_tqdm=False)
    return time.process_time() - began
