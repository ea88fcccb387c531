"""Spark's own statements that alter, drop and rename session tables.

They run unchanged. An ALTER of columns gets a commit number; after a DROP or a RENAME, which do not know where twophase
stores files, the table's catalog is notified, so that the files beside the table match again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from twophase.catalog import Catalog, SupportsExternalChanges
from twophase.model import ObjectPath
from twophase.redaction import logger
from twophase.spark import schema_versions
from twophase.spark.attached import AttachedSession
from twophase.spark.routing.targets import Targets
from twophase.transactions.immediate import Announced

log = logger("twophase.spark")


class TableFollower:
    """Follows the session tables that are changed outside twophase, in any session.

    Called while Spark holds the lock of a session catalog: it takes no lock of ours that a thread holds while it calls
    Spark. Failures are logged, since the statement's own outcome counts.

    Parameters
    ----------
    sessions : sequence of AttachedSession
        The attached sessions of the application; the caller's own list, which it keeps up to date.
    """

    def __init__(self, sessions: Sequence[AttachedSession]) -> None:
        self._sessions = sessions
        #: What Spark is altering.
        self._altered: dict[ObjectPath, Announced] = {}

    # -- before and after a change -----------------------------------------------------------------------------------

    def altering(self, database: str, name: str) -> None:
        """Announce that the columns of a table change. If they do not, nothing says so: the lease expires then."""
        path = ObjectPath.of(database, name)
        for session, catalog in self._owner():
            if catalog.table_version(path) is not None:
                change = schema_versions.altering_by_spark(catalog, path)
                self._altered[path] = Announced(session.coordinator, [change], keeps_lease=False)

    def altered(self, database: str, name: str) -> None:
        """Record that the columns of a table have changed, and show them to all sessions."""
        self._gone(database, name)
        announced = self._altered.pop(ObjectPath.of(database, name), None)
        if announced is not None:
            announced.settle()

    def dropped(self, database: str, name: str) -> None:
        """Free the table's location for a plain CREATE TABLE."""
        path = ObjectPath.of(database, name)
        self._gone(database, name)
        try:
            if isinstance(catalog := self._catalog(), SupportsExternalChanges):
                catalog.table_dropped(path)
        except Exception:  # the table is dropped; its leftovers are for `twophase clean`
            log.warning("What dropped table %s leaves could not be tidied up.", path, exc_info=True)

    def renamed(self, database: str, name: str, new_name: str) -> None:
        """Fix the table's location: Spark's own rename assumes that a managed table's files are at the default one."""
        path, new_path = ObjectPath.of(database, name), ObjectPath.of(database, new_name)
        self._gone(database, name)
        try:
            if isinstance(catalog := self._catalog(), SupportsExternalChanges):
                catalog.table_renamed(path, new_path)
        except Exception:  # `twophase doctor` reports it
            log.warning("Table %s, renamed to %s, could not be led back to its files.", path, new_name, exc_info=True)

    def _gone(self, database: str, name: str) -> None:
        for session in list(self._sessions):
            session.caches.table_gone(database, name)

    def _catalog(self) -> Catalog | None:
        return next((catalog for _, catalog in self._owner()), None)

    def _owner(self) -> Iterator[tuple[AttachedSession, Catalog]]:
        """The catalog of the session's tables: all sessions share one metastore, so any session's catalog will do."""
        for session in list(self._sessions):
            if (catalog := Targets(session).session_catalog) is not None:
                yield session, catalog
                return
