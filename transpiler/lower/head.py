"""The head: from the model's result to the logits, and what its class says of weights.

vLLM asks for the logits of some hidden states later, so the head must read the model's
result and nothing else. What upstream does to the logits is what vLLM's logits
processor does, or is refused.

Refused when, besides what is listed below
    child: the class has a module besides the head and the model.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

import libcst as cst

from transpiler.analyse.bodies import parameter_names
from transpiler.analyse.program import Child, Scope
from transpiler.analyse.values import Value, is_const, unify
from transpiler.fusions.fusion import (
    LINEAR,
    Work,
    bias_of,
    check_linear,
    forward_of,
    size_of,
)
from transpiler.lower.embedding import the_embedding
from transpiler.lower.texts import config_text
from transpiler.refusal import Refused
from transpiler.tree import code

# Kinds of values that may follow a sign of division as they are.
FACTORS = frozenset({"attr", "const", "getattr"})
INPUTS = {"tokens?": "input_ids", "positions": "position_ids", "param": "inputs_embeds"}


@dataclass(frozen=True)
class Head:
    """What the causal class makes of its model's result.

    Attributes:
        linear: The head.
        model: The model.
        bias: Source text of whether the head has a bias, empty for none.
        changes: What is done to the logits, as arguments of vLLM's logits processor.
    """

    linear: Child
    model: Child
    bias: str
    changes: tuple[str, ...]


def the_head(work: Work, scope: Scope) -> Head:
    """The head and the model, with nothing else between them and the logits.

    Raises:
        Refused: [head], and what the class says otherwise of inputs and weights.
    """
    flow = forward_of(scope)
    where = scope.cls.method("forward")
    result = flow.result
    if result is None or not result.name.startswith("modeling_outputs."):
        raise Refused("head", "the result is not one of Transformers' outputs", where)
    given = result.keyword("logits")
    logits, changes = processed(work, given) if given is not None else (None, ())
    if logits is None or logits.op != "module" or logits.args[0].op != "child":
        raise Refused("head", "the logits are not the head's output", where)
    head = scope.children.get(logits.args[0].name)
    if head is None or head.kind != LINEAR:
        raise Refused("head", "the head is not a linear", where)
    check_linear(head)
    hidden = all_tokens(logits.args[1])
    first = hidden.op == "subscript" and is_const(hidden.args[1], 0)
    if not first and (hidden.op != "attr" or hidden.name != "last_hidden_state"):
        raise Refused("head", "the head does not read the model's result", where)
    call = hidden.args[0]
    model = scope.children.get(call.args[0].name) if call.op == "module" else None
    if model is None or flow.writes:
        raise Refused("head", "the head does not read the model's result", where)
    check_inputs(work, call, model, where)
    check_class_facts(work, scope, head, model)
    others = [c.name for c in scope.children.values() if c not in (head, model)]
    if others:
        raise Refused("child", f"self.{others[0]} is not lowered", scope.cls.node)
    return Head(head, model, bias_text(scope, head), changes)


def bias_text(scope: Scope, head: Child) -> str:
    """Whether the head has a bias, as source text; empty for none.

    Raises:
        Refused: [head] when neither a constant nor the config says it.
    """
    bias = bias_of(scope, head)[0]
    text = config_text(bias)
    if text is None:
        raise Refused("head", "the head may have a bias", head.call)
    return "" if text == "False" else text


def processed(work: Work, logits: Value) -> tuple[Value, tuple[str, ...]]:
    """The head's output and what is done to it, in the order of vLLM's processor.

    The processor caps the logits, where there is a cap, and scales them after.
    """
    rest, cap = uncapped(work, logits)
    if cap or logits.op != "binary" or logits.name not in {"*", "/"}:
        return rest, cap
    inner, factor = logits.args
    if logits.name == "*" and config_text(factor) is None:
        inner, factor = factor, inner
    text = config_text(factor)
    if text is None or factor.op not in FACTORS:
        return logits, ()
    rest, cap = uncapped(work, inner)
    return rest, (*cap, f"scale={text}" if logits.name == "*" else f"scale=1 / {text}")


def uncapped(work: Work, logits: Value) -> tuple[Value, tuple[str, ...]]:
    """Logits before they are capped by `tanh(x / cap) * cap`, and the cap."""
    graph = work.program.graph
    rest, cap = graph.make("hole", "logits"), graph.make("hole", "cap")
    inner = graph.make("binary", "/", (rest, cap))
    bounded = graph.make("binary", "*", (graph.make("method", "tanh", (inner,)), cap))
    absent = graph.make("compare", "is", (cap, graph.const(None)))
    optional = graph.make("choice", args=(absent, rest, bounded))
    found = unify(optional, logits, {}) or unify(bounded, logits, {})
    text = config_text(found["cap"]) if found is not None else None
    if found is None or text is None:
        return logits, ()
    return found["logits"], (f"soft_cap={text}",)


def check_inputs(work: Work, call: Value, model: Child, where: cst.CSTNode) -> None:
    """The model is made from the config and called with what the engine gives.

    Raises:
        Refused: [model-call] when the class changes an input, or makes the model with
            more than the config: the generated class does neither.
    """
    made = [*model.value.args, *(v for _, v in model.value.keywords)]
    if [operand.op for operand in made] != ["config"]:
        raise Refused("model-call", "not made from the config alone", model.call)
    given = [*call.args[1:], *(v for _, v in call.keywords)]
    for operand in given:
        parts = {part.op for part in operand.walk()}
        plain = operand.op in {"tokens?", "positions", "param"}
        if parts & {"tokens?", "positions", "param"} and not plain:
            raise Refused("model-call", "an input of the model is changed", where)
    kinds = sorted(v.op for v in given if v.op in {"tokens?", "positions", "param"})
    if kinds != ["param", "positions", "tokens?"]:
        raise Refused("model-call", "the model is given other inputs", where)
    places = parameter_names(work.scope(model.kind).cls.method("forward"))
    for name, operand in (*zip(places, call.args[1:], strict=False), *call.keywords):
        wanted = INPUTS.get(operand.op)
        if wanted is not None and name != wanted:
            raise Refused("model-call", f"{wanted} is given as {name}", where)


def check_class_facts(work: Work, scope: Scope, head: Child, model: Child) -> None:
    """What the class says of tied weights and precision is what is generated.

    Raises:
        Refused: [tied-weights] when the head is not tied to the embedding by the
            config's switch; [keep-in-fp32] when modules keep another precision.
    """
    owner = work.scope(model.kind)
    found = the_embedding(work, owner)
    embedding = found.child
    sizes = [size_of(scope, head, i)[0] for i in (1, 0)]
    ours = [owner.init.values[node] for node in (found.vocabulary, found.width)]
    if ours != sizes:
        raise Refused("tied-weights", "head and embedding differ in size", head.call)
    tied = {f"{head.name}.weight": f"{model.name}.{embedding.name}.weight"}
    for other in work.program.scopes.values():
        facts = class_facts(work, other.name)
        node = facts.get("_tied_weights_keys", "None")
        if literal(node) != (tied if other is scope else None):
            raise Refused(
                "tied-weights", f"_tied_weights_keys is {node}", other.cls.node
            )
        for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict"):
            if facts.get(name, "None") not in {"None", "[]"}:
                raise Refused("keep-in-fp32", f"{name} is set", other.cls.node)


def literal(text: str) -> object:
    """The constant that a text is, or the text itself."""
    try:
        return ast.literal_eval(text)
    except ValueError:
        return text


def class_facts(work: Work, name: str) -> dict[str, str]:
    """Class attributes of a class and its bases in the file, as source text."""
    cls = work.program.module.classes[name]
    found: dict[str, str] = {}
    for base in reversed(cls.bases):
        if base in work.program.module.classes:
            found |= class_facts(work, base)
    for line in cls.node.body.body:
        if isinstance(line, cst.SimpleStatementLine):
            for small in line.body:
                if isinstance(small, cst.Assign):
                    for target in small.targets:
                        found[code(target.target)] = code(small.value)
                elif isinstance(small, cst.AnnAssign) and small.value is not None:
                    found[code(small.target)] = code(small.value)
    return found


def all_tokens(value: Value) -> Value:
    """`x[:, slice(0, None), :]` is x."""
    if value.op != "subscript" or value.args[1].op != "tuple":
        return value
    for part in value.args[1].args:
        if part.op != "slice":
            return value
        start, stop, step = part.args
        begins = is_const(start, None) or is_const(start, 0)
        if not (begins and is_const(stop, None) and is_const(step, None)):
            return value
    return value.args[0]
