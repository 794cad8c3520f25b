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
from transpiler.analyse.program import Child, Scope
from transpiler.refusal import Refused
from transpiler.tree import code

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
    """

    layer: str
    adds: bool
    body: str
    extra: tuple[str, ...] = ()
    takes: tuple[str, ...] = ("hidden_size", "eps")

    @property
    def rule(self) -> str:
        """What is said of a norm that this row serves."""
        return "rms norm" if self.layer.endswith("RMSNorm") else "layer norm"


LATE = ("dtype=torch.float32",)
ROWS = (
    Row("RMSNorm", True, RMS),
    Row("RMSNorm", True, RMS_LATE, LATE),
    Row("RMSNorm", True, RMS_WIDE, LATE),
    Row("GemmaRMSNorm", True, RMS_ABOUT_ONE),
    Row("LayerNorm", False, LAYER_BARE, ("eps=1e-5", "elementwise_affine=False")),
    Row("LayerNorm", False, LAYER_WEIGHT, ("bias=False",)),
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


def norm_text(
    norm: Norm, scope: Scope, child: Child, sharded: list[str] | None = None
) -> str:
    """The statement that makes vLLM's norm with what upstream's is given.

    Args:
        norm: What its class is.
        scope: The class that makes it.
        child: The norm.
        sharded: More arguments of a norm whose width the ranks share; None for others.

    Raises:
        Refused: [norm-arguments] for a norm without its width or epsilon, over several
            axes, or with an argument that the layer has not.
    """
    arguments: list[str] = []
    for role, (place, name, default) in norm.places.items():
        given = child.argument(place, name)
        if role not in norm.row.takes:
            usual = default is None or code(default) in ("True", "None")
            if given is not None or not usual:
                raise Refused("norm-arguments", f"{name}= is not known", child.call)
            continue
        if given is not None and scope.init.values[given].op in ("tuple", "list"):
            raise Refused("norm-arguments", "a norm over several axes", given)
        text = text_of(default if given is None else given)
        if not text and (norm.row.body or role == "hidden_size"):
            raise Refused("norm-arguments", f"no {name}", child.call)
        if role == "hidden_size":
            arguments.insert(0, text)
        elif text:
            arguments.append(f"{role}={text}")
    arguments += [*(sharded or ()), *norm.row.extra]
    layer = norm.row.layer if sharded is None else f"Sharded{norm.row.layer}"
    return f"self.{child.name} = {layer}({', '.join(arguments)})"


def text_of(node: cst.BaseExpression | None) -> str:
    """An argument as source text, without brackets around it."""
    return code(node.with_changes(lpar=[], rpar=[])) if node is not None else ""
