"""Step 5, lower: the shape and shell vLLM asks for. Mandatory: a refusal ends."""
