"""The transactions of this process that Spark statements can join, and the statements that native writes run.

A block belongs to the context that it was opened in (:mod:`contextvars`), as tasks of asyncio share one thread. A
callback runs on another Python thread than the user's call, but on the same JVM thread. So for each call the id of the
surrounding transaction travels in a local property of Spark, and this registry finds the transaction by it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.catalogs.hive.catalog import HiveCatalog
from twophase.errors import AtomicityNotSupportedError, TransactionAborted, TwoPhaseError, WriteConflictError
from twophase.hooks.hook import JobStatusHook, checked
from twophase.hooks.interrupts import carried_through
from twophase.hooks.statement import Statement
from twophase.hooks.status import JobState
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition
from twophase.reading import ReadSource
from twophase.spark.afterwards import afterwards
from twophase.spark.jvm.bridge import TRANSACTION_PROPERTY
from twophase.spark.jvm.scans import session_tables
from twophase.transactions import Transaction, TransactionState

if TYPE_CHECKING:
    from twophase.spark.refresh import Kept
    from twophase.spark.session import Handle


def _running_task() -> tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None] | None:
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    return loop, asyncio.current_task(loop)


@dataclass
class LiveTransaction:
    """A transaction that statements can join.

    Attributes
    ----------
    handle : Handle
        The attached session that it belongs to.
    transaction : Transaction
    hooks : tuple of JobStatusHook
        Told of each statement in it, beside those of the session.
    """

    handle: Handle
    transaction: Transaction
    hooks: tuple[JobStatusHook, ...] = ()
    #: The one on which it was opened: there the local property tells nothing of the code that runs.
    thread: threading.Thread = field(default_factory=threading.current_thread)
    #: The loop and the task of asyncio that opened it, if any: other tasks run on its thread, too.
    task: tuple[asyncio.AbstractEventLoop, asyncio.Task[Any] | None] | None = field(default_factory=_running_task)
    #: What was cached of each table before a statement wrote it: Spark's own names, and how.
    _cached: dict[tuple[Catalog, ObjectPath], dict[str, Kept]] = field(default_factory=dict)

    @property
    def is_elsewhere(self) -> bool:
        """Whether it is another task that runs on the block's thread now; asked from any thread."""
        return self.task is not None and asyncio.current_task(self.task[0]) is not self.task[1]

    def set_caches_aside(self, catalog: Catalog, path: ObjectPath) -> None:
        """Before a statement: Spark would fill what is cached of its table with the new rows, for everyone to see."""
        found = self._cached.setdefault((catalog, path), {})
        for name, kept in self.handle.set_caches_aside(catalog, path):
            found.setdefault(name, kept)

    def cached(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, Kept]]:
        """What is to be cached again of a table that statements wrote."""
        now = dict(self.handle.cached(catalog, path))
        return list({**self._cached.get((catalog, path), {}), **now}.items())

    def put_caches_back(self) -> None:
        """After a rollback: cache again what was cached, and nothing of what was staged."""
        for (catalog, path), cached in list(self._cached.items()):
            self.handle.refresh(catalog, path, cached=cached.items())


#: The transaction of the block that the running code stands in.
_context: ContextVar[str | None] = ContextVar("twophase.transaction", default=None)
#: Behind the id in the local property of a thread that tasks may share, so that it is not known whose it was.
_SHARED = "?"

_live: dict[str, LiveTransaction] = {}
#: The session of each block that has not ended: also while it is published, when no statement can join it any more.
_blocks: dict[str, Handle] = {}
_lock = threading.Lock()


def register(live: LiveTransaction) -> None:
    """Let statements join this transaction."""
    with _lock:
        _live[live.transaction.id] = live


def unregister(transaction_id: str) -> None:
    """Let none join it any more. Idempotent."""
    with _lock:
        _live.pop(transaction_id, None)


def any_open() -> bool:
    """Whether there is any transaction to join; asks nobody but this process."""
    return bool(_live)


def open_blocks(handle: Handle) -> list[str]:
    """The transactions of a session whose blocks have not ended, on whatever thread."""
    with _lock:
        return [transaction_id for transaction_id, owner in _blocks.items() if owner is handle]


@contextmanager
def _block(handle: Handle, transaction_id: str) -> Iterator[None]:
    try:
        with _lock:
            _blocks[transaction_id] = handle
        yield
    finally:
        with _lock:
            _blocks.pop(transaction_id, None)


