"""The three databases: a file, and two servers that are started once for the whole run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jdbc.places import Place
from tests.servers import Server
from twophase import failpoints
from twophase.catalogs.jdbc import JdbcCatalog

KINDS = ("sqlite", "postgresql", "mariadb")


def make_place(kind: str, request: pytest.FixtureRequest, directory: Path) -> Place:
    """A database of a kind."""
    if kind == "sqlite":
        return Place(kind, f"sqlite:///{directory / 'shop.db'}")
    server: Server = request.getfixturevalue(kind)
    return Place(kind, server.url)


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Each of the three."""
    return make_place(request.param, request, tmp_path)


@pytest.fixture
def catalog(place: Place) -> Iterator[JdbcCatalog]:
    made = place.catalog()
    yield made
    failpoints.disarm()
    made.close()
