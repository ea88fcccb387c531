"""Registration of data files: ids are checked, statistics collected, and partition values read from the rows.

Everything is taken from the file itself, on an executor if there are many files. Iceberg's readers skip files by these
statistics, so a bound is given only if every row group has one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.transforms import VoidTransform
from pyiceberg.typedef import Record

from twophase.catalogs.lakehouse.transforms import applied, comparable
from twophase.errors import CatalogError
from twophase.schema import from_iceberg, to_arrow, verify_file_schema
from twophase.schema.errors import SchemaError

#: The first UTF-16 surrogate, the character after the last one, and the last character.
_SURROGATES, _PAST_SURROGATES, _LAST = 0xD800, 0xE000, 0x10FFFF
#: Logical types whose values PyArrow converts to Python objects.
_PYTHONS_OWN = ("DATE", "TIMESTAMP", "STRING")


@dataclass(frozen=True)
class Registrar:
    """Creates Iceberg data file entries for Parquet files. It is sent to the executors.

    Parameters
    ----------
    io : pyiceberg.io.FileIO
        Access to the files.
    path : str
        Name of the table, for messages.
    schema : pyiceberg.schema.Schema
        Schema of the files.
    spec : pyiceberg.partitioning.PartitionSpec
    properties : mapping of str to str
        Properties of the table; they may limit the statistics.
    sort_order_id : int, optional
        Sort order of the rows in each file.
    """

    io: FileIO
    path: str
    schema: IcebergSchema
    spec: PartitionSpec
    properties: Mapping[str, str] = field(default_factory=dict)
    sort_order_id: int | None = None

    def __getstate__(self) -> dict[str, Any]:
        # Cached properties are not sent.
        names = ("io", "path", "schema", "spec", "properties", "sort_order_id")
        return {name: self.__dict__[name] for name in names}

    @cached_property
    def _statistics_plan(self) -> Any:
        return compute_statistics_plan(self.schema, dict(self.properties))

    @cached_property
    def _ids(self) -> dict[str, int]:
        return parquet_path_to_id_mapping(self.schema)

    @cached_property
    def _arrow(self) -> pa.Schema:
        return to_arrow(from_iceberg(self.schema))

    def register(self, location: str) -> DataFile | None:
        """Return the data file entry of a file; None for one without rows.

        Raises
        ------
        CatalogError
            Its ids differ from the schema, it has rows of several partitions, or a NOT NULL column contains NULL.
        """
        source = self.io.new_input(location)
        with source.open() as stream:
            file = pq.ParquetFile(stream)
            self._check_ids(location, file.schema_arrow)
            if file.metadata.num_rows == 0:
                return None
            self._check_nulls(file.metadata)
            partition = [self._partition_value(location, file, part) for part in self.spec.fields]
            return self._data_file(location, len(source), file.metadata, Record(*partition))

    def register_all(self, locations: Sequence[str]) -> list[DataFile | None]:
        """Return the data file entries of several files."""
        return [self.register(location) for location in locations]

    def _check_ids(self, location: str, found: pa.Schema) -> None:
        try:
            verify_file_schema(found, from_iceberg(self.schema))
        except SchemaError as error:
            raise CatalogError(
                f"The file {location} cannot become part of {self.path}: {error}", path=self.path
            ) from error

    def _data_file(self, location: str, size: int, footer: pq.FileMetaData, partition: Record) -> DataFile:
        try:
            statistics = data_file_statistics_from_parquet_metadata(footer, self._statistics_plan, self._ids)
        except (OverflowError, ValueError):  # Years that Python does not support, and strings that are not valid UTF-8.
            footer = _Footer(footer)
            statistics = data_file_statistics_from_parquet_metadata(footer, self._statistics_plan, self._ids)
        for number in _without_bounds(footer, self._ids):
            statistics.column_aggregates.pop(number, None)
        for aggregate in statistics.column_aggregates.values():
            if isinstance(aggregate.current_max, str) and aggregate.trunc_length is not None:
                aggregate.current_max = _upper_bound(aggregate.current_max, aggregate.trunc_length)
        return DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=location,
            file_format=FileFormat.PARQUET,
            partition=partition,
            file_size_in_bytes=size,
            sort_order_id=self.sort_order_id,
            spec_id=self.spec.spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )

    def _check_nulls(self, footer: pq.FileMetaData) -> None:
        required = {column.field_id for column in self.schema.fields if column.required}
        for chunk in _chunks(footer):
            number = self._ids[chunk.path_in_schema]
            if number in required and chunk.is_stats_set and chunk.statistics.null_count:
                raise CatalogError(
                    f"{self.path}: the column {chunk.path_in_schema} is NOT NULL, and the rows hold NULL.",
                    path=self.path,
                )

    # -- partition values ----------------------------------------------------------------------------------------

    def _partition_value(self, location: str, file: pq.ParquetFile, part: PartitionField) -> Any:
        """The partition value of all rows of the file: PyIceberg's own transform, applied to the first row."""
        if isinstance(part.transform, VoidTransform):  # Its column may be gone.
            return None
        name = self.schema.find_column_name(part.source_id)
        assert name is not None
        first = next(file.iter_batches(batch_size=1, columns=[name])).column(0)[0]
        transform = applied(part.transform, self.schema.find_type(part.source_id))
        value = transform(as_iceberg(first))
        if part.transform.preserves_order:
            kind = self._arrow.field(name).type
            for bound in _bounds(file.metadata, name, kind):
                if comparable([transform(as_iceberg(bound))]) != comparable([value]):
                    raise self._mixed(location, part)
        return value

    def _mixed(self, location: str, part: PartitionField) -> CatalogError:
        return CatalogError(f"The file {location} holds rows of several partitions of {part.name}.", path=self.path)


