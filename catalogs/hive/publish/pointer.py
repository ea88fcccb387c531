"""Switch the pointer: one metastore call moves a table's location to the new version."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from twophase.catalogs.hive import layout
from twophase.catalogs.hive.definitions import columns, is_redacted, to_table
from twophase.catalogs.hive.publish.new_columns import former_columns
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Replaced
from twophase.catalogs.hive.stamps import STAMP, StampChangedError, fenced
from twophase.catalogs.hive.state import INSERT, Before, PointerState
from twophase.catalogs.hive.tables import EXTERNAL, HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.model import Level


def _accept_any(now: HiveTable) -> None:
    """Accept any table."""


class SwitchPointer(Publisher):
    """REPLACE, or INSERT OVERWRITE, of a whole unpartitioned table.

    Parameters
    ----------
    write : TableWrite
    accept : callable, optional
        Raises an error for a loaded table that the version is not based on.
    tracked : bool
        Whether the metastore is to list the partitions of the published table.
    """

    changes_table: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    carries_columns: ClassVar[bool] = True
    #: The table as planned, for the first attempt to publish: the call refuses another one.
    _planned: HiveTable | None = None

    def __init__(
        self, write: TableWrite, *, accept: Callable[[HiveTable], None] = _accept_any, tracked: bool = True
    ) -> None:
        super().__init__(write)
        self._accept = accept
        self._tracked = tracked

    @property
    def _inserts(self) -> bool:
        return self.state.effect == INSERT

    def prepare(self) -> None:
        # The publish looks again, and can still refuse: of a single statement nothing else has been published then.
        is_alone = self._inserts and self.state.autocommit
        now = None if is_alone else self.target.check_unchanged()
        can_be_as_read = is_alone and not self.state.brings and self.metastore.points_as_read
        self._planned = self.write.planned if can_be_as_read else None
        self.staging.inherit()
        if self._inserts:
            self.write.update_own(holds=self.staging.files())
        else:
            self.make_template()
        self.write.update(can_undo=self._inserts or not is_redacted(self.state.old.definition))
        self.write.reach(*self._reached(now))

    def replaced_state(self) -> Replaced:
        return self.target.replaced_state(defines=not self._inserts or self.state.brings)

    def make_template(self) -> None:
        """Create a hidden table with the new definition, as more than location and stamp change."""
        table = self.write.table(name=self.write.hidden.name("table"), kind=EXTERNAL)
        with self.write.step("register"):
            self.write.hidden.make("table", replace(table, tracked=self._tracked))

    def _reached(self, now: HiveTable | None) -> tuple[Level, str | None]:
        """The level of this publish, and the reason if it is not the highest."""
        if now is None or self._inserts or self.metastore.replace_in_one_step(now, self.write.hidden.name("table")):
            return Level.ATOMIC, None
        if not self.metastore.replaces_tables:
            return Level.REVERSIBLE, "The rows change in one statement of SQL; properties and comment follow in others."
        return Level.REVERSIBLE, (
            "The metastore refuses to change column types in one call: for a moment other engines than Spark see the "
            "table without its columns."
        )

    def publish(self) -> None:
        planned, self._planned = self._planned, None
        found = planned or self.write.current()
        if self.is_ours(found):
            self.complete()
        else:
            self.switch(found, as_read=planned is not None)

    def switch(self, found: HiveTable | None, *, as_read: bool = False) -> None:
        """Point the table at the version.

        Parameters
        ----------
        found : HiveTable or None
            The table as just loaded.
        as_read : bool
            Whether it was loaded before, and must still be the same.
        """
        now, seen = self._ready(found), None
        with self.write.step("publish"), self.write.calls.calling():
            if as_read:
                seen = self.metastore.point_as_read(*self._pointed(now))
            if seen is None:
                self._point_fenced(None if as_read else now)
        self.write.announce(counted=False, seen=seen)  # Statistics were dropped with the old location.

    def _point_fenced(self, now: HiveTable | None) -> None:
        """Point the table; look at it once more if it is not as it was just loaded, or was not loaded."""
        try:
            if now is not None:
                with contextlib.suppress(StampChangedError):
                    # Or another writer's publish, which the check refuses, or a fence against a third one's call.
                    return self._point(now)
            self._point(self._ready(self.write.current()))
        except StampChangedError as error:
            raise self.write.conflict("another writer published it meanwhile") from error

    def _ready(self, found: HiveTable | None) -> HiveTable:
        """Check the table to be switched, as just loaded, and return it."""
        now = self.target.require_unchanged(found)
        self.target.check_inherited()
        self.target.check_replaced(self.target.replaced(now))
        # Checked last: recovery first records that it rolls this back, and then fences the table.
        self.check_staged()
        self._accept(now)
        return now

    def _point(self, now: HiveTable) -> None:
        """Make the publish call."""
        if self._inserts:
            brings = self.state.brings
            self.metastore.point_table(*self._pointed(now), instead_of=now.expected_stamp, redefined=brings)
        else:
            name = self.write.hidden.name("table")
            self.metastore.replace_table(self._replacement(), name, instead_of=now.expected_stamp)

    def _pointed(self, now: HiveTable) -> tuple[HiveTable, int, int]:
        """The table as the call leaves it, and number and size of its files."""
        wanted = replace(now, location=self.state.version).with_stamp(self.state.transaction_id)
        if self.state.brings:  # A reader sees the columns and their rows in the same step.
            wanted = replace(wanted, schema=self.state.definition.schema)
        files, size = self.state.of(PointerState).holds or self.staging.files()
        return wanted, files, size

    def _replacement(self) -> HiveTable:
        return replace(self.write.table(), tracked=self._tracked)

    def finish(self) -> None:
        self.complete()
        super().finish()

    def complete(self) -> None:
        """Set the columns, which a crash between the two calls may have left out."""
        if self._inserts or self.state.level in (Level.ATOMIC, None):
            return
        if self.is_ours(self.write.current()) and self.write.hidden.find("table") is not None:
            with self.write.step("publish"):
                self.metastore.replace_table(self._replacement(), self.write.hidden.name("table"))

    def compensate(self) -> bool:
        now, before = self.write.current(), self.state.before
        if now is None or before is None or not self.is_ours(now) or not self.files.exists(before.location):
            return False
        with self.write.step("restore"):
            if not self._restore(now, before):
                return False
            self.superseded.unmark(before.location)
        self.write.announce(counted=False)
        return True

    def _restore(self, now: HiveTable, before: Before) -> bool:
        """Point the table back at its old state."""
        if self.state.brings:
            if columns(now.schema) != columns(self.state.definition.schema):
                return False  # Another writer has changed them since.
            restored = replace(now, location=before.location, schema=former_columns(self.write, now))
            self.metastore.point_table(self._restored(restored), 0, 0, instead_of=now.expected_stamp, redefined=True)
            return True
        if self._inserts:
            self.metastore.alter_table(self._restored(replace(now, location=before.location, kind=before.kind)))
            return True
        return self._restore_definition(before)

    def _restored(self, table: HiveTable) -> HiveTable:
        """The table with its previous stamp."""
        properties = {k: v for k, v in table.properties.items() if k != STAMP}
        stamp = self.state.old.stamp
        if stamp is None:
            return replace(table, properties=properties)
        # A delayed call that expects the old stamp must not match this one.
        stored = stamp if self.metastore.ends_with_driver else fenced(stamp)
        return replace(table, properties={**properties, STAMP: stored})

    def _restore_definition(self, before: Before) -> bool:
        if is_redacted(before.definition):
            return False  # Its secrets are lost: the definition cannot be restored.
        name = self.write.hidden.name(layout.BEFORE)  # Not "table": that one may be published again.
        wanted = to_table(self.write.path, before.definition, kind=before.kind, location=before.location)
        template = replace(wanted, name=name, kind=EXTERNAL).with_stamp(self.state.transaction_id)
        self.write.hidden.make(layout.BEFORE, template)
        self.metastore.replace_table(wanted, name)
        now = self.write.current()
        assert now is not None
        self.metastore.alter_table(self._restored(now))
        self.write.hidden.drop(layout.BEFORE)
        return True
