"""Changes of a table's columns by a statement, for the history of its schema: as the database has them."""

from __future__ import annotations

import pyarrow as pa
import sqlalchemy as sa

from twophase.catalog.column_changes import renames_of
from twophase.catalog.schema_versions import SchemaChange, TableSchema
from twophase.catalogs.jdbc import definitions
from twophase.catalogs.jdbc.member import CREATE, DROP, LEAVE, RENAME, Member
from twophase.catalogs.jdbc.staged_changes import statements_of
from twophase.model import WAITING, ObjectPath, TableDefinition
from twophase.schema import assign_ids
from twophase.schema.errors import SchemaError
from twophase.schema.names import fold


def schema_change(member: Member, altered: TableDefinition | None) -> SchemaChange | None:
    """Return the change of a prepared statement; None if it changes rows only, or if its columns are not known.

    Parameters
    ----------
    member : Member
    altered : TableDefinition or None
        The table after an ALTER TABLE.
    """
    if member.effect in (DROP, RENAME, LEAVE):  # By neither name is it the table whose columns are recorded.
        return SchemaChange(None)
    if not (member.swaps or member.brought.names or altered is not None):
        return None
    creates = member.effect == CREATE or member.drops
    with member.begin_transaction(read_only=True) as connection:
        before = None if creates else _schema(member, connection, member.path)
        if altered is not None:
            after: pa.Schema = altered.schema
        else:
            after = _after(member, before, _schema(member, connection, member.place.staging))
    statements = statements_of(member.document) if member.purpose.alters else []
    renames = renames_of(change for changes in statements for change in changes)
    try:
        known = None if before is None else TableSchema(assign_ids(before))
        return SchemaChange(TableSchema(assign_ids(after)), known, creates, renames)
    except SchemaError:
        return None


def _schema(member: Member, connection: sa.Connection, table: ObjectPath) -> pa.Schema:
    database = member.store.database
    columns = [column for column in database.columns(connection, table) if column.name != WAITING]
    return definitions.to_definition(columns, database.comment(connection, table)).schema


def _after(member: Member, old: pa.Schema | None, staged: pa.Schema) -> pa.Schema:
    if old is None or member.swaps:
        return staged
    known = {fold(name) for name in old.names}
    return pa.schema([*old, *(field for field in staged if fold(field.name) not in known)])
