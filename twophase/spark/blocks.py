"""Blocks: statements that are one transaction, and the writes of one statement into several tables."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.errors import ConfigurationError
from twophase.hooks.hook import JobStatusHook, checked
from twophase.hooks.interrupts import carried_through
from twophase.model import Isolation, ObjectPath
from twophase.spark.active import (
    Surroundings,
    close_block,
    current,
    enter,
    find,
    leave,
    open_block,
    refuse_nested,
    register,
    surroundings,
)
from twophase.spark.active_transaction import ActiveTransaction, running_task
from twophase.spark.afterwards import afterwards
from twophase.spark.attached import AttachedSession
from twophase.spark.jvm import local_properties
from twophase.spark.jvm.local_properties import TRANSACTION
from twophase.transactions.conflict_policy import ConflictPolicy
from twophase.transactions.transaction import Transaction


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
        Asked about conflicts at the end of the block; see :mod:`twophase.spark.conflict_merging`.
    """

    conflict: ConflictPolicy | None = None
    wait: float | None = None
    timeout: float | None = None
    first_begun: float | None = None
    find_table: Callable[[str], tuple[Catalog, ObjectPath]] | None = None
    merge: Callable[[Any, Any, Any], Any] | Mapping[str, Callable[[Any, Any, Any], Any]] | None = None


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
    return ActiveTransaction(session, begun, own_hooks, is_block=True)


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


@contextmanager
def _block(session: AttachedSession, transaction_id: str) -> Iterator[None]:
    try:
        open_block(session, transaction_id)
        yield
    finally:
        close_block(transaction_id)


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
    """One atomic outcome for all tables that one statement writes.

    Outside of a block that is a transaction that begins with the first of them; in a block all of them are discarded if
    the statement fails.
    """

    def __init__(self, session: AttachedSession) -> None:
        self._session = session
        self._thread, self._task = threading.current_thread(), running_task()
        #: Whether the statement writes several tables.
        self.is_wanted = False
        self.active: ActiveTransaction | None = None
        #: What it has staged in the transaction around it.
        self.staged: list[TwoPhaseCatalogTable] = []

    def begin(self) -> ActiveTransaction:
        """Begin the transaction in a callback of the statement, and let Spark's thread carry its id."""
        tx = self._session.coordinator.begin()
        self.active = ActiveTransaction(self._session, tx, (), self._thread, self._task)
        register(self.active)
        local_properties.put(self._session.spark.sparkContext, TRANSACTION, tx.id)
        return self.active

    def let_be_read(self, around: ActiveTransaction) -> None:
        """Let the later statements of the block read what several writes have staged: none of these reads another."""
        for participant in self.staged if self.is_wanted else ():
            around.let_be_read(participant)

    def discard(self, around: ActiveTransaction) -> None:
        """Discard what several writes have staged; a savepoint would take that of other threads with it."""
        if self.is_wanted:
            for participant in reversed(self.staged):
                around.transaction.discard(participant)
            around.revert(self.staged)


@contextmanager
def write_group(session: AttachedSession) -> Iterator[WriteGroup]:
    """Run a statement that may write several tables: publish or stage all of its writes, or none."""
    group, around = WriteGroup(session), current(session)
    try:
        yield group
    except BaseException:
        if around is not None:
            group.discard(around)
        if group.active is None:
            raise
        with ending(group.active, (None, None)):
            raise
    if around is not None:
        group.let_be_read(around)
    if group.active is not None:
        with ending(group.active, (None, None)):
            leave(group.active, (None, None))
            commit(group.active)


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
