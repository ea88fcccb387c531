"""The numbers of the crash matrix, at the end of the run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.matrix import Report

_reports = pytest.StashKey[list[Report]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_reports] = []


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for report in config.stash.get(_reports, []):
        terminalreporter.write_line(str(report))


@pytest.fixture(scope="session")
def reports(pytestconfig: pytest.Config) -> list[Report]:
    """Where each matrix puts its numbers."""
    return pytestconfig.stash[_reports]


@pytest.fixture(scope="session")
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of durable commits need no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="twophase-", dir=memory if memory.is_dir() else None) as made:
        yield Path(made)
