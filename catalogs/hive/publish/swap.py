"""Swap names: a complete new table under a hidden name, and the old table, exchange their names in two calls."""

from __future__ import annotations

from twophase.catalog.reading import ReadSource
from twophase.catalogs.hive.layout import BACKUP
from twophase.catalogs.hive.publish.create import own_files
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Replaced
from twophase.catalogs.hive.stamps import StampChangedError
from twophase.catalogs.hive.tables import MANAGED, HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import TableAlreadyExistsError
from twophase.model import Level, Outcome


class NameSwap:
    """The two renames, and their reversal. Between them no table has the name.

    Parameters
    ----------
    publisher : Publisher
        Owner of the new table, which has a hidden name. The old table is renamed to another one: its backup.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._write = publisher.write

    def backup(self) -> HiveTable | None:
        """The old table, while it has its hidden name."""
        return self._write.hidden.find(BACKUP)

    def require_unchanged(self, now: HiveTable | None) -> HiveTable:
        """Return the old table as just loaded, or its backup, if unchanged."""
        backup = self.backup() if now is None else None
        return self._publisher.target.require_unchanged(now) if backup is None else backup

    def swap(self, now: HiveTable | None, kind: str) -> None:
        """Publish; an old table that already has its hidden name keeps it."""
        write, name = self._write, self._write.path.name
        if now is not None:
            with write.step("back_up_name"):
                try:
                    write.hidden.hide(name, BACKUP, instead_of=now.expected_stamp)
                except StampChangedError as error:
                    raise write.conflict("another writer published it meanwhile") from error
        with write.step("publish"):
            try:
                write.hidden.show("table", name, kind=kind)
            except TableAlreadyExistsError as error:
                raise write.conflict("another writer created it while it was replaced") from error

    def restore(self) -> None:
        """Give the old table its name back."""
        write, before = self._write, self._write.state.before
        if self.backup() is not None and write.current() is None and before is not None:
            with write.step("restore"):
                write.hidden.show(BACKUP, write.path.name, kind=before.kind)
        self._publisher.target.restore_kind(self._publisher.is_ours)

    def swap_back(self) -> bool:
        """Undo the publish; return False if another writer has changed the table since."""
        write = self._write
        # The backup still has the old table's definition and its files.
        if self.backup() is None or not self._publisher.is_ours(write.current()):
            return False
        with write.step("restore"):
            write.hidden.hide(write.path.name, "table")
        self.restore()
        return True

    def unneeded_backup(self) -> HiveTable | None:
        """The old table if it will not be restored: this write was published, or another writer has taken the name."""
        backup = self.backup()
        settled = self._write.current() is not None or self._publisher.outcome() is Outcome.PUBLISHED
        return backup if settled else None

    def drop_backup(self) -> None:
        """Drop the old table's metadata; its files are marked separately."""
        if self.unneeded_backup() is not None:
            self._write.metastore.forget_table(self._write.database, self._write.hidden.name(BACKUP))


class SwapNames(Publisher):
    """REPLACE with columns or partition columns that no metastore call changes together with the partitions.

    It takes two metastore calls. Between them no table has the name; recovery restores the old table.
    """

    def __init__(self, write: TableWrite) -> None:
        super().__init__(write)
        self._names = NameSwap(self)

    def prepare(self) -> None:
        self._names.require_unchanged(self.write.current())
        self.staging.inherit()
        with self.write.step("register"):
            self.staging.register()
        self.write.reach(
            Level.REVERSIBLE,
            "No metastore call changes the columns together with the partitions here: the old and the new table change "
            "names in two calls, and a reader between them finds no table.",
        )

    def replaced_state(self) -> Replaced:
        return self.target.replaced_state(defines=True)

    def publish(self) -> None:
        now = self.write.current()
        if self.is_ours(now):
            return
        self.check_staged()
        if now is not None:
            self.target.require_unchanged(now)
            self.target.check_inherited()
            self.target.check_replaced(self.target.replaced(now))
        self._names.swap(now, MANAGED)
        self.write.announce()

    def undo(self) -> None:
        self._names.restore()
        super().undo()

    def finish(self) -> None:
        own_files(self)
        super().finish()

    def supersede(self) -> None:
        backup = self._names.unneeded_backup()
        if backup is not None:
            if self.state.before is not None and backup.partitioned:
                listed = self.metastore.list_partitions(backup)
                self.superseded.mark_outside(listed, str(backup.location), backup.partition_columns)
            self._names.drop_backup()
        super().supersede()

    def compensate(self) -> bool:
        if not self._names.swap_back():
            return False
        self.write.announce()
        return True

    def read_source(self) -> ReadSource | None:
        return self.staging.read_partitions()
