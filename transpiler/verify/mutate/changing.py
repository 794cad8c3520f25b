"""Edits that change what upstream computes; `changes.py` is the list of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

import libcst as cst

from transpiler.tree import children, code, nodes_within
from transpiler.verify.mutate.draft import (
    Draft,
    NoPlace,
    assigned,
    constructor_of,
    is_tensor_made,
)


def tensor_values(draft: Draft) -> list[cst.BaseExpression]:
    """Values of the statements `a = …` of forwards that make activations."""
    found = [assigned(line) for _, _, line in draft.statements(draft.forwards())]
    return [p[1] for p in found if p and len(p[0]) == 1 and is_tensor_made(p[1])]


def edited_value(edit: Callable[[Draft, str], str]) -> Callable[[Draft], None]:
    """A mutation of one value of activations, by its text."""

    def apply(draft: Draft) -> None:
        node = draft.choose(tensor_values(draft))
        draft.replace_text(node, edit(draft, code(node)))

    return apply


def module_call(call: Callable[[Draft, str, str], str]) -> Callable[[Draft], None]:
    """A mutation of one call `self.x(y)`, by the texts of `x` and `y`."""

    def apply(draft: Draft) -> None:
        places = [
            node
            for forward in draft.forwards()
            for node in nodes_within(forward.body)
            if isinstance(node, cst.Call)
            and code(node.func).startswith("self.")
            and len(node.args) == 1
            and node.args[0].keyword is None
        ]
        node = draft.choose(places)
        text = call(draft, code(node.func), code(node.args[0].value))
        draft.replace_text(node, text)

    return apply


def texts(*pairs: tuple[str, str]) -> Callable[[Draft], None]:
    """A mutation that replaces one text of the file, everywhere."""

    def apply(draft: Draft) -> None:
        text = draft.tree.code
        old, new = draft.choose([(a, b) for a, b in pairs if a in text])
        draft.tree = cst.parse_module(text.replace(old, new))

    return apply


def one_text(*pairs: tuple[str, str]) -> Callable[[Draft], None]:
    """A mutation that replaces one occurrence of one text."""

    def apply(draft: Draft) -> None:
        text = draft.tree.code
        old, new = draft.choose([(a, b) for a, b in pairs if a in text])
        parts = text.split(old)
        place = draft.draw.randrange(1, len(parts))
        joined = old.join(parts[:place]) + new + old.join(parts[place:])
        draft.tree = cst.parse_module(joined)

    return apply


def between(lines: Sequence[str]) -> Callable[[Draft], None]:
    """A statement put before one that calls a module with a plain name."""

    def apply(draft: Draft) -> None:
        places = []
        for block, index, line in draft.statements(draft.forwards()):
            for node in nodes_within(line):
                if isinstance(node, cst.Call) and code(node.func).startswith("self."):
                    inputs = [
                        a.value for a in node.args if isinstance(a.value, cst.Name)
                    ]
                    places += [(block, index, i.value) for i in inputs[:1]]
        block, index, name = draft.choose([p for p in places if "position" not in p[2]])
        draft.insert(block, index, draft.choose(lines).replace("{x}", name))

    return apply


def read_again(draft: Draft) -> None:
    """Another reader of what a linear gives: it is added to itself, as a new call."""
    places = []
    for block, index, line in draft.statements(draft.forwards()):
        calls = [n for n in nodes_within(line) if isinstance(n, cst.Call)]
        pair = assigned(line)
        linear = any(code(call.func).endswith("_proj") for call in calls)
        if pair and linear and is_tensor_made(pair[1]) and len(pair[0]) == 1:
            places.append((block, index, next(iter(pair[0])), code(pair[1])))
    block, index, name, value = draft.choose(places)
    draft.insert(block, index + 1, f"{name} = {name} + 0.5 * {value}\n")


def drop(draft: Draft) -> None:
    """A statement of a forward left out."""
    places = [
        (block, line)
        for block, _, line in draft.statements(draft.forwards())
        if len(block.body) > 1 and (pair := assigned(line)) and is_tensor_made(pair[1])
    ]
    block, line = draft.choose(places)
    body = [item for item in block.body if item is not line]
    draft.replace(block, block.with_changes(body=body))


def scale_attribute(draft: Draft) -> None:
    """A number of a constructor another one."""
    places = []
    for cls in draft.classes():
        init = constructor_of(cls)
        for _, _, line in draft.statements([init] if init else []):
            pair = assigned(line)
            if pair and isinstance(pair[1], cst.BinaryOperation):
                places.append(pair[1])
    node = draft.choose(places)
    draft.replace_text(node, f"({code(node)}) * 2")


def add_child(draft: Draft) -> None:
    """A linear more, whose output is added to what a class returns."""
    places = [
        c for c in draft.classes() if constructor_of(c) and "down_proj" in code(c)
    ]
    cls = draft.choose(places)
    text = code(cls)
    marks = ("        return down_proj\n", "        self.act_fn =")
    if any(mark not in text for mark in marks):
        raise NoPlace
    size = "config.hidden_size"
    made = f"        self.more = nn.Linear({size}, {size}, bias=False)\n{marks[1]}"
    text = text.replace(marks[0], "        return down_proj + self.more(x)\n")
    draft.replace(cls, cst.parse_statement(text.replace(marks[1], made).strip() + "\n"))


def swap_arguments(draft: Draft) -> None:
    """Two operands of a call, made alike, in each other's place."""
    places = []
    for function in [*draft.forwards(), *draft.functions()]:
        alike = made_alike(draft, function)
        for node in nodes_within(function.body):
            if isinstance(node, cst.Call) and not code(node.func).startswith("past"):
                plain = [a.value for a in node.args if a.keyword is None and not a.star]
                pairs = combinations((p for p in plain if isinstance(p, cst.Name)), 2)
                places += [
                    (node, one, two)
                    for one, two in pairs
                    if any({one.value, two.value} <= names for names in alike)
                ]
    node, one, two = draft.choose(places)
    other: dict[cst.BaseExpression, cst.Name] = {one: two, two: one}
    args = [a.with_changes(value=other.get(a.value, a.value)) for a in node.args]
    draft.replace(node, node.with_changes(args=args))


