"""What comes of a mutant: refused, equal to its own upstream, or wrong."""

from __future__ import annotations

import gc
import logging
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any

from transpiler.pipeline import Transpiled, transpile_source
from transpiler.read import Source, read
from transpiler.refusal import Refused
from transpiler.verify.checkpoint import request_of, write_config
from transpiler.verify.compare import BAR
from transpiler.verify.direct import (
    Stage,
    drawn_tensors,
    generated_logits,
    upstream_logits,
)
from transpiler.verify.families import TELLING
from transpiler.verify.mutate import MUTATIONS
from transpiler.verify.mutate.draft import Draft, NoPlace
from transpiler.verify.variants import Family

# What stands for "the numbers are others": ten bars, as for the negative proof.
CHANGED = 10 * BAR


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

    def start(self) -> None:
        """Quieten the libraries, once in each process."""
        from transformers.utils import logging as transformers_logging

        logging.disable(logging.ERROR)
        transformers_logging.disable_progress_bar()
        gc.freeze()

    def base(self, model: str) -> Base:
        """The unedited file of a model."""
        if model not in self.bases:
            (family,) = (f for f in self.families if f.name == model)
            variant = TELLING[model]
            folder = self.folder / f"{model}-{id(self)}"
            folder.mkdir(exist_ok=True)
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
        """What comes of one mutant."""
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
        kinds = [m for m in MUTATIONS if m.name in mutant.names]
        try:
            compile(text, "<mutant>", "exec")
            tensors = drawn_tensors(base.stage, text, known_as=draft_names(draft))
            upstream = upstream_logits(base.stage, text, tensors)
        except Exception as error:  # noqa: BLE001: a mutated file may do anything
            return Finding(Verdict.FAULT, f"upstream: {type(error).__name__}: {error}")
        away = distance(upstream, base.logits)
        made = self.made(base, text)
        if isinstance(made, Finding) and made.verdict is Verdict.CRASH:
            return made
        if all(kind.keeps for kind in kinds) and not away <= BAR:
            return Finding(Verdict.FAULT, f"keeps the numbers, and is {away:.1e} off")
        silent = any(kind.is_silent or kind.keeps for kind in kinds[-1:])
        if not silent and not away > CHANGED and isinstance(made, Finding):
            return made
        if isinstance(made, Finding):
            return made
        try:
            ours = generated_logits(base.stage, made.text, tensors)
        except ValueError as error:
            return Finding(Verdict.REFUSED, str(error))
        except Exception as error:  # noqa: BLE001: whatever the file does wrong
            return Finding(Verdict.CRASH, f"output: {type(error).__name__}: {error}")
        off = distance(ours, upstream)
        if not off <= BAR:
            return Finding(Verdict.WRONG, f"{mutant.title} is {off:.1e} off")
        lost = applied(base.transpiled) - applied(made)
        return Finding(Verdict.LESS if lost else Verdict.EQUAL, ", ".join(lost))

    def made(self, base: Base, text: str) -> Transpiled | Finding:
        """What the walk makes of a text."""
        import libcst as cst

        try:
            edited = replace(base.source, text=text, tree=cst.parse_module(text))
            return transpile_source(edited)
        except Refused as refused:
            return Finding(Verdict.REFUSED, str(refused))
        except Exception as error:  # noqa: BLE001: any other is what is looked for
            return Finding(Verdict.CRASH, f"walk: {type(error).__name__}: {error}")


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


def draft_names(draft: Draft) -> Any:
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
