"""Reading of a catalog's read sources as Spark would, but without Spark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset
from pyspark import cloudpickle

from twophase.catalog.reading import BatchReader, Filter, ReadSource

Row = tuple[Any, ...]


def read_batches(reader: BatchReader, schema: pa.Schema, conditions: Sequence[Filter] = ()) -> list[Row]:
    """Return the rows of a reader for these columns; each partition is pickled, as if sent to an executor."""
    parts = [cloudpickle.loads(cloudpickle.dumps(part)) for part in reader.plan(schema.names, conditions)]
    rows: list[Row] = []
    for batch in (batch for part in parts for batch in part()):
        assert batch.schema.names == schema.names, "It gives other columns than were asked for."
        assert batch.schema.types == schema.types, "The types are not those of the table's definition."
        rows += rows_of(batch)
    return rows


def rows_of(table: Any) -> list[Row]:
    """Return the rows of an Arrow table or batch, as tuples."""
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


def read(source: ReadSource) -> list[Row] | None:
    """Return all rows, sorted; None if only Spark can read them."""
    rows: list[Row] | None = None
    if source.kind == "batches" and source.reader and source.definition:
        rows = read_batches(source.reader, source.definition.schema)
    elif source.kind == "files" and source.provider == "parquet" and os.path.isdir(source.location or ""):
        rows = rows_of(pa.dataset.dataset(source.location, format="parquet").to_table())
    return None if rows is None else sorted(rows, key=repr)
