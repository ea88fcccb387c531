"""Session tables that a block with a snapshot names by their catalog, as ``hive.db.t``.

Their files are checked when the query has listed them. Without the catalog's name Spark's own relations are read, whose
files are checked as well (``java/SnapshotFiles.java``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twophase.catalog import Catalog, SupportsSnapshots
from twophase.catalog.reading import FileList, ReadSource
from twophase.model import ObjectPath, TableDefinition
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.base import Proxy
from twophase.spark.connector.table import ReadTable
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm.listed import checked_scan_builder, listed_index
from twophase.transactions.transaction import Transaction

# ruff: noqa: N802


def lists_when_executed(catalog: Catalog, path: ObjectPath, transaction: Transaction | None) -> bool:
    """Return whether a transaction must check the files of a table when Spark has listed them."""
    if transaction is None or not transaction.isolation.pins_reads:
        return False
    return isinstance(catalog, SupportsSnapshots) and catalog.lists_when_executed(path)


class CheckedTable(ReadTable):
    """A table whose files, of the partitions that a query needs, are listed when it runs.

    If other transactions have changed the table by then, its former files are read instead.
    """

    def __init__(
        self,
        session: AttachedSession,
        catalog: Catalog,
        path: ObjectPath,
        definition: TableDefinition,
        source: ReadSource,
        transaction: Transaction,
    ) -> None:
        super().__init__(session, catalog, path, definition)
        self._source = source
        self._transaction = transaction

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self._transaction.id)

    def newScanBuilder(self, options: Any) -> Any:
        with thrown_to_spark(self._jvm):
            self._reading()
            facts, read_with = self._schema_json, self._definition.options
            columns, provider = self._definition.partition_columns, str(self._source.provider)
            former = FormerFiles(self, facts, lambda: self._transaction.instead_of_listed(self._catalog, self._path))
            name = self._source.name or self._path
            return checked_scan_builder(
                self._jvm, provider, name, facts, columns, read_with, options, former, self._transaction.id
            )

    def _index(self, listed: FileList, schema_json: str) -> Any:
        """Spark's index of a list of the table's files."""
        return listed_index(self._jvm, listed, schema_json, self._definition.options)


class FormerFiles(Proxy):
    """Returns what is to be read instead of the files that were just listed."""

    def __init__(self, table: CheckedTable, schema_json: str, look: Callable[[], ReadSource | None]) -> None:
        super().__init__(table._jvm)
        self._table = table
        self._schema_json = schema_json
        self._look = look

    def get(self) -> Any:
        """The index of other files; None if the listed ones are right."""
        with thrown_to_spark(self._jvm):
            source = self._look()
            listed = None if source is None else source.listed
            return None if listed is None else self._table._index(listed, self._schema_json)

    class Java:
        implements = ["java.util.function.Supplier"]
