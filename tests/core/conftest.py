"""A timeline and chaos catalogs in files: what a second process can see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.bench import Bench
from twophase import failpoints


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """One timeline, and the catalogs ``one`` and ``two``, each over a store of its own."""
    bench = Bench(f"sqlite:///{tmp_path / 'timeline.db'}", tmp_path)
    yield bench
    bench.close()


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()
