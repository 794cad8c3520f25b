"""Step 1, read: a model name or path becomes the texts that the walk needs.

Nothing of the package that is read is imported or executed: the installed
Transformers is found by its package metadata and read as text.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import importlib.util
import os
import warnings
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from transpiler.refusal import BadInput

UPSTREAM_VERSION = "5.19.0"
MAX_BYTES = 400_000
MAX_DEPTH = 100
Renames = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Source:
    """One modeling file and what belongs to it.

    Attributes:
        name: The model's folder name, for example `llama`.
        path: The modeling file, relative to the package (`models/…/modeling_….py`).
        text: Its text.
        tree: Its syntax tree.
        configuration: The text of the configuration file, empty when there is none.
        conversion: Transformers' conversion mapping, of checkpoint tensors that it
            renames while loading: old and new patterns of an entry, None for an entry
            that does more.
        architectures: Classes that Transformers' auto class makes to generate text.
        version: Version of the Transformers package.
    """

    name: str
    path: str
    text: str
    tree: cst.Module
    configuration: str
    conversion: dict[str, Renames | None]
    architectures: frozenset[str]
    version: str

    @property
    def sha256(self) -> str:
        """Digest of the modeling file's bytes."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def licence(self) -> tuple[str, ...]:
        """The upstream copyright and licence comment, less any banner before it."""
        comments = [line.comment.value for line in self.tree.header if line.comment]
        start = next(
            (i for i, line in enumerate(comments) if "Copyright" in line), len(comments)
        )
        return tuple(comments[start:])

    @cached_property
    def positions(self) -> dict[cst.CSTNode, tuple[int, int]]:
        """Line and column (from 1) of every node of `tree`."""
        wrapper = MetadataWrapper(self.tree, unsafe_skip_copy=True)
        ranges = wrapper.resolve(PositionProvider)
        return {
            node: (where.start.line, where.start.column + 1)
            for node, where in ranges.items()
        }

    def where(self, node: cst.CSTNode | None) -> str:
        """`modeling_x.py:line:column` of an upstream node, for messages."""
        file = Path(self.path).name
        if node is None or node not in self.positions:
            return file
        line, column = self.positions[node]
        return f"{file}:{line}:{column}"


def read(model: str, root: Path | None = None) -> Source:
    """Read the modeling file of a model.

    Args:
        model: A model name such as `llama`, or a path to a modeling file.
        root: Folder of the Transformers package; found by itself when absent.

    Raises:
        BadInput: The package or the model is missing, or the file does not parse.
    """
    version = UPSTREAM_VERSION
    if root is None:
        root, version = find_transformers()
    if model.endswith(".py") or "/" in model:
        path = Path(model)
        name = path.stem.removeprefix("modeling_")
        shown = path.name
    else:
        path = root / "models" / model / f"modeling_{model}.py"
        name = model
        shown = f"models/{model}/modeling_{model}.py"
        if not os.path.isfile(path):  # False also for what is no name of a file
            raise BadInput(f"unknown model {model!r}{suggestion(model, root)}")
    text = read_text(path)
    configuration = path.with_name(f"configuration_{name}.py")
    return Source(
        name=name,
        path=shown,
        text=text,
        tree=parse(text, shown),
        configuration=read_text(configuration) if configuration.is_file() else "",
        conversion=conversion_entries(root),
        architectures=causal_classes(root),
        version=version,
    )