def as_iceberg(scalar: pa.Scalar) -> Any:
    """A value as input for Iceberg's transforms: instants as numbers."""
    kind = scalar.type
    if pa.types.is_date32(kind):
        return scalar.cast(pa.int32()).as_py()
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind):
        return scalar.cast(pa.int64()).as_py()
    return scalar.as_py()


def _chunks(footer: pq.FileMetaData) -> Iterable[pq.ColumnChunkMetaData]:
    for group in range(footer.num_row_groups):
        row_group = footer.row_group(group)
        for number in range(footer.num_columns):
            yield row_group.column(number)


def _without_bounds(footer: pq.FileMetaData, ids: Mapping[str, int]) -> set[int]:
    """Columns with values but no bounds in some row group, such as columns of very long values."""
    found = set()
    for chunk in _chunks(footer):
        statistics: Any = chunk.statistics if chunk.is_stats_set else None
        counted = statistics is not None and statistics.has_null_count
        if not counted or (not statistics.has_min_max and statistics.null_count < chunk.num_values):
            found.add(ids[chunk.path_in_schema])
    return found


def _bounds(footer: pq.FileMetaData, name: str, kind: pa.DataType) -> Iterable[pa.Scalar]:
    is_moment = pa.types.is_date(kind) or pa.types.is_timestamp(kind)
    for chunk in _chunks(footer):
        if chunk.path_in_schema == name and chunk.is_stats_set and chunk.statistics.has_min_max:
            statistics: Any = chunk.statistics
            bounds = (statistics.min_raw, statistics.max_raw) if is_moment else (statistics.min, statistics.max)
            yield from (pa.scalar(bound, kind) for bound in bounds)


def _upper_bound(text: str, length: int) -> str | None:
    """An upper bound, of limited length, of all strings with the same prefix; None if there is none."""
    if len(text) <= length:
        return text
    for end in range(length, 0, -1):
        after = ord(text[end - 1]) + 1
        if after <= _LAST:
            # Surrogates are skipped, as a string must not contain them.
            return text[: end - 1] + chr(_PAST_SURROGATES if after == _SURROGATES else after)
    return None


# -- statistics of values that Python does not support -----------------------------------------------------------------


class _Wrapped:
    """A PyArrow object with some overridden attributes."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Footer(_Wrapped):
    """A footer with dates and instants as numbers, and without bounds of string columns that are not valid UTF-8."""

    def row_group(self, number: int) -> _RowGroup:
        return _RowGroup(self._inner.row_group(number))


class _RowGroup(_Wrapped):
    def column(self, number: int) -> _Chunk:
        return _Chunk(self._inner.column(number))


class _Chunk(_Wrapped):
    @property
    def statistics(self) -> Any:
        statistics = self._inner.statistics
        if statistics is None or statistics.logical_type.type not in _PYTHONS_OWN:
            return statistics
        try:
            return (statistics.min, statistics.max) and statistics
        except (OverflowError, ValueError):
            return _NoText(statistics) if statistics.logical_type.type == "STRING" else _Numbers(statistics)


class _Numbers(_Wrapped):
    @property
    def min(self) -> Any:
        return self._inner.min_raw

    @property
    def max(self) -> Any:
        return self._inner.max_raw


class _NoText(_Wrapped):
    has_min_max = False
    min = max = None
