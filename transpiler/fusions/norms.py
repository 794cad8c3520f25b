"""Table of norm bodies: which vLLM layer computes exactly the same.

`RMS` is the body of 77 decoder models (llama, mistral, qwen2, qwen3, …): the
variance in float32, the weight applied after the cast back.
"""

RMS = """
class Norm(nn.Module):
    def __init__(self, hidden_size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x):
        full = x.to(torch.float32)
        full = full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * full.to(x.dtype)
"""

ROWS = {"RMSNorm": RMS}
