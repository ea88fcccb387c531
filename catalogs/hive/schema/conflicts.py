"""Rows that were staged for other columns than their table has when they are published (Hudi RFC-82).

Staged files are like those that the table already had when the statement began: what Spark's reader makes of these
after an ``ALTER TABLE``, it makes of the staged ones. So they may go into a table that has changed only in that way.
"""

from __future__ import annotations

from dataclasses import replace

from twophase.catalog.schema_versions import OPAQUE, TableSchema, bound
from twophase.catalogs.hive.definitions import same_layout, same_partition_columns, to_table
from twophase.catalogs.hive.schema.columns import DEFAULTS, HELD
from twophase.catalogs.hive.schema.readers import reads
from twophase.catalogs.hive.tables import MANAGED
from twophase.catalogs.hive.write import TableWrite
from twophase.model import TableDefinition
from twophase.schema import Field, Schema
from twophase.transactions import failures


def check_follows(write: TableWrite, before: TableDefinition, now: TableDefinition) -> None:
    """Refuse rows for another table, or for columns that changed in a way that their files cannot follow.

    Parameters
    ----------
    write : TableWrite
    before : TableDefinition
        The table when the rows were staged; it was not published since.
    now : TableDefinition
        The table as it is; both without secrets.

    Raises
    ------
    WriteConflictError
        Other facts than the columns have changed, or Spark would not read the rows by the new ones.
    ConcurrentSchemaEvolutionError
        The strategy refuses them.
    """
    refused = write.conflict("its columns or options were changed meanwhile")
    if not same_layout(replace(now, schema=before.schema), before) or not same_partition_columns(now, before):
        raise refused
    start, present = _columns(write, before), _columns(write, now)
    if start is None or present is None or start.has_ids != present.has_ids:
        raise refused
    there = bound(present, start.schema)
    if not _fit(start.schema, there, now.provider):
        raise refused
    strategy = write.store.settings.strategy
    resolved = strategy.resolve(start.schema, there, start.schema, table=str(write.path)).schema
    if not resolved.same_as(there):
        raise failures.columns_changed(write.path, write.state.transaction_id, ", and the strategy asks for others")


def _columns(write: TableWrite, definition: TableDefinition) -> TableSchema | None:
    """The columns of a table that Spark reads as this session does; None for any other."""
    columns = write.metastore.columns_of(to_table(write.path, definition, kind=MANAGED, location=""))
    return None if columns is None else TableSchema(columns.schema, columns.has_ids)


def _fit(start: Schema, now: Schema, provider: str | None) -> bool:
    """Whether values of the first schema are values of the second."""
    return all(_fits(node, start.get(node.id), provider) for node in now.walk())


def _fits(node: Field, old: Field | None, provider: str | None) -> bool:
    if old is None:
        return node.nullable or HELD + DEFAULTS[1] in dict(node.metadata)
    if old.kind is not node.kind or (old.nullable and not node.nullable):
        return False
    if old.leaf is None or node.leaf is None or old.leaf == node.leaf:
        return dict(old.metadata).get(OPAQUE) == dict(node.metadata).get(OPAQUE)
    return reads(provider, old.leaf, node.leaf)
