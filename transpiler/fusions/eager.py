"""Table of eager attention functions: the reference that the interface stands for.

Softmax in another precision, or cast back at another place, is the same function:
vLLM's kernels have a precision of their own.
"""

HEADER = """
def repeat_kv(x, n):
    batch, heads, length, size = x.shape
    if n == 1:
        return x
    x = x[:, :, None, :, :].expand(batch, heads, n, length, size)
    return x.reshape(batch, heads * n, length, size)


"""

PLAIN = f"""
{HEADER}
def eager(module, query, key, value, attention_mask, scaling):
    key = repeat_kv(key, module.num_key_value_groups)
    value = repeat_kv(value, module.num_key_value_groups)
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    output = torch.matmul(weights, value).transpose(1, 2)
    return output, weights
"""

# gemma2, gemma3, vaultgemma
CAPPED = f"""
{HEADER}
def eager(module, query, key, value, attention_mask, scaling, softcap):
    if scaling is None:
        scaling = module.head_dim**-0.5
    key = repeat_kv(key, module.num_key_value_groups)
    value = repeat_kv(value, module.num_key_value_groups)
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if softcap is not None:
        weights = torch.tanh(weights / softcap) * softcap
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    output = torch.matmul(weights, value).transpose(1, 2)
    return output, weights
"""

# gpt_neox, opt
UNGROUPED = """
def eager(module, query, key, value, attention_mask, scaling):
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    output = torch.matmul(weights, value).transpose(1, 2)
    return output, weights
"""
# opt
UNGROUPED_LAST = UNGROUPED.replace("transpose(2, 3)", "transpose(-1, -2)")

# biogpt, ctrl
DEFAULT_SCALE = """
def eager(module, query, key, value, attention_mask, scaling):
    if scaling is None:
        scaling = query.size(-1) ** -0.5
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.softmax(weights, dim=-1)
    output = torch.matmul(weights, value).transpose(1, 2)
    return output, weights
"""
# gpt2
DEFAULT_SCALE_LAST = DEFAULT_SCALE.replace("(2, 3)", "(-1, -2)").replace(
    "dim=-1)", "dim=-1).type(value.dtype)"
)

ROWS = {
    "plain": PLAIN,
    "capped": CAPPED,
    "ungrouped": UNGROUPED,
    "ungrouped, last axes": UNGROUPED_LAST,
    "default scale": DEFAULT_SCALE,
    "default scale, last axes": DEFAULT_SCALE_LAST,
}
# Rows that repeat key and value heads, as `num_key_value_groups` says.
GROUPED = frozenset({"plain", "capped"})
# Operands that the interface is given by position.
POSITIONAL = ("module", "query", "key", "value", "attention_mask")
