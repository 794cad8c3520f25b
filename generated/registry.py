# Written by `make transpile` and `make verify`. Do not edit.
"""What vLLM is told: the proven architectures and the versions they are proven with."""

TRANSFORMERS = "5.19.0"
VLLM = ("0.32", "0.34")  # from the first on, up to but not with the second
ARCHITECTURES: dict[str, str] = {
    "LlamaForCausalLM": "generated.llama:LlamaForCausalLM",
}
