"""Windows: the mask that reaches an attention, as vLLM's per-layer sliding window.

The mask is what counts upstream; a `sliding_window=` keyword that says something
else is a conflict and refused. What upstream would reject when it makes the mask is
a check in the model's constructor.
"""

from __future__ import annotations

import libcst as cst

from transpiler.analyse.flow import Flow
from transpiler.analyse.program import Scope
from transpiler.analyse.values import Graph, Value, is_const
from transpiler.fusions.fusion import Work
from transpiler.lower.texts import config_text
from transpiler.refusal import Refused

FULL = "masking_utils.create_causal_mask"
SLIDING = "masking_utils.create_sliding_window_causal_mask"
# Arguments that say nothing under the serving facts, when they are values like this.
EMBEDDED = frozenset({"binary", "choice", "module", "param"})
PLAIN = {
    "config": frozenset({"config"}),
    "inputs_embeds": EMBEDDED,
    "input_embeds": EMBEDDED,
    "position_ids": frozenset({"positions"}),
}


def window_of(work: Work, mask: Value, node: cst.CSTNode) -> Value:
    """The window that a mask stands for, as a value; None is full attention.

    Raises:
        Refused: [mask] for a mask that is not causal or sliding.
    """
    graph = work.program.graph
    if mask.op == "call" and mask.name in {FULL, SLIDING}:
        for name, operand in mask.keywords:
            if is_const(operand, None) or operand.op in PLAIN.get(name, ()):
                continue
            if name == "attention_mask" and hides_nothing(operand):
                continue
            if not is_switched(operand):
                raise Refused("mask", f"the mask is made with {name}", node)
            switch = operand.args[0]
            refuse_switch(work, switch, f"config.{switch.name}")
        if mask.args:
            raise Refused("mask", "the mask is made with positional arguments", node)
        if mask.name == FULL:
            return graph.const(None)
        return graph.make("attr", "sliding_window", (graph.make("config"),))
    if mask.op == "choice":
        test, yes, no = mask.args
        yes, no = window_of(work, yes, node), window_of(work, no, node)
        if yes.op == "const" and yes.constant is None and is_none_test(test, no):
            return no
        return graph.make("choice", args=(test, yes, no)) if yes is not no else yes
    if mask.op == "subscript" and mask.args[0].op == "dict":
        entries = tuple(
            (key, window_of(work, present(value), node))
            for key, value in mask.args[0].keywords
        )
        table = graph.make("dict", keywords=entries)
        return graph.make("subscript", args=(table, mask.args[1]))
    raise Refused("mask", "the mask is not one that a known function makes", node)


def is_switched(operand: Value) -> bool:
    """Whether a keyword is given only where a field of the config is true."""
    if operand.op != "choice" or operand.args[2].op != "missing":
        return False
    test = operand.args[0]
    return test.op == "attr" and test.args[0].op == "config"


def refuse_switch(work: Work, switch: Value, text: str) -> None:
    """Configs in which a switch is on are refused by the model's constructor."""
    if switch not in work.refused:
        work.refused.add(switch)
        work.model_checks.append(
            f"if {text}:\n"
            f'    raise ValueError("{switch.name} is set: generated for causal '
            'attention")\n'
        )


def hides_nothing(mask: Value) -> bool:
    """Whether a padding mask is ones for every token of the batch."""
    if (mask.op, mask.name) != ("call", "torch.ones") or len(mask.args) != 2:
        return False
    named = {name for name, _ in mask.keywords}
    return named <= {"device"} and all(
        is_axis(arg, place) for place, arg in enumerate(mask.args)
    )


def is_axis(size: Value, place: int) -> bool:
    """Whether a size is that axis of the embeddings; nothing stands in a cache."""
    if size.op == "binary" and size.name == "+":
        rest = [arg for arg in size.args if not is_const(arg, 0)]
        return len(rest) == 1 and is_axis(rest[0], place)
    shape = size.args[0] if size.op in {"item", "subscript"} else size
    if size.op == "item" and size.name == str(place) and shape.op == "subscript":
        bounds = shape.args[1]
        leads = bounds.op == "slice" and is_const(bounds.args[0], None)
        if not leads or not is_const(bounds.args[1], -1):
            return False
        shape = shape.args[0]
    elif size.op != "subscript" or not is_const(size.args[1], place):
        return False
    return shape.name == "shape" and shape.args[0].op in EMBEDDED


def present(value: Value) -> Value:
    """A mask without the case that it was not made, which upstream never looks up."""
    if value.op == "choice":
        _, yes, no = value.args
        if no.op == "missing":
            return yes
        if yes.op == "missing":
            return no
    return value


def is_none_test(test: Value, value: Value) -> bool:
    """Whether a test is `value is None`."""
    return test.op == "compare" and test.name == "is" and test.args[0] is value


def check_place(work: Work, scope: Scope, window: Value, node: cst.CSTNode) -> None:
    """A mask that differs by layer is looked up by the layer's own place.

    Raises:
        Refused: [mask] for another place, such as one counted from another start.
    """
    if not is_own_place(scope, window):
        raise Refused("mask", "the mask is of another layer's place", node)


def is_own_place(scope: Scope, value: Value) -> bool:
    """Whether each place among the layers that a value is looked up by is its own."""
    own = [v for v in scope.parameters.values() if v.op == "element"]
    for part in value.walk():
        if part.op == "index":
            over = part.args[0]
            over = over.args[0] if over.op == "subscript" else over
            if over.op == "child":
                continue
        if part.op in {"index", "element"} and part not in own:
            return False
    return True


