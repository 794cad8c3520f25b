"""What names of the source stand for: imports resolved, call spellings unified.

The same computation has several spellings (`F.relu` and `nn.functional.relu`,
`torch.pow(x, 2)` and `x.pow(2)`, `x.float()` and `x.to(torch.float32)`). Values are
built from one of them, so that patterns and tables need only one entry.
"""

from __future__ import annotations

import libcst as cst

# torch functions that are also tensor methods: the method is the one spelling.
METHODS = frozenset(
    [
        "add",
        "mul",
        "div",
        "pow",
        "rsqrt",
        "sqrt",
        "square",
        "mean",
        "sum",
        "matmul",
        "bmm",
        "reshape",
        "transpose",
        "permute",
        "unsqueeze",
        "squeeze",
        "flatten",
        "unflatten",
        "chunk",
        "split",
        "clamp",
        "neg",
        "exp",
        "cos",
        "sin",
        "tanh",
        "sigmoid",
        "float",
        "masked_fill",
        "where",
    ]
)
# Methods that only rename another one, keeping every number.
SYNONYMS = {
    "reshape": "view",
    "swapaxes": "transpose",
    "multiply": "mul",
    "divide": "div",
    "type": "to",
}
# Positional parameters of methods that are also written with keywords.
PARAMETERS = {
    "mean": ("dim", "keepdim"),
    "sum": ("dim", "keepdim"),
    "pow": ("exponent",),
    "to": ("dtype",),
    "transpose": ("dim0", "dim1"),
    "unsqueeze": ("dim",),
    "squeeze": ("dim",),
    "split": ("split_size", "dim"),
    "chunk": ("chunks", "dim"),
    "flatten": ("start_dim", "end_dim"),
    "torch.cat": ("tensors", "dim"),
    "torch.nn.functional.softmax": ("input", "dim"),
}
DTYPE_METHODS = {
    "float": "torch.float32",
    "half": "torch.float16",
    "double": "torch.float64",
}
ALIASES = {"torch.float": "torch.float32", "torch.concat": "torch.cat"}
# Methods that return the same numbers, whatever happens to memory.
IDENTITIES = frozenset({"contiguous", "clone", "detach"})
OPERATORS = {"mul": "*", "add": "+", "div": "/", "sub": "-", "pow": "**", "matmul": "@"}


def dotted(node: cst.CSTNode) -> str | None:
    """`a.b.c` of a name or attribute chain, None for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if not isinstance(node, cst.Name):
        return None
    return ".".join([node.value, *reversed(parts)])


def imported_names(tree: cst.Module) -> dict[str, str]:
    """Local name -> full dotted name of everything the module imports at its top.

    Relative imports keep only the last module, so `from ...activations import
    ACT2FN` is `activations.ACT2FN`.
    """
    found: dict[str, str] = {}
    for statement in tree.body:
        if not isinstance(statement, cst.SimpleStatementLine):
            continue
        for small in statement.body:
            if isinstance(small, cst.Import):
                for alias in small.names:
                    full = dotted(alias.name) or ""
                    local = alias.evaluated_alias or full.split(".")[0]
                    found[local] = full if alias.evaluated_alias else local
            elif isinstance(small, cst.ImportFrom) and not isinstance(
                small.names, cst.ImportStar
            ):
                module = (dotted(small.module) if small.module else "") or ""
                for alias in small.names:
                    name = dotted(alias.name) or ""
                    found[alias.evaluated_alias or name] = f"{module}.{name}".lstrip(
                        "."
                    )
    return found


def resolve(name: str, imports: dict[str, str]) -> str:
    """Full dotted name: `F.relu` is `torch.nn.functional.relu`."""
    head, _, rest = name.partition(".")
    full = imports.get(head, head)
    whole = f"{full}.{rest}" if rest else full
    return ALIASES.get(whole, whole)