def find(transaction_id: str) -> LiveTransaction | None:
    """The transaction of this id, while statements can join it."""
    with _lock:
        return _live.get(transaction_id)


@contextmanager
def transaction(handle: Handle, hooks: Iterable[JobStatusHook] = ()) -> Iterator[Transaction]:
    """Group the statements of a block: all are published at its end, or none.

    What it raises is told at :func:`twophase.transaction`.
    """
    _refuse_nested(_surrounding(handle))
    told = checked(hooks)
    tx = handle.coordinator.begin()
    live = LiveTransaction(handle, tx, told)
    before = _context.get(), handle.jvm.local_property(TRANSACTION_PROPERTY)
    with _block(handle, tx.id):
        try:
            with afterwards(lambda: _close(live, *before)):
                _open(live)
                yield tx
            _commit(live)
        except BaseException as error:
            # Whatever came before the decision, and between two lines of this too: nothing stays open.
            if tx.is_inherited:
                raise  # A forked child leaves it: the transaction, and the connection to Spark, are its parent's.
            with carried_through(tx):
                tx.abort(error)  # nothing once it has ended; what goes wrong in there is attached to the error
                with suppress(Exception):  # Spark may have ended
                    _close(live, *before)
                    live.put_caches_back()
            raise


def _open(live: LiveTransaction) -> None:
    register(live)
    _context.set(live.transaction.id)
    carried = live.transaction.id + (_SHARED if live.task else "")
    live.handle.spark.sparkContext.setLocalProperty(TRANSACTION_PROPERTY, carried)


def _close(live: LiveTransaction, context: str | None, carried: str | None) -> None:
    """Nobody can join it any more, and where it still stands it is taken away. Idempotent."""
    transaction_id = live.transaction.id
    if live.transaction.is_inherited:
        return
    unregister(transaction_id)
    if _context.get() == transaction_id:
        _context.set(context)
    if _plain(live.handle.jvm.local_property(TRANSACTION_PROPERTY)) == transaction_id:
        is_open = carried is not None and find(_plain(carried)) is not None
        live.handle.spark.sparkContext.setLocalProperty(TRANSACTION_PROPERTY, carried if is_open else None)


def _plain(carried: str | None) -> str:
    return (carried or "").removesuffix(_SHARED)


@contextmanager
def carried() -> Iterator[None]:
    """Around a call of the user: Spark's thread carries the transaction of the caller's context, and no other.

    Raises
    ------
    TwoPhaseError
        The thread was started by one of several tasks, and which one cannot be told.
    """
    context = _spark_context() if _live or _context.get() is not None else None
    if context is None:  # nothing is asked of the JVM
        yield
        return
    before = context.getLocalProperty(TRANSACTION_PROPERTY)
    wanted = _of_caller(before)
    if _context.get() is None and before and before.endswith(_SHARED) and _is_inherited(before):
        raise _unsure(_plain(before))
    if wanted == before:
        yield
        return
    with afterwards(lambda: context.setLocalProperty(TRANSACTION_PROPERTY, before)):
        context.setLocalProperty(TRANSACTION_PROPERTY, wanted)
        yield


def _spark_context() -> Any:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _surrounding(handle: Handle) -> str | None:
    return _context.get() or _of_caller(handle.jvm.local_property(TRANSACTION_PROPERTY))


def _of_caller(carried: str | None) -> str | None:
    """The transaction of the running code by its context; in a callback, or a thread of the block, what it carries."""
    if (own := _context.get()) is not None or not carried:
        return own
    live = find(_plain(carried))
    is_own_thread = live is not None and live.thread is threading.current_thread()
    is_of_another_task = live is not None and carried.endswith(_SHARED) and live.is_elsewhere
    return None if is_own_thread or is_of_another_task else _plain(carried)


def _is_inherited(carried: str) -> bool:
    live = find(_plain(carried))
    return live is not None and live.thread is not threading.current_thread()


def _unsure(transaction_id: str) -> TwoPhaseError:
    return TwoPhaseError(
        f"Whether this thread belongs to transaction {transaction_id} cannot be told: it was started where other tasks "
        "may have run meanwhile. Nothing of the statement was started.",
        transaction_id=transaction_id,
        hint="Start it by asyncio.to_thread or as a pyspark.InheritableThread: these belong to their caller's block.",
    )


