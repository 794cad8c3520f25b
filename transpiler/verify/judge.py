"""What comes of a mutant: refused, equal to its own upstream, or wrong."""

from __future__ import annotations

import gc
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

import libcst as cst

from transpiler.pipeline import Transpiled, transpile_source
from transpiler.read import Source, read
from transpiler.refusal import Refused
from transpiler.verify.attempt import Attempt
from transpiler.verify.checkpoint import request_of, write_config
from transpiler.verify.compare import BAR
from transpiler.verify.direct import (
    Stage,
    drawn_tensors,
    generated_logits,
    upstream_logits,
)
from transpiler.verify.family import Family
from transpiler.verify.mutate import MUTATIONS
from transpiler.verify.mutate.draft import Draft, NoPlace

# What stands for "the numbers are others": ten bars, as for the negative proof.
CHANGED = 10 * BAR
# How often another place is drawn for a mutation that upstream does not survive.
DRAWS = 5


class Verdict(Enum):
    """What came of one mutant.

    `LESS` is equal with fewer fusions; `CRASH` is an exception that is no refusal, of
    the transpiler or of what it wrote; `FAULT` is a mutation that did not do what it
    says; `NONE` a file without a place for it.
    """

    EQUAL = "equal"
    LESS = "less fused"
    REFUSED = "refused"
    WRONG = "wrong"
    CRASH = "crash"
    FAULT = "fault"
    NONE = "no place"


@dataclass(frozen=True)
class Mutant:
    """A model, mutations by name in the order they are applied, and their seed."""

    model: str
    names: tuple[str, ...]
    seed: str

    @property
    def title(self) -> str:
        """Model, mutations and seed, as they are said."""
        return f"{self.model} {' + '.join(self.names)} ({self.seed})"


@dataclass(frozen=True)
class Finding:
    """A verdict, why, and the two texts where somebody may want to see them."""

    verdict: Verdict
    detail: str = ""
    before: str = ""
    after: str = ""


@dataclass(frozen=True)
class Base:
    """A family's unedited file with what is made of it."""

    source: Source
    stage: Stage
    transpiled: Transpiled
    logits: Any


