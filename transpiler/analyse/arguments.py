"""Arguments: the parameters of a function bound to the operands of a call."""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.evaluate import Evaluator
from transpiler.analyse.values import Graph, Value
from transpiler.refusal import Refused


def bind_arguments(
    function: cst.FunctionDef, call: Value, graph: Graph, skip: int
) -> dict[str, Value]:
    """Parameters of a function bound to the operands of a call, defaults applied.

    Args:
        function: The function called.
        call: A value whose `args` and `keywords` are the operands.
        graph: Where constants are made.
        skip: Leading parameters that are not passed (`self`).

    Raises:
        Refused: [arguments] for a starred operand, an unknown keyword, a missing
            argument, or parameters that only a position or a keyword gives.
    """
    if function.params.posonly_params or function.params.kwonly_params:
        name = function.name.value
        raise Refused("arguments", f"{name} takes special parameters", function)
    parameters = list(function.params.params)[skip:]
    names = [parameter.name.value for parameter in parameters]
    if any(arg.op == "starred" for arg in call.args) or len(call.args) > len(names):
        raise Refused("arguments", "a call with starred arguments", function)
    bound = dict(zip(names, call.args, strict=False))
    rest: list[tuple[str, Value]] = []
    for key, value in call.keywords:
        if key in names:
            bound[key] = value
        else:
            rest.append((key, value))
    if isinstance(function.params.star_kwarg, cst.Param):
        star = function.params.star_kwarg.name.value
        bound[star] = graph.make("dict", keywords=tuple(rest))
    elif rest:
        raise Refused(
            "arguments",
            f"{function.name.value} has no parameter {rest[0][0]}",
            function,
        )
    for parameter in parameters:
        name = parameter.name.value
        if name not in bound:
            bound[name] = default_of(parameter, graph, function)
    return bound


def default_of(parameter: cst.Param, graph: Graph, function: cst.FunctionDef) -> Value:
    """The default value of a parameter."""
    if parameter.default is None:
        raise Refused(
            "arguments",
            f"{function.name.value} is called without {parameter.name.value}",
            function,
        )
    evaluator = Evaluator(graph, lambda name: name)
    return evaluator.value(parameter.default)
