"""``DELETE FROM ... WHERE`` and ``TRUNCATE TABLE``: each is a two-phase statement that replaces files."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.catalog import Catalog
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition
from twophase.reading import Deletion
from twophase.spark import live, types
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm.bridge import CATALOG
from twophase.spark.jvm.parquet import table_frame
from twophase.spark.native.conditions import condition_of
from twophase.spark.native.parquet import ParquetScanBuilder, ParquetTable
from twophase.spark.native.read import filter_of
from twophase.spark.native.table import WriteTable
from twophase.spark.native.write import Insert

if TYPE_CHECKING:
    from twophase.spark.session import Handle

# ruff: noqa: N802

_METRICS = "org.apache.spark.sql.connector.metric."


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

    def _replacing(self, rows: TableDefinition, conditions: Sequence[Any]) -> Insert:
        _refuse_staged(self._handle, self._catalog, self._path)
        if any(condition_of(condition) is None for condition in conditions):
            shown = " AND ".join(str(condition.toString()) for condition in conditions)
            raise AtomicityNotSupportedError(
                f"{self.name()} was not written: rows cannot be overwritten by the condition {shown}; "
                "nothing was started.",
                path=self._path,
                hint="Compare columns with values; or DELETE FROM and INSERT INTO in one twophase.transaction.",
            )
        return lambda df, _: replace_where(self._handle, self._catalog, self._path, rows, conditions, df)

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
    plan = catalog.plan_delete(path, [filter_of(predicate) for predicate in predicates])
    if not plan.files:
        return
    definition = catalog.load_table(path)
    kept = _kept(handle, catalog, path, plan, predicates)
    rows: Any = definition.schema.empty_table() if kept is None else kept
    replace_rows(handle, catalog, path, definition, OverwriteScope(files=plan.files, version=plan.version), rows)


def replace_where(
    handle: Handle, catalog: Catalog, path: ObjectPath, rows: TableDefinition, predicates: Sequence[Any], df: Any
) -> None:
    """Replace the rows that fulfil all predicates by others: one statement, and one publish.

    Parameters
    ----------
    handle : Handle
    catalog : Catalog
    path : ObjectPath
    rows : TableDefinition
        The schema of the new rows, and the options of their writer.
    predicates : sequence of Java ``Predicate``
    df : pyspark.sql.DataFrame
        The new rows; they need not fulfil the predicates.
    """
    plan = catalog.plan_delete(path, [filter_of(predicate) for predicate in predicates])
    definition = catalog.load_table(path)
    kept = _kept(handle, catalog, path, plan, predicates)
    if kept is not None and catalog.accepts_any_schema(definition):
        df = df.unionByName(kept, allowMissingColumns=True)
        rows = replace(rows, schema=types.to_arrow_schema(df.schema))
    elif kept is not None:
        df = df.union(kept)
    scope = OverwriteScope(files=plan.files, version=plan.version)
    statement = live.open_statement(handle, catalog, path, rows, Purpose.INSERT_OVERWRITE, scope)
    live.run_statement(handle, statement, df, definition)


def _kept(handle: Handle, catalog: Catalog, path: ObjectPath, plan: Deletion, predicates: Sequence[Any]) -> Any | None:
    """The rows of the replaced files that stay; None where there are none for sure."""
    if plan.rewritten is None or plan.rewritten.files is None:
        return None
    shown = plan.rewritten.definition or catalog.load_table(path)
    table = ParquetTable(handle, catalog, path, shown, plan.rewritten.files)
    found = [condition for condition in map(condition_of, predicates) if condition is not None]
    assert len(found) == len(predicates)
    rows = table_frame(handle.jvm, table)
    # A row whose condition is NULL stays.
    return rows.where(~_otherwise_false(functools.reduce(operator.and_, found))) if found else rows.limit(0)


def _refuse_staged(handle: Handle, catalog: Catalog, path: ObjectPath) -> None:
    if found := live.staged(handle, catalog, path):
        raise AtomicityNotSupportedError(
            f"{path}: rows that this transaction itself has written cannot be overwritten by a condition in it; "
            "nothing was started.",
            path=path,
            transaction_id=found[0].transaction_id,
            hint="Leave them out of what is written, or overwrite them after the transaction.",
        )


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
