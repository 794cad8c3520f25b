"""What names of the source stand for: imports resolved, call spellings unified.

The same computation has several spellings (`F.relu` and `nn.functional.relu`,
`torch.pow(x, 2)` and `x.pow(2)`, `x.float()` and `x.to(torch.float32)`). Values are
built from one of them, so that patterns and tables need only one entry.
"""

from __future__ import annotations

import libcst as cst

from transpiler.tree import nodes_within

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
        "repeat_interleave",
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
    "repeat_interleave": ("repeats", "dim"),
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
# Functions of several tensors, in a list or a tuple.
JOINS = frozenset({"torch.cat", "torch.stack"})
ALIASES = {"torch.float": "torch.float32", "torch.concat": "torch.cat"}
# Methods that return the same numbers, whatever happens to memory.
IDENTITIES = frozenset({"contiguous", "clone", "detach"})
# Dots of an import of the Transformers package in `models/<name>/modeling_<name>.py`.
PACKAGE_LEVEL = 3
# Packages whose names keep their spelling.
ROOTS = frozenset({"collections", "math", "torch", "transformers", "typing"})
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

    Names of the Transformers package are without it: `from ...activations import
    ACT2FN` and `from transformers.activations import ACT2FN` are both
    `activations.ACT2FN`. A nearer relative import keeps its dots, and any other
    package but torch its place at the top, so that a file's own `activations` is not
    taken for Transformers'.
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
                    found[local] = origin(full if alias.evaluated_alias else local)
            elif isinstance(small, cst.ImportFrom) and not isinstance(
                small.names, cst.ImportStar
            ):
                module = (dotted(small.module) if small.module else "") or ""
                level = len(small.relative)
                dots = "" if level in (0, PACKAGE_LEVEL) else "." * level
                for alias in small.names:
                    name = dotted(alias.name) or ""
                    full = f"{module}.{name}".lstrip(".")
                    full = origin(full) if level == 0 else dots + full
                    found[alias.evaluated_alias or name] = full
    return found


def origin(full: str) -> str:
    """An absolute name as it is compared: Transformers left out, others marked."""
    root, _, rest = full.partition(".")
    if root == "transformers" and "." in rest:
        return rest
    return full if root in ROOTS else f"/{full}"


def is_configuration(full: str) -> bool:
    """Whether an imported name is a class of a model's configuration file."""
    module = full.rpartition(".")[0].rpartition(".")[2]
    near = full.startswith(".") or full.startswith("models.")
    return near and module.startswith("configuration_")


def resolve(name: str, imports: dict[str, str]) -> str:
    """Full dotted name: `F.relu` is `torch.nn.functional.relu`."""
    head, _, rest = name.partition(".")
    full = imports.get(head, head)
    whole = f"{full}.{rest}" if rest else full
    return ALIASES.get(whole, whole)


def assigned_names(block: cst.CSTNode) -> list[str]:
    """Names that a block binds, in order, each once."""
    found: dict[str, None] = {}

    def bind(target: cst.CSTNode) -> None:
        if isinstance(target, cst.Name):
            found[target.value] = None
        elif isinstance(target, cst.Tuple | cst.List):
            for element in target.elements:
                bind(element.value)

    kinds = (cst.AssignTarget, cst.AugAssign, cst.AnnAssign, cst.For, cst.NamedExpr)
    for node in nodes_within(block):
        if isinstance(node, kinds):
            bind(node.target)
    return list(found)