@dataclass
class Judge:
    """Judges mutants of some families, each process with its own unedited files.

    Attributes:
        folder: Where configs are written.
        families: Whose files are mutated.
    """

    folder: Path
    families: tuple[Family, ...]
    bases: dict[str, Base] = field(default_factory=dict)

    def prepare(self) -> None:
        """Read the unedited files and run upstream on them, for all processes."""
        import torch
        from transformers.utils import logging as transformers_logging

        torch.set_num_threads(1)
        transformers_logging.disable_progress_bar()
        for family in self.families:
            self.base(family.name)

    def start(self) -> None:
        """Quieten the libraries, once in each process."""
        logging.disable(logging.ERROR)
        # The loader collects garbage: it need not look at what was here before.
        gc.freeze()

    def base(self, model: str) -> Base:
        """The unedited file of a model."""
        if model not in self.bases:
            (family,) = (f for f in self.families if f.name == model)
            variant = family.telling
            folder = self.folder / model
            folder.mkdir()
            write_config(folder, family, variant)
            stage = Stage(
                model,
                family.architecture,
                folder,
                request_of(family, variant, 0).prompts,
                variant.max_model_len,
            )
            source = read(model)
            tensors = drawn_tensors(stage, source.text)
            logits = upstream_logits(stage, source.text, tensors)
            self.bases[model] = Base(source, stage, transpile_source(source), logits)
        return self.bases[model]

    def judge(self, mutant: Mutant) -> Finding:
        """What comes of one mutant; where two mutations fail, of the one that does."""
        finding = self.judge_whole(mutant)
        if finding.verdict in (Verdict.WRONG, Verdict.CRASH) and mutant.names[1:]:
            for name in mutant.names:
                alone = self.judge_whole(replace(mutant, names=(name,)))
                if alone.verdict is finding.verdict:
                    return replace(alone, detail=f"{alone.detail}, by {name} alone")
        return finding

    def judge_whole(self, mutant: Mutant) -> Finding:
        """What comes of one mutant; places where a mutation is none are passed over."""
        finding = Finding(Verdict.NONE)
        for draw in range(DRAWS):
            seed = f"{mutant.seed} {draw}" if draw else mutant.seed
            finding = self.judge_drawn(replace(mutant, seed=seed))
            if finding.verdict is not Verdict.FAULT:
                break
        return finding

    def judge_drawn(self, mutant: Mutant) -> Finding:
        """What comes of one mutant at the places that its seed draws."""
        base = self.base(mutant.model)
        try:
            draft = drafted(base.source, mutant)
        except NoPlace:
            return Finding(Verdict.NONE)
        text = draft.tree.code
        finding = self.compared(base, mutant, draft, text)
        return replace(finding, before=base.source.text, after=text)

    def compared(self, base: Base, mutant: Mutant, draft: Draft, text: str) -> Finding:
        """The mutated upstream against the unedited one, then against its own port."""
        upstream, tensors = None, {}
        with Attempt() as running:
            tensors = drawn_tensors(base.stage, text, known_as=known_as(draft))
            upstream = upstream_logits(base.stage, text, tensors)
        if upstream is None:
            return Finding(Verdict.FAULT, f"upstream: {running.said()}")
        finding = self.walked(base, mutant, text, upstream, tensors)
        if finding.verdict in (Verdict.WRONG, Verdict.CRASH):
            return finding
        kinds = [kind for kind in MUTATIONS if kind.name in mutant.names]
        away = distance(upstream, base.logits)
        if all(kind.keeps for kind in kinds) and not away <= BAR:
            return Finding(Verdict.FAULT, f"keeps the numbers, and is {away:.1e} off")
        free = any(kind.keeps or kind.is_refused for kind in kinds[-1:])
        if not free and not away > CHANGED:
            return Finding(Verdict.FAULT, f"changes the numbers, and is {away:.1e} off")
        return finding

    def walked(
        self,
        base: Base,
        mutant: Mutant,
        text: str,
        upstream: Any,
        tensors: dict[str, Any],
    ) -> Finding:
        """What the walk makes of a text, and whether that is equal."""
        made = None
        with Attempt() as walking:
            edited = replace(base.source, text=text, tree=cst.parse_module(text))
            made = transpile_source(edited)
        if isinstance(walking.error, Refused):
            return Finding(Verdict.REFUSED, str(walking.error))
        if made is None:
            return Finding(Verdict.CRASH, f"walk: {walking.said()}")
        if any(k.is_refused for k in MUTATIONS if k.name in mutant.names):
            return Finding(Verdict.WRONG, f"{mutant.title} is not refused")
        return self.ported(base, mutant, made, upstream, tensors)

    def ported(
        self,
        base: Base,
        mutant: Mutant,
        made: Transpiled,
        upstream: Any,
        tensors: dict[str, Any],
    ) -> Finding:
        """What was written, against the upstream that it was made from."""
        ours = None
        with Attempt() as running:
            ours = generated_logits(base.stage, made.text, tensors)
        if isinstance(running.error, ValueError):
            return Finding(Verdict.REFUSED, running.said())
        if ours is None:
            return Finding(Verdict.CRASH, f"output: {running.said()}")
        off = distance(ours, upstream)
        if not off <= BAR:
            return Finding(Verdict.WRONG, f"{mutant.title} is {off:.1e} off")
        lost = applied(base.transpiled) - applied(made)
        return Finding(Verdict.LESS if lost else Verdict.EQUAL, ", ".join(lost))


def drafted(source: Source, mutant: Mutant) -> Draft:
    """A source with the mutant's mutations applied, one after the other.

    Raises:
        NoPlace: The file has no place for one.
    """
    draft = Draft(source.tree, random.Random(mutant.seed))
    for name in mutant.names:
        (mutation,) = (m for m in MUTATIONS if m.name == name)
        mutation.apply(draft)
    return draft


def known_as(draft: Draft) -> Callable[[str], str]:
    """How a parameter of the mutated class was called before."""
    return lambda name: ".".join(draft.renamed.get(p, p) for p in name.split("."))


def distance(one: Any, other: Any) -> float:
    """The largest difference of two tensors, infinite where they do not compare."""
    if one.shape != other.shape:
        return float("inf")
    largest = float((one - other).abs().max())
    return largest if largest == largest else float("inf")


def applied(transpiled: Transpiled) -> Counter[str]:
    """How often each fusion was applied."""
    return Counter(o.fusion for o in transpiled.outcomes if not o.code)
