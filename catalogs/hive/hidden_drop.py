"""A dropped table, which is whole under a hidden name until its transaction is complete."""

from __future__ import annotations

from twophase.catalogs.files import is_below
from twophase.catalogs.hive.superseded import Superseded
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.write import TableWrite


class HiddenDrop:
    """The dropped table of a write.

    Parameters
    ----------
    write : TableWrite
        Its table before is the one that is dropped.
    role : str
        That of the hidden table.
    """

    def __init__(self, write: TableWrite, role: str) -> None:
        self._write = write
        self._role = role
        self._superseded = Superseded(write)

    def find(self) -> HiveTable | None:
        """Load the dropped table, while it has its hidden name."""
        return self._write.hidden.find_backup(self._role)

    def remove(self) -> None:
        """Remove what it holds, and then itself. Idempotent."""
        write = self._write
        with write.step("supersede"):
            self._supersede()
        with write.step("drop_hidden"):
            if self.find() is not None:
                write.metastore.forget_table(write.database, write.hidden.name(self._role))

    def _supersede(self) -> None:
        """Mark the directories of a managed table, whose files are removed; those of others stay."""
        table, now = self.find(), self._write.current()
        if table is None or self._write.state.before is None:
            return
        root = str(table.location)
        if now is not None and is_below(str(now.location), root):
            return  # Another writer has created a table there since.
        if table.partitioned:
            partitions = self._write.metastore.list_partitions(table)
            self._superseded.mark_outside(partitions, root, table.partition_columns)
        self._superseded.mark_table()

    def fence(self) -> None:
        """Take the hidden name, so that a dead driver's delayed call fails."""
        with self._write.step("fence"):
            self._write.hidden.take(self._role, self._write.state.version)
