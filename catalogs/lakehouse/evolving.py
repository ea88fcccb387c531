"""An insert whose rows change the table's schema: where the table allows it, its columns follow the rows.

The property has the name that Iceberg's own Spark integration gave it. Columns are found by name then, also in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionSpec

from twophase.catalogs.lakehouse import definitions
from twophase.schema import EVOLVE, Reconciliation, Schema, reconcile

if TYPE_CHECKING:
    from twophase.catalogs.lakehouse.participant import LakehouseParticipant

ACCEPT_ANY_SCHEMA = "write.spark.accept-any-schema"


def follows_rows(properties: Mapping[str, str]) -> bool:
    """Whether a table takes over columns that it does not have, and wider types."""
    return properties.get(ACCEPT_ANY_SCHEMA, "false").lower() == "true"


def keyed(schema: Schema, spec: PartitionSpec) -> Schema:
    """A schema that knows which of its fields partitions are made of: those may change less."""
    keys = tuple(dict.fromkeys(field.source_id for field in spec.fields))
    return replace(schema, partition_keys=tuple(key for key in keys if key in schema))


def evolved(table: Schema, spec: PartitionSpec, rows: pa.Schema) -> Schema:
    """The schema of a table after an insert of such rows.

    Raises
    ------
    SchemaError
        Rows that the table cannot follow.
    """
    found = _fit(keyed(table, spec), rows).schema
    return replace(found, partition_keys=())


def _fit(table: Schema, rows: pa.Schema) -> Reconciliation:
    return reconcile(table, definitions.plain(rows), EVOLVE)


def fitted(member: LakehouseParticipant, df: Any) -> Any:
    """The rows with the columns of the schema that they are written with: found by name, missing ones NULL."""
    if isinstance(df, pa.Table):
        rows = df.cast(definitions.plain(df.schema))
        return _fit(member.schema, rows.schema).plan.project(rows)
    incoming = member.catalog.environment.parquet_writer.schema_of(df)
    return df.selectExpr(*_fit(member.schema, incoming).plan.spark_expressions())
