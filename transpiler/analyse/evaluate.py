"""Abstract evaluation: the value of every expression of a method, under facts.

`Evaluator.run` walks the statements of one function in order. Tests that the facts
decide choose a branch; others are walked on both sides and merged. What it met is
left in `Evaluator.flow`: the value of each node, which branches are live, what is
written in place. It changes nothing and never executes the source.

Refused when
    statement: a statement of a kind that is not followed, such as a `try`.
    loop: a loop that returns, or has an `else`.
    arguments: a call of a function of the file with a keyword that it has not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

from transpiler.analyse.flow import Flow
from transpiler.analyse.mappings import Mappings
from transpiler.analyse.names import assigned_names
from transpiler.analyse.values import Graph, Value, is_const
from transpiler.refusal import Refused

Block = Sequence[cst.BaseStatement | cst.BaseSmallStatement]


class Evaluator(Mappings):
    """Evaluates one function.

    Args:
        graph: Where values are made; shared by all functions of a program.
        attribute: What `self.<name>` is, or None when the function has no `self`.
        resolve: Full dotted name of a name that is not local.
    """

    def __init__(
        self,
        graph: Graph,
        resolve: Callable[[str], str],
        attribute: Callable[[str], Value] | None = None,
    ) -> None:
        super().__init__(graph, resolve, attribute)
        self.flow = Flow()
        self.depth = 0

    def run(self, function: cst.FunctionDef, bound: dict[str, Value]) -> Flow:
        """Evaluate a function whose parameters are bound to these values."""
        self.names = dict(bound)
        star = function.params.star_kwarg
        own = star.name.value if isinstance(star, cst.Param) else None
        self.given = [value for name, value in bound.items() if name != own]
        self.depth = 0
        body = function.body.body
        self.flow.result = self.block(list(body)) or self.graph.const(None)
        self.mark(function)
        return self.flow

    def mark(self, place: cst.CSTNode) -> None:
        """Record what names and attributes are at a place."""
        self.flow.environments[place] = dict(self.names)
        self.flow.held[place] = {
            n: value for n, (value, _) in self.flow.assigned.items()
        }

    def block(self, statements: Block) -> Value | None:
        """Walk statements; the returned value when the block surely returns."""
        self.depth += 1
        try:
            return self.walk(statements)
        finally:
            self.depth -= 1

    def walk(self, statements: Block) -> Value | None:
        """Walk the statements of a block one after the other."""
        for index, statement in enumerate(statements):
            self.mark(statement)
            if isinstance(statement, cst.If):
                returned = self.branch(statement, statements[index + 1 :])
                if returned is not None:
                    return returned
                if statement in self.merged_rest:
                    return None
                continue
            returned = self.statement(statement)
            if returned is not None:
                return returned
        return None

    def statement(self, node: cst.CSTNode) -> Value | None:
        """Walk one statement; the value when it returns.

        Raises:
            Refused: [statement] for a kind that is not followed; [one-line] for
                several on a line, which could only be kept or dropped together.
        """
        match node:
            case cst.SimpleStatementLine():
                if len(node.body) > 1:
                    raise Refused("one-line", "several statements on a line", node)
                return self.block(node.body)
            case cst.Return():
                return self.value(node.value) if node.value else self.graph.const(None)
            case cst.Raise():
                return self.graph.make("raise")
            case cst.Assign():
                value = self.value(node.value)
                for target in node.targets:
                    self.bind(target.target, value)
            case cst.AnnAssign():
                if node.value is not None:
                    self.bind(node.target, self.value(node.value))
            case cst.AugAssign():
                self.augmented(node)
            case cst.Expr():
                self.discarded(node)
            case cst.For():
                self.loop(node)
            case cst.With():
                for item in node.items:
                    self.context(item)
                return self.block(node.body.body)
            case cst.Assert():
                self.value(node.test)
            case cst.Continue() if self.is_table:
                return self.graph.make("continue")
            case cst.Pass():
                pass
            case _:
                raise Refused(
                    "statement", f"{type(node).__name__.lower()} is not followed", node
                )
        return None

    def context(self, item: cst.WithItem) -> None:
        """A context that changes no number.

        Raises:
            Refused: [context] for any other, or one that binds a name.
        """
        value = self.value(item.item)
        enabled = value.keyword("enabled")
        neutral = value.name in NEUTRAL_CONTEXTS or (
            value.name in AUTOCASTS and enabled is not None and is_const(enabled, False)
        )
        if item.asname is not None or not neutral:
            raise Refused("context", "a context that is not known", item)
        self.flow.effects = [c for c in self.flow.effects if c is not item.item]

    def branch(self, node: cst.If, rest: Block) -> Value | None:
        """Walk an `if`: the live side, or both sides and what follows, merged."""
        test = self.value(node.test)
        decided = self.truth(test)
        sides: list[Block] = [node.body.body, []]
        if isinstance(node.orelse, cst.Else):
            sides[1] = node.orelse.body.body
        elif isinstance(node.orelse, cst.If):
            sides[1] = [node.orelse]
        if decided is not None:
            self.flow.tests[node] = decided
            return self.block(sides[0] if decided else sides[1])
        before, held = dict(self.names), dict(self.flow.assigned)
        attributes: list[dict[str, tuple[Value, cst.CSTNode]]] = []
        returned: list[Value | None] = []
        after: list[dict[str, Value]] = []
        for sense, side in ((True, sides[0]), (False, sides[1])):
            self.names, self.flow.assigned = dict(before), dict(held)
            self.guards.append((test, sense))
            returned.append(self.block(side))
            self.guards.pop()
            after.append(self.names)
            attributes.append(self.flow.assigned)
        self.flow.assigned = self.merge_held(test, held, *attributes)
        for place, result in enumerate(returned):
            if result is not None and result.op == "raise":
                self.flow.assigned = attributes[1 - place]
        if returned[0] is None and returned[1] is None:
            self.names = self.merge_names(test, *after)
            return None
        if returned[0] is not None and returned[1] is not None:
            return self.merge(test, returned[0], returned[1])
        falls = 0 if returned[0] is None else 1
        self.names = after[falls]
        self.merged_rest.add(node)
        leaves = returned[1 - falls]
        if leaves is not None and leaves.op == "continue":
            self.flow.assigned = attributes[falls]
            self.guards.append((test, falls == 0))
            stays = self.block(rest)
            self.guards.pop()
            attributes[falls] = self.flow.assigned
            self.flow.assigned = self.merge_held(test, held, *attributes)
            return stays
        stays = self.block(rest)
        if leaves is None or leaves.op == "raise":
            return stays
        if stays is None:
            if self.depth > 1:
                raise Refused(
                    "statement", "an inner block that returns in some cases", node
                )
            stays = self.graph.const(None)
        pair = (stays, leaves) if falls == 0 else (leaves, stays)
        return self.merge(test, *pair)

    def merge_names(
        self, test: Value, yes: dict[str, Value], no: dict[str, Value]
    ) -> dict[str, Value]:
        """Names after both sides of an undecided test."""
        missing = self.graph.make("missing")
        return {
            name: self.merge(test, yes.get(name, missing), no.get(name, missing))
            for name in {**yes, **no}
        }

    def loop(self, node: cst.For) -> None:
        """Walk a loop body once, with what it carries around unknown."""
        over = self.value(node.iter)
        carried = {name for name in assigned_names(node.body) if name in self.names}
        entry = {name: self.names[name] for name in carried}
        for name in carried:
            self.names[name] = self.graph.fresh("carried", name, entry[name])
        self.bind(node.target, self.element_of(over))
        self.flow.environments[node.body] = dict(self.names)
        left = self.block(node.body.body)
        if left is not None and left.op != "continue":
            raise Refused("loop", "a loop that returns is not followed", node)
        if node.orelse is not None:
            raise Refused("loop", "a loop with an else is not followed", node)
        self.loops[node] = {
            name: self.names[name] for name in carried if name in self.names
        }
        for name in carried:
            self.names[name] = self.graph.fresh("looped", name, self.names[name])

    def element_of(self, over: Value) -> Value:
        """The value of a loop's target."""
        if over.op == "call" and over.name == "enumerate" and len(over.args) == 1:
            if over.keywords:
                return self.graph.fresh("counted", "enumerate", over)
            index = self.graph.make("index", args=over.args[:1])
            return self.graph.make("tuple", args=(index, self.element_of(over.args[0])))
        if over.op == "call" and over.name == "zip":
            return self.graph.make(
                "tuple", args=tuple(self.element_of(arg) for arg in over.args)
            )
        return self.graph.make("element", args=(over,))

    def bind(self, target: cst.BaseExpression, value: Value) -> None:
        """Assign a value to a name, a tuple of names, an attribute or an item."""
        match target:
            case cst.Name():
                self.names[target.value] = value
            case cst.Tuple() | cst.List():
                count = len(target.elements)
                for index, element in enumerate(target.elements):
                    if isinstance(element, cst.StarredElement):
                        raise Refused("statement", "a starred target", target)
                    self.bind(element.value, self.item(value, index, count))
            case cst.Attribute(value=cst.Name("self")):
                self.flow.assigned[target.attr.value] = (value, target)
            case cst.Subscript():
                self.store(target, value)
            case _:
                raise Refused("statement", "an assignment target", target)

    def inline(
        self, name: str, args: list[Value], keywords: list[tuple[str, Value]]
    ) -> Value:
        """The value of calling a function of the file with these operands."""
        function = self.inlined[name]
        parameters = function.params
        if parameters.posonly_params or parameters.kwonly_params:
            raise Refused("arguments", f"{name} takes special parameters", function)
        inner = Evaluator(self.graph, self.resolve, self.attribute)
        inner.is_table = self.is_table
        inner.inlined = {key: f for key, f in self.inlined.items() if key != name}
        names = [p.name.value for p in function.params.params]
        taken = [n for n in names if n != "self"]
        more = tuple(args[len(taken) :])
        star_arg = parameters.star_arg
        many = isinstance(star_arg, cst.Param)
        if (more and not many) or any(arg.op == "starred" for arg in args):
            raise Refused(
                "arguments", f"{name} is called with other operands", function
            )
        bound = dict(zip(taken, args, strict=False))
        if isinstance(star_arg, cst.Param):
            bound[star_arg.name.value] = self.graph.make("tuple", args=more)
        rest: list[tuple[str, Value]] = []
        for key, value in keywords:
            if key in names:
                bound[key] = value
            else:
                rest.append((key, value))
        for parameter in function.params.params:
            if parameter.name.value not in bound and parameter.default is not None:
                bound[parameter.name.value] = self.value(parameter.default)
        if isinstance(function.params.star_kwarg, cst.Param):
            star = function.params.star_kwarg.name.value
            bound[star] = self.graph.make("dict", keywords=tuple(rest))
        elif rest:
            raise Refused(
                "arguments", f"{name} has no parameter {rest[0][0]}", function
            )
        bound["self"] = self.graph.make("self", "")
        flow = inner.run(function, bound)
        self.flow.writes += flow.writes
        self.flow.alone += flow.alone
        self.flow.effects += flow.effects
        self.flow.assigned |= flow.assigned
        return flow.result or self.graph.const(None)

    def augmented(self, node: cst.AugAssign) -> None:
        """`x += y`: writes x in place when x is a tensor."""
        before = self.value(node.target)
        operator = type(node.operator).__name__.removesuffix("Assign")
        after = self.binary(operator, before, self.value(node.value))
        if before.op != "const":
            self.write(before, node)
        self.bind(node.target, after)

    def discarded(self, node: cst.Expr) -> None:
        """A call for its effect alone: it may write whatever it takes."""
        if self.is_changed_alone(node.value):
            return
        value = self.value(node.value)
        if not isinstance(node.value, cst.Call) or value.name in QUIET_CALLS:
            return
        for operand in (*value.args, *(item for _, item in value.keywords)):
            self.write(operand, node)

    def is_changed_alone(self, node: cst.BaseExpression) -> bool:
        """`name.clamp_(…)` where no other name can see the memory: a new value.

        That the receiver's memory is new is left to `flow.alone`.
        """
        if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
            return False
        held, changed = node.func.value, node.func.attr.value
        if not isinstance(held, cst.Name) or changed not in CHANGES:
            return False
        receiver = self.names.get(held.value)
        if receiver is None or receiver.op != "module":
            return False
        if any(receiver in given.walk() for given in self.given):
            return False
        if [n for n, v in self.names.items() if receiver in v.walk()] != [held.value]:
            return False
        self.value(held)
        keywords = [
            (a.keyword.value, self.value(a.value)) for a in node.args if a.keyword
        ]
        args = [self.value(a.value) for a in node.args if not a.keyword]
        if any(arg.star for arg in node.args):
            return False
        self.names[held.value] = self.method(receiver, changed[:-1], args, keywords)
        self.flow.values[node] = self.names[held.value]
        self.flow.calls.append(node)
        self.flow.guards[node] = tuple(self.guards)
        self.flow.alone.append((receiver, node))
        return True

    def write(self, value: Value, node: cst.CSTNode) -> None:
        """Every name whose value may share memory with `value` is another value now."""
        roots = {root for root in value.walk() if root.op in {"param", "carried"}}
        if not roots and value.op in {"const", "self", "config", "name", "tuple"}:
            return
        self.flow.writes.append((value, node))
        touched = roots | {value}
        for name, known in self.names.items():
            if any(part in touched for part in known.walk()):
                self.names[name] = self.graph.fresh("written", name, known)


NEUTRAL_CONTEXTS = frozenset({"torch.no_grad"})
AUTOCASTS = frozenset({"torch.autocast", "utils.generic.maybe_autocast"})
# Methods that change each element of their receiver by numbers.
CHANGES = frozenset({"clamp_"})
QUIET_CALLS = frozenset(
    {"warning_once", "warning", "info", "debug", "super", "__init__", "post_init"}
)
