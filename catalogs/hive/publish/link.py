"""Link files: a new version holds the new files and links to all others, and the pointer moves to it.

For an INSERT INTO an unpartitioned table with several files where one rename cannot publish them; see :mod:`.by_rows`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from twophase.catalogs.files import same
from twophase.catalogs.hive import hard_links
from twophase.catalogs.hive.publish.pointer import SwitchPointer
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Replaced
from twophase.catalogs.hive.state import PointerState
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.model import Level


class LinkFiles(Publisher):
    """INSERT INTO an unpartitioned table by a new version, into which all existing files are hard-linked.

    It is based on what others have published before its last prepare. After that no other append may be published: a
    file that is renamed into the old version would be missing in the new one.
    """

    changes_table: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    carries_columns: ClassVar[bool] = True

    def __init__(self, write: TableWrite) -> None:
        super().__init__(write)
        self._pointer = SwitchPointer(write, accept=self._check_still_based)

    def prepare(self) -> None:
        now = self.target.check_unchanged()
        if not self._is_based_on(now):
            self._base_on(now)
        self.write.update_own(holds=self.staging.files())
        self.write.update(can_undo=True)
        self.write.reach(Level.ATOMIC)

    def _is_based_on(self, now: HiveTable) -> bool:
        state = self.state
        if state.inherit_mark is None or not same(now.location, state.inherit):
            return False
        return now.stamp == state.old.stamp and hard_links.is_marked(self.files, str(now.location), state.inherit_mark)

    def _base_on(self, now: HiveTable) -> None:
        location, version = str(now.location), self.state.version
        with self.write.step("link"):
            hard_links.note_own_rows(self.files, version)
            hard_links.take_links_out(self.files, version)
            self.write.update(inherit=location, inherit_mark=self.files.fingerprint(location))
            if self.state.of(PointerState).flattens:
                hard_links.link_flat(self.files, location, version, self.state.transaction_id)
            else:
                hard_links.link_tree(self.files, location, version, hard_links.keep_all, self.state.transaction_id)
        # The table that this is based on is restored by a compensation, and superseded by the publish.
        self.write.update(before=replace(self.state.old, location=location, stamp=now.stamp))

    def _check_still_based(self, now: HiveTable) -> None:
        if now.stamp != self.state.old.stamp or not self.target.is_unmoved(now):
            raise self.write.conflict("another writer published it meanwhile")

    def replaced_state(self) -> Replaced:
        return self.target.replaced_state(defines=self.state.brings)

    def publish(self) -> None:
        self._pointer.publish()

    def compensate(self) -> bool:
        return self._pointer.compensate()
