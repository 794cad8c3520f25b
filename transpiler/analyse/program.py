"""The program: the classes on the model's path, evaluated from the top down.

Evaluation starts at the causal class with the serving facts and follows every
module call. The parameters of a class are the values its callers pass, so that a
mask or a constant that the model makes is still itself inside the attention.

Refused when
    constructor: a constructor makes one child twice or sets it again, or gives a
        module its arguments by `*` or `**`; a child that only a test makes is read in
        another way than called.
    arguments: a constructor takes starred parameters.
    constructed-twice: a class is made twice with different arguments.
    called-twice: a class is called with two masks or constants, or tensors that are
        related in one call and not in the other.
    module-list: a list of modules that is not one comprehension over a range.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import libcst as cst

from transpiler.analyse.arguments import bind_arguments
from transpiler.analyse.evaluate import Evaluator
from transpiler.analyse.flow import Flow
from transpiler.analyse.module import (
    ModelingClass,
    ModelingModule,
    check_neutral,
    the_causal_class,
)
from transpiler.analyse.statements import (
    check_attributes_free,
    is_pretrained,
    lines_run,
    nested,
)
from transpiler.analyse.values import Graph, Value, is_activation
from transpiler.refusal import Refused

IDENTITY = "torch.nn.Identity"
# Modules that return their operand when nothing is trained.
PASSING = frozenset({IDENTITY, "torch.nn.Dropout"})


@dataclass
class Child:
    """A module that a constructor makes.

    Attributes:
        name: Attribute name.
        kind: Name of the class: of the file, or dotted (`torch.nn.Linear`).
        call: The constructor call.
        statement: The line that assigns it.
        assignment: The assignment on that line.
        many: Whether it is a list of such modules.
        value: What the constructor call is, as a value.
        guarded: Whether a test of the config decides that it is made.
        choice: The conditional expression that makes the module or an identity.
    """

    name: str
    kind: str
    call: cst.Call
    statement: cst.SimpleStatementLine
    assignment: cst.Assign
    many: bool
    value: Value
    guarded: bool = False
    choice: cst.IfExp | None = None

    def argument(self, position: int, keyword: str) -> cst.BaseExpression | None:
        """An argument of the constructor call, by position or keyword."""
        plain = [arg for arg in self.call.args if arg.keyword is None]
        for arg in self.call.args:
            if arg.keyword is not None and arg.keyword.value == keyword:
                return arg.value
        return plain[position].value if position < len(plain) else None


@dataclass
class Scope:
    """A class on the path with what its constructor and methods do.

    Attributes:
        cls: The class.
        children: Modules it makes, by attribute name.
        init: Flow of its constructor.
        forward: Flow of its forward, None for a class that a table describes.
        parameters: What the constructor's parameters are.
    """

    cls: ModelingClass
    children: dict[str, Child] = field(default_factory=dict)
    init: Flow = field(default_factory=Flow)
    forward: Flow | None = None
    parameters: dict[str, Value] = field(default_factory=dict)
    loops: dict[cst.CSTNode, dict[str, Value]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Class name."""
        return self.cls.name

    def statement_of(self, attribute: str) -> cst.CSTNode:
        """The target node of `self.<attribute> = …` in the constructor."""
        return self.init.assigned[attribute][1]


@dataclass
class Program:
    """The classes on the path, from the causal class down.

    Attributes:
        module: The modeling module.
        graph: Where all values are made.
        scopes: By class name, callers before callees.
        results: For each call of a module of the file, what its forward returns.
    """

    module: ModelingModule
    graph: Graph
    scopes: dict[str, Scope] = field(default_factory=dict)
    results: dict[Value, Value | None] = field(default_factory=dict)

    @property
    def causal(self) -> Scope:
        """The causal class."""
        return next(iter(self.scopes.values()))

    def scope_of(self, child: Child) -> Scope | None:
        """The scope of a child's class, None when the class is not of the file."""
        return self.scopes.get(child.kind)


