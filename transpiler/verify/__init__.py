"""The proof: a generated model computes what Transformers computes.

For a family and each variant of its config a tiny random checkpoint is written,
Transformers runs it (eager attention, float32, no cache), a real vLLM engine runs
the class under test on it, and tokens and log-probabilities are compared.

``python -m transpiler.verify llama`` is the command; `run.prove_variant` is the call.
Nothing of torch, vLLM or Transformers is imported before `isolate.import_once`.
"""
