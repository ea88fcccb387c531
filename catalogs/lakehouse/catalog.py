"""The lakehouse catalog: Apache Iceberg tables with two-phase writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import sqlalchemy as sa
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
)

from twophase.catalog import (
    Environment,
    Leftover,
    SupportsAlter,
    SupportsCleaning,
    SupportsDelete,
    SupportsGroupPublish,
    SupportsReadOptions,
    SupportsRecordedPublish,
    SupportsRename,
    SupportsSavepoints,
    SupportsSchemaHistory,
    SupportsSchemaOnWrite,
    SupportsSnapshots,
    SupportsStagedAlter,
    SupportsStagedDatabases,
    SupportsStagedDrop,
    SupportsStagedRename,
    SupportsStorageReport,
    SupportsTimeTravel,
    TableChange,
    TwoPhaseCatalogTable,
    staged_databases,
)
from twophase.catalog.reading import Deletion, Filter, ReadSource
from twophase.catalog.schema_versions import SchemaVersion
from twophase.catalog.snapshots import Change
from twophase.catalogs.files import Files, requirements, shown_file_system
from twophase.catalogs.lakehouse import (
    altering,
    definitions,
    deleting,
    earlier_states,
    housekeeping,
    options,
    publishing,
    read_options,
    schema_history,
    schema_on_write,
    tables,
)
from twophase.catalogs.lakehouse.dropping import LakehouseDrop, plan_drop
from twophase.catalogs.lakehouse.file_access import FileAccess
from twophase.catalogs.lakehouse.inspecting import INSPECTIONS, inspect
from twophase.catalogs.lakehouse.kept import KeptTables
from twophase.catalogs.lakehouse.lakehouse import Lakehouse, LakehouseBase
from twophase.catalogs.lakehouse.participant import LakehouseParticipant, check_store
from twophase.catalogs.lakehouse.planning import plan_write, state_version
from twophase.catalogs.lakehouse.reading_arrow import Rows
from twophase.catalogs.lakehouse.snapshots import current_id
from twophase.catalogs.lakehouse.sources import source_as_of, source_of
from twophase.catalogs.lakehouse.staged_altering import plan_alter
from twophase.catalogs.lakehouse.staged_renaming import (
    LakehouseRename,
    LakehouseRenamedRows,
    is_renamed,
    kind_of,
    plan_leave,
    plan_rename,
    plan_renamed_rows,
    takes_rows,
)
from twophase.catalogs.lakehouse.store import Also, Store
from twophase.errors import (
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
)
from twophase.failpoints import Failpoint, step
from twophase.model import Capabilities, ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.redaction import logger
from twophase.transactions import failures

PUBLISH = Failpoint("lakehouse.publish")
COMPENSATE = Failpoint("lakehouse.compensate")

_log = logger("twophase")


class LakehouseCatalog(
    LakehouseBase,
    SupportsStagedDatabases,
    SupportsRename,
    SupportsAlter,
    SupportsTimeTravel,
    SupportsSnapshots,
    SupportsReadOptions,
    SupportsSchemaHistory,
    SupportsSchemaOnWrite,
    SupportsDelete,
    SupportsStagedDrop,
    SupportsStagedAlter,
    SupportsStagedRename,
    SupportsGroupPublish,
    SupportsRecordedPublish,
    SupportsCleaning,
    SupportsSavepoints,
    SupportsStorageReport,
):
    """Iceberg tables behind PyIceberg's catalogs: SQL, Hive Metastore, REST; no Iceberg jar is needed.

    Parameters
    ----------
    name, options, environment
        As for every catalog; see :attr:`known_options`.

    Raises
    ------
    ConfigurationError
        An option is invalid.
    """

    known_options: ClassVar[Mapping[str, str]] = options.Settings.help()
    idle_read_options = read_options.IDLE

    def __init__(self, name: str, options_: Mapping[str, str], environment: Environment) -> None:
        super().__init__(name, options_, environment)
        settings = options.read(name, options_, environment.warehouse)
        access = FileAccess(settings.file_properties, environment.hadoop_files)
        self.files = Files(durable=environment.fsync, arrow=access.filesystem)
        self.store = self._open(settings, access)
        self.lakehouse = Lakehouse(name, self.store, self.files, environment)
        self._kept = KeptTables(self.lakehouse)

    def _open(self, settings: options.Settings, access: FileAccess) -> Store:
        if settings.kind == "hive":
            from twophase.catalogs.lakehouse.store_hive import HiveStore

            return HiveStore(settings, access, self.files)
        if settings.kind == "rest":
            from twophase.catalogs.lakehouse.store_rest import RestStore

            return RestStore(settings, access, self.files)
        from twophase.catalogs.lakehouse.store_sql import SqlStore

        return SqlStore(settings, access)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            purposes=frozenset(Purpose),
            partitioning=definitions.TRANSFORMS,
            alter_database=True,
            rename_table=True,
            alter_table=True,
            read=True,
            group_publish=self.store.publishes_together,
            own_types=True,
            compensate=True,
            delete=True,
            providers=frozenset({definitions.PROVIDER}),
        )

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        with self.store.speaking():
            return sorted(".".join(levels) for levels in self.store.catalog.list_namespaces())

    def database_exists(self, database: str) -> bool:
        if not database.strip() or "." in database:
            return False
        with self.store.speaking(path=database):
            return bool(self.store.catalog.namespace_exists((database,)))

    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        definitions.check_name(database, "database", database)
        self.store.check_name(database, "database", database)
        given = {key: value for key, value in (properties or {}).items() if key != "location"}
        try:
            with self.store.speaking(path=database):
                self.store.create_namespace(database, given)
        except NamespaceAlreadyExistsError:
            if not ignore_if_exists:
                raise DatabaseAlreadyExistsError.of(database, self.name) from None

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        self._require_database(database)
        known = self.load_database(database)
        removals = {key for key, value in changes.items() if value is None and key in known}
        updates = {key: value for key, value in changes.items() if value is not None}
        with self.store.speaking(path=database):
            self.store.catalog.update_namespace_properties((database,), removals, updates)

    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        if not self.database_exists(database):
            if ignore_if_not_exists:
                return
            self._require_database(database)
        names = self.list_tables(database)
        if names and not cascade:
            raise CatalogError(
                f"Database {database} is not empty: it holds {', '.join(names[:5])}.",
                path=database,
                hint="Drop its tables first, or say CASCADE.",
            )
        # One that was created since then is not dropped without CASCADE.
        held = self.store.all_tables(database) if cascade else {}
        self.store.drop_namespace(database, {path: tables.readable(self.lakehouse, path, held[path]) for path in held})

    def contents_of(self, database: str) -> list[str]:
        self._require_database(database)
        return sorted(self.store.contents(database))

    def database_facts(self) -> dict[str, Any]:
        return {"store": self.store.identity()}

    def load_database(self, database: str) -> dict[str, str]:
        self._require_database(database)
        try:
            with self.store.speaking(path=database):
                found = self.store.catalog.load_namespace_properties((database,))
        except NoSuchNamespaceError:
            raise DatabaseNotExistError.of(database, self.name) from None
        return {key: value for key, value in found.items() if key != "exists"}

    def _require_database(self, database: str) -> None:
        if not self.database_exists(database):
            raise DatabaseNotExistError.of(database, self.name)

    # -- tables --------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        return self.store.canonical(path)

    def list_tables(self, database: str) -> list[str]:
        self._require_database(database)
        return sorted(path.name for path in self.store.paths(database))

    def table_exists(self, path: ObjectPath) -> bool:
        if self._inspected(path) is not None:
            return True
        return len(path.namespace) == 1 and self.store.pointer(path) is not None

    def check_path(self, path: ObjectPath) -> None:
        """Refuse a name that a table of this catalog cannot have.

        Raises
        ------
        CatalogError
        DatabaseNotExistError
        """
        if len(path.namespace) != 1:
            raise CatalogError(f"A table of catalog {self.name} is named database.table; {path} is not.", path=path)
        definitions.check_name(path.name, "table", path)
        self.store.check_name(path.name, "table", path)
        self._require_database(path.database)

    def load_table(self, path: ObjectPath) -> TableDefinition:
        inspected = self._inspected(path)
        if inspected is not None:
            return TableDefinition(self._inspection(*inspected).schema)
        # Reads go through `read_source`; this is called to prepare a write.
        found = self.lakehouse.load_to_write(path)
        if found is None:
            raise self.lakehouse.no_table(path)
        return definitions.to_definition(found.metadata)

    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        self.check_path(path)
        if not tables.create(self.lakehouse, path, definition) and not ignore_if_exists:
            raise TableAlreadyExistsError.of(path, self.name)

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        if not tables.drop(self.lakehouse, path, purge=purge) and not ignore_if_not_exists:
            raise self.lakehouse.no_table(path)

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        if self.store.pointer(path) is None:
            raise self.lakehouse.no_table(path)
        self.check_path(new_path)
        if not self.store.rename(path, new_path):
            raise TableAlreadyExistsError.of(new_path, self.name)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        self.lakehouse.load_to_write(path)
        altering.alter(self.lakehouse, path, list(changes))

    # -- reading -------------------------------------------------------------------------------------------------

    def read_source(self, path: ObjectPath) -> ReadSource:
        inspected = self._inspected(path)
        if inspected is not None:
            rows = self._inspection(*inspected)
            return ReadSource("batches", definition=TableDefinition(rows.schema), reader=Rows(rows))
        metadata = self.lakehouse.require(path).metadata
        io = self.store.io(metadata.location)
        source = source_of(io, path, metadata, current_id(metadata), metadata.current_schema_id)
        return replace(source, version=state_version(metadata))

    def table_version(self, path: ObjectPath) -> str | None:
        found = self.store.load(path) if len(path.namespace) == 1 else None
        return None if found is None else state_version(found.metadata)

    def read_source_as_of(
        self, path: ObjectPath, *, version: str | None = None, timestamp: int | None = None
    ) -> ReadSource:
        return source_as_of(self.lakehouse, path, version, timestamp)

    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        return earlier_states.source_before(self.lakehouse, path, changes, version)

    def state_before(self, path: ObjectPath, purpose: Purpose) -> Any:
        return earlier_states.state_before(self.lakehouse, path, purpose)

    def is_as_left(self, path: ObjectPath, change: Change, later: Sequence[Change] = ()) -> bool:
        return earlier_states.is_as_left(self.lakehouse, path, change, later)

    def read_source_with(self, path: ObjectPath, options: Mapping[str, str]) -> ReadSource:
        if self._inspected(path) is not None:
            return super().read_source_with(path, options)
        return read_options.source(self.lakehouse, path, options)

    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        return schema_on_write.follows_rows(definition.properties)

    def plan_delete(self, path: ObjectPath, conditions: Sequence[Filter | None]) -> Deletion:
        return deleting.plan(self.lakehouse, path, conditions)

    def schema_versions(self, path: ObjectPath) -> list[SchemaVersion]:
        loaded = self.lakehouse.require(path)
        history = (earlier.metadata for earlier in earlier_states.history(self.store, path, loaded))
        return schema_history.versions(loaded.metadata, history)

    def schema_id_as_of(self, path: ObjectPath, commit: str) -> int | None:
        return schema_history.id_as_of(self.lakehouse.require(path).metadata, commit)

    def _inspected(self, path: ObjectPath) -> tuple[ObjectPath, str] | None:
        """The table and the name of the metadata table, if a path refers to one."""
        if len(path.namespace) != 2 or path.name not in INSPECTIONS:
            return None
        table = ObjectPath.of(*path.namespace)
        return (table, path.name) if self.store.pointer(table) is not None else None

    def _inspection(self, path: ObjectPath, name: str) -> Any:
        return inspect(self.store.iceberg_table(path, self.lakehouse.require(path)), name)

    # -- the two-phase write -------------------------------------------------------------------------------------

    def two_phase_create_table(
        self,
        path: ObjectPath,
        definition: TableDefinition,
        *,
        purpose: Purpose,
        ignore_if_exists: bool = False,
        is_streaming_mode: bool = False,
        context: WriteContext | None = None,
    ) -> TwoPhaseCatalogTable | None:
        if is_streaming_mode:
            return None
        context = context or WriteContext.alone(self.name)
        self.check_path(path)
        if purpose.inserts and takes_rows(context.base):
            rows = plan_renamed_rows(self.lakehouse, path, definition, purpose, context, time.time())
            return LakehouseRenamedRows(self, rows)
        failures.refuse_renamed(path, context, is_renamed)
        document = plan_write(self.lakehouse, path, definition, purpose, context, time.time())
        return LakehouseParticipant(self, document)

    def two_phase_drop_table(
        self, path: ObjectPath, *, purge: bool = False, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        if not self.store.publishes_together:
            return None  # The record of a drop must change with the pointer: afterwards no table shows it.
        context = context or WriteContext.alone(self.name)
        self.check_path(path)
        return LakehouseDrop(self, plan_drop(self.lakehouse, path, context, time.time(), purge=purge))

    def two_phase_alter_table(
        self, path: ObjectPath, changes: Sequence[TableChange], *, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        context = context or WriteContext.alone(self.name)
        self.check_path(path)
        failures.refuse_renamed(path, context, is_renamed)
        return LakehouseParticipant(self, plan_alter(self.lakehouse, path, list(changes), context, time.time()))

    def two_phase_rename_table(
        self, path: ObjectPath, new_path: ObjectPath, *, context: WriteContext
    ) -> TwoPhaseCatalogTable | None:
        if not self.store.publishes_together:
            return None  # Two pointers change.
        self.check_path(path)
        self.check_path(new_path)
        return LakehouseRename(self, plan_rename(self.lakehouse, path, new_path, context, time.time()))

    def two_phase_leave_table(
        self, path: ObjectPath, arriving: TwoPhaseCatalogTable, *, context: WriteContext
    ) -> TwoPhaseCatalogTable:
        return LakehouseDrop(self, plan_leave(path, arriving.document, context, time.time()))

    def is_renamed(self, participant: TwoPhaseCatalogTable) -> bool:
        return isinstance(participant, LakehouseRename | LakehouseRenamedRows)

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        if (database := staged_databases.restored(self, document)) is not None:
            with suppress(CatalogError):
                check_store(database, self.store)
            return database
        restored = kind_of(document)(self, document)
        with suppress(CatalogError):  # If the catalog does not answer, the check is repeated before any change.
            restored.check_identity()
        restored.leave_tries()  # What the previous process left is unknown.
        return restored

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        if not self.store.publishes_together or participant.purpose.of_database:
            return None
        return f"{self.store.settings.display_uri} {self.store.settings.catalog_name}"

    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        if len(participants) > 1 and not self.store.publishes_together:
            raise NotImplementedError("This Iceberg catalog has no call for several tables.")
        self._publish(participants)

    def compensate_group(self, participants: list[TwoPhaseCatalogTable]) -> bool:
        members = [member for member in participants if isinstance(member, LakehouseParticipant)]
        if len(members) > 1 and not self.store.publishes_together:
            return False
        with step(COMPENSATE):
            return publishing.undo(self.store, members)

    @property
    def publish_database(self) -> sa.URL | None:
        return self.store.settings.url if self.store.publishes_together else None

    def publish_with_record(
        self, participants: list[TwoPhaseCatalogTable], record: Callable[[sa.Connection], None]
    ) -> None:
        if not self.store.publishes_together:
            raise NotImplementedError("This Iceberg catalog publishes by no SQL transaction.")
        self._publish(participants, record)

    def _publish(self, participants: list[TwoPhaseCatalogTable], also: Also | None = None) -> None:
        members = [member for member in participants if isinstance(member, LakehouseParticipant)]
        for member in members:
            member.check_identity()
        with step(PUBLISH):
            publishing.publish(self.store, self.files, members, also)

    # -- savepoints ----------------------------------------------------------------------------------------------

    def plan_kept(self, path: ObjectPath, savepoint: str, name: str, *, copies: bool = False) -> Mapping[str, Any]:
        return self._kept.plan(path, savepoint, name)

    def keep(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._kept.keep(document)

    def forget_kept(self, document: Mapping[str, Any]) -> None:
        self._kept.forget(document)

    def kept_definition(self, document: Mapping[str, Any]) -> TableDefinition:
        return self._kept.definition(document)

    def read_kept(self, document: Mapping[str, Any]) -> ReadSource:
        return self._kept.source(document)

    def write_kept(self, participant: TwoPhaseCatalogTable, document: Mapping[str, Any]) -> bool:
        assert isinstance(participant, LakehouseParticipant)
        return self._kept.stage(participant, document)

    # -- housekeeping --------------------------------------------------------------------------------------------

    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        return housekeeping.leftovers(self.lakehouse, live_transactions)

    def remove_leftover(self, leftover: Leftover) -> None:
        (error,) = housekeeping.remove(self.lakehouse, [leftover])
        if error is not None:
            raise error

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> list[Exception | None]:
        return housekeeping.remove(self.lakehouse, leftovers)

    def check(self) -> list[str]:
        return housekeeping.problems(self.lakehouse)

    def storage(self) -> list[str]:
        place, several = self.store.settings.warehouse, "atomic" if self.store.publishes_together else "reversible"
        levels = f"each statement atomic, several tables in one transaction {several}: no file is renamed"
        return [f"{shown_file_system(place)}: {levels}{requirements(place, self.lakehouse.environment)}"]

    def close(self) -> None:
        self.store.close()
