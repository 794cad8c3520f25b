"""The command: ``python -m transpiler.verify [MODEL ...]``."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console

from transpiler.emit.families import with_families
from transpiler.emit.files import write
from transpiler.emit.registry import REGISTRY, registry_text
from transpiler.verify.families import FAMILIES
from transpiler.verify.family import Family
from transpiler.verify.variants import UnknownNameError, Variant, require_known

if TYPE_CHECKING:
    from transpiler.verify.run import Plan, Result

ROOT = Path(__file__).resolve().parents[2]
GENERATED = ROOT / "generated"

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
console = Console()
if not console.is_terminal:
    # A table cut at 80 columns cannot be read in a log.
    console = Console(width=120)


@app.command()
def verify(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="All, if none.")
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this variant; may be repeated.")
    ] = None,
    class_: Annotated[
        str,
        typer.Option(
            "--class",
            help="Prove this instead of the generated class: module:Class,"
            " path/to/file.py:Class, or vllm for vLLM's own.",
        ),
    ] = "",
    backend: Annotated[
        bool, typer.Option(help="Also run the Transformers backend, for comparison.")
    ] = True,
    seed: Annotated[int, typer.Option(help="Of weights and prompts.")] = 0,
) -> None:
    """Prove generated models equal to Transformers, and record it in PROOF.json.

    Exit status 1 if a variant fails, 2 if the command itself is wrong.
    """
    chosen = _choose(models or [], tuple(variant or ()), class_)
    _import()
    failed = False
    for family, variants in chosen:
        results = _prove(family, variants, class_, backend, seed)
        failed = failed or not all(result.passed for result in results)
        if not class_:
            _record(family, variants, results)
    raise typer.Exit(1 if failed else 0)


def _choose(
    models: list[str], names: tuple[str, ...], class_: str
) -> list[tuple[Family, tuple[Variant, ...]]]:
    """Return families and variants to prove, or end with status 2."""
    known = {family.name: family for family in FAMILIES}
    if class_ and len(models) != 1:
        _usage_error("--class needs exactly one MODEL")
    if class_ not in ("", "vllm") and ":" not in class_:
        _usage_error(f"--class {class_!r} is not module:Class or path/to/file.py:Class")
    try:
        for model in models:
            require_known("model", model, list(known))
        families = [known[model] for model in models] or list(FAMILIES)
        chosen = [(family, family.find_variants(names)) for family in families]
    except UnknownNameError as error:
        _usage_error(str(error))
    for family in families:
        if not class_ and not (GENERATED / f"{family.name}.py").exists():
            _usage_error(
                f"generated/{family.name}.py does not exist:"
                f" make transpile MODEL={family.name}"
            )
    return chosen


def _import() -> None:
    from transpiler.verify.isolate import import_once

    sys.path.insert(0, str(ROOT))
    try:
        with _silenced():
            import_once()
    except ImportError as error:
        _usage_error(f"{error}; the proof needs the verify extra")


@contextmanager
def _silenced() -> Iterator[None]:
    """Drop what the libraries print on being imported; it says nothing of the proof."""
    kept = os.dup(2)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def _prove(
    family: Family, variants: tuple[Variant, ...], class_: str, backend: bool, seed: int
) -> list[Result]:
    """Run the variants with a line of progress, print the table, return the results."""
    from transpiler.verify.run import prove_variant
    from transpiler.verify.table import find_notes, summary_of, table_of

    plan = _plan(family, class_, backend, seed)
    results: list[Result] = []
    with console.status("") as status:
        for variant in variants:
            count = f"{len(results) + 1}/{len(variants)}"
            status.update(f"{family.name} {count}: {variant.name}")
            results.append(prove_variant(plan, variant))
    title = f"{family.name}: {plan.target or 'own class of vLLM'}"
    console.print(table_of(title, results))
    for line in (*find_notes(results), summary_of(results)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return results


def _plan(family: Family, class_: str, backend: bool, seed: int) -> Plan:
    from transpiler.verify.run import Plan

    target = class_ or family.target
    return Plan(family, "" if class_ == "vllm" else target, seed, backend)


def _record(
    family: Family, variants: tuple[Variant, ...], results: list[Result]
) -> None:
    """Write or remove the family's entry of PROOF.json; a part proves nothing."""
    from transpiler.verify.proof import Proven, record, remove

    file = f"{family.name}.py"
    version = importlib.metadata.version("transformers")
    if not all(result.passed for result in results):
        remove(GENERATED, file, version)
        console.print(f"{file} is not proven: no entry in generated/PROOF.json")
    elif variants == family.variants:
        fails = tuple(r.variant.name for r in results if r.upstream_fails)
        equal = tuple(
            r.variant.name for r in results if not r.named and not r.upstream_fails
        )
        raises = {r.variant.name: r.named for r in results if r.named}
        proven = Proven(family.architecture, equal, raises, fails)
        record(GENERATED, file, proven, version)
        console.print(f"{file} is proven: generated/PROOF.json")
    _derive()


def _derive() -> None:
    """Write what follows from the record: the registry and the README's table."""
    write(GENERATED / REGISTRY, registry_text(GENERATED))
    readme, report = GENERATED.parent / "README.md", GENERATED / "REPORT.md"
    if readme.is_file() and report.is_file():
        text = readme.read_text(encoding="utf-8")
        table = with_families(text, GENERATED, report.read_text(encoding="utf-8"))
        write(readme, table)


def _usage_error(message: str) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app(prog_name="python -m transpiler.verify")
