"""The modeling module: its classes, functions and imports, found by structure."""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from transpiler.analyse.names import dotted, imported_names, resolve
from transpiler.analyse.statements import (
    check_class,
    check_module,
    check_one_constructor,
)
from transpiler.refusal import Refused
from transpiler.tree import code, nodes_within

# Bases and decorators that add nothing to what a forward computes when serving.
# Each is a class or function of Transformers or torch, read at the pinned version.
NEUTRAL_BASES = frozenset(
    {
        "torch.nn.Embedding",
        "torch.nn.Module",
        "modeling_utils.PreTrainedModel",
        "modeling_layers.GradientCheckpointingLayer",
        "generation.GenerationMixin",
    }
)
# The one library class with a forward of its own that a class may call by `super()`.
EMBEDDING = "torch.nn.Embedding"
RENAMING = "utils.deprecation.deprecate_kwarg"
NEUTRAL_DECORATORS = frozenset(
    {
        "integrations.use_kernel_forward_from_hub",
        "integrations.use_kernelized_func",
        "utils.auto_docstring",
        "utils.can_return_tuple",
        "utils.generic.merge_with_config_defaults",
        "utils.generic.can_return_tuple",
        "utils.generic.check_model_inputs",
        "utils.output_capturing.capture_outputs",
        "modeling_rope_utils.dynamic_rope_update",
        "torch.no_grad",
        "staticmethod",
    }
)


@dataclass(frozen=True)
class ModelingClass:
    """One class of the modeling file.

    Attributes:
        name: Its name.
        node: Its definition.
        bases: Full dotted names of its bases.
        methods: Its own and inherited methods, by name.
    """

    name: str
    node: cst.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, cst.FunctionDef]

    @property
    def library_base(self) -> str:
        """The base whose forward its own may call, empty for none."""
        return EMBEDDING if self.bases == (EMBEDDING,) else ""

    def method(self, name: str) -> cst.FunctionDef:
        """A method that must exist.

        Raises:
            Refused: [method] when the class has no such method.
        """
        if name not in self.methods:
            raise Refused("method", f"{self.name} has no method {name}", self.node)
        return self.methods[name]


@dataclass(frozen=True)
class ModelingModule:
    """The classes and functions of one modeling file.

    Attributes:
        classes: By name, in source order.
        functions: Module-level functions by name.
        imports: Local name -> full dotted name.
        architectures: Classes that Transformers' auto class makes to generate text.
    """

    classes: dict[str, ModelingClass]
    functions: dict[str, cst.FunctionDef]
    imports: dict[str, str] = field(default_factory=dict)
    architectures: frozenset[str] = frozenset()

    def resolve(self, name: str) -> str:
        """Full dotted name of a local dotted name."""
        return resolve(name, self.imports)


def analyse_module(
    tree: cst.Module, architectures: frozenset[str] = frozenset()
) -> ModelingModule:
    """Collect classes (with methods inherited within the file) and functions."""
    check_module(tree)
    imports = imported_names(tree)
    classes: dict[str, ModelingClass] = {}
    functions: dict[str, cst.FunctionDef] = {}
    for node in tree.body:
        if isinstance(node, cst.FunctionDef):
            functions[node.name.value] = node
        elif isinstance(node, cst.ClassDef):
            name = node.name.value
            bases = tuple(
                resolve(dotted(base.value) or "?", imports) for base in node.bases
            )
            if is_renamed_output(node, bases):
                imports[name] = bases[0]
                continue
            methods: dict[str, cst.FunctionDef] = {}
            for base in reversed(bases):
                if base in classes:
                    methods.update(classes[base].methods)
            own = [item for item in node.body.body if isinstance(item, cst.FunctionDef)]
            methods.update({item.name.value: item for item in own})
            classes[name] = ModelingClass(name, node, bases, methods)
    return ModelingModule(classes, functions, imports, architectures)


def is_renamed_output(node: cst.ClassDef, bases: tuple[str, ...]) -> bool:
    """Whether a class is one of Transformers' outputs under another name."""
    return (
        len(bases) == 1
        and bases[0].startswith("modeling_outputs.")
        and not node.decorators
        and not node.keywords
        and [code(line).strip() for line in node.body.body] == ["pass"]
    )


def check_neutral(
    cls: ModelingClass,
    module: ModelingModule,
    method: str,
    known: frozenset[str] = NEUTRAL_BASES,
) -> None:
    """Refuse a class whose bases or decorators might change what it computes.

    Args:
        cls: The class.
        module: The modeling module.
        method: The method that is followed, besides the constructor.
        known: Bases outside the file that are accounted for.

    Raises:
        Refused: [base-class] for a base outside the file that is not known;
            [decorator] for a decorator that is not known.
    """
    check_class(cls, module)
    check_one_constructor(cls, module)
    for name, base in zip(cls.bases, cls.node.bases, strict=True):
        if name in module.classes:
            check_neutral(module.classes[name], module, method, known)
        elif name not in known:
            raise Refused("base-class", f"{cls.name} extends {name}", base)
    check_decorators(cls.node, module)
    for name in ("__init__", method):
        if name in cls.methods:
            check_decorators(cls.methods[name], module)


def check_decorators(
    item: cst.ClassDef | cst.FunctionDef, module: ModelingModule
) -> None:
    """Refuse a class or function with a decorator that is not known.

    Raises:
        Refused: [decorator].
    """
    names = decorator_names(item, module)
    for name, decorator in zip(names, item.decorators, strict=True):
        neutral = name in NEUTRAL_DECORATORS
        if name == RENAMING and not is_passed(deprecated_name(decorator), module):
            neutral = True
        if not neutral:
            raise Refused("decorator", f"@{name} is not known", decorator)


def deprecated_name(decorator: cst.Decorator) -> str | None:
    """The old name of a keyword that `@deprecate_kwarg("old", …)` renames."""
    call = decorator.decorator
    first = call.args[0].value if isinstance(call, cst.Call) and call.args else None
    said = first.evaluated_value if isinstance(first, cst.SimpleString) else None
    return said if isinstance(said, str) else None


def is_passed(keyword: str | None, module: ModelingModule) -> bool:
    """Whether a call of the file passes a keyword, or may; None is any keyword."""
    places = [*(c.node for c in module.classes.values()), *module.functions.values()]
    passed = {
        node.keyword.value
        for place in places
        for node in nodes_within(place)
        if isinstance(node, cst.Arg) and node.keyword is not None
    }
    return keyword is None or keyword in passed


def decorator_names(
    item: cst.ClassDef | cst.FunctionDef, module: ModelingModule
) -> list[str]:
    """Full dotted names of the decorators of a class or function."""
    found = []
    for decorator in item.decorators:
        target = decorator.decorator
        called = target.func if isinstance(target, cst.Call) else target
        found.append(module.resolve(dotted(called) or "?"))
    return found


def the_causal_class(module: ModelingModule) -> ModelingClass:
    """The one class that generates text: it has a forward and extends GenerationMixin.

    Of several it is the one that Transformers' auto class makes.

    Raises:
        Refused: [no-causal-class] when there is none or more than one.
    """
    found = [
        cls
        for cls in module.classes.values()
        if "generation.GenerationMixin" in cls.bases and "forward" in cls.methods
    ]
    named = [cls for cls in found if cls.name.endswith("ForCausalLM")] or found
    if len(named) > 1:
        named = [cls for cls in named if cls.name in module.architectures] or named
    if len(named) != 1:
        names = ", ".join(cls.name for cls in named) or "none"
        raise Refused(
            "no-causal-class",
            f"one class with GenerationMixin is needed, found {names}",
        )
    return named[0]
