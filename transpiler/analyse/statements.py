"""What a file says besides the bodies of its functions: module level, class bodies.

Values are made on the promise that a name of the module means one thing and that
`self.x` is what the constructor made it. A statement that could break that promise,
at the top of the file or in a class body, refuses the file.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import TYPE_CHECKING

import libcst as cst

from transpiler.analyse.generation import METHOD, hands_on
from transpiler.analyse.names import assigned_names, dotted, imported_names, resolve
from transpiler.refusal import Refused
from transpiler.tree import children

if TYPE_CHECKING:
    from transpiler.analyse.flow import Flow
    from transpiler.analyse.module import ModelingClass, ModelingModule

BUILTINS = frozenset(dir(builtins))
# Calls that a module-level assignment may hold: they change nothing else.
QUIET = frozenset(
    {
        "utils.logging.get_logger",
        "utils.output_capturing.OutputRecorder",
        "dict",
        "frozenset",
        "list",
        "range",
        "set",
        "tuple",
        "typing.TypeVar",
    }
)
# What pretrained classes say of themselves that changes no number when serving, or
# that `lower/causal.py` reads.
FACTS = frozenset(
    {
        "_can_compile_fullgraph",
        "_can_record_outputs",
        "_compatible_flash_implementations",
        "_fsdp_plan",
        "_is_stateful",
        "_keep_in_fp32_modules",
        "_keep_in_fp32_modules_strict",
        "_keys_to_ignore_on_load_missing",
        "_keys_to_ignore_on_load_unexpected",
        "_no_split_modules",
        "_pp_plan",
        "_skip_keys_device_placement",
        "_supports_attention_backend",
        "_supports_flash_attn",
        "_supports_flex_attn",
        "_supports_sdpa",
        "_tied_weights_keys",
        "_tp_plan",
        "_version",
        "accepts_loss_kwargs",
        "base_model_prefix",
        "config_class",
        "input_modalities",
        "main_input_name",
        "supports_gradient_checkpointing",
    }
)
# Methods of pretrained classes that vLLM never calls and that no forward needs.
PRETRAINED_METHODS = frozenset(
    {
        "__init__",
        "_init_weights",
        "forward",
        "get_decoder",
        "get_input_embeddings",
        "get_output_embeddings",
        "set_decoder",
        "set_input_embeddings",
        "set_output_embeddings",
    }
)
# Methods of torch's modules, all but `forward` and `extra_repr`: through them modules
# are called, loaded, moved and walked.
NAMES = """
    _apply _call_impl _get_name _load_from_state_dict _named_members
    _register_load_state_dict_pre_hook _register_state_dict_hook
    _replicate_for_data_parallel _save_to_state_dict _slow_forward _version
    _wrapped_call_impl add_module apply bfloat16 buffers call_super_init children
    compile cpu cuda double dump_patches eval float get_buffer get_extra_state
    get_parameter get_submodule half ipu load_state_dict modules mtia named_buffers
    named_children named_modules named_parameters parameters register_backward_hook
    register_buffer register_forward_hook register_forward_pre_hook
    register_full_backward_hook register_full_backward_pre_hook
    register_load_state_dict_post_hook register_load_state_dict_pre_hook
    register_module register_parameter register_state_dict_post_hook
    register_state_dict_pre_hook requires_grad_ set_extra_state set_submodule
    share_memory state_dict to to_empty train training type xpu zero_grad
