"""Add the columns that rows bring, just before the rows, where no metastore call can do both.

The table is marked with the transaction in the same call, so that a rollback removes exactly its own columns. No other
write of the timeline is published in between, as the whole table is reserved. A reader may see the columns without the
rows for a moment, never the rows without the columns.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalog.spark_columns import spark_field
from twophase.catalogs.files import data_files, join
from twophase.catalogs.hive.definitions import columns
from twophase.catalogs.hive.dropping import before_of
from twophase.catalogs.hive.layout import MANIFEST_FILE
from twophase.catalogs.hive.stamps import BROUGHT, StampChangedError
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.redaction import logger

_log = logger("twophase")


class NewColumns:
    """The new columns and wider types of one write."""

    def __init__(self, write: TableWrite) -> None:
        self._write = write

    def join(self) -> None:
        """Bring nothing if another writer has brought the very same meanwhile: RFC-82's row 7. Idempotent.

        Not if the write replaces rows, by any of its statements: it would remove those of the other writer.
        """
        write, state, now = self._write, self._write.state, self._write.current()
        if now is None or state.replaces or BROUGHT in now.properties:
            return
        found = _facts(now.schema)
        if found != _facts(state.old.definition.schema) and found == _facts(state.definition.schema):
            write.update(brings=False, before=before_of(write.store, now))

    def add(self) -> None:
        """Give the table its new columns. Idempotent.

        Raises
        ------
        WriteConflictError
            Another writer has changed the table.
        """
        now = Target(self._write, new_roots=True).check_unchanged()
        if self._is_marked(now):
            return
        marked = {**now.properties, BROUGHT: self._write.state.transaction_id}
        with self._write.step("columns"), self._write.calls.calling():
            try:
                self._alter(replace(now, schema=self._write.state.definition.schema, properties=marked))
            except StampChangedError as error:
                raise self._write.conflict("another writer published it meanwhile") from error

    def take_back(self, *, late: bool) -> None:
        """Give the table its old columns, unless it has others by now, or rows of others may have them. Idempotent.

        Parameters
        ----------
        late : bool
            Whether a call of a dead driver may still arrive.
        """
        if late:
            self._fence()
        self._unmark(takes_back=True)

    def finish(self) -> None:
        """Remove the mark. Idempotent."""
        self._unmark(takes_back=False)

    def _unmark(self, *, takes_back: bool) -> None:
        try:
            self._try_to_unmark(takes_back=takes_back)
        except StampChangedError:
            try:
                self._try_to_unmark(takes_back=takes_back)
            except StampChangedError as error:
                raise self._write.conflict("other writers changed it, twice") from error

    def _try_to_unmark(self, *, takes_back: bool) -> None:
        now = self._write.current()
        if now is None or not self._is_marked(now):
            return
        schema, state = now.schema, self._write.state
        if takes_back and columns(schema) == columns(state.definition.schema) and not self._may_be_used(now):
            schema = former_columns(self._write, now)
        properties = {key: value for key, value in now.properties.items() if key != BROUGHT}
        with self._write.step("columns"):
            self._alter(replace(now, schema=schema, properties=properties))

    def _may_be_used(self, table: HiveTable) -> bool:
        """Whether files have come since the last prepare: programs outside twophase may have written the columns."""
        files = self._write.files
        store, manifest = files.find(join(self._write.state.version, MANIFEST_FILE))
        plan = store.status(manifest)
        places = [str(table.location)]
        if table.partitioned:
            places = [part.location for part in self._write.metastore.list_partitions(table)]
        found = (entry for place in places for entry in data_files(files.list(place)))
        if plan is not None and all(entry.modified < plan.modified for entry in found):
            return False
        _log.warning(
            "%s keeps the columns that transaction %s, now rolled back, has brought: others have added files since.",
            self._write.path,
            self._write.state.transaction_id,
        )
        return True

    def _alter(self, table: HiveTable) -> None:
        self._write.metastore.alter_definition(table)
        self._write.metastore.changed(self._write.database, self._write.path.name)

    def _fence(self) -> None:
        """Make a dead driver's delayed call fail, which expects the stamp."""
        stamp = self._write.state.old.stamp
        if stamp is not None:
            self._write.metastore.fence_table(self._write.database, self._write.path.name, stamp)

    def _is_marked(self, table: HiveTable) -> bool:
        return table.properties.get(BROUGHT) == self._write.state.transaction_id


def _facts(schema: pa.Schema) -> list[tuple[Any, ...]]:
    """All that is known of columns: types, ids, defaults, comments, former names."""
    return [(field.name, str(field.type), spark_field(field)) for field in schema]


def former_columns(write: TableWrite, now: HiveTable) -> pa.Schema:
    """Return the columns that a table had before those of a write; no later column gets an id of these.

    Parameters
    ----------
    write : TableWrite
    now : HiveTable
        With the columns of the write.
    """
    before = write.state.old.definition.schema
    old, brought = (write.metastore.columns_of(replace(now, schema=schema)) for schema in (before, now.schema))
    if old is None or brought is None or not old.has_ids:
        return before
    kept = replace(old.schema, highest_field_id=brought.schema.highest_field_id)
    return write.metastore.with_columns(now, replace(old, schema=kept)).schema
