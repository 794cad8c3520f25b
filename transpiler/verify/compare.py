"""Compare an engine's answers with upstream's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from transpiler.verify.outputs import Answer, LogProbs, Reference

BAR = 1e-4
NOISE_FACTOR = 3
# Where noise asks for more than this it is none: upstream's eager and sdpa then compute
# different functions (sdpa has no soft cap), and the usual bar holds.
LARGEST_BAR = 1e-3


@dataclass(frozen=True)
class Comparison:
    """How far an engine's answers are from upstream's.

    Attributes:
        tokens_equal: every greedy token is upstream's, ties apart.
        tied: tokens left out, from the first where the engine chose another token that
            upstream puts within the bar of its best.
        prompt: largest log-probability difference at prompt positions.
        decode: largest log-probability difference at decode positions.
        bar: the largest difference that counts as equal.
        noise: upstream's own difference, eager against sdpa.
    """

    tokens_equal: bool
    tied: int
    prompt: float
    decode: float
    bar: float
    noise: float

    @property
    def largest(self) -> float:
        """The larger of the two differences."""
        return max(self.prompt, self.decode)

    @property
    def is_equal(self) -> bool:
        """Whether tokens are equal and no difference is above a sound bar."""
        return self.tokens_equal and self.largest <= self.bar


def compare(
    reference: Reference, answers: tuple[Answer, ...], prompt_positions: bool = True
) -> Comparison:
    """Compare answers, prompt by prompt, with upstream's.

    Without `prompt_positions` only decode positions are compared: an engine that reads
    a prefix cache gives no log-probabilities for the prompt.

    Decode positions are compared up to and with the first differing token: after it
    the two continue different texts.

    Raises:
        ValueError: the two do not answer the same prompts.
    """
    noisy = NOISE_FACTOR * reference.noise
    bar = noisy if BAR < noisy <= LARGEST_BAR else BAR
    equal, tied, prompt, decode = True, 0, 0.0, 0.0
    for upstream, answer in zip(reference.answers, answers, strict=True):
        if prompt_positions:
            prompt = max(prompt, _largest(upstream.prompt, answer.prompt))
        shared = _shared(upstream.tokens, answer.tokens)
        until = shared + 1
        decode = max(decode, _largest(upstream.decode[:until], answer.decode[:until]))
        left = len(upstream.tokens) - shared
        if left and _is_tie(upstream.decode[shared], answer.tokens[shared], bar):
            tied += left
        elif left:
            equal = False
    return Comparison(equal, tied, prompt, decode, bar, reference.noise)


def _shared(upstream: tuple[int, ...], tokens: tuple[int, ...]) -> int:
    """Return how many tokens two continuations have in common from the start.

    Raises:
        ValueError: they are of different lengths.
    """
    if len(upstream) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens where upstream has {len(upstream)}")
    pairs = zip(upstream, tokens, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(tokens))


def _is_tie(log_probs: LogProbs, token: int, bar: float) -> bool:
    """Return whether `token` is within the bar of the best of `[vocab_size]`."""
    return bool(log_probs.max() - log_probs[token] <= bar)


def _largest(upstream: LogProbs, answer: LogProbs) -> float:
    """Return the largest difference; what is no number on a side is infinitely far.

    Raises:
        ValueError: the shapes differ.
    """
    if upstream.shape != answer.shape:
        raise ValueError(f"{answer.shape} log-probabilities for {upstream.shape}")
    with np.errstate(invalid="ignore"):
        difference = np.abs(upstream - answer)
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))
