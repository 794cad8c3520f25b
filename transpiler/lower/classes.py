"""Classes: constructor, forward and signature of one class put together.

Classes are lowered callees first, so that a caller knows which parameters are left.

Refused when
    child: a module is of a kind that has no lowering.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import libcst as cst

from transpiler.analyse.program import PASSING, Scope
from transpiler.edits import Change, Fate, Statement, statement
from transpiler.fusions.fusion import LINEAR, Work, forward_of
from transpiler.lower.calls import optional_of
from transpiler.lower.norms import lower_norm
from transpiler.lower.operations import check_kept
from transpiler.refusal import Refused
from transpiler.rewrite import Rewriting, names_read
from transpiler.tree import code, nodes_within

RULE = "constructor"
POSITIONS = "positions: torch.Tensor"


@dataclass
class Lowered:
    """A class of the output.

    Attributes:
        name: Its name.
        node: Its definition.
        fates: Fate of every upstream statement of its constructor and forward.
    """

    name: str
    node: cst.ClassDef
    fates: dict[cst.CSTNode, Fate] = field(default_factory=dict)


def lower_forward(
    work: Work, scope: Scope
) -> tuple[cst.FunctionDef, dict[cst.CSTNode, Fate]]:
    """The rewritten forward of a class, its signature reduced to what it reads."""
    function = scope.cls.method("forward")
    rewriting = Rewriting(work.edits_of(scope), forward_of(scope))
    body = rewriting.function(function.body.body)
    check_kept(work, scope, rewriting.left, body)
    rewriting.fates[function] = Fate("rewritten", "signature")
    return signed(work, scope, function, body), rewriting.fates


def signed(
    work: Work, scope: Scope, function: cst.FunctionDef, body: list[Statement]
) -> cst.FunctionDef:
    """A function with the parameters that its new body reads."""
    read: set[str] = set()
    for line in body:
        read |= names_read(line)
    residual = work.with_residual.get(scope.name)
    kept: list[str] = []
    texts: list[str] = ["self"]
    optional: list[str] = []
    constants = optional_of(scope)
    for parameter in function.params.params[1:]:
        name = parameter.name.value
        if name not in read:
            continue
        kept.append(name)
        if name in constants and parameter.default is not None:
            optional.append(f"{typed(parameter)} = {code(parameter.default)}")
            continue
        texts.append(typed(parameter))
        if name == residual:
            texts.append("residual: torch.Tensor | None")
    if "positions" in read:
        texts.append(POSITIONS)
    texts += optional
    work.signatures[scope.name] = kept
    returns = returned(function, scope.name in work.single_result, residual is not None)
    header = f"def {function.name.value}({', '.join(texts)}){returns}:\n    pass\n"
    made = cst.ensure_type(cst.parse_statement(header), cst.FunctionDef)
    return made.with_changes(
        body=cst.IndentedBlock(body), leading_lines=[cst.EmptyLine(indent=False)]
    )


def typed(parameter: cst.Param) -> str:
    """A parameter with its annotation, without its default."""
    if parameter.annotation is None:
        return parameter.name.value
    return f"{parameter.name.value}: {code(parameter.annotation.annotation)}"


def returned(function: cst.FunctionDef, single: bool, with_residual: bool) -> str:
    """The return annotation after results were dropped or a residual added."""
    if with_residual:
        return " -> tuple[torch.Tensor, torch.Tensor]"
    if single:
        return " -> torch.Tensor"
    if function.returns is None:
        return ""
    return f" -> {code(function.returns.annotation)}"


def lower_children(work: Work, scope: Scope) -> None:
    """Rewrite the constructor calls of norms and of the file's own classes."""
    edits = work.edits_of(scope)
    for child in scope.children.values():
        if child.guarded and child.kind not in work.norms:
            raise Refused("child", f"self.{child.name} may not be there", child.call)
        if child.statement in edits.statements or child.many:
            continue
        if child.kind in work.norms:
            lower_norm(work, scope, child)
        elif child.kind in PASSING and child.choice is None:
            edits.swap(child.statement, "no training", [])
        elif child.kind in work.signatures:
            edits.replace(child.call, RULE, with_prefix(child.name))
        elif child.kind != LINEAR:
            raise Refused("child", f"self.{child.name} is a {child.kind}", child.call)


def with_prefix(name: str) -> Change:
    """A change of a constructor call: the engine's config and the prefix come in."""

    def change(node: cst.BaseExpression) -> cst.BaseExpression:
        call = cst.ensure_type(node, cst.Call)
        new = cst.ensure_type(
            cst.parse_expression(
                f'f(vllm_config=vllm_config, prefix=f"{{prefix}}.{name}")'
            ),
            cst.Call,
        )
        last = [arg.with_changes(comma=cst.MaybeSentinel.DEFAULT) for arg in call.args]
        return call.with_changes(args=[*last, *new.args])

    return change


