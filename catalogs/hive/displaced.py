"""The table that has the name of a write, and that the same transaction drops, or gives another name.

No metastore exchanges names in one call. The two publishes follow each other in either order: a table whose own rename
has not come yet makes way to a hidden name, where that rename finds it; one whose rename was undone first waits there
until the name is free again. A dropped table makes way, too, and is removed when the transaction is complete.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from twophase.catalogs.hive.hidden import HiddenTables
from twophase.catalogs.hive.hidden_drop import HiddenDrop
from twophase.catalogs.hive.layout import BACKUP, DROPPED
from twophase.catalogs.hive.replaced import Nothing, Replaced
from twophase.catalogs.hive.stamps import StampChangedError, fenced
from twophase.catalogs.hive.state import DROP, LEAVE, Before, Displaced
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import CatalogError, TableAlreadyExistsError, TableNotExistError, WriteConflictError
from twophase.model import Level

_IN_TWO_CALLS = (
    "The table that had this name gets another one in a metastore call of its own, and a reader between the calls "
    "finds no table of one of the names."
)
_AFTER_A_DROP = (
    "The table that had this name is dropped in a metastore call of its own, just before, and a reader between the "
    "calls finds no table of this name."
)


def waiting_place(write: TableWrite, renamed_by: int) -> HiddenTables:
    """Return the hidden tables of a write, of which the backup is a renamed table that waits for its name.

    Parameters
    ----------
    write : TableWrite
        Any write of the transaction in the same database.
    renamed_by : int
        Ordinal of the statement that has first renamed the table.
    """
    return HiddenTables(write.store, write.database, write.state.transaction_id, renamed_by)


class DisplacedTable:
    """The table that has the name of a write until the publish; most writes have none, and then nothing is done."""

    #: Role of the hidden table, and why the publish is not atomic.
    _role: ClassVar[str] = BACKUP
    _reason: ClassVar[str] = _IN_TWO_CALLS

    def __init__(self, write: TableWrite) -> None:
        self._write = write

    @property
    def _state(self) -> Displaced | None:
        return self._write.state.displaces

    def __bool__(self) -> bool:
        return self._state is not None

    @property
    def _before(self) -> Before:
        assert self._state is not None
        return self._state.before

    @cached_property
    def _target(self) -> Target:
        return Target(self._of_table)

    @cached_property
    def _of_table(self) -> TableWrite:
        """The write as one of the displaced table."""
        write = self._write
        state = replace(write.state, before=self._before, effect=LEAVE, appends=False, brings=False, alters=False)
        return TableWrite(write.store, state)

    @property
    def _hidden(self) -> HiddenTables:
        assert self._state is not None
        assert self._state.renamed_by is not None
        return waiting_place(self._write, self._state.renamed_by)

    @property
    def level(self) -> tuple[Level, str | None]:
        """The level of a publish in one call that takes the name, and why it is not atomic."""
        return (Level.REVERSIBLE, self._reason) if self else (Level.ATOMIC, None)

    def check(self, now: HiveTable | None) -> None:
        """Check that no other writer has taken the name, or changed its table; it may have left the name already.

        Raises
        ------
        WriteConflictError
        """
        if now is None:
            return
        if not self:
            raise self._write.conflict("another writer created it meanwhile")
        self._target.require_unchanged(now)

    def replaced_state(self) -> Replaced:
        """The state that readers of former states find by the name, after :meth:`check`."""
        return self._target.replaced_state(defines=True) if self else Nothing()

    def make_way(self) -> None:
        """Free the name, if its table still has it.

        Raises
        ------
        WriteConflictError
            Another writer has changed the table.
        """
        now = self._write.current() if self else None
        if now is None:
            return
        self.check(now)
        with self._write.step("back_up_name"):
            try:
                self._hidden.hide(self._write.path.name, self._role, instead_of=now.expected_stamp)
            except (StampChangedError, TableNotExistError, TableAlreadyExistsError) as error:
                raise self._write.conflict("another writer changed it meanwhile") from error

    @property
    def may_come_back(self) -> bool:
        """Whether :meth:`restore` gives the table its name back, once that is free."""
        return True

    def restore(self) -> None:
        """Give the table its name back, if it has made way. Idempotent.

        Raises
        ------
        CatalogError
            Another writer has taken the name.
        """
        waiting = self._hidden.find_backup(self._role) if self else None
        if waiting is None:
            return
        write, before = self._write, self._before
        if write.current() is not None:
            raise CatalogError(
                f"{write.path} does not get its former table back: another writer has created a table of this name "
                f"meanwhile. The former one is whole, under the name {waiting.name}.",
                path=write.path,
                transaction_id=write.state.transaction_id,
                hint=f"Rename or drop the new {write.path}, and run twophase recover.",
            )
        is_fenced = before.stamp is not None and not write.metastore.ends_with_driver
        stamp = fenced(str(before.stamp)) if is_fenced else None
        with write.step("restore"):
            write.metastore.rename_table(write.database, waiting.name, write.path.name, kind=before.kind, stamp=stamp)
        write.metastore.changed(write.database, write.path.name)

    def fence(self) -> None:
        """Make a dead driver's delayed call fail that would let the table make way."""
        if self and self._before.stamp is not None:
            self._write.metastore.fence_table(self._write.database, self._write.path.name, self._before.stamp)

    def finish(self) -> None:
        """Remove it, if the transaction drops it. Idempotent."""


class DroppedTable(DisplacedTable):
    """The same, of a table that the transaction drops."""

    _role: ClassVar[str] = DROPPED
    _reason: ClassVar[str] = _AFTER_A_DROP

    @cached_property
    def _of_table(self) -> TableWrite:
        write, displaced = self._write, self._state
        assert displaced is not None
        state = replace(write.state, before=displaced.before, effect=DROP, first_version=displaced.first_version)
        return TableWrite(write.store, state)

    @property
    def _hidden(self) -> HiddenTables:
        return self._of_table.hidden

    @cached_property
    def _dropped(self) -> HiddenDrop:
        return HiddenDrop(self._of_table, self._role)

    def check(self, now: HiveTable | None) -> None:
        found = self._target.require_unchanged(self._dropped.find() if now is None else now)
        self._target.check_replaced(self._target.replaced(found))

    def make_way(self) -> None:
        super().make_way()
        try:
            self._target.require_unchanged(self._dropped.find())
        except WriteConflictError:
            self.restore()  # Another table took its name just before the call.
            raise

    @property
    def may_come_back(self) -> bool:
        return self._dropped.find() is not None

    def restore(self) -> None:
        super().restore()
        self._target.restore_kind(lambda _: False)

    def fence(self) -> None:
        self._dropped.fence()

    def finish(self) -> None:
        self._dropped.remove()


def displaced_by(write: TableWrite) -> DisplacedTable:
    """Return the table that has the name of a write until the publish."""
    displaced = write.state.displaces
    return DisplacedTable(write) if displaced is None or displaced.renamed_by is not None else DroppedTable(write)
