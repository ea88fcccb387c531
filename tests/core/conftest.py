"""A timeline and chaos catalogs in files: what a second process can see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.core.bench import Bench
from twophase import failpoints


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """One timeline, and the catalogs ``one`` and ``two``, each over a store of its own."""
    bench = Bench(f"sqlite:///{tmp_path / 'timeline.db'}", tmp_path)
    yield bench
    bench.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty timeline."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'timeline.db'}"
    server = request.getfixturevalue("postgresql")
    address = f"host={server.host} port={server.port} user=twophase dbname=twophase"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS core_reservations CASCADE")
        connection.execute("CREATE SCHEMA core_reservations")
    return f"{server.url}?options=-csearch_path%3Dcore_reservations"


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()
