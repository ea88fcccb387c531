"""A twophase catalog as a native Spark catalog: the Python side of Spark's ``StagingTableCatalog``, over Py4J.

Spark calls it from its analyser (``loadTable``, ``tableExists``) and from running statements (``stage*``,
``createTable``, ...). ``loadTable`` with write privileges returns a twophase table; without them, one that Spark reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from twophase.catalog import (
    Catalog,
    SupportsAlter,
    SupportsReadOptions,
    SupportsRename,
    SupportsRewrite,
    SupportsSavepoints,
    SupportsStagedAlter,
    SupportsStagedDrop,
    SupportsTimeTravel,
    TableChange,
)
from twophase.catalog.capabilities import required
from twophase.catalog.reading import ReadSource
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import ObjectPath, Purpose, TableDefinition
from twophase.spark import active, types
from twophase.spark.attached import AttachedSession
from twophase.spark.connector import schema_history
from twophase.spark.connector.base import Proxy
from twophase.spark.connector.checked import CheckedTable, lists_when_executed
from twophase.spark.connector.definition import changes_of, definition_of
from twophase.spark.connector.delete import DeletableTable, TruncatableBatchesTable, TruncatableParquetTable
from twophase.spark.connector.namespaces import NamespacesMixin
from twophase.spark.connector.parquet import ParquetTable
from twophase.spark.connector.read import BatchesTable
from twophase.spark.connector.spark_versions import definition_facts, is_for_writing, time_travel
from twophase.spark.connector.table import FilesTable, StagedTable, TableProxy, WriteTable, unread
from twophase.spark.ddl import created_tables, renamed_tables, rewriting
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm import caches, local_properties, tables, values
from twophase.spark.jvm.callback_cache import ALWAYS, CachePolicy
from twophase.spark.jvm.formats import DEFAULT_FORMAT, with_hive_format
from twophase.spark.jvm.gateway import CATALOG
from twophase.spark.jvm.local_properties import WRITE_HINTS
from twophase.spark.jvm.metastore import session_read_table
from twophase.spark.jvm.passed import object_path
from twophase.spark.schema_versions import altering, creating, dropping
from twophase.spark.staged import (
    is_dropped,
    require_there,
    staged_definition,
    staged_source,
    staged_table,
    staged_tables,
    written_definition,
)
from twophase.spark.statement import (
    StatementContext,
    drop_in_block,
    open_statement,
    run_in_block,
    run_without_rows,
)
from twophase.spark.write_hints import options_of
from twophase.transactions import failures, immediate
from twophase.transactions.immediate import changing
from twophase.transactions.named_savepoints import source_of_version

# ruff: noqa: N802

#: Spark's own name of the session catalog.
_SESSION = "spark_catalog"
#: Lifetimes of results in Spark's analyser, which asks for a database's properties fifteen times in one CREATE TABLE.
CATALOG_ANSWERS: CachePolicy = {
    **dict.fromkeys(("name", "toString", "hashCode", "capabilities", "supportedCustomMetrics"), ALWAYS),
    **dict.fromkeys(("useNullableQuerySchema", "tableStateOptionKeys", "changelogStateOptionKeys"), ALWAYS),
    "loadNamespaceMetadata": 250,
}


class NativeCatalog(NamespacesMixin, Proxy):
    """One catalog in one session.

    Parameters
    ----------
    session : AttachedSession
        The attached session.
    catalog : Catalog
    """

    def __init__(self, session: AttachedSession, catalog: Catalog) -> None:
        super().__init__(session.jvm)
        self._session = session
        self._catalog = catalog
        self._name = session.catalogs.name_of(catalog)

    # -- the plugin ----------------------------------------------------------------------------------------------

    def initialize(self, name: str, options: Any) -> None:
        """Spark's own initialisation; ours has already happened."""

    def name(self) -> str:
        return self._name

    def toString(self) -> str:
        return f"twophase catalog {self._name}"

    def capabilities(self) -> Any:
        defaults = ("SUPPORT_COLUMN_DEFAULT_VALUE",) if self._catalog.capabilities.column_defaults else ()
        return tables.catalog_capabilities(self._jvm, *defaults)

    def tableStateOptionKeys(self) -> Any:
        return values.java_set(self._jvm)

    def changelogStateOptionKeys(self) -> Any:
        return values.java_set(self._jvm)

    def useNullableQuerySchema(self) -> bool:
        return True

    # -- lookups -------------------------------------------------------------------------------------------------

    def listTables(self, namespace: Any) -> Any:
        with thrown_to_spark(self._jvm, namespace=namespace):
            levels = values.parts(self._jvm, namespace)
            database = ".".join(levels)
            names = self._catalog.list_tables(database)
            staged = staged_tables(self._session, self._catalog, database)
            dropped = staged_tables(self._session, self._catalog, database, dropped=True)
            names = [name for name in names if name not in dropped]
            identifiers = [tables.identifier(self._jvm, levels, name) for name in dict.fromkeys((*names, *staged))]
            return values.array(self._jvm, CATALOG + "Identifier", identifiers)

    def listTableSummaries(self, namespace: Any) -> Any:
        with thrown_to_spark(self._jvm, namespace=namespace):
            return tables.table_summaries(self._jvm, list(self.listTables(namespace)))

    def tableExists(self, identifier: Any) -> bool:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            if staged_table(self._session, self._catalog, path) is not None:
                return True
            if is_dropped(active.current_transaction(self._session), self._catalog, path):
                return False
            if schema_history.is_of_table(self._catalog, path):
                return True
            return bool(path.namespace) and self._catalog.table_exists(path)

    def invalidateTable(self, identifier: Any) -> None:
        """Let Spark resolve a session table again; no other table is cached here."""
        with thrown_to_spark(self._jvm, identifier):
            self._session.caches.forget(self._catalog, object_path(self._jvm, identifier))

    def loadTable(self, identifier: Any, *arguments: Any) -> Any:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            if not path.namespace:
                raise TableNotExistError(f"Table {path} has no database.", path=path)
            require_there(active.current_transaction(self._session), self._catalog, path)
            if is_for_writing(arguments):
                kind = DeletableTable if self._catalog.capabilities.delete else WriteTable
                return kind(self._session, self._catalog, path, self._definition(path))
            as_of = time_travel(arguments)
            if as_of:
                return self._read_table(path, self._source_as_of(path, **as_of))
            history = schema_history.source(self._session, self._catalog, path)
            return self._readable(path) if history is None else self._read_table(path, history)

    def _source_as_of(
        self, path: ObjectPath, *, version: str | None = None, timestamp: int | None = None
    ) -> ReadSource:
        """The source of an earlier state: of a named savepoint, or of one that the catalog itself has."""
        catalog = self._catalog
        if version is not None and isinstance(catalog, SupportsSavepoints):
            return source_of_version(self._session.coordinator.timeline, catalog, path, version)
        travelling = required(catalog, SupportsTimeTravel, "has no time travel", path)
        return travelling.read_source_as_of(path, version=version, timestamp=timestamp)

    def _definition(self, path: ObjectPath) -> TableDefinition:
        return written_definition(active.current_transaction(self._session), self._catalog, path)

    @property
    def _overwrites(self) -> bool:
        return Purpose.INSERT_OVERWRITE in self._catalog.capabilities.purposes

    def _readable(self, path: ObjectPath) -> Any:
        joined = active.current(self._session)
        if joined is not None and (shown := joined.shown(self._catalog, path)) is not None:
            return self._shown(path, shown)
        staged = staged_table(self._session, self._catalog, path)
        if staged:
            return self._read_table(path, staged_source(staged[0]), staged[1])
        try:
            source, reading = self._source(path)
        except AtomicityNotSupportedError:
            # It can still be described, replaced and dropped.
            return TableProxy(self._session, self._catalog, path, self._catalog.load_table(path))
        if source.kind == "session_table" and active.current_transaction(self._session) is not None:
            name = self._catalog.canonical(path)
            self._session.caches.require_current(self._catalog, name, self._catalog.table_version(name))
        table = self._checked_table(path, source) or self._read_table(path, source, None)
        # Rows that are cached are read without a scan.
        if isinstance(table, TableProxy) and caches.nothing_cached(self._jvm):
            table._reading = reading
        else:
            reading()
        if source.version is not None and isinstance(table, TableProxy):
            table._reads_version(source.version)
        if isinstance(table, TableProxy):
            table.reopen = lambda options: self._read_table(path, self._read_with(path, options), None)
        return table

    def _shown(self, path: ObjectPath, source: ReadSource) -> Any:
        """A table in another state than the transaction's."""
        table = self._read_table(path, source, None)
        if source.version is not None and isinstance(table, TableProxy):
            table._reads_version(source.version)
        return table

    def _read_with(self, path: ObjectPath, options: Mapping[str, str]) -> ReadSource:
        if not isinstance(self._catalog, SupportsReadOptions):
            raise CatalogError(f"There is no option {next(iter(options))} for a read of {path}.", path=path)
        return self._catalog.read_source_with(path, options)

    def _source(self, path: ObjectPath) -> tuple[ReadSource, Callable[[], None]]:
        """The source of a table's reads, and a callable that makes later writes of the block depend on this version.

        Raises
        ------
        AtomicityNotSupportedError
            The catalog does not support reads, or does not declare them.
        """
        if not self._catalog.capabilities.read:
            raise AtomicityNotSupportedError(f"Catalog {self._catalog.name} declares no reads.", path=path)
        transaction = active.current_transaction(self._session)
        return (
            (self._catalog.read_source(path), unread)
            if transaction is None
            else transaction.read_source(self._catalog, path)
        )

    def _checked_table(self, path: ObjectPath, source: ReadSource) -> CheckedTable | None:
        """A table whose files are checked when the query has listed them; None if that is not needed."""
        transaction = active.current_transaction(self._session)
        if transaction is None or source.kind != "session_table" or source.provider is None:
            return None
        if not lists_when_executed(self._catalog, path, transaction):
            return None
        definition = source.definition or self._catalog.load_table(path)
        return CheckedTable(self._session, self._catalog, path, definition, source, transaction)

    def _read_table(self, path: ObjectPath, source: ReadSource, definition: TableDefinition | None = None) -> Any:
        """Return a table that Spark reads from a source.

        Parameters
        ----------
        path : ObjectPath
        source : ReadSource
        definition : TableDefinition, optional
            If the source has none.
        """
        if source.kind == "session_table":
            name = source.name or path
            return session_read_table(self._jvm, name.database, name.name)
        facts = (self._session, self._catalog, path, source.definition or definition or self._catalog.load_table(path))
        if source.kind == "files" and source.location:
            return FilesTable(*facts, source.provider, source.location, source.listed)
        if source.kind == "batches" and source.reader:
            return (TruncatableBatchesTable if self._overwrites else BatchesTable)(*facts, source.reader)
        if source.kind == "parquet" and source.files:
            return (TruncatableParquetTable if self._overwrites else ParquetTable)(*facts, source.files)
        raise CatalogError(f"Catalog {self._catalog.name} offers reads of the unknown kind {source.kind!r}.", path=path)

    # -- the two-phase write -------------------------------------------------------------------------------------

    def stageCreate(self, identifier: Any, *facts: Any) -> Any:
        return self._stage(identifier, facts, Purpose.CREATE_TABLE_AS)

    def stageReplace(self, identifier: Any, *facts: Any) -> Any:
        return self._stage(identifier, facts, Purpose.REPLACE_TABLE_AS)

    def stageCreateOrReplace(self, identifier: Any, *facts: Any) -> Any:
        return self._stage(identifier, facts, Purpose.CREATE_OR_REPLACE_TABLE_AS)

    def _stage(self, identifier: Any, facts: tuple[Any, ...], purpose: Purpose) -> Any:
        with thrown_to_spark(self._jvm, identifier):
            path = self._writable_path(identifier)
            definition = self._with_options(path, self._definition_of(facts))
            statement = open_statement(StatementContext.of(self._session), self._catalog, path, definition, purpose)
            return StagedTable(self._session, statement, definition)

    def _definition_of(self, facts: tuple[Any, ...]) -> TableDefinition:
        definition = definition_of(self._jvm, self._catalog, *definition_facts(facts))
        if self._catalog.capabilities.column_defaults:
            return definition
        # Those of the tables that a query reads: the published table would not have them.
        return replace(definition, schema=types.without_defaults(definition.schema))

    def _with_options(self, path: ObjectPath, definition: TableDefinition) -> TableDefinition:
        """Add the options of a ``DataFrameWriter``: Spark itself passes them only after the table is staged."""
        options = options_of(local_properties.get(self._session.spark.sparkContext, WRITE_HINTS), path)
        # Spark uses such an option as the table's comment, which its own catalog does not.
        echo = any(key.lower() == "comment" and value == definition.comment for key, value in options.items())
        comment = None if echo else definition.comment
        complete = replace(definition, options={**definition.options, **options}, comment=comment)
        return with_hive_format(self._jvm, complete, lambda: self._catalog.environment.conf.get(DEFAULT_FORMAT))

    def _writable_path(self, identifier: Any) -> ObjectPath:
        path = object_path(self._jvm, identifier)
        if not path.namespace:
            raise DatabaseNotExistError(f"Table {path} needs a database in catalog {self._name}.", path=path)
        return path

    # -- plain DDL -----------------------------------------------------------------------------------------------

    def createTable(self, identifier: Any, *facts: Any) -> Any:
        with thrown_to_spark(self._jvm, identifier):
            path = self._writable_path(identifier)
            definition = self._definition_of(facts)
            if active.current_transaction(self._session) is None:
                self._ddl(
                    "CREATE TABLE",
                    path,
                    lambda: self._catalog.create_table(path, definition),
                    creating(self._catalog, path),
                )
            else:
                definition = self._create_staged(path, definition)
            return TableProxy(self._session, self._catalog, path, definition)

    def _create_staged(self, path: ObjectPath, definition: TableDefinition) -> TableDefinition:
        """Create a table in a transaction: like a CREATE TABLE AS SELECT without rows."""
        _require_defined(path, definition)
        definition = self._with_options(path, definition)
        context = StatementContext.of(self._session)
        statement = open_statement(context, self._catalog, path, definition, Purpose.CREATE_TABLE_AS)
        run_without_rows(self._session, statement, lambda: definition)
        return definition

    def createTableLike(self, identifier: Any, info: Any, _source: Any) -> Any:
        return self.createTable(identifier, info)

    def alterTable(self, identifier: Any, changes: Any) -> Any:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            self._alter_or_stage(path, changes_of(self._jvm, list(changes)))
            return TableProxy(self._session, self._catalog, path, self._definition(path))

    def _alter_or_stage(self, path: ObjectPath, changes: Sequence[TableChange]) -> None:
        if not self._alter_staged(path, changes):
            self._refuse_written(path)
            self._ddl("ALTER TABLE", path, lambda: self._alter(path, changes))

    def _refuse_written(self, path: ObjectPath) -> None:
        """Refuse to alter a table to which the surrounding transaction has written, as it has it now."""
        joined = active.current_transaction(self._session)
        if joined is not None and self._session.policy != "preferred" and joined.find(self._catalog.name, path):
            raise failures.rows_before(path, joined.id)

    def _alter(self, path: ObjectPath, changes: Sequence[TableChange]) -> None:
        if isinstance(self._catalog, SupportsRewrite) and rewriting.rewrite(
            self._session, self._catalog, path, changes
        ):
            return
        catalog = required(self._catalog, SupportsAlter, "cannot alter tables", path)
        with altering(self._session, catalog, path, changes):
            catalog.alter_table(path, changes)

    def _alter_staged(self, path: ObjectPath, changes: Sequence[TableChange]) -> bool:
        """Alter a table as a statement of the surrounding transaction; return False if that is not possible."""
        context = StatementContext.of(self._session)
        if context.joined is None:
            return False
        if isinstance(catalog := self._catalog, SupportsStagedAlter):
            statement = run_in_block(
                context, catalog, path, lambda joined: joined.stage_alter(catalog, path, changes), staged_definition
            )
            if statement is not None:
                return True
        if created_tables.is_made(context.joined, self._catalog, path):
            created_tables.alter(context, self._catalog, path, changes)
            return True
        if isinstance(self._catalog, SupportsRewrite):
            return rewriting.rewrite(self._session, self._catalog, path, changes)
        return False

    def dropTable(self, identifier: Any) -> bool:
        return self._drop(identifier, purge=False)

    def purgeTable(self, identifier: Any) -> bool:
        return self._drop(identifier, purge=True)

    def _drop(self, identifier: Any, *, purge: bool) -> bool:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            if self._drop_staged(path, purge=purge):
                return True
            try:
                self._ddl(
                    "DROP TABLE",
                    path,
                    lambda: self._catalog.drop_table(path, purge=purge),
                    dropping(self._catalog, path),
                )
            except (TableNotExistError, DatabaseNotExistError):
                return False
            return True

    def _drop_staged(self, path: ObjectPath, *, purge: bool) -> bool:
        """Drop a table as a statement of the surrounding transaction; return False if that is not possible."""
        context = StatementContext.of(self._session)
        if context.joined is None or not isinstance(self._catalog, SupportsStagedDrop):
            return False
        return drop_in_block(context, self._catalog, path, purge=purge) is not None

    def renameTable(self, identifier: Any, new_identifier: Any) -> None:
        with thrown_to_spark(self._jvm, identifier):
            path, new_path = (
                object_path(self._jvm, identifier),
                self._without_catalog(self._writable_path(new_identifier)),
            )
            try:
                self._renamed(path, new_path)
            except TableAlreadyExistsError:  # It is about the other name.
                with thrown_to_spark(self._jvm, tables.identifier(self._jvm, list(new_path.namespace), new_path.name)):
                    raise

    def _renamed(self, path: ObjectPath, new_path: ObjectPath) -> None:
        context = StatementContext.of(self._session)
        if created_tables.is_made(context.joined, self._catalog, path):
            created_tables.rename(context, self._catalog, path, new_path)
        elif not renamed_tables.rename(context, self._catalog, path, new_path):
            # By neither name is it the table whose columns were recorded before.
            self._ddl(
                "ALTER TABLE ... RENAME",
                path,
                lambda: self._rename(path, new_path),
                dropping(self._catalog, path),
                creating(self._catalog, new_path),
            )

    def _rename(self, path: ObjectPath, new_path: ObjectPath) -> None:
        required(self._catalog, SupportsRename, "cannot rename tables", path).rename_table(path, new_path)

    def _without_catalog(self, path: ObjectPath) -> ObjectPath:
        """Remove the catalog's name: Spark passes the new name of a RENAME as written, including a catalog's name."""
        own = (self._name, _SESSION) if self._catalog is self._session.catalogs.of_session else (self._name,)
        if len(path.namespace) > 1 and path.namespace[0] in own:
            return ObjectPath(path.namespace[1:], path.name)
        return path

    def _ddl(self, verb: str, path: ObjectPath, run: Callable[[], None], *changes: immediate.TableChange) -> None:
        """Run a change that takes effect immediately; a transaction refuses it, since it could not be rolled back."""
        active.refuse_in_transaction(self._session, f"{verb} {self._name}.{path}", path)
        with changing(self._session.coordinator, *changes):
            run()
        self._session.caches.invalidate(self._catalog, path)

    class Java:
        implements = [CATALOG + "StagingTableCatalog", CATALOG + "TableCatalog", CATALOG + "SupportsNamespaces"]


def _require_defined(path: ObjectPath, definition: TableDefinition) -> None:
    """Refuse a table whose columns are those of files that are there already.

    Raises
    ------
    AtomicityNotSupportedError
    """
    if not definition.schema.names:
        raise AtomicityNotSupportedError(
            f"{path} cannot be created in a transaction without columns; nothing was started.",
            path=path,
            hint="Name its columns, or create it before the transaction.",
        )


def table_of_source(session: AttachedSession, catalog: Catalog, path: ObjectPath, source: ReadSource) -> Any:
    """Return a table that Spark reads from a source."""
    return NativeCatalog(session, catalog)._read_table(path, source)


def change_table(session: AttachedSession, catalog: Catalog, path: ObjectPath, changes: Sequence[TableChange]) -> None:
    """Alter a table: immediately, or as a statement of the surrounding transaction."""
    NativeCatalog(session, catalog)._alter_or_stage(path, changes)
