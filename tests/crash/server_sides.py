"""The part of a world that is on a server, past the catalog: what a death leaves there, and how it is made again.

It is looked at over a connection of its own, which sees what is committed: just what a death leaves. What a session
holds - locks, an open transaction - ends with its process, and is no state.
"""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen
from xml.etree import ElementTree

import sqlalchemy as sa

from tests.servers import postgresql_program


class LockedError(RuntimeError):
    """A table is locked by the very transaction that is being watched: its committed rows cannot be read now."""


class ServerSide(ABC):
    """What one world has on a server."""

    @abstractmethod
    def state(self) -> list[Any]:
        """Everything durable, and which table it is of those that had the name: what differs has different texts.

        Raises
        ------
        LockedError
        """

    @abstractmethod
    def save(self) -> Any:
        """All that it takes to make the same again; the same text for the same content."""

    @abstractmethod
    def restore(self, saved: Any) -> None:
        """Make what :meth:`save` told, in place of all that is there."""

    @abstractmethod
    def remove(self) -> None:
        """Remove all that there is: the server is shared, and its other users look at everything on it."""

    @abstractmethod
    def close(self) -> None:
        """Give the connection back. Idempotent."""


class _Database(ServerSide):
    """One schema or database of a server with SQL.

    Parameters
    ----------
    url : str
    name : str
    """

    #: So that nobody waits for the very transaction that waits here.
    _impatient: ClassVar[str]
    #: What the server says then.
    _locked: ClassVar[str]

    def __init__(self, url: str, name: str) -> None:
        self._url = sa.engine.make_url(url)
        self._name = name

    @cached_property
    def _connection(self) -> Any:
        engine = sa.create_engine(self._url, poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        return engine.connect()

    def close(self) -> None:
        if "_connection" in self.__dict__:
            self.__dict__.pop("_connection").close()

    def state(self) -> list[Any]:
        self._run(self._impatient)
        try:
            return self._look()
        except sa.exc.OperationalError as error:
            if self._locked not in str(error.orig):
                raise
            raise LockedError from error

    @abstractmethod
    def _look(self) -> list[Any]:
        """:meth:`state`, where no lock is in the way."""

    def _run(self, sql: str) -> list[tuple[Any, ...]]:
        result = self._connection.exec_driver_sql(sql, execution_options={"no_parameters": True})
        return [tuple(row) for row in result] if result.returns_rows else []


class PostgreSQLSchema(_Database):
    """A schema of a PostgreSQL server."""

    _impatient = "SET lock_timeout = 1"  # A millisecond.
    _locked = "lock timeout"
    #: Where the server keeps what belongs to a schema or its relations, by the column that says to which.
    _FACTS = (
        *(("pg_namespace", "oid"), ("pg_class", "oid"), ("pg_attribute", "attrelid"), ("pg_attrdef", "adrelid")),
        *(("pg_index", "indrelid"), ("pg_constraint", "conrelid"), ("pg_trigger", "tgrelid")),
        *(("pg_policy", "polrelid"), ("pg_rewrite", "ev_class"), ("pg_inherits", "inhrelid")),
        ("pg_description", "objoid"),
    )
    #: Kinds of relations that have rows: tables, materialized views, sequences.
    _WITH_ROWS = ("r", "p", "m", "S")

    def _look(self) -> list[Any]:
        mine = f"SELECT oid FROM pg_namespace WHERE nspname = '{self._name}'"
        relations = self._run(
            f"SELECT oid::int8, relname, relkind::text FROM pg_class WHERE relnamespace = ({mine}) ORDER BY oid"
        )
        of_mine = f"IN (({mine}), {', '.join(str(oid) for oid, *_ in relations)})" if relations else f"= ({mine})"
        looks = [f"SELECT '', x::text FROM {place} x WHERE {column} {of_mine}" for place, column in self._FACTS]
        tables = [f'{self._name}."{name}"' for _, name, kind in relations if kind in self._WITH_ROWS]
        looks += [f"SELECT '{name}', x::text FROM {name} x" for name in tables]
        return self._run(" UNION ALL ".join(looks))

    def save(self) -> Any:
        if not self._run(f"SELECT 1 FROM pg_namespace WHERE nspname = '{self._name}'"):
            return ""
        url = self._url.set(drivername="postgresql", query={}).render_as_string(False)
        command = [postgresql_program("pg_dump"), "--inserts", f"--schema={self._name}", url]
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        # What begins with a backslash is for psql.
        return "\n".join(line for line in said.splitlines() if not line.startswith("\\"))

    def restore(self, saved: Any) -> None:
        self._run(f"DROP SCHEMA IF EXISTS {self._name} CASCADE;\n{saved}")

    def remove(self) -> None:
        self._run(f"DROP SCHEMA IF EXISTS {self._name} CASCADE")


class MariaDBDatabase(_Database):
    """A database of a MariaDB or MySQL server."""

    _impatient = "SET lock_wait_timeout = 1"
    _locked = "Lock wait timeout exceeded"

    def _look(self) -> list[Any]:
        if (saved := self.save()) is None:
            return []
        mariadb = self._connection.dialect.is_mariadb
        numbers = "INNODB_SYS_TABLES" if mariadb else "INNODB_TABLES"
        which = f"SELECT NAME, TABLE_ID FROM information_schema.{numbers} WHERE NAME LIKE '{self._name}/%' ORDER BY 1"
        return [self._run(which), self._run(f"SHOW TRIGGERS FROM {self._name}"), saved]

    def save(self) -> Any:
        """The definition of the database, and of each table, with its rows; None where there is no database."""
        if not self._run(f"SELECT 1 FROM information_schema.SCHEMATA WHERE SCHEMA_NAME = '{self._name}'"):
            return None
        ((_, definition),) = self._run(f"SHOW CREATE DATABASE {self._name}")
        tables = self._run(f"SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = '{self._name}'")
        return definition, [self._table(f"{self._name}.`{table}`") for (table,) in sorted(tables)]

    def _table(self, name: str) -> tuple[str, str, list[tuple[Any, ...]]]:
        ((_, definition, *_),) = self._run(f"SHOW CREATE TABLE {name}")
        return name, definition, self._run(f"SELECT * FROM {name}")

    def remove(self) -> None:
        self._run(f"DROP DATABASE IF EXISTS {self._name}")

    def restore(self, saved: Any) -> None:
        self.remove()
        if saved is None:
            return
        database, tables = saved
        self._run(database)
        self._run(f"USE {self._name}")
        for name, definition, rows in tables:
            self._run(definition)
            self._insert(name, rows)

    def _insert(self, name: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            values = ", ".join(["%s"] * len(rows[0]))
            self._connection.exec_driver_sql(f"INSERT INTO {name} VALUES ({values})", list(rows))


class MetastoreDatabase(ServerSide):
    """A database of a Hive Metastore, which no scenario changes, and its tables.

    Parameters
    ----------
    uri, name : str
    """

    #: What the metastore itself writes on a table that it makes.
    _ITS_OWN = ("transient_lastDdlTime",)

    def __init__(self, uri: str, name: str) -> None:
        self._uri = uri
        self._name = name

    @cached_property
    def _connection(self) -> Any:
        from pyiceberg.catalog.hive import _HiveClient

        return _HiveClient(self._uri)

    @cached_property
    def _client(self) -> Any:
        return self._connection.__enter__()

    def close(self) -> None:
        if self.__dict__.pop("_client", None) is not None:
            self.__dict__.pop("_connection").__exit__(None, None, None)

    def state(self) -> list[Any]:
        return [self._client.get_database(self._name), *self._tables()]

    def _tables(self) -> list[tuple[Any, list[Any]]]:
        """Each table with its partitions."""
        names = sorted(self._client.get_all_tables(self._name))
        tables = self._client.get_table_objects_by_name(self._name, names)
        return [(table, self._partitions(table) if table.partitionKeys else []) for table in tables]

    def _partitions(self, table: Any) -> list[Any]:
        return sorted(self._client.get_partitions(self._name, table.tableName, -1), key=lambda found: found.values)

    def save(self) -> Any:
        found = self._tables()
        for thing in (thing for table, partitions in found for thing in (table, *partitions)):
            thing.createTime = 0
            thing.parameters = {k: v for k, v in sorted(thing.parameters.items()) if k not in self._ITS_OWN}
        return found

    def restore(self, saved: Any) -> None:
        for name in self._client.get_all_tables(self._name):
            self._client.drop_table(self._name, name, deleteData=False)
        for table, partitions in saved:
            self._client.create_table(table)
            if partitions:
                self._client.add_partitions(partitions)

    def remove(self) -> None:
        """The tables; a database without them is in nobody's way."""
        self.restore([])


class SQLiteFile(ServerSide):
    """The SQLite file that a server keeps all it knows in, while it runs.

    Parameters
    ----------
    file : Path
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def state(self) -> list[Any]:
        return [self.save()]

    def save(self) -> Any:
        with closing(sqlite3.connect(self._file)) as connection:
            return "\n".join(connection.iterdump())

    def restore(self, saved: Any) -> None:
        with closing(sqlite3.connect(self._file)) as connection, closing(sqlite3.connect(":memory:")) as memory:
            memory.executescript(saved)
            memory.backup(connection)

    def remove(self) -> None:
        """Nothing to do: no one else is on this server."""

    def close(self) -> None:
        pass


class ObjectsOfServer(ServerSide):
    """The objects of an S3 server, below a directory of a bucket.

    Parameters
    ----------
    url : str
        Of the bucket.
    directory : str
    """

    _HEADERS: ClassVar = {
        # The server checks no signature.
        "Authorization": "AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request",
        "Content-Type": "application/octet-stream",
    }

    def __init__(self, url: str, directory: str) -> None:
        self._url = url
        self._directory = directory

    def read(self, key: str) -> bytes:
        """The content of an object."""
        return self._send("GET", quote(key))

    def _send(self, method: str, what: str, data: bytes | None = None) -> bytes:
        with urlopen(Request(f"{self._url}/{what}", data, self._HEADERS, method=method), timeout=30) as answer:
            content: bytes = answer.read()
        return content

    def hashes(self) -> dict[str, str]:
        """The hash of the content of each object, by its key."""
        query = {"list-type": "2", "prefix": f"{self._directory}/"}
        listed = ElementTree.fromstring(self._send("GET", f"?{urlencode(query)}"))
        assert listed.findtext("{*}IsTruncated") == "false"
        objects = listed.iterfind("{*}Contents")
        return {str(one.findtext("{*}Key")): str(one.findtext("{*}ETag")).strip('"') for one in objects}

    def state(self) -> list[Any]:
        return sorted(self.hashes().items())

    def save(self) -> Any:
        return {key: self.read(key) for key in self.hashes()}

    def restore(self, saved: Any) -> None:
        there = self.hashes()
        for key in there.keys() - saved.keys():
            self._send("DELETE", quote(key))
        for key, data in saved.items():
            if there.get(key) != hashlib.md5(data).hexdigest():
                self._send("PUT", quote(key), data)

    def remove(self) -> None:
        self.restore({})

    def close(self) -> None:
        """Nothing to do: each request has a connection of its own."""
