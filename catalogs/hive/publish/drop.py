"""Drop a table: one metastore call gives it a hidden name, and what it holds is removed after the publish."""

from __future__ import annotations

from typing import ClassVar

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import join
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.hidden_drop import HiddenDrop
from twophase.catalogs.hive.housekeeping import Housekeeping
from twophase.catalogs.hive.layout import BACKUP
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Replaced
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import WriteConflictError
from twophase.model import Level, Outcome


class DropTable(Publisher):
    """DROP TABLE. The table stays whole under its hidden name until the transaction is complete.

    The hidden name is the record of the publish, and afterwards a mark in the staging directory. Of a table that only
    its transaction has created nothing is there to be dropped; then that mark alone is the publish.
    """

    changes_table: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    result: ClassVar[str] = "it is dropped"

    def __init__(self, write: TableWrite, target: Target | None = None) -> None:
        super().__init__(write, target)
        self._dropped = HiddenDrop(write, BACKUP)

    # -- before the decision -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._check_target()
        self.write.update(can_undo=True)
        self.write.reach(Level.ATOMIC)

    def _check_target(self) -> HiveTable | None:
        now = self.write.current()
        if self.state.before is not None:
            now = self.target.require_unchanged(now)
            self.target.check_replaced(self.target.replaced(now))
            return now
        self.displaced.check(now)
        return None

    def replaced_state(self) -> Replaced:
        if self.state.before is None:
            return self.displaced.replaced_state()
        return self.target.replaced_state(defines=True)

    # -- the publish ---------------------------------------------------------------------------------------------

    def publish(self) -> None:
        if self.was_published():
            return
        now = self._check_target()
        self.check_staged()
        if now is None:
            self.staging.mark_published()
            return
        with self.write.step("publish"), self.write.calls.calling():
            self._hide(now)
        self._require_old(now)
        self._forget()

    def _hide(self, now: HiveTable) -> None:
        self.write.hidden.hide(now.name, BACKUP)

    def _require_old(self, checked: HiveTable) -> None:
        """Give another table its name back, which took that of the checked one just before the call."""
        try:
            self.target.require_unchanged(self._dropped.find())
        except WriteConflictError:
            self._show(checked.name, checked.kind)
            raise

    def _show(self, name: str, kind: str) -> None:
        self.write.hidden.show(BACKUP, name, kind=kind)
        self._forget()

    def _forget(self) -> None:
        self.metastore.changed(self.write.database, self.write.path.name)

    def is_published(self) -> bool:
        return self._dropped.find() is not None or self.is_marked()

    # -- after it ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        if self.outcome() is not Outcome.PUBLISHED:
            return
        self.staging.mark_published()
        self._dropped.remove()
        Housekeeping(self.write.store).free_default_location(self.write.path)
        self._forget()

    def compensate(self) -> bool:
        before = self.state.before
        if before is None:
            self.files.remove_file(join(self.state.version, layout.PUBLISHED_FILE))
            return True
        if self.is_marked():
            return False  # It is complete: its files may be gone.
        if self._dropped.find() is None:
            now = self._found()
            return now is not None and self.target.is_unmoved(now) and now.stamp == before.stamp
        name = self._name_back()
        if name is None:
            return False
        with self.write.step("restore"):
            self._show(name, before.kind)
        return True

    def _found(self) -> HiveTable | None:
        """The table that it drops, while it is not dropped, or what has its name."""
        return self.write.current()

    def _name_back(self) -> str | None:
        """The name that the table gets back; None if it is taken."""
        return None if self.write.current() is not None else self.write.path.name

    # -- a rollback ----------------------------------------------------------------------------------------------

    def fence(self) -> None:
        self._dropped.fence()

    def undo(self) -> None:
        self.target.restore_kind(lambda _: False)
        super().undo()

    def read_source(self) -> ReadSource | None:
        return None
