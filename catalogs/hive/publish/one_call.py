"""The publish of a statement without rows: one conditional metastore call, whose stamp is the record of it."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from twophase.catalogs.files import join
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.stamps import StampChangedError, fenced, is_of_statement, stamp_of_statement
from twophase.catalogs.hive.tables import HiveTable
from twophase.model import Level


class OneCall(Publisher):
    """A change of a table whose files stay where they are.

    Its stamp is the record of the publish, and afterwards a mark in the staging directory, which has no rows.
    """

    changes_table: ClassVar[bool] = True
    fences: ClassVar[bool] = True

    # -- before the decision -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self.checked()
        self.write.update(can_undo=True)
        self.write.reach(Level.ATOMIC)

    @abstractmethod
    def checked(self) -> HiveTable:
        """Check that no other writer has changed what the statement changes, and return the table as just loaded."""

    # -- the publish ---------------------------------------------------------------------------------------------

    def publish(self) -> None:
        if not self.was_published():
            with self.write.step("publish"), self.write.calls.calling():
                try:
                    self._publish()
                except StampChangedError:
                    # Another writer's change, which the next check refuses, or a fence against a third one's call.
                    self._publish_again()
        self.mark_published()

    def _publish_again(self) -> None:
        try:
            self._publish()
        except StampChangedError as error:
            raise self.write.conflict("another writer changed it meanwhile") from error

    def _publish(self) -> None:
        now = self.checked()
        # Checked last: recovery first records that it rolls this back, and then fences the table.
        self.check_staged()
        self.change(now)

    @abstractmethod
    def change(self, now: HiveTable) -> None:
        """Make the call, which fails if the table has another stamp than the one that was just loaded."""

    def mark_published(self) -> None:
        """Record the publish where no other writer replaces it, and announce it."""
        self.staging.mark_published()
        self.announce()

    def announce(self) -> None:
        """Invalidate the session's caches of the table."""
        self.metastore.changed(self.write.database, self.write.path.name)

    @property
    def stamp(self) -> str:
        """The stamp of the changed table."""
        return stamp_of_statement(self.state.transaction_id, self.state.ordinal)

    def is_ours(self, table: HiveTable | None) -> bool:
        """Whether the table has the stamp of this write: its location does not change."""
        if table is None or table.stamp != self.state.transaction_id or not self.target.is_unmoved(table):
            return False
        return is_of_statement(str(table.stored_stamp), self.state.ordinal)

    # -- after it ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        if self.was_published():
            self.mark_published()

    def compensate(self) -> bool:
        if not self.is_changed_back():
            return False
        self.files.remove_file(join(self.state.version, layout.PUBLISHED_FILE))
        self.announce()
        return True

    @abstractmethod
    def is_changed_back(self) -> bool:
        """Change the table back; return False if another writer has changed it since. Idempotent."""

    def is_as_before(self, table: HiveTable | None) -> bool:
        """Whether an interrupted compensation has left the table as it was before."""
        return table is not None and self.target.is_unmoved(table) and table.stamp == self.state.old.stamp

    @property
    def former_stamp(self) -> str | None:
        """The stamp that the table had, so that a delayed call that expects it does not match this one."""
        stamp = self.state.old.stamp
        return stamp if stamp is None or self.metastore.ends_with_driver else fenced(stamp)
