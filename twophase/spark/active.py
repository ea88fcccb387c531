"""The active transactions of this process: those that Spark statements can join.

A block belongs to the context in which it was opened (:mod:`contextvars`), because asyncio tasks share one thread. A
callback runs on another Python thread than the user's call, but on the same JVM thread. So for each call the id of the
surrounding transaction is carried in a local property of Spark, and this registry finds the transaction by it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary, ref

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.errors import AtomicityNotSupportedError, ConfigurationError, TransactionAborted, TwoPhaseError
from twophase.hooks.hook import JobStatusHook, checked
from twophase.hooks.interrupts import carried_through
from twophase.model import Isolation, ObjectPath
from twophase.redaction import logger
from twophase.spark.afterwards import afterwards
from twophase.spark.attached import AttachedSession
from twophase.spark.invalidation import CachedTable
from twophase.spark.jvm.gateway import TRANSACTION_PROPERTY
from twophase.spark.options import PREFER
from twophase.transactions.conflict_policy import ConflictPolicy
from twophase.transactions.transaction import Transaction

log = logger("twophase.spark")


#: An asyncio loop, and a task of it, which is not kept alive, nor its context.
Task: TypeAlias = tuple[asyncio.AbstractEventLoop, ref[asyncio.Task[Any]] | None]


def running_task() -> Task | None:
    """The asyncio loop and task that run the calling code, if any."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    task = asyncio.current_task(loop)
    return loop, None if task is None else ref(task)


@dataclass(frozen=True)
class Terms:
    """The terms of a block about its conflicts with others; None: as the session does.

    Attributes
    ----------
    conflict : ConflictPolicy or None
    wait, timeout : float or None
        Seconds.
    first_begun : float or None
        When its first attempt began, by :func:`~twophase.timeline.owners.clock`.
    find_table : callable or None
        Finds a table by the name that it has in the session.
    merge : callable, or mapping of str to callable, or None
        Asked about conflicts at the end of the block; see :mod:`twophase.spark.merging`.
    """

    conflict: ConflictPolicy | None = None
    wait: float | None = None
    timeout: float | None = None
    first_begun: float | None = None
    find_table: Callable[[str], tuple[Catalog, ObjectPath]] | None = None
    merge: Callable[[Any, Any, Any], Any] | Mapping[str, Callable[[Any, Any, Any], Any]] | None = None


