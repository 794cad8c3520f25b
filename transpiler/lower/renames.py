"""Renames: tensors that Transformers calls otherwise in its checkpoints.

Its conversion mapping has entries by model type and by class name. An entry renames
tensors, or converts them; Transformers saves them under the old names again, and loads
the new ones as well.

Refused when
    conversion-mapping: an entry for this model does more than rename the beginning of
        names, or is for a part of the model.
"""

from __future__ import annotations

import re

import libcst as cst

from transpiler.analyse.statements import is_pretrained
from transpiler.fusions.fusion import Work
from transpiler.read import Renames, Source
from transpiler.refusal import Refused
from transpiler.tree import code

BEGINNING = re.compile(r"\^((?:\w|\\\.)+\\\.)")


def renamed_prefixes(source: Source, work: Work) -> Renames:
    """Beginnings of checkpoint names, old and new.

    Raises:
        Refused: [conversion-mapping].
    """
    causal = work.program.causal.cls
    module = work.program.module
    parts = [
        scope.name
        for scope in work.program.scopes.values()
        if scope.cls is not causal and is_pretrained(scope.cls, module)
    ]
    kinds = [causal.name, *model_types(source, work)]
    for name in parts:
        if name in source.conversion:
            raise Refused("conversion-mapping", f"the entry {name}", causal.node)
    found = next((name for name in kinds if name in source.conversion), None)
    if found is None:
        return ()
    renames = source.conversion[found]
    matches = [(BEGINNING.fullmatch(old), new) for old, new in renames or ()]
    if renames is None or not all(old for old, _ in matches):
        raise Refused("conversion-mapping", f"the entry {found}", causal.node)
    return tuple((old[1].replace("\\", ""), new) for old, new in matches if old)


def model_types(source: Source, work: Work) -> list[str]:
    """The model types that the config classes say, else the name of the file."""
    classes = {
        code(parameter.annotation.annotation)
        for scope in work.program.scopes.values()
        for parameter in scope.cls.method("__init__").params.params
        if parameter.annotation is not None
    }
    found = [
        said
        for node in cst.parse_module(source.configuration).body
        if isinstance(node, cst.ClassDef) and node.name.value in classes
        for line in node.body.body
        if (said := assigned(line, "model_type")) is not None
    ]
    return found or [source.name]


def assigned(line: cst.CSTNode, name: str) -> str | None:
    """The string that a line `name = "…"` assigns."""
    small = line.body[0] if isinstance(line, cst.SimpleStatementLine) else None
    if not isinstance(small, cst.Assign) or code(small.targets[0].target) != name:
        return None
    said = small.value
    return str(said.evaluated_value) if isinstance(said, cst.SimpleString) else None
