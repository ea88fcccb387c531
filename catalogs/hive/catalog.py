"""The Hive catalog: tables of a Hive-compatible metastore, written in two phases."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

from twophase.catalog import Catalog, Environment, Residue, TableChange, TwoPhaseCatalogTable
from twophase.catalogs.files import Files, join, normal, parent, same
from twophase.catalogs.hive import alter, identity, layout, names, offers
from twophase.catalogs.hive.definitions import FILE_PROVIDERS, PROVIDERS, complete, to_definition, to_table
from twophase.catalogs.hive.hiveserver2_client import SqlClient
from twophase.catalogs.hive.housekeeping import Housekeeping
from twophase.catalogs.hive.metastore import (
    EXTERNAL,
    MANAGED,
    VIEW,
    HivePartition,
    HiveTable,
    Metastore,
    unfenced,
)
from twophase.catalogs.hive.places import Places
from twophase.catalogs.hive.recipe_insert import APPENDS
from twophase.errors import (
    CatalogError,
    ConfigurationError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import Capabilities, Level, ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.reading import ReadSource

#: Kinds of metastore access.
METASTORES = ("session", "hiveserver2")
RECIPES = ("pointer", "rename")


class HiveCatalog(Catalog):
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

    known_options: ClassVar[Mapping[str, str]] = {
        "metastore": "session (the Spark session's own, the default) or hiveserver2",
        "recipe": "pointer (the default) or rename: how a table is published",
        "append": "directory, links or files: how several new files of an INSERT INTO are published; else as they are",
        "host": "HiveServer2: host name",
        "port": "HiveServer2: port, 10000 by default",
        "auth": "HiveServer2: NONE (the default), NOSASL, LDAP, CUSTOM or KERBEROS",
        "username": "HiveServer2: user",
        "password": "HiveServer2: password, for LDAP and CUSTOM",
        "kerberos_service_name": "HiveServer2: service name for KERBEROS",
        "tls": "HiveServer2: true for an encrypted connection",
        "tls_ca": "HiveServer2: file with the certificates to trust",
        "tls_verify": "HiveServer2: false accepts any certificate",
        "timeout": "HiveServer2: seconds to wait for a connection and the login, 30 by default",
    }

    def __init__(self, name: str, options: Mapping[str, str], environment: Environment) -> None:
        super().__init__(name, options, environment)
        self.files = Files(durable=environment.fsync)
        self.recipe = self._choice("recipe", RECIPES)
        self.append = self._choice("append", APPENDS) if "append" in self.options else None
        self._metastore_kind = self._choice("metastore", METASTORES)
        self._metastore: Metastore | None = None
        if self._metastore_kind == "hiveserver2":
            SqlClient(name, self.options)  # Its options are checked now, and the server is called when it is needed.
        self._housekeeping = Housekeeping(self)

    def _choice(self, option: str, allowed: tuple[str, ...]) -> str:
        value = self.options.get(option, allowed[0]).lower()
        if value not in allowed:
            raise ConfigurationError(
                f"Catalog {self.name}: the option {option} is {' or '.join(allowed)}, not {value!r}."
            )
        return value

    # -- what it stands on ---------------------------------------------------------------------------------------

    @property
    def metastore(self) -> Metastore:
        """The metastore, opened when first asked for.

        Raises
        ------
        ConfigurationError
            There is no Spark session to lend one.
        """
        if self._metastore is None:
            self._metastore = self._open_metastore()
        return self._metastore

    def _open_metastore(self) -> Metastore:
        if self._metastore_kind == "hiveserver2":
            from twophase.catalogs.hive.hiveserver2 import open_metastore

            return open_metastore(self.name, self.options)
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
        through_session = self._metastore_kind == "session"
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
            providers=PROVIDERS if through_session else FILE_PROVIDERS,
            max_level=Level.ATOMIC,
        )

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
            raise self._no_database(database)
        return found

    def _no_database(self, database: str) -> DatabaseNotExistError:
        return DatabaseNotExistError(f"Database {database} does not exist in catalog {self.name}.", path=database)

    # -- tables --------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """The path as the metastore keeps it."""
        return ObjectPath(
            tuple(self.metastore.canonical(part) for part in path.namespace), self.metastore.canonical(path.name)
        )

    def list_tables(self, database: str) -> list[str]:
        self.load_database(database)
        found = self.metastore.list_tables(self.metastore.canonical(database))
        return sorted(name for name in found if not name.startswith(layout.HIDDEN_PREFIX))

    def find(self, path: ObjectPath) -> HiveTable | None:
        """The table or view in the metastore; None for one that is not there."""
        return self.metastore.get_table(path.database, path.name)

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
            raise TableNotExistError(f"Table {path} does not exist in catalog {self.name}.", path=path)
        if found.kind == VIEW:
            raise CatalogError(f"{path} is a view, not a table.", path=path)
        return found

    def load_table(self, path: ObjectPath) -> TableDefinition:
        return to_definition(self.existing(path))

    def definition_of(self, table: HiveTable) -> TableDefinition:
        """The definition of a table of the metastore."""
        return to_definition(table)

    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        path = self.canonical(path)
        if self.find(path) is not None:
            if ignore_if_exists:
                return
            raise TableAlreadyExistsError(f"Table {path} exists already.", path=path)
        self.check_new(path, definition)
        wanted = complete(definition, self.conf)
        if wanted.provider not in self.capabilities.providers:
            raise CatalogError(f"Catalog {self.name} knows no format {wanted.provider}.", path=path)
        kind = EXTERNAL if definition.location else MANAGED
        location = definition.location or self.default_location(path)
        self.check_location(path, location, "")
        made = to_table(path, wanted, kind=kind, location=location)
        self.files.make_directory(location)
        self.metastore.create_table(made)

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        path = self.canonical(path)
        table = self.find(path)
        if table is None:
            if ignore_if_not_exists:
                return
            raise TableNotExistError(f"Table {path} does not exist in catalog {self.name}.", path=path)
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
            raise TableAlreadyExistsError(f"Table {new_path} exists already.", path=new_path)
        if same(table.location, self.default_location(path)):
            self.metastore.rename_with_files(path.database, path.name, new_path.name)
        else:
            # The files stay where they are: Spark's own rename would lose a managed table whose files are elsewhere.
            self.metastore.rename_table(path.database, path.name, new_path.name)
        self.metastore.changed(path.database, path.name)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        path = self.canonical(path)
        alter.apply(self.metastore, self.existing(path), list(changes), path)

    def read_source(self, path: ObjectPath) -> ReadSource:
        table = self.existing(path)
        if self.metastore.read_by_session:
            return ReadSource("session_table", name=ObjectPath.of(table.database, table.name))
        return ReadSource("files", provider=table.provider, location=table.location, definition=to_definition(table))

    def table_version(self, path: ObjectPath) -> Any:
        """Where the table is, who published it, and when files last came to or went from its own directory.

        That of a partitioned table is touched whenever twophase has written to one of its partitions.
        """
        table = self.find(self.canonical(path))
        return None if table is None or table.kind == VIEW else self.version_of(table.location, table.stored_stamp)

    def version_of(self, location: str | None, stamp: str | None) -> Any:
        """The same of a table as somebody has found it.

        Parameters
        ----------
        location : str or None
        stamp : str or None
            As the metastore keeps it.
        """
        if location is None:
            return None
        return [normal(location), stamp and unfenced(stamp), self.files.change_mark(location)]

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
        return offers.offer(self, self.canonical(path), definition, purpose, context)

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        identity.check_document(document, self.metastore.identity)
        return offers.participant_class(document)(self, document)

    # -- checks that several participants need -------------------------------------------------------------------

    def check_new(self, path: ObjectPath, definition: TableDefinition) -> None:
        """Bad input for a new table, told before any job."""
        names.check_path(path, self.metastore.longest_name)
        if not self.metastore.database_exists(path.database):
            raise self._no_database(path.database)
        self.check_definition(path, definition)

    def check_definition(self, path: ObjectPath, definition: TableDefinition) -> None:
        """The columns of a new table."""
        sensitive = self.conf.get("spark.sql.caseSensitive", "false").lower() == "true"
        names.check_definition(path, definition, self.capabilities.partitioning, case_sensitive=sensitive)

    def check_free(
        self, path: ObjectPath, home: str, transaction_id: str, is_ours: Callable[[HiveTable], bool]
    ) -> None:
        """Refuse to create a table that came into being meanwhile, or whose default location ``home`` is taken.

        A table is not ours by its stamp alone: that may have been copied with the definition of another one.
        """
        found = self.find(path)
        if found is not None and not is_ours(found):
            raise TableAlreadyExistsError(f"Table {path} exists already.", path=path, transaction_id=transaction_id)
        if found is None:
            self.check_location(path, home, transaction_id)

    def check_location(self, path: ObjectPath, location: str, transaction_id: str) -> None:
        """Refuse a directory that holds files of somebody else."""
        if self.files.is_empty(location) or self._held_only_by_us(location, transaction_id):
            return
        raise CatalogError(
            f"{path} cannot be created: the directory {location} is not empty and not made by twophase.",
            path=path,
            hint="It was left untouched. Move it away, or choose another LOCATION.",
        )

    def _held_only_by_us(self, location: str, transaction_id: str) -> bool:
        if transaction_id and layout.owned_by(self.files, location, transaction_id):
            return True
        mark = layout.read_retired(self.files, location)
        if mark is None:
            return False
        held = {entry.name for entry in self.files.list(location) if entry.is_file}
        return held <= {*mark.files, layout.RETIRED_FILE}

    def database_location(self, database: str) -> str:
        """Root directory of a database."""
        location = self.metastore.database_location(self.metastore.canonical(database))
        if location is None:
            raise self._no_database(database)
        return location

    def default_location(self, path: ObjectPath) -> str:
        """Where stock Spark would put the table."""
        return join(self.database_location(path.database), path.name)

    def places(self, path: ObjectPath) -> Places:
        """Tells a table's own directories from those that the user chose with a LOCATION."""
        return Places(self.files, lambda: self.default_location(path))

    def partitions_of(self, table: HiveTable, found: Mapping[tuple[str, ...], str]) -> list[HivePartition]:
        """Partitions from key to location, for the metastore."""
        columns = table.partition_columns
        return [
            HivePartition(dict(zip(columns, key, strict=True)), location) for key, location in sorted(found.items())
        ]

    def moves_files(self, path: ObjectPath) -> bool:
        table = self.find(self.canonical(path))
        if table is None or table.kind != MANAGED or self.recipe == offers.RENAME:
            return False
        return self.places(path).is_tables(str(table.location))

    def has_moved_files(self, path: ObjectPath) -> bool:
        table = self.find(self.canonical(path))
        if table is None:
            return False
        parts = self.metastore.list_partitions(table) if table.partitioned else []
        places = [str(table.location), *(part.location for part in parts)]
        return table.stamp is not None or any(map(layout.is_in_version, places))

    # -- housekeeping --------------------------------------------------------------------------------------------

    def residues(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Residue]:
        return self._housekeeping.residues(live_transactions)

    def remove_residue(self, residue: Residue) -> None:
        (error,) = self.remove_residues([residue])
        if error is not None:
            raise error

    def remove_residues(self, residues: Sequence[Residue]) -> list[Exception | None]:
        return list(self._housekeeping.remove(residues))

    def partitions_sought(self, path: ObjectPath) -> None:
        self._housekeeping.partitions_sought(self.canonical(path))

    def table_dropped(self, path: ObjectPath) -> None:
        self._housekeeping.table_dropped(self.canonical(path))

    def table_renamed(self, path: ObjectPath, new_path: ObjectPath) -> None:
        self._housekeeping.table_renamed(self.canonical(new_path))

    def remove_half_made(self, directory: str) -> None:
        """Remove a staging directory that a crash left before its stamp was written: it holds nothing at all."""
        if self.files.exists(directory):
            self.files.remove_if_empty(directory)

    def remove_if_unused(self, version: str) -> None:
        """Remove the directories above a version once they hold nothing."""
        for directory in (parent(version), parent(parent(version))):
            is_ours = any(place.endswith("/" + layout.ROOT) for place in (directory, parent(directory)))
            if is_ours and not (self.files.exists(directory) and self.files.remove_if_empty(directory)):
                return

    def check(self) -> list[str]:
        try:
            self.metastore.list_databases()
        except Exception as error:  # whatever it is, doctor tells it
            return [f"The metastore of catalog {self.name} does not answer: {error}"]
        return [*self._housekeeping.strangers(), *self._housekeeping.lost_tables()]

    def close(self) -> None:
        if self._metastore is not None and not self._metastore.read_by_session:
            self._metastore.close()
