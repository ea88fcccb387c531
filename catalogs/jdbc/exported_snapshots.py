"""Snapshots that PostgreSQL exports: all parts of all reads of a transaction see one state of the database.

The driver keeps a database transaction open, in whose snapshot the executors read. That covers rows, but neither
definitions nor files: a table that was dropped, replaced, truncated or rewritten since would be missing or look empty.
So each part locks the table, and compares it, what it consists of, and its columns with those in the snapshot before
its query: that may be stopped before it has read all. Partitions can be added meanwhile, so it compares again after it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from twophase.catalog.reading import ReadSource
from twophase.catalog.snapshots import Change, OpenSnapshot
from twophase.catalogs.jdbc import errors, pinned_reads
from twophase.catalogs.jdbc.pinned_reads import Version, require, too_old
from twophase.catalogs.jdbc.postgresql import PostgreSQL
from twophase.catalogs.jdbc.reading import Guard
from twophase.catalogs.jdbc.store import Store
from twophase.model import ObjectPath

_HOME = "main"
_EXPORT = "SELECT set_config('idle_in_transaction_session_timeout', '0', true), pg_export_snapshot()"
#: SQLSTATEs of an unknown snapshot: undefined_object, invalid_parameter_value.
_UNKNOWN = ("42704", "22023")
_REPLACED = "it was replaced, altered or truncated since"
#: A table or view, its partitions and children, and the tables of views, with the file, columns and query of each.
_PARTS = """
WITH RECURSIVE parts(oid) AS (
    SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = :database AND c.relname = :name
  UNION
    SELECT found.oid FROM parts CROSS JOIN LATERAL (
        SELECT i.inhrelid AS oid FROM pg_inherits i WHERE i.inhparent = parts.oid
      UNION ALL
        SELECT d.refobjid FROM pg_rewrite r
        JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
        WHERE r.ev_class = parts.oid AND d.refclassid = 'pg_class'::regclass
    ) AS found
)
SELECT c.oid::int8, c.relfilenode::int8,
       (SELECT json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod) ORDER BY a.attnum)::text
        FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
       (SELECT md5(string_agg(r.ev_action::text, '' ORDER BY r.oid)) FROM pg_rewrite r WHERE r.ev_class = c.oid)
FROM pg_class c JOIN parts ON parts.oid = c.oid ORDER BY c.oid
"""

Parts = tuple[tuple[int, int, str, str], ...]


def _parts(connection: sa.Connection, table: ObjectPath) -> Parts:
    """The physical state of a table, as committed when the database transaction began."""
    rows = connection.execute(sa.text(_PARTS), {"database": table.database, "name": table.name})
    return tuple((int(oid), int(file), str(columns), str(query)) for oid, file, columns, query in rows)


def open_snapshot(store: Store) -> ExportedSnapshot | None:
    """Export a snapshot; None if the database does not do that, or does not respond."""
    if not isinstance(store.database, PostgreSQL):
        return None
    reading = store.engine(_HOME).execution_options(**store.database.snapshot_options(), postgresql_readonly=True)
    connection = None
    try:
        connection = reading.connect()
        return ExportedSnapshot(store, connection, str(connection.execute(sa.text(_EXPORT)).one()[1]))
    except SQLAlchemyError:  # A read of a table will tell why.
        if connection is not None:
            connection.close()
        return None


class ExportedSnapshot(OpenSnapshot):
    """A snapshot that is exported by an open database transaction.

    Parameters
    ----------
    store : Store
    connection : sqlalchemy.Connection
        The connection with the open transaction; closed with the snapshot.
    token : str
        The snapshot's name in the database.
    """

    def __init__(self, store: Store, connection: sa.Connection, token: str) -> None:
        self._store = store
        self._connection = connection
        self._token = token
        self._lock = threading.Lock()  # Statements of several threads may belong to one transaction.
        self._versions: dict[ObjectPath, str] = {}

    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        store = self._store
        # In transactions of its own, so that the table is not locked until the end of the snapshot.
        with self._reading(path) as connection:
            with connection.begin():
                now = _parts(connection, path)
            with connection.begin():
                _adopt(store, connection, path, self._token)
                parts = _parts(connection, path)
                if not parts:
                    raise pinned_reads.no_table(store, path, (), version)
                require(store, path, now == parts, _REPLACED)
                reached = [change for change in changes if pinned_reads.is_visible(store, connection, path, change)]
                pinned_reads.refuse_reached(store, path, reached, version)
                mine = self._version(connection, path)
                require(store, path, version in (None, mine))
                return pinned_reads.source_of(store, connection, path, InSnapshot(self._token, parts), mine)

    @contextmanager
    def _reading(self, path: ObjectPath) -> Iterator[sa.Connection]:
        reading = self._store.engine(_HOME).execution_options(**self._store.database.snapshot_options())
        with errors.speaking(self._store.settings, path=path), reading.connect() as connection:
            yield connection

    def _version(self, connection: sa.Connection, path: ObjectPath) -> str:
        """The version of a table; counters of the database, which may be in it, are not part of its snapshots."""
        with self._lock:
            if path not in self._versions:
                self._versions[path] = str(Version.of(self._store, connection, path))
            return self._versions[path]

    def close(self) -> None:
        with suppress(SQLAlchemyError):
            self._connection.close()


@dataclass(frozen=True)
class InSnapshot(Guard):
    """Each part reads the rows of an exported snapshot.

    Attributes
    ----------
    token : str
        The snapshot's name in the database.
    parts : tuple
        What the table consists of, in the snapshot.
    """

    token: str
    parts: Parts

    @contextmanager
    def watching(self, store: Store, connection: sa.Connection, path: ObjectPath) -> Iterator[None]:
        with connection.begin():
            _adopt(store, connection, path, self.token)
            try:
                store.database.keep_for_reading(connection, path)
                # By another connection: this one sees the definitions as they were.
                with connection.engine.connect() as now:
                    self._check(store, now, path)
                yield
            except DBAPIError as error:
                require(store, path, not store.database.is_replaced(error), _REPLACED)
                raise
        # Partitions and children can be added in spite of the lock.
        self._check(store, connection, path)

    def _check(self, store: Store, connection: sa.Connection, path: ObjectPath) -> None:
        with connection.begin():
            require(store, path, _parts(connection, path) == self.parts, _REPLACED)


def _adopt(store: Store, connection: sa.Connection, path: ObjectPath, token: str) -> None:
    """Let a database transaction that has just begun read an exported snapshot."""
    try:
        store.database.run(connection, f"SET TRANSACTION SNAPSHOT {store.database.text(token)}")
    except DBAPIError as error:
        if getattr(error.orig, "sqlstate", None) in _UNKNOWN:
            raise too_old(store, path, "the transaction has ended, or its connection to the database is lost") from None
        raise