@dataclass
class ActiveTransaction:
    """A transaction that statements can join.

    Attributes
    ----------
    session : AttachedSession
        The attached session that it belongs to.
    transaction : Transaction
    hooks : tuple of JobStatusHook
        Notified of each statement in it, in addition to those of the session.
    """

    session: AttachedSession
    transaction: Transaction
    hooks: tuple[JobStatusHook, ...] = ()
    #: The thread on which it was opened: there the local property says nothing about the running code.
    thread: threading.Thread = field(default_factory=threading.current_thread)
    #: The asyncio loop and task that opened it, if any: other tasks run on its thread, too.
    task: Task | None = field(default_factory=running_task)
    #: Whether all code on its thread is in it, whichever context that runs in: the cells of a notebook.
    is_of_thread: bool = False
    #: Whether the rules on plans know of it, or of its staged tables.
    known_to_rules: bool = False
    #: The cache entries of each table from before a statement wrote it: Spark's own names, and the way of caching.
    _cached: dict[tuple[Catalog, ObjectPath], dict[str, CachedTable]] = field(default_factory=dict)
    #: The sources of tables that are shown in another state than the transaction's.
    _shown: dict[tuple[Catalog, ObjectPath], ReadSource] = field(default_factory=dict)

    @property
    def is_elsewhere(self) -> bool:
        """Whether another task runs on the block's thread now; may be called from any thread."""
        if self.task is None:
            return False
        loop, own = self.task
        running = asyncio.current_task(loop)
        return running is not None if own is None else running is None or running is not own()

    def suspend_caches(self, catalog: Catalog, path: ObjectPath) -> None:
        """Suspend a table's caches before a statement: Spark would fill them with unpublished rows."""
        suspended = self._cached.setdefault((catalog, path), {})
        for name, entry in self.session.caches.suspend(catalog, path):
            suspended.setdefault(name, entry)

    def let_be_read(self, participant: TwoPhaseCatalogTable) -> None:
        """Let the transaction's statements read its staged version of a session catalog table."""
        is_block = self.transaction.id in _blocks  # a single statement reads the state before itself
        is_served = participant.catalog is self.session.catalogs.of_session and not participant.purpose.of_database
        if is_block and is_served and self.session.rules:
            self.known_to_rules = True
            path = participant.path
            self.session.rules.stage(self.transaction.id, path.database, path.name)

    def revert(self, participants: Iterable[TwoPhaseCatalogTable]) -> None:
        """Let the statements read what is left of these tables' writes after a rollback to a savepoint."""
        for participant in participants:
            if participant.purpose.of_database:
                continue
            catalog, path = participant.catalog, participant.path
            self.suspend_caches(catalog, path)
            rules = self.session.rules if catalog is self.session.catalogs.of_session else None
            if rules is not None and self.transaction.find(catalog.name, path) is None:
                rules.unstage(self.transaction.id, path.database, path.name)

    @contextmanager
    def showing(self, catalog: Catalog, path: ObjectPath, source: ReadSource | None) -> Iterator[None]:
        """Show a table from another source than the one that the transaction reads; None: from that one."""
        key = (catalog, catalog.canonical(path))
        if source is not None:
            self._shown[key] = source
        try:
            yield
        finally:
            self._shown.pop(key, None)

    def shown(self, catalog: Catalog, path: ObjectPath) -> ReadSource | None:
        """The source from which a table is shown instead."""
        return self._shown.get((catalog, catalog.canonical(path))) if self._shown else None

    def cached(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, CachedTable]]:
        """The entries of a written table that must be cached again."""
        now = dict(self.session.caches.cached(catalog, path))
        return list({**self._cached.get((catalog, path), {}), **now}.items())

    def restore_caches(self, *, is_published: bool = False) -> None:
        """Restore the cache entries after a rollback, without staged rows; after a publish, of what was discarded."""
        for (catalog, path), cached in list(self._cached.items()):
            if not (is_published and (not cached or self.transaction.find(catalog.name, path))):
                self.session.caches.invalidate(catalog, path, cached.items())


#: The transaction of the block in which the running code is.
_context: ContextVar[str | None] = ContextVar("twophase.transaction", default=None)
#: Suffix of the id in the local property of a thread that tasks may share, so that the owning task is unknown.
_SHARED = "?"

_active: dict[str, ActiveTransaction] = {}
#: The session of each block that has not ended, including one that is being published and can no longer be joined.
_blocks: dict[str, AttachedSession] = {}
#: Blocks that were left open on a thread which goes on: what it still carries of them means nothing any more.
_abandoned: WeakKeyDictionary[threading.Thread, set[str]] = WeakKeyDictionary()
_lock = threading.Lock()


def register(active: ActiveTransaction) -> None:
    """Let statements join this transaction."""
    with _lock:
        _active[active.transaction.id] = active


def unregister(transaction_id: str) -> None:
    """Let no more statements join a transaction. Idempotent."""
    with _lock:
        _active.pop(transaction_id, None)


def any_open() -> bool:
    """Return whether there is any transaction to join; costs no call outside this process."""
    return bool(_active)


def open_blocks(session: AttachedSession) -> list[str]:
    """The transactions of a session whose blocks have not ended, on any thread."""
    with _lock:
        return [transaction_id for transaction_id, owner in _blocks.items() if owner is session]


@contextmanager
def _block(session: AttachedSession, transaction_id: str) -> Iterator[None]:
    try:
        open_block(session, transaction_id)
        yield
    finally:
        close_block(transaction_id)


def open_block(session: AttachedSession, transaction_id: str) -> None:
    """Note that a block of a session has begun: its statements read what the transaction has written."""
    with _lock:
        _blocks[transaction_id] = session


def close_block(transaction_id: str) -> None:
    """Note that a block has ended. Idempotent."""
    with _lock:
        _blocks.pop(transaction_id, None)


def abandon(active: ActiveTransaction) -> None:
    """Note that a transaction was left open, so that its thread, if it goes on, is outside of it."""
    with _lock:
        _abandoned.setdefault(active.thread, set()).add(active.transaction.id)


