"""Rename a table: one conditional metastore call gives it the new name, and a stamp; its files stay where they are.

The two names are two participants, of which the new one publishes, and is recorded, for both.
"""

from __future__ import annotations

from typing import ClassVar

from twophase.catalog.reading import ReadSource
from twophase.catalogs.hive.housekeeping import Housekeeping
from twophase.catalogs.hive.publish.one_call import OneCall
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.publish.renamed_table import RenamedTable
from twophase.catalogs.hive.replaced import Nothing, Replaced
from twophase.catalogs.hive.snapshots import SnapshotRead, read_format
from twophase.catalogs.hive.stamps import StampChangedError
from twophase.catalogs.hive.state import LeaveState, WriteState
from twophase.catalogs.hive.tables import MANAGED, HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import TableAlreadyExistsError, TableNotExistError
from twophase.model import Level, Outcome


class RenameTable(OneCall):
    """The new name of a renamed table."""

    result: ClassVar[str] = "it has its new name"

    _source: ReadSource | None = None

    def __init__(self, write: TableWrite) -> None:
        self._renamed = RenamedTable(write)
        self.former = self._renamed.path
        super().__init__(write, self._renamed.target)

    # -- the publish ---------------------------------------------------------------------------------------------

    def checked(self) -> HiveTable:
        """Check that the new name is free, too."""
        self.displaced.check(self.write.current())
        return self._renamed.checked()

    def prepare(self) -> None:
        super().prepare()
        self.write.reach(*self.displaced.level)

    def replaced_state(self) -> Replaced:
        return self.displaced.replaced_state()

    def change(self, now: HiveTable) -> None:
        self.displaced.make_way()
        try:
            # To take the rename back would remove the stamp of another writer.
            self._give_name(now.name, self.write.path.name, stamp=self.stamp, instead_of=now.expected_stamp)
        except TableAlreadyExistsError as error:
            raise self.write.conflict("another writer created it meanwhile") from error
        except TableNotExistError as error:
            raise self.write.conflict(f"{self.former} was dropped meanwhile") from error

    def _give_name(self, name: str, new_name: str, *, stamp: str, instead_of: str | None) -> None:
        # The kind as well: a killed driver may have made it external, so that no file is moved.
        kind = self.state.old.kind
        self.metastore.rename_table(self.write.database, name, new_name, kind=kind, stamp=stamp, instead_of=instead_of)

    def announce(self) -> None:
        for path in (self.former, self.write.path):
            self.metastore.changed(path.database, path.name)

    # -- after it ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        if self.was_published():
            self.staging.mark_published()
            self.displaced.finish()
            Housekeeping(self.write.store).free_default_location(self.former)
            self.announce()

    def is_changed_back(self) -> bool:
        now = self.write.current()
        if now is None or not self.is_ours(now):
            is_back = self.is_as_before(self._renamed.find())
        elif not self.displaced.may_come_back:
            return False
        else:
            with self.write.step("restore"):
                is_back = self._is_given_back(now)
        if is_back:
            self.displaced.restore()
        return is_back

    def _is_given_back(self, now: HiveTable) -> bool:
        """Give the table its former name and stamp; return False if another writer has the one, or it has changed."""
        name = self._renamed.name_back()
        if name is None:
            return False
        stamp = self.former_stamp or ""
        try:
            self._give_name(self.write.path.name, name, stamp=stamp, instead_of=now.stored_stamp)
        except (StampChangedError, TableAlreadyExistsError, TableNotExistError):
            if self.state.old.kind == MANAGED and self.is_ours(self.write.current()):
                self.metastore.make_managed(self.write.database, self.write.path.name)  # It was external for the call.
            return False
        return True

    # -- a rollback ----------------------------------------------------------------------------------------------

    def fence(self) -> None:
        stamp = self.state.old.stamp
        if stamp is not None:
            with self.write.step("fence"):
                self.metastore.fence_table(self.former.database, self.former.name, stamp)
        self.displaced.fence()

    def undo(self) -> None:
        self.displaced.restore()
        self.target.restore_kind(lambda _: False)
        super().undo()

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        """The files of the table, which has its former name. Listed once: others may add some later."""
        if self._source is None:
            state = SnapshotRead(self.write.store, self.former, []).state()
            provider = read_format(state.definition, self.write.store.conf)
            self._source = None if provider is None else state.source(provider)
        return self._source


class LeaveName(Publisher):
    """The former name of a renamed table: what it checks, and what readers of a former state find by it."""

    stages: ClassVar[bool] = False

    def __init__(self, write: TableWrite) -> None:
        super().__init__(write)
        arriving = WriteState.from_document(write.state.of(LeaveState).arriving)
        self._arriving = RenameTable(TableWrite(write.store, arriving))

    def begin(self) -> None:
        """It stages nothing."""

    def prepare(self) -> None:
        if self.state.before is None:
            self._check_free()
        else:
            self.target.check_unchanged()
        self.write.update(can_undo=True)
        self.write.reach(Level.ATOMIC)

    def replaced_state(self) -> Replaced:
        return Nothing() if self.state.before is None else self.target.replaced_state(defines=True)

    def publish(self) -> None:
        """It is published by the participant of the new name, with which it is grouped, and which checks the table."""
        if self.state.before is None:
            self._check_free()

    def _check_free(self) -> None:
        """Check a name that the table has only inside the transaction."""
        if self.write.current() is not None:
            raise self.write.conflict("another writer created it meanwhile")

    def outcome(self) -> Outcome:
        return self._arriving.outcome()

    def finish(self) -> None:
        """It leaves nothing."""

    def read_source(self) -> ReadSource | None:
        return None

    def leftovers(self) -> list[str]:
        return []
