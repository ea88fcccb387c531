"""What the crash matrices share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.numbers import NUMBERS


@pytest.fixture(scope="session")
def reports(pytestconfig: pytest.Config) -> list[object]:
    """Where each matrix puts its numbers."""
    return pytestconfig.stash[NUMBERS]


@pytest.fixture(scope="session")
def fast_directory() -> Iterator[Path]:
    """A directory in memory where there is one: thousands of durable commits need no disk."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="twophase-", dir=memory if memory.is_dir() else None) as made:
        yield Path(made)
