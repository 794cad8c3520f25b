"""Mutations that keep upstream's numbers: the same model in another spelling."""

from __future__ import annotations

import libcst as cst

from transpiler.tree import code, nodes_within
from transpiler.verify.mutate.draft import (
    BOUND_CALLS,
    Draft,
    Mutation,
    NoPlace,
    assigned,
    constructor_of,
    is_tensor_made,
    methods_of,
    names_in,
    operands,
)

NEW = "_renamed"


class Rename(cst.CSTTransformer):
    """Gives names another spelling; attributes and keywords stay."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.Name:
        """Rewrite one name."""
        new = self.names.get(original_node.value, original_node.value)
        return updated_node.with_changes(value=new)

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        """Rewrite one attribute."""
        return updated_node.with_changes(attr=original_node.attr)

    def leave_Arg(self, original_node: cst.Arg, updated_node: cst.Arg) -> cst.Arg:
        """Rewrite one arg."""
        return updated_node.with_changes(keyword=original_node.keyword)


class RenameAttributes(cst.CSTTransformer):
    """Gives attributes of `self` other names, all at once."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def leave_Attribute(
        self, original_node: cst.Attribute, updated_node: cst.Attribute
    ) -> cst.Attribute:
        """Rewrite one attribute."""
        if code(original_node.value) != "self":
            return updated_node
        old = original_node.attr.value
        return updated_node.with_changes(attr=cst.Name(self.names.get(old, old)))


def visited(node: cst.CSTNode, visitor: cst.CSTTransformer) -> cst.CSTNode:
    """A node rewritten by a transformer."""
    new = node.visit(visitor)
    if not isinstance(new, cst.CSTNode):
        raise AssertionError("a node stays one")
    return new


def rename_local(draft: Draft) -> None:
    """A local name of a function."""
    function = draft.choose([*draft.forwards(), *draft.functions()])
    taken = {p.name.value for p in function.params.params} | {"self", "kwargs"}
    found = [assigned(line) for _, _, line in draft.statements([function])]
    names = sorted({n for pair in found if pair for n in pair[0] if "." not in n})
    name = draft.choose([n for n in names if n not in taken])
    draft.replace(function, visited(function, Rename({name: name + NEW})))


def rename_attribute(draft: Draft) -> None:
    """An attribute of a class that nothing else names."""
    cls = draft.choose([c for c in draft.classes() if constructor_of(c)])
    init = constructor_of(cls)
    found = [assigned(line) for _, _, line in draft.statements([init] if init else [])]
    names = {n[5:] for pair in found if pair for n in pair[0] if n.startswith("self.")}
    outside = {
        node.attr.value
        for node in nodes_within(draft.tree)
        if isinstance(node, cst.Attribute) and code(node.value) != "self"
    }
    texts = "".join(
        node.value for node in nodes_within(cls) if isinstance(node, cst.SimpleString)
    )
    last = code(draft.classes()[-1])
    fixed = {"config", "gradient_checkpointing", "is_causal", "layers"}
    name = draft.choose(
        sorted(n for n in names - outside - fixed if n not in texts + last)
    )
    draft.renamed[name + NEW] = name
    draft.replace(cls, visited(cls, RenameAttributes({name: name + NEW})))


def rename_class(draft: Draft) -> None:
    """A class, wherever it is named."""
    cls = draft.choose([c for c in draft.classes()[:-1] if "PreTrained" not in code(c)])
    name = cls.name.value
    draft.replace(draft.tree, visited(draft.tree, Rename({name: name + "Renamed"})))


def rename_function(draft: Draft) -> None:
    """A function of the file, wherever it is named."""
    name = draft.choose(draft.functions()).name.value
    draft.replace(draft.tree, visited(draft.tree, Rename({name: name + NEW})))


def rename_projections(draft: Draft) -> None:
    """Two linears of a class called by each other's name."""
    places = []
    for cls in draft.classes()[:-1]:
        init = constructor_of(cls)
        lines = draft.statements([init] if init else [])
        pairs = [pair for _, _, line in lines if (pair := assigned(line))]
        linears = [n[5:] for (n, *_), v in pairs if code(v).startswith("nn.Linear")]
        if len(linears) > 1:
            places.append((cls, linears))
    cls, linears = draft.choose(places)
    one, two = draft.draw.sample(linears, 2)
    draft.renamed |= {one: two, two: one}
    draft.replace(cls, visited(cls, RenameAttributes({one: two, two: one})))


def reorder(draft: Draft) -> None:
    """Two statements next to each other, neither of which needs the other."""
    methods = [m for cls in draft.classes() for m in methods_of(cls)]
    places = []
    for block, index, line in draft.statements([*methods, *draft.functions()]):
        other = block.body[index + 1] if index + 1 < len(block.body) else None
        one, two = assigned(line), assigned(other) if other is not None else None
        if one is None or two is None or other is None:
            continue
        if any(word in code(line) + code(other) for word in BOUND_CALLS):
            continue
        if not (one[0] & (two[0] | names_in(two[1])) or two[0] & names_in(one[1])):
            places.append((block, index))
    block, index = draft.choose(places)
    body = list(block.body)
    body[index], body[index + 1] = body[index + 1], body[index]
    draft.replace(block, block.with_changes(body=body))


