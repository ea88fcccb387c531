"""Tables as Spark sees them: for reads, for writes, and for staging."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from twophase.catalog import Catalog, SupportsColumnDefaults, SupportsReadOptions
from twophase.catalog.reading import FileList
from twophase.catalog.schema_changes import MERGE_SCHEMA, SupportsSchemaOnWrite, accepts_any_schema
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableAlreadyExistsError, TransactionAborted
from twophase.hooks.statement import Statement
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition
from twophase.spark import types
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.base import Proxy
from twophase.spark.connector.definition import table_properties, table_transforms, with_written_values
from twophase.spark.connector.write import Insert, WriteBuilder
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm import local_properties, tables, values
from twophase.spark.jvm.callback_cache import ALWAYS, CachePolicy
from twophase.spark.jvm.defaults import with_waiting
from twophase.spark.jvm.gateway import CATALOG
from twophase.spark.jvm.listed import listed_scan_builder
from twophase.spark.jvm.local_properties import WRITE_HINTS
from twophase.spark.jvm.passed import write_info
from twophase.spark.staged import staged_table
from twophase.spark.statement import (
    StatementContext,
    finish_statement,
    open_statement,
    run_statement,
    scope_as_read,
    write_rows,
)
from twophase.spark.versions_read import StateRead, remember
from twophase.spark.write_hints import brings_columns, is_dynamic, stated_overwrite

# ruff: noqa: N802

#: Properties of a loaded or staged table that never change.
TABLE_ANSWERS: CachePolicy = dict.fromkeys(
    (
        *("name", "toString", "hashCode", "id", "version", "schema", "columns", "partitioning", "properties"),
        *("constraints", "capabilities"),
    ),
    ALWAYS,
)


def _is_sparks_own(option: str) -> bool:
    """Return whether Spark itself has applied an option of a read."""
    return option.lower() in ("versionasof", "timestampasof") or option.startswith("__")


def unread() -> None:
    """Do nothing: the callback of a read on which no transaction depends."""


class TableProxy(Proxy):
    """A table's description; by itself it can be described but neither read nor written."""

    #: Names of Spark's ``TableCapability``.
    spark_capabilities: tuple[str, ...] = ()
    #: Opens the table again, with options of a read; None if its version cannot be chosen by options.
    reopen: Callable[[Mapping[str, str]], TableProxy] | None = None
    #: Reports to the surrounding transaction that rows of the table are read; ``DESCRIBE`` reads none.
    _reading: Callable[[], None] = staticmethod(unread)
    #: The version of the table that is read, if its catalog reports it; see :attr:`ReadSource.version`.
    version_read: str | None = None
    #: Kept for as long as Spark holds this table.
    _state_read: StateRead | None = None

    def __init__(
        self, session: AttachedSession, catalog: Catalog, path: ObjectPath, definition: TableDefinition
    ) -> None:
        super().__init__(session.jvm)
        self._session = session
        self._catalog = catalog
        self._path = path
        self._definition = definition

    def _identity(self) -> tuple[Any, ...]:
        # Spark compares tables to find cached queries: another version of the table is another table.
        return (self._catalog.name, self._path, self._definition.location, self._schema_json, self.version_read)

    def _reads_version(self, version: str) -> None:
        """Set the version of the table whose rows are read."""
        self.version_read = version
        self._state_read = remember(self.hashCode(), StateRead(self.name(), self._catalog, self._path, version))

    def name(self) -> str:
        return f"{self._session.catalogs.name_of(self._catalog)}.{self._path}"

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
        return tables.struct(self._jvm, self._schema_json)

    def columns(self) -> Any:
        return tables.columns(self._jvm, self._schema_json)

    def _as_asked(self, options: Any) -> TableProxy:
        """The table with the options of a read applied.

        Raises
        ------
        CatalogError
            An option that the catalog does not know, or that does not apply here.
        """
        given = {} if options.isEmpty() else values.entries(self._jvm, options.asCaseSensitiveMap())
        idle = self._catalog.idle_read_options if isinstance(self._catalog, SupportsReadOptions) else ()
        given = {k: v for k, v in given.items() if not _is_sparks_own(k) and k.lower() not in idle}
        if not given:
            return self
        if self.reopen is None:
            raise CatalogError(
                f"{self.name()} cannot be read with the option {', '.join(given)}: the statement names a state of it "
                "already, or its transaction has written it.",
                path=self._path,
            )
        found = self.reopen(given)
        if found._schema_json != self._schema_json:
            raise CatalogError(f"{self.name()} was altered meanwhile.", path=self._path, hint="Run the query again.")
        return found

    def _scan_builder(self) -> Proxy:
        """The builder that receives the columns and conditions of a read."""
        raise NotImplementedError

    def partitioning(self) -> Any:
        return tables.transforms(self._jvm, table_transforms(self._definition))

    def properties(self) -> Any:
        return values.java_map(self._jvm, table_properties(self._definition))

    def constraints(self) -> Any:
        return values.array(self._jvm, CATALOG + "constraints.Constraint")

    def capabilities(self) -> Any:
        return tables.capabilities(self._jvm, *self.spark_capabilities)

    class Java:
        implements = [CATALOG + "Table"]


