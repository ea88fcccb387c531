"""``DELETE FROM ... WHERE`` and ``TRUNCATE TABLE``: each is a two-phase statement that replaces files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.catalog import Catalog
from twophase.errors import CatalogError
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, quote
from twophase.spark import live
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm.bridge import CATALOG
from twophase.spark.jvm.parquet import table_frame
from twophase.spark.native.parquet import ParquetScanBuilder, ParquetTable
from twophase.spark.native.read import PLAIN, filter_of
from twophase.spark.native.table import WriteTable

if TYPE_CHECKING:
    from twophase.spark.session import Handle

# ruff: noqa: N802

_DAY = 86_400_000_000  # microseconds
_METRICS = "org.apache.spark.sql.connector.metric."
_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "<=>": lambda left, right: left.eqNullSafe(right),
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
    "STARTS_WITH": lambda left, right: left.startswith(right),
    "ENDS_WITH": lambda left, right: left.endswith(right),
    "CONTAINS": lambda left, right: left.contains(right),
}


class DeletableTable(WriteTable):
    """The target of ``INSERT`` and ``DELETE``."""

    #: Spark deletes only from what could be read, too.
    offers: tuple[str, ...] = (*WriteTable.offers, "BATCH_READ")

    def newScanBuilder(self, _: Any) -> Any:
        with thrown_to_spark(self._jvm):
            source = self._catalog.read_source(self._path)
            if source.files is None:
                self._catalog.plan_delete(self._path, ())  # It says why not.
                raise CatalogError(f"Rows of {self._path} cannot be deleted.", path=self._path)
            return ParquetScanBuilder(self._jvm, self._schema_json, source.files)

    def canDeleteWhere(self, predicates: Any) -> bool:
        with thrown_to_spark(self._jvm):
            return all(condition_of(predicate) is not None for predicate in predicates)

    def deleteWhere(self, predicates: Any, *_: Any) -> None:
        with thrown_to_spark(self._jvm):
            delete(self._handle, self._catalog, self._path, list(predicates))

    def truncateTable(self, *_: Any) -> bool:
        with thrown_to_spark(self._jvm):
            truncate(self._handle, self._catalog, self._path)
            return True

    def supportedCustomMetrics(self) -> Any:
        return self._jvm.array(_METRICS + "CustomMetric")

    def reportDriverMetrics(self) -> Any:
        return self._jvm.array(_METRICS + "CustomTaskMetric")

    class Java:
        implements = [CATALOG + "SupportsRead", CATALOG + "SupportsWrite", CATALOG + "SupportsDeleteV2"]


class TruncatableParquetTable(ParquetTable):
    """A table that is read, and the target of ``TRUNCATE TABLE``."""

    def truncateTable(self, *_: Any) -> bool:
        with thrown_to_spark(self._jvm):
            truncate(self._handle, self._catalog, self._path)
            return True

    def supportedCustomMetrics(self) -> Any:
        return self._jvm.array(_METRICS + "CustomMetric")

    def reportDriverMetrics(self) -> Any:
        return self._jvm.array(_METRICS + "CustomTaskMetric")

    class Java:
        implements = [CATALOG + "SupportsRead", CATALOG + "TruncatableTable"]


def delete(handle: Handle, catalog: Catalog, path: ObjectPath, predicates: Sequence[Any]) -> None:
    """Delete the rows that fulfil all predicates: files of only such rows go, others are written anew without them."""
    wanted = None
    for predicate in predicates:
        condition = condition_of(predicate)
        assert condition is not None
        wanted = condition if wanted is None else wanted & condition
    plan = catalog.plan_delete(path, [filter_of(predicate) for predicate in predicates])
    if not plan.files:
        return
    definition = catalog.load_table(path)
    scope = OverwriteScope(files=plan.files, version=plan.version)
    if plan.rewritten is None or plan.rewritten.files is None:
        rows: Any = definition.schema.empty_table()
    else:
        table = ParquetTable(handle, catalog, path, plan.rewritten.definition or definition, plan.rewritten.files)
        rows = table_frame(handle.jvm, table)
        # A row whose condition is NULL stays.
        rows = rows.where(~_otherwise_false(wanted)) if wanted is not None else rows.limit(0)
    replace_rows(handle, catalog, path, definition, scope, rows)


def truncate(handle: Handle, catalog: Catalog, path: ObjectPath) -> None:
    """Replace all rows by none."""
    definition = catalog.load_table(path)
    replace_rows(handle, catalog, path, definition, OverwriteScope(), definition.schema.empty_table())


def replace_rows(
    handle: Handle, catalog: Catalog, path: ObjectPath, definition: TableDefinition, scope: OverwriteScope, rows: Any
) -> None:
    """Replace what a scope names by rows, as a statement of its own."""
    described = TableDefinition(pa.schema(list(definition.schema)))
    statement = live.open_statement(handle, catalog, path, described, Purpose.INSERT_OVERWRITE, scope)
    live.run_statement(handle, statement, rows, definition)


def _otherwise_false(condition: Any) -> Any:
    from pyspark.sql.functions import coalesce, lit

    return coalesce(condition, lit(False))


# -- predicates as columns ---------------------------------------------------------------------------------------------


def condition_of(predicate: Any) -> Any | None:
    """A ``Predicate`` of Spark's as a column of PySpark; None where there is none that says the same."""
    from pyspark.sql.functions import lit

    name, children = str(predicate.name()), list(predicate.children())
    if name in ("ALWAYS_TRUE", "ALWAYS_FALSE"):
        return lit(name == "ALWAYS_TRUE")
    if name in ("AND", "OR", "NOT"):
        parts: list[Any] = [condition_of(child) for child in children]
        if any(part is None for part in parts):
            return None
        if name == "NOT":
            return ~parts[0]
        return parts[0] & parts[1] if name == "AND" else parts[0] | parts[1]
    sides: list[Any] = [_side(child) for child in children]
    if any(side is None for side in sides):
        return None
    if name in ("IS_NULL", "IS_NOT_NULL"):
        return sides[0].isNull() if name == "IS_NULL" else sides[0].isNotNull()
    if name == "IN":
        return sides[0].isin(*sides[1:])
    return _COMPARE[name](*sides) if name in _COMPARE and len(sides) == 2 else None


