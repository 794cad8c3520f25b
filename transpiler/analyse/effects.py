"""Effects: which calls do nothing but compute their value.

A statement without a reader is dropped, and a table compares values only. Both are
right only for calls that change nothing else, so these are listed; any other call is
an effect, which must stay in the output or refuse.
"""

from __future__ import annotations

from transpiler.analyse.names import METHODS
from transpiler.analyse.values import Value

BUILTIN_WORDS = """
    abs all any bool dict enumerate float getattr hasattr int isinstance len list max
    min range reversed round set slice sorted str sum tuple zip
"""
BUILTINS = frozenset(BUILTIN_WORDS.split())
FUNCTION_WORDS = """
    abs arange arccos bmm cat clamp concat cos cumsum div einsum empty empty_like exp
    finfo full full_like gelu iinfo is_tensor layer_norm linear log log1p matmul mean
    mul multiply no_grad ones ones_like outer pad pow relu repeat_interleave rms_norm
    rsqrt sigmoid silu sin softmax softplus split sqrt square stack sum tanh tensor
    topk transpose tril triu unbind where zeros zeros_like
"""
FUNCTIONS = frozenset(FUNCTION_WORDS.split())
METHOD_WORDS = """
    abs argmax bfloat16 cumsum dim expand expand_as flip get_seq_length int
    is_floating_point item log long max min new_ones new_zeros numel prod repeat
    repeat_interleave roll size softmax t to tolist topk type_as unbind view
"""
TENSOR_METHODS = METHODS | frozenset(METHOD_WORDS.split())
LIBRARY = frozenset(
    {
        "cache_utils.DynamicCache",
        "modeling_utils.ALL_ATTENTION_FUNCTIONS.get_interface",
        "super",
    }
)
LIBRARY_MODULES = ("masking_utils.create_", "modeling_outputs.", "math.")
# Tables of functions: what is looked up there and called only computes.
TABLES = frozenset(
    {
        "activations.ACT2CLS",
        "activations.ACT2FN",
        "modeling_rope_utils.ROPE_INIT_FUNCTIONS",
    }
)
# Receivers that are not tensors: their methods may do anything.
OBJECTS = frozenset(
    {"child", "config", "dict", "element", "lambda", "list", "name", "self", "tuple"}
)


def has_effect(value: Value) -> bool:
    """Whether a call of that value may do more than compute it."""
    if value.op == "method":
        receiver = value.args[0]
        if value.name == "get" and receiver.op == "attr":  # of a mapping in the config
            return receiver.args[0].op != "config"
        return receiver.op in OBJECTS or value.name not in TENSOR_METHODS
    if value.op == "choice":
        return any(has_effect(side) for side in value.args[1:])
    if value.op in {"call", "written", "bound", "lambda"}:
        return not (value.op == "call" and is_pure_call(value))
    return False


def is_pure_call(value: Value) -> bool:
    """Whether a called function is known to do nothing but compute."""
    if not value.name:
        function = value.args[0]
        looked_up = function.op == "subscript" and function.args[0].name in TABLES
        interface = function.op == "call" and function.name in LIBRARY
        return looked_up or interface
    root, _, last = value.name.rpartition(".")
    if root in {"torch", "torch.nn.functional"}:
        return last in FUNCTIONS
    return (
        value.name in BUILTINS
        or value.name in LIBRARY
        or value.name.startswith(LIBRARY_MODULES)
        or is_layer(value.name)
    )


def is_tensor_made(value: Value) -> bool:
    """Whether a value is what a torch function or tensor method gives: never None."""
    if value.op == "method":
        return not has_effect(value)
    return value.op == "call" and value.name.startswith("torch.")


def is_layer(name: str) -> bool:
    """Whether a name is a class of `torch.nn`: making a layer is no effect."""
    root, _, last = name.rpartition(".")
    return root == "torch.nn" and last[:1].isupper()


def writes_operand(
    name: str, args: list[Value], keywords: list[tuple[str, Value]]
) -> bool:
    """Whether a function writes its first operand in place.

    `torch.relu_(x)`, `F.relu(x, inplace=True)` and `F.relu(x, True)` do.
    """
    last = name.rpartition(".")[2]
    inplace = dict(keywords).get("inplace")
    flagged = name.startswith("torch.nn.functional.") and any(
        arg.op == "const" and arg.constant is True for arg in args[1:]
    )
    return bool(args) and (
        (last.endswith("_") and not last.endswith("__"))
        or flagged
        or (
            inplace is not None and not (inplace.op == "const" and not inplace.constant)
        )
    )
