"""The table a person reads: one row per variant, and why what failed did."""

from __future__ import annotations

from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from transpiler.verify.compare import BAR, Comparison
from transpiler.verify.run import Result

COLUMNS = ("tokens", "prompt", "decode", "backend", "seconds")


def table_of(title: str, results: list[Result]) -> Table:
    """Return the table of a family's results; differences are log-probabilities.

    A bar is shown only where upstream's own noise raised it above the usual one.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for result in results:
        table.add_row(*_row(result))
    return table


def find_notes(results: list[Result]) -> Iterator[str]:
    """Yield one line for each variant that failed and each backend that did not run."""
    for result in results:
        if result.detail:
            yield f"{result.variant.name}: {result.detail}"
        if isinstance(result.backend, str):
            yield f"{result.variant.name}: backend: {result.backend}"


def summary_of(results: list[Result]) -> str:
    """Return one line: how many passed, how long they took, which took longest."""
    passed = sum(result.passed for result in results)
    seconds = sum(result.seconds for result in results)
    backend = sum(result.backend_seconds for result in results)
    longest = max(results, key=lambda result: result.seconds)
    return (
        f"{passed} of {len(results)} variants passed in {seconds:.0f} s "
        f"(longest {longest.variant.name}, {longest.seconds:.1f} s); "
        f"the backend took {backend:.0f} s"
    )


def _row(result: Result) -> tuple[str, ...]:
    cells = ("", "", "")
    if result.comparison is not None:
        cells = _numbers(result.comparison)
    seconds = f"{result.seconds:.1f}"
    verdict = escape(_verdict(result))
    if not result.passed:
        verdict = f"[red]{verdict}[/red]"
    return (result.variant.name, verdict, *cells, _backend(result), seconds)


def _verdict(result: Result) -> str:
    if not result.passed:
        return "failed"
    if result.named:
        return f"raises: {result.named}"
    if result.upstream_fails:
        return "upstream fails"
    comparison = result.comparison
    if comparison is not None and comparison.bar > BAR:
        return f"equal, bar {comparison.bar:.2e}"
    return "equal"


def _numbers(comparison: Comparison) -> tuple[str, str, str]:
    tokens = "equal" if comparison.tokens_equal else "differ"
    if comparison.tokens_equal and comparison.tied:
        tokens = f"equal, {comparison.tied} tied"
    return tokens, f"{comparison.prompt:.1e}", f"{comparison.decode:.1e}"


def _backend(result: Result) -> str:
    """Return the backend's largest difference, or that it failed."""
    if isinstance(result.backend, Comparison):
        return f"{result.backend.largest:.1e}"
    return "failed" if result.backend else ""
