"""A schema history in a SQL database, one row for each version."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, Connection, Integer, MetaData, String, Table, Text, delete, insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.elements import ColumnElement

from twophase.schema.errors import SchemaConflictError
from twophase.schema.history import HistoryStore, Record

_TABLES = MetaData()

#: The table that holds the histories of all tables of a catalog.
HISTORY_TABLE = Table(
    "twophase_schema_history",
    _TABLES,
    Column("table_name", String(512), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("transaction_id", String(255), nullable=False),
    Column("entry", Text, nullable=False),
)


class SqlHistoryStore(HistoryStore):
    """Entries as rows; the primary key decides between two writers.

    Parameters
    ----------
    bind : sqlalchemy.Engine or sqlalchemy.Connection
        With an engine each call is a transaction of its own. With a connection the calls are part of the caller's
        transaction, so
        that a version appears together with what it belongs to.
    table_name : str
        The table whose history it is.
    """

    def __init__(self, bind: Engine | Connection, table_name: str) -> None:
        self._bind = bind
        self._table = table_name
        _TABLES.create_all(bind, checkfirst=True)

    def read(self) -> list[Record]:
        query = select(HISTORY_TABLE.c.entry).where(self._mine()).order_by(HISTORY_TABLE.c.number)
        if isinstance(self._bind, Connection):
            rows = self._bind.execute(query).all()
        else:
            with self._bind.connect() as connection:
                rows = connection.execute(query).all()
        return [Record.from_json(row.entry) for row in rows]

    def insert(self, record: Record) -> bool:
        values = {
            "table_name": self._table,
            "number": record.number,
            "transaction_id": record.transaction_id,
            "entry": record.to_json(),
        }
        if isinstance(self._bind, Connection):
            return self._insert_within(self._bind, record, values)
        try:
            with self._bind.begin() as connection:
                connection.execute(insert(HISTORY_TABLE).values(values))
        except IntegrityError:
            return False
        return True

    def _insert_within(self, connection: Connection, record: Record, values: dict[str, Any]) -> bool:
        # No savepoint: Python's SQLite driver lets its release commit the caller's transaction.
        taken = select(HISTORY_TABLE.c.number).where(self._mine(), HISTORY_TABLE.c.number == record.number)
        if connection.execute(taken).first() is not None:
            return False
        try:
            connection.execute(insert(HISTORY_TABLE).values(values))
        except IntegrityError as error:
            # The caller's transaction may be unusable now; it has lost against one that committed meanwhile.
            raise SchemaConflictError(
                f"Another transaction recorded the schema version {record.number} of {self._table}.",
                table_version=record.number,
                transaction_id=record.transaction_id or None,
                path=self._table,
                hint="Run the transaction again.",
            ) from error
        return True

    def replace(self, record: Record) -> None:
        self._run(update(HISTORY_TABLE).where(self._mine(), *self._is(record)).values(entry=record.to_json()))

    def delete(self, record: Record) -> None:
        self._run(delete(HISTORY_TABLE).where(self._mine(), *self._is(record)))

    def _mine(self) -> ColumnElement[bool]:
        return HISTORY_TABLE.c.table_name == self._table

    def _is(self, record: Record) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
        return HISTORY_TABLE.c.number == record.number, HISTORY_TABLE.c.transaction_id == record.transaction_id

    def _run(self, statement: object) -> None:
        if isinstance(self._bind, Connection):
            self._bind.execute(statement)  # type: ignore[call-overload]
        else:
            with self._bind.begin() as connection:
                connection.execute(statement)  # type: ignore[call-overload]
