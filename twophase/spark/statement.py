"""The runner of statements: opens one, writes its rows and ends it, in its own transaction or in a surrounding one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from twophase.catalog import Catalog, SupportsStagedDrop, TwoPhaseCatalogTable
from twophase.errors import AtomicityNotSupportedError
from twophase.hooks.hook import JobStatusHook
from twophase.hooks.statement import Statement
from twophase.hooks.status import JobState
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition
from twophase.spark import active
from twophase.spark.active_transaction import ActiveTransaction
from twophase.spark.attached import AttachedSession
from twophase.spark.blocks import WriteGroup
from twophase.spark.running import running
from twophase.spark.session_reads import note_inputs, note_reads, require_as_read
from twophase.spark.versions_read import version_read
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.failures import rows_read_before
from twophase.transactions.merging import Conflict
from twophase.transactions.transaction import Transaction

_NO_OTHER_WAY = "This catalog has no other way to run it: spark.twophase.atomicity=preferred does not help."
#: Of a table that is dropped, and of a database.
_NO_TABLE = TableDefinition(pa.schema([]))


@dataclass(frozen=True)
class StatementContext:
    """The context in which a statement runs.

    Attributes
    ----------
    coordinator : Coordinator
        Begins the statement's transaction if it joins none.
    session : AttachedSession or None
        None over Spark Connect.
    joined : Transaction or None
        The transaction that the statement joins.
    hooks : tuple of JobStatusHook
        The statement's own, in addition to those of the session and of the transaction.
    """

    coordinator: Coordinator
    session: AttachedSession | None = None
    joined: Transaction | None = None
    hooks: tuple[JobStatusHook, ...] = ()

    @classmethod
    def of(cls, session: AttachedSession) -> StatementContext:
        """The context of a statement of this thread.

        Raises
        ------
        TransactionAborted
            The transaction around the statement belongs to another session.
        """
        joined = active.transaction_to_join(session)
        return cls(session.coordinator, session, joined)

    def heard_by(self, joined: ActiveTransaction | None) -> tuple[JobStatusHook, ...]:
        """The hooks of a statement: those of the session, of its block, and its own."""
        return (*(self.session.hooks if self.session else ()), *(joined.hooks if joined else ()), *self.hooks)


def open_statement(
    context: StatementContext,
    catalog: Catalog,
    path: ObjectPath,
    definition: TableDefinition,
    purpose: Purpose,
    overwrite: OverwriteScope | None = None,
    *,
    other_way: str = _NO_OTHER_WAY,
    resolves: Conflict | None = None,
    alters: bool = False,
    restores: bool = False,
    columns: Sequence[str] | None = None,
) -> Statement:
    """Stage and begin one statement, in the surrounding transaction or in one of its own.

    Its rows may be the answer to a conflict of the surrounding transaction, those of the table that it alters, or those
    that a savepoint keeps; or those of an insert, in the order of the ``columns`` that its analysis has seen.

    Raises
    ------
    AtomicityNotSupportedError
        The catalog offers no two-phase write for this; ``other_way`` is the hint.
    """
    joined = context.joined or _begun_group(context.session)
    autocommit = joined is None
    transaction = _joining(context, joined, catalog, path)
    participant = transaction.stage(
        catalog,
        path,
        definition,
        purpose=purpose,
        ignore_if_exists=purpose is Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS,
        overwrite=overwrite,
        autocommit=autocommit,
        resolves=resolves,
        alters=alters,
        restores=restores,
        columns=columns,
    )
    if participant is None:
        raise AtomicityNotSupportedError(
            f"Catalog {catalog.name} has no two-phase write for {purpose.value} of {path}; nothing was started.",
            path=path,
            hint=other_way,
        )
    if (group := _group(context.session)) is not None:
        group.staged.append(participant)
    return _started(context, transaction, participant, autocommit=autocommit)


def scope_as_read(
    context: StatementContext, catalog: Catalog, path: ObjectPath, scope: OverwriteScope, df: Any
) -> OverwriteScope:
    """The scope of an overwrite, with the version of the table that its rows were read from, if any.

    Of a whole table whose conflicts the user merges it may be a former one: see :func:`write_rows`.
    """
    is_merged = context.joined is not None and context.joined.merging is not None and scope.is_whole_table
    if context.session is None or scope.version is not None or is_merged:
        return scope
    return replace(scope, version=version_read(context.session.jvm, df, catalog, path))


def run_in_block(
    context: StatementContext,
    catalog: Catalog,
    path: ObjectPath | None,
    stage: Callable[[Transaction], TwoPhaseCatalogTable | None],
    define: Callable[[TwoPhaseCatalogTable], TableDefinition] = lambda _: _NO_TABLE,
) -> Statement | None:
    """Run a statement without rows in the surrounding transaction; None if the store cannot have it there.

    Parameters
    ----------
    context : StatementContext
    catalog : Catalog
    path : ObjectPath or None
        The table that it changes; None for a database.
    stage : callable
        Requests its participant.
    define : callable
        The definition that the table then has, known once it is staged; of a drop, one without columns.
    """
    transaction = context.joined
    assert transaction is not None
    if path is not None:
        transaction = _joining(context, transaction, catalog, path)
    participant = stage(transaction)
    if participant is None:
        return None
    statement = _started(context, transaction, participant, autocommit=False)
    run_without_rows(context.session, statement, lambda: define(participant))
    return statement


def drop_in_block(
    context: StatementContext, catalog: SupportsStagedDrop, path: ObjectPath, *, purge: bool = False
) -> Statement | None:
    """Run a ``DROP TABLE`` in the surrounding transaction; None if the store cannot drop a table in it."""
    return run_in_block(context, catalog, path, lambda joined: joined.stage_drop(catalog, path, purge=purge))


@contextmanager
def discarding(transaction: Transaction) -> Iterator[list[Statement]]:
    """Discard the statements that one command has added to the list, if it fails.

    Not by a savepoint: that would take back what other threads of the block have written meanwhile.
    """
    done: list[Statement] = []
    try:
        yield done
    except BaseException:
        for statement in reversed(done):
            transaction.discard(statement.participant)
        if (block := active.find(transaction.id)) is not None:
            block.revert([statement.participant for statement in done])
        raise


def _joining(context: StatementContext, joined: Transaction | None, catalog: Catalog, path: ObjectPath) -> Transaction:
    """The transaction of a statement: the one that it joins, or a new one."""
    if joined is not None and (block := active.find(joined.id)) is not None:
        block.suspend_caches(catalog, path)
    transaction = joined or context.coordinator.begin()
    if context.session is not None:
        transaction.cancels_by(context.session.tracker.cancel_transaction)
    return transaction


def _started(
    context: StatementContext, transaction: Transaction, participant: TwoPhaseCatalogTable, *, autocommit: bool
) -> Statement:
    hooks = context.heard_by(None if autocommit else active.find(transaction.id))
    job_scope = context.session.tracker.scope if context.session else None
    statement = Statement(transaction, participant, hooks=hooks, autocommit=autocommit, job_scope=job_scope)
    statement.start()
    return statement


def _begun_group(session: AttachedSession | None) -> Transaction | None:
    """The transaction of a statement that writes several tables, begun with the first of them."""
    group = _group(session)
    return (group.active or group.begin()).transaction if group and group.is_wanted else None


def _group(session: AttachedSession | None) -> WriteGroup | None:
    statement = running(session) if session else None
    return statement.group if statement else None


def finish_statement(
    session: AttachedSession | None, statement: Statement, define: Callable[[], TableDefinition | None]
) -> None:
    """End a successful statement: publish it, or keep it for the rest of its transaction.

    Parameters
    ----------
    session : AttachedSession or None
        The attached session whose caches are invalidated; None if there is none.
    statement : Statement
    define : callable
        The table's definition after it, which only the rest of its transaction needs; None if the catalog knows it.
    """
    if statement.autocommit and session is not None:
        written = [(participant := statement.participant, session.caches.cached(participant.catalog, participant.path))]
        with session.caches.invalidated_by(statement.transaction, written):
            statement.finish()
        return
    definition = define()  # Before the end: if it fails, the statement is rolled back.
    try:
        statement.finish()
    finally:  # a hook may raise after a statement that succeeded
        if statement.job.state is JobState.FINISHED:
            with discarding(statement.transaction) as done:
                done.append(statement)
                _keep(session, statement, definition)


def _keep(session: AttachedSession | None, statement: Statement, definition: TableDefinition | None) -> None:
    """Let later statements of the transaction read what one has written, and its end merge it."""
    if definition is not None:
        statement.transaction.member(statement.participant).definition = definition
    if (merging := statement.transaction.merging) is not None:
        merging.keep_rows(statement.participant)
    group = _group(session)
    joined = active.find(statement.transaction.id)
    if joined is not None and not (group and group.is_wanted):
        joined.let_be_read(statement.participant)


def write_rows(session: AttachedSession | None, statement: Statement, df: Any) -> None:
    """Write the rows of a statement, unless they are out of date.

    Raises
    ------
    WriteConflictError
        They were read from the target itself, before another writer changed it.
    """
    if session is not None:
        require_as_read(session, statement.participant, df)
        _require_version_read(session, statement, df)
        if not statement.autocommit:
            note_reads(session, df)
        elif statement.transaction.wants_inputs:
            note_inputs(session, statement.transaction, df)
    statement.write(df)


def _require_version_read(session: AttachedSession, statement: Statement, df: Any) -> None:
    """Refuse to replace a table by rows that were read from another version of it than the statement rests on.

    The version that an overwrite has in its scope is the catalog's to compare.
    """
    participant, transaction = statement.participant, statement.transaction
    catalog, path, merging = participant.catalog, participant.path, transaction.merging
    is_merged = merging is not None and transaction.member(participant).replaces_rows
    if not (participant.purpose.redefines or is_merged):
        return
    version = version_read(session.jvm, df, catalog, path)
    if version is None:
        return
    seen = catalog.table_version(path) == version if merging is None else merging.sees(catalog, path, version)
    if not seen:
        raise rows_read_before(f"{session.catalogs.name_of(catalog)}.{path}", transaction.id)


@contextmanager
def failing(statement: Statement) -> Iterator[None]:
    """Fail a statement by an error, which is raised unchanged."""
    try:
        yield
    except BaseException as error:
        statement.fail(error)  # does nothing if it has ended
        raise


def run_statement(
    session: AttachedSession | None, statement: Statement, df: Any, define: Callable[[], TableDefinition | None]
) -> None:
    """Write the rows and end the statement; an error of the user is raised unchanged."""
    with failing(statement):
        write_rows(session, statement, df)
        finish_statement(session, statement, define)


def run_without_rows(
    session: AttachedSession | None, statement: Statement, define: Callable[[], TableDefinition]
) -> None:
    """End a statement that only defines a table, which is known once it is staged; it writes no rows."""
    with failing(statement):
        statement.write_nothing()
        finish_statement(session, statement, define)
