"""Alter a table: one conditional metastore call gives it the new definition; no file is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import join
from twophase.catalogs.hive import evolution, layout
from twophase.catalogs.hive.definitions import FIELD_IDS, redacted, same_layout, to_definition
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.replaced import Defined, Replaced
from twophase.catalogs.hive.snapshots import SnapshotRead, read_format
from twophase.catalogs.hive.stamps import STAMP, StampChangedError, fenced, is_of_statement, stamp_of_statement
from twophase.catalogs.hive.state import WriteState
from twophase.catalogs.hive.tables import HiveTable
from twophase.model import Level, TableDefinition


class AlterTable(Publisher):
    """ALTER TABLE of an existing table.

    Its stamp is the record of the publish, and afterwards a mark in the staging directory, which has no rows. Rows that
    others have added since the statement stay: by the rules of evolution every old file is read right.
    """

    changes_table: ClassVar[bool] = True
    fences: ClassVar[bool] = True
    result: ClassVar[str] = "it is altered"

    _source: ReadSource | None = None

    # -- before the decision -------------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._checked(self.write.current())
        self.write.update(can_undo=True)
        self.write.reach(Level.ATOMIC)

    def _checked(self, found: HiveTable | None) -> HiveTable:
        """Check that no other writer has changed what the statement changes, and return the table as just loaded."""
        now, before = self.target.require_unchanged(found), self.state.old.definition
        changed, wanted = property_changes(self.state), self.state.definition
        if not _same_columns(wanted, before) and not now.schema.equals(before.schema, check_metadata=True):
            raise self.write.conflict("its columns were changed meanwhile")
        if any(now.properties.get(key) != before.properties.get(key) for key in changed):
            raise self.write.conflict("its properties were changed meanwhile")
        if wanted.comment != before.comment and (now.comment or "") != (before.comment or ""):
            raise self.write.conflict("its comment was changed meanwhile")
        if FIELD_IDS in changed and not evolution.is_empty(self.write.store, now):
            raise self.write.conflict("another writer added rows, whose files have no field ids")
        return now

    def replaced_state(self) -> Replaced:
        old = self.state.old
        return Defined(old.location, old.stamp, old.definition)

    # -- the publish ---------------------------------------------------------------------------------------------

    def publish(self) -> None:
        if not self.was_published():
            self._publish()
        self.staging.mark_published()
        self.metastore.changed(self.write.database, self.write.path.name)

    def _publish(self) -> None:
        with self.write.step("publish"), self.write.calls.calling():
            try:
                self._redefine()
            except StampChangedError:
                # Another writer's change, which the next check refuses, or a fence against a third one's call.
                self._redefine_again()

    def _redefine_again(self) -> None:
        try:
            self._redefine()
        except StampChangedError as error:
            raise self.write.conflict("another writer changed it meanwhile") from error

    def _redefine(self) -> None:
        now = self._checked(self.write.current())
        # Checked last: recovery first records that it rolls this back, and then fences the table.
        self.check_staged()
        wanted = _redefined(now, self.state.old.definition, self.state.definition, property_changes(self.state))
        self.metastore.alter_definition(wanted.with_stamp(self._stamp))

    @property
    def _stamp(self) -> str:
        return stamp_of_statement(self.state.transaction_id, self.state.ordinal)

    def is_ours(self, table: HiveTable | None) -> bool:
        """Whether the table has the stamp of this write: its location does not change."""
        if table is None or table.stamp != self.state.transaction_id or not self.target.is_unmoved(table):
            return False
        return is_of_statement(str(table.stored_stamp), self.state.ordinal)

    # -- after it ------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        if not self.was_published():
            return
        self.staging.mark_published()
        self.metastore.changed(self.write.database, self.write.path.name)

    def compensate(self) -> bool:
        now = self.write.current()
        if now is None:
            return False
        if self.is_ours(now):
            if not self._has(now, self.state.definition):
                return False
            with self.write.step("restore"):
                self.metastore.alter_definition(self._restored(now))
        elif not (self.target.is_unmoved(now) and now.stamp == self.state.old.stamp):
            return False  # Unless that is what an interrupted compensation has left.
        self.files.remove_file(join(self.state.version, layout.PUBLISHED_FILE))
        self.metastore.changed(self.write.database, self.write.path.name)
        return True

    def _has(self, now: HiveTable, definition: TableDefinition) -> bool:
        conf = self.write.store.conf
        return same_layout(redacted(to_definition(now), conf), redacted(definition, conf))

    def _restored(self, now: HiveTable) -> HiveTable:
        """The table with its former definition, and its former stamp."""
        before, stamp = self.state.old.definition, self.state.old.stamp
        former = {key: before.properties.get(key) for key in property_changes(self.state)}
        if stamp is not None and not self.metastore.ends_with_driver:
            stamp = fenced(stamp)  # A delayed call that expects the old stamp must not match this one.
        return _redefined(now, self.state.definition, before, {**former, STAMP: stamp})

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        """The files that the table has, read by the new definition. Listed once: others may add some later."""
        if self._source is None:
            definition = self.write.definition
            provider = read_format(definition, self.write.store.conf)
            if provider is None:
                return None
            state = SnapshotRead(self.write.store, self.write.path, []).state()
            self._source = replace(state, definition=definition).source(provider)
        return self._source


def _redefined(
    now: HiveTable, before: TableDefinition, after: TableDefinition, properties: Mapping[str, str | None]
) -> HiveTable:
    """A table with what differs between two definitions, and with other properties."""
    return replace(
        now,
        schema=now.schema if _same_columns(before, after) else after.schema,
        properties=with_properties(now.properties, properties),
        comment=now.comment if before.comment == after.comment else after.comment,
    )


def _same_columns(one: TableDefinition, other: TableDefinition) -> bool:
    return one.schema.equals(other.schema, check_metadata=True)


def property_changes(state: WriteState) -> dict[str, str | None]:
    """Return the properties that an ALTER TABLE sets, and with None those that it removes.

    Parameters
    ----------
    state : WriteState
    """
    before, after = state.old.definition.properties, state.definition.properties
    return {key: after.get(key) for key in {*before, *after} if before.get(key) != after.get(key)}


def with_properties(properties: Mapping[str, str], changed: Mapping[str, str | None]) -> dict[str, str]:
    """Return properties after some changes of them.

    Parameters
    ----------
    properties : mapping of str to str
    changed : mapping of str to str or None
        None for those that are removed.
    """
    kept = {key: value for key, value in properties.items() if key not in changed}
    return {**kept, **{key: value for key, value in changed.items() if value is not None}}
