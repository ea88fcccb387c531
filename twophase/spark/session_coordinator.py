"""The coordinator of an attached session: opened at first use, with its timeline."""

from __future__ import annotations

import threading
from typing import Any

from twophase import monitoring
from twophase.redaction import logger
from twophase.spark.attached import SessionCatalogs
from twophase.spark.options import Options, default_timeline
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflict_policy import DEFAULT_POLICY, conflict_policy
from twophase.transactions.coordinator import Coordinator

log = logger("twophase.spark")


class SessionCoordinator:
    """Opens and closes the coordinator of one session; a session created from another one uses its parent's.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    settings : Options
    catalogs : SessionCatalogs
    warehouse : str
        Location of the default timeline.
    parent : SessionCoordinator or None
    """

    def __init__(
        self,
        spark: Any,
        settings: Options,
        catalogs: SessionCatalogs,
        warehouse: str,
        parent: SessionCoordinator | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        self._catalogs = catalogs
        self._file = None if settings.timeline else default_timeline(warehouse)
        self._parent = parent
        self._coordinator: Coordinator | None = None
        self._lock = threading.RLock()

    def get(self) -> Coordinator:
        """The coordinator; opened at the first call."""
        if self._parent is not None:
            return self._parent.get()
        with self._lock:
            if self._coordinator is None:
                self._coordinator = self._open()
            return self._coordinator

    def _open(self) -> Coordinator:
        settings, application = self._settings, self._spark.sparkContext.appName
        return Coordinator(
            Timeline(settings.timeline or f"sqlite:///{self._file}", password=settings.timeline_password),
            self._catalogs.recorded,
            name=settings.coordinator or application,
            lease_seconds=settings.lease,
            wait_seconds=settings.wait,
            conflict=conflict_policy(settings.conflict or DEFAULT_POLICY),
            retention_seconds=max(settings.timeline_retention, settings.retention),
            application=application,
            observers=monitoring.observers(lineage=settings.openlineage),
        )

    def close(self) -> None:
        """Close the coordinator if it was opened. Idempotent."""
        if self._coordinator is not None:
            self._coordinator.close()
            self._coordinator = None

    def stand_alone(self) -> None:
        """Use a coordinator of its own from now on."""
        self._parent = None

    def has_ended(self, transaction_id: str) -> bool | None:
        """Return whether a transaction has ended; None if the timeline does not know it."""
        timeline = self.get().timeline
        record = timeline.transaction(transaction_id)
        if record is not None:
            return not record.is_open
        return True if timeline.how_ended(transaction_id) else None

    def recover_own(self) -> None:
        """Recover leftovers of an earlier run of this application, and finish transactions decided before a crash.

        The default timeline is not created for that.
        """
        if self._file is not None and not self._file.exists():
            return
        coordinator = self.get()
        for recovered in (*coordinator.recover(own_only=True), *coordinator.carry_on()):
            log.warning("At attach: %s", recovered)
        coordinator.prune(limit=1)
