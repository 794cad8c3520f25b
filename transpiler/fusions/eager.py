"""Table of eager attention functions: the reference that the interface stands for."""

PLAIN = """
def repeat_kv(x, n):
    batch, heads, length, size = x.shape
    if n == 1:
        return x
    x = x[:, :, None, :, :].expand(batch, heads, n, length, size)
    return x.reshape(batch, heads * n, length, size)


def eager(module, query, key, value, attention_mask, scaling, dropout):
    key = repeat_kv(key, module.num_key_value_groups)
    value = repeat_kv(value, module.num_key_value_groups)
    weights = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        weights = weights + attention_mask
    weights = F.softmax(weights, dim=-1, dtype=torch.float32).to(query.dtype)
    output = torch.matmul(weights, value).transpose(1, 2)
    return output, weights
"""

ROWS = {"plain": PLAIN}