def _side(expression: Any) -> Any | None:
    from pyspark.sql.functions import col

    kind = str(expression.getClass().getSimpleName())
    if kind == "FieldReference":
        return col(".".join(quote(str(name)) for name in expression.fieldNames()))
    if kind != "LiteralValue":
        return None
    value = expression.value()
    return None if value is None else _literal(value, str(expression.dataType().typeName()))


def _literal(value: Any, kind: str) -> Any | None:
    """A value of Spark's as a column, whatever the time zones of the session and the process; None for other kinds."""
    from pyspark.sql.functions import date_from_unix_date, lit, timestamp_micros

    # Instants and dates stay the numbers that Spark has: Python's own lack years, and ``lit`` counts in local time.
    if kind == "date":
        return date_from_unix_date(lit(value))
    if kind == "timestamp":
        return timestamp_micros(lit(value))
    if kind == "timestamp_ntz":
        return _local_time(value)
    if kind.startswith("decimal"):
        return lit(str(value.toString())).cast(kind)
    if kind == "string":
        return lit(str(value))
    return lit(value).cast(kind) if kind in PLAIN else None


def _local_time(micros: int) -> Any:
    from pyspark.sql.functions import date_from_unix_date, lit, make_dt_interval

    days, rest = divmod(micros, _DAY)
    since = make_dt_interval(lit(0), lit(0), lit(0), lit(Decimal(rest).scaleb(-6)))
    return date_from_unix_date(lit(days)).cast("timestamp_ntz") + since
