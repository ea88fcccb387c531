"""``DELETE FROM ... WHERE`` and ``TRUNCATE TABLE``: each is a two-phase statement that replaces files."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalog import Catalog, SupportsDelete
from twophase.catalog.capabilities import required
from twophase.catalog.reading import Deletion
from twophase.catalog.schema_changes import MERGE_SCHEMA
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition
from twophase.spark import active, types
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.conditions import condition_of
from twophase.spark.connector.parquet import ParquetScanBuilder, ParquetTable
from twophase.spark.connector.read import BatchesTable, filter_of
from twophase.spark.connector.table import TableProxy, WriteTable
from twophase.spark.connector.write import Insert
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm.gateway import CATALOG
from twophase.spark.jvm.parquet import table_frame
from twophase.spark.staged import staged_table
from twophase.spark.statement import StatementContext, open_statement, run_statement
from twophase.spark.versions_read import version_read
from twophase.transactions.driver import concerning
from twophase.transactions.failures import rows_read_before

# ruff: noqa: N802


#: The interfaces of a table that is read, and emptied.
TRUNCATABLE = [CATALOG + "SupportsRead", CATALOG + "TruncatableTable"]


class _Truncatable(TableProxy):
    """A table that is emptied by an overwrite without rows."""

    def truncateTable(self, *_: Any) -> bool:
        with thrown_to_spark(self._jvm):
            truncate(self._session, self._catalog, self._path)
            return True

    class Java:
        implements = TRUNCATABLE


class DeletableTable(_Truncatable, WriteTable):
    """The target of ``INSERT`` and ``DELETE``."""

    #: Spark deletes only from tables that it can also read.
    spark_capabilities: tuple[str, ...] = (*WriteTable.spark_capabilities, "BATCH_READ")

    def newScanBuilder(self, _: Any) -> Any:
        with thrown_to_spark(self._jvm), concerning(self._path):
            refuse_staged(self._session, self._catalog, self._path, "deleted")
            source = self._catalog.read_source(self._path)
            if source.files is None:
                _plan(self._catalog, self._path, ())  # It raises the reason.
                raise CatalogError(f"Rows of {self._path} cannot be deleted.", path=self._path)
            return ParquetScanBuilder(self._jvm, self._path, self._schema_json, source.files)

    def _replacing(self, rows: TableDefinition, conditions: Sequence[Any]) -> Insert:
        refuse_staged(self._session, self._catalog, self._path, "overwritten by a condition")
        if any(condition_of(condition) is None for condition in conditions):
            shown = " AND ".join(str(condition.toString()) for condition in conditions)
            raise AtomicityNotSupportedError(
                f"{self.name()} was not written: rows cannot be overwritten by the condition {shown}; "
                "nothing was started.",
                path=self._path,
                hint="Compare columns with values; or DELETE FROM and INSERT INTO in one twophase.transaction.",
            )
        return lambda df, _: self._replace_where(rows, conditions, df)

    def _replace_where(self, rows: TableDefinition, predicates: Sequence[Any], df: Any) -> None:
        """Replace the rows that match all predicates by others, which need not: one statement, and one publish."""
        context = StatementContext.of(self._session)
        plan = _plan(self._catalog, self._path, predicates)
        self._require_as_read(plan, df)
        definition = self._catalog.load_table(self._path)
        kept = _kept(self._session, self._catalog, self._path, plan, predicates)
        if kept is not None and MERGE_SCHEMA in rows.options:  # Spark has then left the columns as the rows have them.
            df = df.unionByName(kept, allowMissingColumns=True)
            rows = replace(rows, schema=types.to_arrow_schema(df.schema))
        elif kept is not None:
            df = df.union(kept)
        scope = OverwriteScope(files=plan.files, version=plan.version)
        purpose, columns = Purpose.INSERT_OVERWRITE, None if self._brings else self._definition.schema.names
        statement = open_statement(context, self._catalog, self._path, rows, purpose, scope, columns=columns)
        run_statement(self._session, statement, df, lambda: definition)

    def _require_as_read(self, plan: Deletion, df: Any) -> None:
        """Refuse rows that were read of another state of this table than the one whose rows they replace."""
        if version_read(self._jvm, df, self._catalog, self._path) not in (None, plan.version):
            raise rows_read_before(self.name())

    def canDeleteWhere(self, predicates: Any) -> bool:
        with thrown_to_spark(self._jvm):
            return all(condition_of(predicate) is not None for predicate in predicates)

    def deleteWhere(self, predicates: Any, *_: Any) -> None:
        with thrown_to_spark(self._jvm):
            delete(self._session, self._catalog, self._path, list(predicates))

    class Java:
        implements = [CATALOG + "SupportsRead", CATALOG + "SupportsWrite", CATALOG + "SupportsDeleteV2"]


class TruncatableBatchesTable(_Truncatable, BatchesTable):
    """A table for reads, and the target of ``TRUNCATE TABLE``."""

    class Java:
        implements = TRUNCATABLE


class TruncatableParquetTable(_Truncatable, ParquetTable):
    """A table for reads, and the target of ``TRUNCATE TABLE``."""

    class Java:
        implements = TRUNCATABLE


def _plan(catalog: Catalog, path: ObjectPath, predicates: Sequence[Any]) -> Deletion:
    deleting = required(catalog, SupportsDelete, "cannot delete rows", path)
    with concerning(path):
        return deleting.plan_delete(path, [filter_of(predicate) for predicate in predicates])


def delete(session: AttachedSession, catalog: Catalog, path: ObjectPath, predicates: Sequence[Any]) -> None:
    """Delete the rows that match all predicates: files of only such rows are removed, others are rewritten.

    Raises
    ------
    AtomicityNotSupportedError
        The surrounding transaction has written the table itself.
    SnapshotTooOldError
        There is nothing to delete, in another state of the table than the one that the transaction sees.
    """
    refuse_staged(session, catalog, path, "deleted")
    plan = _plan(catalog, path, predicates)
    if not plan.files:
        note_nothing_found(session, catalog, path, plan)
        return
    definition = catalog.load_table(path)
    kept = _kept(session, catalog, path, plan, predicates)
    rows: Any = definition.schema.empty_table() if kept is None else kept
    replace_rows(session, catalog, path, definition, OverwriteScope(files=plan.files, version=plan.version), rows)


def _kept(
    session: AttachedSession, catalog: Catalog, path: ObjectPath, plan: Deletion, predicates: Sequence[Any]
) -> Any | None:
    """The kept rows of the replaced files; None if there are certainly none."""
    if plan.rewritten is None or plan.rewritten.files is None:
        return None
    shown = plan.rewritten.definition or catalog.load_table(path)
    table = ParquetTable(session, catalog, path, shown, plan.rewritten.files)
    found = [condition for condition in map(condition_of, predicates) if condition is not None]
    assert len(found) == len(predicates)
    rows = table_frame(session.jvm, table)
    # A row whose condition is NULL is kept.
    return rows.where(~_otherwise_false(functools.reduce(operator.and_, found))) if found else rows.limit(0)


def refuse_staged(session: AttachedSession, catalog: Catalog, path: ObjectPath, what: str) -> None:
    """Refuse a condition on the rows of a table that the surrounding transaction has written itself.

    A plan knows only the published files: rows that the transaction has staged would silently stay.

    Parameters
    ----------
    session : AttachedSession
    catalog : Catalog
    path : ObjectPath
    what : str
        What cannot be done to the rows, in a participle.

    Raises
    ------
    AtomicityNotSupportedError
    """
    if found := staged_table(session, catalog, path):
        raise AtomicityNotSupportedError(
            f"{path}: rows that this transaction itself has written cannot be {what} in it; nothing was started.",
            path=path,
            transaction_id=found[0].transaction_id,
            hint=f"Leave them out of what is written, or have them {what} after the transaction.",
        )


def note_nothing_found(session: AttachedSession, catalog: Catalog, path: ObjectPath, plan: Deletion) -> None:
    """Record in the surrounding transaction that a table has no rows to delete: it rests on that, as on a read.

    Raises
    ------
    SnapshotTooOldError
        The transaction sees another state of the table, which may have such rows.
    """
    transaction = active.current_transaction(session)
    if transaction is not None:
        transaction.note_read(catalog, path, plan.version)


def truncate(session: AttachedSession, catalog: Catalog, path: ObjectPath) -> None:
    """Replace all rows by none."""
    definition = catalog.load_table(path)
    replace_rows(session, catalog, path, definition, OverwriteScope(), definition.schema.empty_table())


def replace_rows(
    session: AttachedSession,
    catalog: Catalog,
    path: ObjectPath,
    definition: TableDefinition,
    scope: OverwriteScope,
    rows: Any,
) -> None:
    """Replace the rows of a scope, in a statement of its own."""
    described = TableDefinition(pa.schema(list(definition.schema)))
    statement = open_statement(StatementContext.of(session), catalog, path, described, Purpose.INSERT_OVERWRITE, scope)
    run_statement(session, statement, rows, lambda: definition)


def _otherwise_false(condition: Any) -> Any:
    from pyspark.sql.functions import coalesce, lit

    return coalesce(condition, lit(False))
