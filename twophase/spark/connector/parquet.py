"""Tables whose catalog lists their Parquet files; Spark's own vectorised reader reads them, by field ids."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twophase.catalog import Catalog
from twophase.catalog.reading import FileReader, Filter, ParquetScan
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.base import Proxy
from twophase.spark.connector.read import READ, ScanBuilder
from twophase.spark.connector.spark_versions import tells_empty_structs
from twophase.spark.connector.table import ReadTable
from twophase.spark.errors import thrown_to_spark
from twophase.spark.execution.parquet import anonymous, pruned, top_level, with_ids
from twophase.spark.jvm import tables
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.parquet import parquet_scan
from twophase.spark.jvm.scans import empty_file
from twophase.transactions.driver import concerning

# ruff: noqa: N802


class ParquetTable(ReadTable):
    """A table whose files are listed by a :class:`twophase.catalog.reading.FileReader`."""

    def __init__(
        self,
        session: AttachedSession,
        catalog: Catalog,
        path: ObjectPath,
        definition: TableDefinition,
        files: FileReader,
    ) -> None:
        super().__init__(session, catalog, path, definition)
        self._files = files

    def _identity(self) -> tuple[Any, ...]:
        # A cached query of another version is another query.
        return (*super()._identity(), self._files.version)

    def _scan_builder(self) -> Proxy:
        return ParquetScanBuilder(self._jvm, self._path, self._schema_json, self._files)


class ParquetScanBuilder(ScanBuilder):
    """Builds a read by a :class:`twophase.catalog.reading.FileReader`; the scan is Spark's own."""

    def __init__(self, jvm: Jvm, path: ObjectPath, schema_json: str, files: FileReader) -> None:
        super().__init__(jvm, files)
        self._path = path
        self._wanted = schema_json
        self._files = files

    def pruneColumns(self, struct: Any) -> None:
        with thrown_to_spark(self._jvm):
            self._wanted = str(struct.json())

    def build(self) -> Any:
        with thrown_to_spark(self._jvm), concerning(self._path):
            scan = self._files.plan(self._conditions)
            whole = with_ids(scan.schema)
            prunes_structs = tells_empty_structs(self._jvm.spark)
            wanted = pruned(whole, self._wanted if prunes_structs else top_level(whole, self._wanted))
            if scan.has_gaps and not prunes_structs:
                raise CatalogError(
                    f"A struct of this table lost all fields that older files have of it, which Spark "
                    f"{self._jvm.spark.version} would read as NULL.",
                    hint="Read it with PySpark 4.3, or write its rows anew.",
                )
            # The Parquet reader looks up the columns of conditions among those of the file, whatever is read.
            by_name = [p for p, condition in self._pushed if set(_columns(condition)) <= scan.by_name]
            if scan.reuses_names:
                hidden, hidden_wanted = anonymous(whole, wanted)
                return RenamedScan(self._jvm, self._scan(scan, hidden, hidden_wanted, by_name), wanted)
            return self._scan(scan, whole, wanted, by_name)

    def _scan(self, scan: ParquetScan, schema: str, wanted: str, predicates: list[Any]) -> Any:
        found = parquet_scan(self._jvm, scan.locations, schema, wanted, predicates)
        # Spark would leave out such a file without a word.
        if (empty := empty_file(self._jvm, found)) is not None:
            raise CatalogError(
                f"{self._path} cannot be read: its file {empty} is empty, so that its rows are lost.",
                path=self._path,
                hint="Restore the file, or read the table as of an earlier snapshot.",
            )
        return found


class RenamedScan(Proxy):
    """Spark's own scan of fields under names that no file contains, shown under the table's names.

    The scan finds values by field ids and returns them by position; reused names would only mislead it.
    """

    def __init__(self, jvm: Jvm, scan: Any, schema: str) -> None:
        super().__init__(jvm)
        self._scan = scan
        self._schema = schema

    def readSchema(self) -> Any:
        with thrown_to_spark(self._jvm):
            return tables.struct(self._jvm, self._schema)

    def description(self) -> str:
        return str(self._scan.description())

    def toBatch(self) -> Any:
        return self._scan.toBatch()

    def estimateStatistics(self) -> Any:
        return self._scan.estimateStatistics()

    def estimateSizeInBytes(self) -> Any:
        return self._scan.estimateStatistics().sizeInBytes()

    def reflectsFullyPushedDownFilters(self) -> bool:
        return False

    def columnarSupportMode(self) -> Any:
        return tables.columnar_support(self._jvm, "PARTITION_DEFINED")

    class Java:
        implements = [READ + "SupportsReportStatistics"]


def _columns(condition: Filter) -> Iterator[str]:
    if condition.parts:
        for part in condition.parts:
            yield from _columns(part)
    else:
        yield condition.column
