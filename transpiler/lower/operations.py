"""Operations: what may stay in a forward as upstream wrote it.

Flat tokens change the meaning of every operation that names an axis, and a write in
place may reach what another statement reads. So what is left as it was must be on a
list: module calls, element by element arithmetic, and what the lowerings made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst

from transpiler.analyse.flow import Flow
from transpiler.analyse.names import assigned_names
from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value, is_const
from transpiler.emit.imports import ORIGINS
from transpiler.fusions.fusion import Work, forward_of, linear_of, users_of
from transpiler.refusal import Refused
from transpiler.rewrite import names_read
from transpiler.tree import (
    children,
    code,
    nodes_within,
    plain_names,
    statements_within,
)

# Functions and methods that work on each element alone.
ELEMENTWISE = frozenset(
    {
        "abs",
        "clamp",
        "exp",
        "gelu",
        "neg",
        "relu",
        "rsqrt",
        "sigmoid",
        "silu",
        "softplus",
        "sqrt",
        "tanh",
        "to",
    }
)
ARITHMETIC = frozenset({"+", "-", "*", "/", "**", "//", "%"})
OPERATIONS = (cst.Call, cst.Subscript, cst.BinaryOperation, cst.Attribute)
TENSORS = frozenset(
    {"carried", "item", "looped", "module", "param", "positions", "tokens?", "written"}
)
# Names that generated functions bind or read for themselves.
RESERVED = frozenset(
    {
        "aux_hidden_states",
        "intermediate_tensors",
        "positions",
        "prefix",
        "remote_aux",
        "vllm_config",
        *ORIGINS,
    }
)
# Results that are no tensors: sizes, settings, callables.
SETTINGS = frozenset({"getattr", "slice"})


def check_stated(work: Work, scope: Scope) -> None:
    """Refuse a class whose forward writes in place or whose constructor does more.

    Raises:
        Refused: [method-call] for a method that was not inlined; [child] for a module
            that may be an identity, norms of a layer aside;
            [writes-in-place]; [stateful] for a forward that sets an attribute;
            [parameter] for a parameter or tensor of a class
            that no table describes; [name-taken] for a class with a name that the
            output needs; and what the constructor refuses.
    """
    if scope.name in RESERVED:
        raise Refused("name-taken", f"{scope.name} is of the output", scope.cls.node)
    for call in forward_of(scope).calls:
        name = code(call.func).removeprefix("self.")
        if code(call.func).startswith("self.") and name in scope.cls.methods:
            raise Refused(
                "method-call", f"self.{name} is called and not followed", call
            )
    for _, node in forward_of(scope).writes:
        raise Refused("writes-in-place", "a value is written in place", node)
    for value, call in forward_of(scope).alone:
        if linear_of(scope, value) is None:
            raise Refused("writes-in-place", "what is written may be shared", call)
    for name, (_, node) in forward_of(scope).assigned.items():
        raise Refused("stateful", f"the forward sets self.{name}", node)
    for child in scope.children.values():
        is_inner = not any(other.many for other in scope.children.values())
        if child.choice and not (child.kind in work.norms and is_inner):
            raise Refused("child", f"self.{child.name} may be an identity", child.call)
    for name, (value, node) in scope.init.assigned.items():
        for part in value.walk() if name not in scope.children else ():
            if part.op == "call" and part.name.startswith("torch."):
                made = part.name.removeprefix("torch.")
                reason = f"{scope.name} is in no table and holds self.{name}, a {made}"
                raise Refused("parameter", reason, node)
    check_constructor(work, scope)


def check_constructor(work: Work, scope: Scope) -> None:
    """A constructor sets attributes, makes modules, and does nothing else.

    Raises:
        Refused: [constructor-effect] for a statement or call that does more, or that
            binds a parameter again; [base-call] for a base that is not given the
            config itself, or torch's embedding that is not given two sizes.
    """
    init = scope.cls.method("__init__")
    for _, node in scope.init.writes:
        if not isinstance(node, cst.AugAssign | cst.Expr):
            raise Refused("constructor-effect", "a value is written in place", node)
    for node, value in scope.init.values.items():
        if value.op == "attr" and value.name.startswith("_"):
            raise Refused("constructor-effect", f"{value.name} is not public", node)
    bases = {n.value for n in nodes_within(init) if isinstance(n, cst.Attribute)}
    for node, value in scope.init.values.items():
        if value.op == "self" and node not in bases:
            raise Refused("constructor-effect", "self is passed on", node)
    for walrus in scope.init.bound:
        raise Refused("constructor-effect", "a name is bound in an expression", walrus)
    said = {
        call
        for node in nodes_within(init)
        if isinstance(node, cst.Raise)
        for call in nodes_within(node)
    }
    for call in scope.init.effects:
        if call in said:
            continue
        value = scope.init.values[call]
        text = code(call)
        if scope.cls.library_base and text.startswith("super().__init__("):
            if len(value.args) != 3 or value.keywords:
                raise Refused("base-call", f"{text}: not two sizes", call)
        elif text.startswith("super().__init__("):
            operands = [*value.args[1:], *(v for _, v in value.keywords)]
            if any(operand.op != "config" for operand in operands):
                raise Refused("base-call", f"{text}: not the config itself", call)
        elif text != "self.post_init()" and (
            value.op != "call" or value.name not in work.program.module.classes
        ):
            raise Refused("constructor-effect", f"{text} may do more", call)
    for line in statements_within(init):
        if not isinstance(line, cst.SimpleStatementLine | cst.If):
            raise Refused("constructor-effect", "a compound statement", line)
    for name in assigned_names(init.body):
        if name in scope.parameters:
            raise Refused("constructor-effect", f"{name} is bound again", init)
    for name in (*scope.parameters, *assigned_names(init.body)):
        if name in RESERVED:
            raise Refused("name-taken", f"{name} is a name of the output", init)


def check_kept(
    work: Work,
    scope: Scope,
    statements: list[cst.CSTNode],
    output: Sequence[cst.CSTNode],
) -> None:
    """Refuse what stays but has no flat meaning, and what goes but has an effect.

    Args:
        work: The program.
        scope: The class.
        statements: Upstream statements that are left in the output.
        output: The statements of the output.

    Raises:
        Refused: [operation] for an operation that is not on the list, or that is not
            followed; [effect] for a call that goes and may do more than compute, or a
            name bound in an expression that goes; [name-taken] for a local name that
            the output needs.
    """
    flow = forward_of(scope)
    kept: set[cst.CSTNode] = set()
    for statement in statements:
        for node in kept_nodes(work, scope, statement):
            kept.add(node)
            value = flow.values.get(node)
            if value is None and isinstance(node, OPERATIONS):
                raise Refused("operation", "an operation that is not followed", node)
            if value is not None and not is_allowed(scope, node, value):
                what = value.name or value.op
                raise Refused("operation", f"{what} is not followed", node)
    check_dropped(work, scope, kept, output)
    check_names(work, scope)


def check_dropped(
    work: Work, scope: Scope, kept: set[cst.CSTNode], output: Sequence[cst.CSTNode]
) -> None:
    """What does not stay computes its value and nothing else."""
    flow = forward_of(scope)
    replaced = work.edits_of(scope).expressions
    for call in flow.effects:
        if any(test in work.refused and sense for test, sense in flow.guards[call]):
            continue
        if call not in kept and call not in replaced:
            raise Refused("effect", f"{code(call)} goes and may do more", call)
    read: set[str] = set()
    for line in output:
        read |= names_read(line)
    for walrus in flow.bound:
        name = code(walrus.target)
        if walrus not in kept and name in read:
            raise Refused(
                "effect", f"{name} is bound in an expression that goes", walrus
            )


def check_names(work: Work, scope: Scope) -> None:
    """No local name is one that the output brings in, less those that got another.

    Raises:
        Refused: [name-taken].
    """
    forward = scope.cls.method("forward")
    taken = [p.name.value for p in forward.params.params]
    edited = work.edits_of(scope).expressions
    renamed = {n.value for n in plain_names(forward.body) if n in edited} - set(taken)
    for name in (*taken, *assigned_names(forward.body)):
        if name in RESERVED and name not in renamed:
            raise Refused("name-taken", f"{name} is a name of the output", forward)


def kept_nodes(work: Work, scope: Scope, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Nodes of a statement, less those that an edit or a decided test takes out."""
    edits = work.edits_of(scope)
    if node in edits.statements or isinstance(node, cst.Annotation | cst.Raise):
        return
    if node in edits.expressions:
        for kept in edits.keeps.get(node, ()):
            yield from kept_nodes(work, scope, kept)
        return
    decided = forward_of(scope).tests.get(node)
    if isinstance(node, cst.If | cst.IfExp) and decided is not None:
        side = node.body if decided else node.orelse
        if side is not None:
            yield from kept_nodes(work, scope, side)
        return
    yield node
    if isinstance(node, cst.Subscript) and is_leading(forward_of(scope), node):
        return
    parts: Sequence[cst.CSTNode] = children(node)
    if (
        isinstance(node, cst.Call)
        and isinstance(node.func, cst.Attribute)
        and node.func not in forward_of(scope).values
    ):
        parts = [node.func.value, *node.args]  # a method's name is no value
    for child in parts:
        yield from kept_nodes(work, scope, child)


