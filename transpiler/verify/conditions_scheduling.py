"""Conditions that the scheduler makes: batches, chunks, cached prefixes, preemption."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from transpiler.verify.engine import EngineOptions, generate
from transpiler.verify.outputs import Answer, Request
from transpiler.verify.schedule import Schedule, watch
from transpiler.verify.trial import Condition, Evidence, Trial, require
from transpiler.verify.variants import Variant

# The smallest block of vLLM's CPU attention.
BLOCK = 32
LONG = Variant("long-prompts", prompt_lengths=(45, 60, 33), new_tokens=30)


def unequal_batch(trial: Trial) -> Evidence:
    """Prompts of different lengths are computed in one step."""
    options = trial.options()
    schedule, answers = _watched(trial, options, trial.request)
    lengths = trial.variant.prompt_lengths
    require(len(set(lengths)) == len(lengths), f"prompts of {lengths} tokens")
    first = tuple(schedule.steps[0].values())
    require(first == lengths, f"the first step was {first}, not {lengths}")
    return Evidence(f"{first} tokens in one step", trial.compared(answers))


def chunked_prefill(trial: Trial) -> Evidence:
    """Prompts are longer than a step may be."""
    options = trial.options(
        enable_chunked_prefill=True, max_num_batched_tokens=16, max_num_seqs=4
    )
    schedule, answers = _watched(trial, options, trial.request)
    chunks = schedule.chunks(trial.variant.prompt_lengths)
    require(min(chunks) > 1, f"prompts came in {chunks} steps")
    return Evidence(f"prompts in {chunks} steps", trial.compared(answers))


def prefix_cache(trial: Trial) -> Evidence:
    """A second run finds its prompts, but for their ends, in the prefix cache."""
    # Asked for log-probabilities of the prompt, vLLM computes it whole.
    options = replace(
        trial.options(enable_prefix_caching=True, block_size=BLOCK),
        sampling={"prompt_logprobs": None},
    )
    request = trial.request

    def twice(llm: Any) -> tuple[Schedule, tuple[Answer, ...]]:
        generate(llm, replace(request, new_tokens=1), options)
        schedule = watch(llm)
        answers = generate(llm, request, options)
        return schedule, answers

    schedule, answers = trial.in_engine(twice, options)
    cached = tuple(schedule.cached.values())
    require(min(cached) > 0, f"cached tokens: {cached}")
    comparison = trial.compared(answers, prompt_positions=False)
    return Evidence(f"{cached} tokens cached", comparison)


def preemption(trial: Trial) -> Evidence:
    """The cache is too small for all prompts and their answers at once."""
    longest = -(-trial.variant.max_model_len // BLOCK)
    options = trial.options(
        block_size=BLOCK,
        # One block is vLLM's own.
        num_gpu_blocks_override=longest + 2,
        enable_prefix_caching=False,
    )
    schedule, answers = _watched(trial, options, trial.request)
    count = schedule.preemptions
    require(count > 0, "no request was preempted")
    return Evidence(f"{count} preemptions", trial.compared(answers))


def _watched(
    trial: Trial, options: EngineOptions, request: Request
) -> tuple[Schedule, tuple[Answer, ...]]:
    def run(llm: Any) -> tuple[Schedule, tuple[Answer, ...]]:
        schedule = watch(llm)
        answers = generate(llm, request, options)
        return schedule, answers

    return trial.in_engine(run, options)


SCHEDULING = (
    Condition("unequal-batch", unequal_batch),
    Condition("chunked-prefill", chunked_prefill, LONG),
    Condition("prefix-cache", prefix_cache, LONG),
    Condition("preemption", preemption, LONG),
)
