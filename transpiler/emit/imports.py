"""Where each name that a generated file may use is imported from.

All vLLM names the generator emits are here, so a change of vLLM is a change here.
"""

from __future__ import annotations

import builtins
import symtable

from transpiler.analyse.names import is_configuration, origin
from transpiler.refusal import Refused

LAYERS = "vllm.model_executor.layers"
MODELS = "vllm.model_executor.models"

ORIGINS: dict[str, str] = {
    "Iterable": "collections.abc",
    "islice": "itertools",
    "nn": "torch",
    "HeadLayerNorm": "transpiler.runtime",
    "ShardedRMSNorm": "transpiler.runtime",
    "act_and_mul": "transpiler.runtime",
    "activation": "transpiler.runtime",
    "require_config": "transpiler.runtime",
    "require_divisible": "transpiler.runtime",
    "require_multiple": "transpiler.runtime",
    "rope_arguments": "transpiler.runtime",
    "strict_weights": "transpiler.runtime",
    "ungrouped_rows": "transpiler.runtime",
    "support_torch_compile": "vllm.compilation.decorators",
    "VllmConfig": "vllm.config",
    "get_pp_group": "vllm.distributed",
    "get_tensor_model_parallel_world_size": "vllm.distributed",
    "Attention": f"{LAYERS}.attention",
    "GemmaRMSNorm": f"{LAYERS}.layernorm",
    "LayerNorm": f"{LAYERS}.layernorm",
    "RMSNorm": f"{LAYERS}.layernorm",
    "NemotronLayerNorm1P": f"{MODELS}.nemotron",
    "ColumnParallelLinear": f"{LAYERS}.linear",
    "MergedColumnParallelLinear": f"{LAYERS}.linear",
    "QKVParallelLinear": f"{LAYERS}.linear",
    "ReplicatedLinear": f"{LAYERS}.linear",
    "RowParallelLinear": f"{LAYERS}.linear",
    "LogitsProcessor": f"{LAYERS}.logits_processor",
    "get_rope": f"{LAYERS}.rotary_embedding",
    "ParallelLMHead": f"{LAYERS}.vocab_parallel_embedding",
    "VocabParallelEmbedding": f"{LAYERS}.vocab_parallel_embedding",
    "EagleModelMixin": f"{MODELS}.interfaces",
    "SupportsEagle3": f"{MODELS}.interfaces",
    "SupportsLoRA": f"{MODELS}.interfaces",
    "SupportsPP": f"{MODELS}.interfaces",
    "SupportsQuant": f"{MODELS}.interfaces",
    "AutoWeightsLoader": f"{MODELS}.utils",
    "PPMissingLayer": f"{MODELS}.utils",
    "WeightsMapper": f"{MODELS}.utils",
    "extract_layer_index": f"{MODELS}.utils",
    "make_empty_intermediate_tensors_factory": f"{MODELS}.utils",
    "make_layers": f"{MODELS}.utils",
    "maybe_prefix": f"{MODELS}.utils",
    "spec_decode_needs_target_embed": f"{MODELS}.utils",
    "IntermediateTensors": "vllm.sequence",
}
PLAIN = ("torch", "math")


class NoOrigin(Refused):
    """A name that the output uses and no import explains: [import].

    Args:
        name: The name.
    """

    def __init__(self, name: str) -> None:
        super().__init__("import", f"{name} is used and has no known origin")
        self.name = name


def free_names(code: str) -> set[str]:
    """Names that the classes of a module use and do not bind.

    Args:
        code: The text of the classes.
    """
    top = symtable.symtable(code, "<generated>", "exec")
    bound = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned()}
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is top or symbol.is_global())
        }
    return used - bound - set(dir(builtins))


def import_lines(names: set[str], upstream: dict[str, str]) -> list[str]:
    """Import statements for these names, in the order of isort.

    Args:
        names: Free names of the classes.
        upstream: Local name -> full dotted name of what the modeling file imports;
            of these only configuration classes may be left.

    Raises:
        Refused: [import] for a name that is not known, or another one upstream.
    """
    modules: dict[str, set[str]] = {}
    plain: set[str] = set()
    for name in sorted(names):
        ours = f"{ORIGINS[name]}.{name}" if name in ORIGINS else name
        if name in {*PLAIN, *ORIGINS} and upstream.get(name, ours) not in (
            ours,
            origin(ours),
        ):
            raise NoOrigin(name)
        if name in PLAIN:
            plain.add(name)
        elif name in ORIGINS:
            modules.setdefault(ORIGINS[name], set()).add(name)
        elif is_configuration(full := upstream.get(name, "")) and full.endswith(
            f".{name}"
        ):
            modules.setdefault("transformers", set()).add(name)
        else:
            raise NoOrigin(name)
    groups: list[list[str]] = [[], [], []]
    for name in sorted(plain):
        groups[0 if name == "math" else 1].append(f"import {name}")
    for module in sorted(modules):
        root = module.split(".")[0]
        group = {"collections": 0, "itertools": 0, "transpiler": 2}.get(root, 1)
        imported = ", ".join(sorted(modules[module]))
        groups[group].append(f"from {module} import {imported}")
    lines: list[str] = []
    for group_lines in groups:
        if group_lines:
            lines += [*group_lines, ""]
    return lines
