"""ALTER TABLE as a statement of a transaction: an append without rows, whose schema and properties are others.

Its publish resolves the schema by RFC-82, as that of every append. The statements that build on it write by the new
schema; the rows that the transaction has staged before keep their files, as Iceberg reads columns by their ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.sorting import SortOrder

from twophase.catalog import TableChange
from twophase.catalog.column_changes import OF_PARTITIONING
from twophase.catalogs.lakehouse import alterations, definitions
from twophase.catalogs.lakehouse.changes import Changes
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.planning import Document, plan_write
from twophase.catalogs.lakehouse.schema_on_write import keyed
from twophase.catalogs.lakehouse.snapshots import iceberg_document
from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.schema import apply_changes, from_iceberg, to_iceberg


def plan_alter(
    lakehouse: Lakehouse, path: ObjectPath, changes: Sequence[TableChange], context: WriteContext, since: float
) -> Document:
    """Return the document of a participant that alters a table.

    Raises
    ------
    TableNotExistError
        The table does not exist, and the transaction has not created it.
    CatalogError, SchemaError
        A change is not possible.
    """
    of_layout = "sort order" if alterations.of_sort_order(changes) else None
    if of_layout or any(change.kind in OF_PARTITIONING for change in changes):
        # The files that the transaction has written before are laid out by the former one.
        raise AtomicityNotSupportedError(
            f"The {of_layout or 'partitioning'} of {path} cannot be changed in a transaction; nothing was started.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Change it before the transaction.",
        )
    document = plan_write(lakehouse, path, TableDefinition(pa.schema([])), Purpose.ALTER_TABLE, context, since)
    wanted = alterations.of_properties(path, changes)
    kept = {key: value for key, value in document["properties"].items() if key not in wanted}
    return {
        **document,
        "properties": {**kept, **{key: value for key, value in wanted.items() if value is not None}},
        "property_changes": {**document.get("property_changes", {}), **wanted},
        # Rows are added to any partition, and none are replaced: no other may publish to the table meanwhile.
        "changes": Changes(written=None).to_document(),
        **_columns(path, document, changes, context),
    }


def _has_written(base: Mapping[str, Any] | None) -> bool:
    """Whether rows may have been written by the schema before; those of an ALTER before are among the earlier ones."""
    return base is not None and base["purpose"] != Purpose.ALTER_TABLE.value


def _columns(path: ObjectPath, document: Document, changes: Sequence[TableChange], context: WriteContext) -> Document:
    """The schema after the changes."""
    before = IcebergSchema.model_validate(document["schema"])
    spec, order = PartitionSpec.model_validate(document["spec"]), SortOrder.model_validate(document["sort_order"])
    now = keyed(from_iceberg(before, highest_field_id=document["highest_field_id"]), spec)

    def refuse_not_null(_: int) -> bool:
        raise AtomicityNotSupportedError(
            f"No column of {path} can become NOT NULL in a transaction: rows that others add until the commit might "
            "have NULL in it; nothing was changed.",
            path=path,
            transaction_id=context.transaction_id,
            hint="Change it before or after the transaction.",
        )

    found = alterations.converted(path, now, alterations.of_columns(changes), refuse_not_null)
    schema = apply_changes(now, found, promotion=alterations.ONLY_EXACT)
    alterations.keep_sorted(path, before, order, schema)
    to_iceberg(schema).check_format_version_compatibility(2)
    definitions.arrow_of(to_iceberg(schema), schema.highest_field_id)
    older = [document["schema"]] if _has_written(context.base) and not schema.same_as(now) else []
    return {
        "schema": {**iceberg_document(to_iceberg(schema)), "schema-id": before.schema_id},
        "highest_field_id": schema.highest_field_id,
        "earlier_schemas": [*document.get("earlier_schemas", ()), *older],
    }