def lower_constructor(
    work: Work, scope: Scope, read: set[str]
) -> tuple[cst.FunctionDef, dict[cst.CSTNode, Fate]]:
    """The rewritten constructor of a class.

    Args:
        work: The program.
        scope: The class.
        read: Attributes that other methods of the new class read.
    """
    function = scope.cls.method("__init__")
    edits = work.edits_of(scope)
    for line in function.body.body:
        own = is_super_init(line) and not scope.cls.library_base
        if own and line not in edits.statements:
            if bare(line) != "super().__init__()":
                edits.swap(line, RULE, ["super().__init__()"])
        elif bare(line) == "self.post_init()":
            edits.swap(line, "weights come from the checkpoint", [])
    rewriting = Rewriting(edits, scope.init)
    body = rewriting.function(function.body.body)
    body = without_unread(body, read, function, rewriting)
    rewriting.fates[function] = Fate("rewritten", "signature")
    rewriting.fates |= class_fates(scope)
    bare_parameters = [
        p.with_changes(comma=cst.MaybeSentinel.DEFAULT) for p in function.params.params
    ]
    parameters = [code(parameter).strip() for parameter in bare_parameters]
    texts = [*parameters, "*", "vllm_config: VllmConfig", "prefix: str"]
    if scope.cls.library_base:
        texts = parameters
    header = f"def __init__({', '.join(texts)}):\n    pass\n"
    made = cst.ensure_type(cst.parse_statement(header), cst.FunctionDef)
    return made.with_changes(body=cst.IndentedBlock(body)), rewriting.fates


def class_fates(scope: Scope) -> dict[cst.CSTNode, Fate]:
    """Fates of a class's header and of what it holds besides methods."""
    fates: dict[cst.CSTNode, Fate] = {scope.cls.node: Fate("rewritten", "class header")}
    for line in scope.cls.node.body.body:
        if isinstance(line, cst.SimpleStatementLine):
            fates[line] = Fate("dropped", "no reader left")
    return fates


def is_super_init(line: cst.CSTNode) -> bool:
    """Whether a statement is `super().__init__(…)`."""
    return bare(line).startswith("super().__init__(")


def bare(line: cst.CSTNode) -> str:
    """Text of a statement without the comments before it."""
    if isinstance(line, cst.SimpleStatementLine):
        line = line.with_changes(leading_lines=[])
    return code(line).strip()


def without_unread(
    body: Sequence[Statement],
    read: set[str],
    function: cst.FunctionDef,
    rewriting: Rewriting,
) -> list[Statement]:
    """Drop `self.x = …` that nothing in the new class reads, and unread locals."""
    lines = list(body)
    origins = {bare(line): line for line in function.body.body}
    while True:
        used = set(read)
        for line in lines:
            used |= attributes_read(line)
        local = set[str]().union(*(names_read(line) for line in lines))
        dead = [line for line in lines if is_unread(line, used, local)]
        if not dead:
            return lines
        for line in dead:
            lines.remove(line)
            origin = origins.get(bare(line))
            if origin is not None:
                rewriting.fates[origin] = Fate("dropped", "no reader left")


def is_unread(line: Statement, used: set[str], local: set[str]) -> bool:
    """Whether a statement only sets an attribute or a name that nothing reads.

    Layers are always kept: their weights are in the checkpoint.
    """
    if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
        return False
    small = line.body[0]
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return False
    target = small.targets[0].target
    if isinstance(target, cst.Name):
        return target.value not in local
    if not isinstance(target, cst.Attribute) or target.attr.value in used:
        return False
    return not (
        isinstance(small.value, cst.Call)
        and (prefix_of(small.value) or code(small.value.func)[:1].isupper())
    )


def prefix_of(call: cst.Call) -> bool:
    """Whether a constructor call is a layer's: it gets a prefix."""
    return any(
        arg.keyword is not None and arg.keyword.value == "prefix" for arg in call.args
    )


def attributes_read(node: cst.CSTNode) -> set[str]:
    """Names of the attributes of `self` that a statement or function reads."""
    nodes = nodes_within(node)
    written = {n.target for n in nodes if isinstance(n, cst.AssignTarget)}
    return {
        inner.attr.value
        for inner in nodes
        if isinstance(inner, cst.Attribute)
        and isinstance(inner.value, cst.Name)
        and inner.value.value == "self"
        and inner not in written
    }


def lower_class(work: Work, scope: Scope) -> Lowered:
    """Constructor and forward of an inner class: an attention, an MLP, a layer."""
    forward, fates = lower_forward(work, scope)
    lower_children(work, scope)
    init, more = lower_constructor(work, scope, attributes_read(forward))
    base = "nn.Embedding" if scope.cls.library_base else "nn.Module"
    node = cst.ClassDef(
        name=scope.cls.node.name,
        bases=[cst.Arg(cst.parse_expression(base))],
        body=cst.IndentedBlock([init, forward]),
        leading_lines=[cst.EmptyLine(indent=False)] * 2,
    )
    return Lowered(scope.name, node, {**more, **fates})


def parsed(lines: Sequence[str]) -> list[Statement]:
    """Statements from their texts."""
    return [statement(line) for line in lines]
