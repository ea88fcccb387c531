"""The three databases: a file, and two servers that are started once for the whole run."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jdbc.places import PLAIN, Place
from tests.servers import Server
from twophase import failpoints
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.model import ObjectPath

#: The first one is what `make test` proves promises on.
KINDS = ("postgresql", "sqlite", "mariadb")
#: For a test through Spark of what does not depend on the database.
IN_ANY_DATABASE = pytest.mark.parametrize(
    "shop", [KINDS[0], *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in KINDS[1:])], indirect=True
)


def make_place(kind: str, request: pytest.FixtureRequest, directory: Path) -> Place:
    """A database of a kind."""
    if kind == "sqlite":
        return Place(kind, f"sqlite:///{directory / 'shop.db'}")
    if kind == "duckdb":
        return Place(kind, f"duckdb:///{directory / 'shop.duckdb'}")
    if kind.startswith("plain-"):
        backend, rest = _url(request.getfixturevalue(kind.removeprefix("plain-"))).split("+", 1)
        return Place(kind, f"{PLAIN[backend]}+{rest}")
    return Place(kind, _url(request.getfixturevalue(kind)))


def _url(server: Server) -> str:
    """MariaDB's driver would read all certificates of the machine for each connection: twenty milliseconds."""
    return f"{server.url}?ssl_disabled=true" if server.name == "MariaDB" else server.url


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


@pytest.fixture
def database(catalog: JdbcCatalog, place: Place) -> Iterator[str]:
    """A database of its own for a test; afterwards nothing of ours may be left in it."""
    name = f"shop_{uuid.uuid4().hex[:10]}"
    catalog.create_database(name)
    yield name
    failpoints.disarm()
    left = place.hidden(name) if catalog.database_exists(name) else []
    catalog.drop_database(name, ignore_if_not_exists=True, cascade=True)
    assert left == []


@pytest.fixture
def path(database: str) -> ObjectPath:
    """A table that does not exist yet."""
    return ObjectPath.of(database, "daily")