"""
MODULE_METHODS = frozenset(NAMES.split())


def check_module(tree: cst.Module) -> None:
    """A name of the module means one thing, and nothing there has an effect.

    Raises:
        Refused: [module-name] for a name that is bound twice, is a builtin's, may
            be anything (`import *`, `global`) or may be another to Python;
            [module-effect] for a statement that does more than bind plain names.
    """
    if not tree.code.isascii():
        for part in expressions(tree):
            if isinstance(part, cst.Name) and not part.value.isascii():
                raise Refused("module-name", "a name beyond ASCII", part)
    bound: set[str] = set()
    imports = imported_names(tree)
    for node in tree.body:
        for name in bindings(node, imports):
            if name in bound:
                raise Refused("module-name", f"{name} is bound twice", node)
            if name in BUILTINS:
                raise Refused("module-name", f"{name} is a builtin", node)
            bound.add(name)
        for inner in nested(node):
            if isinstance(inner, cst.SimpleStatementLine) and any(
                isinstance(small, cst.Global | cst.Nonlocal) for small in inner.body
            ):
                raise Refused("module-name", "a function rebinds global names", inner)


def bindings(node: cst.CSTNode, imports: dict[str, str]) -> list[str]:
    """Names that a module-level statement binds, which is all that it may do."""
    if isinstance(node, cst.FunctionDef | cst.ClassDef):
        return [node.name.value]
    if isinstance(node, cst.If):
        return [name for inner in nested(node) for name in imports_only(inner, node)]
    if not isinstance(node, cst.SimpleStatementLine):
        raise Refused("module-effect", "a compound statement at module level", node)
    names: list[str] = []
    for small in node.body:
        match small:
            case cst.Import() | cst.ImportFrom():
                names += imports_only(node, node)
            case cst.Assign() | cst.AnnAssign():
                names += plain_names(small, node, imports)
            case cst.Pass() | cst.Expr(value=cst.SimpleString()):
                pass
            case _:
                raise Refused("module-effect", "a statement with an effect", node)
    return names


def imports_only(node: cst.CSTNode, where: cst.CSTNode) -> list[str]:
    """Names that a statement of imports binds; a block of them is no statement."""
    if isinstance(node, cst.If):
        return []
    if not isinstance(node, cst.SimpleStatementLine) or not all(
        isinstance(small, cst.Import | cst.ImportFrom) for small in node.body
    ):
        raise Refused("module-effect", "more than imports under a condition", where)
    for small in node.body:
        if isinstance(small, cst.ImportFrom) and isinstance(
            small.names, cst.ImportStar
        ):
            raise Refused("module-name", "import * may bind any name", node)
    return list(imported_names(cst.Module(body=[node])))


def plain_names(
    node: cst.Assign | cst.AnnAssign, where: cst.CSTNode, imports: dict[str, str]
) -> list[str]:
    """Names that an assignment binds to a value without effects."""
    targets = (
        [target.target for target in node.targets]
        if isinstance(node, cst.Assign)
        else [node.target]
    )
    for target in targets:
        parts = (
            [element.value for element in target.elements]
            if isinstance(target, cst.Tuple | cst.List)
            else [target]
        )
        if not all(isinstance(part, cst.Name) for part in parts):
            raise Refused("module-effect", "an assignment to more than a name", where)
    if node.value is not None:
        for inner in expressions(node.value):
            if isinstance(inner, cst.NamedExpr) or (
                isinstance(inner, cst.Call)
                and resolve(dotted(inner.func) or "?", imports) not in QUIET
            ):
                raise Refused("module-effect", "a value with an effect", where)
    return assigned_names(node)


def nested(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Statements inside a compound statement, at any depth."""
    if isinstance(node, cst.Match):
        for case in node.cases:
            yield from inside(case.body)
    elif isinstance(node, cst.BaseCompoundStatement):
        yield from inside(node.body)
        for part in ("orelse", "finalbody", "handlers"):
            other = getattr(node, part, None)
            for item in other if isinstance(other, tuple | list) else [other]:
                if isinstance(item, cst.If):
                    yield item
                    yield from nested(item)
                elif item is not None:
                    yield from inside(item.body)


def lines_run(
    block: cst.BaseSuite, flow: Flow
) -> Iterator[tuple[cst.SimpleStatementLine, bool]]:
    """Lines of a constructor that run, and whether only where a test holds."""
    for node in block.body:
        if isinstance(node, cst.SimpleStatementLine):
            yield node, False
        elif isinstance(node, cst.If):
            sides = (node.body, getattr(node.orelse, "body", None))
            if isinstance(node.orelse, cst.If):
                sides = (node.body, cst.IndentedBlock([node.orelse]))
            for sense, side in zip((True, False), sides, strict=True):
                if side is not None and flow.tests.get(node, sense) is sense:
                    for line, guarded in lines_run(side, flow):
                        yield line, guarded or node not in flow.tests