def _refuse_nested(transaction_id: str | None) -> None:
    if transaction_id and find(transaction_id):
        raise TransactionAborted(
            f"Transaction {transaction_id} is open already: transactions do not nest.",
            transaction_id=transaction_id,
            hint="Run the statements in the block that is open; it goes on as it was.",
        )


def _commit(live: LiveTransaction) -> None:
    handle, tx = live.handle, live.transaction
    tx.require_own()
    # Ctrl-C waits, for Py4J would make an error of the store of it; and Spark would keep the rows from before.
    with carried_through(tx):
        written = [(p, live.cached(p.catalog, p.path)) for p in tx.participants]
        with _if_published(tx, lambda: _refresh(handle, written)):
            tx.commit()


def _refresh(handle: Handle, written: Iterable[tuple[TwoPhaseCatalogTable, list[tuple[str, Kept]]]]) -> None:
    # What was made first: a cache that is filled again may read it.
    for participant, cached in sorted(written, key=lambda found: found[0].purpose.inserts):
        replaced = not participant.purpose.inserts
        handle.refresh(participant.catalog, participant.path, cached=cached, replaced=replaced)


@contextmanager
def _if_published(tx: Transaction, then: Callable[[], None]) -> Iterator[None]:
    """Do something after a publish, also one after which an interrupt is raised."""
    try:
        yield
    finally:
        if tx.state is TransactionState.COMPLETED:
            then()


def current(handle: Handle) -> LiveTransaction | None:
    """The transaction around the statement of this thread.

    Raises
    ------
    TwoPhaseError
        It has ended, well or badly.
    TransactionAborted
        It belongs to another session.
    """
    transaction_id = _surrounding(handle)
    if not transaction_id:
        return None
    live = find(transaction_id)
    if live is None:
        raise TwoPhaseError(
            f"Transaction {transaction_id} has ended: no more statements can join it; nothing of this one was started.",
            transaction_id=transaction_id,
            hint="A thread or task started inside the block outlived it; wait for it before the block ends.",
        )
    if live.handle is not handle:
        raise TransactionAborted(
            f"Transaction {transaction_id} belongs to another Spark session.",
            transaction_id=transaction_id,
            hint="Use the session that was given to twophase.transaction(spark).",
        )
    return live


def note_reads(handle: Handle, frame: Any) -> None:
    """Tell the surrounding transaction of the session tables that a DataFrame reads, each as its scan finds it."""
    live, catalog = current(handle), _session_catalog(handle)
    if live is None or catalog is None:
        return
    for table in session_tables(handle.jvm, frame):
        path = ObjectPath.of(table.database, table.name)
        live.transaction.note_read(catalog, path, catalog.version_of(table.location, table.stamp))


def _session_catalog(handle: Handle) -> HiveCatalog | None:
    """The catalog that serves the session's own tables, where it can tell the states of one apart."""
    catalog = handle.catalogs.get(handle.session_catalog or "")
    return catalog if isinstance(catalog, HiveCatalog) and catalog.metastore.read_by_session else None


def _require_as_read(handle: Handle, participant: TwoPhaseCatalogTable, frame: Any) -> None:
    """Refuse to replace a session table by rows that come of an older state of it.

    Asked once the statement is staged: what that rests on lies between the read and this, and is all the same.
    """
    catalog = _session_catalog(handle)
    if participant.purpose is Purpose.INSERT_INTO or catalog is None or participant.catalog is not catalog:
        return
    target = catalog.canonical(participant.path)
    for table in session_tables(handle.jvm, frame):
        if catalog.canonical(ObjectPath.of(table.database, table.name)) != target:
            continue
        if catalog.version_of(table.location, table.stamp) != catalog.table_version(target):
            raise WriteConflictError(
                f"Table {catalog.name}.{target} was not written: its new rows were read of a state that it had before "
                "another writer changed it.",
                path=target,
                transaction_id=participant.transaction_id,
                hint="Make the DataFrame anew, and run the statement again: it will see the new state.",
            )


def staged(
    handle: Handle, catalog: Catalog, path: ObjectPath
) -> tuple[TwoPhaseCatalogTable, TableDefinition | None] | None:
    """What the surrounding transaction has staged for a table, and the definition as far as it is known."""
    live = current(handle)
    participant = live.transaction.find(catalog.name, path) if live else None
    return (participant, live.transaction.definition(participant)) if live and participant else None


