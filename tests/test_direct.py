"""The fast oracle gives every variant of the exemplars the engine's own verdict."""

from __future__ import annotations

import gc
import json
import logging
from functools import partial
from pathlib import Path

import pytest

from transpiler.read import read
from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.compare import BAR
from transpiler.verify.direct import Stage, generated_logits, upstream_logits
from transpiler.verify.families import EXEMPLARS
from transpiler.verify.family import Family
from transpiler.verify.isolate import Finished, import_once, in_child
from transpiler.verify.variants import Outcome, Variant

pytestmark = pytest.mark.engine
GENERATED = Path(__file__).resolve().parents[1] / "generated"
PROOF = json.loads((GENERATED / "PROOF.json").read_text())["files"]


def verdict_of(family: Family, variant: Variant, folder: Path) -> str:
    """`equal`, the field or tensor that a `ValueError` names, or what is wrong."""
    from safetensors.torch import load_file

    changed = write_checkpoint(folder, family, variant, 0)
    stage = Stage(
        family.name,
        family.architecture,
        folder,
        request_of(family, variant, 0).prompts,
        variant.max_model_len,
    )
    tensors = load_file(folder / "model.safetensors")
    text = (GENERATED / f"{family.name}.py").read_text()
    try:
        ours = generated_logits(stage, text, tensors)
    except ValueError as error:
        names = (*variant.expected.names, *changed)
        named = [name for name in names if name in str(error)]
        return named[0] if named else f"ValueError: {error}"
    upstream = upstream_logits(stage, read(family.name).text, tensors)
    difference = float((ours - upstream).abs().max())
    return "equal" if difference <= BAR else f"off by {difference:.1e}"


def verdicts(family: Family, folder: Path) -> dict[str, str]:
    logging.disable(logging.WARNING)
    gc.freeze()
    found = {}
    for variant in family.variants:
        fails = variant.expected.outcome is Outcome.UPSTREAM_FAILS
        if fails or variant.split is not None:
            continue
        place = folder / variant.name
        place.mkdir()
        found[variant.name] = verdict_of(family, variant, place)
    return found


@pytest.mark.parametrize("family", EXEMPLARS, ids=lambda family: family.name)
def test_the_verdict_is_the_engines(family: Family, tmp_path: Path) -> None:
    import_once()
    found = in_child(partial(verdicts, family, tmp_path), 600)
    assert isinstance(found, Finished), found
    proof = PROOF[f"{family.name}.py"]
    ranked = {variant.name for variant in family.variants if variant.split}
    equal = dict.fromkeys(set(proof["equal"]) - ranked, "equal")
    assert found.value == {**equal, **proof["raises"]}
