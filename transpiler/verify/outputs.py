"""What a model said: the tokens it chose and every log-probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

LogProbs: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """One prompt's part of a run.

    Attributes:
        tokens: the greedy continuation, `[new_tokens]`.
        prompt: log-probabilities of the token after each prompt position but the
            last, natural log, `[prompt_length - 1, vocab_size]`; empty where the
            engine was not asked for them.
        decode: log-probabilities from which each of `tokens` was chosen,
            `[new_tokens, vocab_size]`.
    """

    tokens: tuple[int, ...]
    prompt: LogProbs
    decode: LogProbs


@dataclass(frozen=True)
class Request:
    """What both sides are asked: prompts as token ids, and how far to continue."""

    prompts: tuple[tuple[int, ...], ...]
    new_tokens: int


@dataclass(frozen=True)
class Reference:
    """Upstream's answers, one per prompt, and upstream's own noise.

    `noise` is the largest log-probability difference between upstream with eager and
    with sdpa attention over the same tokens.
    """

    answers: tuple[Answer, ...]
    noise: float
