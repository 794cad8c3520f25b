"""Attention: the one interface call becomes vLLM's `Attention`, flat and cached.

Scale, window and head counts are carried over or refused; an unknown keyword is a
refusal, since a keyword that is lost is a wrong number.

Refused when, besides what `lower_attention` lists
    constructor: the class does not take the config, or the index of its layer.
    name-taken: the class has an attribute `attn` already.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.program import Scope
from transpiler.analyse.values import Value, is_const
from transpiler.fusions.eager import GROUPED
from transpiler.fusions.fusion import (
    Outcome,
    Work,
    distinct_values,
    forward_of,
    is_identity,
    statements_of,
    the_node,
)
from transpiler.fusions.heads import Projection
from transpiler.fusions.moved import check_moved
from transpiler.fusions.projections import is_interface_call
from transpiler.lower.axes import BATCH, HEADS, SEQUENCE, Axes
from transpiler.lower.calls import called_child
from transpiler.lower.texts import config_text
from transpiler.lower.window import (
    check_keyword,
    check_place,
    kind_checks,
    refuse_switch,
    text_of,
    window_of,
)
from transpiler.refusal import Refused
from transpiler.tree import children, code

RULE = "attention"
# Keywords that reach the interface and change nothing under the serving facts.
SILENT = frozenset({"position_ids", "use_cache", "output_attentions"})


def lower_attention(work: Work, scope: Scope) -> None:
    """Lower the attention interface call of a class, if it has one.

    Raises:
        Refused: [two-interface-calls], [interface-arguments], [unknown-keyword],
            [eager-body], [scale], [dropout], [attention-call], [attention-calls],
            [causal], [heads], [layout], and what windows refuse.
    """
    calls = [value for value in distinct_values(scope) if is_interface_call(value)]
    if not calls:
        return
    if len(calls) > 1:
        raise Refused(
            "two-interface-calls", f"{scope.name} has {len(calls)}", scope.cls.node
        )
    value = calls[0]
    node = cst.ensure_type(the_node(scope, value, "the interface call"), cst.Call)
    if len(value.args) != 6 or value.args[1].op != "self":
        raise Refused(
            "interface-arguments", "not (module, query, key, value, mask)", node
        )
    check_eager(work, scope, value, node)
    keywords = dict(value.keywords)
    scale = attribute_text(scope, keywords.pop("scaling", None), node)
    cap = keywords.pop("softcap", None)
    if cap is not None and work.eager[value.args[0].args[-1].name] != "capped":
        raise Refused("unknown-keyword", "softcap= is not known", node)
    dropout = keywords.pop("dropout", None)
    if dropout is not None and not (is_const(dropout, 0.0) or is_const(dropout, 0)):
        raise Refused("dropout", "dropout is not zero when serving", node)
    check_causal(work, scope, keywords.pop("is_causal", None), node)
    check_called_once(work, scope)
    axes = Axes(work, scope)
    for operand in value.args[2:5]:
        if axes.of(operand)[:3] != (BATCH, HEADS, SEQUENCE):
            raise Refused("layout", "an operand is not [batch, heads, …]", node)
    window = window_of(work, value.args[5], node)
    check_place(work, scope, window, node)
    said = keywords.pop("sliding_window", None)
    if said is not None:
        work.model_checks += check_keyword(work, window, said, node)
    unknown = sorted(set(keywords) - SILENT)
    if unknown:
        raise Refused("unknown-keyword", f"{unknown[0]}= is not known", node)
    construct(work, scope, scale, cap, window, node)
    rewrite_call(work, scope, value, node)
    work.outcomes.append(Outcome(scope.name, RULE, "interface call -> Attention"))


def check_causal(
    work: Work, scope: Scope, keyword: Value | None, node: cst.Call
) -> None:
    """Every attention function of Transformers is asked for causal attention.

    A config's switch that says otherwise is refused by the model's constructor.

    Raises:
        Refused: [causal] when the class or the call says otherwise; only some of those
            functions would heed it.
    """
    held = scope.init.assigned.get("is_causal")
    for said in (held[0] if held else None, keyword):
        if said is None or is_const(said, True):
            continue
        switch = said.args[0] if said.op == "unary" and said.name == "not" else said
        text = config_text(switch)
        if switch is said or text is None:
            raise Refused("causal", "is_causal is not True", held[1] if held else node)
        refuse_switch(work, switch, text)


def check_called_once(work: Work, scope: Scope) -> None:
    """A layer with a cache of keys and values serves one call of each token.

    Raises:
        Refused: [attention-calls] when a forward from the causal class down to the
            attention calls the next one more than once, or in another loop than the
            one over the layers.
    """
    for holder in work.scopes():
        for child in holder.children.values():
            if child.kind != scope.name:
                continue
            flow = forward_of(holder)
            calls = [
                call
                for call in flow.calls
                if called_child(holder, flow.values.get(call)) is child
                and not is_identity(flow, call, flow.values[call])
            ]
            around = loops_around(holder.cls.method("forward"), calls)
            if len(calls) != 1 or len(around) != int(child.many):
                raise Refused(
                    "attention-calls",
                    f"self.{child.name} is not called once",
                    calls[-1] if calls else child.call,
                )
            check_called_once(work, holder)


def loops_around(
    node: cst.CSTNode, wanted: list[cst.Call], around: tuple[cst.CSTNode, ...] = ()
) -> tuple[cst.CSTNode, ...]:
    """Loops and comprehensions that any of these calls stands in."""
    if node in wanted:
        return around
    if isinstance(node, cst.For | cst.While | cst.BaseComp):
        around = (*around, node)
    found: list[cst.CSTNode] = []
    for child in children(node):
        found += loops_around(child, wanted, around)
    return tuple(dict.fromkeys(found))


def check_eager(work: Work, scope: Scope, value: Value, node: cst.Call) -> None:
    """The attention function that the interface stands for is the known one."""
    interface = value.args[0]
    function = interface.args[-1].name
    if len(interface.args) != 2 or work.eager.get(function) is None:
        raise Refused("eager-body", f"{function} is not in the table", node)
    heads = heads_of(work, scope)
    if work.eager[function] not in GROUPED:
        if heads[0].heads.count is not heads[1].heads.count:
            raise Refused("heads", "key heads are not repeated", node)
        return
    groups = scope.init.assigned.get("num_key_value_groups")
    counts = (heads[0].heads.count, heads[1].heads.count)
    ratio = work.program.graph.make("binary", "//", counts)
    if groups is None or groups[0] is not ratio:
        raise Refused(
            "heads", "num_key_value_groups is not query heads // key heads", node
        )


def heads_of(work: Work, scope: Scope) -> list[Projection]:
    """The projections of a class, which say the head counts.

    Raises:
        Refused: [heads], or what the first refused fusion says, which may be rotary.
    """
    found = work.projections.get(scope.name)
    if found is None:
        reason = next(
            (o for o in work.outcomes if o.scope == scope.name and o.code),
            None,
        )
        if reason is None:
            raise Refused("heads", "query, key and value are not known", scope.cls.node)
        raise Refused(reason.code, reason.detail, reason.node)
    return found


def attribute_text(scope: Scope, value: Value | None, node: cst.Call) -> str:
    """A scale, or a cap of the scores: an attribute of the class, or a number."""
    if value is not None:
        if value.op == "const" and type(value.constant) in {int, float}:
            return repr(value.constant)
        for name, (known, _) in scope.init.assigned.items():
            if known is value:
                return f"self.{name}"
    raise Refused("scale", "scaling= is no attribute of the class, and no number", node)


def construct(
    work: Work,
    scope: Scope,
    scale: str,
    cap: Value | None,
    window: Value,
    node: cst.Call,
) -> None:
    """Append `self.attn = Attention(...)` to the constructor."""
    if "attn" in scope.children or "attn" in scope.init.assigned:
        raise Refused("name-taken", "self.attn exists", scope.cls.node)
    query, key, value = heads_of(work, scope)
    if (
        key.heads.count is not value.heads.count
        or query.heads.size is not value.heads.size
    ):
        raise Refused("heads", "the value's heads are not the key's", value.call)
    for projection in (query, key):
        out = projection.child.argument(1, "out_features")
        check_moved(scope, out, scope.cls.method("__init__"))
    merged = work.merged.get(scope.name)
    if merged is not None:
        heads, kv_heads = f"self.{merged}.num_heads", f"self.{merged}.num_kv_heads"
    else:
        ranks = "get_tensor_model_parallel_world_size()"
        heads = f"{query.heads.text} // {ranks}"
        kv_heads = f"{key.heads.text} // {ranks}"
    config = name_of(scope, "config")
    arguments = [heads, query.heads.size_text, scale, f"num_kv_heads={kv_heads}"]
    arguments += [
        "cache_config=vllm_config.cache_config",
        "quant_config=vllm_config.quant_config",
    ]
    if cap is not None:
        text = attribute_text(scope, cap, node)
        arguments.append(f"logits_soft_cap={text}")
    if not is_const(window, None):
        layer = name_of(scope, "element") if window.op == "subscript" else ""
        text = text_of(window, config, layer, node)
        arguments.append(f"per_layer_sliding_window={text}")
        work.model_checks += kind_checks(window)
    arguments.append('prefix=f"{prefix}.attn"')
    last = scope.cls.method("__init__").body.body[-1]
    work.edits_of(scope).append(
        last, [f"self.attn = Attention({', '.join(arguments)})"]
    )


def name_of(scope: Scope, op: str) -> str:
    """The constructor parameter that is the config, or the layer's index."""
    for name, value in scope.parameters.items():
        if value.op == op:
            return name
    raise Refused("constructor", f"{scope.name} takes no {op}", scope.cls.node)


