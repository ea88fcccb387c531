"""A table that a write renames, wherever it is before the publish."""

from __future__ import annotations

from dataclasses import replace

from twophase.catalogs.hive.displaced import waiting_place
from twophase.catalogs.hive.layout import BACKUP
from twophase.catalogs.hive.state import RenameState, renamed_by
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.model import ObjectPath


class RenamedTable:
    """The table that gets its name by a write: it has its former one, or a hidden one if it made way for another."""

    def __init__(self, write: TableWrite) -> None:
        self._write = write
        #: Its former name.
        self.path = ObjectPath(write.path.namespace, write.state.of(RenameState).former)
        self.target = Target(TableWrite(write.store, replace(write.state, path=self.path)))
        self._waiting = waiting_place(write, renamed_by(write.state))

    def find(self) -> HiveTable | None:
        """Load it; what has its former name, if it is at neither place."""
        now = self._write.store.find(self.path)
        return now if self.is_as_before(now) else self._waiting.find(BACKUP) or now

    def is_as_before(self, table: HiveTable | None) -> bool:
        """Return whether a table is this one, as it was when the write was planned."""
        return table is not None and self.target.is_unmoved(table) and table.stamp == self._write.state.old.stamp

    def checked(self) -> HiveTable:
        """Load it, and check that no other writer has changed it.

        Raises
        ------
        WriteConflictError
        """
        now = self.target.require_unchanged(self.find())
        self.target.check_replaced(self.target.replaced(now))
        return now

    def name_back(self) -> str | None:
        """Return the name that it gets back; None if another writer has it.

        If a table has it by the same transaction, which loses it later, it waits under a hidden one.
        """
        holder = self._write.store.find(self.path)
        if holder is None:
            return self.path.name
        return self._waiting.name(BACKUP) if holder.stamp == self._write.state.transaction_id else None
