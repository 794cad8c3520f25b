"""The value of a call: of a module, a method, a function or an unknown callable.

Refused when
    arguments: a call is given a mapping whose keys are not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from transpiler.analyse import names as spelling
from transpiler.analyse.effects import has_effect, writes_operand
from transpiler.analyse.values import Graph, Value, is_const
from transpiler.refusal import Refused

if TYPE_CHECKING:
    from transpiler.analyse.flow import Flow

# Classes that None is no instance of.
CLASSES = frozenset({"cache_utils.Cache", "cache_utils.DynamicCache", "torch.Tensor"})
FILLED = frozenset({"torch.ones", "torch.zeros"})


class Calls:
    """The part of `Expressions` that evaluates calls; never used alone."""

    flow: Flow
    graph: Graph
    resolve: Callable[[str], str]
    guards: list[tuple[Value, bool]]
    base: str
    inlined: dict[str, cst.FunctionDef]
    signatures: dict[str, tuple[str, ...]]

    def value(self, node: cst.BaseExpression) -> Value:
        """Provided by `Expressions`."""
        raise NotImplementedError

    def binary(self, operator: str, left: Value, right: Value) -> Value:
        """Provided by `Expressions`."""
        raise NotImplementedError

    def merge(self, test: Value, yes: Value, no: Value) -> Value:
        """Provided by `Expressions`."""
        raise NotImplementedError

    def truth(self, value: Value) -> bool | None:
        """Provided by `Expressions`."""
        raise NotImplementedError

    def call(self, node: cst.Call) -> Value:
        """A call of a module, a method, a function or an unknown callable."""
        value = self.evaluated(node)
        if has_effect(value):
            self.flow.effects.append(node)
        return value

    def evaluated(self, node: cst.Call) -> Value:
        """The value of a call; what it calls is evaluated first."""
        self.flow.calls.append(node)
        self.flow.guards[node] = tuple(self.guards)
        args: list[Value] = []
        keywords: list[tuple[str, Value]] = []
        receiver: Value | None = None
        name = ""
        if isinstance(node.func, cst.Attribute):
            receiver = self.value(node.func.value)
            name = node.func.attr.value
        for arg in node.args:
            value = self.value(arg.value)
            if arg.star == "**":
                if value.op != "dict":
                    raise Refused("arguments", "a mapping that is not followed", arg)
                keywords.extend(value.keywords)
            elif arg.star == "*" and value.op == "tuple":
                args.extend(value.args)
            elif arg.star == "*":
                args.append(self.graph.make("starred", args=(value,)))
            elif arg.keyword is not None:
                keywords.append((arg.keyword.value, value))
            else:
                args.append(value)
        if receiver is not None and receiver.op not in {"self", "name"}:
            return self.method(receiver, name, args, keywords)
        function = self.value(node.func)
        return self.called(function, args, keywords)

    def called(
        self, function: Value, args: list[Value], keywords: list[tuple[str, Value]]
    ) -> Value:
        """The value of calling a callable value."""
        make = self.graph.make
        if function.op == "choice":
            test, yes, no = function.args
            return self.merge(
                test, self.called(yes, args, keywords), self.called(no, args, keywords)
            )
        if function.op == "passes" and len(args) == 1 and not keywords:
            return args[0]
        if function.op in {"child", "element"}:
            return make("module", args=(function, *args), keywords=tuple(keywords))
        if function.op == "bound" and f"self.{function.name}" in self.inlined:
            return self.inline(f"self.{function.name}", args, keywords)
        if function.op != "name":
            return make("call", args=(function, *args), keywords=tuple(keywords))
        name = function.name
        if name in self.inlined:
            return self.inline(name, args, keywords)
        if name == "torch.nn.functional.dropout" and not self.is_training(keywords):
            return args[0]
        if name == "torch.is_autocast_enabled":
            return self.graph.const(False)
        if name == "isinstance" and args[0].op == "const" and len(args) == 2:
            return self.is_instance(args[0].constant, args[1])
        if name in {"getattr", "setattr"} and args[0].op == "self":
            found = self.by_type(name, args)
            if found is not None:
                return found
        if name == "slice":
            return make("slice", args=tuple([*args, self.graph.const(None)][:3]))
        if name == "getattr" and args[0].op == "config" and args[1].op == "const":
            return make("getattr", str(args[1].constant), (args[0], *args[2:]))
        if name.startswith("torch.") and name[6:] in spelling.METHODS and args:
            return self.method(args[0], name[6:], args[1:], keywords)
        args, keywords = self.positional(name, args, keywords)
        if name in spelling.JOINS and args and args[0].op == "list":
            args[0] = make("tuple", args=args[0].args)
        if writes_operand(name, args, keywords):
            self.write(args[0], self.flow.calls[-1])
            return self.graph.fresh("written", name, *args)
        if name == "torch.nn.Parameter" and args and args[0].name in FILLED:
            # What it is filled with first is not what the checkpoint gives.
            args[0] = make("call", "torch.empty", args[0].args, args[0].keywords)
        return make("call", name, tuple(args), tuple(keywords))

    def by_type(self, name: str, args: list[Value]) -> Value | None:
        """An attribute with a name made from a text, for `Evaluator` to follow."""
        raise NotImplementedError

    def is_training(self, keywords: list[tuple[str, Value]]) -> bool:
        """Whether a functional dropout may drop anything."""
        training = dict(keywords).get("training")
        return training is None or self.truth(training) is not False

    def inline(
        self, name: str, args: list[Value], keywords: list[tuple[str, Value]]
    ) -> Value:
        """Evaluate a function of the file at its call."""
        raise NotImplementedError

    def is_instance(self, constant: object, kind: Value) -> Value:
        """`isinstance` of a constant and a builtin type."""
        types = {"int": int, "float": float, "str": str, "dict": dict, "bool": bool}
        if kind.op == "name" and kind.name in types:
            return self.graph.const(isinstance(constant, types[kind.name]))
        if constant is None and kind.op == "name" and kind.name in CLASSES:
            return self.graph.const(False)
        return self.graph.make("call", "isinstance", (self.graph.const(constant), kind))

    def method(
        self,
        receiver: Value,
        name: str,
        args: list[Value],
        keywords: list[tuple[str, Value]],
    ) -> Value:
        """A method of a tensor or another object, in its one spelling."""
        make = self.graph.make
        if self.base and (receiver.name, name) == ("super", "forward"):
            base = make("base", self.base)
            return make("module", args=(base, *args), keywords=tuple(keywords))
        name = spelling.SYNONYMS.get(name, name)
        if name == "copy" and receiver.op == "dict" and not args and not keywords:
            return self.own_dict(receiver.keywords)
        if name in spelling.IDENTITIES and not args:
            return receiver
        if name == "type_as" and len(args) == 1:
            return make("method", "to", (receiver, make("attr", "dtype", (args[0],))))
        if name in spelling.DTYPE_METHODS:
            dtype = make("name", spelling.DTYPE_METHODS[name])
            return make("method", "to", (receiver, dtype))
        if name in spelling.OPERATORS and len(args) == 1 and not keywords:
            return self.binary(spelling.OPERATORS[name], receiver, args[0])
        if name == "square" and not args:
            return self.binary("**", receiver, self.graph.const(2))
        if name == "size":
            shape = make("attr", "shape", (receiver,))
            return make("subscript", args=(shape, args[0])) if args else shape
        args, keywords = self.positional(name, args, keywords)
        if (
            name == "to"
            and args
            and not keywords
            and all(is_const(a, None) for a in args)
        ):
            return receiver
        if name == "to" and len(args) == 1 and dict(keywords).get("device") is not None:
            keywords = [pair for pair in keywords if pair[0] != "device"]
        if name == "view" and len(args) == 1 and args[0].op in {"tuple", "list"}:
            args = list(args[0].args)
        if name == "view" and len(args) == 1 and args[0].op == "starred":
            args = [args[0].args[0]]
        result = make("method", name, (receiver, *args), tuple(keywords))
        if name.endswith("_") and not name.endswith("__"):
            self.written_by_method(receiver, result)
            return self.graph.fresh("written", name, receiver, *args)
        return result

    def own_dict(self, entries: tuple[tuple[str, Value], ...]) -> Value:
        """A dict like no other: a later change of one is none of the other."""
        made = self.graph.fresh("dict", "made").constant
        return self.graph.make("dict", "", (), entries, made)

    def written_by_method(self, receiver: Value, result: Value) -> None:
        """A trailing-underscore method writes its receiver."""
        self.write(receiver, self.flow.calls[-1])

    def write(self, value: Value, node: cst.CSTNode) -> None:
        """Provided by `Evaluator`."""
        raise NotImplementedError

    def positional(
        self, name: str, args: list[Value], keywords: list[tuple[str, Value]]
    ) -> tuple[list[Value], list[tuple[str, Value]]]:
        """Arguments with the known keywords moved to their positions."""
        parameters = self.signatures.get(name, spelling.PARAMETERS.get(name, ()))
        given = dict(keywords)
        args = list(args)
        for parameter in parameters[len(args) :]:
            if parameter not in given:
                break
            args.append(given.pop(parameter))
        if given.get("out") is not None:
            self.write(given["out"], self.flow.calls[-1])
        return args, list(given.items())
