"""What the crash matrices share."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from tests.crash.matrix import Crew, Report
from tests.numbers import NUMBERS


@pytest.fixture(scope="session")
def report_of(pytestconfig: pytest.Config) -> Callable[[str], Report]:
    """Where the matrix of a name puts its numbers."""
    reports: dict[str, Report] = {}

    def report(name: str) -> Report:
        if name not in reports:
            reports[name] = Report(name)
            pytestconfig.stash[NUMBERS].append(reports[name])
        return reports[name]

    return report


@pytest.fixture(scope="session")
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of durable commits need no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="twophase-", dir=memory if memory.is_dir() else None) as made:
        yield Path(made)


@pytest.fixture(scope="module")
def crew_of(fast_directory: Path, report_of: Callable[[str], Report]) -> Iterator[Callable[..., Crew]]:
    """The crew of a world (and of a size, if told), opened when first asked for, and kept for the module.

    A fixture with parameters would not keep it: pytest makes it anew for each test that is given its parameter together
    with others.
    """
    with ExitStack() as opened:

        @cache
        def crew(world: str, **size: int) -> Crew:
            return opened.enter_context(Crew(world, fast_directory / world, report_of(world), **size))

        yield crew
