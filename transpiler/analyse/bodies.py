"""Tables of known bodies: a class or function is known by the value it computes.

A row is the Python that it matches. It is evaluated exactly as upstream code is,
its constructor and function parameters being holes, so names, temporaries, operand
order and spelling do not matter while every operation does. A body that no row
matches is not guessed at.

Refused when
    body: a function of a table writes in place or returns nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import libcst as cst

from transpiler.analyse.evaluate import Evaluator, Flow
from transpiler.analyse.module import ModelingClass, ModelingModule, analyse_module
from transpiler.analyse.values import Graph, Value, unify
from transpiler.refusal import Refused

HEADER = """
import math
import torch
from torch import nn
from torch.nn import functional as F
from ...modeling_rope_utils import ROPE_INIT_FUNCTIONS
"""


@dataclass(frozen=True)
class Body:
    """What a class or function computes.

    Attributes:
        result: Value of its forward or of the function.
        parameters: Values of `nn.Parameter`s that the constructor makes, by name.
        source: Text or name, for messages.
    """

    result: Value
    parameters: dict[str, Value]


@cache
def shared_graph() -> Graph:
    """The graph in which rows and upstream bodies are compared."""
    return Graph()


@cache
def row(text: str) -> tuple[Body, ModelingModule]:
    """A row of a table, evaluated with its parameters as holes."""
    module = analyse_module(cst.parse_module(HEADER + text))
    if module.classes:
        cls = next(iter(module.classes.values()))
        return class_body(cls, module, "hole"), module
    name = list(module.functions)[-1]
    return function_body(name, module, "hole"), module


def class_body(cls: ModelingClass, module: ModelingModule, kind: str) -> Body:
    """Evaluate constructor and forward with parameters of that kind."""
    graph = shared_graph()
    flow = Flow()
    me = graph.make("self", "")

    def attribute(name: str) -> Value:
        if name == "training":
            return graph.const(False)
        if name in flow.assigned:
            return flow.assigned[name][0]
        if name in cls.methods:
            return graph.make("bound", name)
        return graph.make("attr", name, (me,))

    def evaluator() -> Evaluator:
        found = Evaluator(graph, module.resolve, attribute)
        found.inlined = {
            **module.functions,
            **{f"self.{k}": v for k, v in cls.methods.items()},
        }
        return found

    making = evaluator()
    making.flow = flow
    making.run(
        cls.method("__init__"), {"self": me, **holes(cls.method("__init__"), kind)}
    )
    forward = cls.method("forward")
    bound = {k: graph.make(kind, f"forward.{k}") for k in parameter_names(forward)}
    result = evaluator().run(forward, {"self": me, **bound}).result
    if result is None:
        raise Refused("body", f"{cls.name}.forward returns nothing", forward)
    parameters = {
        name: value
        for name, (value, _) in flow.assigned.items()
        if value.op == "call"
        and value.name in {"torch.nn.Parameter", "torch.nn.Linear"}
    }
    return Body(result, parameters)


def function_body(name: str, module: ModelingModule, kind: str) -> Body:
    """Evaluate a module-level function with parameters of that kind."""
    graph = shared_graph()
    evaluator = Evaluator(graph, module.resolve)
    evaluator.inlined = dict(module.functions)
    function = module.functions[name]
    bound = holes(function, kind)
    if isinstance(function.params.star_kwarg, cst.Param):
        bound[function.params.star_kwarg.name.value] = graph.make("dict")
    result = evaluator.run(function, bound).result
    if result is None or evaluator.flow.writes:
        raise Refused("body", f"{name} writes in place or returns nothing", function)
    return Body(result, {})


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
    cls: ModelingClass, module: ModelingModule, rows: dict[str, str]
) -> tuple[str, dict[str, Value]] | None:
    """The row a class matches, with what the row's parameters stand for.

    Returns None when the class is in no row, cannot be followed, or holds
    parameters that the row does not.
    """
    try:
        body = class_body(cls, module, "param")
    except Refused:
        return None
    for name, text in rows.items():
        known, _ = row(text)
        bound = unify(known.result, body.result, {})
        if (
            bound is not None
            and is_renaming(bound)
            and len(known.parameters) == len(body.parameters)
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
    except Refused:
        return None
    for key, text in rows.items():
        known, _ = row(text)
        bound = unify(known.result, body.result, {})
        if bound is not None and is_renaming(bound):
            return key, bound
    return None
