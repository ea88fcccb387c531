"""``ALTER TABLE`` by a rewrite: changes that Spark's reader cannot follow, where the user has chosen that.

The table is replaced by its own rows. Its files are new, so that every name is free again, and those of a Parquet table
have field ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from twophase.catalog import Rewrite, TableChange
from twophase.catalogs.hive.ddl import sql_type
from twophase.catalogs.hive.definitions import FIELD_IDS, fingerprint, to_definition
from twophase.catalogs.hive.schema import evolution, policies
from twophase.catalogs.hive.schema.columns import DEFAULTS, HELD, Columns
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import HiveTable
from twophase.model import ObjectPath, quote
from twophase.schema import PromotionPolicy, Schema, plan_read


def plan(store: HiveStore, table: HiveTable, changes: Sequence[TableChange], path: ObjectPath) -> Rewrite | None:
    """Return the replacement that makes the changes; None if none is needed, or chosen.

    Raises
    ------
    CatalogError
        A change breaks a rule.
    ConfigurationError
        A property of the table has a value that it cannot have.
    """
    if not changes or any(change.kind not in evolution.KINDS for change in changes):
        return None  # Properties are not looked at: the statement may be the one that corrects them.
    metastore, policy = store.metastore, policies.of_rewrite(store, table, path)
    before = None if policy is None else metastore.columns_of(table)
    if policy is None or before is None:
        return None
    before = evolution.with_ids(store, table, before, changes)
    native = policies.native(store, table, path)
    evolving = evolution.Evolution(table, path, before, store, native=native, policy=policy)
    after = evolving.apply(changes).schema
    if not evolving.needs_rewrite:
        return None
    if before.has_ids and not metastore.reads_by_ids:
        raise evolving.refused(
            "this session reads Parquet files by the names of their columns "
            "(spark.sql.parquet.fieldId.read.enabled is false), and would lose those that were renamed"
        )
    schema = metastore.with_columns(table, Columns(after, has_ids=False)).schema
    properties = {**table.properties, FIELD_IDS: "true"} if table.provider == "parquet" else table.properties
    definition = to_definition(replace(table, schema=schema, properties=properties))
    return Rewrite(
        definition if definition.external else replace(definition, location=None),
        _expressions(before.schema, after, schema, policy),
        (fingerprint(to_definition(table)), table.schema.serialize().to_pybytes()),
    )


def _expressions(before: Schema, after: Schema, schema: pa.Schema, policy: PromotionPolicy) -> tuple[str, ...]:
    """The new columns over the old ones."""
    read = plan_read(before, after, on_cast_failure=policy.on_cast_failure)
    return tuple(
        expression if found.source is not None else _new(schema.field(index), dict(found.field.metadata))
        for index, (found, expression) in enumerate(zip(read.fields, read.spark_expressions(), strict=True))
    )


def _new(field: pa.Field, metadata: Mapping[str, str]) -> str:
    """A new column, in types that the rules do not know, too: the value of its default for old rows, or NULL."""
    value = metadata.get(HELD + DEFAULTS[1], "NULL")
    return f"CAST({value} AS {sql_type(field)}) AS {quote(field.name)}"
