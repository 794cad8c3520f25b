"""The config fields that a family's upstream classes read, found in their text.

It is read apart from the walk, so that a field which the walk overlooks is still tried.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from transpiler.read import read

# Fields that no number depends on when serving.
UNSEEN = re.compile(
    r"_attn_implementation|return_dict|use_(return_dict|cache)|output_.*"
)


@dataclass(frozen=True)
class Field:
    """A field of a configuration class.

    Attributes:
        name: Its name.
        types: Names of the types that it may have, `None` among them.
        default: Its default, None where that is not written as a literal.
    """

    name: str
    types: frozenset[str]
    default: object


@cache
def fields_read(model: str, architecture: str) -> frozenset[str]:
    """Fields that the classes of a model read, or that its configuration derives from.

    They have the names under which they are read, which may be other names of fields.

    Args:
        model: Upstream's name of the model.
        architecture: The class from which the others are reached, by name.
    """
    source = read(model)
    tree = ast.parse(source.text)
    known = {
        node.name: node
        for node in tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }
    reached: set[str] = set()
    waiting = [architecture]
    while waiting:
        name = waiting.pop()
        if name in known and name not in reached:
            reached.add(name)
            nodes = ast.walk(known[name])
            waiting += [node.id for node in nodes if isinstance(node, ast.Name)]
    found = {field for name in reached for field in config_reads(known[name])}
    for node in ast.walk(ast.parse(source.configuration)):
        if isinstance(node, ast.FunctionDef) and node.name == "__post_init__":
            found |= set(attributes_of(node, "self"))
    return frozenset(field for field in found if not UNSEEN.fullmatch(field))


def config_reads(node: ast.AST) -> Iterator[str]:
    """Fields that a piece of code reads of a `config`, or asks for by `getattr`."""
    yield from attributes_of(node, "config")
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "getattr":
            owner, name = call.args[:2]
            is_config = ast.unparse(owner).rpartition(".")[2] == "config"
            if is_config and isinstance(name, ast.Constant):
                yield str(name.value)


def attributes_of(node: ast.AST, owner: str) -> Iterator[str]:
    """Attributes that code reads of a name, or of an attribute of that name."""
    for inner in ast.walk(node):
        if (
            isinstance(inner, ast.Attribute)
            and isinstance(inner.ctx, ast.Load)
            and ast.unparse(inner.value).rpartition(".")[2] == owner
        ):
            yield inner.attr


@cache
def fields_of(model: str, model_type: str) -> dict[str, Field]:
    """The annotated fields of the configuration class of a model type, by name."""
    found: dict[str, Field] = {}
    for owner in reversed(configurations(model, model_type)):
        for line in owner.body:
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                found[line.target.id] = field_of(line.target.id, line)
    return found


@cache
def configurations(model: str, model_type: str) -> list[ast.ClassDef]:
    """The configuration class of a model type, and its bases in the same file."""
    tree = ast.parse(read(model).configuration)
    known = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    said = f"model_type = {model_type!r}"
    (cls,) = (c for c in known.values() if said in map(ast.unparse, c.body))
    return [cls, *bases_of(cls, known)]


def bases_of(
    cls: ast.ClassDef, known: dict[str, ast.ClassDef]
) -> Iterator[ast.ClassDef]:
    """The bases of a class that stand in the same file, nearest first."""
    for base in cls.bases:
        if (found := known.get(ast.unparse(base))) is not None:
            yield found
            yield from bases_of(found, known)


def field_of(name: str, line: ast.AnnAssign) -> Field:
    """A field from its annotated line."""
    types = frozenset(t.strip() for t in ast.unparse(line.annotation).split(" | "))
    value = line.value
    # `interval(min=0.0, max=1.0)(default=0.02)`
    if isinstance(value, ast.Call):
        given = [k.value for k in value.keywords if k.arg == "default"]
        value = given[0] if given else None
    try:
        default = ast.literal_eval(value) if value is not None else None
    except ValueError:
        default = None
    return Field(name, types, default)


@cache
def attribute_map(model: str, model_type: str) -> dict[str, str]:
    """Fields by the other names that they have: `n_embd` for `hidden_size`."""
    lines = (n for owner in configurations(model, model_type) for n in owner.body)
    said = [
        line.value
        for line in lines
        if isinstance(line, ast.Assign)
        and ast.unparse(line.targets[0]) == "attribute_map"
    ]
    return dict(ast.literal_eval(said[0])) if said else {}


def is_validated(model: str, model_type: str) -> bool:
    """Whether a configuration class refuses sizes that do not fit each other."""
    return any(
        isinstance(line, ast.FunctionDef) and line.name == "validate_architecture"
        for owner in configurations(model, model_type)
        for line in owner.body
    )
