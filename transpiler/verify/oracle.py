"""The oracle: what Transformers computes, without a cache and in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from transpiler.verify.outputs import Answer, LogProbs, Reference, Request


def consult(checkpoint: Path, request: Request) -> Reference:
    """Return upstream's greedy continuation and log-probabilities of each prompt.

    Every token is chosen from a full forward over all tokens before it, one prompt at
    a time, with eager attention. The same tokens then go through sdpa attention to
    measure how far upstream is from itself.
    """
    eager = _load(checkpoint, "eager")
    answers = tuple(_answer(eager, p, request.new_tokens) for p in request.prompts)
    sdpa = _load(checkpoint, "sdpa")
    noise = max(
        _noise(sdpa, prompt, answer)
        for prompt, answer in zip(request.prompts, answers, strict=True)
    )
    return Reference(answers, noise)


def _load(checkpoint: Path, attention: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation=attention
    )
    return model.eval()


def _answer(model: Any, prompt: tuple[int, ...], new_tokens: int) -> Answer:
    tokens = list(prompt)
    steps: list[LogProbs] = []
    for _ in range(new_tokens):
        log_probs = _forward(model, tokens)
        if not steps:
            before = log_probs[:-1]
        steps.append(log_probs[-1])
        tokens.append(int(np.argmax(log_probs[-1])))
    return Answer(tuple(tokens[len(prompt) :]), before, np.stack(steps))


def _forward(model: Any, tokens: list[int]) -> LogProbs:
    """Return log-probabilities after each token, `[num_tokens, vocab_size]`."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0]
        log_probs: LogProbs = logits.double().log_softmax(-1).numpy()
    return log_probs


def _noise(model: Any, prompt: tuple[int, ...], answer: Answer) -> float:
    """Return how far `model` is from `answer` over the answer's own tokens."""
    log_probs = _forward(model, [*prompt, *answer.tokens[:-1]])
    split = len(prompt) - 1
    differences = (log_probs[:split] - answer.prompt, log_probs[split:] - answer.decode)
    return max(float(np.abs(d).max(initial=0.0)) for d in differences)
