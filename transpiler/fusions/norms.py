"""Table of norm bodies: which layer of vLLM computes exactly the same.

A row's constructor parameters are named as the layer's are. What a norm is rounded to
between its steps is part of its body: `RMS` rounds before the weight is applied (77
decoder models: llama, mistral, qwen2, …), `RMS_LATE` after it (olmo2, helium), as the
layer does with a weight in float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from transpiler.analyse.bodies import match_class
from transpiler.analyse.module import (
    NEUTRAL_BASES,
    ModelingClass,
    ModelingModule,
    check_neutral,
)
from transpiler.analyse.program import Child

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

RMS_LATE = RMS.replace(
    "self.weight * full.to(x.dtype)", "(self.weight * full).to(x.dtype)"
)
RMS_WIDE = RMS_LATE.replace("self.weight * full", "self.weight.float() * full")
RMS_ABOUT_ONE = RMS_LATE.replace(
    "self.weight * full", "(1.0 + self.weight.float()) * full"
).replace("ones", "zeros")

RMS_BARE = """
class Norm(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        full = x.to(torch.float32)
        full = full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + self.eps)
        return full.to(x.dtype)
"""

LAYER_BARE = """
class Norm(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.shape = (hidden_size,)

    def forward(self, x):
        full = x.to(torch.float32)
        return F.layer_norm(full, self.shape, None, None, eps=1e-5).to(x.dtype)
"""

LAYER_WEIGHT = """
class Norm(nn.Module):
    def __init__(self, hidden_size, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x):
        full = x.to(torch.float32)
        mean = full.mean(-1, keepdim=True)
        spread = (full - mean).pow(2).mean(-1, keepdim=True)
        full = (full - mean) * torch.rsqrt(spread + self.eps)
        return (self.weight.to(torch.float32) * full).to(x.dtype)
"""


LAYER_ABOUT_ONE = """
class Norm(nn.LayerNorm):
    def __init__(self, hidden_size, eps, elementwise_affine, bias, device, dtype):
        super().__init__(hidden_size, eps, elementwise_affine, bias, device, dtype)

    def forward(self, x):
        weight = self.weight + 1.0
        return F.layer_norm(x, self.normalized_shape, weight, self.bias, self.eps)
"""


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        layer: vLLM's layer.
        adds: Whether the layer also adds a residual to its operand.
        body: The class that it matches, empty for torch's own.
        extra: Arguments of the layer that no constructor parameter says.
        takes: Constructor parameters that the layer has too.
        by_head: The layer for a weight of each head, if there is one.
    """

    layer: str
    adds: bool
    body: str
    extra: tuple[str, ...] = ()
    takes: tuple[str, ...] = ("hidden_size", "eps")
    by_head: str = ""

    @property
    def rule(self) -> str:
        """What is said of a norm that this row serves."""
        return "rms norm" if self.layer.endswith("RMSNorm") else "layer norm"


BARE = ("has_weight=False",)
LATE = ("dtype=torch.float32",)
ROWS = (
    Row("RMSNorm", True, RMS),
    Row("RMSNorm", True, RMS_LATE, LATE),
    Row("RMSNorm", True, RMS_WIDE, LATE),
    Row("RMSNorm", True, RMS_BARE, BARE),
    Row("GemmaRMSNorm", True, RMS_ABOUT_ONE),
    Row("LayerNorm", False, LAYER_BARE, ("eps=1e-5", "elementwise_affine=False")),
    Row("LayerNorm", False, LAYER_WEIGHT, ("bias=False",), by_head="HeadLayerNorm"),
    Row("NemotronLayerNorm1P", True, LAYER_ABOUT_ONE),
)
TORCH_LAYER = Row(
    "LayerNorm", False, "", takes=("hidden_size", "eps", "elementwise_affine", "bias")
)


@dataclass(frozen=True)
class Norm:
    """A norm class of the source.

    Attributes:
        row: What it computes.
        places: Where its constructor takes what the row's has under a name: position,
            name and default.
    """

    row: Row
    places: dict[str, tuple[int, str, cst.BaseExpression | None]]

    def width(self, child: Child) -> cst.BaseExpression | None:
        """The width that a norm is made for, None where its class says it."""
        place, name, _ = self.places["hidden_size"]
        return child.argument(place, name)


TORCH_NORMS = {
    "torch.nn.LayerNorm": Norm(
        TORCH_LAYER,
        {
            role: (place, role if place else "normalized_shape", None)
            for place, role in enumerate((*TORCH_LAYER.takes, "device", "dtype"))
        },
    )
}


def norm_of(cls: ModelingClass, module: ModelingModule) -> Norm | None:
    """The norm that a class of the file is; its forward takes one operand."""
    found = match_class(cls, module, {str(n): r.body for n, r in enumerate(ROWS)})
    params = cls.method("forward").params if found is not None else None
    if found is None or params is None:
        return None
    if len(params.params) != 2 or params.star_kwarg:
        return None
    check_neutral(cls, module, "forward", NEUTRAL_BASES | set(cls.bases))
    given = cls.method("__init__").params.params[1:]
    names = [parameter.name.value for parameter in given]
    places = {
        role: (place := names.index(value.name), value.name, given[place].default)
        for role, value in found[1].items()
        if not role.startswith("forward.")
    }
    return Norm(ROWS[int(found[0])], places)
