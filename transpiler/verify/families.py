"""The families that are proven. The only place where their names stand.

What is tried of each is found by the fields that upstream reads (`found.py`); here is
only what the tool cannot know: extra variants, and outcomes that are no equality.
"""

from __future__ import annotations

from transpiler.verify.family import Family
from transpiler.verify.found import PROMPTS, WINDOWED
from transpiler.verify.variants import Variant, equal_or_raises
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

FAMILIES: tuple[Family, ...] = (
    Family("llama", "LlamaForCausalLM", extra=(*FURTHER, *BIASES)),
    Family("mistral", "MistralForCausalLM", extra=FURTHER, expected=ANOTHER_FAMILY),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        extra=(*FURTHER, *DERIVED_LAYER_TYPES, *STRAY_HEAD_DIM),
    ),
    Family("qwen3", "Qwen3ForCausalLM", extra=(*FURTHER, *DERIVED_LAYER_TYPES)),
)
