"""Switch the pointer: one metastore call moves a table's location to the new version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

from twophase.catalogs.files import same
from twophase.catalogs.hive import layout, linking
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
        now = None if self._inserts and self.state.autocommit else self.target.check_unchanged()
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
        found = self.write.current()
        if self.is_ours(found):
            self.complete()
        else:
            self.switch(found)

    def switch(self, found: HiveTable | None) -> None:
        """Point the table, as just loaded, at the version."""
        now = self._ready(found)
        with self.write.step("publish"), self.write.calls.calling():
            try:
                self._point(now)
            except StampChangedError:
                # Another writer's publish, which the next check refuses, or a fence against a third one's call.
                self._point_fenced()
        self.write.announce(counted=False)  # Statistics were dropped with the old location.

    def _point_fenced(self) -> None:
        try:
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
            wanted = replace(now, location=self.state.version).with_stamp(self.state.transaction_id)
            files, size = self.state.of(PointerState).holds or self.staging.files()
            brings = self.state.brings
            if brings:  # A reader sees the columns and their rows in the same step.
                wanted = replace(wanted, schema=self.state.definition.schema)
            self.metastore.point_table(wanted, files, size, instead_of=now.expected_stamp, redefined=brings)
        else:
            name = self.write.hidden.name("table")
            self.metastore.replace_table(self._replacement(), name, instead_of=now.expected_stamp)

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
        return now.stamp == state.old.stamp and linking.is_marked(self.files, str(now.location), state.inherit_mark)

    def _base_on(self, now: HiveTable) -> None:
        location, version = str(now.location), self.state.version
        with self.write.step("link"):
            linking.note_own_rows(self.files, version)
            linking.take_links_out(self.files, version)
            self.write.update(inherit=location, inherit_mark=self.files.fingerprint(location))
            if self.state.of(PointerState).flattens:
                linking.link_flat(self.files, location, version, self.state.transaction_id)
            else:
                linking.link_tree(self.files, location, version, linking.keep_all, self.state.transaction_id)
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
