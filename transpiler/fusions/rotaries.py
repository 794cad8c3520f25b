"""Table of rotary embeddings: (class, apply function) pairs that `get_rope` serves.

Angles are positions times inverse frequencies, doubled by concatenation (`half`);
the apply function turns the two halves of each head. The class takes its
frequencies from Transformers' own functions for every rope type but the default.
"""

HALF_CLASS = """
class Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = config.rope_parameters["rope_type"]
        frequencies = self.compute_default
        if self.rope_type != "default":
            frequencies = ROPE_INIT_FUNCTIONS[self.rope_type]
        found, self.attention_scaling = frequencies(config)
        self.inv_freq = nn.Buffer(found, persistent=False)
        self.original_inv_freq = nn.Buffer(found, persistent=False)

    @staticmethod
    def compute_default(config):
        even = config.hidden_size // config.num_attention_heads
        head = getattr(config, "head_dim", None) or even
        steps = torch.arange(0, head, 2, dtype=torch.float) / head
        return 1.0 / config.rope_parameters["rope_theta"] ** steps, 1.0

    def forward(self, x, position_ids):
        inverse = self.inv_freq.to(device=x.device, dtype=torch.float)
        angles = position_ids[..., None].float() * inverse
        both = torch.cat((angles, angles), dim=-1)
        cos = both.cos() * self.attention_scaling
        sin = both.sin() * self.attention_scaling
        return cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)
"""

HALF_APPLY = """
def rotate_half(x):
    first = x[..., : x.shape[-1] // 2]
    second = x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)


def apply(q, k, cos, sin, unsqueeze_dim):
    cos = cos.unsqueeze(unsqueeze_dim)
    sin = sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
"""

# What `dynamic_rope_update` reads and writes in the class, under these names.
UPDATED = frozenset(
    {
        "attention_scaling",
        "config",
        "inv_freq",
        "max_seq_len_cached",
        "original_inv_freq",
        "original_max_seq_len",
        "rope_type",
    }
)
CLASSES = {"half": HALF_CLASS}
APPLIES = {"half": HALF_APPLY}
