"""A schema history in a SQL database, with one row per version."""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    delete,
    insert,
    inspect,
    select,
    update,
)
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DatabaseError, IntegrityError, OperationalError
from sqlalchemy.sql.elements import ColumnElement

from twophase.schema.errors import SchemaConflictError, SchemaHistoryError
from twophase.schema.history_store import HistoryStore, Record

_TABLES = MetaData()

#: Text of any length; MySQL's ``TEXT`` is limited to 64 KB, which a schema of some hundred columns exceeds.
_LONG = Text().with_variant(LONGTEXT(), "mysql", "mariadb")

#: The table that holds the histories of all tables of a catalog.
HISTORY_TABLE = Table(
    "twophase_schema_history",
    _TABLES,
    # A hash of the name: names may be too long for a key, and databases compare them differently.
    Column("table_key", String(64), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("table_name", _LONG, nullable=False),
    Column("transaction_key", String(64), nullable=False),
    Column("entry", _LONG, nullable=False),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mariadb_engine="InnoDB",
    mariadb_charset="utf8mb4",
)

#: Error codes of a transaction that lost against a concurrent one (deadlock, serialization failure, lock timeout).
_LOST = frozenset((1205, 1213, "40001", "40P01", "55P03"))


class SqlHistoryStore(HistoryStore):
    """A store of entries as rows; the primary key decides between concurrent writers.

    Parameters
    ----------
    bind : sqlalchemy.Engine or sqlalchemy.Connection
        With an engine, each call is its own transaction. With a connection, the calls are part of the caller's
        transaction, so that a version becomes visible together with the caller's other changes.
    table_name : str
        The table to which the history belongs.

    Notes
    -----
    The table of the rows is created by :meth:`create`, or at the first use with an engine; never on a caller's
    connection, as ``CREATE TABLE`` would commit its transaction (MySQL) or become part of it.
    """

    def __init__(self, bind: Engine | Connection, table_name: str) -> None:
        self._bind = bind
        self._table = table_name
        self._key = _hash(table_name)
        self._ready = False

    @staticmethod
    def create(engine: Engine) -> None:
        """Create the table for all histories of the database, if it does not exist; safe to call concurrently.

        Parameters
        ----------
        engine : sqlalchemy.Engine
        """
        if _exists(engine):
            return
        try:
            _TABLES.create_all(engine)
        except DatabaseError:
            # Another process has created it concurrently; each database raises another error for it.
            if not _exists(engine):
                raise

    def read(self) -> list[Record]:
        self._get_ready()
        query = select(HISTORY_TABLE.c.entry).where(self._mine()).order_by(HISTORY_TABLE.c.number)
        if isinstance(self._bind, Connection):
            rows = self._bind.execute(query).all()
        else:
            with self._bind.connect() as connection:
                rows = connection.execute(query).all()
        return [Record.from_json(row.entry) for row in rows]

    def insert(self, record: Record) -> bool:
        self._get_ready()
        values = {
            "table_key": self._key,
            "number": record.number,
            "table_name": self._table,
            "transaction_key": _hash(record.transaction_id),
            "entry": record.to_json(),
        }
        if isinstance(self._bind, Connection):
            return self._insert_within(self._bind, record, values)
        try:
            with self._bind.begin() as connection:
                connection.execute(insert(HISTORY_TABLE).values(values))
        except IntegrityError:
            return False
        except OperationalError as error:
            if _lost(error):
                raise self._overtaken(record) from error
            raise
        return True

    def _insert_within(self, connection: Connection, record: Record, values: dict[str, Any]) -> bool:
        # No savepoint: with Python's SQLite driver its release would commit the caller's transaction.
        taken = select(HISTORY_TABLE.c.number).where(self._mine(), HISTORY_TABLE.c.number == record.number)
        if connection.execute(taken).first() is not None:
            return False
        try:
            connection.execute(insert(HISTORY_TABLE).values(values))
        except (IntegrityError, OperationalError) as error:
            # The caller's transaction may be unusable now; it has lost against a concurrent one.
            if isinstance(error, IntegrityError) or _lost(error):
                raise self._overtaken(record) from error
            raise
        return True

    def _overtaken(self, record: Record) -> SchemaConflictError:
        return SchemaConflictError(
            f"Another transaction recorded the schema version {record.number} of {self._table}.",
            table_version=record.number,
            transaction_id=record.transaction_id or None,
            path=self._table,
            hint="Run the transaction again.",
        )

    def replace(self, record: Record) -> None:
        self._run(update(HISTORY_TABLE).where(self._mine(), *_is(record)).values(entry=record.to_json()))

    def delete(self, record: Record) -> None:
        self._run(delete(HISTORY_TABLE).where(self._mine(), *_is(record)))

    def _get_ready(self) -> None:
        if self._ready:
            return
        if isinstance(self._bind, Engine):
            self.create(self._bind)
        elif not _exists(self._bind):
            raise SchemaHistoryError(
                f"The database has no table {HISTORY_TABLE.name}, and a connection's transaction is no place to make "
                "it.",
                allowed=("SqlHistoryStore.create(engine) beforehand",),
            )
        self._ready = True

    def _mine(self) -> ColumnElement[bool]:
        return HISTORY_TABLE.c.table_key == self._key

    def _run(self, statement: object) -> None:
        self._get_ready()
        if isinstance(self._bind, Connection):
            self._bind.execute(statement)  # type: ignore[call-overload]
        else:
            with self._bind.begin() as connection:
                connection.execute(statement)  # type: ignore[call-overload]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _is(record: Record) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    return (
        HISTORY_TABLE.c.number == record.number,
        HISTORY_TABLE.c.transaction_key == _hash(record.transaction_id),
    )


def _exists(bind: Engine | Connection) -> bool:
    return bool(inspect(bind).has_table(HISTORY_TABLE.name))


def _lost(error: OperationalError) -> bool:
    cause: Any = error.orig
    return getattr(cause, "sqlstate", None) in _LOST or (cause.args[0] if cause.args else None) in _LOST
