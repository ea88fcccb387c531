"""The Hive catalog: tables of a Hive-compatible metastore, written in two phases."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from twophase.catalog import (
    Change,
    Environment,
    Leftover,
    Rewrite,
    SupportsCleaning,
    SupportsEvolution,
    SupportsExternalChanges,
    SupportsFieldIds,
    SupportsGroupPublish,
    SupportsRename,
    SupportsRewrite,
    SupportsSavepoints,
    SupportsSchemaOnWrite,
    SupportsSnapshots,
    SupportsStagedAlter,
    SupportsStagedDatabases,
    SupportsStagedDrop,
    SupportsStagedRename,
    SupportsStorageReport,
    TableChange,
    TwoPhaseCatalogTable,
    staged_databases,
)
from twophase.catalog.reading import ReadSource
from twophase.catalog.schema_versions import TableSchema
from twophase.catalogs.files import Files, StorageKind, join, same
from twophase.catalogs.hive import identity, layout, names
from twophase.catalogs.hive.definitions import (
    FILE_PROVIDERS,
    PROVIDERS,
    complete,
    has_ids,
    ids_unknown,
    to_definition,
    to_table,
)
from twophase.catalogs.hive.dropping import plan_drop
from twophase.catalogs.hive.hiveserver2_client import SqlClient
from twophase.catalogs.hive.housekeeping import Housekeeping
from twophase.catalogs.hive.kept import KeptTables
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.options import Settings
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.planning import RENAME, plan_write
from twophase.catalogs.hive.replaced import names_in
from twophase.catalogs.hive.schema import alter, changes, footers, rewriting
from twophase.catalogs.hive.schema.readers import EVOLVING
from twophase.catalogs.hive.schema.staged_altering import plan_alter
from twophase.catalogs.hive.snapshots import SnapshotRead, read_format, state_before, version_text
from twophase.catalogs.hive.staged_renaming import is_renamed, pair_of, plan_leave, plan_rename
from twophase.catalogs.hive.stamps import names_statement, unfenced
from twophase.catalogs.hive.storage import described, write_problems
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, VIEW, HiveTable, Located
from twophase.errors import (
    CatalogError,
    ConfigurationError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import Capabilities, Level, ObjectPath, Outcome, Purpose, TableDefinition, WriteContext
from twophase.transactions import failures


class HiveCatalog(
    SupportsStagedDatabases,
    SupportsRename,
    SupportsRewrite,
    SupportsEvolution,
    SupportsCleaning,
    SupportsExternalChanges,
    SupportsFieldIds,
    SupportsSnapshots,
    SupportsSavepoints,
    SupportsSchemaOnWrite,
    SupportsStagedDrop,
    SupportsStagedAlter,
    SupportsStagedRename,
    SupportsGroupPublish,
    SupportsStorageReport,
):
    """Tables of a Hive metastore, reached through the Spark session or through HiveServer2.

    Parameters
    ----------
    name, options, environment
        As for every catalog; see :attr:`known_options`.

    Raises
    ------
    ConfigurationError
        A wrong option.
    """

    known_options: ClassVar[Mapping[str, str]] = Settings.help()

    def __init__(self, name: str, options: Mapping[str, str], environment: Environment) -> None:
        super().__init__(name, options, environment)
        self.settings = Settings.read(options, name)
        self.store = HiveStore(name, environment, self.settings, self._open_metastore)
        if self.settings.metastore == "hiveserver2":
            SqlClient(self.settings)  # Checks the options now; connects on first use.
        self._housekeeping = Housekeeping(self.store)
        self._kept = KeptTables(self.store)

    # -- the store -----------------------------------------------------------------------------------------------

    @property
    def metastore(self) -> Metastore:
        """The metastore, opened on first use.

        Raises
        ------
        ConfigurationError
            There is no Spark session to take the metastore from.
        """
        return self.store.metastore

    @property
    def files(self) -> Files:
        """The files of the tables."""
        return self.store.files

    def _open_metastore(self) -> Metastore:
        if self.settings.metastore == "hiveserver2":
            from twophase.catalogs.hive.hiveserver2 import open_metastore

            return open_metastore(self.settings)
        found = self.environment.session_metastore
        if found is None:
            raise ConfigurationError(
                f"Catalog {self.name} uses the Spark session's metastore, and there is no session.",
                hint="Attach a Spark session, or set the option metastore=hiveserver2.",
            )
        assert isinstance(found, Metastore)
        return found

    @property
    def conf(self) -> Mapping[str, str]:
        """The session's configuration."""
        return self.environment.conf

    @property
    def capabilities(self) -> Capabilities:
        return _capabilities(self.settings.metastore == "session", self.files.kind(self.environment.warehouse))

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return self.metastore.list_databases()

    def database_exists(self, database: str) -> bool:
        return self.metastore.database_exists(self.metastore.canonical(database))

    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        names.check_name(database, "database", self.metastore.longest_name, database)
        self.metastore.create_database(
            self.metastore.canonical(database), properties or {}, ignore_if_exists=ignore_if_exists
        )

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        self.load_database(database)
        self.metastore.alter_database(self.metastore.canonical(database), changes)

    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        name = self.metastore.canonical(database)
        self.metastore.drop_database(name, ignore_if_not_exists=ignore_if_not_exists, cascade=cascade)

    def load_database(self, database: str) -> dict[str, str]:
        found = self.metastore.get_database(self.metastore.canonical(database))
        if found is None:
            raise DatabaseNotExistError.of(database, self.name)
        return found

    def unstaged_database_reason(self, database: str) -> str | None:
        if self.settings.metastore != "session":
            return "HiveServer2 does not report what is in a database's directory"
        return "Hive never drops it" if self.metastore.canonical(database) == "default" else None

    def database_facts(self) -> dict[str, Any]:
        return {identity.STORE: self.metastore.identity}

    def refuse_new_database(self, database: str, properties: Mapping[str, str]) -> None:
        names.check_name(database, "database", self.metastore.longest_name, database)
        location = properties.get("location") or self.metastore.new_database_location(
            self.metastore.canonical(database)
        )
        if location is not None and self._files_below(location):
            raise CatalogError(
                f"Database {database} was not created: there are files in {location}, which a rollback would remove "
                "with it.",
                path=database,
                hint="Create it before the transaction, or remove the files.",
            )

    def contents_of(self, database: str) -> list[str]:
        return [*self.list_tables(database), *self.metastore.list_functions(self.metastore.canonical(database))]

    def files_of(self, database: str, transaction_id: str) -> list[str]:
        found = self._files_below(self.store.database_location(database))
        return [name for name in found if f"/{transaction_id}-" not in name]  # As in the names of versions.

    def _files_below(self, location: str) -> list[str]:
        return [join(location, entry.name) for entry in self.files.list(location) if entry.is_file]

    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        return False  # Only where a single insert says so, or the property of all catalogs.

    # -- tables --------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """The path as the metastore stores it."""
        return ObjectPath(
            tuple(self.metastore.canonical(part) for part in path.namespace), self.metastore.canonical(path.name)
        )

    def list_tables(self, database: str) -> list[str]:
        self.load_database(database)
        return self.store.list_tables(self.metastore.canonical(database))

    def find(self, path: ObjectPath) -> HiveTable | None:
        """The table or view in the metastore; None if it does not exist."""
        return self.store.find(path)

    def table_exists(self, path: ObjectPath) -> bool:
        found = self.find(self.canonical(path))
        return found is not None and not found.name.startswith(layout.HIDDEN_PREFIX)

    def existing(self, path: ObjectPath) -> HiveTable:
        """The table in the metastore.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            It is a view.
        """
        found = self.find(self.canonical(path))
        if found is None:
            raise TableNotExistError.of(path, self.name)
        if found.kind == VIEW:
            raise CatalogError(f"{path} is a view, not a table.", path=path)
        return found

    def load_table(self, path: ObjectPath) -> TableDefinition:
        return to_definition(self.existing(path))

    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        path = self.canonical(path)
        if self.find(path) is not None:
            if ignore_if_exists:
                return
            raise TableAlreadyExistsError(f"Table {path} already exists.", path=path)
        self.store.check_new(path, definition, self.capabilities)
        wanted = complete(definition, self.conf)
        if definition.location is None:  # It has no files yet.
            wanted = self.store.numbered(wanted)
        if wanted.provider not in self.capabilities.providers:
            raise CatalogError(f"Catalog {self.name} knows no format {wanted.provider}.", path=path)
        kind = EXTERNAL if definition.location else MANAGED
        location = definition.location or self.store.default_location(path)
        self.store.check_location(path, location, "")
        made = to_table(path, wanted, kind=kind, location=location)
        self.files.make_directory(location)
        self.metastore.create_table(made)

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        path = self.canonical(path)
        table = self.find(path)
        if table is None:
            if ignore_if_not_exists:
                return
            raise TableNotExistError.of(path, self.name)
        self.metastore.drop_table(path.database, path.name)
        self._housekeeping.leave_to_clean(table)
        self.table_dropped(path)

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        path, new_path = self.canonical(path), self.canonical(new_path)
        table = self.existing(path)
        names.check_path(new_path, self.metastore.longest_name)
        if new_path.namespace != path.namespace:
            raise CatalogError(f"{path} cannot move to another database.", path=path)
        if self.find(new_path) is not None:
            raise TableAlreadyExistsError(f"Table {new_path} already exists.", path=new_path)
        if same(table.location, self.store.default_location(path)):
            self.metastore.rename_with_files(path.database, path.name, new_path.name)
        else:
            # The files stay where they are: Spark's own rename would lose a managed table whose files are elsewhere.
            self.metastore.rename_table(path.database, path.name, new_path.name)
        self.metastore.changed(path.database, path.name)
        self.table_dropped(path)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        path = self.canonical(path)
        alter.apply(self.store, lambda: self.existing(path), list(changes), path)

    def plan_rewrite(self, path: ObjectPath, changes: Sequence[TableChange]) -> Rewrite | None:
        path = self.canonical(path)
        return rewriting.plan(self.store, self.existing(path), changes, path)

    def evolves(self, path: ObjectPath, *, only_if_evolved: bool) -> bool:
        table = self.find(self.canonical(path))
        if table is None or table.kind == VIEW or table.provider not in EVOLVING or not self.metastore.read_by_session:
            return False
        return not only_if_evolved or self.metastore.has_marks(table.schema) or self.metastore.has_former_columns(table)

    def table_schema(self, path: ObjectPath) -> TableSchema | None:
        table = self.existing(path)
        found = changes.table_schema(self.metastore, path, to_definition(table))
        return None if found is None else replace(found, is_foreign=table.stamp is None)

    def written_schemas(self, path: ObjectPath) -> list[tuple[float, TableSchema]]:
        return footers.written_schemas(self.store, self.canonical(path))

    def read_source(self, path: ObjectPath) -> ReadSource:
        table = self.existing(path)
        definition = to_definition(table)
        if self.metastore.read_by_session:
            provider = read_format(definition, self.conf)
            name = ObjectPath.of(table.database, table.name)
            return ReadSource("session_table", name=name, provider=provider, definition=definition)
        if has_ids(definition):  # By their names, renamed columns would be NULL.
            raise ids_unknown(path, "read")
        footers.require_defaults(self.store, self.canonical(path), definition)
        if table.partitioned:  # Its partitions may be anywhere, and its directory may have what is none.
            state = SnapshotRead(self.store, self.canonical(path), ()).state()
            return replace(state.source(str(table.provider)), version=None)
        return ReadSource("files", provider=table.provider, location=table.location, definition=definition)

    def table_version(self, path: ObjectPath) -> Any:
        """The table's location, its stamp, the change mark of its directory, and a hash of the names in it.

        The change mark changes when files are added to or removed from the directory. twophase touches the directory
        of a partitioned table whenever it writes to one of its partitions. The names show whether two states are the
        same except for known files; they are not looked up if the directory has partitions, as there may be many.
        """
        table = self.find(self.canonical(path))
        return None if table is None or table.kind == VIEW else self.version_of(table.location, table.stored_stamp)

    def table_versions(self, paths: Sequence[ObjectPath]) -> list[Any]:
        wanted = [self.canonical(path) for path in paths]
        found: dict[ObjectPath, Located] = {}
        for database in dict.fromkeys(path.database for path in wanted):
            named = {path.name: path for path in wanted if path.database == database}
            found |= {named[table.name]: table for table in self.metastore.find_located(database, list(named))}
        tables = (found.get(path) for path in wanted)
        return [
            None if table is None or table.kind == VIEW else self.version_of(table.location, table.stamp)
            for table in tables
        ]

    def version_of(self, location: str | None, stamp: str | None) -> Any:
        """Same as :meth:`table_version`, for a table that has already been loaded.

        Parameters
        ----------
        location : str or None
        stamp : str or None
            As stored in the metastore.
        """
        if location is None:
            return None
        mark = self.files.change_mark(location)
        return version_text(location, stamp and unfenced(stamp), mark, names_in(self.files, location))

    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        return SnapshotRead(self.store, self.canonical(path), changes).source(version)

    def state_before(self, path: ObjectPath, purpose: Purpose) -> Any:
        return state_before(self.store, self.canonical(path), purpose)

    def is_as_left(self, path: ObjectPath, change: Change, later: Sequence[Change] = ()) -> bool:
        return SnapshotRead(self.store, self.canonical(path), later).is_as_left(change)

    def is_version_at(self, version: Any, location: str, stamp: str | None) -> bool:
        """Return whether a version of a table has this location, and this stamp as stored in the metastore.

        Parameters
        ----------
        version : Any
            From :meth:`table_version`.
        location : str
        stamp : str or None
        """
        found = json.loads(version)
        return bool(found[:2] == json.loads(version_text(location, stamp and unfenced(stamp), None, None))[:2])

    def still_has_files(self, version: Any) -> bool:
        location, stamp, _, names = json.loads(version)
        return names is not None and bool(self.version_of(location, stamp) == version)

    def lists_when_executed(self, path: ObjectPath) -> bool:
        # Partitions are listed when a query runs; what Spark has listed of another table follows the writes of other
        # sessions of the application (``Relations.java``) until the query runs.
        table = self.find(self.canonical(path)) if self.metastore.read_by_session else None
        if table is None or table.kind == VIEW:
            return False
        return read_format(to_definition(table), self.conf) is not None

    # -- savepoints ----------------------------------------------------------------------------------------------

    def tables_to_keep(self, database: str) -> list[ObjectPath]:
        name = self.metastore.canonical(database)
        paths = [ObjectPath.of(name, table) for table in self.list_tables(database)]
        return [path for path in paths if (table := self.find(path)) is not None and table.kind != VIEW]

    def plan_kept(self, path: ObjectPath, savepoint: str, name: str, *, copies: bool = False) -> Mapping[str, Any]:
        table = self.existing(path)
        return self._kept.plan(table, self.canonical(path), savepoint, self.capabilities, copies=copies)

    def keep(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        return self._kept.keep(document)

    def forget_kept(self, document: Mapping[str, Any]) -> None:
        self._kept.forget(document)

    def kept_definition(self, document: Mapping[str, Any]) -> TableDefinition:
        return self._kept.definition(document)

    def read_kept(self, document: Mapping[str, Any]) -> ReadSource:
        return self._kept.source(document)

    def write_kept(self, participant: TwoPhaseCatalogTable, document: Mapping[str, Any]) -> bool:
        assert isinstance(participant, HiveParticipant)
        self._kept.stage(participant.table_write, document)
        return True

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
        failures.refuse_renamed(path, context, is_renamed)
        context = context or WriteContext.alone(self.name)
        plan = plan_write(self.store, self.capabilities, self.canonical(path), definition, purpose, context)
        if plan is None:
            return None
        options = definition.options if purpose.inserts else {}  # Of another statement they are the table's own.
        return HiveParticipant(self, plan.state.to_document(), plan.definition, plan.table, options)

    def two_phase_drop_table(
        self, path: ObjectPath, *, purge: bool = False, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        if self.settings.metastore != "session":
            return None  # A rename through HiveServer2 moves the files of a managed table.
        state = plan_drop(self.store, self.canonical(path), context or WriteContext.alone(self.name))
        return HiveParticipant(self, state.to_document())

    def two_phase_alter_table(
        self, path: ObjectPath, changes: Sequence[TableChange], *, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        if self.settings.metastore != "session":
            return None  # Columns and properties of a HiveServer2 change in statements of their own.
        failures.refuse_renamed(path, context, is_renamed)
        context = context or WriteContext.alone(self.name)
        plan = plan_alter(self.store, self.canonical(path), changes, context)
        return None if plan is None else HiveParticipant(self, plan.state.to_document(), plan.definition)

    def two_phase_rename_table(
        self, path: ObjectPath, new_path: ObjectPath, *, context: WriteContext
    ) -> TwoPhaseCatalogTable | None:
        if self.settings.metastore != "session":
            return None  # As a drop.
        state = plan_rename(self.store, self.canonical(path), self.canonical(new_path), context)
        return None if state is None else HiveParticipant(self, state.to_document())

    def two_phase_leave_table(
        self, path: ObjectPath, arriving: TwoPhaseCatalogTable, *, context: WriteContext
    ) -> TwoPhaseCatalogTable:
        state = plan_leave(self.canonical(path), arriving.document, context)
        return HiveParticipant(self, state.to_document())

    def is_renamed(self, participant: TwoPhaseCatalogTable) -> bool:
        return isinstance(participant, HiveParticipant) and is_renamed(participant.document)

    def rests_on_rename(self, participant: TwoPhaseCatalogTable) -> bool:
        if self.group_key(participant) is not None:
            return True
        return isinstance(participant, HiveParticipant) and participant.table_write.state.displaces is not None

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        return pair_of(participant.table_write.state) if isinstance(participant, HiveParticipant) else None

    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        # The new name publishes for all names of a renamed table; the others are only checked.
        for participant in sorted(participants, key=self.is_renamed):
            participant.commit()

    def group_outcome(self, participants: list[TwoPhaseCatalogTable]) -> Outcome:
        return self._arriving(participants).outcome()

    def compensate_group(self, participants: list[TwoPhaseCatalogTable]) -> bool:
        return self._arriving(participants).compensate()

    def _arriving(self, participants: list[TwoPhaseCatalogTable]) -> TwoPhaseCatalogTable:
        """The participant of the new name of a renamed table, which may be dropped by it."""
        return next(filter(self.is_renamed, participants))

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        identity.check_document(document, self.metastore.identity)
        return staged_databases.restored(self, document) or HiveParticipant(self, document)

    def moves_files(self, path: ObjectPath) -> bool:
        table = self.find(self.canonical(path))
        if table is None or table.kind != MANAGED or self.store.settings.recipe == RENAME:
            return False
        return self.store.paths(path).is_tables(str(table.location))

    def has_moved_files(self, path: ObjectPath) -> bool:
        table = self.find(self.canonical(path))
        if table is None:
            return False
        parts = self.metastore.list_partitions(table) if table.partitioned else []
        places = [str(table.location), *(part.location for part in parts)]
        is_moved = table.stored_stamp is not None and not names_statement(table.stored_stamp)
        return is_moved or any(map(layout.is_in_version, places))

    # -- housekeeping --------------------------------------------------------------------------------------------

    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        return self._housekeeping.leftovers(live_transactions)

    def remove_leftover(self, leftover: Leftover) -> None:
        (error,) = self.remove_leftovers([leftover])
        if error is not None:
            raise error

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> list[Exception | None]:
        return list(self._housekeeping.remove(leftovers))

    def partitions_sought(self, path: ObjectPath, partitions: Sequence[Mapping[str, str | None]] | None = None) -> None:
        self._housekeeping.partitions_sought(self.canonical(path), partitions)

    def table_dropped(self, path: ObjectPath) -> None:
        self._housekeeping.free_default_location(self.canonical(path))

    def table_renamed(self, path: ObjectPath, new_path: ObjectPath) -> None:
        self._housekeeping.table_renamed(self.canonical(new_path))
        self._housekeeping.free_default_location(self.canonical(path))

    def check(self) -> list[str]:
        try:
            self.metastore.list_databases()
        except Exception as error:  # any error: doctor reports it
            return [f"The metastore of catalog {self.name} does not answer: {error}"]
        housekeeping = self._housekeeping
        return [*write_problems(self.store), *housekeeping.foreign_metastores(), *housekeeping.lost_tables()]

    def storage(self) -> list[str]:
        return described(self.store)

    def close(self) -> None:
        self.store.close()


@functools.cache  # Each statement asks a dozen times.
def _capabilities(through_session: bool, storage: StorageKind) -> Capabilities:
    return Capabilities(
        purposes=frozenset(Purpose),
        partitioning=frozenset({"identity", "cluster_by"} if through_session else {"identity"}),
        bucketing=through_session,
        alter_database=True,
        rename_table=True,
        alter_table=True,
        read=True,
        external_location=True,
        compensate=True,
        copying_savepoints=not storage.hard_links,
        column_defaults=through_session,
        partition_columns_last=True,
        unseen_changes=not storage.change_marks,
        providers=PROVIDERS if through_session else FILE_PROVIDERS,
        max_level=Level.ATOMIC,
    )
