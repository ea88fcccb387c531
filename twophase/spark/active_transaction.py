"""A transaction that Spark statements can join, and what Spark caches and shows of its tables."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from weakref import ref

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.hooks.hook import JobStatusHook
from twophase.model import ObjectPath
from twophase.spark.attached import AttachedSession
from twophase.spark.invalidation import CachedTable
from twophase.transactions.transaction import Transaction

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
    #: Whether its statements read what it has written: a single statement reads the state before itself.
    is_block: bool = False
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
        is_served = participant.catalog is self.session.catalogs.of_session and not participant.purpose.of_database
        if self.is_block and is_served and self.session.rules:
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
