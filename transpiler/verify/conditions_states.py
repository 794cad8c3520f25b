"""Conditions on what leaves the model: hidden states for drafters, narrow floats."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from transpiler.verify.compare import BAR
from transpiler.verify.engine import Implementation, generate
from transpiler.verify.outputs import Answer, Reference
from transpiler.verify.trial import Condition, Evidence, Trial, require
from transpiler.verify.variants import Variant

States: TypeAlias = npt.NDArray[np.float32]

# A class rounds where its kernels do, so two good ones differ; a class that rounds once
# more than it should is further off than this.
BFLOAT16_FACTOR = 1.1


def aux_hidden_states(trial: Trial) -> Evidence:
    """For EAGLE-3, states before each layer are upstream's `hidden_states`."""
    request = replace(trial.request, new_tokens=1)
    upstream = trial.in_child(lambda: _upstream_states(trial, request.prompts))
    # The last is upstream's after the final norm, which is no layer's input.
    layers = tuple(range(len(upstream) - 1))
    require(len(layers) > 1, "one layer has no state between layers")
    options = trial.options()

    def run(llm: Any) -> list[States]:
        kept: list[list[States]] = []
        llm.apply_model(lambda model: _keep_states(model, layers, kept))
        generate(llm, request, options)
        return kept[0]

    states = trial.in_engine(run, options)
    require(len(states) == len(layers), f"{len(states)} states of {len(layers)}")
    off = [float(abs(states[i] - upstream[i]).max()) for i in layers]
    require(max(off) <= BAR, f"states before layers {layers} are {off} from upstream")
    return Evidence(f"{len(layers)} states of {states[0].shape}, off {max(off):.1e}")


def bfloat16(trial: Trial) -> Evidence:
    """In bfloat16 the class is no further from the float32 truth than vLLM's own."""
    truth = trial.reference()
    answers, kind = _in_bfloat16(trial, trial.implementation)
    require(kind == "torch.bfloat16", f"parameters are {kind}")
    own, _ = _in_bfloat16(trial, trial.own)
    distance, allowed = _distance(truth, answers), _distance(truth, own)
    require(allowed > BAR, f"bfloat16 is {allowed:.1e} from the truth: not narrow")
    require(
        distance <= BFLOAT16_FACTOR * allowed,
        f"{distance:.2e} from the truth, vLLM's own class {allowed:.2e}",
    )
    return Evidence(f"{distance:.6f} from float32, vLLM's own {allowed:.6f}")


def _upstream_states(
    trial: Trial, prompts: tuple[tuple[int, ...], ...]
) -> list[States]:
    """Return upstream's hidden states, each `[tokens of all prompts, hidden_size]`."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        trial.checkpoint, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    with torch.inference_mode():
        each = [
            model(torch.tensor([p]), output_hidden_states=True).hidden_states
            for p in prompts
        ]
    return [torch.cat(states, 1)[0].numpy() for states in zip(*each, strict=True)]


def _keep_states(model: Any, layers: tuple[int, ...], kept: list[list[States]]) -> None:
    """Ask a model for the states before `layers`; `kept` gets those of each forward.

    The engine has no drafter: it is given the last hidden states alone.
    """
    model.set_aux_hidden_state_layers(layers)
    forward: Callable[..., Any] = model.forward

    def keeping(*args: Any, **kwargs: Any) -> Any:
        hidden_states, states = forward(*args, **kwargs)
        kept.append([state.numpy().copy() for state in states])
        return hidden_states

    model.forward = keeping


def _in_bfloat16(
    trial: Trial, implementation: Implementation
) -> tuple[tuple[Answer, ...], str]:
    """Return a class's answers in bfloat16, and the type of its parameters."""
    options = trial.options(dtype="bfloat16")

    def run(llm: Any) -> tuple[tuple[Answer, ...], str]:
        kinds = llm.apply_model(
            lambda m: " ".join({str(p.dtype) for p in m.parameters()})
        )
        return generate(llm, trial.request, options), kinds[0]

    return trial.in_engine(run, options, implementation)


def _distance(truth: Reference, answers: tuple[Answer, ...]) -> float:
    """Return the root mean square difference of log-probabilities.

    Over all prompt positions and the first decode position: later ones follow tokens
    that rounding may have chosen.
    """
    pairs = list(zip(truth.answers, answers, strict=True))
    prompts = [a.prompt - t.prompt for t, a in pairs]
    firsts = [a.decode[:1] - t.decode[:1] for t, a in pairs]
    return float(np.sqrt(np.mean(np.concatenate(prompts + firsts) ** 2)))


STATES = (
    Condition("aux-hidden-states", aux_hidden_states),
    Condition("bfloat16", bfloat16, Variant("bfloat16", prompt_lengths=(60, 70, 90))),
)