class Analyser:
    """Builds a `Program`; `leaves` are classes a table describes, not entered."""

    def __init__(self, module: ModelingModule, leaves: frozenset[str]) -> None:
        self.module = module
        self.leaves = leaves
        self.program = Program(module, Graph())
        self.seen: dict[str, dict[str, Value]] = {}

    def run(self, facts: dict[str, Value]) -> Program:
        """Evaluate everything reachable from the causal class under the facts."""
        cls = the_causal_class(self.module)
        config = self.program.graph.make("config")
        self.construct(cls, {"config": config})
        self.enter(cls, facts)
        return self.program

    # Constructors

    def construct(self, cls: ModelingClass, bound: dict[str, Value]) -> Scope:
        """Evaluate a constructor and those of its children."""
        if cls.name in self.program.scopes:
            scope = self.program.scopes[cls.name]
            if scope.parameters != bound and cls.name not in self.leaves:
                raise Refused(
                    "constructed-twice",
                    f"{cls.name} is made twice with different arguments",
                    cls.node,
                )
            return scope
        check_neutral(cls, self.module, "forward")
        init = cls.method("__init__")
        star = init.params.star_kwarg
        rest = bound.get(star.name.value) if star is not None else None
        if isinstance(init.params.star_arg, cst.Param) or (rest and rest.keywords):
            raise Refused("arguments", "a constructor with starred parameters", init)
        scope = Scope(cls, parameters=bound)
        self.program.scopes[cls.name] = scope
        evaluator = Evaluator(
            self.program.graph,
            self.module.resolve,
            lambda name: self.made(scope, name),
        )
        scope.init = evaluator.flow
        self_value = self.program.graph.make("self", cls.name)
        evaluator.run(init, {"self": self_value, **bound})
        check_attributes_free(cls, list(scope.init.assigned))
        for node in nested(init):
            small = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
            if isinstance(small, cst.Return):
                raise Refused("constructor", "the constructor returns", node)
        for statement, guarded in lines_run(init.body, scope.init):
            self.find_child(scope, statement, guarded)
        for child in list(scope.children.values()):
            again = scope.statement_of(child.name)
            if again not in [t.target for t in child.assignment.targets]:
                raise Refused("constructor", f"self.{child.name} is set again", again)
            self.construct_child(scope, child)
        return scope

    def find_child(
        self, scope: Scope, statement: cst.SimpleStatementLine, guarded: bool
    ) -> None:
        """Record `self.x = Class(...)` and `self.x = ModuleList([Class(...) …])`."""
        for small in statement.body:
            if not isinstance(small, cst.Assign):
                continue
            made: cst.BaseExpression | None = small.value
            choice: cst.IfExp | None = None
            if isinstance(made, cst.IfExp) and self.is_identity(scope, made.orelse):
                choice, made = made, made.body
            if not isinstance(made, cst.Call):
                continue
            if len(small.targets) > 1 and self.constructed(scope, made):
                raise Refused("constructor", "a module with two names", small)
            for target in small.targets:
                where = target.target
                if not isinstance(where, cst.Attribute):
                    continue
                name = where.attr.value
                found = self.constructed(scope, made)
                if found is not None:
                    kind, call, many = found
                    if any(arg.star for arg in call.args):
                        raise Refused("constructor", "starred arguments", call)
                    if name in scope.children:
                        raise Refused("constructor", f"self.{name} is made twice", call)
                    value = scope.init.values[call]
                    scope.children[name] = Child(
                        name,
                        kind,
                        call,
                        statement,
                        small,
                        many,
                        value,
                        guarded,
                        choice,
                    )

    def is_identity(self, scope: Scope, node: cst.BaseExpression) -> bool:
        """Whether an expression makes a module that returns its operand."""
        function = (
            scope.init.values.get(node.func) if isinstance(node, cst.Call) else None
        )
        return function is not None and function.name == IDENTITY

    def constructed(
        self, scope: Scope, call: cst.Call
    ) -> tuple[str, cst.Call, bool] | None:
        """Class that a call makes, with the call that makes one element of a list."""
        function = scope.init.values.get(call.func)
        if function is None or function.op != "name":
            return None
        if function.name == "torch.nn.ModuleList" and call.args:
            made = call.args[0].value
            if isinstance(made, cst.ListComp | cst.GeneratorExp) and isinstance(
                made.elt, cst.Call
            ):
                inner = self.constructed(scope, made.elt)
                return (inner[0], made.elt, True) if inner else None
            raise Refused("module-list", "a list not made by one comprehension", call)
        known = function.name in self.module.classes
        if known or function.name.startswith("torch.nn."):
            if function.name in {"torch.nn.Parameter", "torch.nn.Buffer"}:
                return None
            return function.name, call, False
        return None

    def construct_child(self, scope: Scope, child: Child) -> None:
        """Evaluate the constructor of a child's class with its arguments."""
        cls = self.module.classes.get(child.kind)
        if cls is None:
            return
        init = cls.method("__init__")
        if child.kind in self.leaves:
            self.program.scopes.setdefault(child.kind, Scope(cls))
            return
        bound = bind_arguments(init, child.value, self.program.graph, skip=1)
        self.construct(cls, bound)

    def made(self, scope: Scope, name: str) -> Value:
        """What `self.<name>` is in a constructor, where a module is still training."""
        if name == "training":
            return self.program.graph.fresh("attr", name)
        return self.attribute(scope, name, scope.init)

    def attribute(self, scope: Scope, name: str, flow: Flow) -> Value:
        """What `self.<name>` is."""
        graph = self.program.graph
        if name == "training":
            return graph.const(False)
        if name in scope.children:
            kind = "passes" if scope.children[name].kind in PASSING else "child"
            return graph.make(kind, name, (graph.make("self", scope.name),))
        if name in flow.assigned:
            return flow.assigned[name][0]
        if name == "config" and is_pretrained(scope.cls, self.module):
            return graph.make("config")
        return graph.make("attr", name, (graph.make("self", scope.name),))

    # Forwards

    def enter(self, cls: ModelingClass, bound: dict[str, Value]) -> Value | None:
        """Evaluate a forward and those of the modules it calls; what it returns."""
        scope = self.program.scopes[cls.name]
        if self.seen.setdefault(cls.name, bound) == bound and scope.forward:
            return scope.forward.result
        evaluator = Evaluator(
            self.program.graph,
            self.module.resolve,
            lambda name: self.attribute(scope, name, scope.init),
        )
        self_value = self.program.graph.make("self", cls.name)
        evaluator.base = cls.library_base
        evaluator.signatures = {
            name: tuple(p.name.value for p in function.params.params)
            for name, function in self.module.functions.items()
        }
        flow = evaluator.run(cls.method("forward"), {"self": self_value, **bound})
        if scope.forward is not None:
            self.check_same_call(scope, bound, flow)
        else:
            scope.forward = flow
            scope.loops = evaluator.loops
        self.check_guarded(scope, flow)
        for call in flow.calls:
            value = flow.values.get(call)
            if value is not None and value.op == "module":
                self.enter_call(scope, value)
        return flow.result

    def check_guarded(self, scope: Scope, flow: Flow) -> None:
        """A child that may not be there is called and not asked for.

        Raises:
            Refused: [constructor]; what is asked would have been taken for granted.
        """
        called = {call.func for call in flow.calls}
        for node, value in flow.values.items():
            if value.op != "child" or node in called:
                continue
            child = scope.children.get(value.name)
            own = value.args[0].name == scope.name
            if own and child is not None and child.guarded:
                raise Refused("constructor", f"self.{child.name} is read", node)

    def check_same_call(
        self, scope: Scope, bound: dict[str, Value], flow: Flow
    ) -> None:
        """A class called at two places is called with the same constants.

        Only tensors may differ, and what is one value in the first call is one in the
        other: fusions are decided by the first.
        """
        first = self.seen[scope.name]
        for name, value in bound.items():
            was = first[name]
            if was is not value and not (is_activation(was) and is_activation(value)):
                raise Refused(
                    "called-twice",
                    f"{scope.name} is called with two values of {name}",
                    scope.cls.node,
                )
        before = scope.forward.values if scope.forward is not None else {}
        pairs = {(before.get(node), flow.values.get(node)) for node in before}
        if not len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}):
            raise Refused(
                "called-twice",
                f"{scope.name} is called with values that are related otherwise",
                scope.cls.node,
            )

    def enter_call(self, scope: Scope, call: Value) -> None:
        """Follow a module call into the forward of the module's class."""
        target = call.args[0]
        name = target.name
        if target.op == "element":
            name = element_list(target) or ""
        child = scope.children.get(name)
        cls = self.module.classes.get(child.kind) if child is not None else None
        if child is not None and child.choice is not None:
            self.program.results[call] = call.args[1] if call.args[1:] else None
            return
        if child is None or cls is None:
            return
        forward = cls.method("forward")
        shifted = self.program.graph.make("call", "", call.args[1:], call.keywords)
        bound = bind_arguments(forward, shifted, self.program.graph, skip=1)
        if child.kind not in self.leaves:
            self.program.results[call] = self.enter(cls, bound)


def element_list(element: Value) -> str | None:
    """Name of the child list that a loop element comes from (`self.layers[:n]`)."""
    over = element.args[0]
    if over.op == "subscript":
        over = over.args[0]
    return over.name if over.op == "child" else None
