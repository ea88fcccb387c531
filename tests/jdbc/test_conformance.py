"""The JDBC catalog passes the conformance suite over a real database of each kind."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, Row
from tests.servers import MYSQL
from twophase.catalog import Catalog
from twophase.catalog import TwoPhaseCatalogTable as Participant
from twophase.model import Capabilities, ObjectPath, Purpose
from twophase.testing.conformance import CatalogConformance, Driver, FreshProcess


class JdbcConformance(CatalogConformance):
    kind: str
    moments = 4  # The crash matrix tries each step.
    capabilities = Capabilities(
        purposes=frozenset(Purpose),
        rename_table=True,
        alter_table=True,
        read=True,
        group_publish=True,
        own_types=True,
    )

    @pytest.fixture
    def place(self, request: pytest.FixtureRequest, tmp_path: Path) -> Place:
        return make_place(self.kind, request, tmp_path)

    @pytest.fixture
    def catalog(self, place: Place) -> Any:
        catalog = place.catalog()
        yield catalog
        catalog.close()

    @pytest.fixture
    def fresh_catalog(self, place: Place) -> Callable[[], Catalog]:
        return place.catalog

    @pytest.fixture
    def read_rows(self, place: Place) -> Callable[[ObjectPath], list[Row]]:
        return place.rows

    @pytest.fixture
    def fresh_process(self, place: Place) -> FreshProcess | None:
        return FreshProcess("tests.jdbc.places:open_jdbc", place.options())

    @pytest.fixture
    def secrets(self, place: Place) -> list[str]:
        return ["twophase:twophase"] if self.kind.endswith("mariadb") else []

    @pytest.fixture(autouse=True)
    def nothing_is_left(self, place: Place, database: str, catalog: Catalog) -> Any:
        """After each test no transaction's table is left that a leftover does not name.

        A process that was killed in a trial of the database leaves a table that a later trial removes.
        """
        yield
        if catalog.database_exists(database):
            named = {leftover.location.rpartition("_")[2] for leftover in catalog.leftovers()}
            left = [name for name in place.hidden(database) if "_try_" not in name]
            assert [name for name in left if name.rpartition("_")[2] not in named] == []

    def assert_nothing_left(self, driver: Driver, participant: Participant) -> None:
        assert participant.left_behind() == []


class TestSQLite(JdbcConformance):
    kind = "sqlite"


class TestPostgreSQL(JdbcConformance):
    kind = "postgresql"
    capabilities = replace(JdbcConformance.capabilities, alter_database=True)


class TestMariaDB(JdbcConformance):
    another_store = True
    kind = "mariadb"
    #: Databases of MySQL, which ``make test-mysql`` puts in its place, have no comment.
    capabilities = replace(JdbcConformance.capabilities, alter_database=MYSQL not in os.environ)

    @pytest.fixture
    def catalog(self, place: Place) -> Any:
        catalog = place.catalog()
        catalog.store.learn("twophase")
        yield catalog
        catalog.close()


class OtherConformance(JdbcConformance):
    """A database that is known by its SQLAlchemy dialect only: what it can do is known from its first write on."""

    home: str

    @pytest.fixture
    def catalog(self, place: Place) -> Any:
        catalog = place.catalog()
        catalog.store.learn(self.home)
        yield catalog
        catalog.close()


class TestPlainPostgreSQL(OtherConformance):
    """As a database that only SQLAlchemy knows: DDL takes part in transactions."""

    another_store = True
    kind, home = "plain-postgresql", "public"


class TestPlainMariaDB(OtherConformance):
    """As a database that only SQLAlchemy knows: each DDL statement commits."""

    another_store = True
    kind, home = "plain-mariadb", "twophase"
    capabilities = replace(JdbcConformance.capabilities, group_publish=False)


@pytest.mark.exhaustive
class TestDuckDB(OtherConformance):
    """A file that one process at a time has open; each test opens it a hundred times: ten minutes in all."""

    kind, home = "duckdb", "main"
