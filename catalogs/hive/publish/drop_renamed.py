"""Drop a table by a name that only its transaction gives to it: until the publish it has its former one."""

from __future__ import annotations

from twophase.catalogs.hive.housekeeping import Housekeeping
from twophase.catalogs.hive.publish.drop import DropTable
from twophase.catalogs.hive.publish.renamed_table import RenamedTable
from twophase.catalogs.hive.replaced import Replaced
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.write import TableWrite


class DropRenamed(DropTable):
    """DROP TABLE of a renamed table. It publishes for all of its names, as a rename does."""

    def __init__(self, write: TableWrite) -> None:
        self._renamed = RenamedTable(write)
        super().__init__(write, self._renamed.target)

    def prepare(self) -> None:
        super().prepare()
        self.write.reach(*self.displaced.level)

    def _check_target(self) -> HiveTable | None:
        self.displaced.check(self.write.current())
        return self._renamed.checked()

    def replaced_state(self) -> Replaced:
        return self.displaced.replaced_state()

    def _hide(self, now: HiveTable) -> None:
        self.displaced.make_way()
        super()._hide(now)

    def _forget(self) -> None:
        for path in (self._renamed.path, self.write.path):
            self.metastore.changed(path.database, path.name)

    def finish(self) -> None:
        super().finish()
        if self.is_marked():
            self.displaced.finish()
            Housekeeping(self.write.store).free_default_location(self._renamed.path)

    def compensate(self) -> bool:
        if not super().compensate():
            return False
        self.displaced.restore()
        return True

    def _found(self) -> HiveTable | None:
        return self._renamed.find()

    def _name_back(self) -> str | None:
        return self._renamed.name_back()

    def fence(self) -> None:
        super().fence()
        self.displaced.fence()

    def undo(self) -> None:
        self.displaced.restore()
        super().undo()
