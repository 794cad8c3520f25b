"""Table of rotary embeddings: (class, apply function) pairs that `get_rope` serves.

Angles are positions times inverse frequencies. A class doubles them as two halves or
as pairs; an apply function turns the two halves of each head, or neighbours. Some turn
only the first part of a head. The class takes its frequencies from Transformers' own
functions for every rope type but the default. Where cosines, sines or heads stay in
float32 for the turn, vLLM's kernels round as they do for every other model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from transpiler.analyse.bodies import match_class
from transpiler.analyse.module import (
    ModelingClass,
    ModelingModule,
    check_neutral,
    decorator_names,
)

CLASS = """
class Rotary(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = config.rope_parameters["rope_type"]
{made}
        self.inv_freq = nn.Buffer(found, persistent=False)
        self.original_inv_freq = nn.Buffer(found, persistent=False)

    @staticmethod
    def compute_default(config):
        even = config.hidden_size // config.num_attention_heads
        head = getattr(config, "head_dim", None) or even
        width = {width}
        steps = torch.arange(0, width, 2, dtype=torch.float) / width
        return 1.0 / config.rope_parameters["rope_theta"] ** steps, 1.0

    def forward(self, x, position_ids):
        inverse = self.inv_freq.to(device=x.device, dtype=torch.float)
        angles = position_ids[..., None].float() * inverse
        both = {both}
        cos = both.cos() * self.attention_scaling
        sin = both.sin() * self.attention_scaling
        return {result}
"""
MADE = """
        frequencies = self.compute_default
        if self.rope_type != "default":
            frequencies = ROPE_INIT_FUNCTIONS[self.rope_type]
        found, self.attention_scaling = frequencies(config)
"""
MADE_WITH_ALPHA = """
        if self.rope_type == "dynamic" and config.rope_parameters.get("alpha"):
            head = config.head_dim
            alpha = config.rope_parameters["alpha"] ** (head / (head - 2))
            base = config.rope_parameters["rope_theta"] * alpha
            steps = torch.arange(0, head, 2, dtype=torch.float) / head
            found, self.attention_scaling = 1.0 / base**steps, 1.0
        else:
""" + MADE.replace("\n", "\n    ")
BY_TYPE = """
class Rotary(nn.Module):
    def __init__(self, config, device):
        super().__init__()
        self.config = config
        self.max_seq_len_cached = config.max_position_embeddings
        self.original_max_seq_len = config.max_position_embeddings
        self.rope_type = {{}}
        for kind in sorted(set(config.layer_types)):
            given = config.rope_parameters[kind]
            if given is None:
                continue
            self.rope_type[kind] = given["rope_type"]
            frequencies = self.compute_default
            if self.rope_type[kind] != "default":
                frequencies = ROPE_INIT_FUNCTIONS[self.rope_type[kind]]
            found, scaling = frequencies(config, device, layer_type=kind)
            setattr(self, f"{{kind}}_inv_freq", nn.Buffer(found, persistent=False))
            setattr(
                self, f"{{kind}}_original_inv_freq", nn.Buffer(found, persistent=False)
            )
            setattr(self, f"{{kind}}_attention_scaling", scaling)

    @staticmethod
    def compute_default(config, device, layer_type):
        even = config.hidden_size // config.num_attention_heads
        head = getattr(config, "head_dim", None) or even
        steps = torch.arange(0, head, 2, dtype=torch.float) / head
        base = config.rope_parameters[layer_type]["rope_theta"]
        return (1.0 / base**steps).to(device), 1.0

    def forward(self, x, position_ids, layer_type):
        inverse = getattr(self, f"{{layer_type}}_inv_freq")
        scaling = getattr(self, f"{{layer_type}}_attention_scaling")
        inverse = inverse.to(device=x.device, dtype=torch.float)
        angles = position_ids[..., None].float() * inverse
        both = torch.cat((angles, angles), dim=-1)
        cos = both.cos() * scaling
        sin = both.sin() * scaling
        return {result}
"""
PART = 'int(head * config.rope_parameters.get("partial_rotary_factor", 1.0))'
PAIRS = "torch.repeat_interleave(angles, 2, dim=-1)"
HALVES = "torch.cat((angles, angles), dim=-1)"
ROUNDED = "cos.to(dtype=x.dtype), sin.to(dtype=x.dtype)"
# How an apply function turns heads, and in which precision.
ROTATE = {
    "half": """
    first = x[..., : x.shape[-1] // 2]
    second = x[..., x.shape[-1] // 2 :]
    return torch.cat((-second, first), dim=-1)
""",
    "pairs": """
    first = x[..., ::2]
    second = x[..., 1::2]
    return torch.stack((-second, first), dim=-1).flatten(-2)
""",
}
TURN = {
    "own": "{x} * cos + rotate({x}) * sin",
    "back": "({x} * cos + rotate({x}) * sin).to({x}.dtype)",
    "float": "({x}.float() * cos + rotate({x}.float()) * sin).to(q.dtype)",
    "late": "({x}.float() * cos + rotate({x}).float() * sin).to(q.dtype)",
}
SPREAD = "{t} = {t}[..., : {t}.shape[-1] // 2].repeat_interleave(2, dim=-1)"

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


@dataclass(frozen=True)
class Table:
    """A rotary class.

    Attributes:
        text: What it computes.
        doubled: How it doubles angles, `half` or `pairs`.
        is_partial: Whether its default type reads `partial_rotary_factor`.
        has_alpha: Whether its dynamic type reads `alpha`.
        is_by_type: Whether each type of layer has `rope_parameters` of its own.
        updated: What `dynamic_rope_update` reads and writes in it, by these names.
    """

    text: str
    doubled: str = "half"
    is_partial: bool = False
    has_alpha: bool = False
    is_by_type: bool = False
    updated: frozenset[str] = UPDATED


@dataclass(frozen=True)
class Apply:
    """An apply function.

    Attributes:
        text: What it computes.
        doubled: How it needs the angles doubled.
        style: What it turns, `half` or `pairs`.
        is_partial: Whether it turns as much of a head as there are angles.
    """

    text: str
    doubled: str = "half"
    style: str = "half"
    is_partial: bool = False


def table(
    doubled: str = "half",
    is_partial: bool = False,
    is_rounded: bool = True,
    has_alpha: bool = False,
) -> Table:
    """A row of the classes."""
    text = CLASS.format(
        made=MADE_WITH_ALPHA if has_alpha else MADE,
        width=PART if is_partial else "head",
        both=PAIRS if doubled == "pairs" else HALVES,
        result=ROUNDED if is_rounded else "cos, sin",
    )
    return Table(text, doubled, is_partial, has_alpha)


def by_type(result: str) -> Table:
    """A row of the classes that have frequencies for each type of layer."""
    kept = {"config", "max_seq_len_cached", "original_max_seq_len", "rope_type"}
    each = {f"{{}}_{name}" for name in ("inv_freq", "original_inv_freq")}
    text = BY_TYPE.format(result=result)
    return Table(text, is_by_type=True, updated=frozenset(kept | each))


def apply(
    style: str, precision: str = "own", doubled: str = "half", is_partial: bool = False
) -> Apply:
    """A row of the functions."""
    lines = [f"{t} = {t}.unsqueeze(unsqueeze_dim)" for t in ("cos", "sin")]
    if style != doubled:
        lines += [SPREAD.format(t=t) for t in ("cos", "sin")]
    results = []
    for x in ("q", "k"):
        whole = TURN[precision].format(x=x)
        first = TURN[precision].format(x=f"{x}[..., : cos.shape[-1]]")
        rest = f"{x}[..., cos.shape[-1] :]"
        joined = f"torch.cat(({first}, {rest}), dim=-1)"
        results.append(joined if is_partial else whole)
    lines.append(f"return {', '.join(results)}")
    text = f"def rotate(x):{ROTATE[style]}\n\n"
    text += "def apply(q, k, cos, sin, unsqueeze_dim):\n    " + "\n    ".join(lines)
    return Apply(text, doubled, style, is_partial)


Row = Table | Apply
CLASSES = {
    "half": table(),
    "half, full precision": table(is_rounded=False),
    "half, partial": table(is_partial=True),
    "half, alpha": table(has_alpha=True),
    "pairs": table("pairs"),
    "half, by type": by_type(ROUNDED),
    "half, by type, full precision": by_type("cos, sin"),
}
APPLIES = {
    "half": apply("half"),
    "half, rounded back": apply("half", "back"),
    "half, full precision": apply("half", "float"),
    "half, partial": apply("half", is_partial=True),
    "pairs": apply("pairs"),
    "pairs, full precision": apply("pairs", "late"),
    "pairs, partial": apply("pairs", is_partial=True),
    "pairs of pairs, full precision": apply("pairs", "float", "pairs"),
}
UPDATE = "modeling_rope_utils.dynamic_rope_update"


def texts(rows: Mapping[str, Row]) -> dict[str, str]:
    """The bodies of a table."""
    return {name: row.text for name, row in rows.items()}


def row_of(cls: ModelingClass, module: ModelingModule) -> str | None:
    """The row that a rotary class matches, which updates itself as rope types ask."""
    rows = {name: (row.text, row.updated) for name, row in CLASSES.items()}
    found = next(
        (
            match
            for name, (text, updated) in rows.items()
            if (match := match_class(cls, module, {name: text}, updated)) is not None
        ),
        None,
    )
    if found is None:
        return None
    check_neutral(cls, module, "forward")
    forward = cls.method("forward")
    places = [p.name.value for p in forward.params.params[1:]]
    taken = [
        found[1][f"forward.{name}"].name.removeprefix("forward.")
        for name in ("position_ids", "layer_type")
        if f"forward.{name}" in found[1]
    ]
    is_updated = UPDATE in decorator_names(forward, module)
    is_ordered = places[1 : 1 + len(taken)] == taken
    return found[0] if is_updated and is_ordered else None