def swap_operands(draft: Draft) -> None:
    """The operands of a sum or a product."""
    places = [
        node
        for function in [*draft.forwards(), *draft.functions()]
        for node in nodes_within(function.body)
        if isinstance(node, cst.BinaryOperation)
        and isinstance(node.operator, cst.Add | cst.Multiply)
    ]
    node = draft.choose(places)
    sign = "+" if isinstance(node.operator, cst.Add) else "*"
    draft.replace_text(node, f"({code(node.right)}) {sign} ({code(node.left)})")


def split(draft: Draft) -> None:
    """A part of an expression under a name of its own."""
    places = [
        (block, index, part)
        for block, index, line in draft.statements(draft.forwards())
        if isinstance(line.body[0], cst.Assign | cst.Return)
        for part in operands(line)
        if part is not getattr(line.body[0], "value", None) and is_tensor_made(part)
    ]
    block, index, part = draft.choose(places)
    new = block.deep_replace(part, cst.Name("part"))
    if not isinstance(new, cst.IndentedBlock):
        raise AssertionError("a block stays one")
    line = cst.parse_statement(f"part = {code(part)}")
    body = [*new.body[:index], line, *new.body[index:]]
    draft.replace(block, new.with_changes(body=body))


def inline(draft: Draft) -> None:
    """A name that only the next statement reads, written out there."""
    places = []
    for function in draft.forwards():
        for block, index, line in draft.statements([function]):
            pair = assigned(line)
            after = block.body[index + 1 :]
            if pair is None or len(pair[0]) != 1 or not after:
                continue
            (name,) = pair[0]
            reads = [
                node
                for later in after
                for node in nodes_within(later)
                if isinstance(node, cst.Name) and node.value == name
            ]
            first = assigned(after[0])
            is_plain = "." not in name and is_tensor_made(pair[1])
            if is_plain and first and name in names_in(first[1]):
                own = [n for n in nodes_within(first[1]) if n in reads]
                bound_again = name in first[0] and len(own) == 1
                if len(reads) == 1 or bound_again:
                    places.append((block, index, own[0], pair[1]))
    block, index, read, value = draft.choose(places)
    inner = cst.parse_expression(f"({code(value)})")
    new = block.deep_replace(read, inner)
    if not isinstance(new, cst.IndentedBlock):
        raise AssertionError("a block stays one")
    body = [*new.body[:index], *new.body[index + 1 :]]
    draft.replace(block, new.with_changes(body=body))


def signatures(draft: Draft) -> dict[str, list[str]]:
    """Parameters by what a call names: functions, classes, the layer in its loop."""
    found = {
        f.name.value: [p.name.value for p in f.params.params] for f in draft.functions()
    }
    for cls in draft.classes():
        init = constructor_of(cls)
        if init is not None:
            names = [p.name.value for p in init.params.params[1:]]
            found[cls.name.value] = names
    for forward in draft.forwards():
        names = [p.name.value for p in forward.params.params[1:]]
        if "position_embeddings" in names and names[0] == "hidden_states":
            found.setdefault("decoder_layer", names)
    return found


def calls(draft: Draft) -> list[tuple[cst.Call, int, list[str]]]:
    """Calls on the path with their number of positional operands and parameters."""
    known = signatures(draft)
    found = []
    for place in [*draft.classes(), *draft.functions()]:
        for node in nodes_within(place):
            if isinstance(node, cst.Call) and isinstance(node.func, cst.Name):
                plain = [a for a in node.args if a.keyword is None and not a.star]
                names = known.get(node.func.value)
                if names and node.args[: len(plain)] == (*plain,):
                    found.append((node, len(plain), names))
    return found


def to_keyword(draft: Draft) -> None:
    """The last positional argument of a call by its keyword."""
    places = [
        (node.args[count - 1], names[count - 1])
        for node, count, names in calls(draft)
        if 0 < count <= len(names)
    ]
    arg, name = draft.choose(places)
    equal = cst.AssignEqual(
        whitespace_before=cst.SimpleWhitespace(""),
        whitespace_after=cst.SimpleWhitespace(""),
    )
    draft.replace(arg, arg.with_changes(keyword=cst.Name(name), equal=equal))


def to_positional(draft: Draft) -> None:
    """A keyword that comes next in the signature by its position."""
    places = [
        node.args[count]
        for node, count, names in calls(draft)
        if count < min(len(names), len(node.args))
        and (keyword := node.args[count].keyword)
        and keyword.value == names[count]
    ]
    arg = draft.choose(places)
    equal = cst.MaybeSentinel.DEFAULT
    draft.replace(arg, arg.with_changes(keyword=None, equal=equal))


