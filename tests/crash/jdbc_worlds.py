"""The worlds of the JDBC catalog: SQLite in a file, and the servers."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

import sqlalchemy as sa

from tests.crash.scenario import Rows, Scenario
from tests.crash.scenarios import (
    JDBC,
    JDBC_ALTERS,
    JDBC_BRINGING,
    JDBC_DATABASES,
    JDBC_DROPS,
    JDBC_RENAMES,
    JDBC_RENAMES_WITH_ROWS,
    JDBC_SAVEPOINTS,
)
from tests.crash.server_sides import MariaDBDatabase, PostgreSQLSchema, ServerSide
from tests.crash.worlds import World, name_of, variable
from tests.jdbc.places import Place, Row, fetch
from twophase.catalog import Catalog
from twophase.model import ObjectPath


class JdbcWorld(World):
    """A JDBC catalog over a SQLite file."""

    scenarios = (
        JDBC | JDBC_DROPS | JDBC_ALTERS | JDBC_BRINGING | JDBC_RENAMES | JDBC_RENAMES_WITH_ROWS | JDBC_SAVEPOINTS
    )
    undoes = False
    database = "main"

    def open_catalogs(self) -> dict[str, Catalog]:
        self.place = self.open_place()
        return {"shop": self.place.catalog(pool_size="1")}

    def open_place(self) -> Place:
        """The database, past the catalog."""
        return Place("sqlite", f"sqlite:///{self.directory / 'shop.db'}")

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(self.database, table.split(".")[1])

    def rows(self, table: str) -> Rows | None:
        found = self.path(table)
        if not self.place.has(found):
            return None
        return sorted(self.place.rows(found), key=repr)

    def leftovers(self) -> list[str]:
        # The server is shared by all workers of the matrix.
        mine = [left for left in super().leftovers() if f" {self.database}." in left]
        return [*mine, *self.place.hidden(self.database)]


class _OneConnection(Place):
    """A process of the matrix looks often, and connecting would be the most of it."""

    @cached_property
    def _engine(self) -> sa.Engine:
        return sa.create_engine(self.url, pool_size=1, isolation_level="AUTOCOMMIT")

    def execute(self, sql: str, database: str = "main") -> list[Row]:
        with self._engine.connect() as connection:
            return fetch(connection, sql)

    def close(self) -> None:
        self._engine.dispose()


class JdbcServerWorld(JdbcWorld):
    """The same over a server; each directory has a database of its own there."""

    kind = "postgresql"
    on_server: type[PostgreSQLSchema | MariaDBDatabase] = PostgreSQLSchema

    @classmethod
    def server_side(cls, directory: Path) -> ServerSide:
        return cls.on_server(os.environ[variable(cls.kind)], name_of(directory, "crash"))

    def open_catalogs(self) -> dict[str, Catalog]:
        self.database = name_of(self.directory, "crash")
        return super().open_catalogs()

    place: _OneConnection

    def open_place(self) -> _OneConnection:
        return _OneConnection(self.kind, os.environ[variable(self.kind)])

    def close(self) -> None:
        super().close()
        self.place.close()

    def set_up(self, scenario: Scenario) -> None:
        catalog = self.catalogs["shop"]
        catalog.drop_database(self.database, ignore_if_not_exists=True, cascade=True)
        catalog.create_database(self.database)
        super().set_up(scenario)


class JdbcMariaDBWorld(JdbcServerWorld):
    """The same over MariaDB."""

    kind = "mariadb"
    on_server = MariaDBDatabase


class JdbcDatabasesWorld(JdbcServerWorld):
    """The same; the database of a directory is the one that a scenario creates or drops."""

    scenarios = JDBC_DATABASES
    warmed_as = "jdbc-postgresql"

    def path(self, table: str) -> ObjectPath:
        return ObjectPath.of(self.database, table.split(".")[-1])

    def rows(self, table: str) -> Rows | None:
        if not table.endswith("*"):
            return super().rows(table)
        sql = f"SELECT 1 FROM information_schema.schemata WHERE schema_name = '{self.database}'"
        return [] if self.place.execute(sql) else None

    def set_up(self, scenario: Scenario) -> None:
        self.catalogs["shop"].drop_database(self.database, ignore_if_not_exists=True, cascade=True)
        World.set_up(self, scenario)


class JdbcMariaDBDatabasesWorld(JdbcDatabasesWorld, JdbcMariaDBWorld):
    """The same over MariaDB."""

    warmed_as = "jdbc-mariadb"


class JdbcPlainMariaDBWorld(JdbcMariaDBWorld):
    """MariaDB as a database that only its SQLAlchemy dialect knows: it publishes in steps."""

    kind = "plain-mariadb"
