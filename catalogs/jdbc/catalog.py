"""The JDBC catalog: tables of a relational database, written in two phases."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import sqlalchemy as sa

from twophase.catalog import Catalog, Environment, Residue, TableChange, TwoPhaseCatalogTable
from twophase.catalogs.jdbc import altering, defaults, definitions, dropping, housekeeping, options, publishing
from twophase.catalogs.jdbc.database import Table
from twophase.catalogs.jdbc.offers import APPEND, offer
from twophase.catalogs.jdbc.participant import JdbcParticipant
from twophase.catalogs.jdbc.reading import JdbcReader
from twophase.catalogs.jdbc.store import Store
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    DatabaseAlreadyExistsError,
    DatabaseNotExistError,
    TableAlreadyExistsError,
    TableNotExistError,
)
from twophase.model import Capabilities, ObjectPath, Purpose, TableDefinition, WriteContext
from twophase.reading import ReadSource


class JdbcCatalog(Catalog):
    """Tables of PostgreSQL, MariaDB/MySQL or SQLite, reached through SQLAlchemy; no driver jar is needed.

    Parameters
    ----------
    name, options, environment
        As for every catalog; see :attr:`known_options`.

    Raises
    ------
    ConfigurationError
        A wrong option, or a driver that is not installed.
    """

    known_options: ClassVar[Mapping[str, str]] = options.KNOWN
    #: Of Spark's own reader of databases: into how many queries it cuts a read, and what it leaves to the database.
    idle_read_options: ClassVar[frozenset[str]] = frozenset(
        {
            *("fetchsize", "numpartitions", "partitioncolumn", "lowerbound", "upperbound", "pushdownpredicate"),
            *("pushdownaggregate", "pushdownlimit", "pushdownoffset", "pushdowntablesample"),
        }
    )

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
            group_publish=self.store.database.groups,
        )

    # -- databases -----------------------------------------------------------------------------------------------

    def list_databases(self) -> list[str]:
        with self.store.begin("main", read_only=True) as connection:
            return self.store.database.list_databases(connection)

    def database_exists(self, database: str) -> bool:
        return self.store.database_exists(database)

    def create_database(
        self, database: str, *, ignore_if_exists: bool = False, properties: Mapping[str, str] | None = None
    ) -> None:
        self.store.database.check_name(database, "database", database)
        if self.database_exists(database):
            if ignore_if_exists:
                return
            raise DatabaseAlreadyExistsError(
                f"Database {database} exists already in catalog {self.name}.", path=database
            )
        with self.store.begin("main", path=database) as connection:
            self.store.database.create_database(connection, database, (properties or {}).get("comment"))

    def drop_database(self, database: str, *, ignore_if_not_exists: bool = False, cascade: bool = False) -> None:
        if not self.database_exists(database):
            if ignore_if_not_exists:
                return
            self._require_database(database)
        (dropping.drop_all if cascade else dropping.drop_empty)(self, database)

    def load_database(self, database: str) -> dict[str, str]:
        self._require_database(database)
        return {}

    def _require_database(self, database: str) -> None:
        if not self.database_exists(database):
            raise DatabaseNotExistError(f"Database {database} does not exist in catalog {self.name}.", path=database)

    # -- tables --------------------------------------------------------------------------------------------------

    def canonical(self, path: ObjectPath) -> ObjectPath:
        return self.store.database.canonical(path)

    def relations(self, database: str) -> dict[str, str]:
        """The tables and views of a database with their kind, but for hidden ones."""
        with self.store.begin(database, path=database, read_only=True) as connection:
            found = self.store.database.list_relations(connection, database)
        return {name: kind for name, kind in found.items() if not self.store.is_hidden(name)}

    def list_tables(self, database: str) -> list[str]:
        self._require_database(database)
        return sorted(name for name, kind in self.relations(database).items() if kind == "table")

    def kind_of(self, path: ObjectPath) -> str | None:
        """``table``, ``view``, or None where nothing has this name."""
        if len(path.namespace) != 1 or self.store.is_hidden(path.name) or not self.database_exists(path.database):
            return None
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            return self.store.database.table_kind(connection, Table(path.database, path.name))

    def table_exists(self, path: ObjectPath) -> bool:
        return self.kind_of(path) is not None

    def require(self, path: ObjectPath) -> str:
        """The kind of what has this name.

        Raises
        ------
        TableNotExistError
            Nothing has it.
        """
        kind = self.kind_of(path)
        if kind is None:
            raise TableNotExistError(f"Table {path} does not exist in catalog {self.name}.", path=path)
        return kind

    def load_table(self, path: ObjectPath) -> TableDefinition:
        self.require(path)
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            return self.definition(connection, path)

    def definition(self, connection: sa.Connection, path: ObjectPath) -> TableDefinition:
        """The definition of a table that is there."""
        table = Table(path.database, path.name)
        database = self.store.database
        return definitions.to_definition(database.columns(connection, table), database.comment(connection, table))

    def seen(self, connection: sa.Connection, path: ObjectPath) -> dict[str, Any] | None:
        """What a statement remembers of its target, to tell later whether it changed; None where it is not there."""
        table, database = Table(path.database, path.name), self.store.database
        if database.table_kind(connection, table) is None:
            return None
        home = self.store.home(path.database)
        return {
            "columns": [[column.name, column.type] for column in database.columns(connection, table)],
            "generation": database.generation(connection, table),
            "version": self.store.version(connection, home, path),
        }

    def table_version(self, path: ObjectPath) -> Any:
        if len(path.namespace) != 1 or not self.database_exists(path.database):
            return None
        table, home = Table(path.database, path.name), self.store.home(path.database)
        database = self.store.database
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            if database.table_kind(connection, table) != "table":
                return None
            return [
                [[column.name, column.type] for column in database.columns(connection, table)],
                database.generation(connection, table),
                self.store.version(connection, home, path),
                database.content_of_small(connection, table),
            ]

    def check_path(self, path: ObjectPath) -> None:
        """Refuse a name that no table here can have.

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
            raise TableAlreadyExistsError(f"Table {path} exists already in catalog {self.name}.", path=path)
        clauses = definitions.column_clauses(path, definition, self.store.database)
        with self.store.begin(path.database, path=path) as connection:
            altering.create(self.store.database, connection, Table(path.database, path.name), definition, clauses)

    def drop_table(self, path: ObjectPath, *, ignore_if_not_exists: bool = False, purge: bool = False) -> None:
        if ignore_if_not_exists and not self.table_exists(path):
            return
        if self.require(path) == "view":
            raise CatalogError(f"{path} is a view, not a table.", path=path, hint="Drop it in the database itself.")
        with self.store.begin(path.database, path=path) as connection:
            self.store.database.drop(connection, Table(path.database, path.name))
        home = self.store.home(path.database)
        with suppress(CatalogError), self.store.begin(home, path=path) as connection:  # The table is gone, anyway.
            self.store.forget_target(connection, home, path)

    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        self.require(path)
        self.check_path(new_path)
        if new_path.namespace != path.namespace:
            raise CatalogError(f"{path} cannot move to another database.", path=path)
        if self.table_exists(new_path):
            raise TableAlreadyExistsError(f"Table {new_path} exists already in catalog {self.name}.", path=new_path)
        old, new = (Table(p.database, p.name) for p in (path, new_path))
        with self.store.begin(path.database, path=path) as connection:
            self.store.database.rename(connection, old, new)

    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        if self.require(path) == "view":
            raise CatalogError(f"{path} is a view, not a table.", path=path)
        altering.alter(self.store, path, list(changes))

    def column_defaults(self, path: ObjectPath, staged: TwoPhaseCatalogTable | None = None) -> Mapping[str, str]:
        if (isinstance(staged, JdbcParticipant) and staged.swaps) or self.kind_of(path) != "table":
            return {}  # A new table, whose columns have no defaults yet.
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            columns = self.store.database.columns(connection, Table(path.database, path.name))
        return defaults.of_spark(self.canonical(path), columns)

    def read_source(self, path: ObjectPath) -> ReadSource:
        self.require(path)
        table = Table(path.database, path.name)
        with self.store.begin(path.database, path=path, read_only=True) as connection:
            columns = self.store.database.columns(connection, table)
            definition = self.definition(connection, path)
        return ReadSource("batches", definition=definition, reader=JdbcReader(self.store, [table], columns))

    def staged_source(self, participant: JdbcParticipant) -> ReadSource | None:
        """How to read what a participant staged: its rows, and those of the table that stay."""
        staged = participant.place.staging
        tables = [participant.target, staged] if participant.effect == APPEND else [staged]
        with self.store.begin(participant.home, path=participant.path, read_only=True) as connection:
            columns = self.store.database.columns(connection, staged)
            waiting = defaults.any_held(self.store.database, connection, staged, participant.placeholders)
        if waiting:
            raise AtomicityNotSupportedError(
                f"Rows that this transaction has written to {participant.path} cannot be read yet: the database gives "
                "them values of its own when they are published.",
                path=participant.path,
                transaction_id=participant.transaction_id,
                hint="Read the table before it is written, or after the transaction; or give all columns values.",
            )
        return ReadSource("batches", definition=participant.definition, reader=JdbcReader(self.store, tables, columns))

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
        return JdbcParticipant(self, offer(self, path, definition, purpose, context, time.time()))

    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        participant = JdbcParticipant(self, document)
        with suppress(CatalogError):  # One that does not answer is asked again, before anything is done.
            participant.check_identity()
        return participant

    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        assert isinstance(participant, JdbcParticipant)
        return publishing.group_key(participant)

    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        if not self.store.database.groups:
            super().publish_group(participants)
        members = [member for member in participants if isinstance(member, JdbcParticipant)]
        with publishing.publish_step():
            publishing.publish(self.store, members)

    # -- housekeeping --------------------------------------------------------------------------------------------

    def residues(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Residue]:
        return housekeeping.residues(self, live_transactions)

    def remove_residue(self, residue: Residue) -> None:
        housekeeping.remove(self, residue)

    def check(self) -> list[str]:
        return housekeeping.problems(self)

    def close(self) -> None:
        self.store.close()