def guard(draft: Draft) -> None:
    """A statement moved into a branch that is always taken when serving."""
    places = [
        line
        for _, _, line in draft.statements(draft.forwards())
        if (pair := assigned(line)) and is_tensor_made(pair[1])
    ]
    line = draft.choose(places)
    bare = line.with_changes(leading_lines=[])
    test = draft.choose(["not self.training", "True"])
    text = f"if {test}:\n    {code(bare).strip()}\n"
    draft.replace(line, cst.parse_statement(text))


def parenthesise(draft: Draft) -> None:
    """An expression in brackets."""
    places = [
        p for _, _, line in draft.statements(draft.forwards()) for p in operands(line)
    ]
    node = draft.choose(places)
    draft.replace_text(node, code(node))


def comment(draft: Draft) -> None:
    """A comment and a blank line before a statement."""
    _, _, line = draft.choose(draft.statements(draft.forwards()))
    lines = [cst.EmptyLine(), cst.EmptyLine(comment=cst.Comment("# said here"))]
    draft.replace(line, line.with_changes(leading_lines=lines))


def spelled(name: str, *pairs: tuple[str, str]) -> Mutation:
    """A mutation that writes one text of the file in another way."""

    def apply(draft: Draft) -> None:
        text = draft.tree.code
        old, new = draft.choose([(a, b) for a, b in pairs if a in text])
        draft.tree = cst.parse_module(text.replace(old, new))

    return Mutation(name, True, apply)


def alias_functional(draft: Draft) -> None:
    """`F` for `nn.functional`."""
    text = draft.tree.code
    if "nn.functional." not in text:
        raise NoPlace
    text = text.replace("nn.functional.", "F.")
    text = text.replace(
        "from torch import nn\n",
        "from torch import nn\nimport torch.nn.functional as F\n",
        1,
    )
    draft.tree = cst.parse_module(text)


def extract(draft: Draft) -> None:
    """A part of a forward in a method of its own."""
    places = []
    for cls in draft.classes()[:-1]:
        for forward in methods_of(cls):
            if forward.name.value == "forward":
                places += [
                    (cls, forward, part)
                    for _, _, line in draft.statements([forward])
                    for part in operands(line)
                    if is_tensor_made(part) and "kwargs" not in code(part)
                ]
    cls, forward, part = draft.choose(places)
    local = {p.name.value for p in forward.params.params} | {
        name
        for _, _, line in draft.statements([forward])
        for name in (assigned(line) or (set(),))[0]
    }
    taken = sorted((names_in(part) & local) - {"self"})
    method = cst.parse_statement(
        f"def extracted(self, {', '.join(taken)}):\n    return {code(part)}\n"
    )
    call = cst.parse_expression(f"self.extracted({', '.join(taken)})")
    new = cls.deep_replace(part, call)
    if not isinstance(new, cst.ClassDef):
        raise AssertionError("a class stays one")
    body = new.body.with_changes(body=[*new.body.body, method])
    draft.replace(cls, new.with_changes(body=body))


KEEPING: tuple[Mutation, ...] = (
    Mutation("rename-local", True, rename_local),
    Mutation("rename-attribute", True, rename_attribute),
    Mutation("rename-class", True, rename_class),
    Mutation("rename-function", True, rename_function),
    Mutation("rename-projections", True, rename_projections),
    Mutation("reorder", True, reorder),
    Mutation("swap-operands", True, swap_operands),
    Mutation("split", True, split),
    Mutation("inline", True, inline),
    Mutation("to-keyword", True, to_keyword),
    Mutation("to-positional", True, to_positional),
    Mutation("guard", True, guard),
    Mutation("parenthesise", True, parenthesise),
    Mutation("comment", True, comment),
    Mutation("alias-functional", True, alias_functional),
    Mutation("extract-method", True, extract),
    spelled(
        "spell-view",
        (".view(hidden_shape)", ".reshape(hidden_shape)"),
        (".view(hidden_shape)", ".view(*input_shape, -1, self.head_dim)"),
        ("attn_output.reshape(*input_shape, -1)", "attn_output.view(*input_shape, -1)"),
    ),
    spelled(
        "spell-norm",
        ("hidden_states.pow(2)", "(hidden_states * hidden_states)"),
        ("hidden_states.pow(2)", "torch.square(hidden_states)"),
        ("hidden_states.to(torch.float32)", "hidden_states.float()"),
        (".mean(-1, keepdim=True)", ".mean(dim=-1, keepdim=True)"),
    ),
    spelled(
        "spell-rotary",
        ("torch.cat((-x2, x1), dim=-1)", "torch.cat([-x2, x1], -1)"),
        ("torch.cat((freqs, freqs), dim=-1)", "torch.cat([freqs, freqs], dim=-1)"),
        ("(q * cos) + (rotate_half(q) * sin)", "rotate_half(q) * sin + q * cos"),
        ("x.shape[-1] // 2", "x.size(-1) // 2"),
    ),
)
