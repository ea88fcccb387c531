"""Tables as Spark sees them: what is read, what is written, and what is staged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableAlreadyExistsError, TransactionAborted
from twophase.hooks.statement import Statement
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition
from twophase.refusals import changed_since_read
from twophase.spark import live, types
from twophase.spark.errors import thrown_to_spark
from twophase.spark.intent import overwrite_of, stated_overwrite
from twophase.spark.jvm.bridge import CATALOG, INTENT_PROPERTY
from twophase.spark.jvm.remembering import ALWAYS, Lasting
from twophase.spark.native.base import Proxy
from twophase.spark.native.definition import table_properties, table_transforms, with_written_values
from twophase.spark.native.scans import version_read
from twophase.spark.native.write import Insert, WriteBuilder

if TYPE_CHECKING:
    from twophase.spark.session import Handle

# ruff: noqa: N802

#: What never changes of a table as it was loaded or staged.
TABLE_ANSWERS: Lasting = dict.fromkeys(
    (
        *("name", "toString", "hashCode", "id", "version", "schema", "columns", "partitioning", "properties"),
        *("constraints", "capabilities"),
    ),
    ALWAYS,
)


def _is_sparks_own(option: str) -> bool:
    """Whether Spark has done what an option of a read says."""
    return option.lower() in ("versionasof", "timestampasof") or option.startswith("__")


class TableProxy(Proxy):
    """A table's description; as it is it can be described but neither read nor written."""

    #: Names of Spark's ``TableCapability``.
    offers: tuple[str, ...] = ()
    #: Opens the table once more, with options of a read; None where it is no state that options can choose.
    reopen: Callable[[Mapping[str, str]], TableProxy] | None = None
    #: The state of the table that is read, where its catalog tells it; see :attr:`ReadSource.version`.
    version_read: str | None = None

    def __init__(self, handle: Handle, catalog: Catalog, path: ObjectPath, definition: TableDefinition) -> None:
        super().__init__(handle.jvm)
        self._handle = handle
        self._catalog = catalog
        self._path = path
        self._definition = definition

    def _identity(self) -> tuple[Any, ...]:
        # Spark compares tables to find cached queries: another version of the table is another table.
        return (self._catalog.name, self._path, self._definition.location, self._schema_json, self.version_read)

    def name(self) -> str:
        return f"{self._handle.name_of(self._catalog)}.{self._path}"

    def toString(self) -> str:
        return self.name()

    def id(self) -> None:
        return None

    def version(self) -> None:
        return None

    @cached_property
    def _schema_json(self) -> str:
        return types.from_arrow(self._definition.schema)

    def schema(self) -> Any:
        return self._jvm.struct(self._schema_json)

    def columns(self) -> Any:
        return self._jvm.columns(self.schema())

    def _as_asked(self, options: Any) -> TableProxy:
        """The table as the options of a read ask for it.

        Raises
        ------
        CatalogError
            An option that the catalog does not know, or that has no sense here.
        """
        told = {} if options.isEmpty() else self._jvm.entries(options.asCaseSensitiveMap())
        idle = self._catalog.idle_read_options
        told = {k: v for k, v in told.items() if not _is_sparks_own(k) and k.lower() not in idle}
        if not told:
            return self
        if self.reopen is None:
            raise CatalogError(
                f"{self.name()} cannot be read with the option {', '.join(told)}: the statement names a state of it "
                "already, or its transaction has written it.",
                path=self._path,
            )
        found = self.reopen(told)
        if found._schema_json != self._schema_json:
            raise CatalogError(f"{self.name()} was altered meanwhile.", path=self._path, hint="Run the query again.")
        return found

    def _scan_builder(self) -> Proxy:
        """What learns the columns and conditions of a read."""
        raise NotImplementedError

    def partitioning(self) -> Any:
        return self._jvm.transforms(table_transforms(self._definition))

    def properties(self) -> Any:
        return self._jvm.map(table_properties(self._definition))

    def constraints(self) -> Any:
        return self._jvm.array(CATALOG + "constraints.Constraint")

    def capabilities(self) -> Any:
        return self._jvm.capabilities(*self.offers)

    class Java:
        implements = [CATALOG + "Table"]


class FilesTable(TableProxy):
    """A table whose files Spark's own file source reads, vectorised and with its push-downs."""

    offers = ("BATCH_READ",)

    def __init__(
        self,
        handle: Handle,
        catalog: Catalog,
        path: ObjectPath,
        definition: TableDefinition,
        provider: str | None,
        location: str,
    ) -> None:
        super().__init__(handle, catalog, path, definition)
        self._provider = provider or definition.provider or "parquet"
        self._location = location

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self._location)

    def newScanBuilder(self, options: Any) -> Any:
        with thrown_to_spark(self._jvm):
            definition = self._definition
            files = self._jvm.file_table(
                self._provider,
                self._location,
                self._schema_json,
                definition.options,
            )
            return files.newScanBuilder(options)

    class Java:
        implements = [CATALOG + "SupportsRead"]