def find(transaction_id: str) -> ActiveTransaction | None:
    """The transaction with this id, while statements can join it."""
    with _lock:
        return _active.get(transaction_id)


@contextmanager
def transaction(
    session: AttachedSession,
    hooks: Iterable[JobStatusHook] = (),
    isolation: Isolation | None = None,
    *,
    read_only: bool = False,
    terms: Terms | None = None,
    at_end: Callable[[ActiveTransaction, Terms], None] | None = None,
) -> Iterator[Transaction]:
    """Group the statements of a block: all are published at its end, or none.

    See :func:`twophase.transaction`, also for the errors that it raises. Its last statements are those of ``at_end``.
    """
    active = begin(session, hooks, isolation, read_only=read_only, terms=terms)
    before = surroundings(session)
    with _block(session, active.transaction.id), ending(active, before):
        with afterwards(lambda: leave(active, before)):
            enter(active)
            yield active.transaction
            if at_end is not None and terms is not None:
                at_end(active, terms)
        commit(active)


def begin(
    session: AttachedSession,
    hooks: Iterable[JobStatusHook],
    isolation: Isolation | None,
    *,
    read_only: bool,
    terms: Terms | None,
) -> ActiveTransaction:
    """Begin a transaction that statements can join once it is entered.

    Raises
    ------
    TransactionAborted
        There is one around it.
    """
    refuse_nested(session)
    own_hooks = checked(hooks)
    level = session.isolation if isolation is None else isolation
    wanted = terms or Terms()
    _require_former_state(wanted, level)
    begun = session.coordinator.begin(
        level,
        read_only=read_only,
        catalogs=session.catalogs.values(),
        conflict=wanted.conflict,
        wait_seconds=wanted.wait,
        timeout_seconds=session.timeout if wanted.timeout is None else wanted.timeout,
        first_begun=wanted.first_begun,
    )
    _set_up(begun, wanted)
    return ActiveTransaction(session, begun, own_hooks)


def _set_up(begun: Transaction, terms: Terms) -> None:
    begun.reverts_by(_revert)
    if terms.merge is not None:
        begun.will_merge()
    if terms.find_table is not None:
        begun.finds_tables_by(terms.find_table)


def _require_former_state(terms: Terms, level: Isolation) -> None:
    if terms.merge is not None and not level.pins_reads:
        raise ConfigurationError(
            "merge= needs a block that reads one snapshot: without one there is no former state to compare with.",
            hint="Give isolation='snapshot' or 'serializable'.",
        )


def _revert(transaction_id: str, discarded: Iterable[TwoPhaseCatalogTable]) -> None:
    if (active := find(transaction_id)) is not None:
        active.revert(discarded)


#: What was around a block before it was entered: the transaction of the context, and what Spark's thread carried.
Surroundings: TypeAlias = tuple[str | None, str | None]


def surroundings(session: AttachedSession) -> Surroundings:
    """The state around the running code, to be restored when a block that begins here is left."""
    return _context.get(), session.jvm.local_property(TRANSACTION_PROPERTY)


@contextmanager
def ending(active: ActiveTransaction, before: Surroundings) -> Iterator[None]:
    """Roll a transaction back if the block fails: whatever failed before the decision, no transaction stays open."""
    tx = active.transaction
    try:
        yield
    except BaseException as error:
        if tx.is_inherited:
            raise  # A forked child does not roll back: its parent owns the transaction and the connection to Spark.
        with carried_through(tx, error):
            tx.abort(error)  # does nothing once it has ended; failures of the rollback are attached to the error
            with suppress(Exception):  # Spark may have ended
                leave(active, before)
                active.restore_caches()
        raise


class WriteGroup:
    """One atomic outcome for all tables that one statement writes: a transaction that begins with the first of them.

    Parameters
    ----------
    session : AttachedSession
    """

    def __init__(self, session: AttachedSession) -> None:
        self._session = session
        self._thread, self._task = threading.current_thread(), running_task()
        #: Whether the statement writes several tables.
        self.is_wanted = False
        self.active: ActiveTransaction | None = None

    def begin(self) -> ActiveTransaction:
        """Begin the transaction in a callback of the statement, and let Spark's thread carry its id."""
        tx = self._session.coordinator.begin()
        self.active = ActiveTransaction(self._session, tx, (), self._thread, self._task)
        register(self.active)
        self._session.spark.sparkContext.setLocalProperty(TRANSACTION_PROPERTY, tx.id)
        return self.active


