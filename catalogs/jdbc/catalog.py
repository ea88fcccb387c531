"""The JDBC catalog: tables of a relational database, written in two phases."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from twophase.catalog import (
    Environment,
    Leftover,
    SupportsAlter,
    SupportsCleaning,
    SupportsColumnDefaults,
    SupportsGroupPublish,
    SupportsOpenSnapshots,
    SupportsReadOptions,
    SupportsRename,
    SupportsSchemaOnWrite,
    SupportsStagedAlter,
    SupportsStagedDatabases,
    SupportsStagedDrop,
    SupportsStagedRename,
    TableChange,
    TwoPhaseCatalogTable,
    staged_databases,
)
from twophase.catalog.reading import ReadSource
from twophase.catalog.snapshots import Change, OpenSnapshot
from twophase.catalogs.jdbc import (
    altering,
    database_notes,
    defaults,
    definitions,
    dropping_databases,
    exported_snapshots,
    housekeeping,
    options,
    pinned_reads,
    publishing,
)
from twophase.catalogs.jdbc.participant import PUBLISH, JdbcParticipant
from twophase.catalogs.jdbc.pinned_reads import Version
from twophase.catalogs.jdbc.planning import plan_drop, plan_write
from twophase.catalogs.jdbc.reading import JdbcReader
from twophase.catalogs.jdbc.staged_altering import plan_alter
from twophase.catalogs.jdbc.staged_renaming import is_renamed, plan_leave, plan_rename, takes_dropped_name
from twophase.catalogs.jdbc.store import Store, StoreCatalog
from twophase.errors import (
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.failpoints import step
from twophase.model import Capabilities, ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.transactions import failures


class JdbcCatalog(
    StoreCatalog,
    SupportsOpenSnapshots,
    SupportsRename,
    SupportsAlter,
    SupportsReadOptions,
    SupportsColumnDefaults,
    SupportsSchemaOnWrite,
    SupportsStagedDrop,
    SupportsGroupPublish,
    SupportsCleaning,
    SupportsStagedAlter,
    SupportsStagedRename,
    SupportsStagedDatabases,
):
    """Tables of PostgreSQL, MariaDB/MySQL or SQLite, reached through SQLAlchemy; no driver jar is needed.

    Parameters
    ----------
    name, options, environment
        As for every catalog; see :attr:`known_options`.

    Raises
    ------
    ConfigurationError
        An option is wrong, or a driver is not installed.
    """

    known_options: ClassVar[Mapping[str, str]] = options.Settings.help()
    #: Options of Spark's own JDBC reader that have no effect here: how it splits a read, and what it pushes down.
    idle_read_options: ClassVar[frozenset[str]] = frozenset(
        {
            *("fetchsize", "numpartitions", "partitioncolumn", "lowerbound", "upperbound", "pushdownpredicate"),
            *("pushdownaggregate", "pushdownlimit", "pushdownoffset", "pushdowntablesample"),
        }
    )

    reads_when_executed = True

    def __init__(self, name: str, options_: Mapping[str, str], environment: Environment) -> None:
        super().__init__(name, options_, environment)
        self.store = Store(options.read(name, options_))

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            purposes=frozenset(Purpose),
            read=True,
            rename_table=True,
            alter_table=True,
            alter_database=self.store.database.comments_databases,
            group_publish=self.store.database.groups,
            own_types=True,
        )

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        return self.store.list_databases()

    def database_exists(self, database: str) -> bool:
        return self.store.database_exists(database)

    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        self.store.database.check_name(database, "database", database)
        if self.database_exists(database):
            if ignore_if_exists:
                return
            raise DatabaseAlreadyExistsError.of(database, self.name)
        with self.store.begin("main", path=database) as connection:
            note = database_notes.note_of(properties or {})
            self.store.database.create_database(connection, database, note.write())

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        self._require_database(database)
        database_notes.alter(self.store, database, changes)

    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        if not self.database_exists(database):
            if ignore_if_not_exists:
                return
            self._require_database(database)
        if cascade:
            dropping_databases.drop_all(self.store, database)
        else:
            dropping_databases.drop_empty(self.store, self.environment, database)

    def load_database(self, database: str) -> dict[str, str]:
        self._require_database(database)
        return database_notes.properties_of(self.store, database)

    def unstaged_database_reason(self, database: str) -> str | None:
        return None if self.store.comments_databases(database) else self.store.database.unstaged_database_reason

    def refuse_new_database(self, database: str, properties: Mapping[str, str]) -> None:
        self.store.database.check_name(database, "database", database)
        with self.store.begin("main", path=database, read_only=True) as connection:
            self.store.database.require_sight(connection, database)

    def contents_of(self, database: str) -> list[str]:
        with self.store.begin(database, path=database, read_only=True) as connection:
            found = self.store.database.contents(connection, database)
        return sorted(name for name in found if not self.store.is_hidden(name))

    def database_identity(self, database: str) -> str | None:
        with self.store.begin(database, path=database, read_only=True) as connection:
            return self.store.database.database_identity(connection, database)

    def remove_staged_database(self, database: str, transaction_id: str) -> None:
        if self.database_exists(database):
            dropping_databases.drop_empty(self.store, self.environment, database, but=transaction_id)

    def _require_database(self, database: str) -> None:
        if not self.database_exists(database):
            raise DatabaseNotExistError.of(database, self.name)

    # -- tables --------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        return self.store.database.canonical(path)

    def list_tables(self, database: str) -> list[str]:
        self._require_database(database)
        return sorted(name for name, kind in self.store.relations(database).items() if kind == "table")

    def kind_of(self, path: ObjectPath) -> str | None:
        """Return ``table``, ``view``, or None if nothing has this name."""
        if len(path.namespace) != 1 or self.store.is_hidden(path.name) or not self.database_exists(path.database):
            return None
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            return self.store.database.table_kind(connection, path)

    def table_exists(self, path: ObjectPath) -> bool:
        return self.kind_of(path) is not None

    def require(self, path: ObjectPath) -> str:
        """Return the kind of the table or view with this name.

        Raises
        ------
        TableNotExistError
            There is no such table or view.
        """
        kind = self.kind_of(path)
        if kind is None:
            raise TableNotExistError.of(path, self.name)
        return kind

    def load_table(self, path: ObjectPath) -> TableDefinition:
        self.require(path)
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            return self.store.definition(connection, path)

    def table_version(self, path: ObjectPath) -> Any:
        if len(path.namespace) != 1 or not self.database_exists(path.database):
            return None
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            if self.store.database.table_kind(connection, path) is None:
                return None
            return str(Version.of(self.store, connection, path))

    def check_path(self, path: ObjectPath) -> None:
        """Refuse a name that a table of this catalog cannot have.

        Raises
        ------
        CatalogError
        DatabaseNotExistError
        """
        if len(path.namespace) != 1:
            raise CatalogError(f"A table of catalog {self.name} is named database.table; {path} is not.", path=path)
        self.store.database.check_name(path.name, "table", path)
        if self.store.is_hidden(path.name):
            raise CatalogError(f"Names that begin with {self.store.prefix} are staging tables of twophase.", path=path)
        self._require_database(path.database)

    def create_table(self, path: ObjectPath, definition: TableDefinition, *, ignore_if_exists: bool = False) -> None:
        self.check_path(path)
        definitions.check(path, definition, self.store.database)
        if self.table_exists(path):
            if ignore_if_exists:
                return
            raise TableAlreadyExistsError.of(path, self.name)
        clauses = definitions.column_clauses(path, definition, self.store.database)
        with self.store.begin(path.database, path=path) as connection:
            altering.create(self.store.database, connection, path, definition, clauses)

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        if ignore_if_not_exists and not self.table_exists(path):
            return
        if self.require(path) == "view":
            raise CatalogError(f"{path} is a view, not a table.", path=path, hint="Drop it in the database itself.")
        with self.store.begin(path.database, path=path) as connection:
            self.store.database.drop(connection, path)
        home = self.store.home(path.database)
        with suppress(CatalogError), self.store.begin(home, path=path) as connection:  # The table is dropped anyway.
            self.store.forget_target(connection, home, path)

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        self.require(path)
        self.check_path(new_path)
        if new_path.namespace != path.namespace:
            raise CatalogError(f"{path} cannot move to another database.", path=path)
        if self.table_exists(new_path):
            raise TableAlreadyExistsError.of(new_path, self.name)
        with self.store.begin(path.database, path=path) as connection:
            self.store.database.rename(connection, path, new_path)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        if self.require(path) == "view":
            raise CatalogError(f"{path} is a view, not a table.", path=path)
        altering.alter(self.store, path, list(changes))

    def column_defaults(self, path: ObjectPath, staged: TwoPhaseCatalogTable | None = None) -> Mapping[str, str | None]:
        if isinstance(staged, JdbcParticipant):
            path = staged.source
        if (isinstance(staged, JdbcParticipant) and "computed" not in staged.document) or self.kind_of(path) != "table":
            return {}  # Created by this transaction: its columns have no defaults yet.
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            columns = self.store.database.columns(connection, path)
        return defaults.of_spark(columns)

    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        return False  # Only where a single insert says so, or the property of all catalogs.

    def read_source(self, path: ObjectPath) -> ReadSource:
        self.require(path)
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            columns = self.store.database.columns(connection, path)
            definition = self.store.definition(connection, path)
        return ReadSource("batches", definition=definition, reader=JdbcReader(self.store, [path], columns))

    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        return pinned_reads.source_before(self.store, path, changes, version)

    def open_snapshot(self) -> OpenSnapshot | None:
        return exported_snapshots.open_snapshot(self.store)

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
        if not (purpose.inserts and self.store.database.ddl_in_transaction):
            failures.refuse_renamed(path, context, is_renamed)
        return JdbcParticipant(self, plan_write(self.store, path, definition, purpose, context, time.time()))

    def two_phase_drop_table(
        self, path: ObjectPath, *, purge: bool = False, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        self.check_path(path)
        if not self.store.database.ddl_in_transaction:
            failures.refuse_renamed(path, context, takes_dropped_name)
        document = plan_drop(self.store, path, context or WriteContext.alone(self.name), time.time())
        return None if document is None else JdbcParticipant(self, document)

    def two_phase_alter_table(
        self, path: ObjectPath, changes: Sequence[TableChange], *, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        self.check_path(path)
        failures.refuse_renamed(path, context, is_renamed)
        document = plan_alter(self.store, path, changes, context or WriteContext.alone(self.name), time.time())
        return None if document is None else JdbcParticipant(self, document)

    def two_phase_rename_table(
        self, path: ObjectPath, new_path: ObjectPath, *, context: WriteContext
    ) -> TwoPhaseCatalogTable | None:
        self.check_path(path)
        self.check_path(new_path)
        document = plan_rename(self.store, path, new_path, context, time.time())
        return None if document is None else JdbcParticipant(self, document)

    def two_phase_leave_table(
        self, path: ObjectPath, arriving: TwoPhaseCatalogTable, *, context: WriteContext
    ) -> TwoPhaseCatalogTable:
        return JdbcParticipant(self, plan_leave(path, arriving.document, context, time.time()))

    def is_renamed(self, participant: TwoPhaseCatalogTable) -> bool:
        return isinstance(participant, JdbcParticipant) and is_renamed(participant.document)

    def rests_on_rename(self, participant: TwoPhaseCatalogTable) -> bool:
        return self.is_renamed(participant) or (isinstance(participant, JdbcParticipant) and participant.is_left)

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        if (database := staged_databases.restored(self, document)) is not None:
            return database
        participant = JdbcParticipant(self, document)
        with suppress(CatalogError):  # If the database is unreachable, the check is repeated before anything is done.
            participant.check_identity()
        return participant

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        return publishing.group_key(participant) if isinstance(participant, JdbcParticipant) else None

    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        assert self.store.database.groups  # Nothing is grouped without the capability.
        members = [member for member in participants if isinstance(member, JdbcParticipant)]
        with step(PUBLISH):
            publishing.publish(self.store, members)

    # -- housekeeping --------------------------------------------------------------------------------------------

    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        return housekeeping.leftovers(self.store, self.environment, live_transactions)

    def remove_leftover(self, leftover: Leftover) -> None:
        housekeeping.remove(self.store, leftover)

    def check(self) -> list[str]:
        return housekeeping.problems(self.store, self.environment)

    def close(self) -> None:
        self.store.close()
