"""Read a Transformers modeling file, write a fused vLLM-native model file."""

__version__ = "0.1.0"
