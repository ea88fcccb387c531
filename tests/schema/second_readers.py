"""Readers of real tables that know nothing of Spark: PyIceberg, PyArrow by field ids, and databases themselves."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, DataType, MapType, StructType

Rows = list[tuple[Any, ...]]
_ID = b"PARQUET:field_id"


def by_pyiceberg(spark: SparkSession, name: str) -> Rows:
    uri = spark.conf.get("spark.sql.catalog.lake.uri")
    catalog = SqlCatalog("lake", uri=str(uri))
    table = catalog.load_table(("changes", name.rpartition(".")[2])).scan().to_arrow()
    catalog.close()
    columns = [[_by_position(column.type, value) for value in column.to_pylist()] for column in table.columns]
    return list(zip(*columns, strict=True))


def _by_position(data_type: pa.DataType, value: Any) -> Any:
    """A value with the tuples of its structs, and for a map those of its values."""
    if value is None:
        return None
    if pa.types.is_struct(data_type):
        return tuple(_by_position(field.type, value[field.name]) for field in data_type)
    if pa.types.is_map(data_type):
        return tuple(_by_position(data_type.item_type, one) for _, one in value)
    if pa.types.is_large_list(data_type) or pa.types.is_list(data_type):
        return tuple(_by_position(data_type.value_type, one) for one in value)
    return value


def by_field_ids(spark: SparkSession, name: str) -> Rows:
    """The rows as PyArrow finds them by the ids alone: names in files are those of their time."""
    wanted, rows = spark.table(name).schema, []
    for (file,) in spark.sql(f"SELECT DISTINCT input_file_name() FROM {name}").collect():
        table = pq.ParquetFile(urlsplit(file).path).read()
        rows += [_by_ids(wanted, pa.struct(table.schema), row) for row in table.to_pylist()]
    return rows


def _by_ids(wanted: DataType, stored: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(wanted, StructType):
        found = {int(field.metadata[_ID]): field for field in stored}
        fields = [(one.dataType, found.get(one.metadata["parquet.field.id"])) for one in wanted.fields]
        return tuple(None if one is None else _by_ids(kind, one.type, value[one.name]) for kind, one in fields)
    if isinstance(wanted, MapType):
        return tuple(_by_ids(wanted.valueType, stored.item_type, one) for _, one in value)
    if isinstance(wanted, ArrayType):
        return tuple(_by_ids(wanted.elementType, stored.value_type, one) for one in value)
    return value


def by_its_database(spark: SparkSession, name: str) -> Rows:
    """The rows as the database gives them to another program."""
    store, _, table = name.split(".")
    engine = sa.create_engine(str(spark.conf.get(f"spark.sql.catalog.{store}.url")))
    with engine.connect() as connection:
        rows = [tuple(row) for row in connection.execute(sa.text(f"SELECT * FROM {table}"))]
    engine.dispose()
    return rows


#: By store.
SECOND_READERS = {"lake": by_pyiceberg, "ids": by_field_ids} | dict.fromkeys(("lite", "pg", "maria"), by_its_database)
