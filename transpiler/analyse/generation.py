"""Generation: what a class may do to the inputs that `generate` prepares.

vLLM makes the inputs of a forward itself. `prepare_inputs_for_generation` says nothing
else of them when it hands its own on to Transformers', gives up a cache, or leaves out
what its forward makes for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from transpiler.tree import code, nodes_within

METHOD = "prepare_inputs_for_generation"
# Inputs of a forward that say which tokens it computes, and where.
INPUTS = frozenset({"input_ids", "inputs_embeds", "position_ids", "attention_mask"})

QUESTIONS = frozenset({"hasattr", "len", "past_key_values.get_seq_length"})


def hands_on(method: cst.FunctionDef) -> bool:
    """Whether a `prepare_inputs_for_generation` hands its inputs on as they are."""
    parameters = [parameter.name.value for parameter in method.params.params][1:]
    made = {
        code(node.targets[0].target)
        for line in method.body.body
        if isinstance(line, cst.SimpleStatementLine)
        for node in line.body
        if isinstance(node, cst.Assign) and is_plain_call(node.value, parameters)
    }
    return are_plain(method.body.body, parameters, made - set(parameters))


def are_plain(
    body: Sequence[cst.CSTNode], parameters: list[str], made: set[str]
) -> bool:
    """Whether statements do nothing to the inputs."""
    for line in body:
        if isinstance(line, cst.If):
            sides: list[Sequence[cst.CSTNode]] = [line.body.body]
            if isinstance(line.orelse, cst.Else):
                sides.append(line.orelse.body.body)
            elif line.orelse is not None:
                sides.append([line.orelse])
            plain = [are_plain(side, parameters, made) for side in sides]
            if not all(plain) or not only_asks(line.test):
                return False
        elif not isinstance(line, cst.SimpleStatementLine) or not all(
            is_plain(small, parameters, made) for small in line.body
        ):
            return False
    return True


def is_plain(
    node: cst.BaseSmallStatement, parameters: list[str], made: set[str]
) -> bool:
    """Whether one statement does nothing to the inputs."""
    match node:
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString()):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            if name in made:
                return is_plain_call(node.value, parameters)
            if name in parameters:
                return code(node) == "past_key_values = None"
            return only_asks(node.value)
        case cst.Expr(value=cst.Call(func=cst.Attribute(attr=cst.Name("pop")))):
            call = cst.ensure_type(node.value, cst.Call)
            given = code(call.args[0].value).strip("\"'") if call.args else ""
            return (
                code(cst.ensure_type(call.func, cst.Attribute).value) in made
                and isinstance(call.args[0].value, cst.SimpleString)
                and given not in INPUTS
            )
        case cst.Return(value=cst.Name(value=name)):
            return name in made
        case cst.Return(value=cst.Call()):
            return is_plain_call(node.value, parameters)
    return False


def only_asks(node: cst.CSTNode) -> bool:
    """Whether an expression computes a value and nothing else."""
    calls = [n for n in nodes_within(node) if isinstance(n, cst.Call)]
    bound = any(isinstance(n, cst.NamedExpr) for n in nodes_within(node))
    return not bound and all(code(call.func) in QUESTIONS for call in calls)


def is_plain_call(node: cst.CSTNode | None, parameters: list[str]) -> bool:
    """Whether a call of Transformers' method gives each input under its own name."""
    if not isinstance(node, cst.Call) or code(node.func) != f"super().{METHOD}":
        return False
    for place, arg in enumerate(node.args):
        name = code(arg.value)
        if arg.star == "**":
            continue
        wanted = [arg.keyword.value] if arg.keyword else parameters[place : place + 1]
        if arg.star or name not in parameters or [name] != wanted:
            return False
    return True
