"""Rows of the table, and pairs of measurements that a noisy machine does not favour."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Row:
    """One measurement.

    Attributes
    ----------
    what, beside : str
        The statement, and how much there is beside what it touches.
    ours : float
        Seconds, a median.
    stock : float or None
        The same in stock Spark; None where it does no such thing.
    ratio : float or None
        Median of ours / stock over the pairs.
    """

    what: str
    beside: str
    ours: float
    stock: float | None = None
    ratio: float | None = None


def alone(what: str, beside: str, run: Callable[[int], object], rounds: int, *, warm: int = 1) -> Row:
    """Measure where there is nothing to compare with; ``run`` gets the number of the round."""
    taken = [seconds(run, number) for number in range(-warm, rounds)]
    return Row(what, beside, statistics.median(taken[warm:]))


def paired(
    what: str, beside: str, ours: Callable[[int], object], stock: Callable[[int], object], rounds: int, *, warm: int = 1
) -> Row:
    """Measure in pairs that change who goes first."""
    sides: dict[str, list[float]] = {"ours": [], "stock": []}
    runs = {"ours": ours, "stock": stock}
    for number in range(-warm, rounds):
        for side in sorted(runs, reverse=bool(number % 2)):
            sides[side].append(seconds(runs[side], number))
    mine, theirs = sides["ours"][warm:], sides["stock"][warm:]
    ratio = statistics.median(a / b for a, b in zip(mine, theirs, strict=True))
    return Row(what, beside, statistics.median(mine), statistics.median(theirs), ratio)


def seconds(run: Callable[[int], object], number: int) -> float:
    gc.collect()
    begun = time.perf_counter()
    run(number)
    return time.perf_counter() - begun


def shown(rows: Iterable[Row], console: Console) -> Iterator[Row]:
    """Tell each row as it comes."""
    for row in rows:
        console.print(f"{row.what}, {row.beside}: {_milliseconds(row.ours)} ms, ratio {_ratio(row.ratio)}")
        yield row


def table(rows: Iterable[Row]) -> Table:
    """All rows, for people."""
    found = Table("statement", "beside", "twophase, ms", "stock, ms", "ratio", title="The cost of what is not touched")
    for row in rows:
        found.add_row(row.what, row.beside, _milliseconds(row.ours), _milliseconds(row.stock), _ratio(row.ratio))
    return found


def _milliseconds(taken: float | None) -> str:
    return "-" if taken is None else f"{taken * 1000:,.0f}" if taken > 0.1 else f"{taken * 1000:.1f}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"
