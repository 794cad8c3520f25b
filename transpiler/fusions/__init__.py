"""Step 4, fuse: each fusion in a fixed order.

To add one: (1) write its cases in `tests/cases/<fusion>/`, refusals first; (2) one
file here with a `Fusion`, its docstring listing every refusal code; (3) one line in
`FUSIONS`, at the place where its order has meaning.

Rotary comes before QKV, which follows query and key through it; the additions come
last, when what they stand between is settled.
"""

from transpiler.fusions.add_norm import AddNorm
from transpiler.fusions.fusion import Fusion
from transpiler.fusions.glu import GLU
from transpiler.fusions.layer_add_norm import LayerAddNorm
from transpiler.fusions.packed_glu import PackedGLU
from transpiler.fusions.qkv import QKV
from transpiler.fusions.rotary import Rotary

FUSIONS: tuple[Fusion, ...] = (
    Rotary(),
    QKV(),
    GLU(),
    PackedGLU(),
    AddNorm(),
    LayerAddNorm(),
)
