"""Create or replace a table whose files are moved to a fixed location: the user's LOCATION, or the default one.

Files are staged beside the target. Then the old directory is renamed to a backup, the new one is renamed to the
location, and one metastore call publishes. Until that call everything can be restored, because the stamp of each
directory names its owner.
"""

from __future__ import annotations

from typing import ClassVar

from twophase.catalogs.files import join, parent, same
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.publish.swap import NameSwap
from twophase.catalogs.hive.stamps import StampChangedError
from twophase.catalogs.hive.state import InPlaceState
from twophase.catalogs.hive.tables import EXTERNAL, HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.model import Level


class FixedLocation:
    """The fixed location of one write, and the directories that are exchanged there."""

    def __init__(self, write: TableWrite) -> None:
        self._write = write
        self._files = write.files

    @property
    def _own(self) -> InPlaceState:
        return self._write.state.of(InPlaceState)

    @property
    def location(self) -> str:
        """Final location of the files."""
        return self._own.target

    @property
    def _version(self) -> str:
        return self._write.state.version

    @property
    def backup(self) -> str:
        """Path of the old directory, kept until its readers have finished."""
        return self._version + ".old"

    @property
    def is_taken(self) -> bool:
        """Whether the new files replace the old ones at the same location."""
        before = self._write.state.before
        return before is not None and same(before.location, self.location)

    def table(self, *, name: str | None = None, kind: str | None = None) -> HiveTable:
        """The table over the location."""
        return self._write.table(name=name, kind=kind or self._own.kind, location=self.location)

    def check(self) -> None:
        """Refuse a location that holds files of another writer."""
        if not self.is_taken:
            self._write.store.check_location(self._write.path, self.location, self._write.state.transaction_id)

    def begin(self) -> None:
        """Check the location, and record whether it existed."""
        if self.holds(self.location):
            return
        self.check()
        if self._own.existed is None:
            self._write.update_own(existed=self._files.exists(self.location))

    def holds(self, directory: str) -> bool:
        """Whether a directory is the version of this write."""
        stamp, state = layout.read_stamp(self._files, directory), self._write.state
        mine = (state.transaction_id, state.ordinal)
        return stamp is not None and (stamp["transaction_id"], stamp.get("ordinal")) == mine

    def is_staged(self) -> bool:
        """Whether the version exists, or has already been moved to the location."""
        return self.holds(self._version) or self.holds(self.location)

    def is_ours(self, table: HiveTable | None) -> bool:
        """Whether a table is in the state that the write publishes."""
        return (
            table is not None
            and table.stamp == self._write.state.transaction_id
            and same(table.location, self.location)
            and self.holds(self.location)
        )

    def was_replaced(self) -> bool:
        """Whether a later replace has renamed our directory, with our stamp, to its backup."""
        beside = parent(self._version)
        backups = [entry.name for entry in self._files.list(beside, recursive=False) if entry.name.endswith(".old")]
        return any(self.holds(join(beside, name)) for name in backups)

    # -- the renames ---------------------------------------------------------------------------------------------

    def move_in(self) -> None:
        """Rename the staged directory to the location; an empty directory there is removed."""
        with self._write.step("move_in"):
            if self.holds(self.location):
                return
            if self._files.exists(self.location):
                self._files.remove_if_empty(self.location)
            self._move(self._version, self.location)

    def back_up(self) -> None:
        """Rename the old directory to its backup."""
        with self._write.step("back_up"):
            waits = self.is_taken and not self.holds(self.location) and not self._files.exists(self.backup)
            if waits and self._files.exists(self.location):
                self._move(self.location, self.backup)

    def _move(self, source: str, target: str) -> None:
        """Rename a directory, and make the rename survive a power failure, like the record of the transaction."""
        self._files.move(source, target)
        self._files.persist_names(source, target, below=parent(self._write.state.default_location))

    def move_out(self, *, keep: bool) -> bool:
        """Reverse :meth:`move_in`.

        Parameters
        ----------
        keep : bool
            Whether the files return to staging, so that they can be published again.

        Returns
        -------
        bool
            Whether the old directory was restored.
        """
        if self.holds(self.location):
            if keep:
                self._move(self.location, self._version)
            else:
                self._files.remove_tree(self.location)
        if self._files.exists(self.backup) and not self._files.exists(self.location):
            self._move(self.backup, self.location)
            return True
        if not self.is_taken:
            self._restore_empty()
        return False

    def _restore_empty(self) -> None:
        """Restore an empty directory that existed before; remove one that the metastore created."""
        if self._own.existed:
            self._files.make_directory(self.location)
        elif self._own.existed is not None and self._files.exists(self.location):
            self._files.remove_if_empty(self.location)


