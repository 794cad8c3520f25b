"""The value of an expression: names, attributes, calls, operators, folded if known.

Refused when
    expression: an expression of a kind that is not followed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TYPE_CHECKING

import libcst as cst

from transpiler.analyse import names as spelling
from transpiler.analyse.calls import Calls
from transpiler.analyse.effects import is_tensor_made
from transpiler.analyse.values import (
    Graph,
    Value,
    fold_binary,
    is_const,
    is_forward,
    is_one_of,
)
from transpiler.refusal import Refused

if TYPE_CHECKING:
    from transpiler.analyse.flow import Flow

BINARY = {
    "Add": "+",
    "Subtract": "-",
    "Multiply": "*",
    "Divide": "/",
    "FloorDivide": "//",
    "Modulo": "%",
    "Power": "**",
    "MatrixMultiply": "@",
    "BitXor": "^",
    "BitAnd": "&",
    "BitOr": "|",
}
COMPARE = {
    "Equal": "==",
    "NotEqual": "!=",
    "LessThan": "<",
    "LessThanEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanEqual": ">=",
    "Is": "is",
    "IsNot": "is not",
    "In": "in",
    "NotIn": "not in",
}
# The name of a look-up of an activation that may have parameters.
LEARNED = "learned"
# Kinds of values that are objects for sure, hence never None.
OBJECT_WORDS = """
    self config child passes tuple list dict binary positions element index
