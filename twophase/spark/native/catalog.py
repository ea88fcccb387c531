"""A twophase catalog as a native Spark catalog: the Python side of Spark's ``StagingTableCatalog``, over Py4J.

Spark calls it from its analyser (``loadTable``, ``tableExists``) and from running statements (``stage*``,
``createTable``, ...). ``loadTable`` with write privileges answers a table of ours; without them, one that Spark reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    DatabaseNotExistError,
    TableNotExistError,
)
from twophase.model import ObjectPath, Purpose, TableDefinition
from twophase.reading import ReadSource
from twophase.spark import live
from twophase.spark.errors import thrown_to_spark
from twophase.spark.intent import options_of
from twophase.spark.jvm.bridge import CATALOG, INTENT_PROPERTY
from twophase.spark.jvm.formats import DEFAULT_FORMAT, with_hive_format
from twophase.spark.jvm.metastore import session_read_table
from twophase.spark.jvm.remembering import ALWAYS, Lasting
from twophase.spark.native import scans
from twophase.spark.native.base import Proxy
from twophase.spark.native.definition import changes_of, definition_of, object_path
from twophase.spark.native.delete import DeletableTable, TruncatableParquetTable
from twophase.spark.native.namespaces import NamespacesMixin
from twophase.spark.native.parquet import ParquetTable
from twophase.spark.native.read import BatchesTable
from twophase.spark.native.table import FilesTable, StagedTable, TableProxy, WriteTable

if TYPE_CHECKING:
    from twophase.spark.session import Handle

# ruff: noqa: N802

#: How long Spark's analyser need not ask again. It wants a database's properties fifteen times in one CREATE TABLE.
CATALOG_ANSWERS: Lasting = {
    **dict.fromkeys(("name", "toString", "hashCode", "capabilities", "supportedCustomMetrics"), ALWAYS),
    **dict.fromkeys(("useNullableQuerySchema", "tableStateOptionKeys", "changelogStateOptionKeys"), ALWAYS),
    "loadNamespaceMetadata": 250,
}


class NativeCatalog(NamespacesMixin, Proxy):
    """One catalog in one session.

    Parameters
    ----------
    handle : Handle
        The attached session.
    catalog : Catalog
    """

    def __init__(self, handle: Handle, catalog: Catalog) -> None:
        super().__init__(handle.jvm)
        self._handle = handle
        self._catalog = catalog
        self._name = handle.name_of(catalog)

    # -- the plugin ----------------------------------------------------------------------------------------------

    def initialize(self, name: str, options: Any) -> None:
        """Spark's own registration; ours has happened before."""

    def name(self) -> str:
        return self._name

    def toString(self) -> str:
        return f"twophase catalog {self._name}"

    def capabilities(self) -> Any:
        return self._jvm.set()

    def tableStateOptionKeys(self) -> Any:
        return self._jvm.set()

    def changelogStateOptionKeys(self) -> Any:
        return self._jvm.set()

    def useNullableQuerySchema(self) -> bool:
        return True

    def supportedCustomMetrics(self) -> Any:
        return self._jvm.array("org.apache.spark.sql.connector.metric.CustomMetric")

    # -- looking -------------------------------------------------------------------------------------------------

    def listTables(self, namespace: Any) -> Any:
        with thrown_to_spark(self._jvm, namespace=namespace):
            levels = self._jvm.parts(namespace)
            database = ".".join(levels)
            names = self._catalog.list_tables(database)
            staged = live.staged_tables(self._handle, self._catalog, database)
            identifiers = [self._jvm.identifier(levels, name) for name in dict.fromkeys((*names, *staged))]
            return self._jvm.array(CATALOG + "Identifier", identifiers)

    def listTableSummaries(self, namespace: Any) -> Any:
        with thrown_to_spark(self._jvm, namespace=namespace):
            return self._jvm.table_summaries(list(self.listTables(namespace)))

    def tableExists(self, identifier: Any) -> bool:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            if live.staged(self._handle, self._catalog, path) is not None:
                return True
            return bool(path.namespace) and self._catalog.table_exists(path)

    def invalidateTable(self, identifier: Any) -> None:
        """Nothing is kept here."""

    def loadTable(self, identifier: Any, *arguments: Any) -> Any:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            if not path.namespace:
                raise TableNotExistError(f"Table {path} has no database.", path=path)
            as_of = _time_travel(arguments)
            if as_of:
                return self._read_table(path, self._catalog.read_source_as_of(path, **as_of), None)
            if _privileges(arguments):
                kind = DeletableTable if self._catalog.capabilities.delete else WriteTable
                return kind(self._handle, self._catalog, path, self._definition(path))
            return self._readable(path)

    def _definition(self, path: ObjectPath) -> TableDefinition:
        return live.table_definition(self._handle.current_transaction(), self._catalog, path)

    def _readable(self, path: ObjectPath) -> Any:
        staged = live.staged(self._handle, self._catalog, path)
        if staged:
            return self._read_table(path, live.staged_source(staged[0]), staged[1])
        try:
            source = self._source(path)
        except AtomicityNotSupportedError:
            # It can still be described, replaced and dropped.
            return TableProxy(self._handle, self._catalog, path, self._catalog.load_table(path))
        table = self._read_table(path, source, None)
        if source.version is not None and isinstance(table, TableProxy):
            table.version_read = source.version
            scans.remember(table)
        if isinstance(table, TableProxy):
            table.reopen = lambda options: self._read_table(path, self._catalog.read_source_with(path, options), None)
        return table

    def _source(self, path: ObjectPath) -> ReadSource:
        """How to read a table; what a block writes into it later rests on its state of now."""
        transaction = self._handle.current_transaction()
        if transaction is None:
            return self._catalog.read_source(path)
        before = self._catalog.table_version(path)
        source = self._catalog.read_source(path)
        transaction.note_read(self._catalog, path, before if source.version is None else source.version)
        return source

    def _read_table(self, path: ObjectPath, source: ReadSource, definition: TableDefinition | None) -> Any:
        if source.kind == "session_table":
            name = source.name or path
            return session_read_table(self._jvm, name.database, name.name)
        if source.kind == "files" and source.location:
            definition = source.definition or definition or self._catalog.load_table(path)
            return FilesTable(self._handle, self._catalog, path, definition, source.provider, source.location)
        if source.kind == "batches" and source.reader:
            definition = source.definition or definition or self._catalog.load_table(path)
            return BatchesTable(self._handle, self._catalog, path, definition, source.reader)
        if source.kind == "parquet" and source.files:
            definition = source.definition or definition or self._catalog.load_table(path)
            table = TruncatableParquetTable if self._catalog.capabilities.delete else ParquetTable
            return table(self._handle, self._catalog, path, definition, source.files)
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
            statement = live.open_statement(self._handle, self._catalog, path, definition, purpose)
            return StagedTable(self._handle, statement, definition)

    def _definition_of(self, facts: tuple[Any, ...]) -> TableDefinition:
        if len(facts) == 1:  # TableInfo, Spark 4.1 and later
            info = facts[0]
            return definition_of(self._jvm, self._catalog, info.columns(), info.partitions(), info.properties())
        columns, transforms, properties = facts
        return definition_of(self._jvm, self._catalog, columns, transforms, properties)

    def _with_options(self, path: ObjectPath, definition: TableDefinition) -> TableDefinition:
        """Options of a ``DataFrameWriter``: Spark itself tells them only when the table is staged already."""
        options = options_of(self._jvm.local_property(INTENT_PROPERTY), path)
        # Spark takes such an option for the table's comment where its own catalog does not.
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
            self._ddl("CREATE TABLE", path, lambda: self._catalog.create_table(path, definition))
            return TableProxy(self._handle, self._catalog, path, definition)

    def createTableLike(self, identifier: Any, info: Any, _source: Any) -> Any:
        return self.createTable(identifier, info)

    def alterTable(self, identifier: Any, changes: Any) -> Any:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            ours = changes_of(list(changes))
            self._ddl("ALTER TABLE", path, lambda: self._catalog.alter_table(path, ours))
            return TableProxy(self._handle, self._catalog, path, self._catalog.load_table(path))

    def dropTable(self, identifier: Any) -> bool:
        return self._drop(identifier, purge=False)

    def purgeTable(self, identifier: Any) -> bool:
        return self._drop(identifier, purge=True)

    def _drop(self, identifier: Any, *, purge: bool) -> bool:
        with thrown_to_spark(self._jvm, identifier):
            path = object_path(self._jvm, identifier)
            try:
                self._ddl("DROP TABLE", path, lambda: self._catalog.drop_table(path, purge=purge))
            except (TableNotExistError, DatabaseNotExistError):
                return False
            return True

    def renameTable(self, identifier: Any, new_identifier: Any) -> None:
        with thrown_to_spark(self._jvm, identifier):
            path, new_path = (
                object_path(self._jvm, identifier),
                self._without_catalog(self._writable_path(new_identifier)),
            )
            self._ddl("ALTER TABLE ... RENAME", path, lambda: self._catalog.rename_table(path, new_path))

    def _without_catalog(self, path: ObjectPath) -> ObjectPath:
        """Spark takes the new name of a RENAME as it is written, with the catalog's name where that is written too."""
        if len(path.namespace) > 1 and path.namespace[0] == self._name:
            return ObjectPath(path.namespace[1:], path.name)
        return path

    def _ddl(self, verb: str, path: ObjectPath, run: Callable[[], None]) -> None:
        """Run a change that takes effect at once; inside a transaction that would break its promise."""
        self._handle.refuse_in_transaction(f"{verb} {self._name}.{path}", path)
        run()
        self._handle.refresh(self._catalog, path)

    class Java:
        implements = [CATALOG + "StagingTableCatalog", CATALOG + "TableCatalog", CATALOG + "SupportsNamespaces"]


# -- the overloads of ``loadTable`` differ by version ------------------------------------------------------------------


def _privileges(arguments: tuple[Any, ...]) -> bool:
    """Whether Spark means to write."""
    if not arguments:
        return False
    first = arguments[0]
    if len(arguments) == 1:  # a set of privileges, Spark 4.0
        return not first.isEmpty()
    return not first.writePrivileges().isEmpty()  # a TableContext, Spark 4.1 and later


def _time_travel(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """What ``VERSION AS OF`` or ``TIMESTAMP AS OF`` says, for :meth:`Catalog.read_source_as_of`; else nothing."""
    if not arguments:
        return {}
    first = arguments[0]
    if isinstance(first, (int, str)):  # Spark 4.0
        return {"version": first} if isinstance(first, str) else {"timestamp": first}
    if len(arguments) == 1 or not first.timeTravel().isPresent():
        return {}
    wanted = first.timeTravel().get()
    if str(wanted.getClass().getSimpleName()) == "AsOfVersion":
        return {"version": str(wanted.version())}
    return {"timestamp": int(wanted.micros())}
