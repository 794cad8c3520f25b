"""The families that are proven. The only place where their names stand.

A variant applies to a family if the upstream modeling or configuration file reads the
field, or if vLLM reads it where upstream does not (the stray ones).
"""

from __future__ import annotations

from transpiler.verify.variants import (
    Family,
    Variant,
    equal_or_raises,
    raises,
)
from transpiler.verify.variants_rope import ROPES
from transpiler.verify.variants_tensors import QKV_BIASES, TENSORS, UNKNOWN_QKV_BIAS

# vLLM's CPU attention knows heads of 32, 64, 80, 96, 112, 128 and more, no smaller.
SIZES = {
    "vocab_size": 320,
    "hidden_size": 128,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}

ACTIVATIONS = (
    *(
        Variant(f"act-{name.replace('_', '-')}", {"hidden_act": name})
        for name in ("gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2")
    ),
    Variant("act-tanh", {"hidden_act": "tanh"}, expected=equal_or_raises("hidden_act")),
    # It has a parameter, which the checkpoint names after upstream's attribute.
    Variant("act-prelu", {"hidden_act": "prelu"}, expected=raises("hidden_act")),
)

SHAPES = (
    # Grouped queries: two heads to one of keys and values.
    Variant("default"),
    Variant("mqa", {"num_key_value_heads": 1}),
    Variant("mha", {"num_key_value_heads": 4}),
    Variant("head-dim-64", {"head_dim": 64}),
    Variant("head-dim-80", {"head_dim": 80}),
    Variant(
        "odd-sizes",
        {
            "vocab_size": 259,
            "hidden_size": 102,
            "intermediate_size": 101,
            "num_attention_heads": 6,
            "num_key_value_heads": 3,
            "head_dim": 32,
        },
    ),
    Variant("eps", {"rms_norm_eps": 1e-2}),
    Variant("pad-token", {"pad_token_id": 0}),
    Variant("one-layer", {"num_hidden_layers": 1}),
    Variant("not-causal", {"is_causal": False}, expected=raises("is_causal")),
    # vLLM reads each of these for some model; none of the four upstream files does.
    Variant(
        "stray-scales",
        {
            "logit_scale": 0.5,
            "final_logit_softcapping": 5.0,
            "attn_logit_softcapping": 5.0,
            "embedding_multiplier": 2.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.5,
        },
    ),
)

EVERYWHERE = (*SHAPES, *ACTIVATIONS, *ROPES, *TENSORS)

HEADS_DO_NOT_DIVIDE = Variant(
    "heads-do-not-divide", {"hidden_size": 130, "head_dim": 32}
)
ATTENTION_BIAS = Variant("attention-bias", {"attention_bias": True})
STRAY_ATTENTION_BIAS = Variant("stray-attention-bias", {"attention_bias": True})
KV_HEADS_NULL = Variant("kv-heads-null", {"num_key_value_heads": None})
STRAY_MLP_BIAS = Variant("stray-mlp-bias", {"mlp_bias": True})
SLIDING, FULL = "sliding_attention", "full_attention"

# A window of 0 is left out: upstream then masks every key, and eager (a mean over all
# tokens, later ones too) and sdpa disagree on what that means.
WINDOWS = (
    Variant("window-off", {"sliding_window": None}),
    Variant("window-large", {"sliding_window": 4096}),
    Variant("window-8", {"sliding_window": 8}),
    Variant("window-1", {"sliding_window": 1}),
    # Upstream's AutoConfig makes another family of it, whose layers alternate.
    Variant(
        "stray-layer-types",
        {
            "head_dim": 32,
            "sliding_window": 8,
            "layer_types": [FULL, SLIDING, FULL],
        },
        expected=equal_or_raises("layer_types", "model_type"),
    ),
)

STRAY_WINDOWS = (
    Variant("stray-sliding-window", {"sliding_window": 8}),
    Variant(
        "stray-layer-types",
        {"sliding_window": 8, "layer_types": [FULL, SLIDING, FULL]},
    ),
)

WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "num_hidden_layers": 4}


def windowed(name: str, **config: object) -> Variant:
    """Return a variant of 4 layers with a window of 8 and a prompt of 32."""
    return Variant(name, {**WINDOWED, **config}, prompt_lengths=(5, 17, 32))


LAYER_TYPES = (
    windowed("window-mixed", max_window_layers=2),
    windowed("window-everywhere", max_window_layers=0),
    windowed("window-nowhere", max_window_layers=4),
    windowed("layer-types", layer_types=[SLIDING, FULL, SLIDING, FULL]),
    windowed("layer-types-full", layer_types=[FULL] * 4, max_window_layers=0),
    windowed("layer-types-sliding", layer_types=[SLIDING] * 4),
    windowed("window-unused", use_sliding_window=False, max_window_layers=0),
    # Upstream fails on these when it makes or looks up the masks.
    Variant(
        "layer-types-no-window",
        {**WINDOWED, "use_sliding_window": False, "layer_types": [SLIDING] * 4},
        expected=raises("sliding_window"),
    ),
    Variant(
        "layer-types-no-mask",
        {**WINDOWED, "layer_types": [FULL, FULL, "chunked_attention", FULL]},
        expected=raises("layer_types"),
    ),
)

FAMILIES = (
    Family(
        "llama",
        "LlamaForCausalLM",
        {"model_type": "llama", **SIZES},
        (
            *EVERYWHERE,
            *UNKNOWN_QKV_BIAS,
            ATTENTION_BIAS,
            KV_HEADS_NULL,
            Variant("mlp-bias", {"mlp_bias": True}),
            Variant("biases", {"attention_bias": True, "mlp_bias": True}),
            *STRAY_WINDOWS,
        ),
    ),
    Family(
        "mistral",
        "MistralForCausalLM",
        {"model_type": "mistral", **SIZES},
        (
            *EVERYWHERE,
            *UNKNOWN_QKV_BIAS,
            HEADS_DO_NOT_DIVIDE,
            STRAY_ATTENTION_BIAS,
            STRAY_MLP_BIAS,
            *WINDOWS,
        ),
    ),
    Family(
        "qwen2",
        "Qwen2ForCausalLM",
        # No head_dim field; what a stray one says is read by getattr (a null fails).
        {"model_type": "qwen2", **SIZES},
        (
            *EVERYWHERE,
            *QKV_BIASES,
            HEADS_DO_NOT_DIVIDE,
            Variant("stray-attention-bias", {"attention_bias": False}),
            STRAY_MLP_BIAS,
            KV_HEADS_NULL,
            *LAYER_TYPES,
        ),
    ),
    Family(
        "qwen3",
        "Qwen3ForCausalLM",
        # The configuration's own default of head_dim is 128.
        {"model_type": "qwen3", **SIZES, "head_dim": 32},
        (
            *EVERYWHERE,
            *UNKNOWN_QKV_BIAS,
            HEADS_DO_NOT_DIVIDE,
            ATTENTION_BIAS,
            STRAY_MLP_BIAS,
            KV_HEADS_NULL,
            *LAYER_TYPES,
        ),
    ),
)

# One config of each family that shows as much as one can: biases, windows, few heads.
TELLING = {
    "llama": Variant("telling", {"attention_bias": True, "mlp_bias": True}),
    "mistral": Variant("telling", {"sliding_window": 8}),
    "qwen2": windowed("telling", max_window_layers=2, tie_word_embeddings=True),
    "qwen3": windowed("telling", max_window_layers=2, attention_bias=True),
}
