"""The command: ``python -m transpiler.verify.bench [MODEL ...]``.

The generated class, vLLM's own and the Transformers backend, side by side in one run.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from transpiler.verify.checkpoint import request_of, write_checkpoint
from transpiler.verify.engine import EngineOptions, Implementation, Kind
from transpiler.verify.families import chosen
from transpiler.verify.family import Family
from transpiler.verify.isolate import Failure, Finished, import_once, in_child
from transpiler.verify.operations import Operations, count_operations
from transpiler.verify.speed import VOCABULARY, Speed, measure_rounds, median_of
from transpiler.verify.variants import Variant

# Large enough for a step to be more than Python, small enough for a dozen engines.
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
}
VARIANT = Variant("bench", SIZES, prompt_lengths=(4,), new_tokens=3, max_model_len=512)
GENERATED, OWN, BACKEND = "generated", "vLLM's own", "Transformers backend"
ROWS = {
    "construction": "construction, ms",
    "decode_1": "decode, batch 1, tokens/s",
    "decode_16": "decode, batch 16, tokens/s",
    "prefill": "prefill, tokens/s",
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()
if not console.is_terminal:
    console = Console(width=120)


@app.command()
def bench(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="All, if none.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each class.")] = 7,
    compiled: Annotated[
        bool, typer.Option(help="With torch.compile: a minute and more per round.")
    ] = False,
) -> None:
    """Time generated classes beside vLLM's own and the Transformers backend.

    One thread, float32, random weights; seconds of CPU time. Exit status 1 if a
    generated class does not run, 2 if the command itself is wrong.
    """
    families = chosen(models)
    import_once()
    ran = [_bench(family, rounds, compiled) for family in families]
    raise typer.Exit(0 if all(ran) else 1)


def _bench(family: Family, rounds: int, compiled: bool) -> bool:
    """Measure one family, print its table; whether the generated class ran."""
    target = family.target
    implementations = {
        GENERATED: Implementation(Kind.UNDER_TEST, family.architecture, target),
        OWN: Implementation(Kind.VLLM, family.architecture),
        BACKEND: Implementation(Kind.TRANSFORMERS, family.architecture),
    }
    settings = {"enable_prefix_caching": False}
    options = EngineOptions(VARIANT.max_model_len, settings, compiling=compiled)
    speeds: dict[str, list[Speed]] = {name: [] for name in implementations}
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        checkpoint = Path(name)
        written = in_child(partial(write_checkpoint, checkpoint, family, VARIANT, 0))
        if isinstance(written, Failure):
            console.print(f"checkpoint: {written.last_line()}", markup=False)
            return False
        turns = measure_rounds(checkpoint, implementations, options, rounds)
        with console.status(f"{family.name}: {rounds} rounds"):
            for which, outcome in turns:
                if isinstance(outcome, Failure):
                    console.print(f"{which}: {outcome.last_line()}", markup=False)
                else:
                    speeds[which].append(outcome)
            operations = _operations(checkpoint, family, implementations)
    medians = {which: median_of(found) for which, found in speeds.items() if found}
    how = "compiled" if compiled else "eager"
    title = f"{family.name}: medians of {rounds} rounds, {how}, float32, CPU time"
    console.print(_table(title, medians, operations))
    return GENERATED in medians


def _operations(
    checkpoint: Path, family: Family, implementations: Mapping[str, Implementation]
) -> dict[str, Operations]:
    """Return the operations of a decode step of each implementation that runs."""
    options = EngineOptions(VARIANT.max_model_len)
    request = request_of(family, VARIANT, 0)
    found = {}
    for name, implementation in implementations.items():
        counting = partial(
            count_operations, checkpoint, request, implementation, options
        )
        outcome = in_child(counting)
        if isinstance(outcome, Finished):
            found[name] = outcome.value
    return found


def _table(
    title: str, medians: Mapping[str, Speed], operations: Mapping[str, Operations]
) -> Table:
    """Return the table: a measurement a row, a class a column, then ratios."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in (GENERATED, OWN, BACKEND):
        table.add_column(name, justify="right", no_wrap=True)
    for name in (OWN, BACKEND):
        table.add_column(f"generated / {name}", justify="right")
    for row, label in ROWS.items():
        scale = 1000 if row == "construction" else 1
        values = {name: scale * getattr(m, row) for name, m in medians.items()}
        table.add_row(label, *_cells(values))
    counts = {name: float(found.total) for name, found in operations.items()}
    table.add_row("operations of a decode step", *_cells(counts))
    return table


def _cells(values: Mapping[str, float]) -> list[str]:
    """Return values and ratios as text; what did not run is left empty."""
    cells = [
        f"{values[n]:.0f}" if n in values else "" for n in (GENERATED, OWN, BACKEND)
    ]
    for name in (OWN, BACKEND):
        both = GENERATED in values and name in values
        cells.append(f"{values[GENERATED] / values[name]:.2f}" if both else "")
    return cells


if __name__ == "__main__":
    app(prog_name="python -m transpiler.verify.bench")
