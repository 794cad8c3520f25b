"""The few things that generated files import because vLLM has none of them.

Only torch, vLLM and Transformers' configs and activation table; never libcst. Each says
why vLLM's own will not do.
"""

from transpiler.runtime.activation import act_and_mul, activation
from transpiler.runtime.config import require_config
from transpiler.runtime.norm import HeadLayerNorm, ShardedRMSNorm
from transpiler.runtime.parallel import require_divisible, require_multiple
from transpiler.runtime.rotary import rope_arguments
from transpiler.runtime.rows import ungrouped_rows
from transpiler.runtime.weights import strict_weights

__all__ = [
    "HeadLayerNorm",
    "ShardedRMSNorm",
    "act_and_mul",
    "activation",
    "require_config",
    "require_divisible",
    "require_multiple",
    "rope_arguments",
    "strict_weights",
    "ungrouped_rows",
]
