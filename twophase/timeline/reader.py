"""The questions of readers to the timeline: transactions, changes, reservations."""

from __future__ import annotations

from collections.abc import Iterable

import sqlalchemy as sa

from twophase.catalog.snapshots import Change
from twophase.model import ObjectPath
from twophase.protocol.states import TransactionState
from twophase.timeline import commit_order, engines, pruning, savepoints, schema_versions, waits
from twophase.timeline.database import TimelineDatabase
from twophase.timeline.records import TransactionRecord
from twophase.timeline.reservations import Reservation
from twophase.timeline.rows import holders_of, load
from twophase.timeline.savepoints import SavepointRecord
from twophase.timeline.schema_versions import RecordedSchema
from twophase.timeline.tables import LEFT_BEHIND, target_key, transactions
from twophase.timeline.waits import Lock


class TimelineReader(TimelineDatabase):
    """The questions to a timeline, none of which changes it."""

    def now(self) -> float:
        """Return the time of the clock used for leases on this timeline, in seconds since the epoch."""
        return self._read(engines.now)

    def transaction(self, transaction_id: str) -> TransactionRecord | None:
        """Load a transaction with its participants; None if it is unknown to the timeline."""
        found = self._read(lambda connection: load(connection, transactions.c.id == transaction_id))
        return found[0] if found else None

    def transactions(
        self,
        *,
        open_only: bool = False,
        left_behind: bool = False,
        coordinator: str | None = None,
        limit: int | None = None,
    ) -> list[TransactionRecord]:
        """Load transactions with their participants, the newest first.

        Parameters
        ----------
        open_only : bool
            Only those with something left to do.
        left_behind : bool
            Only those with leftovers.
        coordinator : str, optional
            Only those of one coordinator.
        limit : int, optional
            The maximum number.
        """
        condition: sa.ColumnElement[bool] = sa.true()
        if open_only:
            condition &= transactions.c.finished.is_(None)
        if left_behind:
            condition &= LEFT_BEHIND
        if coordinator is not None:
            # Open ones are few, all of a coordinator may be millions: prevent the use of the index on the coordinator.
            name = transactions.c.coordinator.concat("") if open_only else transactions.c.coordinator
            condition &= name == coordinator
        return self._read(lambda connection: load(connection, condition, limit))

    def last_number(self) -> int:
        """Return the last commit number: a snapshot of all transactions that are completed now."""
        return self._read(commit_order.last_number)

    def changes_since(self, catalog: str, path: ObjectPath, snapshot: int, transaction_id: str) -> list[Change]:
        """Return the changes of a table by other transactions that a snapshot does not contain, in their order.

        Ask after a state of the table has been read: whatever is in it and not in the snapshot is then among them.

        Parameters
        ----------
        catalog : str
        path : ObjectPath
            The canonical name of the table.
        snapshot : int
            From :meth:`last_number`.
        transaction_id : str
            The transaction that asks.

        Returns
        -------
        list of Change
            Last those that may not have been published yet.
        """
        return self._read(
            lambda connection: commit_order.changes_since(connection, catalog, path, snapshot, transaction_id)
        )

    def knows_all_since(self, number: int) -> bool:
        """Return whether no transaction that was published after a commit number has been pruned."""
        return self._read(lambda connection: commit_order.knows_all_since(connection, number))

    def needed_since(self) -> float | None:
        """Return since when superseded states must be kept for open snapshots, in seconds since the epoch.

        Returns
        -------
        float or None
            When the first change was decided that some open snapshot does not contain; None if nothing must be kept.
        """
        return self._read(lambda connection: commit_order.needed_since(connection, engines.now(connection)))

    def locks(self) -> list[Lock]:
        """Return all reservations of open transactions, and then all for which they wait."""
        return self._read(waits.locks)

    def holders(self, catalog: str, path: ObjectPath) -> dict[str, Reservation]:
        """Return the transactions that have reserved a table, the oldest first, with their reservations."""
        return self._read(lambda connection: holders_of(connection, target_key(catalog, path)))

    def how_ended(self, transaction_id: str) -> TransactionState | None:
        """Return how a pruned transaction ended; None if it is not known to have been on this timeline."""
        return self._read(lambda connection: pruning.how_ended(connection, transaction_id))

    def savepoints(self) -> list[SavepointRecord]:
        """Load all savepoints with their tables, the newest first."""
        return self._read(savepoints.load)

    def savepoint(self, name: str) -> SavepointRecord | None:
        """Load a savepoint by its name; None if there is none."""
        found = self._read(lambda connection: savepoints.load(connection, name))
        return found[0] if found else None

    def schema_versions(self, catalog: str, path: ObjectPath) -> list[RecordedSchema]:
        """Load the recorded versions of a table's schema since it was created, the oldest first.

        Parameters
        ----------
        catalog : str
        path : ObjectPath
            The canonical name of the table.
        """
        return self._read(lambda connection: schema_versions.load(connection, target_key(catalog, path)))

    def columns_changed(self, catalog: str, path: ObjectPath, changes: Iterable[Change]) -> bool:
        """Return whether some of the changes of a table are recorded as changes of its columns.

        Parameters
        ----------
        catalog : str
        path : ObjectPath
            The canonical name of the table.
        changes : iterable of Change
            From :meth:`changes_since`.
        """
        made_by = {change.transaction_id for change in changes}
        return self._read(lambda connection: schema_versions.changed_by(connection, target_key(catalog, path), made_by))
