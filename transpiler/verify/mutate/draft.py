"""A modeling file that is being mutated, and the places where a mutation may act."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

from transpiler.tree import children, code, nodes_within, plain_names

T = TypeVar("T")
Function = cst.FunctionDef
# Calls whose order or number is not free.
BOUND_CALLS = ("super()", "post_init", ".update(", "get_interface", "DynamicCache")


class NoPlace(Exception):
    """The file has no place where the mutation could act."""


@dataclass(frozen=True)
class Mutation:
    """One kind of small edit.

    Attributes:
        name: What it does, in words joined by hyphens.
        keeps: Whether upstream computes the same numbers afterwards.
        apply: Edits a draft, or raises `NoPlace`.
        is_refused: Whether it must be refused, though upstream's numbers stay.
    """

    name: str
    keeps: bool
    apply: Callable[[Draft], None]
    is_refused: bool = False


@dataclass
class Draft:
    """A tree with a source of choices.

    Attributes:
        tree: The file so far.
        draw: Where choices come from.
        renamed: Attributes by their new name, with the name that they had.
    """

    tree: cst.Module
    draw: random.Random
    renamed: dict[str, str] = field(default_factory=dict)

    def choose(self, places: Sequence[T]) -> T:
        """One of these places."""
        if not places:
            raise NoPlace
        return self.draw.choice(places)

    def replace(self, old: cst.CSTNode, new: cst.CSTNode) -> None:
        """Put one node in the place of another."""
        tree = self.tree.deep_replace(old, new)
        if not isinstance(tree, cst.Module):
            raise AssertionError("a module stays one")
        self.tree = tree

    def replace_text(self, old: cst.BaseExpression, text: str) -> None:
        """Put an expression in the place of another, in brackets of its own."""
        self.replace(old, cst.parse_expression(f"({text})"))

    def classes(self) -> list[cst.ClassDef]:
        """The classes that the generating class is made of."""
        known = {n.name.value: n for n in self.tree.body if isinstance(n, cst.ClassDef)}
        start = [n for n, c in known.items() if "GenerationMixin" in bases_of(c)]
        return [known[name] for name in closure(start, known) if name in known]

    def functions(self) -> list[Function]:
        """Functions of the file that those classes use."""
        known = {n.name.value: n for n in self.tree.body if isinstance(n, Function)}
        places = [*self.classes(), *known.values()]
        used = {
            node.value
            for place in places
            for node in nodes_within(place)
            if isinstance(node, cst.Name)
        }
        return [function for name, function in known.items() if name in used]

    def forwards(self) -> list[Function]:
        """The forwards of those classes, the generating one's and tables' aside."""
        found = []
        for cls in self.classes():
            if "GenerationMixin" not in bases_of(cls):
                found += [m for m in methods_of(cls) if m.name.value == "forward"]
        return found

    def blocks(self, functions: Sequence[Function]) -> list[cst.IndentedBlock]:
        """Every block of statements in these functions."""
        return [
            node
            for function in functions
            for node in nodes_within(function.body)
            if isinstance(node, cst.IndentedBlock)
        ]

    def statements(
        self, functions: Sequence[Function]
    ) -> list[tuple[cst.IndentedBlock, int, cst.SimpleStatementLine]]:
        """Simple statements with their block and place, texts aside."""
        return [
            (block, index, line)
            for block in self.blocks(functions)
            for index, line in enumerate(block.body)
            if isinstance(line, cst.SimpleStatementLine)
            and not isinstance(getattr(line.body[0], "value", None), cst.SimpleString)
        ]

    def insert(self, block: cst.IndentedBlock, index: int, text: str) -> None:
        """Put a statement before the one at a place of a block."""
        line = cst.parse_statement(text)
        body = [*block.body[:index], line, *block.body[index:]]
        self.replace(block, block.with_changes(body=body))


def bases_of(cls: cst.ClassDef) -> list[str]:
    """The bases of a class as written."""
    return [code(base.value) for base in cls.bases]


def methods_of(cls: cst.ClassDef) -> list[Function]:
    """The methods of a class."""
    return [item for item in cls.body.body if isinstance(item, Function)]


def constructor_of(cls: cst.ClassDef) -> Function | None:
    """The constructor of a class."""
    found = [m for m in methods_of(cls) if m.name.value == "__init__"]
    return found[0] if found else None


def closure(start: list[str], known: dict[str, cst.ClassDef]) -> list[str]:
    """Names reached from these through the names that classes use, in file order."""
    reached: set[str] = set()
    waiting = list(start)
    while waiting:
        name = waiting.pop()
        if name in known and name not in reached:
            reached.add(name)
            waiting += [
                n.value for n in nodes_within(known[name]) if isinstance(n, cst.Name)
            ]
    return [name for name in known if name in reached]


def names_in(node: cst.CSTNode) -> set[str]:
    """Names and `self.x` attributes that a piece of code mentions."""
    found = {name.value for name in plain_names(node)}
    for inner in nodes_within(node):
        if isinstance(inner, cst.Attribute) and code(inner.value) == "self":
            found.add(f"self.{inner.attr.value}")
    return found - {"self"}


def assigned(line: cst.CSTNode) -> tuple[set[str], cst.BaseExpression] | None:
    """What a statement `a = …`, `self.a = …` or `a, b = …` binds, and its value."""
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return None
    small = line.body[0]
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    target = small.targets[0].target
    parts: list[cst.BaseExpression] = [target]
    if isinstance(target, cst.Tuple):
        parts = [element.value for element in target.elements]
    if not all(isinstance(part, cst.Name | cst.Attribute) for part in parts):
        return None
    return {code(part) for part in parts}, small.value


def operands(node: cst.CSTNode) -> Iterator[cst.BaseExpression]:
    """Calls and arithmetic within a statement that are always evaluated, once."""
    free = (cst.IfExp, cst.BooleanOperation, cst.Lambda, cst.BaseComp, cst.Annotation)
    for child in children(node):
        if isinstance(child, free):
            continue
        if isinstance(child, cst.Call | cst.BinaryOperation):
            yield child
        yield from operands(child)


def is_tensor_made(value: cst.BaseExpression) -> bool:
    """Whether an expression looks like activations: a module's call, arithmetic."""
    text = code(value)
    others = (
        ".shape",
        "arange",
        "get_seq_length",
        "get_interface",
        "mask",
        *BOUND_CALLS,
    )
    if any(word in text for word in others):
        return False
    return isinstance(value, cst.BinaryOperation) or text.startswith("self.")