def is_leading(flow: Flow, node: cst.Subscript) -> bool:
    """Whether a node is `x.shape[:-1]`, and only starred in a shape.

    It is the one measure of a tensor that fits flat tokens as it is.
    """
    value = flow.values.get(node)
    if value is None or value.op != "subscript" or value.args[0].name != "shape":
        return False
    bounds = value.args[1]
    wanted = (None, -1, None)
    return bounds.op == "slice" and all(
        is_const(bound, known) for bound, known in zip(bounds.args, wanted, strict=True)
    )


def is_allowed(scope: Scope, node: cst.CSTNode, value: Value) -> bool:
    """Whether one kept expression means the same on flat tokens."""
    flow = forward_of(scope)
    match node:
        case cst.Call():
            return is_allowed_call(value)
        case cst.Subscript() if value.op == "subscript":
            if is_leading(flow, node):
                return not users_of(scope, value)
            return value.args[0].op == "attr" and not is_tensor(value.args[0].args[0])
        case cst.Attribute():
            base = flow.values.get(node.value)
            if base is None or base.op in {"child", "element"}:
                return False
            if base.op == "config" and node.attr.value.startswith("_"):
                return False
            return not is_tensor(base) or node.attr.value in {"dtype", "device"}
        case cst.BinaryOperation():
            sides = (flow.values[node.left], flow.values[node.right])
            if any(is_token(side) for side in sides):
                numbers = [side for side in sides if not is_tensor(side)]
                return bool(scope.cls.library_base) and len(numbers) == 1
            return value.op == "const" or value.name in ARITHMETIC
        case cst.Comparison():
            compared = [node.left, *(c.comparator for c in node.comparisons)]
            contained = any(
                isinstance(c.operator, cst.In | cst.NotIn) for c in node.comparisons
            )
            return not (contained and any(is_tensor(flow.values[s]) for s in compared))
        case cst.BooleanOperation():
            return not any(is_tensor(flow.values[s]) for s in (node.left, node.right))
        case cst.UnaryOperation(operator=cst.Not()):
            return not is_tensor(flow.values[node.expression])
        case cst.If() | cst.IfExp():
            return not is_tensor(flow.values[node.test])
        case cst.Lambda():
            return False
    return True


