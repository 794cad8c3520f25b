"""Tables of known bodies: a class or function is known by the value it computes.

A row is the Python that it matches. It is evaluated exactly as upstream code is,
its constructor and function parameters being holes, so names, temporaries, operand
order and spelling do not matter while every operation does. A body that no row
matches is not guessed at.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import libcst as cst

from transpiler.analyse.evaluate import Evaluator
from transpiler.analyse.flow import Flow
from transpiler.analyse.module import (
    NEUTRAL_BASES,
    NEUTRAL_DECORATORS,
    ModelingClass,
    ModelingModule,
    analyse_module,
    decorator_names,
)
from transpiler.analyse.statements import check_attributes_free
from transpiler.analyse.values import Graph, Value, unify
from transpiler.refusal import Refused
from transpiler.tree import code

HEADER = """
import math
import torch
from torch import nn
from torch.nn import functional as F
from ...modeling_rope_utils import ROPE_INIT_FUNCTIONS
"""


class Unlisted(Exception):
    """A body that computes more than its result, so it can be in no table."""


@dataclass(frozen=True)
class Body:
    """What a class or function computes.

    Attributes:
        result: Value of its forward or of the function.
        parameters: Values of `nn.Parameter`s that the constructor makes, by name.
        held: Values of all attributes that it sets.
        base: Call of the base's constructor.
        bases: Bases outside the file whose constructor or methods count.
    """

    result: Value
    parameters: dict[str, Value]
    held: dict[str, Value]
    base: Value | None = None
    bases: frozenset[str] = frozenset()


@cache
def shared_graph() -> Graph:
    """The graph in which rows and upstream bodies are compared."""
    return Graph()


@cache
def row(text: str, named: frozenset[str] = frozenset()) -> tuple[Body, ModelingModule]:
    """A row of a table, evaluated with its parameters as holes."""
    module = analyse_module(cst.parse_module(HEADER + text))
    if module.classes:
        cls = next(iter(module.classes.values()))
        return class_body(cls, module, "hole", named), module
    name = list(module.functions)[-1]
    return function_body(name, module, "hole"), module


def class_body(
    cls: ModelingClass,
    module: ModelingModule,
    kind: str,
    named: frozenset[str] = frozenset(),
) -> Body:
    """Evaluate constructor and forward with parameters of that kind.

    To the forward an attribute of `named` is its value under its name.
    """
    graph = shared_graph()
    flow = Flow()
    me = graph.make("self", "")
    made: list[bool] = []

    def attribute(name: str) -> Value:
        if name == "training":
            return graph.const(False)
        if name in flow.assigned:
            value = flow.assigned[name][0]
            if not made or name not in named:
                return value
            if value.op == "mapped":
                entry = graph.make("held", name, value.args[1:])
                return graph.make("mapped", args=(value.args[0], entry))
            return graph.make("held", name, (value,))
        if name in cls.methods:
            return graph.make("bound", name)
        return graph.make("attr", name, (me,))

    def evaluator() -> Evaluator:
        found = Evaluator(graph, module.resolve, attribute)
        found.base = cls.library_base
        found.is_table = True
        found.inlined = {
            **plain(module.functions, module),
            **{f"self.{k}": v for k, v in plain(cls.methods, module).items()},
        }
        return found

    init, forward = cls.method("__init__"), cls.method("forward")
    making = evaluator()
    making.flow = flow
    making.run(init, {"self": me, **holes(init, kind)})
    made.append(True)
    check_attributes_free(cls, list(flow.assigned))
    check_pure(flow, init, is_made=True)
    bound = {k: graph.make(kind, f"forward.{k}") for k in parameter_names(forward)}
    called = evaluator().run(forward, {"self": me, **bound})
    check_pure(called, forward)
    result = called.result
    if result is None:
        raise Unlisted(f"{cls.name}.forward returns nothing")
    parameters = {
        name: value
        for name, (value, _) in flow.assigned.items()
        if value.op == "call"
        and value.name in {"torch.nn.Parameter", "torch.nn.Linear"}
    }
    held = {name: value for name, (value, _) in flow.assigned.items()}
    base = next((flow.values.get(call) for call in flow.effects), None)
    own = frozenset(cls.bases) - NEUTRAL_BASES - set(module.classes)
    return Body(result, parameters, held, base, own)


def function_body(name: str, module: ModelingModule, kind: str) -> Body:
    """Evaluate a module-level function with parameters of that kind."""
    graph = shared_graph()
    evaluator = Evaluator(graph, module.resolve)
    evaluator.inlined = plain(module.functions, module)
    function = module.functions[name]
    bound = holes(function, kind)
    if isinstance(function.params.star_kwarg, cst.Param):
        bound[function.params.star_kwarg.name.value] = graph.make("dict")
    result = evaluator.run(function, bound).result
    check_pure(evaluator.flow, function)
    if result is None:
        raise Unlisted(f"{name} returns nothing")
    return Body(result, {}, {})


def plain(
    functions: dict[str, cst.FunctionDef], module: ModelingModule
) -> dict[str, cst.FunctionDef]:
    """Functions that are what their body says: no decorator makes another of them."""
    return {
        name: function
        for name, function in functions.items()
        if set(decorator_names(function, module)) <= NEUTRAL_DECORATORS
    }


def check_pure(flow: Flow, function: cst.FunctionDef, is_made: bool = False) -> None:
    """A body that a table may know does nothing but compute its result.

    Args:
        flow: What its evaluation found.
        function: The function.
        is_made: Whether it is a constructor, which sets attributes and calls its base.

    Raises:
        Unlisted: It does more.
    """
    for node in flow.effects:
        own = is_made and code(node).startswith("super().__init__(")
        if not own or len(flow.effects) > 1:
            raise Unlisted("a call with an effect")
    if flow.writes or flow.alone or (flow.assigned and not is_made):
        raise Unlisted("a write in place or a change of state")
    if not is_made:
        parameters = function.params
        if parameters.kwonly_params or parameters.posonly_params:
            raise Unlisted("special parameters")


def parameters_of(text: str) -> list[str]:
    """Parameters of a row's function, in order."""
    _, module = row(text)
    return parameter_names(list(module.functions.values())[-1])


