"""The table a person reads: one row per variant."""

from __future__ import annotations

from rich.table import Table

from transpiler.verify.compare import BAR, Comparison
from transpiler.verify.run import Result
from transpiler.verify.variants import Outcome

COLUMNS = ("tokens", "prompt", "decode", "backend", "seconds")


def table_of(title: str, results: list[Result]) -> Table:
    """Return the table of a family's results; differences are log-probabilities.

    A bar is shown only where upstream's own noise raised it above the usual one.
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("variant", no_wrap=True)
    table.add_column("verdict", overflow="fold")
    for name in COLUMNS:
        table.add_column(name, justify="right", overflow="fold")
    for result in results:
        table.add_row(*_row(result))
    return table


def verdict_of(result: Result) -> str:
    """Return a result in a few words."""
    if not result.passed:
        return f"[red]failed[/red]: {result.detail}"
    if result.named:
        return f"raises, naming {result.named}"
    comparison = result.comparison
    if comparison is not None and comparison.bar > BAR:
        return f"equal, bar {comparison.bar:.1e}"
    return "equal"


def summary_of(results: list[Result]) -> str:
    """Return one line: how many passed, how long they took, which took longest."""
    passed = sum(result.passed for result in results)
    seconds = sum(result.seconds for result in results)
    backend = sum(result.backend_seconds for result in results)
    longest = max(results, key=lambda result: result.seconds)
    return (
        f"{passed} of {len(results)} variants passed in {seconds:.0f} s "
        f"(longest {longest.variant.name}, {longest.seconds:.1f} s), "
        f"the backend column in {backend:.0f} s"
    )


def _row(result: Result) -> tuple[str, ...]:
    comparison = result.comparison
    cells = ("", "", "")
    if comparison is not None:
        cells = (
            _tokens(comparison),
            _number(comparison.prompt),
            _number(comparison.decode),
        )
    seconds = f"{result.seconds:.1f}"
    return (result.variant.name, verdict_of(result), *cells, _backend(result), seconds)


def _tokens(comparison: Comparison) -> str:
    if not comparison.tokens_equal:
        return "differ"
    return f"equal, {comparison.tied} tied" if comparison.tied else "equal"


def _backend(result: Result) -> str:
    """Return the backend's largest difference, or why it has none."""
    if isinstance(result.backend, Comparison):
        return _number(result.backend.largest)
    if result.backend is None and result.variant.expected.outcome is Outcome.RAISES:
        return ""
    return result.backend or ""


def _number(value: float) -> str:
    return f"{value:.1e}"
