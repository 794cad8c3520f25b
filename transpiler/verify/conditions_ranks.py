"""Conditions of two ranks: each tensor shared out, or the layers."""

from __future__ import annotations

from functools import partial

from transpiler.verify.ranks import RANKS, run_ranks
from transpiler.verify.trial import Condition, Evidence, Trial
from transpiler.verify.variants import Split, Variant

ONE_KV_HEAD = Variant("mqa", {"num_key_value_heads": 1})
TIED = Variant("tied", {"tie_word_embeddings": True})

SHARED_MEMORY = "names of shared memory made unique to the run"
# In eager mode the worker skips the warm-up that allocates them.
BUFFERS = "buffers between pipeline ranks allocated by hand"
LAST_RANK_ONLY = "log-probabilities of the prompt are on the last rank only"


def tensor_parallel(trial: Trial) -> Evidence:
    """Two ranks hold half of the heads, columns and words each."""
    return _on_two_ranks(trial, Split.TENSORS, (SHARED_MEMORY,))


def pipeline_parallel(trial: Trial) -> Evidence:
    """Two ranks hold the first and the last layers."""
    gaps = (SHARED_MEMORY, BUFFERS, LAST_RANK_ONLY)
    return _on_two_ranks(trial, Split.LAYERS, gaps)


def _on_two_ranks(trial: Trial, split: Split, gaps: tuple[str, ...]) -> Evidence:
    """Run on two ranks; `run_ranks` fails where the engine has another number."""
    running = partial(
        run_ranks,
        trial.checkpoint,
        trial.request,
        trial.implementation,
        trial.options(),
        split,
    )
    answers = trial.in_child(running)
    comparison = trial.compared(answers, prompt_positions=split is Split.TENSORS)
    return Evidence(f"{split.value} {RANKS}", comparison, gaps)


RANKED = (
    Condition("tensor-parallel", tensor_parallel),
    Condition("tensor-parallel-one-kv-head", tensor_parallel, ONE_KV_HEAD),
    Condition("tensor-parallel-tied", tensor_parallel, TIED),
    Condition("pipeline-parallel", pipeline_parallel),
    Condition("pipeline-parallel-tied", pipeline_parallel, TIED),
)