def parameter_names(function: cst.FunctionDef) -> list[str]:
    """Names of the parameters, `self` aside."""
    names = [parameter.name.value for parameter in function.params.params]
    return [name for name in names if name != "self"]


def holes(function: cst.FunctionDef, kind: str) -> dict[str, Value]:
    """Each parameter as a value of that kind; `config` is the config itself."""
    graph = shared_graph()
    return {
        name: graph.make("config") if name == "config" else graph.make(kind, name)
        for name in parameter_names(function)
    }


def match_class(
    cls: ModelingClass,
    module: ModelingModule,
    rows: dict[str, str],
    named: frozenset[str] = frozenset(),
) -> tuple[str, dict[str, Value]] | None:
    """The row a class matches, with what the row's parameters stand for.

    Args:
        cls: The class.
        module: The modeling module.
        rows: The table.
        named: Attributes that a decorator reads or writes: they must have the row's
            names and values.

    Returns None when the class is in no row, cannot be followed, or holds
    parameters that the row does not.
    """
    try:
        body = class_body(cls, module, "param", named)
    except (Refused, Unlisted):
        return None
    for name, text in rows.items():
        known, _ = row(text, named)
        bound = unify(known.result, body.result, {})
        if bound is not None and known.base is not None and body.base is not None:
            bound = unify(known.base, body.base, bound)
        if (
            bound is not None
            and is_renaming(bound)
            and known.bases == body.bases
            and set(known.parameters) == set(body.parameters)
            and all(
                name in body.held
                and unify(known.held[name], body.held[name], bound) is not None
                for name in named
            )
        ):
            return name, bound
    return None


def is_renaming(bound: dict[str, Value]) -> bool:
    """Whether each parameter of a row stands for one parameter of the body."""
    values = list(bound.values())
    return all(value.op == "param" for value in values) and len(set(values)) == len(
        values
    )


def match_function(
    name: str, module: ModelingModule, rows: dict[str, str]
) -> tuple[str, dict[str, Value]] | None:
    """The row a function matches, with what the row's parameters stand for."""
    if name not in module.functions:
        return None
    try:
        body = function_body(name, module, "param")
    except (Refused, Unlisted):
        return None
    for key, text in rows.items():
        known, _ = row(text)
        bound = unify(known.result, body.result, {})
        if bound is not None and is_renaming(bound):
            return key, bound
    return None
