"""Spark's own Parquet writer, with Iceberg's field ids; and Spark's form of a schema with ids.

Spark stores a field's id in the field's metadata. It assigns none to a list's elements or a map's keys and values;
schemas with those are not written here.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.catalogs.files import UNMARKED
from twophase.catalogs.rows import aligned
from twophase.model import quote
from twophase.spark import types
from twophase.spark.held_settings import HeldSettings

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

FIELD_ID = "parquet.field.id"
_ARROW_FIELD_ID = b"PARQUET:field_id"
#: The column that separates the rows of different partitions into different files; no file contains it.
_KEY = "twophase_partition"
#: Bytes of a text, as estimated by Spark.
_TEXT = 20

#: Settings that the writer reads from the session only: instants as in Iceberg, ids, and dates without rebasing.
HELD = HeldSettings(
    {
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.sql.parquet.fieldId.write.enabled": "true",
        "spark.sql.parquet.writeLegacyFormat": "false",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    }
)


class SparkParquet:
    """The environment's ``parquet_writer``."""

    def write(
        self,
        df: DataFrame,
        schema: pa.Schema,
        directory: str,
        *,
        partition_key: str | None = None,
        rebalance: bool = True,
        codec: str | None = None,
        sort: Sequence[Any] = (),
        most_rows: int | None = None,
    ) -> None:
        """Write rows as Parquet files.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            Columns by name if all names match, otherwise by position.
        schema : pyarrow.Schema
            Schema of the files, each field with its id in ``PARQUET:field_id``.
        directory : str
            It need not exist.
        partition_key : str, optional
            SQL of a text that differs between partitions; then no file contains rows of two.
        rebalance : bool
            With a key: whether rows of one partition are brought together first, to write few files.
        codec : str, optional
            Spark's name of the compression codec; default: the session's.
        sort : sequence
            Sort order of the rows in each file: ``expression`` (SQL over the columns), ``ascending`` and
            ``nulls_first``.
        most_rows : int, optional
            Maximum number of rows of a file.

        Raises
        ------
        PySparkException
            The user's own error.
        """
        from pyspark.sql.functions import col

        rows = _with_ids(aligned(df, schema.names), schema)
        if partition_key is not None:
            rows = rows.selectExpr("*", f"{partition_key} AS {_KEY}")
            rows = rows.hint("rebalance", col(_KEY)) if rebalance else rows
        if sort:
            # The partition first, since Spark's writer writes one partition after the other.
            keys = [] if partition_key is None else [col(_KEY)]
            rows = rows.sortWithinPartitions(*keys, *_sort_columns(sort))
        writer = rows.write.format("parquet").mode("append").options(**UNMARKED)
        if codec is not None:
            writer = writer.option("compression", codec)
        if most_rows is not None:
            writer = writer.option("maxRecordsPerFile", most_rows)
        if partition_key is not None:
            writer = writer.partitionBy(_KEY)
        with HELD.held(df.sparkSession):
            writer.save(directory)

    def sorted(self, df: DataFrame, names: Sequence[str], sort: Sequence[Any]) -> DataFrame:
        """Rows with a table's columns, sorted within each task as in :meth:`write`."""
        return aligned(df, names).sortWithinPartitions(*_sort_columns(sort))

    def row_width(self, df: DataFrame) -> int:
        """Spark's estimate of the bytes of a row, by the types."""
        if not hasattr(df, "_jdf"):
            return _TEXT * len(df.columns)  # not available to a Connect client
        return int(df._jdf.schema().defaultSize())

    def schema_of(self, df: DataFrame) -> pa.Schema:
        """The schema of rows to be written."""
        return types.to_arrow_schema(df.schema)


def _sort_columns(sort: Sequence[Any]) -> list[Column]:
    from pyspark.sql.functions import expr

    ways = {
        (True, True): "asc_nulls_first",
        (True, False): "asc_nulls_last",
        (False, True): "desc_nulls_first",
        (False, False): "desc_nulls_last",
    }
    return [getattr(expr(key.expression), ways[key.ascending, key.nulls_first])() for key in sort]


def _with_ids(df: DataFrame, schema: pa.Schema) -> DataFrame:
    from pyspark.sql.types import StructType

    wanted = StructType.fromJson(json.loads(with_ids(schema)))
    columns = []
    for field in wanted.fields:
        column = df[quote(field.name)]
        if df.schema[field.name].dataType != field.dataType or isinstance(field.dataType, StructType):
            column = column.cast(field.dataType)
        columns.append(column.alias(field.name, metadata=field.metadata))
    return df.select(*columns)


# -- schemas with ids --------------------------------------------------------------------------------------------------


def with_ids(schema: pa.Schema) -> str:
    """JSON of the Spark ``StructType`` of an Arrow schema, ids included."""
    described = json.loads(types.from_arrow(schema))
    _add_ids(described["fields"], list(schema))
    return json.dumps(described)


def _add_ids(fields: list[Any], sources: list[pa.Field]) -> None:
    for field, source in zip(fields, sources, strict=True):
        number = (source.metadata or {}).get(_ARROW_FIELD_ID)
        if number is not None:
            field["metadata"][FIELD_ID] = int(number)
        _add_ids_below(field["type"], source.type)


def _add_ids_below(kind: Any, source: pa.DataType) -> None:
    if isinstance(kind, str):
        return
    if kind["type"] == "struct":
        _add_ids(kind["fields"], [source.field(index) for index in range(source.num_fields)])
    elif kind["type"] == "array":
        _add_ids_below(kind["elementType"], source.value_type)
    elif kind["type"] == "map":
        _add_ids_below(kind["keyType"], source.key_type)
        _add_ids_below(kind["valueType"], source.item_type)


def pruned(with_all_ids: str, wanted: str) -> str:
    """The part of a struct that Spark reads, with the ids of the whole.

    Parameters
    ----------
    with_all_ids, wanted : str
        JSON of two ``StructType``; the second may lack fields at any level.
    """
    return json.dumps(_pruned(json.loads(with_all_ids), json.loads(wanted)))


def top_level(whole: str, wanted: str) -> str:
    """The selected columns of a struct, each with all of its fields."""
    names = [field["name"] for field in json.loads(wanted)["fields"]]
    known = {field["name"]: field for field in json.loads(whole)["fields"]}
    return json.dumps({"type": "struct", "fields": [known[name] for name in names]})


def _pruned(whole: Any, part: Any) -> Any:
    if isinstance(part, str):
        return whole
    if part["type"] == "struct":
        known = {field["name"]: field for field in whole["fields"]}
        fields = [{**known[f["name"]], "type": _pruned(known[f["name"]]["type"], f["type"])} for f in part["fields"]]
        return {**whole, "fields": fields}
    below = ("elementType",) if part["type"] == "array" else ("keyType", "valueType")
    return {**whole, **{name: _pruned(whole[name], part[name]) for name in below}}


def anonymous(*structs: str) -> tuple[str, ...]:
    """Structs with ids, each field renamed to a unique name derived from its id; the same in all of them."""
    token = secrets.token_hex(8)

    def renamed(field: Any) -> Any:
        return {**field, "name": f"field_{field['metadata'][FIELD_ID]}_{token}"}

    return tuple(json.dumps(types.mapped(json.loads(struct), renamed)) for struct in structs)
