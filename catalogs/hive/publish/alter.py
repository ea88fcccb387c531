"""Alter a table: one conditional metastore call gives it the new definition; no file is touched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from twophase.catalog.reading import ReadSource
from twophase.catalogs.hive.definitions import FIELD_IDS, redacted, same_layout, to_definition
from twophase.catalogs.hive.publish.one_call import OneCall
from twophase.catalogs.hive.replaced import Defined, Replaced
from twophase.catalogs.hive.schema import evolution
from twophase.catalogs.hive.snapshots import SnapshotRead, read_format
from twophase.catalogs.hive.stamps import STAMP
from twophase.catalogs.hive.state import WriteState
from twophase.catalogs.hive.tables import HiveTable
from twophase.model import TableDefinition


class AlterTable(OneCall):
    """ALTER TABLE of an existing table.

    Rows that others have added since the statement stay: by the rules of evolution every old file is read right.
    """

    result: ClassVar[str] = "it is altered"

    _source: ReadSource | None = None

    def checked(self) -> HiveTable:
        now, before = self.target.require_unchanged(self.write.current()), self.state.old.definition
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

    def change(self, now: HiveTable) -> None:
        wanted = _redefined(now, self.state.old.definition, self.state.definition, property_changes(self.state))
        self.metastore.alter_definition(wanted.with_stamp(self.stamp))

    def is_changed_back(self) -> bool:
        now = self.write.current()
        if now is None or not self.is_ours(now):
            return self.is_as_before(now)
        if not self._has(now, self.state.definition):
            return False
        with self.write.step("restore"):
            self.metastore.alter_definition(self._restored(now))
        return True

    def _has(self, now: HiveTable, definition: TableDefinition) -> bool:
        conf = self.write.store.conf
        return same_layout(redacted(to_definition(now), conf), redacted(definition, conf))

    def _restored(self, now: HiveTable) -> HiveTable:
        """The table with its former definition, and its former stamp."""
        before = self.state.old.definition
        former = {key: before.properties.get(key) for key in property_changes(self.state)}
        return _redefined(now, self.state.definition, before, {**former, STAMP: self.former_stamp})

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
    """Return the properties that an ALTER TABLE sets, and with None those that it removes."""
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