class WriteTable(TableProxy):
    """The target of ``INSERT``: each insert becomes one two-phase statement."""

    offers: tuple[str, ...] = ("V1_BATCH_WRITE", "TRUNCATE", "OVERWRITE_BY_FILTER")

    def __init__(self, handle: Handle, catalog: Catalog, path: ObjectPath, definition: TableDefinition) -> None:
        super().__init__(handle, catalog, path, definition)
        staged = live.staged(handle, catalog, path)
        self._defaults = catalog.column_defaults(path, staged[0] if staged else None)

    @cached_property
    def _schema_json(self) -> str:
        return types.with_defaults(types.from_arrow(self._definition.schema), self._defaults)

    def capabilities(self) -> Any:
        more = ("ACCEPT_ANY_SCHEMA",) if self._catalog.accepts_any_schema(self._definition) else ()
        return self._jvm.capabilities(*self.offers, *more)

    def newWriteBuilder(self, info: Any) -> Any:
        with thrown_to_spark(self._jvm):
            stated, options = stated_overwrite(self._jvm.entries(info.options().asCaseSensitiveMap()))
            if stated is not None:
                stated = with_written_values(self._jvm, stated, self._definition)
            rows = TableDefinition(schema=types.to_arrow(str(info.schema().json())), options=options)
            return WriteBuilder(
                self._jvm,
                self._definition,
                lambda df, scope: self._insert(rows, df, scope or stated),
                lambda conditions: self._replacing(rows, conditions),
            )

    def _replacing(self, rows: TableDefinition, conditions: Sequence[Any]) -> Insert:
        """Refuse to overwrite the rows that fulfil conditions."""
        raise AtomicityNotSupportedError(
            f"{self.name()}: rows cannot be overwritten by a condition in this catalog; nothing was started.",
            path=self._path,
            hint="Overwrite the whole table, or whole partitions (INSERT OVERWRITE ... PARTITION), with the new rows "
            "and those that are to stay.",
        )

    def _insert(self, rows: TableDefinition, df: Any, scope: OverwriteScope | None) -> None:
        # A dynamic overwrite arrives as an append: Spark has no such V1 write.
        scope = scope or overwrite_of(self._jvm.local_property(INTENT_PROPERTY), self._path)
        purpose = Purpose.INSERT_INTO if scope is None else Purpose.INSERT_OVERWRITE
        if scope is not None and scope.version is None:
            scope = replace(scope, version=version_read(self._jvm, df, self._catalog, self._path))
        statement = live.open_statement(self._handle, self._catalog, self._path, rows, purpose, scope)
        live.run_statement(self._handle, statement, df, self._definition)

    class Java:
        implements = [CATALOG + "SupportsWrite"]


class StagedTable(TableProxy):
    """The target of CTAS and RTAS: Spark commits or aborts it."""

    offers = ("V1_BATCH_WRITE", "TRUNCATE")

    def __init__(self, handle: Handle, statement: Statement, definition: TableDefinition) -> None:
        super().__init__(handle, statement.participant.catalog, statement.participant.path, definition)
        self._statement = statement
        self._has_query = False
        self._error: BaseException | None = None

    def _identity(self) -> tuple[Any, ...]:
        return (id(self),)

    def newWriteBuilder(self, info: Any) -> Any:
        return WriteBuilder(self._jvm, self._definition, lambda df, _: self._write(df))

    def _write(self, df: Any) -> None:
        self._has_query = True
        try:
            self._require_as_read(df)
            live.write_rows(self._handle, self._statement, df)
        except BaseException as error:
            self._error = error
            raise

    def _require_as_read(self, df: Any) -> None:
        """Refuse rows that were read of the replaced table before another writer came."""
        version = version_read(self._jvm, df, self._catalog, self._path)
        if version is not None and self._catalog.table_version(self._path) != version:
            raise changed_since_read(self.name(), self._statement.transaction.id)

    def commitStagedChanges(self) -> None:
        with thrown_to_spark(self._jvm):
            if not self._has_query:  # REPLACE TABLE with columns of its own
                self._statement.write_nothing()
            try:
                live.finish_statement(self._handle, self._statement, self._definition)
            except TableAlreadyExistsError:
                # Another writer came first: the same error as when Spark had seen it before the job.
                identifier = self._jvm.identifier(list(self._path.namespace), self._path.name)
                with thrown_to_spark(self._jvm, identifier):
                    raise

    def abortStagedChanges(self) -> None:
        # Called even when commitStagedChanges threw; a statement that has ended takes no notice.
        with thrown_to_spark(self._jvm):
            self._statement.fail(
                self._error
                or TransactionAborted(
                    "Spark gave the statement up before its rows were written.",
                    path=self._path,
                    transaction_id=self._statement.transaction.id,
                )
            )

    def reportDriverMetrics(self) -> Any:
        return self._jvm.array("org.apache.spark.sql.connector.metric.CustomTaskMetric")

    class Java:
        implements = [CATALOG + "StagedTable", CATALOG + "SupportsWrite"]
