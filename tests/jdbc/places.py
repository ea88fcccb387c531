"""Databases to test against, each opened past the catalog, too: what a test sees is what the database holds."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import registry

from twophase.catalog import Environment
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.model import ObjectPath

HIDDEN = "__twophase_"
#: The servers again, under names that say nothing to the catalog: it knows them by their SQLAlchemy dialects only.
PLAIN = {"postgresql": "plainpostgresql", "mysql": "plainmysql"}
registry.register("plainpostgresql.psycopg", "sqlalchemy.dialects.postgresql.psycopg", "PGDialect_psycopg")
registry.register("plainmysql.pymysql", "sqlalchemy.dialects.mysql.pymysql", "MySQLDialect_pymysql")
Row = tuple[Any, ...]


def open_jdbc(**options: str) -> JdbcCatalog:
    """A catalog as another process makes it."""
    return JdbcCatalog("shop", options, Environment())


@dataclass(frozen=True)
class Place:
    """A database of a kind, and how to reach it past the catalog.

    Attributes
    ----------
    kind : str
        ``sqlite``, ``postgresql``, ``mariadb``, ``duckdb``, or one of the servers with ``plain-`` before it.
    url : str
    """

    kind: str
    url: str

    def options(self, **more: str) -> dict[str, str]:
        """Options of a catalog over it; waiting is short, so that a test does not."""
        return {"url": self.url, "lock_timeout": "5", **more}

    def catalog(self, **more: str) -> JdbcCatalog:
        """A catalog that shares nothing in memory with another one."""
        return open_jdbc(**self.options(**more))

    def quote(self, name: str) -> str:
        mark = "`" if self.kind.endswith("mariadb") else '"'
        return mark + name.replace(mark, mark * 2) + mark

    def name(self, path: ObjectPath) -> str:
        """The quoted name of a table."""
        if self.kind == "sqlite":
            return self.quote(path.name)
        return f"{self.quote(path.database)}.{self.quote(path.name)}"

    def execute(self, sql: str, database: str = "main") -> list[Row]:
        """Run one statement, committed at once, and fetch its rows."""
        if self.kind == "sqlite":
            return self._in_sqlite(sql, database)
        with _engine(self.url, self.kind != "duckdb").begin() as connection:
            return fetch(connection, sql)

    def _in_sqlite(self, sql: str, database: str) -> list[Row]:
        file = Path(sa.engine.make_url(self.url).database or "")
        if database != "main":
            file = file.with_name(f"{file.stem}.{database}{file.suffix}")
        connection = sqlite3.connect(file, isolation_level=None, timeout=30)
        try:
            return list(connection.execute(sql))
        finally:
            connection.close()

    def has(self, path: ObjectPath) -> bool:
        """Whether a table is there."""
        if self.kind == "sqlite":
            sql = f"SELECT 1 FROM sqlite_master WHERE name = '{path.name}'"
        else:
            where = f"table_schema = '{path.database}' AND table_name = '{path.name}'"
            sql = f"SELECT 1 FROM information_schema.tables WHERE {where}"
        return bool(self.execute(sql, path.database))

    def rows(self, path: ObjectPath) -> list[Row]:
        """All rows of a table."""
        return self.execute(f"SELECT * FROM {self.name(path)}", path.database)

    def hidden(self, database: str) -> list[str]:
        """Tables of ours in a database, but for those that stay for good."""
        if self.kind == "sqlite":
            sql = "SELECT name FROM sqlite_master WHERE type = 'table'"
        else:
            sql = f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{database}'"
        stays = (HIDDEN + "published", HIDDEN + "comments")
        return sorted(n for (n,) in self.execute(sql, database) if n.startswith(HIDDEN) and n not in stays)


@cache
def _engine(url: str, autocommit: bool) -> sa.Engine:
    """One for a process, as SQLAlchemy first asks each server what it is; it keeps no connection."""
    options: dict[str, Any] = {"isolation_level": "AUTOCOMMIT"} if autocommit else {}
    return sa.create_engine(url, poolclass=sa.pool.NullPool, **options)


def fetch(connection: sa.Connection, sql: str) -> list[Row]:
    """Run one statement and fetch its rows, if it has any."""
    result = connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
    return [tuple(row) for row in result] if result.returns_rows else []


def facts(place: Place) -> Mapping[str, str]:
    """A place as plain JSON."""
    return {"url": place.url}


def ordered(rows: Sequence[Row]) -> list[Row]:
    """Rows in a fixed order."""
    return sorted((tuple(row) for row in rows), key=repr)
