"""The columns of a session table for the rules of schema evolution, and back; and rows with the ids of its fields."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.catalogs.hive.schema.columns import DEFAULTS, HELD, OPAQUE, Columns, is_plain
from twophase.errors import CatalogError
from twophase.model import quote
from twophase.schema import Schema, assign_ids, from_spark, from_spark_types, to_spark
from twophase.schema.convert_spark import SPARK_FIELD_ID, TWOPHASE
from twophase.spark import types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Metadata of a table's first column: names that its files have for other fields.
USED = "twophase.used"
_NOTED = b"org.apache.spark.sql.parquet.row.metadata"
_ID = SPARK_FIELD_ID.encode()
_OURS = (SPARK_FIELD_ID, TWOPHASE, USED)


# -- from and to Spark -------------------------------------------------------------------------------------------------


def read(name: str, described: str, partition_columns: Sequence[str], *, can_have_ids: bool = True) -> Columns:
    """The columns of a table from Spark's JSON of its schema.

    Parameters
    ----------
    name : str
        For errors.
    described : str
    partition_columns : sequence of str
    can_have_ids : bool, optional
        Whether ids mean something in files of its format; if not, they are those of a table that it was made from.

    Raises
    ------
    CatalogError
        Only some columns have ids.
    """
    fields = json.loads(described)["fields"]
    used = json.loads(fields[0]["metadata"].pop(USED, "[]")) if fields else []
    if not can_have_ids:
        fields = _without_ids(fields)
    has_ids = _have_ids(name, fields)
    schema = _schema([_hidden(field) for field in fields], has_ids=has_ids)
    keys = {column.lower() for column in partition_columns}
    schema = replace(schema, partition_keys=tuple(field.id for field in schema if field.name.lower() in keys))
    return Columns(schema, has_ids, tuple((tuple(path), number) for path, number in used))


def _have_ids(name: str, fields: Sequence[Mapping[str, Any]]) -> bool:
    missing = [field["name"] for field in fields if SPARK_FIELD_ID not in field["metadata"]]
    if missing and len(missing) < len(fields):
        raise CatalogError(
            f"{name} was not altered: {', '.join(missing)} has no field id, as other columns have; a program outside "
            "twophase added it.",
            hint=f"Rewrite the table: CREATE OR REPLACE TABLE {name} ... AS SELECT * FROM {name}",
        )
    return bool(fields) and not missing


def of_file(schema: pa.Schema) -> pa.Schema:
    """The columns of a Parquet file as Spark has noted them in its footer; those of the file itself without a note."""
    described = (schema.metadata or {}).get(_NOTED)
    if described is not None:
        return types.to_arrow(described.decode())
    return pa.schema([field.remove_metadata() for field in schema])


def _schema(fields: list[Any], *, has_ids: bool) -> Schema:
    from pyspark.sql.types import StructType

    struct = StructType.fromJson({"type": "struct", "fields": fields})
    return from_spark(struct) if has_ids else assign_ids(from_spark_types(struct))


def write(columns: Columns) -> pa.Schema:
    """The schema of a table with these columns."""
    fields = json.loads(to_spark(columns.schema).json())["fields"]
    if not columns.has_ids:
        fields = _without_ids(fields)
    if columns.used:
        fields[0]["metadata"][USED] = json.dumps([[list(path), number] for path, number in columns.used])
    return types.to_arrow(types.struct_json(types.mapped_fields(fields, _shown)))


def _hidden(field: Any) -> Any:
    """A column without what the rules do not know: a type of Spark's own, and defaults in SQL."""
    metadata = {HELD + key if key in DEFAULTS else key: value for key, value in field["metadata"].items()}
    if is_plain(field["type"]):
        return {**field, "metadata": metadata}
    return {**field, "type": "binary", "metadata": {**metadata, OPAQUE: json.dumps(field["type"])}}


def _shown(field: Any) -> Any:
    """A field as Spark has it."""
    metadata = dict(field["metadata"])
    for key in DEFAULTS:
        if HELD + key in metadata:
            metadata[key] = metadata.pop(HELD + key)
    data_type = json.loads(metadata.pop(OPAQUE)) if OPAQUE in metadata else field["type"]
    return {**field, "type": data_type, "metadata": metadata}


def _without_ids(fields: list[Any]) -> list[Any]:
    """Fields, and all below them, without ids."""

    def plain(field: Any) -> Any:
        return {**field, "metadata": {key: value for key, value in field["metadata"].items() if key not in _OURS}}

    return types.mapped_fields(fields, plain)


# -- new tables --------------------------------------------------------------------------------------------------------


def numbered(schema: pa.Schema, partition_columns: Sequence[str]) -> pa.Schema:
    """A new table's schema with ids for all of its fields."""
    found = read("", types.from_arrow(plain(schema)), partition_columns)
    return write(replace(found, has_ids=True))


def plain(schema: pa.Schema) -> pa.Schema:
    """A new table's schema without ids of the tables that its query reads."""
    if not has_ids(schema):
        return schema
    fields = json.loads(types.from_arrow(schema))["fields"]
    return types.to_arrow(types.struct_json(_without_ids(fields)))


def has_ids(schema: pa.Schema) -> bool:
    """Whether a field of a schema has an id, or another fact about files."""
    marks = (_ID, USED.encode())
    texts = [b"".join((field.metadata or {}).values()) for field in schema]
    return any(mark in text for text in texts for mark in marks)


def rows_for(df: DataFrame, schema: pa.Schema) -> DataFrame:
    """Rows whose fields have the ids of a table's schema, or none.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        With the table's columns.
    schema : pyarrow.Schema
    """
    from pyspark.sql.types import StructType

    if not has_ids(schema) and SPARK_FIELD_ID not in df.schema.json():
        return df
    wanted = StructType.fromJson(json.loads(types.from_arrow(schema)))
    columns = []
    for field in wanted.fields:
        column = df[quote(field.name)]
        if not isinstance(field.dataType.jsonValue(), str) and df.schema[field.name].dataType != field.dataType:
            column = column.cast(field.dataType)
        columns.append(column.alias(field.name, metadata=field.metadata))
    return df.select(*columns)
