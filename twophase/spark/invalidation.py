"""Cache invalidation: after a publish Spark drops its cached state of the table.

Cached queries are found by the table's name: a new version of a table has another location, so that its plan would
never match. If nothing is cached, this costs one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog, SupportsSnapshots, TwoPhaseCatalogTable
from twophase.errors import TwoPhaseError
from twophase.model import ObjectPath, quote
from twophase.redaction import logger
from twophase.spark.jvm import caches, rules, session_state
from twophase.spark.jvm.caches import TableCaches
from twophase.spark.jvm.gateway import Jvm
from twophase.transactions.transaction import Transaction, TransactionState

log = logger("twophase.spark")

_SESSION = "spark_catalog"


@dataclass(frozen=True)
class CachedTable:
    """A cache entry of a table.

    Attributes
    ----------
    level : pyspark.StorageLevel
    columns : str
        The cached columns.
    """

    level: Any
    columns: str


class CacheInvalidation:
    """Invalidates the caches of one attached session and its sibling sessions.

    Parameters
    ----------
    jvm : Jvm
    session_name : str or None
        Name of the twophase catalog that serves unprefixed names.
    name_of : callable
        The name of a catalog in the session.
    siblings : callable
        The cache invalidations of the other attached sessions of the application.
    """

    def __init__(
        self,
        jvm: Jvm,
        session_name: str | None,
        name_of: Callable[[Catalog], str],
        siblings: Callable[[], Sequence[CacheInvalidation]],
    ) -> None:
        self._jvm = jvm
        self._session_name = session_name
        self._name_of = name_of
        self._siblings = siblings
        #: Tables whose relation this session keeps after its own inserts; stock Spark would list the files again.
        self._followed: set[tuple[str, str]] = set()
        self._is_behind = False
        #: Names for which this session may hold the relation of a table that no longer exists.
        self._gone: set[tuple[str, str]] = set()
        #: The versions of session tables that their relations show at least.
        self._shown: dict[tuple[str, str], Any] = {}
        self._moves: dict[tuple[str, str], threading.RLock] = {}
        self._moving: set[tuple[str, str]] = set()

    def require_current(self, catalog: Catalog, path: ObjectPath, version: Any) -> None:
        """Move the relation of a session table on before a read, unless the table has the version of the last one.

        Spark keeps a relation with the table's location and the list of its files. It does not learn of what another
        process publishes.

        Parameters
        ----------
        catalog : Catalog
        path : ObjectPath
        version : Any
            From :meth:`~twophase.Catalog.table_version`.
        """
        table = (path.database, path.name)
        if version is None or self._shown.get(table) == version or not self._is_session_table(catalog, path):
            return
        with self._moves.setdefault(table, threading.RLock()):  # Another thread must not read it until it is moved on.
            if self._shown.get(table) == version or table in self._moving:
                return  # To move it on, Spark reads the table, which asks this again.
            self._moving.add(table)
            try:
                TableCaches(self._jvm).follow(*table)
            finally:
                self._moving.discard(table)
            self._shown[table] = version

    def forget(self, catalog: Catalog, path: ObjectPath) -> None:
        """Make Spark resolve a table again, if it is one of the session."""
        if path.namespace and self._is_session_table(catalog, path):
            session_state.forget_relation(self._jvm, path.database, path.name)

    def table_gone(self, database: str, name: str) -> None:
        """Note that a session has dropped or renamed a table: its relation is forgotten before the next read."""
        self._gone.add((database, name))

    def fall_behind(self) -> None:
        """Note that a session that is not attached has written something; what it wrote is unknown."""
        self._is_behind = True

    def catch_up(self) -> None:
        """List the files again before a read, for tables whose relation stock Spark would not have kept."""
        for table in list(self._gone):
            self._gone.discard(table)
            session_state.forget_relation(self._jvm, *table)
        if not self._is_behind:
            return
        self._is_behind = False
        for table in list(self._followed):
            if not TableCaches(self._jvm).list_again(*table):
                self._followed.discard(table)

    def cached(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, CachedTable]]:
        """The names under which a table is cached, with their entries."""
        if caches.nothing_cached(self._jvm):
            return []
        names = (".".join(quote(part) for part in parts) for parts in self._names(catalog, path))
        entries = [(name, self._cached_as(name)) for name in names]
        return [(name, entry) for name, entry in entries if entry is not None]

    def suspend(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, CachedTable]]:
        """Uncache a table under the name in its own catalog before a transaction writes it; returns the former entries.

        Entries under a name of Spark's own catalog stay: they never contain staged rows.
        """
        if caches.nothing_cached(self._jvm):
            return []
        entries = self.cached(catalog, path)
        caches.uncache(self._jvm, self._own_name(catalog, path))
        return entries

    def _cached_as(self, name: str) -> CachedTable | None:
        try:
            with rules.off(self._jvm):  # Spark finds it in the cache by the plan that it makes itself.
                frame = self._jvm.spark.table(name)
            level = frame.storageLevel
        except Exception:  # a table that cannot be read is not cached
            return None
        is_cached = level.useMemory or level.useDisk or level.useOffHeap
        return CachedTable(level, _columns(frame)) if is_cached else None

    def invalidate(
        self,
        catalog: Catalog,
        path: ObjectPath,
        cached: Iterable[tuple[str, CachedTable]] = (),
        *,
        replaced: bool = False,
    ) -> None:
        """Invalidate the cached state of a table in every attached session, then restore its cache entries.

        A table that was replaced by one with other columns is not cached again, as in Spark. A publish never fails
        because of this.
        """
        try:
            if self._follows(catalog, path):
                return
            spark = self._jvm.spark
            for name, entry in cached:
                if not replaced or _columns(spark.table(name)) == entry.columns:
                    spark.catalog.cacheTable(name, entry.level)
        except Exception:
            log.warning("Spark's caches of %s.%s could not be refreshed.", catalog.name, path, exc_info=True)

    @contextmanager
    def invalidated_by(
        self, transaction: Transaction, cached: Iterable[tuple[TwoPhaseCatalogTable, list[tuple[str, CachedTable]]]]
    ) -> Iterator[None]:
        """Run a commit, and invalidate after the publish, also if an interrupt is raised after it.

        Parameters
        ----------
        transaction : Transaction
        cached : iterable
            The published tables, each with its cache entries.
        """
        try:
            yield
        finally:
            if transaction.state is TransactionState.COMPLETED:
                # New tables first: a cache that is filled again may read them.
                for participant, entries in sorted(cached, key=lambda pair: pair[0].purpose.inserts):
                    replaced = not participant.purpose.inserts
                    again = () if participant.purpose.drops else entries
                    self.invalidate(participant.catalog, participant.path, again, replaced=replaced)

    def _follows(self, catalog: Catalog, path: ObjectPath) -> bool:
        """Return whether the catalog has moved the table's cached relation on to the new rows; otherwise drop it."""
        names = self._names(catalog, path)
        session_table = next(((parts[1], parts[2]) for parts in names if parts[0] == _SESSION), None)
        tables = TableCaches(self._jvm)
        is_all = session_table is not None and tables.keeps_only(*session_table)
        follows = is_all or (session_table is not None and tables.keeps(*session_table))
        if not is_all and not caches.nothing_cached(self._jvm):
            # Under the name in its own catalog, only a session table's staged state can be cached; that is dropped.
            for parts in names[:1] if follows else names:
                caches.uncache(self._jvm, parts, readers=not _reads_one_version(catalog, path))
        if session_table is not None:
            for sibling in self._siblings():
                sibling.follow(*session_table)
            if follows:
                self._followed.add(session_table)
            else:
                session_state.forget_relation(self._jvm, *session_table)
        return follows

    def follow(self, database: str, name: str) -> None:
        """Note that another attached session has written a table: this session's relation shows the new rows."""
        TableCaches(self._jvm).follow(database, name)
        self._followed.add((database, name))

    def _names(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, ...]]:
        """The table's full names: in its own catalog, and in the session's if it is a session table."""
        names = [self._own_name(catalog, path)]
        if self._is_session_table(catalog, path):
            names.append((_SESSION, path.database, path.name))
        return names

    def _own_name(self, catalog: Catalog, path: ObjectPath) -> tuple[str, ...]:
        return (self._name_of(catalog), *path.namespace, path.name)

    def _is_session_table(self, catalog: Catalog, path: ObjectPath) -> bool:
        if self._name_of(catalog) == self._session_name:
            return True
        try:
            return catalog.read_source(path).kind == "session_table"
        except TwoPhaseError:
            return False


def _reads_one_version(catalog: Catalog, path: ObjectPath) -> bool:
    """Whether what reads a table keeps to the version that it was made of: no other query finds its cached rows."""
    if not isinstance(catalog, SupportsSnapshots) or catalog.reads_when_executed:
        return False
    try:
        source = catalog.read_source(path)
    except TwoPhaseError:
        return False
    return source.kind != "session_table" and source.version is not None


def _columns(frame: Any) -> str:
    return str(frame.schema.simpleString())