def rewrite_call(work: Work, scope: Scope, value: Value, node: cst.Call) -> None:
    """`out, weights = interface(self, …)` becomes `out = self.attn(q, k, v)`."""
    edits = work.edits_of(scope)
    statement = statements_of(scope.cls.method("forward"))[node]
    assign = (
        statement.body[0] if isinstance(statement, cst.SimpleStatementLine) else None
    )
    if (
        not isinstance(assign, cst.Assign)
        or assign.value is not node
        or not isinstance(assign.targets[0].target, cst.Tuple)
        or len(assign.targets[0].target.elements) != 2
    ):
        raise Refused("attention-call", "not `output, weights = interface(…)`", node)

    def attend(call: cst.BaseExpression) -> cst.BaseExpression:
        operands = cst.ensure_type(call, cst.Call).args[1:4]
        inner = ", ".join(code(arg.value) for arg in operands)
        return cst.parse_expression(f"self.attn({inner})")

    edits.replace(node, RULE, attend, [arg.value for arg in node.args[1:4]])
    edits.replace(assign.targets[0].target, RULE, first_element)
    drop_weights(work, scope, value)


def drop_weights(work: Work, scope: Scope, value: Value) -> None:
    """Attention weights are not asked for: `return output, weights` loses them."""
    flow = forward_of(scope)
    weights = work.program.graph.make("item", "1", (value,))
    result = flow.result
    if result is None or weights not in list(result.walk()):
        return
    if result.op != "tuple" or len(result.args) != 2 or result.args[1] is not weights:
        raise Refused("attention-call", "weights are used", scope.cls.node)
    for node in flow.nodes_of(result):
        if isinstance(node, cst.Tuple):
            work.edits_of(scope).replace(
                node, "weights not asked for", first_element, [node.elements[0].value]
            )
    work.single_result.add(scope.name)


def first_element(node: cst.BaseExpression) -> cst.BaseExpression:
    """The first element of a tuple."""
    return cst.ensure_type(node, cst.Tuple).elements[0].value
