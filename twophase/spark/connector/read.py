"""Tables that a catalog reads itself, on the executors, in Arrow batches.

The read is planned here, on the driver: its columns, conditions, and parts. The executors receive classes of Spark's
own Python data sources, which run a function over each part; no process is started for planning.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from twophase.catalog import Catalog
from twophase.catalog.reading import BatchReader, FileReader, Filter
from twophase.model import ObjectPath, TableDefinition
from twophase.spark import types
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.base import Proxy
from twophase.spark.connector.table import ReadTable
from twophase.spark.errors import thrown_to_spark
from twophase.spark.execution.partitions import pickled_part, read_parts
from twophase.spark.jvm import tables, values
from twophase.spark.jvm.gateway import Jvm

# ruff: noqa: N802

READ = "org.apache.spark.sql.connector.read."
_COMPARISONS = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: Types with the same values in Spark and in Python.
PLAIN = frozenset({"boolean", "byte", "short", "integer", "long", "float", "double"})
_EPOCH = datetime.datetime(1970, 1, 1)


class ScanBuilder(Proxy):
    """Receives the columns and conditions of a read.

    Parameters
    ----------
    jvm : Jvm
    reader : BatchReader or FileReader
        Says which conditions it accepts.
    """

    def __init__(self, jvm: Jvm, reader: BatchReader | FileReader) -> None:
        super().__init__(jvm)
        self._accepts = reader.accepts
        self._pushed: list[tuple[Any, Filter]] = []

    @property
    def _conditions(self) -> list[Filter]:
        return [condition for _, condition in self._pushed]

    def pushPredicates(self, predicates: Any) -> Any:
        with thrown_to_spark(self._jvm):
            found = list(predicates)
            conditions = ((predicate, filter_of(predicate)) for predicate in found)
            self._pushed = [(p, c) for p, c in conditions if c is not None and self._accepts(c)]
            # Spark evaluates all of them again: a store may compare texts by rules of its own, and skips whole files.
            return self._predicates(found)

    def pushedPredicates(self) -> Any:
        with thrown_to_spark(self._jvm):
            return self._predicates([predicate for predicate, _ in self._pushed])

    def _predicates(self, predicates: Sequence[Any]) -> Any:
        return values.array(self._jvm, "org.apache.spark.sql.connector.expressions.filter.Predicate", predicates)

    def supportsIterativePushdown(self) -> bool:
        return False

    class Java:
        implements = [READ + "SupportsPushDownRequiredColumns", READ + "SupportsPushDownV2Filters"]


class BatchesTable(ReadTable):
    """A table that is read by a :class:`twophase.catalog.BatchReader`."""

    def __init__(
        self,
        session: AttachedSession,
        catalog: Catalog,
        path: ObjectPath,
        definition: TableDefinition,
        reader: BatchReader,
    ) -> None:
        super().__init__(session, catalog, path, definition)
        self._reader = reader

    def _identity(self) -> tuple[Any, ...]:
        # As that of a ParquetTable.
        return (*super()._identity(), self._reader.version)

    def _scan_builder(self) -> Proxy:
        return BatchesScanBuilder(self._jvm, self.name(), self._definition.schema, self._reader)


class BatchesScanBuilder(ScanBuilder):
    """Builds a read by a :class:`twophase.catalog.BatchReader`."""

    def __init__(self, jvm: Jvm, name: str, schema: pa.Schema, reader: BatchReader) -> None:
        super().__init__(jvm, reader)
        self._name = name
        self._schema = schema
        self._reader = reader
        self._columns = list(schema.names)

    def pruneColumns(self, struct: Any) -> None:
        with thrown_to_spark(self._jvm):
            wanted = list(struct.fieldNames())
            # A row without columns cannot be counted: the first column is read instead.
            self._columns = wanted or self._columns[:1]

    def build(self) -> Any:
        with thrown_to_spark(self._jvm):
            schema = pa.schema([self._schema.field(name) for name in self._columns])
            return BatchesScan(self._jvm, self._name, schema, self._reader, self._conditions)


class BatchesScan(Proxy):
    """A read with its final columns and conditions."""

    def __init__(
        self, jvm: Jvm, name: str, schema: pa.Schema, reader: BatchReader, conditions: Sequence[Filter]
    ) -> None:
        super().__init__(jvm)
        self._name = name
        self._schema = schema
        self._reader = reader
        self._conditions = tuple(conditions)

    def readSchema(self) -> Any:
        with thrown_to_spark(self._jvm):
            return tables.struct(self._jvm, types.from_arrow(self._schema))

    def description(self) -> str:
        conditions = ", ".join(_shown(condition) for condition in self._conditions)
        return f"twophase {self._name} pushed: [{conditions}]"

    def toBatch(self) -> Any:
        return Batches(self._jvm, self._schema, self._reader, self._conditions)

    def columnarSupportMode(self) -> Any:
        return tables.columnar_support(self._jvm, "UNSUPPORTED")

    class Java:
        implements = [READ + "Scan"]


class Batches(Proxy):
    """The parts of a read, and their reader."""

    def __init__(self, jvm: Jvm, schema: pa.Schema, reader: BatchReader, conditions: tuple[Filter, ...]) -> None:
        super().__init__(jvm)
        self._schema = schema
        self._reader = reader
        self._conditions = conditions

    def planInputPartitions(self) -> Any:
        with thrown_to_spark(self._jvm):
            parts = self._reader.plan(self._schema.names, self._conditions)
            return tables.batch_partitions(self._jvm, [pickled_part(part) for part in parts])

    def createReaderFactory(self) -> Any:
        with thrown_to_spark(self._jvm):
            return tables.batch_reader_factory(
                self._jvm, read_parts, tables.struct(self._jvm, types.from_arrow(self._schema))
            )

    class Java:
        implements = [READ + "Batch"]


def _shown(condition: Filter) -> str:
    if condition.parts:
        return f"({f' {condition.operator} '.join(_shown(part) for part in condition.parts)})"
    return f"{condition.column} {condition.operator} {', '.join(map(str, condition.values))}".strip()


# -- predicates --------------------------------------------------------------------------------------------------------


def filter_of(predicate: Any) -> Filter | None:
    """A twophase condition from a Spark ``Predicate``; None if there is no equivalent."""
    name, children = str(predicate.name()), list(predicate.children())
    if name in ("AND", "OR"):
        parts = [filter_of(child) for child in children]
        return None if None in parts else Filter(name.lower(), parts=tuple(part for part in parts if part))
    if name in ("IS_NULL", "IS_NOT_NULL"):
        column = _column(children[0])
        return None if column is None else Filter(name.lower(), column)
    if name == "IN":
        return _comparison("in", children[0], children[1:])
    if name not in _COMPARISONS or len(children) != 2:
        return None
    if _column(children[0]) is None:
        return _comparison(_COMPARISONS[name], children[1], children[:1])
    return _comparison(name, children[0], children[1:])


def _comparison(operator: str, reference: Any, literals: Sequence[Any]) -> Filter | None:
    column = _column(reference)
    if column is None or not all(_is_literal(literal) for literal in literals):
        return None
    values = tuple(literal_of(literal) for literal in literals)
    return None if None in values else Filter(operator, column, values)


def _column(expression: Any) -> str | None:
    if str(expression.getClass().getSimpleName()) != "FieldReference":
        return None
    names = list(expression.fieldNames())
    return str(names[0]) if len(names) == 1 else None


def _is_literal(expression: Any) -> bool:
    return str(expression.getClass().getSimpleName()) == "LiteralValue"


def literal_of(literal: Any) -> Any:
    """A literal's value in Python; None for NULL, and for values that Python or some stores do not support."""
    value, kind = literal.value(), str(literal.dataType().typeName())
    if value is None or kind in ("date", "timestamp", "timestamp_ntz"):
        return None if value is None else _moment(value, kind)
    if kind.startswith("decimal"):
        return Decimal(str(value.toString()))
    if kind == "string":
        text = str(value)
        return None if "\0" in text else text  # PostgreSQL does not support such a text.
    # NaN and infinity: not every store supports them, or orders them as Spark does.
    is_known = kind in PLAIN and not (isinstance(value, float) and not math.isfinite(value))
    return value if is_known else None


def _moment(value: int, kind: str) -> datetime.date | None:
    """A date or an instant; None for a year outside Python's range."""
    try:
        if kind == "date":
            return _EPOCH.date() + datetime.timedelta(days=value)
        moment = _EPOCH + datetime.timedelta(microseconds=value)
    except OverflowError:
        return None
    return moment.replace(tzinfo=datetime.UTC) if kind == "timestamp" else moment
