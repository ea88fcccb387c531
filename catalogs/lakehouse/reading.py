"""Scan planning: the files of a snapshot that a query needs, found in the manifests before any file is opened.

A table is read by Spark's own Parquet reader, by field ids, with two exceptions: tables in which another engine has
deleted single rows, and tables with files without ids, which are matched by name. PyIceberg reads those, on the
executors.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import cached_property, reduce
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import (
    AlwaysTrue,
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    NotNull,
    Or,
)
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    _StrictMetricsEvaluator,
    bind,
    expression_evaluator,
    extract_field_ids,
    inclusive_projection,
    manifest_evaluator,
)
from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntry, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from twophase.catalog.reading import FileReader, Filter, ParquetScan
from twophase.catalogs.lakehouse import definitions, manifests
from twophase.catalogs.lakehouse.layout import is_ours
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.schema import from_iceberg

#: Python's own context has 28 digits, and refuses more. A value may have 38 before the point, the column 38 behind it.
_DIGITS = Context(prec=76)
_COMPARISONS: Mapping[str, Any] = {
    "=": EqualTo,
    "<": LessThan,
    "<=": LessThanOrEqual,
    ">": GreaterThan,
    ">=": GreaterThanOrEqual,
}
#: Types with the same order and equality as in Spark. Not floating-point types: Spark sorts NaN as the greatest value.
_COMPARABLE = (BooleanType, IntegerType, LongType, StringType, DateType, TimestampType, TimestamptzType, DecimalType)


def expression_of(condition: Filter, schema: IcebergSchema) -> BooleanExpression | None:
    """A condition as a PyIceberg expression; None if PyIceberg might skip rows that Spark would return."""
    if condition.parts:
        parts = [expression_of(part, schema) for part in condition.parts]
        if any(part is None for part in parts):
            return None
        join: Any = And if condition.operator == "and" else Or
        return reduce(join, parts)
    column = next((field for field in schema.fields if field.name == condition.column), None)
    if column is None:
        return None
    if condition.operator in ("is_null", "is_not_null"):
        kind: Any = IsNull if condition.operator == "is_null" else NotNull
        return kind(column.name) if column.field_type.is_primitive else None
    return _comparison(condition, column.name, column.field_type)


def _comparison(condition: Filter, name: str, kind: IcebergType) -> BooleanExpression | None:
    if not isinstance(kind, _COMPARABLE):
        return None
    values = [_literal(value, kind) for value in condition.values]
    if any(value is None for value in values):
        return None
    if condition.operator == "in":
        make_in: Any = In
        return make_in(name, values)
    make = _COMPARISONS.get(condition.operator)
    return None if make is None else make(name, values[0])


def _literal(value: Any, kind: IcebergType) -> Any:
    """A value as a PyIceberg literal of a type; None if it is of another type."""
    if isinstance(value, bool) or isinstance(kind, BooleanType):
        return value if isinstance(value, bool) and isinstance(kind, BooleanType) else None
    if isinstance(value, datetime.datetime):
        aware = value.tzinfo is not None
        return value.isoformat() if isinstance(kind, TimestamptzType if aware else TimestampType) else None
    if isinstance(value, datetime.date):
        return value.isoformat() if isinstance(kind, DateType) else None
    if isinstance(value, Decimal):
        return _decimal(value, kind)
    if isinstance(value, int):
        return _integer(value, kind)
    return value if isinstance(value, str) and isinstance(kind, StringType) else None


def _decimal(value: Decimal, kind: IcebergType) -> Decimal | None:
    if not isinstance(kind, DecimalType) or -int(value.as_tuple().exponent) > kind.scale:
        return None
    return value.quantize(Decimal(1).scaleb(-kind.scale), context=_DIGITS)


def _integer(value: int, kind: IcebergType) -> int | None:
    bits = 31 if isinstance(kind, IntegerType) else 63 if isinstance(kind, LongType) else 0
    return value if bits and -(2**bits) <= value < 2**bits else None


def version_of(metadata: TableMetadata, snapshot_id: int | None, schema: IcebergSchema) -> str:
    """Identify a state of a table, as it is read with a schema."""
    return f"{metadata.table_uuid}/{snapshot_id}/{schema.schema_id}"


@dataclass(frozen=True)
class State:
    """One state of a table: its definition, and the manifests of its files.

    Attributes
    ----------
    io : pyiceberg.io.FileIO
        Access to its files.
    path : ObjectPath
        Name of the table.
    version : str
        Identifier of this state.
    location : str
        Location of the table.
    schema : pyiceberg.schema.Schema
        Schema of the rows that are read.
    specs : mapping of int to pyiceberg.partitioning.PartitionSpec
    schemas : tuple of pyiceberg.schema.Schema
        All schemas that its files may have been written with.
    manifests : tuple of pyiceberg.manifest.ManifestFile
    highest_field_id : int
    """

    io: FileIO
    path: ObjectPath
    version: str
    location: str
    schema: IcebergSchema
    specs: Mapping[int, PartitionSpec]
    schemas: tuple[IcebergSchema, ...]
    manifests: tuple[ManifestFile, ...]
    highest_field_id: int

    @classmethod
    def of(
        cls,
        io: FileIO,
        path: ObjectPath,
        metadata: TableMetadata,
        snapshot_id: int | None,
        schema: IcebergSchema,
        found: tuple[ManifestFile, ...] | None = None,
    ) -> State:
        """The state of a table in one of its snapshots, with all manifests of the snapshot or only the given ones."""
        found = tuple(manifests.manifests_of(io, metadata, snapshot_id)) if found is None else found
        return cls(
            io,
            path,
            version_of(metadata, snapshot_id, schema),
            metadata.location,
            schema,
            metadata.specs(),
            tuple(metadata.schemas),
            found,
            metadata.last_column_id,
        )


def check_formats(path: ObjectPath, files: Iterable[DataFile], readable: Collection[FileFormat]) -> None:
    """Refuse a table that has files in unsupported formats; Iceberg has Parquet, ORC and Avro.

    Raises
    ------
    CatalogError
        The message names the table and the formats.
    """
    if unknown := {file.file_format for file in files} - set(readable):
        raise CatalogError(
            f"{path} cannot be read: it has files in {_names(unknown)}.",
            path=path,
            hint=f"Files in {_names(readable)} can be read: let the engine that wrote the others rewrite them.",
        )


def _names(formats: Iterable[FileFormat]) -> str:
    return " and ".join(sorted(kind.value for kind in formats))


class ManifestReader(FileReader):
    """Scan planning for one state of a table."""

    def __init__(self, state: State) -> None:
        self._state = state

    @property
    def version(self) -> str:
        return self._state.version

    def accepts(self, condition: Filter) -> bool:
        return expression_of(condition, self._state.schema) is not None

    def plan(self, conditions: Sequence[Filter]) -> ParquetScan:
        files = list(self.files(conditions))
        check_formats(self._state.path, files, (FileFormat.PARQUET,))
        locations = [file.file_path for file in files]
        # The column names in another engine's files are not known here.
        known = all(is_ours(self._state.location, location) for location in locations)
        if not known:
            return ParquetScan(locations, self._arrow, reuses_names=True, has_gaps=self._has_gaps)
        return ParquetScan(locations, self._arrow, self._by_name, self._reuses_names, self._has_gaps)

    def only(self, files: Collection[str]) -> ListedFiles:
        return ListedFiles(self._state, files)

    def deletion(self, conditions: Sequence[Filter | None]) -> tuple[list[DataFile], list[DataFile]]:
        """Files whose rows all satisfy the conditions, and files in which some rows may."""
        pushed = [condition for condition in conditions if condition is not None and self.accepts(condition)]
        wanted = [expression_of(condition, self._state.schema) for condition in pushed]
        every = reduce(And, wanted, AlwaysTrue())  # type: ignore[arg-type]
        strict = _StrictMetricsEvaluator(self._state.schema, every)
        columns = extract_field_ids(bind(self._state.schema, every, case_sensitive=True))
        whole: list[DataFile] = []
        part: list[DataFile] = []
        for file in self.files(pushed):
            # PyIceberg takes a column without a count of NULLs for one without NULLs.
            is_counted = columns <= (file.null_value_counts or {}).keys()
            is_whole = len(pushed) == len(conditions) and is_counted and strict.eval(file)
            (whole if is_whole else part).append(file)
        return whole, part

    def files(self, conditions: Sequence[Filter]) -> Iterator[DataFile]:
        """The files in which rows may satisfy all conditions."""
        return (entry.data_file for entry in self._entries(conditions))

    def _entries(self, conditions: Sequence[Filter]) -> Iterator[ManifestEntry]:
        found = [expression_of(condition, self._state.schema) for condition in conditions]
        wanted = reduce(And, [part for part in found if part is not None], AlwaysTrue())  # type: ignore[arg-type]
        pruner = _Pruner(self._state, wanted)
        held = (m for m in self._state.manifests if pruner.may_hold(m))
        for entry in manifests.all_entries(self._state.io, held):
            if pruner.may_match(entry.data_file):
                yield entry

    @cached_property
    def _arrow(self) -> pa.Schema:
        return definitions.arrow_of(self._state.schema, self._state.highest_field_id)

    @cached_property
    def _reuses_names(self) -> bool:
        """True if some field has the name of an earlier field of the same parent."""
        named: dict[tuple[int | None, str], set[int]] = {}
        for source in (*self._state.schemas, self._state.schema):
            schema = from_iceberg(source)
            for node in schema.walk():
                named.setdefault((schema.parent_of(node.id), node.name.lower()), set()).add(node.id)
        return any(len(found) > 1 for found in named.values())

    @cached_property
    def _has_gaps(self) -> bool:
        """True if some struct has lost all fields that it had in an earlier schema."""
        shown = {node.id: {child.id for child in node.children} for node in from_iceberg(self._state.schema).walk()}
        older = (node for source in self._state.schemas for node in from_iceberg(source).walk() if node.children)
        return any(node.id in shown and not shown[node.id] & {child.id for child in node.children} for node in older)

    @cached_property
    def _by_name(self) -> frozenset[str]:
        """Columns that always had the same name and type, with no other column ever having that name."""
        history: dict[str, set[tuple[int, str]]] = {}
        names: dict[int, set[str]] = {}
        for schema in (*self._state.schemas, self._state.schema):
            for field in schema.fields:
                # Spark's Parquet reader may match names case-insensitively.
                history.setdefault(field.name.lower(), set()).add((field.field_id, str(field.field_type)))
                names.setdefault(field.field_id, set()).add(field.name)
        stable = (f for f in self._state.schema.fields if len(history[f.name.lower()]) == len(names[f.field_id]) == 1)
        return frozenset(field.name for field in stable)


class ListedFiles(ManifestReader):
    """Scan planning for listed files of a state."""

    def __init__(self, state: State, locations: Collection[str]) -> None:
        super().__init__(state)
        self._locations = frozenset(locations)

    @property
    def version(self) -> str:
        return f"{super().version} {hash(self._locations)}"

    def files(self, conditions: Sequence[Filter]) -> Iterator[DataFile]:
        # Manifests of several snapshots list a file again where it was merged into a later one.
        found = {file.file_path: file for file in super().files(conditions) if file.file_path in self._locations}
        return iter(found.values())


class WithoutAppends(ManifestReader):
    """Scan planning for a state without the files that some snapshots have added.

    Parameters
    ----------
    state : State
    left_out : frozenset of int
        Ids of the snapshots.
    """

    def __init__(self, state: State, left_out: frozenset[int]) -> None:
        super().__init__(state)
        self._left_out = left_out

    def _entries(self, conditions: Sequence[Filter]) -> Iterator[ManifestEntry]:
        return (entry for entry in super()._entries(conditions) if entry.snapshot_id not in self._left_out)


class _Pruner:
    """Pruning of manifests and files by partition values and statistics."""

    def __init__(self, state: State, wanted: BooleanExpression) -> None:
        self._state = state
        self._wanted = wanted
        self._all = isinstance(wanted, AlwaysTrue)
        self._manifests: dict[int, Callable[[ManifestFile], bool]] = {}
        self._partitions: dict[int, Callable[[Any], bool]] = {}

    def may_hold(self, manifest: ManifestFile) -> bool:
        if not manifests.is_data(manifest):
            return False
        if self._all:
            return True
        number = manifest.partition_spec_id
        if number not in self._manifests:
            spec = self._state.specs[number]
            if any(field.source_id not in self._state.schema.field_ids for field in spec.fields):
                # Its column has been dropped: PyIceberg does not know the type of its values.
                self._manifests[number] = self._partitions[number] = lambda _: True
                return True
            projected = inclusive_projection(self._state.schema, spec)(self._wanted)
            self._manifests[number] = manifest_evaluator(spec, self._state.schema, projected, case_sensitive=True)
            kind = IcebergSchema(*spec.partition_type(self._state.schema).fields)
            self._partitions[number] = expression_evaluator(kind, projected, case_sensitive=True)
        return self._manifests[number](manifest)

    def may_match(self, file: DataFile) -> bool:
        if self._all:
            return True
        if not self._partitions[file.spec_id](file.partition):
            return False
        return bool(_InclusiveMetricsEvaluator(self._state.schema, self._wanted).eval(file))
