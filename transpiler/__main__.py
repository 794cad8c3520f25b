"""The command: `python -m transpiler COMMAND MODEL…`; without one, `transpile`."""

from __future__ import annotations

import difflib
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import track

from transpiler.coverage import (
    COVERAGE,
    all_tried,
    coverage_text,
    modeling_files,
)
from transpiler.emit.families import with_families
from transpiler.emit.files import check_unedited, write
from transpiler.emit.registry import REGISTRY, registry_text, stale
from transpiler.pipeline import Transpiled, transpile_source
from transpiler.read import Source, find_transformers, read
from transpiler.refusal import BadInput, Refused
from transpiler.report import REPORT, Written, line_of, merged, written
from transpiler.review import diff_lines, explained

GENERATED = Path(__file__).resolve().parent.parent / "generated"
COMMANDS = frozenset({"transpile", "check", "coverage", "diff", "explain"})


class Stopped(Exception):
    """A refusal as it is printed."""


app = typer.Typer(
    add_completion=False, pretty_exceptions_enable=False, no_args_is_help=False
)
console = Console(highlight=False, soft_wrap=True)
errors = Console(stderr=True, highlight=False, soft_wrap=True)

Models = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Name or path; every file, if none."),
]
Output = Annotated[Path, typer.Option(help="Folder of the generated files.")]


@app.command("transpile")
def transpile_command(
    models: Models = None,
    output: Output = GENERATED,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite a file edited by hand.")
    ] = False,
) -> None:
    """Write the generated file of each model, the registry and the report."""
    check_folder(output)
    done = all_walked(models or checked_in(output))
    for made in done:
        if not force:
            check_unedited(output / f"{made.name}.py")
    for made in done:
        write(output / f"{made.name}.py", made.text)
    for path, text in derived(output, report_text(output, done)).items():
        write(path, text)
    for made in done:
        console.print(f"{made.name}.py", markup=False)
        for line in made.lines:
            console.print(f"  {line}", markup=False)


@app.command("check")
def check_command(
    models: Models = None,
    output: Output = GENERATED,
    with_coverage: Annotated[
        bool, typer.Option("--coverage", help="Try every modeling file as well.")
    ] = False,
) -> None:
    """Regenerate in memory and compare; show the difference and what repairs it."""
    check_folder(output)
    names = models or checked_in(output)
    done = all_walked(names)
    wanted = {output / f"{made.name}.py": made.text for made in done}
    wanted |= derived(output, report_text(output, done))
    if with_coverage:
        wanted[output / COVERAGE] = coverage()
    different = False
    for path, text in wanted.items():
        file = path.name
        found = path.read_text(encoding="utf-8") if path.is_file() else ""
        if found != text:
            different = True
            sys.stdout.writelines(
                difflib.unified_diff(
                    found.splitlines(keepends=True),
                    text.splitlines(keepends=True),
                    f"{file} (checked in)",
                    f"{file} (regenerated)",
                )
            )
    for file in stale(output):
        different = True
        name = file.removesuffix(".py")
        console.print(f"{file} changed since it was proven: make verify MODEL={name}")
    if different:
        fail("generated files are not up to date: make transpile", 1)
    console.print(f"{len(wanted)} files are up to date")


@app.command("coverage")
def coverage_command(output: Output = GENERATED) -> None:
    """Try every modeling file of the installed Transformers; write COVERAGE.md."""
    check_folder(output)
    text = coverage()
    write(output / COVERAGE, text)
    console.print(text.split("\n\n")[2], markup=False)


def coverage() -> str:
    """The text of COVERAGE.md, made anew with a progress bar."""
    root, _ = find_transformers()
    files = modeling_files(root)
    rows = all_tried(root, files)
    return coverage_text([*track(rows, "modeling files", len(files), console=errors)])


@app.command("diff")
def diff_command(model: str) -> None:
    """Show upstream against generated, each changed statement with its rule."""
    for line in diff_lines(walked(read(model))):
        print(line)


@app.command("explain")
def explain_command(model: str) -> None:
    """Show what came of each fusion and of each statement."""
    for line in explained(walked(read(model))):
        print(line)


def check_folder(output: Path) -> None:
    """An output folder must be there.

    Raises:
        BadInput: It is not.
    """
    if not output.is_dir():
        raise BadInput(f"{output} is not a folder")


def all_walked(models: list[str]) -> list[Written]:
    """Transpile models, several on all cores; the first refusal ends the command."""
    if len(models) == 1:
        return [walked_in_worker(models[0])]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(walked_in_worker, models)
        hidden = not errors.is_terminal
        return [*track(found, "models", len(models), console=errors, disable=hidden)]


def walked_in_worker(model: str) -> Written:
    """What is written of one model: a tree does not travel between processes."""
    return written(walked(read(model)))


def walked(source: Source) -> Transpiled:
    """Transpile a source; a refusal ends the command with its location."""
    try:
        return transpile_source(source)
    except Refused as refused:
        line = f"{source.where(refused.node)}: {source.name} refused {refused}"
        causes = [f"  {line_of(source, outcome)}" for outcome in refused.causes]
        raise Stopped("\n".join([line, *causes])) from None


def checked_in(folder: Path) -> list[str]:
    """Names of the models whose files are in a folder."""
    return sorted(
        path.stem
        for path in folder.glob("*.py")
        if path.name not in {"__init__.py", REGISTRY}
    )


def report_text(folder: Path, done: list[Written]) -> str:
    """The report with the sections of these models renewed."""
    path = folder / REPORT
    before = path.read_text(encoding="utf-8") if path.is_file() else ""
    names = {*checked_in(folder), *(made.name for made in done)}
    return merged(before, done, names)


def derived(folder: Path, report: str) -> dict[Path, str]:
    """What follows from the generated files: report, registry, the README's table."""
    texts = {folder / REPORT: report, folder / REGISTRY: registry_text(folder)}
    readme = folder.parent / "README.md"
    if folder == GENERATED and readme.is_file():
        before = readme.read_text(encoding="utf-8")
        texts[readme] = with_families(before, folder, report)
    return texts


def fail(message: str, status: int) -> NoReturn:
    """End the command with one line, and the fusions whose refusal led to it."""
    errors.print(message, markup=False)
    raise SystemExit(status)


def main() -> None:
    """Run the command; `transpile` when none is named."""
    arguments = sys.argv[1:]
    if not arguments or (
        arguments[0] not in COMMANDS and arguments[0] not in {"--help", "-h"}
    ):
        arguments = ["transpile", *arguments]
    try:
        app(arguments)
    except BadInput as bad:
        fail(str(bad), 2)
    except Stopped as stopped:
        fail(str(stopped), 1)


if __name__ == "__main__":
    main()
