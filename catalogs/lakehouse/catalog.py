"""The lakehouse catalog: Apache Iceberg tables, written in two phases."""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, ClassVar

import sqlalchemy as sa
from pyiceberg.exceptions import (
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
)
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from twophase.catalog import Catalog, Environment, Residue, TableChange, TwoPhaseCatalogTable
from twophase.catalogs.files import Files
from twophase.catalogs.lakehouse import (
    altering,
    definitions,
    errors,
    evolving,
    housekeeping,
    layout,
    manifests,
    options,
    publishing,
    read_options,
    snapshots,
)
from twophase.catalogs.lakehouse.inspecting import INSPECTIONS, inspect
from twophase.catalogs.lakehouse.offers import check_writable, offer, state_version
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.catalogs.lakehouse.reading import ListedFiles, ManifestReader, State
from twophase.catalogs.lakehouse.reading_arrow import IcebergReader, Rows
from twophase.catalogs.lakehouse.store import Also, Loaded, Store
from twophase.errors import (
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.failpoints import step
from twophase.model import Capabilities, ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.reading import Deletion, Filter, ReadSource
from twophase.redaction import logger
from twophase.schema import to_iceberg

_log = logger("twophase")


class LakehouseCatalog(Catalog):
    """Iceberg tables behind PyIceberg's catalogs: SQL, Hive Metastore, REST; no Iceberg jar is needed.

    Parameters
    ----------
    name, options, environment
        As for every catalog; see :attr:`known_options`.

    Raises
    ------
    ConfigurationError
        A wrong option.
    """

    known_options: ClassVar[Mapping[str, str]] = options.KNOWN
    idle_read_options = read_options.IDLE

    def __init__(self, name: str, options_: Mapping[str, str], environment: Environment) -> None:
        super().__init__(name, options_, environment)
        settings = options.read(name, options_, environment.warehouse)
        self.files = Files(durable=environment.fsync)
        self.store = self._open(settings)

    def _open(self, settings: options.Settings) -> Store:
        if settings.kind == "hive":
            from twophase.catalogs.lakehouse.store_hive import HiveStore

            return HiveStore(settings, self.files)
        if settings.kind == "rest":
            from twophase.catalogs.lakehouse.store_rest import RestStore

            return RestStore(settings, self.files)
        from twophase.catalogs.lakehouse.store_sql import SqlStore

        return SqlStore(settings)

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
                raise DatabaseAlreadyExistsError(
                    f"Database {database} exists already in catalog {self.name}.", path=database
                ) from None

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
        tables = self.store.all_tables(database)
        places = {path: self._location(path, pointer) for path, pointer in tables.items()}
        self.store.drop_namespace(database, places)

    def load_database(self, database: str) -> dict[str, str]:
        self._require_database(database)
        try:
            with self.store.speaking(path=database):
                found = self.store.catalog.load_namespace_properties((database,))
        except NoSuchNamespaceError:
            raise self._no_database(database) from None
        return {key: value for key, value in found.items() if key != "exists"}

    def _no_database(self, database: str) -> DatabaseNotExistError:
        return DatabaseNotExistError(f"Database {database} does not exist in catalog {self.name}.", path=database)

    def _require_database(self, database: str) -> None:
        if not self.database_exists(database):
            raise self._no_database(database)

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
        """Refuse a name that no table here can have.

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

    def require(self, path: ObjectPath) -> Loaded:
        """A table that is there.

        Raises
        ------
        TableNotExistError
        CatalogError
            Its metadata file is missing or damaged.
        """
        found = self.store.load(path) if len(path.namespace) == 1 else None
        if found is None:
            raise TableNotExistError(f"Table {path} does not exist in catalog {self.name}.", path=path)
        return found

    def load_table(self, path: ObjectPath) -> TableDefinition:
        inspected = self._inspected(path)
        if inspected is not None:
            return TableDefinition(self._inspection(*inspected).schema)
        return definitions.to_definition(self.require(path).metadata)

    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        self.check_path(path)
        definitions.check(path, definition)
        schema = definitions.to_schema(path, definition)
        spec = definitions.to_spec(path, schema, definition.partitioning)
        if self.store.pointer(path) is None:
            place = layout.Place(
                layout.table_location(self.store.settings.warehouse, path, self.own_key()), self.own_key()
            )
            properties = definitions.to_properties(definition)
            order = definitions.to_sort_order(path, to_iceberg(schema), definition.properties)
            metadata = snapshots.new_metadata(
                place.location,
                to_iceberg(schema),
                spec,
                properties,
                str(uuid.uuid4()),
                UNSORTED_SORT_ORDER if order is None else order,
            )
            if self._register(path, place, metadata):
                return
        if not ignore_if_exists:
            raise TableAlreadyExistsError(f"Table {path} exists already in catalog {self.name}.", path=path)

    def _register(self, path: ObjectPath, place: layout.Place, metadata: TableMetadata) -> bool:
        location = place.metadata_file(0)
        with errors.writing(path, location):
            publishing.stage_metadata(self.store, self.files, None, Loaded(location, metadata))
        made = self.store.swap(path, None, Loaded(location, metadata))
        if not made:
            place.remove(self.files)
        return made

    def own_key(self) -> str:
        """A key for what no participant makes."""
        return secrets.token_hex(12)

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        try:
            pointer = self.store.pointer(path) if len(path.namespace) == 1 else None
        except errors.UnreadableMetadataError:
            if self.store.drop_unreadable(path):
                _log.warning("Table %s was dropped without a look at its metadata: its files stay.", path)
                return
            pointer = None
        if pointer is None:
            if ignore_if_not_exists:
                return
            raise TableNotExistError(f"Table {path} does not exist in catalog {self.name}.", path=path)
        remove_files = self._purge(path, pointer) if purge else None
        if not self.store.drop(path, pointer, self._location(path, pointer)):
            self.drop_table(path, ignore_if_not_exists=ignore_if_not_exists, purge=purge)
        elif remove_files is not None:
            remove_files()

    def _purge(self, path: ObjectPath, pointer: str) -> Callable[[], None] | None:
        """What removes the files of a table; None where its metadata cannot be read: then they stay."""
        try:
            loaded = Loaded(pointer, self.store.metadata(path, pointer))
            return housekeeping.purge(self, path, loaded)
        except errors.UnreadableMetadataError as error:
            _log.warning("Table %s is dropped, and its files stay: %s", path, error)
            return None

    def _location(self, path: ObjectPath, pointer: str) -> str | None:
        """The directory of a table; None where its metadata cannot be read: then its files stay."""
        try:
            return self.store.metadata(path, pointer).location
        except CatalogError:
            return None

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        if self.store.pointer(path) is None:
            raise TableNotExistError(f"Table {path} does not exist in catalog {self.name}.", path=path)
        self.check_path(new_path)
        if not self.store.rename(path, new_path):
            raise TableAlreadyExistsError(f"Table {new_path} exists already in catalog {self.name}.", path=new_path)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        altering.alter(self, path, list(changes))

    # -- reading -------------------------------------------------------------------------------------------------

    def read_source(self, path: ObjectPath) -> ReadSource:
        inspected = self._inspected(path)
        if inspected is not None:
            rows = self._inspection(*inspected)
            return ReadSource("batches", definition=TableDefinition(rows.schema), reader=Rows(rows))
        metadata = self.require(path).metadata
        current = metadata.current_snapshot()
        source = self.source_of(path, metadata, current.snapshot_id if current else None, metadata.current_schema_id)
        return replace(source, version=state_version(metadata))

    def table_version(self, path: ObjectPath) -> str | None:
        found = self.store.load(path) if len(path.namespace) == 1 else None
        return None if found is None else state_version(found.metadata)

    def read_source_as_of(
        self, path: ObjectPath, *, version: str | None = None, timestamp: int | None = None
    ) -> ReadSource:
        metadata = self.require(path).metadata
        if version is not None:
            return self.source_of(path, metadata, *self._version(path, metadata, version))
        assert timestamp is not None
        snapshot_id = self.snapshot_at(path, metadata, timestamp)
        return self.source_of(path, metadata, snapshot_id, self._schema_of(metadata, snapshot_id))

    def read_source_with(self, path: ObjectPath, options: Mapping[str, str]) -> ReadSource:
        if self._inspected(path) is not None:
            return super().read_source_with(path, options)
        return read_options.source(self, path, options)

    def snapshot_at(self, path: ObjectPath, metadata: TableMetadata, timestamp: int) -> int:
        """The snapshot that was the table's at a time, in microseconds since the epoch.

        Raises
        ------
        CatalogError
            There is none, or none any more.
        """
        snapshot_id = next(
            (log.snapshot_id for log in reversed(metadata.snapshot_log) if log.timestamp_ms * 1000 <= timestamp), None
        )
        if snapshot_id is None or metadata.snapshot_by_id(snapshot_id) is None:
            raise CatalogError(
                f"{path} has no state of that time: it is older than the table, or its retention has ended.", path=path
            )
        return snapshot_id

    def _version(self, path: ObjectPath, metadata: TableMetadata, version: str) -> tuple[int, int]:
        """Snapshot and schema of what ``VERSION AS OF`` names: a snapshot's number, a branch or a tag."""
        ref = metadata.refs.get(version)
        if ref is not None:
            # A branch is shown in the table's schema, as Iceberg does.
            is_branch = ref.snapshot_ref_type == SnapshotRefType.BRANCH
            schema = metadata.current_schema_id if is_branch else self._schema_of(metadata, ref.snapshot_id)
            return ref.snapshot_id, schema
        number = int(version) if version.lstrip("-").isdigit() else None
        if number is None or metadata.snapshot_by_id(number) is None:
            raise CatalogError(
                f"{path} has no snapshot, branch or tag {version!r}.",
                path=path,
                hint=f"SELECT snapshot_id FROM {self.name}.{path}.snapshots shows those that there are.",
            )
        return number, self._schema_of(metadata, number)

    def _schema_of(self, metadata: TableMetadata, snapshot_id: int) -> int:
        snapshot = metadata.snapshot_by_id(snapshot_id)
        assert snapshot is not None
        return metadata.current_schema_id if snapshot.schema_id is None else snapshot.schema_id

    def source_of(
        self, path: ObjectPath, metadata: TableMetadata, snapshot_id: int | None, schema_id: int
    ) -> ReadSource:
        """How to read a snapshot of a table in one of its schemas."""
        if metadata.format_version > 2:
            raise CatalogError(
                f"{path} is an Iceberg table of format version {metadata.format_version}, which cannot be read yet.",
                path=path,
                hint="Versions 1 and 2 can be read.",
            )
        schema = metadata.schema_by_id(schema_id)
        assert schema is not None
        definition = definitions.to_definition(metadata, schema)
        found = manifests.manifests_of(metadata, snapshot_id)
        if snapshot_id is not None and (
            manifests.has_deletes(found) or definitions.NAME_MAPPING in metadata.properties
        ):
            reader = IcebergReader(path, metadata, snapshot_id, schema)
            return ReadSource("batches", definition=definition, reader=reader)
        return ReadSource(
            "parquet", definition=definition, files=ManifestReader(State.of(path, metadata, snapshot_id, schema))
        )

    def staged_source(self, participant: LakehouseParticipant) -> ReadSource | None:
        """How to read what a participant staged, with what the table holds."""
        metadata, found = participant.staged_manifests()
        if manifests.has_deletes(found):
            return None
        schema = to_iceberg(participant.schema)
        specs = {participant.spec.spec_id: participant.spec} | (dict(metadata.specs()) if metadata else {})
        schemas = (schema, *(metadata.schemas if metadata else ()))
        state = State(
            participant.path,
            participant.name,
            participant.place.location,
            schema,
            specs,
            schemas,
            tuple(found),
            participant.schema.highest_field_id,
        )
        shown = TableDefinition(
            definitions.without_ids(definitions.arrow_of(schema, state.highest_field_id)), provider=definitions.PROVIDER
        )
        return ReadSource("parquet", definition=shown, files=ManifestReader(state))

    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        return evolving.follows_rows(definition.properties)

    def plan_delete(self, path: ObjectPath, conditions: Sequence[Filter | None]) -> Deletion:
        metadata = self.require(path).metadata
        check_writable(path, metadata)
        source = self.read_source(path)
        if source.files is None:
            raise CatalogError(
                f"Rows of {path} cannot be deleted here: another engine has deleted some, or its files have no ids.",
                path=path,
                hint="Use the engine that did so, or let it rewrite the files first.",
            )
        snapshot = metadata.current_snapshot()
        state = State.of(path, metadata, snapshot.snapshot_id if snapshot else None, metadata.schema())
        whole, part = ManifestReader(state).deletion(conditions)
        names = tuple(file.file_path for file in (*whole, *part))
        rewritten = ListedFiles(state, [file.file_path for file in part])
        left = ReadSource("parquet", definition=source.definition, files=rewritten) if part else None
        return Deletion(names, state_version(metadata), left)

    def _inspected(self, path: ObjectPath) -> tuple[ObjectPath, str] | None:
        """The table and the kind, where a path names one of its metadata tables."""
        if len(path.namespace) != 2 or path.name not in INSPECTIONS:
            return None
        table = ObjectPath.of(*path.namespace)
        return (table, path.name) if self.store.pointer(table) is not None else None

    def _inspection(self, path: ObjectPath, name: str) -> Any:
        return inspect(self.store.iceberg_table(path, self.require(path)), name)

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
        return LakehouseParticipant(self, offer(self, path, definition, purpose, context, time.time()))

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        restored = LakehouseParticipant(self, document)
        with suppress(CatalogError):  # One that does not answer is asked again, before anything is done.
            restored.check_identity()
        restored.leave_tries()  # Of the process before nothing is known.
        return restored

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        if not self.store.publishes_together:
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
        with step("lakehouse.compensate"):
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
        with publishing.publish_step():
            publishing.publish(self.store, self.files, members, also)

    # -- housekeeping --------------------------------------------------------------------------------------------

    def remove_staged(self, participant: str) -> None:
        """Remove what a participant staged, where it was not published. Idempotent."""
        housekeeping.remove_staged(self, participant)

    def residues(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Residue]:
        return housekeeping.residues(self, live_transactions)

    def remove_residue(self, residue: Residue) -> None:
        (error,) = housekeeping.remove(self, [residue])
        if error is not None:
            raise error

    def remove_residues(self, residues: Sequence[Residue]) -> list[Exception | None]:
        return housekeeping.remove(self, residues)

    def check(self) -> list[str]:
        return housekeeping.problems(self)

    def close(self) -> None:
        self.store.close()