@contextmanager
def write_group(session: AttachedSession) -> Iterator[WriteGroup]:
    """Run a statement that may write several tables: publish all of its writes, or none."""
    group = WriteGroup(session)
    try:
        yield group
    except BaseException:
        if group.active is None:
            raise
        with ending(group.active, (None, None)):
            raise
    if group.active is not None:
        with ending(group.active, (None, None)):
            leave(group.active, (None, None))
            commit(group.active)


def enter(active: ActiveTransaction) -> None:
    """Let the statements of this context join a transaction from now on."""
    register(active)
    if active.session.rules is not None:
        active.known_to_rules = True
        active.session.rules.pin(active.transaction.id, reads_snapshot=active.transaction.isolation.pins_reads)
    _context.set(active.transaction.id)
    carried = active.transaction.id + (_SHARED if active.task else "")
    active.session.spark.sparkContext.setLocalProperty(TRANSACTION_PROPERTY, carried)


def leave(active: ActiveTransaction, before: Surroundings) -> None:
    """Let no more statements join a transaction, and remove it from context and local property. Idempotent."""
    transaction_id = active.transaction.id
    context, carried = before
    if active.transaction.is_inherited:
        return
    unregister(transaction_id)
    if active.known_to_rules:
        active.known_to_rules = False
        if active.session.rules is not None:
            active.session.rules.end(transaction_id)
    if _context.get() == transaction_id:
        _context.set(context)
    if _plain(active.session.jvm.local_property(TRANSACTION_PROPERTY)) == transaction_id:
        is_open = carried is not None and find(_plain(carried)) is not None
        active.session.spark.sparkContext.setLocalProperty(TRANSACTION_PROPERTY, carried if is_open else None)


def _plain(carried: str | None) -> str:
    return (carried or "").removesuffix(_SHARED)


def _forget_abandoned() -> None:
    """Let Spark's thread no longer carry a transaction that was left open on it, and rolled back elsewhere."""
    ids = _abandoned.pop(threading.current_thread(), set())
    context = _spark_context() if ids else None
    if context is not None and _plain(context.getLocalProperty(TRANSACTION_PROPERTY)) in ids:
        context.setLocalProperty(TRANSACTION_PROPERTY, None)


@contextmanager
def outside() -> Iterator[None]:
    """Run a call of the user's code by Spark outside any block, whichever block its thread was started in."""
    context = _spark_context()
    if context is not None and context.getLocalProperty(TRANSACTION_PROPERTY) is not None:
        context.setLocalProperty(TRANSACTION_PROPERTY, None)
    yield


@contextmanager
def carried() -> Iterator[None]:
    """Run a call of the user: Spark's thread carries the transaction of the caller's context, and no other.

    Raises
    ------
    TwoPhaseError
        The thread was started by one of several tasks, and it is unknown by which one.
    """
    _forget_abandoned()
    context = _spark_context() if _active or _context.get() is not None else None
    if context is None:  # no call to the JVM
        yield
        return
    before = context.getLocalProperty(TRANSACTION_PROPERTY)
    wanted = _of_caller(before)
    if _context.get() is None and before and before.endswith(_SHARED) and _is_inherited(before):
        raise _unsure(_plain(before))
    if wanted == before:
        yield
        return
    own = find(_plain(before)) if not _is_inherited(_plain(before)) else None

    def restore() -> None:
        is_over = own is not None and find(own.transaction.id) is None  # The call was its COMMIT.
        context.setLocalProperty(TRANSACTION_PROPERTY, None if is_over else before)

    with afterwards(restore):
        context.setLocalProperty(TRANSACTION_PROPERTY, wanted)
        yield


def _spark_context() -> Any:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _surrounding(session: AttachedSession) -> str | None:
    return _context.get() or _of_caller(session.jvm.local_property(TRANSACTION_PROPERTY))


