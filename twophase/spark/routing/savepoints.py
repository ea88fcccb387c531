"""Named savepoints of one attached session, in the names that its tables and databases have there."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from twophase.catalog import Catalog
from twophase.catalog.reading import ReadSource
from twophase.errors import TransactionStatementError
from twophase.hooks.hook import JobStatusHook
from twophase.model import Isolation, ObjectPath
from twophase.spark import active, blocks, restoring
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.catalog import table_of_source
from twophase.spark.jvm.parquet import table_frame
from twophase.spark.statement import StatementContext
from twophase.timeline.savepoints import SavepointRecord
from twophase.transactions import named_savepoints, undoing
from twophase.transactions.transaction import Transaction

FindTable: TypeAlias = Callable[[str], tuple[Catalog, ObjectPath]]
FindDatabase: TypeAlias = Callable[[str], tuple[Catalog, str]]


class NamedSavepoints:
    """The named savepoints on the timeline of one session.

    Parameters
    ----------
    session : AttachedSession
    find_table, find_database : callable
        Find a table, and a database, by the name that it has in the session.
    """

    def __init__(self, session: AttachedSession, find_table: FindTable, find_database: FindDatabase) -> None:
        self._session = session
        self._find_table = find_table
        self._find_database = find_database

    def create(
        self,
        name: str,
        *,
        databases: Iterable[str] = (),
        tables: Iterable[str] = (),
        keep_seconds: float | None = None,
        copies: bool = False,
    ) -> SavepointRecord:
        """Keep the present state of tables; see :func:`twophase.create_savepoint`."""
        self._refuse_inside("CREATE SAVEPOINT")
        return named_savepoints.create_savepoint(
            self._session.coordinator,
            name,
            databases=[self._find_database(database) for database in databases],
            tables=[self._find_table(table) for table in tables],
            keep_seconds=keep_seconds,
            copies=copies,
        )

    def restore(
        self,
        name: str,
        *,
        databases: Iterable[str] | None = None,
        tables: Iterable[str] | None = None,
        keep_new: bool = False,
        hooks: Iterable[JobStatusHook] = (),
    ) -> Transaction:
        """Restore tables in one transaction; see :func:`twophase.restore`."""
        self._refuse_inside("RESTORE")
        session = self._session
        with blocks.transaction(session, hooks, Isolation.SNAPSHOT) as tx:
            plan = named_savepoints.plan_restore(
                session.coordinator.timeline,
                session.catalogs.recorded,
                name,
                databases=None if databases is None else [self._find_database(database) for database in databases],
                tables=None if tables is None else [self._find_table(table) for table in tables],
            )
            context = StatementContext(session.coordinator, session, tx)
            restoring.restore(context, plan, self._rows, keep_new=keep_new)
        return tx

    def undo(self, transaction_id: str, *, hooks: Iterable[JobStatusHook] = ()) -> Transaction:
        """Take back one transaction; see :func:`twophase.undo`."""
        self._refuse_inside("An undo")
        session = self._session
        with blocks.transaction(session, hooks, Isolation.SNAPSHOT) as tx:
            timeline, resolve = session.coordinator.timeline, session.catalogs.recorded
            plan = undoing.plan_undo(timeline, resolve, transaction_id, tx.note_read)
            tx.note_undo(transaction_id)
            context = StatementContext(session.coordinator, session, tx)
            restoring.undo(context, plan, self._rows)
        return tx

    def _rows(self, catalog: Catalog, path: ObjectPath, source: ReadSource) -> Any:
        return table_frame(self._session.jvm, table_of_source(self._session, catalog, path, source))

    def all(self) -> list[SavepointRecord]:
        """All savepoints, the newest first."""
        return self._session.coordinator.timeline.savepoints()

    def drop(self, name: str) -> None:
        """Remove a savepoint with what is kept for it; see :func:`twophase.drop_savepoint`."""
        self._refuse_inside("DROP SAVEPOINT")
        timeline = self._session.coordinator.timeline
        named_savepoints.drop_savepoint(timeline, self._session.catalogs.recorded, name)

    def _refuse_inside(self, words: str) -> None:
        transaction = active.current_transaction(self._session)
        if transaction is not None:
            raise TransactionStatementError(
                f"{words} inside transaction {transaction.id}: nothing was started. It is no part of one: it is "
                "about published states.",
                transaction_id=transaction.id,
                hint="Say it before or after the transaction. Inside, SAVEPOINT name marks a place to go back to.",
            )
