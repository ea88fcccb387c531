"""The active transactions of this process: those that Spark statements can join.

A block belongs to the context in which it was opened (:mod:`contextvars`), because asyncio tasks share one thread. A
callback runs on another Python thread than the user's call, but on the same JVM thread. So for each call the id of the
surrounding transaction is carried in a local property of Spark, and this registry finds the transaction by it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from twophase.errors import AtomicityNotSupportedError, TransactionAborted, TwoPhaseError
from twophase.redaction import logger
from twophase.spark.active_transaction import ActiveTransaction
from twophase.spark.afterwards import afterwards
from twophase.spark.attached import AttachedSession
from twophase.spark.jvm import local_properties
from twophase.spark.jvm.local_properties import TRANSACTION
from twophase.spark.options import PREFER
from twophase.transactions.transaction import Transaction

log = logger("twophase.spark")


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


def open_block(session: AttachedSession, transaction_id: str) -> None:
    """Note that a block of a session has begun: the session is not detached before it has ended."""
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


#: What was around a block before it was entered: the transaction of the context, and what Spark's thread carried.
Surroundings: TypeAlias = tuple[str | None, str | None]


def surroundings(session: AttachedSession) -> Surroundings:
    """The state around the running code, to be restored when a block that begins here is left."""
    return _context.get(), local_properties.get(session.spark.sparkContext, TRANSACTION)


def enter(active: ActiveTransaction) -> None:
    """Let the statements of this context join a transaction from now on."""
    register(active)
    if active.session.rules is not None:
        active.known_to_rules = True
        active.session.rules.pin(active.transaction.id, reads_snapshot=active.transaction.isolation.pins_reads)
    _context.set(active.transaction.id)
    carried = active.transaction.id + (_SHARED if active.task else "")
    local_properties.put(active.session.spark.sparkContext, TRANSACTION, carried)


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
    if _plain(local_properties.get(active.session.spark.sparkContext, TRANSACTION)) == transaction_id:
        is_open = carried is not None and find(_plain(carried)) is not None
        local_properties.put(active.session.spark.sparkContext, TRANSACTION, carried if is_open else None)


def _plain(carried: str | None) -> str:
    return (carried or "").removesuffix(_SHARED)


def _forget_abandoned() -> None:
    """Let Spark's thread no longer carry a transaction that was left open on it, and rolled back elsewhere."""
    ids = _abandoned.pop(threading.current_thread(), set())
    context = _spark_context() if ids else None
    if context is not None and _plain(local_properties.get(context, TRANSACTION)) in ids:
        local_properties.put(context, TRANSACTION, None)


@contextmanager
def outside() -> Iterator[None]:
    """Run a call of the user's code by Spark outside any block, whichever block its thread was started in."""
    context = _spark_context()
    if context is not None and local_properties.get(context, TRANSACTION) is not None:
        local_properties.put(context, TRANSACTION, None)
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
    before = local_properties.get(context, TRANSACTION)
    wanted = _of_caller(before)
    if _context.get() is None and before and before.endswith(_SHARED) and _is_inherited(before):
        raise _unsure(_plain(before))
    if wanted == before:
        yield
        return
    own = find(_plain(before)) if not _is_inherited(_plain(before)) else None

    def restore() -> None:
        is_over = own is not None and find(own.transaction.id) is None  # The call was its COMMIT.
        local_properties.put(context, TRANSACTION, None if is_over else before)

    with afterwards(restore):
        local_properties.put(context, TRANSACTION, wanted)
        yield


def _spark_context() -> Any:
    from pyspark import SparkContext

    return SparkContext._active_spark_context


def _surrounding(session: AttachedSession) -> str | None:
    return _context.get() or _of_caller(local_properties.get(session.spark.sparkContext, TRANSACTION))


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
    TransactionAborted
        The transaction belongs to another session.
    """
    transaction = transaction_to_join(session)
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
