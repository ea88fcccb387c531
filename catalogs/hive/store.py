"""The store of a Hive catalog: its metastore, its files, and the locations of its tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from twophase.catalog import Environment
from twophase.catalog.spark_columns import has_collation
from twophase.catalogs.files import Files, is_below, join, parent
from twophase.catalogs.hive import layout, names
from twophase.catalogs.hive.definitions import FIELD_IDS
from twophase.catalogs.hive.metastore import Metastore
from twophase.catalogs.hive.options import Settings
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.paths import TablePaths
from twophase.catalogs.hive.tables import HivePartition, HiveTable
from twophase.errors import CatalogError, DatabaseNotExistError, TableAlreadyExistsError
from twophase.model import Capabilities, ObjectPath, TableDefinition


class HiveStore:
    """The metastore and the files of a Hive catalog, as used by its writes.

    Parameters
    ----------
    name : str
        Name of the catalog.
    environment : Environment
    settings : Settings
    open_metastore : callable
        Opens the metastore on first use.
    """

    def __init__(
        self, name: str, environment: Environment, settings: Settings, open_metastore: Callable[[], Metastore]
    ) -> None:
        self.name = name
        self.environment = environment
        self.files = Files(durable=environment.fsync, hadoop=environment.hadoop_files, kinds=environment.storage_kinds)
        self.settings = settings
        self._open_metastore = open_metastore
        self._metastore: Metastore | None = None
        #: By database, its root directory when it was last asked for.
        self._roots: dict[str, str] = {}

    @property
    def metastore(self) -> Metastore:
        """The metastore, opened on first use."""
        if self._metastore is None:
            self._metastore = self._open_metastore()
        return self._metastore

    @property
    def conf(self) -> Mapping[str, str]:
        """The session's configuration."""
        return self.environment.conf

    def close(self) -> None:
        """Close the metastore, unless it is the session's."""
        if self._metastore is not None and not self._metastore.read_by_session:
            self._metastore.close()

    def numbered(self, definition: TableDefinition) -> TableDefinition:
        """The completed definition of a new table; its fields have ids if the user wants that, for Parquet files."""
        if not self.metastore.read_by_session:
            return definition
        said = definition.properties.get(FIELD_IDS, str(self.settings.field_ids)).lower() == "true"
        wanted = said and definition.provider == "parquet"
        schema = self.metastore.numbered(definition.schema, definition.partition_columns, with_ids=wanted)
        properties = {**definition.properties, FIELD_IDS: "true"} if wanted else definition.properties
        return replace(definition, schema=schema, properties=properties)

    # -- tables --------------------------------------------------------------------------------------------------

    def find(self, path: ObjectPath, *, as_analyzed: bool = False) -> HiveTable | None:
        """Load a table or view from the metastore, as :meth:`Metastore.get_table`; None if it does not exist."""
        return self.metastore.get_table(path.database, path.name, as_analyzed=as_analyzed)

    def list_tables(self, database: str) -> list[str]:
        """Names of tables and views of a database, without hidden ones."""
        found = self.metastore.list_tables(database)
        return sorted(name for name in found if not name.startswith(layout.HIDDEN_PREFIX))

    def database_location(self, database: str) -> str:
        """Root directory of a database."""
        location = self.metastore.database_location(self.metastore.canonical(database))
        if location is None:
            raise DatabaseNotExistError.of(database, self.name)
        self._roots[database] = location
        return location

    def default_location(self, path: ObjectPath, table: HiveTable | None = None) -> str:
        """Location that stock Spark would give the table.

        Parameters
        ----------
        path : ObjectPath
        table : HiveTable, optional
            The table, if it exists: for one that is stored where its database's known root has its tables, the
            metastore is not asked again. Its versions stay beside it, even if the database gets another root.
        """
        root = self._roots.get(path.database)
        if root is None or table is None or not _is_of(root, table.location):
            root = self.database_location(path.database)
        return join(root, path.name)

    def paths(self, path: ObjectPath) -> TablePaths:
        """Paths of a table, which distinguish its own directories from a user's LOCATION."""
        return TablePaths(self.files, lambda: self.default_location(path))

    # -- checks --------------------------------------------------------------------------------------------------

    def check_new(self, path: ObjectPath, definition: TableDefinition, capabilities: Capabilities) -> None:
        """Refuse bad input for a new table, before any job starts."""
        names.check_path(path, self.metastore.longest_name)
        if not self.metastore.database_exists(path.database):
            raise DatabaseNotExistError.of(path.database, self.name)
        self.check_definition(path, definition, capabilities)

    def check_definition(self, path: ObjectPath, definition: TableDefinition, capabilities: Capabilities) -> None:
        """Refuse columns and a layout that a new table cannot have."""
        collated = next((field.name for field in definition.schema if has_collation(field)), None)
        if collated is not None and not self.metastore.read_by_session:
            raise CatalogError(
                f"{path} was not created: {collated} has a collation, which would be lost through HiveServer2.",
                path=path,
                hint="Cast it to STRING COLLATE UTF8_BINARY, or create the table in a session of that metastore.",
            )
        sensitive = self.conf.get("spark.sql.caseSensitive", "false").lower() == "true"
        names.check_definition(path, definition, capabilities.partitioning, case_sensitive=sensitive)

    def check_free(
        self, path: ObjectPath, default_location: str, transaction_id: str, is_ours: Callable[[HiveTable], bool]
    ) -> None:
        """Refuse to create a table that was created meanwhile, or whose default location is in use.

        The stamp alone does not make a table ours: it may have been copied with the definition of another table.
        """
        found = self.find(path)
        if found is not None and not is_ours(found):
            raise TableAlreadyExistsError(f"Table {path} already exists.", path=path, transaction_id=transaction_id)
        if found is None:
            self.check_location(path, default_location, transaction_id)

    def check_location(self, path: ObjectPath, location: str, transaction_id: str) -> None:
        """Refuse a directory that holds files of another writer."""
        if self.files.is_empty(location) or self._held_only_by_us(location, transaction_id):
            return
        raise CatalogError(
            f"{path} cannot be created: the directory {location} is not empty and not made by twophase.",
            path=path,
            hint="It was left untouched. Move it away, or choose another LOCATION. If these are the files of the "
            "table, as after the DROP of an EXTERNAL one, create it over them: CREATE TABLE ... USING ... LOCATION ...",
        )

    def _held_only_by_us(self, location: str, transaction_id: str) -> bool:
        if transaction_id and layout.owned_by(self.files, location, transaction_id):
            return True
        mark = layout.read_superseded(self.files, location)
        if mark is None:
            return False
        held = {entry.name for entry in self.files.list(location) if entry.is_file}
        return held <= {*mark.files, layout.SUPERSEDED_FILE}

    # -- staging directories -------------------------------------------------------------------------------------

    def remove_half_made(self, directory: str) -> None:
        """Remove a staging directory without files, left by a crash while its stamp was written, or just removed."""
        if self.files.exists(directory):
            self.files.remove_parts(directory)
            if not any(entry.is_file for entry in self.files.list(directory, links=False)):
                self.files.remove_tree(directory)

    def remove_if_unused(self, version: str) -> None:
        """Remove the directories above a version if they are empty."""
        for directory in (parent(version), parent(parent(version))):
            is_ours = any(place.endswith("/" + layout.ROOT) for place in (directory, parent(directory)))
            if is_ours and not self.files.remove_if_empty(directory):
                return


@runtime_checkable
class OverHive(Protocol):
    """A catalog that has a Hive store."""

    store: HiveStore


def partitions_of(
    table: HiveTable, found: Mapping[Key, str], files: Mapping[Key, tuple[int, int] | None] = MappingProxyType({})
) -> list[HivePartition]:
    """Convert a mapping from key to location into partitions for the metastore, with their files if they are known."""
    columns = table.partition_columns
    return [
        HivePartition(dict(zip(columns, key, strict=True)), location, files=files.get(key))
        for key, location in sorted(found.items())
    ]


def _is_of(root: str, location: str | None) -> bool:
    """Whether a location is that of a table, or of a version, of the database with this root."""
    return location is not None and (parent(location) == root or is_below(location, join(root, layout.ROOT)))