"""
OBJECTS = frozenset(OBJECT_WORDS.split())


class Expressions(Calls):
    """Evaluates expressions in an environment of names; see `Evaluator`."""

    flow: Flow

    def __init__(
        self,
        graph: Graph,
        resolve: Callable[[str], str],
        attribute: Callable[[str], Value] | None = None,
    ) -> None:
        self.graph = graph
        self.resolve = resolve
        self.attribute = attribute
        self.base = ""
        self.names: dict[str, Value] = {}
        self.guards: list[tuple[Value, bool]] = []
        self.merged_rest: set[cst.CSTNode] = set()
        self.loops: dict[cst.CSTNode, dict[str, Value]] = {}
        self.inlined: dict[str, cst.FunctionDef] = {}
        self.signatures: dict[str, tuple[str, ...]] = {}

    def value(self, node: cst.BaseExpression) -> Value:
        """The value of an expression node; recorded in the flow."""
        found = self.compute(node)
        self.flow.values[node] = found
        return found

    def compute(self, node: cst.BaseExpression) -> Value:
        """The value of an expression node, by kind."""
        make = self.graph.make
        match node:
            case cst.Name():
                return self.name(node.value)
            case cst.Integer() | cst.Float() | cst.SimpleString() | cst.Imaginary():
                return self.graph.const(ast.literal_eval(node.value))
            case cst.Ellipsis():
                return self.graph.const(...)
            case cst.Attribute():
                return self.attr(node)
            case cst.Call():
                return self.call(node)
            case cst.BinaryOperation():
                operator = type(node.operator).__name__
                left, right = self.value(node.left), self.value(node.right)
                return self.binary(operator, left, right)
            case cst.UnaryOperation():
                return self.unary(
                    type(node.operator).__name__, self.value(node.expression)
                )
            case cst.Comparison():
                return self.comparison(node)
            case cst.BooleanOperation():
                return self.boolean(node)
            case cst.IfExp():
                return self.conditional(node)
            case cst.Tuple() | cst.List():
                kind = "tuple" if isinstance(node, cst.Tuple) else "list"
                return make(kind, args=tuple(self.element(e) for e in node.elements))
            case cst.Dict():
                return self.dictionary(node)
            case cst.Subscript():
                return self.subscript(node)
            case cst.NamedExpr():
                value = self.value(node.value)
                self.flow.bound.append(node)
                if isinstance(node.target, cst.Name):
                    self.names[node.target.value] = value
                return value
            case cst.FormattedString():
                return self.text(node)
            case cst.ConcatenatedString():
                self.value(node.left)
                self.value(node.right)
                return self.graph.fresh("text", "f-string")
            case cst.ListComp() | cst.GeneratorExp():
                return self.comprehension(node)
            case cst.Lambda():
                return self.graph.fresh("lambda", "lambda")
            case _:
                raise Refused(
                    "expression", f"{type(node).__name__.lower()} is not followed", node
                )

    def name(self, name: str) -> Value:
        """A local name, a constant, or something of the module."""
        if name in self.names:
            return self.names[name]
        if name in {"True", "False", "None"}:
            return self.graph.const({"True": True, "False": False}.get(name))
        return self.graph.make("name", self.resolve(name))

    def attr(self, node: cst.Attribute) -> Value:
        """`base.name`, where a chain from an imported name is one dotted name."""
        base = self.value(node.value)
        name = node.attr.value
        if base.op == "self" and self.attribute is not None:
            return self.attribute(name)
        if base.op == "param" and name == "training":
            return self.graph.const(False)
        if base.op == "name":
            return self.graph.make("name", self.resolve(f"{base.name}.{name}"))
        if name == "dtype" and base.op == "method" and base.name in spelling.IDENTITIES:
            base = base.args[0]
        return self.graph.make("attr", name, (base,))

    def element(self, node: cst.BaseElement) -> Value:
        """An element of a display, starred or not."""
        value = self.value(node.value)
        if isinstance(node, cst.StarredElement):
            return self.graph.make("starred", args=(value,))
        return value

    def dictionary(self, node: cst.Dict) -> Value:
        """A dict display with string keys; any other is unknown."""
        if not node.elements:
            return self.own_dict(())
        entries: list[tuple[str, Value]] = []
        for element in node.elements:
            value = self.value(element.value)
            if not isinstance(element, cst.DictElement):
                return self.graph.fresh("unknown", "dict", value)
            key = self.value(element.key)
            if key.op != "const" or not isinstance(key.constant, str):
                return self.graph.fresh("unknown", "dict", value)
            entries.append((key.constant, value))
        return self.graph.make("dict", keywords=tuple(entries))

    def text(self, node: cst.FormattedString) -> Value:
        """An f-string: its parts, unknown when one is formatted in its own way."""
        parts: list[Value] = []
        is_plain = True
        for part in node.parts:
            if isinstance(part, cst.FormattedStringExpression):
                parts.append(self.value(part.expression))
                is_plain = is_plain and not (
                    part.conversion or part.format_spec or part.equal
                )
            elif isinstance(part, cst.FormattedStringText):
                parts.append(self.graph.const(part.value))
        if not is_plain:
            return self.graph.fresh("text", "f-string")
        return self.graph.make("text", args=tuple(parts))

    def comprehension(self, node: cst.ListComp | cst.GeneratorExp) -> Value:
        """`[f(x) for x in xs]`: one element that stands for all."""
        over = self.value(node.for_in.iter)
        outer = dict(self.names)
        if isinstance(node.for_in.target, cst.Name):
            self.names[node.for_in.target.value] = self.graph.make(
                "element", args=(over,)
            )
        element = self.value(node.elt)
        self.names = outer
        if node.for_in.ifs or node.for_in.inner_for_in is not None:
            return self.graph.fresh("unknown", "comprehension", over)
        return self.graph.make("each", args=(element, over))

    # Operators

    def binary(self, operator: str, left: Value, right: Value) -> Value:
        """An operator on two values, folded when both are constants."""
        symbol = BINARY.get(operator, operator)
        if left.op == right.op == "const":
            folded = fold_binary(symbol, left.constant, right.constant)
            if folded is not None:
                return self.graph.const(folded)
        if symbol == "^" and left is right:
            return self.graph.const(False)
        if symbol == "*" and left is right:
            return self.graph.make("binary", "**", (left, self.graph.const(2)))
        return self.graph.make("binary", symbol, (left, right))

    def unary(self, operator: str, operand: Value) -> Value:
        """`not x`, `-x`, folded when known."""
        if operator == "Not":
            truth = self.truth(operand)
            if truth is not None:
                return self.graph.const(not truth)
            if operand.op == "unary" and operand.name == "not":
                return operand.args[0]
            return self.graph.make("unary", "not", (operand,))
        if operator == "Minus":
            if operand.op == "const" and isinstance(operand.constant, int | float):
                return self.graph.const(-operand.constant)
            return self.graph.make("unary", "-", (operand,))
        return self.graph.make("unary", operator, (operand,))

    def comparison(self, node: cst.Comparison) -> Value:
        """One comparison; `is` and `in` are folded when the facts decide them."""
        left = self.value(node.left)
        if len(node.comparisons) != 1:
            raise Refused("expression", "a chained comparison is not followed", node)
        operator = COMPARE[type(node.comparisons[0].operator).__name__]
        right = self.value(node.comparisons[0].comparator)
        if operator in {"is not", "not in", "!="}:
            positive = {"is not": "is", "not in": "in", "!=": "=="}[operator]
            return self.unary("Not", self.compare(positive, left, right))
        return self.compare(operator, left, right)

    def compare(self, operator: str, left: Value, right: Value) -> Value:
        """A comparison without negation."""
        if operator == "is" and right.op == "const" and right.constant is None:
            if left.op == "const":
                return self.graph.const(left.constant is None)
            if left.op in OBJECTS or is_tensor_made(left):
                return self.graph.const(False)
            if left.op == "tokens?":
                embeds = left.args[0]
                return self.unary("Not", self.compare("is", embeds, right))
        if left.op == right.op == "const" and operator == "==":
            return self.graph.const(left.constant == right.constant)
        return self.graph.make("compare", operator, (left, right))

    def boolean(self, node: cst.BooleanOperation) -> Value:
        """`and`, `or` with Python's own short cut."""
        left = self.value(node.left)
        truth = self.truth(left)
        is_and = isinstance(node.operator, cst.And)
        if truth is not None:
            return self.value(node.right) if truth == is_and else left
        right = self.value(node.right)
        return self.graph.make("bool", "and" if is_and else "or", (left, right))

    def conditional(self, node: cst.IfExp) -> Value:
        """`a if test else b`, one side when the facts decide the test."""
        test = self.value(node.test)
        truth = self.truth(test)
        if truth is not None:
            self.flow.tests[node] = truth
            return self.value(node.body if truth else node.orelse)
        return self.merge(test, self.value(node.body), self.value(node.orelse))

    def merge(self, test: Value, yes: Value, no: Value) -> Value:
        """One value for both sides of an undecided test."""
        if yes is no:
            return yes
        if yes.op == no.op == "dict":
            missing = self.graph.make("missing")
            ours, theirs = dict(yes.keywords), dict(no.keywords)
            entries = tuple(
                (
                    key,
                    self.merge(test, ours.get(key, missing), theirs.get(key, missing)),
                )
                for key in {**ours, **theirs}
            )
            return self.graph.make("dict", keywords=entries)
        if test.op == "unary" and test.name == "not":
            return self.graph.make("choice", args=(test.args[0], no, yes))
        if is_learned(test, yes, no):
            return self.graph.make("subscript", LEARNED, no.args)
        return self.graph.make("choice", args=(test, yes, no))

    def truth(self, value: Value) -> bool | None:
        """Whether a value is true, None when the facts do not say."""
        if value.op == "const":
            return bool(value.constant)
        if value.op in {"dict", "tuple", "list"}:
            starred = [arg for arg in value.args if arg.op == "starred"]
            missing = any(v.op == "missing" for _, v in value.keywords)
            known = len(value.args) - len(starred) + len(value.keywords)
            return None if (starred and not known) or missing else bool(known)
        if value.op in {"child", "passes", "self", "config"}:
            return True
        return None

    # Items and calls

    def item(self, value: Value, index: int, count: int) -> Value:
        """The value at `index` of a value that is unpacked into `count` names."""
        if (
            value.op in {"tuple", "list"}
            and len(value.args) == count
            and all(arg.op != "starred" for arg in value.args)
        ):
            return value.args[index]
        return self.graph.make("item", str(index), (value,))

    def index_of(self, node: cst.Subscript) -> Value:
        """The key of a subscript."""
        parts: list[Value] = []
        for element in node.slice:
            if isinstance(element.slice, cst.Index):
                parts.append(self.value(element.slice.value))
            elif isinstance(element.slice, cst.Slice):
                bounds = (element.slice.lower, element.slice.upper, element.slice.step)
                made = [
                    self.graph.const(None) if b is None else self.value(b)
                    for b in bounds
                ]
                if is_const(made[0], 0) and is_forward(made[2]):
                    made[0] = self.graph.const(None)
                parts.append(self.graph.make("slice", args=tuple(made)))
        if len(parts) == 1:
            return parts[0]
        return self.graph.make("tuple", args=tuple(parts))

    def subscript(self, node: cst.Subscript) -> Value:
        """`base[key]`, looked up when both are known."""
        base, key = self.value(node.value), self.index_of(node)
        if key.op == "const":
            if base.op == "dict" and key.constant in dict(base.keywords):
                return dict(base.keywords)[str(key.constant)]
            if (
                base.op in {"tuple", "list"}
                and isinstance(key.constant, int)
                and all(arg.op != "starred" for arg in base.args)
                and -len(base.args) <= key.constant < len(base.args)
            ):
                return base.args[key.constant]
        if base.op == "mapped" and is_one_of(key, base.args[0]):
            return self.graph.replaced(base.args[1], base.args[0], key)
        return self.graph.make("subscript", args=(base, key))


def is_learned(test: Value, yes: Value, no: Value) -> bool:
    """Whether a value is an activation which, of one name, is in the model's precision.

    `ACT2CLS["name"](dtype=config.dtype) if key == "name" else ACT2FN[key]`
    """
    made = yes.args[0] if yes.op == "call" and len(yes.args) == 1 else yes
    if not made.op == no.op == "subscript" or (test.op, test.name) != ("compare", "=="):
        return False
    dtype = yes.keyword("dtype") if len(yes.keywords) == 1 else None
    return (
        test.args == (no.args[1], made.args[1])
        and made.args[0].name == "activations.ACT2CLS"
        and no.args[0].name == "activations.ACT2FN"
        and dtype is not None
        and (dtype.op, dtype.name) == ("attr", "dtype")
        and dtype.args[0].op == "config"
    )