class ReadTable(TableProxy):
    """A table that is read."""

    spark_capabilities = ("BATCH_READ",)

    def newScanBuilder(self, options: Any) -> Any:
        with thrown_to_spark(self._jvm):
            self._reading()
            return self._as_asked(options)._scan_builder()

    class Java:
        implements = [CATALOG + "SupportsRead"]


class FilesTable(ReadTable):
    """A table whose files are read by Spark's own file source, vectorised and with its push-downs."""

    def __init__(
        self,
        session: AttachedSession,
        catalog: Catalog,
        path: ObjectPath,
        definition: TableDefinition,
        provider: str | None,
        location: str,
        listed: FileList | None = None,
    ) -> None:
        super().__init__(session, catalog, path, definition)
        self._provider = provider or definition.provider or "parquet"
        self._location = location
        self._listed = listed

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self._location, self._listed)

    def newScanBuilder(self, options: Any) -> Any:
        with thrown_to_spark(self._jvm):
            self._reading()
            facts, read_with = self._schema_json, self._definition.options
            if self._listed is not None:
                return listed_scan_builder(self._jvm, self._provider, self._listed, facts, read_with, options)
            return tables.file_table(self._jvm, self._provider, self._location, facts, read_with).newScanBuilder(
                options
            )


class WriteTable(TableProxy):
    """The target of ``INSERT``: each insert becomes one two-phase statement."""

    spark_capabilities: tuple[str, ...] = ("V1_BATCH_WRITE", "TRUNCATE", "OVERWRITE_BY_FILTER")

    def __init__(
        self, session: AttachedSession, catalog: Catalog, path: ObjectPath, definition: TableDefinition
    ) -> None:
        super().__init__(session, catalog, path, definition)
        staged = staged_table(session, catalog, path)
        self._defaults: Mapping[str, str | None] = {}
        if isinstance(catalog, SupportsColumnDefaults):
            self._defaults = catalog.column_defaults(path, staged[0] if staged else None)
        self._computed = {name for name, sql in self._defaults.items() if sql is None}
        hints = local_properties.get(session.spark.sparkContext, WRITE_HINTS)
        self._brings = isinstance(catalog, SupportsSchemaOnWrite) and (
            brings_columns(hints) or accepts_any_schema(catalog, definition)
        )

    def _identity(self) -> tuple[Any, ...]:
        return (*super()._identity(), self._brings)

    @cached_property
    def _schema_json(self) -> str:
        return types.with_defaults(types.from_arrow(self._definition.schema), self._defaults)

    def capabilities(self) -> Any:
        more = ("ACCEPT_ANY_SCHEMA",) if self._brings else ()
        return tables.capabilities(self._jvm, *self.spark_capabilities, *more)

    def newWriteBuilder(self, info: Any) -> Any:
        with thrown_to_spark(self._jvm):
            given, schema = write_info(self._jvm, info)
            stated, options = stated_overwrite(given)
            if stated is not None:
                stated = with_written_values(self._jvm, stated, self._definition)
            if isinstance(self._catalog, SupportsSchemaOnWrite):
                options = {key: value for key, value in options.items() if key.lower() != MERGE_SCHEMA.lower()}
                options |= {MERGE_SCHEMA: "true"} if self._brings else {}
            rows = TableDefinition(schema=types.to_arrow(schema), options=options)
            # Spark passes a DataFrameWriter's overwrite as one of the whole table; an INSERT has stated its scope.
            is_partitioned = any(transform.name != "cluster_by" for transform in self._definition.partitioning)
            whole = OverwriteScope(dynamic=is_partitioned and is_dynamic(given))
            return WriteBuilder(
                self._jvm,
                self._definition,
                lambda df, scope: self._insert(rows, df, (whole if scope == OverwriteScope() else scope) or stated),
                lambda conditions: self._replacing(rows, conditions),
            )

    def _replacing(self, rows: TableDefinition, conditions: Sequence[Any]) -> Insert:
        """Refuse to overwrite the rows that match conditions."""
        raise AtomicityNotSupportedError(
            f"{self.name()}: rows cannot be overwritten by a condition in this catalog; nothing was started.",
            path=self._path,
            hint="Overwrite the whole table, or whole partitions (INSERT OVERWRITE ... PARTITION), with the new rows "
            "and those that are to stay.",
        )

    def _insert(self, rows: TableDefinition, df: Any, scope: OverwriteScope | None) -> None:
        if self._computed and not self._brings:
            df = with_waiting(self._jvm, df, self._definition.schema.names, self._computed, self.name())
        # Where the rows bring columns, the catalog knows what the table has then.
        defined = None if self._brings else self._definition
        columns = None if defined is None else defined.schema.names
        _run_insert(self._session, self._catalog, self._path, rows, df, scope, lambda: defined, columns)

    class Java:
        implements = [CATALOG + "SupportsWrite"]


