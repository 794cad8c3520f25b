"""The command: ``python -m transpiler.verify.counts [MODEL ...]``.

Operations of a decode step: the generated class, vLLM's own and the Transformers
backend, and whether vLLM's own gives upstream's numbers at all.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.compare import compare
from transpiler.verify.engine import EngineOptions, Implementation, Kind
from transpiler.verify.families import chosen
from transpiler.verify.family import Family
from transpiler.verify.isolate import Failure, Finished, import_once, in_child
from transpiler.verify.operations import count_operations
from transpiler.verify.oracle import consult
from transpiler.verify.run import run_class
from transpiler.verify.variants import Variant

FOUR_LAYERS = Variant(
    "four-layers", {"num_hidden_layers": 4}, prompt_lengths=(5, 9), new_tokens=8
)
OPTIONS = EngineOptions(max_model_len=64)
# What a family's generated class may cost, as a share of the backend's operations.
LARGEST_SHARE = 0.8
MEDIAN_SHARE = 0.55

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console(width=120)


@dataclass(frozen=True)
class Counts:
    """Operations of a family by kind of class, and what vLLM's own class gives.

    Attributes:
        totals: Operations of those classes that run.
        own: `equal`, `differs`, or `fails`.
    """

    totals: Mapping[Kind, int]
    own: str

    def share(self, kind: Kind) -> float | None:
        """The generated class's operations to those of another."""
        if kind not in self.totals or Kind.UNDER_TEST not in self.totals:
            return None
        return self.totals[Kind.UNDER_TEST] / self.totals[kind]


@app.command()
def counts(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="All, if none.")
    ] = None,
) -> None:
    """Count operations; exit status 1 if a family has more than it may."""
    families = chosen(models)
    import_once()
    found = {f.name: counts_of(f) for f in track(families, console=console)}
    console.print(table_of(found))
    failed = [*shortfalls(found)]
    for line in failed:
        console.print(line)
    raise typer.Exit(1 if failed else 0)


def counts_of(family: Family) -> Counts:
    """Count the operations of a family's three classes on one checkpoint."""
    with tempfile.TemporaryDirectory(prefix="counts-") as folder:
        checkpoint = Path(folder)
        written = in_child(
            partial(write_checkpoint, checkpoint, family, FOUR_LAYERS, 0)
        )
        if isinstance(written, Failure):
            return Counts({}, "fails")
        request = request_of(family, FOUR_LAYERS, 0)
        totals = {}
        for kind in Kind:
            counting = partial(
                count_operations,
                checkpoint,
                request,
                implementation_of(family, kind),
                OPTIONS,
            )
            counted = in_child(counting)
            if isinstance(counted, Finished):
                totals[kind] = counted.value.total
        return Counts(totals, own_verdict(family, checkpoint))


def own_verdict(family: Family, checkpoint: Path) -> str:
    """Whether vLLM's own class gives upstream's numbers."""
    request = request_of(family, FOUR_LAYERS, 0)
    own = implementation_of(family, Kind.VLLM)
    answers = in_child(partial(run_class, checkpoint, request, own, OPTIONS))
    reference = in_child(partial(consult, checkpoint, request))
    if isinstance(answers, Failure) or isinstance(reference, Failure):
        return "fails"
    compared = compare(reference.value, answers.value)
    return "equal" if compared.is_equal else "differs"


def implementation_of(family: Family, kind: Kind) -> Implementation:
    """A class of a family."""
    target = family.target if kind is Kind.UNDER_TEST else ""
    return Implementation(kind, family.architecture, target)


def shortfalls(found: Mapping[str, Counts]) -> list[str]:
    """What a family asks too much of, a line each."""
    lines = []
    shares = []
    for name, counts in found.items():
        share, own = counts.share(Kind.TRANSFORMERS), counts.share(Kind.VLLM)
        if share is not None:
            shares.append(share)
        if share is not None and share > LARGEST_SHARE:
            lines.append(f"{name}: {share:.2f} of the backend's operations")
        if own is not None and counts.own == "equal" and own > 1:
            lines.append(f"{name}: {own:.2f} of the operations of vLLM's own class")
    if shares and statistics.median(shares) > MEDIAN_SHARE:
        lines.append(f"median {statistics.median(shares):.2f} of the backend's")
    return lines


def table_of(found: Mapping[str, Counts]) -> Table:
    """One row a family, then the median of its shares."""
    table = Table(box=None, pad_edge=False)
    for name in ("model", "generated", "vLLM's own", "", "backend", "/ own", "/ back"):
        table.add_column(name, justify="left" if name in ("model", "") else "right")
    for name, counts in found.items():
        cells = [str(counts.totals.get(kind, "")) for kind in ORDER]
        shares = [counts.share(kind) for kind in ORDER[1:]]
        said = ["" if share is None else f"{share:.2f}" for share in shares]
        table.add_row(name, *cells[:2], counts.own, cells[2], *said)
    return table


ORDER = (Kind.UNDER_TEST, Kind.VLLM, Kind.TRANSFORMERS)


if __name__ == "__main__":
    app(prog_name="python -m transpiler.verify.counts")