def made_alike(draft: Draft, function: cst.FunctionDef) -> list[set[str]]:
    """Names that a function binds at once, or by the same code with other modules."""
    found: dict[str, set[str]] = {}
    for _, _, line in draft.statements([function]):
        pair = assigned(line)
        if pair is not None and ".shape" not in code(pair[1]):
            made = re.sub(r"self\.\w+", "self.…", code(pair[1]))
            found.setdefault(made, set()).update(pair[0])
    return list(found.values())


def change_number(draft: Draft) -> None:
    """A number of a forward or a function another one; axes from the end stay."""
    places = [
        node
        for place in [*draft.forwards(), *draft.functions()]
        for node in numbers_within(place.body)
    ]
    node = draft.choose(places)
    draft.replace(node, cst.parse_expression(f"({code(node)} + 1)"))


def numbers_within(node: cst.CSTNode) -> Iterator[cst.Integer | cst.Float]:
    """Numbers that a mutant may add one to and still run."""
    if isinstance(node, cst.Integer | cst.Float):
        yield node
    bound = isinstance(node, cst.UnaryOperation | cst.SubscriptElement) or (
        isinstance(node, cst.BinaryOperation)
        and isinstance(node.operator, cst.FloorDivide)
    )
    for child in () if bound else children(node):
        yield from numbers_within(child)


def swap_sign(draft: Draft) -> None:
    """A sum a difference, or a product a quotient."""
    kinds = {cst.Add: cst.Subtract, cst.Multiply: cst.Divide}
    places = [
        node
        for place in [*draft.forwards(), *draft.functions()]
        for node in nodes_within(place.body)
        if isinstance(node, cst.BinaryOperation) and type(node.operator) in kinds
    ]
    node = draft.choose(places)
    operator = kinds[type(node.operator)]()
    draft.replace(node, node.with_changes(operator=operator))


def flip_test(draft: Draft) -> None:
    """The condition of an attention's own window turned round."""
    places = [
        node.test
        for cls in draft.classes()
        for node in nodes_within(cls)
        if isinstance(node, cst.IfExp)
        and ("layer_type" in code(node.test) or "sliding" in code(node.test))
    ]
    node = draft.choose(places)
    draft.replace_text(node, f"not ({code(node)})")