def find_transformers() -> tuple[Path, str]:
    """Folder and version of the installed Transformers package.

    Raises:
        BadInput: It is not installed, or is another version than the pinned one.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        raise BadInput(
            "transformers is not installed: "
            f"pip install --no-deps transformers=={UPSTREAM_VERSION}"
        )
    version = importlib.metadata.version("transformers")
    if version != UPSTREAM_VERSION:
        raise BadInput(
            f"transformers {version} is installed, but this transpiler reads only "
            f"{UPSTREAM_VERSION}: pip install --no-deps "
            f"transformers=={UPSTREAM_VERSION}"
        )
    return Path(spec.origin).parent, version


def suggestion(model: str, root: Path) -> str:
    """`: did you mean …?` with the nearest model names, or nothing."""
    names = sorted(path.parent.name for path in root.glob("models/*/modeling_*.py"))
    near = get_close_matches(model, names, n=3)
    return f": did you mean {', '.join(near)}?" if near else ""


def read_text(path: Path) -> str:
    """Text of a source file.

    Raises:
        BadInput: It cannot be read, is too large or is not UTF-8 text.
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", error)
        raise BadInput(f"cannot read {path}: {reason}") from None
    if len(data) > MAX_BYTES:
        raise BadInput(f"{path} has {len(data)} bytes, more than {MAX_BYTES}")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is not UTF-8 text: {error.reason}") from None


def parse(text: str, shown: str) -> cst.Module:
    """Syntax tree of a modeling file.

    Raises:
        BadInput: The text is not Python, or is nested too deep to be followed.
    """
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(text.removeprefix("\ufeff"), shown, "exec", dont_inherit=True)
        tree = cst.parse_module(text)
    except SyntaxError as error:
        where = f"{shown}:{error.lineno or 1}:{error.offset or 1}"
        raise BadInput(f"{where}: syntax error") from None
    except cst.ParserSyntaxError as error:
        raise BadInput(
            f"{shown}:{error.raw_line}:{error.raw_column + 1}: syntax error"
        ) from None
    except (MemoryError, RecursionError, ValueError) as error:
        raise BadInput(f"{shown}: {error or 'too complex to parse'}") from None
    if depth_of(tree) > MAX_DEPTH:
        raise BadInput(f"{shown}: code nested more than {MAX_DEPTH} levels deep")
    return tree


def depth_of(tree: cst.CSTNode) -> int:
    """Levels of a syntax tree."""
    level: list[cst.CSTNode] = [tree]
    depth = 0
    while level:
        level = [child for node in level for child in node.children]
        depth += 1
    return depth


def conversion_entries(root: Path) -> dict[str, Renames | None]:
    """Transformers' conversion mapping: by model type or class, what is renamed.

    Returns:
        Old and new patterns of each entry; None for an entry that is more than a list
        of renames.
    """
    path = root / "conversion_mapping.py"
    if not path.is_file():
        return {}
    found: dict[str, Renames | None] = {}
    for node in ast.walk(ast.parse(read_text(path))):
        if isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
        elif isinstance(node, ast.Assign | ast.AugAssign):
            target = node.target if isinstance(node, ast.AugAssign) else node.targets[0]
            if not isinstance(target, ast.Subscript):
                continue
            pairs = [(target.slice, node.value)]
        else:
            continue
        for key, value in pairs:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                twice = key.value in found
                found[key.value] = None if twice else renames_of(value)
    return found


def causal_classes(root: Path) -> frozenset[str]:
    """Classes of Transformers' mapping of causal language models."""
    path = root / "models" / "auto" / "modeling_auto.py"
    if not path.is_file():
        return frozenset()
    for node in ast.parse(read_text(path)).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        if ast.unparse(node.targets[0]) == "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES":
            pairs = [n for n in ast.walk(node.value) if isinstance(n, ast.Tuple)]
            return frozenset(ast.literal_eval(pair)[1] for pair in pairs)
    return frozenset()


def renames_of(node: ast.expr) -> Renames | None:
    """The renames of an entry, None when it is anything else."""
    if not isinstance(node, ast.List):
        return None
    found = []
    for item in node.elts:
        if not isinstance(item, ast.Call) or ast.unparse(item.func) != "WeightRenaming":
            return None
        given = [*item.args, *(keyword.value for keyword in item.keywords)]
        names = [keyword.arg for keyword in item.keywords]
        texts = [arg.value for arg in given if isinstance(arg, ast.Constant)]
        known = ["source_patterns", "target_patterns"][len(item.args) :]
        if len(texts) != 2 or len(given) != 2 or names != known:
            return None
        found.append((str(texts[0]), str(texts[1])))
    return tuple(found)
