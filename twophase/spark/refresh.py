"""After a publish: Spark forgets what it kept of the table.

Cached queries are found by the table's name, for a new version of a table has another location and would never be
found by its plan. Where nothing is cached this costs one call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog
from twophase.errors import TwoPhaseError
from twophase.model import ObjectPath, quote
from twophase.redaction import logger
from twophase.spark.jvm.caches import TableCaches

if TYPE_CHECKING:
    from twophase.spark.session import Handle

log = logger("twophase.spark")

_SESSION = "spark_catalog"


@dataclass(frozen=True)
class Kept:
    """How a table is cached.

    Attributes
    ----------
    level : pyspark.StorageLevel
    columns : str
        What is cached of it.
    """

    level: Any
    columns: str


class Refresher:
    """Invalidates caches for one attached session, and in its sisters.

    Parameters
    ----------
    handle : Handle
    """

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._jvm = handle.jvm
        #: Tables whose relation this session keeps after its own inserts, where stock Spark would look anew.
        self._kept_on: set[tuple[str, str]] = set()
        self._is_behind = False

    def fall_behind(self) -> None:
        """A session that is not attached has written something: it told none of it."""
        self._is_behind = True

    def catch_up(self) -> None:
        """Before a read: list the files of tables anew whose relation would not be there in stock Spark."""
        if not self._is_behind:
            return
        self._is_behind = False
        for table in list(self._kept_on):
            if not TableCaches(self._jvm).list_again(*table):
                self._kept_on.discard(table)

    def cached(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, Kept]]:
        """Names under which a table is cached, and how."""
        if self._jvm.nothing_cached():
            return []
        found = []
        for parts in self._names(catalog, path):
            name = ".".join(quote(part) for part in parts)
            kept = self._kept(name)
            if kept is not None:
                found.append((name, kept))
        return found

    def set_aside(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, Kept]]:
        """Forget what is cached under the table's name in its own catalog, and tell all that was cached of it.

        What is cached under a name of Spark's own catalog stays: it never has a staged row.
        """
        found = self.cached(catalog, path)
        if not self._jvm.nothing_cached():
            self._jvm.uncache(self._own_name(catalog, path))
        return found

    def _kept(self, name: str) -> Kept | None:
        try:
            frame = self._handle.spark.table(name)
            level = frame.storageLevel
        except Exception:  # a table that cannot be read is not cached
            return None
        return Kept(level, _columns(frame)) if level.useMemory or level.useDisk or level.useOffHeap else None

    def refresh(
        self, catalog: Catalog, path: ObjectPath, cached: Iterable[tuple[str, Kept]], *, replaced: bool
    ) -> None:
        """Forget, then cache again what was cached. A publish never fails because of this.

        A table that was replaced by one of other columns is not the one that was cached: as Spark has it.
        """
        try:
            if self._follows(catalog, path):
                return
            for name, kept in cached:
                if not replaced or _columns(self._handle.spark.table(name)) == kept.columns:
                    self._handle.spark.catalog.cacheTable(name, kept.level)
        except Exception:
            log.warning("Spark's caches of %s.%s could not be refreshed.", catalog.name, path, exc_info=True)

    def _follows(self, catalog: Catalog, path: ObjectPath) -> bool:
        """Whether the catalog has led what was made of the table before to its new rows; else it is forgotten."""
        names = self._names(catalog, path)
        session_name = next(((parts[1], parts[2]) for parts in names if parts[0] == _SESSION), None)
        follows = session_name is not None and TableCaches(self._jvm).keeps(*session_name)
        if not self._jvm.nothing_cached():
            # In its own catalog's name only a staged state can be cached of a session table, which nothing leads on.
            for parts in names[:1] if follows else names:
                self._jvm.uncache(parts)
        if session_name is not None:
            self._tell_sisters(*session_name)
            if follows:
                self._kept_on.add(session_name)
            else:
                self._jvm.forget_relation(*session_name)
        return follows

    def _tell_sisters(self, database: str, name: str) -> None:
        for sister in self._handle.sisters():
            sister.follow(database, name)

    def follow(self, database: str, name: str) -> None:
        """Another attached session has written a table."""
        TableCaches(self._jvm).follow(database, name)
        self._kept_on.add((database, name))

    def _names(self, catalog: Catalog, path: ObjectPath) -> list[tuple[str, ...]]:
        """The table's full names: in its own catalog, and in the session's where it is one of those tables."""
        names = [self._own_name(catalog, path)]
        if self._is_session_table(catalog, path):
            names.append((_SESSION, path.database, path.name))
        return names

    def _own_name(self, catalog: Catalog, path: ObjectPath) -> tuple[str, ...]:
        return (self._handle.name_of(catalog), *path.namespace, path.name)

    def _is_session_table(self, catalog: Catalog, path: ObjectPath) -> bool:
        if self._handle.name_of(catalog) == self._handle.session_catalog:
            return True
        try:
            return catalog.read_source(path).kind == "session_table"
        except TwoPhaseError:
            return False


def _columns(frame: Any) -> str:
    return str(frame.schema.simpleString())
