"""Schema evolution by an insert: if the table allows it, its columns follow the rows.

The property has the same name as in Iceberg's own Spark integration. Columns are then matched by name, also in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec

from twophase.catalog.schema_changes import merges_always
from twophase.catalogs.lakehouse import definitions
from twophase.catalogs.lakehouse.alterations import ONLY_EXACT
from twophase.catalogs.lakehouse.member import Member
from twophase.schema import EVOLVE, Reconciliation, Schema, reconcile

ACCEPT_ANY_SCHEMA = "write.spark.accept-any-schema"

_POLICY = replace(EVOLVE, promotion=ONLY_EXACT)


def follows_rows(properties: Mapping[str, str]) -> bool:
    """Return True if a table adopts new columns and wider types of inserted rows."""
    return merges_always(properties) or properties.get(ACCEPT_ANY_SCHEMA, "false").lower() == "true"


def keyed(schema: Schema, spec: PartitionSpec) -> Schema:
    """A schema with its partition fields marked, as fewer changes are allowed to those."""
    keys = tuple(dict.fromkeys(field.source_id for field in spec.fields))
    return replace(schema, partition_keys=tuple(key for key in keys if key in schema))


def evolved(table: Schema, spec: PartitionSpec, rows: pa.Schema) -> Schema:
    """The schema of a table after an insert of such rows.

    Raises
    ------
    SchemaError
        The table cannot adopt the schema of the rows.
    """
    found = _fit(keyed(table, spec), rows).schema
    return replace(found, partition_keys=())


def _fit(table: Schema, rows: pa.Schema) -> Reconciliation:
    return reconcile(table, definitions.plain(rows), _POLICY)


def fitted(member: Member, df: Any) -> Any:
    """Project rows to the schema of the write: columns are matched by name, missing ones are NULL."""
    if isinstance(df, pa.Table):
        rows = df.cast(definitions.plain(df.schema))
        return _fit(member.schema, rows.schema).plan.project(rows)
    incoming = member.catalog.environment.parquet_writer.schema_of(df)
    return df.selectExpr(*_fit(member.schema, incoming).plan.spark_expressions())