def inside(block: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Statements of a block and those inside them."""
    for child in getattr(block, "body", ()):
        yield child
        yield from nested(child)


def expressions(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all nodes below it."""
    yield node
    for child in children(node):
        yield from expressions(child)


def check_class(cls: ModelingClass, module: ModelingModule) -> None:
    """A class body holds methods, annotations and known facts, and nothing else.

    Raises:
        Refused: [class-body] for another statement, a keyword of the class, or a name
            that is given twice; [method-override] for a method that changes how torch
            or Transformers calls or loads the module.
    """
    if cls.node.keywords:
        raise Refused("class-body", f"{cls.name} has class keywords", cls.node)
    pretrained = is_pretrained(cls, module)
    held: set[str] = set()
    for line in cls.node.body.body:
        facts = FACTS if pretrained else frozenset[str]()
        for name in facts_of(cls, line, facts, module.imports):
            if name in held:
                raise Refused("class-body", f"{cls.name} gives {name} twice", line)
            held.add(name)
    for name, node in cls.methods.items():
        special = name.startswith("__") and name not in {"__init__", "__repr__"}
        known = not pretrained or name in PRETRAINED_METHODS
        known = known or (name == METHOD and hands_on(node))
        if special or name in MODULE_METHODS or not known:
            raise Refused("method-override", f"{cls.name} defines {name}", node)


def facts_of(
    cls: ModelingClass,
    line: cst.CSTNode,
    known: frozenset[str],
    imports: dict[str, str],
) -> list[str]:
    """Names that a line of a class body gives a value."""
    if isinstance(line, cst.FunctionDef):
        return [line.name.value]
    if not isinstance(line, cst.SimpleStatementLine):
        raise Refused("class-body", f"a compound statement in {cls.name}", line)
    names: list[str] = []
    for small in line.body:
        match small:
            case cst.Pass() | cst.Expr(value=cst.SimpleString() | cst.Ellipsis()):
                pass
            case cst.AnnAssign(value=None):
                pass
            case cst.Assign() | cst.AnnAssign():
                names += assigned_names(small)
                if set(names) <= known:
                    plain_names(small, line, imports)
            case _:
                raise Refused("class-body", f"a statement in {cls.name}", line)
    for name in names:
        if name not in known:
            raise Refused("class-body", f"{cls.name} gives {name} a value", line)
    return names


def is_pretrained(cls: ModelingClass, module: ModelingModule) -> bool:
    """Whether a class extends PreTrainedModel."""
    return any(
        base == "modeling_utils.PreTrainedModel"
        or (base in module.classes and is_pretrained(module.classes[base], module))
        for base in cls.bases
    )


def check_attributes_free(cls: ModelingClass, names: list[str]) -> None:
    """What a constructor sets is not also a method, property or fact of the class.

    Raises:
        Refused: [class-body]; a layer under such a name would never be found.
    """
    for name in names:
        if name in cls.methods:
            raise Refused(
                "class-body", f"self.{name} is also a method", cls.methods[name]
            )
        if name in FACTS:
            raise Refused("class-body", f"the constructor sets {name}", cls.node)


def check_one_constructor(cls: ModelingClass, module: ModelingModule) -> None:
    """At most one constructor stands between a class and the library's bases.

    Raises:
        Refused: [base-class] when a base in the file has a constructor too, or there
            are two bases in the file, whose methods might be found in another order.
    """
    if sum(base in module.classes for base in cls.bases) > 1:
        raise Refused("base-class", f"{cls.name} has two bases of the file", cls.node)
    found = [*constructors(cls, module)]
    if len(found) > 1:
        raise Refused(
            "base-class", f"{cls.name} extends a constructor of the file", found[1]
        )


def constructors(
    cls: ModelingClass, module: ModelingModule
) -> Iterator[cst.FunctionDef]:
    """The constructors of a class and of its bases in the file."""
    for line in cls.node.body.body:
        if isinstance(line, cst.FunctionDef) and line.name.value == "__init__":
            yield line
    for base in cls.bases:
        if base in module.classes:
            yield from constructors(module.classes[base], module)
