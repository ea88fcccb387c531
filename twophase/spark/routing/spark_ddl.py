"""Spark's own DROP TABLE and RENAME, which do not know where twophase stores files.

They run unchanged; the table's catalog is notified afterwards, so that the files beside the table match again.
"""

from __future__ import annotations

from collections.abc import Sequence

from twophase.catalog import Catalog, SupportsExternalChanges
from twophase.model import ObjectPath
from twophase.redaction import logger
from twophase.spark.attached import AttachedSession
from twophase.spark.routing.targets import Targets

log = logger("twophase.spark")


class TableFollower:
    """Notifies the catalog of session tables that were dropped or renamed outside twophase, in any session.

    Called while Spark holds the lock of a session catalog: it takes no lock of ours. Failures are logged, since the
    statement's own outcome counts.

    Parameters
    ----------
    sessions : sequence of AttachedSession
        The attached sessions of the application; the caller's own list, which it keeps up to date.
    """

    def __init__(self, sessions: Sequence[AttachedSession]) -> None:
        self._sessions = sessions

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
        path = ObjectPath.of(database, name)
        self._gone(database, name)
        try:
            if isinstance(catalog := self._catalog(), SupportsExternalChanges):
                catalog.table_renamed(path, ObjectPath.of(database, new_name))
        except Exception:  # `twophase doctor` reports it
            log.warning("Table %s, renamed to %s, could not be led back to its files.", path, new_name, exc_info=True)

    def _gone(self, database: str, name: str) -> None:
        for session in list(self._sessions):
            session.caches.table_gone(database, name)

    def _catalog(self) -> Catalog | None:
        """The catalog of the session's tables: all sessions share one metastore, so any session's catalog will do."""
        found = (Targets(session).session_catalog for session in list(self._sessions))
        return next((catalog for catalog in found if catalog is not None), None)
