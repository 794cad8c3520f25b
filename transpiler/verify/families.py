"""The families that are proven. The only place where their names stand.

What is tried of each is found by the fields that upstream reads (`found.py`); here is
only what the tool cannot know: extra variants, and outcomes that are no equality.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import typer

from transpiler.verify.family import Family
from transpiler.verify.found import PROMPTS, WINDOWED
from transpiler.verify.variants import (
    UPSTREAM_FAILS,
    Tensors,
    UnknownNameError,
    Variant,
    equal_or_raises,
    raises,
    require_known,
)
from transpiler.verify.variants_rope import FURTHER_ROPES

# Upstream's AutoConfig makes another family of it, whose layers alternate.
ANOTHER_FAMILY = {"stray-layer-types": equal_or_raises("layer_types", "model_type")}
USED = {**WINDOWED, "use_sliding_window": True}
# The layer types that a configuration derives from a count of layers.
DERIVED_LAYER_TYPES = (
    Variant("window-mixed", {**USED, "max_window_layers": 2}, prompt_lengths=PROMPTS),
    Variant("window-all", {**USED, "max_window_layers": 0}, prompt_lengths=PROMPTS),
    Variant("window-nowhere", {**USED, "max_window_layers": 4}, prompt_lengths=PROMPTS),
    Variant(
        "window-unused",
        {**WINDOWED, "use_sliding_window": False, "max_window_layers": 0},
        prompt_lengths=PROMPTS,
    ),
)
# No field of the configuration, and read by getattr (a null fails).
STRAY_HEAD_DIM = (Variant("stray-head-dim", {"head_dim": 64}),)
BIASES = (Variant("biases", {"attention_bias": True, "mlp_bias": True}),)

# What all families share in `runtime/`, tried on these.
FURTHER = (
    *FURTHER_ROPES,
    *(
        Variant(f"act-{name.replace('_', '-')}", {"hidden_act": name})
        for name in ("gelu_pytorch_tanh", "gelu_new", "relu")
    ),
)

# Of rope types one has its own factors, which are as many as what is turned is wide.
NO_LONGROPE = {
    "rope-longrope-short": raises("rope_parameters"),
    "rope-longrope-long": raises("rope_parameters"),
}
KV_HEADS_NEEDED = {"kv-heads-null": UPSTREAM_FAILS}
BIDIRECTIONAL = {
    "use-bidirectional-attention-on": raises("use_bidirectional_attention")
}


def partial_rotary(factor: float) -> dict[str, Any]:
    """Rope parameters of a family that turns this part of a head."""
    return {
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": factor,
        }
    }


FAMILIES: tuple[Family, ...] = (
    Family("llama", "LlamaForCausalLM", extra=(*FURTHER, *BIASES)),
    Family("mistral", "MistralForCausalLM", extra=FURTHER, expected=ANOTHER_FAMILY),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        extra=(*FURTHER, *DERIVED_LAYER_TYPES, *STRAY_HEAD_DIM),
    ),
    Family("qwen3", "Qwen3ForCausalLM", extra=(*FURTHER, *DERIVED_LAYER_TYPES)),
    Family("apertus", "ApertusForCausalLM"),
    Family("arcee", "ArceeForCausalLM"),
    Family("bitnet", "BitNetForCausalLM"),
    # vLLM looks for a head that is not tied under another name than its own.
    Family(
        "biogpt",
        "BioGptForCausalLM",
        expected={"tied-head-different": equal_or_raises("tie_word_embeddings")},
    ),
    Family(
        "cohere",
        "CohereForCausalLM",
        expected={
            **NO_LONGROPE,
            "layer-norm-eps-null": UPSTREAM_FAILS,
            "logit-scale-null": UPSTREAM_FAILS,
        },
    ),
    Family("cohere2", "Cohere2ForCausalLM", expected=NO_LONGROPE),
    Family("cwm", "CwmForCausalLM"),
    Family("ernie4_5", "Ernie4_5ForCausalLM", expected=NO_LONGROPE),
    Family(
        "exaone4",
        "Exaone4ForCausalLM",
        expected={"sliding-window-pattern-null": UPSTREAM_FAILS},
    ),
    Family("gemma", "GemmaForCausalLM", expected=BIDIRECTIONAL),
    Family("gemma2", "Gemma2ForCausalLM", expected=BIDIRECTIONAL),
    Family(
        "gemma3",
        "Gemma3ForCausalLM",
        {"model_type": "gemma3_text"},
        expected=BIDIRECTIONAL,
    ),
    Family(
        "glm",
        "GlmForCausalLM",
        partial_rotary(0.5),
        expected={**KV_HEADS_NEEDED, **NO_LONGROPE},
    ),
    Family("glm4", "Glm4ForCausalLM", partial_rotary(0.5), expected=NO_LONGROPE),
    Family(
        "gpt_neox",
        "GPTNeoXForCausalLM",
        partial_rotary(0.5),
        extra=(
            Variant("old-names", tensors=Tensors(saved_as={"lm_head.": "embed_out."})),
        ),
    ),
    Family("granite", "GraniteForCausalLM"),
    # Upstream's output projection takes heads that make the hidden size.
    Family(
        "helium",
        "HeliumForCausalLM",
        expected={
            **NO_LONGROPE,
            **dict.fromkeys(
                ("head-dim-64", "head-dim-80", "odd-sizes", "heads-do-not-divide"),
                UPSTREAM_FAILS,
            ),
        },
    ),
    Family("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM"),
    Family("hyperclovax", "HyperCLOVAXForCausalLM"),
    Family("jais2", "Jais2ForCausalLM"),
    Family("ministral", "MinistralForCausalLM"),
    Family(
        "nemotron",
        "NemotronForCausalLM",
        partial_rotary(0.5),
        expected=KV_HEADS_NEEDED,
    ),
    Family("olmo", "OlmoForCausalLM"),
    Family("olmo2", "Olmo2ForCausalLM"),
    # Its windowed layers, all three of the smallest config, have no scaled rope.
    Family(
        "olmo3",
        "Olmo3ForCausalLM",
        expected={"rope-dynamic-past-trained": equal_or_raises("rope_type")},
    ),
    Family("persimmon", "PersimmonForCausalLM", partial_rotary(0.5)),
    Family("phi", "PhiForCausalLM", partial_rotary(0.5)),
    # Upstream knows one type besides the default.
    Family(
        "phi3",
        "Phi3ForCausalLM",
        expected={
            f"rope-{kind}": UPSTREAM_FAILS
            for kind in (
                "linear",
                "llama3",
                "yarn",
                "dynamic",
                "dynamic-past-trained",
                "proportional",
            )
        },
    ),
    Family("seed_oss", "SeedOssForCausalLM"),
    Family(
        "smollm3",
        "SmolLM3ForCausalLM",
        extra=(Variant("no-rope-layers", {"no_rope_layers": [0, 1, 0]}),),
    ),
    Family("starcoder2", "Starcoder2ForCausalLM"),
    Family("vaultgemma", "VaultGemmaForCausalLM"),
)


def chosen(models: Sequence[str] | None) -> list[Family]:
    """The families of these names, all for none; one line and status 2 for another."""
    known = {family.name: family for family in FAMILIES}
    try:
        for model in models or ():
            require_known("model", model, list(known))
    except UnknownNameError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None
    return [known[model] for model in models or known]


# On these everything is tried that costs too much for every family.
EXEMPLARS = FAMILIES[:4]
