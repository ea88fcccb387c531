"""A writer of Arrow batches as Parquet files, on the executors, for tables that Spark's own writer cannot write.

Spark's writer does not assign ids to a list's elements or a map's keys and values, and Spark has no expression for
Iceberg's buckets. The partition of each row is computed by PyIceberg's own transforms.
"""

from __future__ import annotations

import uuid
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField
from pyiceberg.transforms import VoidTransform

from twophase.catalogs.lakehouse.footers import Registrar, as_iceberg
from twophase.catalogs.lakehouse.transforms import applied, comparable
from twophase.schema import Field, Schema, from_iceberg, to_arrow

#: Maximum number of open files in one task; beyond it, the least recently used one is closed.
_MOST_OPEN = 64


@dataclass(frozen=True)
class ArrowWriter:
    """A function that writes the rows of one task. It is sent to the executors.

    Parameters
    ----------
    registrar : Registrar
    directory : str
    codec : str
    target_size : int, optional
        Bytes after which a new file is begun.
    """

    registrar: Registrar
    directory: str
    codec: str = "zstd"
    target_size: int | None = None

    def __call__(self, part: int, batches: Iterable[pa.RecordBatch]) -> list[DataFile]:
        """Write the batches; each attempt uses new file names, and only the returned files are registered."""
        task = _Task(self, part)
        try:
            for batch in batches:
                if batch.num_rows:
                    task.write(pa.Table.from_batches([batch]))
        finally:
            written = task.close()
        found = [self.registrar.register(location) for location in written]
        return [file for file in found if file is not None]


def file_schema(registrar: Registrar) -> pa.Schema:
    """The schema of the files; nested NOT NULL is only in the table's own schema."""
    schema = from_iceberg(registrar.schema)
    return to_arrow(Schema(tuple(_nullable(top, keep=True) for top in schema))).remove_metadata()


def _nullable(node: Field, *, keep: bool = False) -> Field:
    children = tuple(_nullable(child) for child in node.children)
    nullable = node.nullable if keep or node.name == "key" else True
    return replace(node, nullable=nullable, children=children, comment=None, initial_default=None, write_default=None)


class _Task:
    def __init__(self, writer: ArrowWriter, part: int) -> None:
        self._writer = writer
        self._part = part
        self._schema = file_schema(writer.registrar)
        self._open: OrderedDict[tuple[Any, ...], tuple[pq.ParquetWriter, Any]] = OrderedDict()
        self._written: list[str] = []

    def write(self, rows: pa.Table) -> None:
        rows = rows.rename_columns(self._schema.names).cast(self._schema)
        for key, group in _groups(rows, self._writer.registrar):
            for part in self._parts(group):
                self._file(key).write_table(part)
                if self._writer.target_size and self._open[key][1].tell() >= self._writer.target_size:
                    self._close(key)

    def _parts(self, group: pa.Table) -> Iterator[pa.Table]:
        """Split rows into parts of at most the target size of a file."""
        target = self._writer.target_size
        number = 1 if target is None else max(1, -(-group.nbytes // target))
        step = -(-group.num_rows // number)
        for start in range(0, group.num_rows, step):
            yield group.slice(start, step)

    def _file(self, key: tuple[Any, ...]) -> pq.ParquetWriter:
        if key not in self._open:
            while len(self._open) >= _MOST_OPEN:
                self._close(next(iter(self._open)))
            self._open[key] = self._new()
        self._open.move_to_end(key)
        return self._open[key][0]

    def _new(self) -> tuple[pq.ParquetWriter, Any]:
        location = f"{self._writer.directory}/{self._part:05d}-{uuid.uuid4()}.parquet"
        stream = self._writer.registrar.io.new_output(location).create()
        self._written.append(location)
        return pq.ParquetWriter(stream, self._schema, compression=self._writer.codec, store_schema=False), stream

    def _close(self, key: tuple[Any, ...]) -> None:
        file, stream = self._open.pop(key)
        try:
            file.close()
        finally:
            stream.close()

    def close(self) -> list[str]:
        for key in list(self._open):
            self._close(key)
        return self._written


def _groups(rows: pa.Table, registrar: Registrar) -> Iterator[tuple[tuple[Any, ...], pa.Table]]:
    """Group rows by partition."""
    parts = registrar.spec.fields
    if not parts:
        yield (), rows
        return
    coded = [_codes(rows, registrar, part) for part in parts]
    codes = np.stack([own for own, _ in coded], axis=1)
    distinct, group = np.unique(codes, axis=0, return_inverse=True)
    order = np.argsort(group.ravel(), kind="stable")
    ends = np.cumsum(np.bincount(group.ravel(), minlength=len(distinct)))
    start = 0
    for row, end in zip(distinct, ends, strict=True):
        key = tuple(values[code] for code, (_, values) in zip(row, coded, strict=True))
        yield key, rows.take(pa.array(order[start:end]))
        start = end


def _codes(rows: pa.Table, registrar: Registrar, part: PartitionField) -> tuple[np.ndarray, list[Any]]:
    """A code for each row, equal for rows with the same partition value, and the values by code."""
    if isinstance(part.transform, VoidTransform):  # Its column may be gone.
        return np.zeros(rows.num_rows, dtype=np.int64), [None]
    name = registrar.schema.find_column_name(part.source_id)
    assert name is not None
    transform = applied(part.transform, registrar.schema.find_type(part.source_id))
    column = rows.column(name).combine_chunks()
    encoded = column.dictionary_encode(null_encoding="encode") if len(column) else column
    if isinstance(encoded, pa.ChunkedArray):
        encoded = encoded.combine_chunks()
    numbers: dict[Any, int] = {}
    found = (comparable([transform(as_iceberg(value))])[0] for value in encoded.dictionary)
    of_value = [numbers.setdefault(value, len(numbers)) for value in found]
    return np.array(of_value, dtype=np.int64)[encoded.indices.to_numpy(zero_copy_only=False)], list(numbers)
