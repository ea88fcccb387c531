"""Recipe ``rename``: files end at a fixed location (the user's LOCATION, or the default one), by a directory rename.

Staged beside the target; then the old directory goes aside, the new one in, and one metastore call publishes. Until
that call everything can be taken back, because each directory tells by its stamp whose it is.
"""

from __future__ import annotations

from typing import ClassVar

from twophase.catalogs.files import join, parent, same
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.metastore import EXTERNAL, HiveTable, StampChangedError
from twophase.catalogs.hive.name_swap import NameSwap
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.failpoints import declare
from twophase.model import Level

declare(
    *(
        f"hive.rename.{name}"
        for name in (
            *("stage", "write", "hidden_table", "link", "register", "set_aside", "move_in", "name_aside", "publish"),
            *("retire", "drop_hidden", "undo", "put_back", "fence", "remove_staging", "restore"),
        )
    )
)


class RenameCreate(HiveParticipant):
    """CREATE at a location: the directory is renamed, then the table made over it."""

    recipe: ClassVar[str] = "rename"
    keeps_mark: ClassVar[bool] = True

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def location(self) -> str:
        """Where the files end."""
        return str(self.document["target"])

    @property
    def kind(self) -> str:
        """``EXTERNAL`` with a LOCATION of the user's, else ``MANAGED``."""
        return str(self.document["kind"])

    @property
    def uses_hidden(self) -> bool:
        """Whether the table is made under a hidden name first."""
        return bool(self.document["hidden"])

    def final(self, *, name: str | None = None, kind: str | None = None) -> HiveTable:
        """The table over its final location."""
        return self.target(name=name, kind=kind or self.kind, location=self.location)

    def is_ours(self, table: HiveTable | None) -> bool:
        return (
            table is not None
            and table.stamp == self.transaction_id
            and same(table.location, self.location)
            and self.holds(self.location)
        )

    def holds(self, directory: str) -> bool:
        """Whether a directory is this very participant's version."""
        stamp = layout.read_stamp(self.files, directory)
        mine = (self.transaction_id, self.document["ordinal"])
        return stamp is not None and (stamp["transaction_id"], stamp.get("ordinal")) == mine

    def is_staged(self) -> bool:
        return self.holds(self.version) or self.holds(self.location)

    def _was_published(self) -> bool:
        # A later replace has moved our directory aside, with our stamp in it.
        beside = parent(self.version)
        aside = [entry.name for entry in self.files.list(beside, recursive=False) if entry.name.endswith(".old")]
        return super()._was_published() or any(self.holds(join(beside, name)) for name in aside)

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        if not self.holds(self.location):
            self.check_target()
            self.document.setdefault("existed", self.files.exists(self.location))
        super().begin()

    def check_target(self) -> None:
        """Refuse a location that holds somebody else's files."""
        self.hive.check_location(self.path, self.location, self.transaction_id)

    def prepare(self) -> None:
        self.hive.check_free(self.path, self.home, self.transaction_id, self.is_ours)
        self.check_target()
        self.inherit()
        self.set_level(Level.ATOMIC)

    def register(self) -> None:
        """Make the hidden table with its partitions, once the files are where they end."""
        name = self.hidden("table")
        with self.step("register"):
            table = self.final(name=name, kind=EXTERNAL)
            self.make_hidden(name, table)
            if not table.partitioned:
                return
            names = layout.partition_directories(self.files.list(self.location), table.partition_columns)
            found = {key: join(self.location, directory) for key, directory in names.items()}
            self.metastore.add_partitions(table, self.hive.partitions_of(table, found))

    # -- publishing ----------------------------------------------------------------------------------------------

    def commit(self) -> None:
        if self.is_ours(self.current()):
            return
        self.check_staged()
        self.hive.check_free(self.path, self.home, self.transaction_id, self.is_ours)
        self.move_in()
        if self.uses_hidden:
            self.register()
        with self.step("publish"):
            if self.uses_hidden:
                self.metastore.rename_table(self.database, self.hidden("table"), self.path.name, kind=self.kind)
            else:
                self.metastore.create_table(self.final())
        self.tell()

    def move_in(self) -> None:
        """The staged directory becomes the location; an empty one that is there makes room."""
        with self.step("move_in"):
            if self.holds(self.location):
                return
            if self.files.exists(self.location):
                self.files.remove_if_empty(self.location)
            self._move(self.version, self.location)

    def _move(self, source: str, target: str) -> None:
        """Rename a directory, and make that survive a power cut as what is recorded of it does."""
        self.files.move(source, target)
        self.files.persist_names(source, target, below=parent(self.home))

    def undo(self) -> None:
        super().undo()
        self.put_back(keep=False)

    def put_back(self, *, keep: bool) -> None:
        """The reverse of :meth:`move_in`; what is kept is staged again, and can be published again."""
        if self.came_late():
            return
        with self.step("put_back"):
            if self.holds(self.location):
                if keep:
                    self._move(self.location, self.version)
                else:
                    self.files.remove_tree(self.location)
            self.leave_as_it_was()

    def leave_as_it_was(self) -> None:
        """An empty directory that was there is there again; one that a metastore made is gone."""
        if self.document.get("existed"):
            self.files.make_directory(self.location)
        elif "existed" in self.document and self.files.exists(self.location):
            self.files.remove_if_empty(self.location)

    def retire(self) -> None:
        """Nothing was replaced."""

    def finish(self) -> None:
        super().finish()
        self.hive.remove_if_unused(self.version)

    def compensate(self) -> bool:
        if not self.is_ours(self.current()):
            return False
        with self.step("restore"):
            self.metastore.forget_table(self.database, self.path.name)
        self.put_back(keep=True)
        self.tell()
        return True

    def left_behind(self) -> list[str]:
        return [*super().left_behind(), *([self.location] if self.holds(self.location) else [])]