def check_keyword(
    work: Work, window: Value, keyword: Value, node: cst.CSTNode
) -> list[str]:
    """The `sliding_window=` keyword must say what the mask says, in every case.

    Returns:
        Statements that refuse the configs for which they differ.

    Raises:
        Refused: [window-conflict] when they differ for every config.
    """
    graph = work.program.graph
    if window.op != "subscript":
        if under(graph, keyword, None, None) is not window:
            raise Refused("window-conflict", "mask and keyword differ", node)
        return []
    checks = []
    table, key = window.args
    for name, entry in table.keywords:
        kind = graph.const(name)
        said = under(graph, keyword, as_layer(graph, key), kind)
        for tests in differences(said, under(graph, entry, key, kind)):
            switches = all(test.op == "attr" for test, _ in tests)
            if not tests or not switches or key.op != "subscript":
                raise Refused(
                    "window-conflict", f"mask and keyword differ on {name} layers", node
                )
            kinds = text_of(key.args[0], "config", "", node)
            texts = [
                (
                    text_of(test, "config", "", node)
                    if sense
                    else f"not {text_of(test, 'config', '', node)}"
                )
                for test, sense in tests
            ]
            said_text = " and ".join(texts).replace("config.", "")
            checks.append(
                f'if "{name}" in {kinds} and {" and ".join(texts)}:\n'
                f'    raise ValueError("{said_text}: upstream\'s mask and its "\n'
                f'        "sliding_window= differ on {name} layers")\n'
            )
    return checks


def differences(said: Value, meant: Value) -> list[tuple[tuple[Value, bool], ...]]:
    """The cases, as tests and their outcomes, in which a value is not another."""
    if said is meant:
        return []
    if said.op != "choice":
        return [()]
    test = said.args[0]
    return [
        ((test, sense), *tests)
        for sense, side in ((True, said.args[1]), (False, said.args[2]))
        for tests in differences(side, meant)
    ]


def as_layer(graph: Graph, key: Value) -> Value:
    """`config.layer_types[i]` of the model's loop as the constructor writes it."""
    base, index = key.args
    if index.op != "index":
        return key
    stop = graph.make("attr", "num_hidden_layers", (graph.make("config"),))
    layer = graph.make("element", args=(graph.make("call", "range", (stop,)),))
    return graph.make("subscript", args=(base, layer))


def under(
    graph: Graph, value: Value, key: Value | None, constant: Value | None
) -> Value:
    """A value where `key` is that constant, folded; config fields exist."""
    if value is key and constant is not None:
        return constant
    args = tuple(under(graph, arg, key, constant) for arg in value.args)
    if value.op == "call" and value.name == "hasattr":
        return graph.const(True)
    if value.op == "getattr":
        return graph.make("attr", value.name, args[:1])
    if value.op == "compare" and value.name == "==":
        left, right = args
        if left.op == right.op == "const":
            return graph.const(left.constant == right.constant)
    if value.op == "bool":
        return joined(graph, value, args)
    if value.op == "choice" and args[0].op == "const":
        return args[1] if args[0].constant else args[2]
    keywords = tuple((k, under(graph, v, key, constant)) for k, v in value.keywords)
    if args == value.args and keywords == value.keywords:
        return value
    return graph.make(value.op, value.name, args, keywords, value.constant)


def joined(graph: Graph, value: Value, args: tuple[Value, ...]) -> Value:
    """`a and b`, `a or b` as a test, of which constants are left out."""
    decides = value.name == "or"
    open_sides = [side for side in args if side.op != "const"]
    for side in args:
        if side.op == "const" and bool(side.constant) is decides:
            return graph.const(decides)
    if len(open_sides) < len(args):
        return open_sides[0] if open_sides else graph.const(not decides)
    return graph.make("bool", value.name, args)


def text_of(
    window: Value, config: str, layer: str, node: cst.CSTNode | None = None
) -> str:
    """A window as source text in an attention's constructor.

    Raises:
        Refused: [mask] for a window that has no such text.
    """
    text = config_text(window, config, layer)
    if text is not None:
        return text
    raise Refused("mask", f"a window made by {window.op} {window.name}", node)


def kind_checks(window: Value) -> list[str]:
    """Statement that refuses layer types for which upstream makes no mask."""
    if window.op != "subscript" or window.args[1].op != "subscript":
        return []
    field = text_of(window.args[1].args[0], "config", "")
    kinds = ", ".join(f'"{key}"' for key, _ in window.args[0].keywords)
    return [
        f"if not set({field}) <= {{{kinds}}}:\n"
        f'    raise ValueError(f"{field.removeprefix("config.")}='
        f'{{{field}}}: upstream has no mask for one")\n'
    ]


def mask_checks(work: Work, scope: Scope, flow: Flow) -> list[str]:
    """Statements that refuse what upstream refuses when it makes its masks."""
    found = []
    for call in flow.calls:
        value = flow.values.get(call)
        if value is None or SLIDING not in {v.name for v in called(value)}:
            continue
        guards = [
            text_of(test, "config", "", call)
            for test, sense in flow.guards[call]
            if sense
        ]
        missing = "config.sliding_window is None"
        if value.op == "choice" and is_none_test(
            value.args[0], window_of(work, value.args[2], call)
        ):
            continue
        test = " and ".join([*guards, missing])
        found.append(
            f"if {test}:\n"
            "    raise ValueError("
            '"sliding_window is not set (disable_sliding_window unsets it); "'
            '"upstream needs it")\n'
        )
    return found


def called(value: Value) -> list[Value]:
    """The mask calls a value chooses from."""
    if value.op == "choice":
        return [v for arg in value.args[1:] for v in called(arg)]
    return [value] if value.op == "call" else []