def is_allowed_call(value: Value) -> bool:
    """Whether a kept call works on each element alone."""
    if value.op == "module" or value.op in SETTINGS or value.name == "super":
        return True
    if value.op == "method":
        return value.name in ELEMENTWISE or value.name == "view"
    if value.op == "call" and value.args and value.args[0].op == "subscript":
        return value.args[0].args[0].name == "activations.ACT2FN"
    last = value.name.rpartition(".")[2]
    return value.op == "const" or (
        value.name.startswith("torch.") and last in ELEMENTWISE
    )


def is_token(value: Value) -> bool:
    """Whether a value has an element for each token, and none for its width."""
    if value.op in {"positions", "tokens?"}:
        return True
    if value.op in {"binary", "compare", "method", "unary"}:
        return any(is_token(arg) for arg in value.args)
    return False


def is_tensor(value: Value) -> bool:
    """Whether a value is, or may be, a tensor of activations."""
    if value.op in TENSORS:
        return True
    if value.op == "attr":
        return value.name not in {"shape", "dtype", "device"} and is_tensor(
            value.args[0]
        )
    if value.op in {"method", "binary", "unary", "compare", "subscript", "call"}:
        if value.op == "compare" and value.name == "is":
            return False
        return any(is_tensor(arg) for arg in value.args)
    return value.op == "choice" and any(is_tensor(side) for side in value.args[1:])
