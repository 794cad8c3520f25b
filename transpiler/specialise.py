"""Step 3, specialise: the serving facts, and what they decide.

vLLM calls a model with flat tokens and their positions, and nothing else. Stated as
facts about the causal class's forward:

- `no-cache`: `use_cache` is False and no cache object is given; vLLM keeps keys
  and values itself.
- `positions-given`: `position_ids` are given by the engine.
- `one-input`: exactly one of `input_ids` and `inputs_embeds` is given.
- `defaults`: every other parameter (mask, labels, what to return) has its default.
- `no-training`: `self.training` is False.

Everything else follows by evaluation: cache, mask, dropout and loss code is dead
because these values decide its tests, not because of its names.
"""

from __future__ import annotations

from transpiler.analyse.arguments import bind_arguments
from transpiler.analyse.module import ModelingModule, the_causal_class
from transpiler.analyse.program import Analyser, Program
from transpiler.analyse.values import Value

TOKENS = "input_ids"
EMBEDS = "inputs_embeds"
POSITIONS = "position_ids"


def specialise(module: ModelingModule, leaves: frozenset[str]) -> Program:
    """Evaluate the module under the serving facts.

    Args:
        module: The modeling module.
        leaves: Classes that a table describes; their forwards are not entered.
    """
    analyser = Analyser(module, leaves)
    graph = analyser.program.graph
    forward = the_causal_class(module).method("forward")
    embeds = graph.make("param", EMBEDS)
    given: dict[str, Value] = {
        TOKENS: graph.make("tokens?", TOKENS, (embeds,)),
        EMBEDS: embeds,
        POSITIONS: graph.make("positions", POSITIONS),
        "use_cache": graph.const(False),
    }
    parameters = {p.name.value for p in forward.params.params}
    call = graph.make(
        "call",
        keywords=tuple((k, v) for k, v in given.items() if k in parameters),
    )
    return analyser.run(bind_arguments(forward, call, graph, skip=1))