def staged_tables(handle: Handle, catalog: Catalog, database: str) -> list[str]:
    """The names of the tables of a database that the surrounding transaction writes."""
    live = current(handle)
    if live is None:
        return []
    paths = [catalog.canonical(p.path) for p in live.transaction.participants if p.catalog is catalog]
    return [path.name for path in paths if path.database.lower() == database.lower()]


def table_definition(transaction: Transaction | None, catalog: Catalog, path: ObjectPath) -> TableDefinition:
    """The definition of a table as a transaction sees it: what was staged there, else what the store has.

    Raises
    ------
    TableNotExistError
        The table is in neither.
    AtomicityNotSupportedError
        The catalog cannot show what was staged.
    """
    participant = transaction.find(catalog.name, path) if transaction else None
    if transaction is None or participant is None:
        return catalog.load_table(path)
    return transaction.definition(participant) or staged_source(participant).definition or catalog.load_table(path)


def staged_source(participant: TwoPhaseCatalogTable) -> ReadSource:
    """How to read what a participant staged.

    Raises
    ------
    AtomicityNotSupportedError
        Its catalog cannot show it.
    WriteConflictError
        Another thread's statement is still writing it.
    """
    if live := find(participant.transaction_id):
        live.transaction.require_written(participant)
    source = participant.read_source()
    if source is None:
        raise AtomicityNotSupportedError(
            f"Catalog {participant.catalog.name} cannot show what this transaction staged for {participant.path}.",
            path=participant.path,
            transaction_id=participant.transaction_id,
            hint="Read the table before it is written, or after the transaction.",
        )
    return source


def open_statement(
    handle: Handle,
    catalog: Catalog,
    path: ObjectPath,
    definition: TableDefinition,
    purpose: Purpose,
    overwrite: OverwriteScope | None = None,
) -> Statement:
    """Stage one statement, in the surrounding transaction or in one of its own, and begin it.

    Raises
    ------
    AtomicityNotSupportedError
        The catalog offers no two-phase write for this.
    """
    live = current(handle)
    if live is not None:
        live.set_caches_aside(catalog, path)
    transaction = live.transaction if live else handle.coordinator.begin()
    participant = transaction.stage(
        catalog, path, definition, purpose=purpose, overwrite=overwrite, autocommit=live is None
    )
    if participant is None:
        raise AtomicityNotSupportedError(
            f"Catalog {catalog.name} has no two-phase write for {purpose.value} of {path}; nothing was started.",
            path=path,
            hint="This catalog has no other way to run it: spark.twophase.atomicity=preferred does not help.",
        )
    hooks: Iterable[JobStatusHook] = (*handle.hooks, *(live.hooks if live else ()))
    statement = Statement(
        transaction, participant, hooks=hooks, autocommit=live is None, job_scope=handle.tracker.scope
    )
    statement.start()
    return statement


def finish_statement(handle: Handle | None, statement: Statement, definition: TableDefinition) -> None:
    """End a statement well: publish it, or keep it for the rest of its transaction.

    Parameters
    ----------
    handle : Handle or None
        The attached session that is to see the table anew; None where there is none.
    statement : Statement
    definition : TableDefinition
        Of the table after it.
    """
    if statement.autocommit and handle is not None:
        written = [(participant := statement.participant, handle.cached(participant.catalog, participant.path))]
        with _if_published(statement.transaction, lambda: _refresh(handle, written)):
            statement.finish()
        return
    try:
        statement.finish()
    finally:  # a hook may want an end after a statement that ended well
        if statement.job.state is JobState.FINISHED:
            statement.transaction.defines(statement.participant, definition)


def write_rows(handle: Handle | None, statement: Statement, df: Any) -> None:
    """Write the rows of a statement, unless they are out of date.

    Raises
    ------
    WriteConflictError
        They were read of the target itself, before another writer changed it.
    """
    if handle is not None:
        _require_as_read(handle, statement.participant, df)
        note_reads(handle, df)
    statement.write(df)


def run_statement(handle: Handle | None, statement: Statement, df: Any, definition: TableDefinition) -> None:
    """Write the rows and end the statement, well or badly; the error is the user's own."""
    try:
        write_rows(handle, statement, df)
        finish_statement(handle, statement, definition)
    except BaseException as error:
        statement.fail(error)  # nothing where it has ended, well or badly
        raise
