"""The columns of a table that the surrounding transaction makes, after an ALTER TABLE: its rows are staged anew."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalog import TableChange
from twophase.catalog.column_changes import ColumnChanges, default_sql, refuse_nested_default
from twophase.catalog.spark_columns import CHAR_VARCHAR, SPARK_FIELD, spark_field
from twophase.model import ObjectPath, TableDefinition, quote
from twophase.schema import Field, Schema, apply_changes, assign_ids, plan_read
from twophase.schema.convert_arrow import arrow_field, without_ids
from twophase.schema.convert_spark import CURRENT_DEFAULT, EXISTS_DEFAULT
from twophase.schema.names import fold
from twophase.schema.plan_spark import sql_type
from twophase.spark import types

_COMMENT = b"comment"


def altered(
    path: ObjectPath, definition: TableDefinition, changes: Sequence[TableChange]
) -> tuple[pa.Schema, list[str]]:
    """Apply the changes of columns.

    Parameters
    ----------
    path : ObjectPath
        The table, for errors.
    definition : TableDefinition
        As it is before them.
    changes : sequence of TableChange

    Returns
    -------
    tuple of pyarrow.Schema and list of str
        The new columns, and Spark's expressions of them over the old ones.

    Raises
    ------
    CatalogError, SchemaError
        A change is not possible.
    """
    for change in changes:
        refuse_nested_default(path, change)
    before = assign_ids(definition.schema, partition_keys=_keys(definition))
    converted = ColumnChanges(path, _field_of, lambda _: False)
    after = apply_changes(before, converted.convert(before, [c for c in changes if c.kind != "update_column_default"]))
    schema = _with_defaults(_changed(definition.schema, before, after, changes), changes)
    return schema, _expressions(before, after, schema)


def _keys(definition: TableDefinition) -> list[str]:
    """The columns that the layout of a table names."""
    named = [column for transform in definition.partitioning for column in transform.columns]
    if definition.bucketing is not None:
        named += [*definition.bucketing.columns, *definition.bucketing.sort_columns]
    known = {name.lower(): name for name in definition.schema.names}
    return list(dict.fromkeys(known[name.lower()] for name in named if name.lower() in known))


def _field_of(change: TableChange) -> pa.Field:
    """The field of a change for the rules, to which a DEFAULT in SQL is unknown: it has a value for each old row."""
    field: pa.Field = change.arguments["field"].field(0)
    has_default = change.kind == "add_column" and default_sql(change) is not None
    return field.with_nullable(True) if has_default else field


def _changed(schema: pa.Schema, before: Schema, after: Schema, changes: Sequence[TableChange]) -> pa.Schema:
    of_columns = [c for c in changes if len(c.path) == 1]
    added = {c.path[0]: c.arguments["field"].field(0) for c in of_columns if c.kind == "add_column"}
    typed = {fold(c.path[0]): c.arguments["field"].field(0) for c in of_columns if c.kind == "update_column_type"}
    old = {node.id: (node, schema.field(index)) for index, node in enumerate(before)}
    return pa.schema(
        [
            _column(node, *old[node.id], typed.get(fold(node.name))) if node.id in old else added[node.name]
            for node in after
        ]
    )


def _column(node: Field, before: Field, field: pa.Field, typed: pa.Field | None) -> pa.Field:
    """A column with what Spark has noted of it: its DEFAULT, and the length of a VARCHAR until it gets another type."""
    as_before = replace(
        node, name=before.name, nullable=before.nullable, comment=before.comment, metadata=before.metadata
    )
    is_same = typed is None and as_before == before
    data_type = field.type if is_same else without_ids(arrow_field(node)).type
    metadata = {key: value for key, value in ((field.metadata if is_same else None) or {}).items() if key != _COMMENT}
    if not is_same and (described := spark_field(field)):
        metadata[SPARK_FIELD] = json.dumps(_retyped(described, typed or pa.field(node.name, data_type))).encode()
    if node.comment is not None:
        metadata[_COMMENT] = node.comment.encode()
    return pa.field(node.name, data_type, node.nullable, metadata or None)


def _retyped(described: Mapping[str, Any], field: pa.Field) -> dict[str, Any]:
    (found,) = json.loads(types.from_arrow(pa.schema([field])))["fields"]
    kept = {key: value for key, value in described.get("metadata", {}).items() if key != CHAR_VARCHAR}
    return {**described, "type": found["type"], "metadata": {**kept, **found["metadata"]}}


def _with_defaults(schema: pa.Schema, changes: Sequence[TableChange]) -> pa.Schema:
    """A schema with the defaults that the changes set, and without those that they drop."""
    given = {fold(c.path[0]): c.arguments["default"] for c in changes if c.kind == "update_column_default"}
    return pa.schema([_defaulted(f, given[fold(f.name)]) if fold(f.name) in given else f for f in schema])


def _defaulted(field: pa.Field, sql: str | None) -> pa.Field:
    (described,) = json.loads(types.from_arrow(pa.schema([field])))["fields"]
    kept = {key: value for key, value in described["metadata"].items() if key != CURRENT_DEFAULT}
    described["metadata"] = kept if sql is None else {**kept, CURRENT_DEFAULT: sql}
    return field.with_metadata({**(field.metadata or {}), SPARK_FIELD: json.dumps(described).encode()})


def _expressions(before: Schema, after: Schema, schema: pa.Schema) -> list[str]:
    """Spark's expressions of the columns: those of a new one with a DEFAULT have its value in each row."""
    plan = plan_read(before, after)
    found = zip(plan.fields, plan.spark_expressions(), schema, strict=True)
    return [
        expression if read.source is not None else _new(read.field, spark_field(field)) or expression
        for read, expression, field in found
    ]


def _new(node: Field, described: Mapping[str, Any]) -> str | None:
    sql = described.get("metadata", {}).get(EXISTS_DEFAULT)
    return None if sql is None else f"CAST({sql} AS {sql_type(node)}) AS {quote(node.name)}"