class _InPlace(Publisher):
    """Base class of the two publishers below: checks based on the fixed location."""

    keeps_mark: ClassVar[bool] = True

    def __init__(self, write: TableWrite) -> None:
        super().__init__(write)
        self._place = FixedLocation(write)

    @property
    def _own(self) -> InPlaceState:
        return self.state.of(InPlaceState)

    def begin(self) -> None:
        self._place.begin()
        super().begin()

    @property
    def notes_files(self) -> bool:
        return True  # Before the metastore is called, writers outside twophase find the files at the old location.

    @property
    def shown(self) -> str:
        return self._place.location if self._place.holds(self._place.location) else self.state.version

    def is_ours(self, table: HiveTable | None) -> bool:
        return self._place.is_ours(table)

    def is_staged(self) -> bool:
        return self._place.is_staged()

    def is_marked(self) -> bool:
        return super().is_marked() or self._place.was_replaced()

    def _register(self) -> None:
        """Create the hidden table with its partitions, once the files are at their final location."""
        with self.write.step("register"):
            self.staging.register(self._place.location)

    def _restore_files(self, *, keep: bool) -> None:
        if self.has_arrived():
            return
        # Files that are kept go back to the version with those of others, which its removal finds.
        if not keep and (added := self.staging.added_by_others(self.shown)):
            raise self.staging.changed(added, "it was not undone")
        with self.write.step("restore_files"):
            if self._place.move_out(keep=keep):
                self.target.was_restored()

    def finish(self) -> None:
        super().finish()
        self.write.store.remove_if_unused(self.state.version)

    def leftovers(self) -> list[str]:
        location = self._place.location
        return [*super().leftovers(), *([location] if self._place.holds(location) else [])]


class CreateInPlace(_InPlace):
    """CREATE at a location: the directory is renamed, then the table is created over it."""

    def prepare(self) -> None:
        self._check_free()
        self._place.check()
        self.staging.inherit()
        self.write.reach(Level.ATOMIC)

    def _check_free(self) -> None:
        state = self.state
        self.write.store.check_free(self.write.path, state.default_location, state.transaction_id, self.is_ours)

    def publish(self) -> None:
        if self.is_ours(self.write.current()):
            return
        self.check_staged()
        self._check_free()
        self._place.move_in()
        if self._own.hidden:
            self._register()
        with self.write.step("publish"):
            if self._own.hidden:
                self.write.hidden.show("table", self.write.path.name, kind=self._own.kind)
            else:
                self.metastore.create_table(self._place.table())
        self.write.announce()

    def undo(self) -> None:
        super().undo()
        self._restore_files(keep=False)

    def supersede(self) -> None:
        """Do nothing: nothing was replaced."""

    def compensate(self) -> bool:
        if not self.is_ours(self.write.current()):
            return False
        with self.write.step("restore"):
            self.metastore.forget_table(self.write.database, self.write.path.name)
        self._restore_files(keep=True)
        self.write.announce()
        return True


class ReplaceInPlace(_InPlace):
    """REPLACE at a location: back up the old directory, move the new one in, then change the metastore."""

    fences: ClassVar[bool] = True

    def __init__(self, write: TableWrite) -> None:
        super().__init__(write)
        self._names = NameSwap(self)

    def prepare(self) -> None:
        now = self._names.require_unchanged(self.write.current())
        self._place.check()
        self.staging.inherit()
        if not self._own.hidden:
            with self.write.step("register"):
                name = self.write.hidden.name("table")
                self.write.hidden.make("table", self._place.table(name=name, kind=EXTERNAL))
        # The old definition is kept only if the old table is renamed.
        self.write.update(can_undo=self._own.hidden)
        self.write.reach(*self._reached(now))

    def _reached(self, now: HiveTable) -> tuple[Level, str | None]:
        """The level of this publish, and the reason if it is not the highest."""
        name = self.write.hidden.name("table")
        if self._place.is_taken or self._own.hidden or not self.metastore.replace_in_one_step(now, name):
            return Level.REVERSIBLE, (
                "The files of this table stay at one location: old directory, new directory and metastore change one "
                "after the other."
            )
        return Level.ATOMIC, None

    def publish(self) -> None:
        now = self.write.current()
        if self.is_ours(now):
            return
        self.check_staged()
        expected_stamp = self._names.require_unchanged(now).expected_stamp
        if (
            now is not None
            and not self.files.exists(self._place.backup)
            and not self._place.holds(self._place.location)
        ):
            self.target.check_replaced(self.target.replaced(now))
        self._place.back_up()
        self._place.move_in()
        if self._own.hidden:
            if self.write.hidden.find("table") is None:
                self._register()
            self._names.swap(now, self._own.kind)
        else:
            self._replace(expected_stamp)
        self.write.announce()

    def _replace(self, expected_stamp: str) -> None:
        name = self.write.hidden.name("table")
        with self.write.step("publish"), self.write.calls.calling():
            try:
                self.metastore.replace_table(self._place.table(), name, same_files=False, instead_of=expected_stamp)
            except StampChangedError as error:
                raise self.write.conflict("another writer published it meanwhile") from error

    def undo(self) -> None:
        self._names.restore()
        super().undo()
        self._restore_files(keep=False)

    def supersede(self) -> None:
        if self.files.exists(self._place.backup):
            layout.supersede(self.files, self._place.backup, self.state.transaction_id)
        self._names.drop_backup()
        if not self._place.is_taken:
            super().supersede()

    def compensate(self) -> bool:
        if not self._names.swap_back():
            return False
        self._restore_files(keep=True)
        self.write.announce()
        return True