def insert_analyzed(
    session: AttachedSession, catalog: Catalog, path: ObjectPath, df: Any, facts: Mapping[str, Any]
) -> None:
    """Run an ``INSERT`` whose analysis stock Spark has finished: its rows are cast and in order.

    Parameters
    ----------
    session : AttachedSession
    catalog : Catalog
    path : ObjectPath
    df : pyspark.sql.DataFrame
    facts : mapping
        ``rows`` and ``partitions``, the JSON of the ``StructType`` of the rows and of the table's partition columns;
        ``columns``, the names of all its columns; ``options`` and ``table_options``, those of the statement and of the
        table.
    """
    scope, options = stated_overwrite(facts["options"])
    # Stock Spark has matched the columns, by position.
    options = {key: value for key, value in options.items() if key.lower() != MERGE_SCHEMA.lower()}
    if scope is not None and scope.static_partition:
        partitions = TableDefinition(schema=types.to_arrow(facts["partitions"]), options=facts["table_options"])
        scope = with_written_values(session.jvm, scope, partitions)
    rows = TableDefinition(schema=types.to_arrow(facts["rows"]), options=options)
    columns = facts["columns"]
    _run_insert(session, catalog, path, rows, df, scope, lambda: catalog.load_table(path), columns)


def _run_insert(
    session: AttachedSession,
    catalog: Catalog,
    path: ObjectPath,
    rows: TableDefinition,
    df: Any,
    scope: OverwriteScope | None,
    define: Callable[[], TableDefinition | None],
    columns: Sequence[str] | None,
) -> None:
    purpose = Purpose.INSERT_INTO if scope is None else Purpose.INSERT_OVERWRITE
    context = StatementContext.of(session)
    if scope is not None:
        scope = scope_as_read(context, catalog, path, scope, df)
    statement = open_statement(context, catalog, path, rows, purpose, scope, columns=columns)
    run_statement(session, statement, df, define)


class StagedTable(TableProxy):
    """The target of CTAS and RTAS: Spark commits or aborts it."""

    spark_capabilities = ("V1_BATCH_WRITE", "TRUNCATE")

    def __init__(self, session: AttachedSession, statement: Statement, definition: TableDefinition) -> None:
        super().__init__(session, statement.participant.catalog, statement.participant.path, definition)
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
            write_rows(self._session, self._statement, df)
        except BaseException as error:
            self._error = error
            raise

    def commitStagedChanges(self) -> None:
        with thrown_to_spark(self._jvm):
            if not self._has_query:  # REPLACE TABLE with columns of its own
                self._statement.write_nothing()
            try:
                finish_statement(self._session, self._statement, lambda: self._definition)
            except TableAlreadyExistsError:
                # Another writer was first: raise the error that Spark raises if it sees the table before the job.
                identifier = tables.identifier(self._jvm, list(self._path.namespace), self._path.name)
                with thrown_to_spark(self._jvm, identifier):
                    raise

    def abortStagedChanges(self) -> None:
        # Called even if commitStagedChanges threw; it has no effect on a statement that has ended.
        with thrown_to_spark(self._jvm):
            self._statement.fail(
                self._error
                or TransactionAborted(
                    "Spark gave the statement up before its rows were written.",
                    path=self._path,
                    transaction_id=self._statement.transaction.id,
                )
            )

    class Java:
        implements = [CATALOG + "StagedTable", CATALOG + "SupportsWrite"]