def _of_caller(carried: str | None) -> str | None:
    """The running code's transaction by its context; in a callback or a thread of the block, by the local property."""
    if (own := _context.get()) is not None or not carried:
        return own
    active = find(_plain(carried))
    is_own_thread = active is not None and active.thread is threading.current_thread() and not active.is_of_thread
    is_of_another_task = active is not None and carried.endswith(_SHARED) and active.is_elsewhere
    return None if is_own_thread or is_of_another_task else _plain(carried)


def _is_inherited(carried: str) -> bool:
    active = find(_plain(carried))
    return active is not None and active.thread is not threading.current_thread()


def _unsure(transaction_id: str) -> TwoPhaseError:
    return TwoPhaseError(
        f"Whether this thread belongs to transaction {transaction_id} cannot be determined: it was started where other "
        "tasks may have run meanwhile. Nothing of the statement was started.",
        transaction_id=transaction_id,
        hint="Start it by asyncio.to_thread or as a pyspark.InheritableThread: these belong to their caller's block.",
    )


def refuse_nested(session: AttachedSession) -> None:
    """Refuse to begin a transaction inside another one.

    Raises
    ------
    TransactionAborted
    """
    transaction_id = _surrounding(session)
    if transaction_id and find(transaction_id):
        raise TransactionAborted(
            f"Transaction {transaction_id} is open already: transactions do not nest.",
            transaction_id=transaction_id,
            hint="Run the statements in the block that is open; it goes on as it was.",
        )


def commit(active: ActiveTransaction) -> None:
    """Publish a transaction that no more statements can join."""
    session, tx = active.session, active.transaction
    tx.require_own()
    # Ctrl-C waits: Py4J would turn it into an error of the store, and Spark would keep cached rows from before.
    with carried_through(tx):
        written = [(p, active.cached(p.catalog, p.path)) for p in tx.participants if not p.purpose.of_database]
        with session.caches.invalidated_by(tx, written):
            tx.commit()
        active.restore_caches(is_published=True)


def current(session: AttachedSession) -> ActiveTransaction | None:
    """The transaction of this session in which this thread's statement runs.

    Raises
    ------
    TwoPhaseError
        It has ended, successfully or not.
    """
    active = _around(session)
    return active if active is not None and active.session is session else None


def current_transaction(session: AttachedSession) -> Transaction | None:
    """The ``with twophase.transaction(spark)`` around this thread's statement, if any."""
    active = current(session)
    return active.transaction if active else None


def to_join(session: AttachedSession) -> ActiveTransaction | None:
    """The transaction that a write of this thread must join.

    Raises
    ------
    TwoPhaseError
        It has ended, successfully or not.
    TransactionAborted
        It belongs to another session.
    """
    active = _around(session)
    if active is not None and active.session is not session:
        raise TransactionAborted(
            f"Transaction {active.transaction.id} belongs to another Spark session; nothing was written.",
            transaction_id=active.transaction.id,
            hint="Use the session that was given to twophase.transaction(spark), or write after the block.",
        )
    return active


def transaction_to_join(session: AttachedSession) -> Transaction | None:
    """The transaction around this thread's statement, which the statement must join.

    Raises
    ------
    TransactionAborted
        It belongs to another session.
    """
    active = to_join(session)
    return active.transaction if active else None


def _around(session: AttachedSession) -> ActiveTransaction | None:
    transaction_id = _surrounding(session)
    if not transaction_id:
        return None
    active = find(transaction_id)
    if active is None:
        raise TwoPhaseError(
            f"Transaction {transaction_id} has ended: no more statements can join it; nothing of this one was started.",
            transaction_id=transaction_id,
            hint="A thread or task started inside the block outlived it; wait for it before the block ends.",
        )
    return active


def refuse_in_transaction(session: AttachedSession, statement: str, path: object, why: str | None = None) -> None:
    """Refuse a change that would take effect immediately, inside a transaction; warn under ``preferred``.

    Raises
    ------
    AtomicityNotSupportedError
    """
    transaction = current_transaction(session)
    if transaction is None:
        return
    if session.policy == "preferred":
        log.warning("%s takes effect immediately, inside transaction %s.", statement, transaction.id)
        return
    raise AtomicityNotSupportedError(
        f"{statement} takes effect immediately and cannot be part of transaction {transaction.id}"
        f"{f': {why}' if why else ''}.",
        path=path,
        hint=f"Run it before or after the transaction, or {PREFER}.",
    )
