"""Step 5, lower: the shape and shell that vLLM asks for. Mandatory, so a refusal ends."""
