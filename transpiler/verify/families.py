"""The families that are proven. The only place where their names stand."""

from __future__ import annotations

from transpiler.verify.variants import Family, Variant

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

FAMILIES = (
    Family(
        "llama",
        "LlamaForCausalLM",
        {"model_type": "llama", **SIZES},
        (Variant("default"),),
    ),
)