class RenameReplace(NameSwap, RenameCreate):
    """REPLACE at a location: old directory aside, new one in, then the metastore."""

    fences: ClassVar[bool] = True

    @property
    def aside(self) -> str:
        """Where the old directory waits for the end of its readers."""
        return self.version + ".old"

    @property
    def in_place(self) -> bool:
        """Whether the new files take the place of the old ones."""
        return self.before is not None and same(self.before["location"], self.location)

    def check_target(self) -> None:
        if not self.in_place:
            super().check_target()

    def prepare(self) -> None:
        now = self.check_unchanged()
        self.check_target()
        self.inherit()
        if not self.uses_hidden:
            with self.step("register"):
                self.make_hidden(self.hidden("table"), self.final(name=self.hidden("table"), kind=EXTERNAL))
        # The old table keeps its definition only under another name.
        self.say_whether_undone(self.uses_hidden)
        self.set_level(*self.reached(now))

    def reached(self, now: HiveTable) -> tuple[Level, str | None]:
        """The level of this publish, and why it is not 3."""
        if self.in_place or self.uses_hidden or not self.metastore.replace_in_one_step(now, self.hidden("table")):
            return Level.UNDONE, (
                "The files of this table stay at one location: old directory, new directory and metastore change one "
                "after the other."
            )
        return Level.ATOMIC, None

    def commit(self) -> None:
        now = self.current()
        if self.is_ours(now):
            return
        self.check_staged()
        stored_stamp = self.check_unchanged().stored_stamp
        if now is not None and not self.files.exists(self.aside) and not self.holds(self.location):
            self.check_replaced(self.replaced(now))
        self._set_aside()
        self.move_in()
        if self.uses_hidden:
            if self.metastore.get_table(self.database, self.hidden("table")) is None:
                self.register()
            self.swap_names(now, self.kind)
        else:
            with self.step("publish"), self.calling():
                try:
                    self.metastore.replace_table(
                        self.final(), self.hidden("table"), same_files=False, instead_of=stored_stamp
                    )
                except StampChangedError as error:
                    raise self.conflict("another writer published it meanwhile") from error
        self.tell()

    def _set_aside(self) -> None:
        with self.step("set_aside"):
            waits = self.in_place and not self.holds(self.location) and not self.files.exists(self.aside)
            if waits and self.files.exists(self.location):
                self._move(self.location, self.aside)

    def undo(self) -> None:
        self.put_name_back()
        HiveParticipant.undo(self)
        self.put_back(keep=False)

    def stage_again(self) -> None:
        self.put_back(keep=True)

    def leave_as_it_was(self) -> None:
        if self.files.exists(self.aside) and not self.files.exists(self.location):
            self._move(self.aside, self.location)
        elif not self.in_place:
            super().leave_as_it_was()

    def retire(self) -> None:
        if self.files.exists(self.aside):
            layout.retire(self.files, self.aside, self.transaction_id)
        self.forget_aside()
        if not self.in_place:
            HiveParticipant.retire(self)


__all__ = ["RenameCreate", "RenameReplace"]
