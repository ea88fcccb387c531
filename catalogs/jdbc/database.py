"""Differences between databases: connections, names, types, bulk loading, and how a publish is made atomic.

Each database with all guarantees has a class of its own in a module beside this one. The driver and the executors both
make one from the same :class:`~twophase.catalogs.jdbc.options.Settings`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from twophase.catalogs.forks import keep_from_children
from twophase.catalogs.jdbc.options import Settings
from twophase.errors import CatalogError
from twophase.model import ObjectPath

_is = pa.types

#: Tables with at most this many rows may be scanned any number of times.
SMALL = 200_000

#: The rights to alter or rename a table, and to drop or replace it.
OWNER, DROPPER = "OWNER", "DROPPER"

#: Without it SQLAlchemy passes an empty tuple to the driver, and a percent sign in a name would be a parameter.
_PLAIN = {"no_parameters": True}


@dataclass(frozen=True)
class Column:
    """A column as the database describes it.

    Attributes
    ----------
    name : str
    type : str
        The database's name of the type.
    arrow : pyarrow.DataType
        The type for Spark.
    nullable : bool
    comment : str or None
    generated : bool
        The database computes the values itself and accepts none.
    default : str or None
        Value if an insert gives none, in the database's SQL; ``auto`` for an auto-increment.
    number : int or None
        Identifies the column as long as the table exists, whatever its name; None if the database has no such number.
    """

    name: str
    type: str
    arrow: pa.DataType
    nullable: bool = True
    comment: str | None = None
    generated: bool = False
    default: str | None = None
    number: int | None = None


def type_of(names: Iterable[tuple[Any, Any]], kind: pa.DataType) -> str | None:
    """The name of a type, by the first test of a list that it passes; None if it passes none."""
    type_name = next((name for test, name in names if test(kind)), None)
    return type_name(kind) if callable(type_name) else type_name


class Database(ABC):
    """One kind of database, with the settings to reach it."""

    #: Name of the database in messages.
    title: ClassVar[str]
    #: Query for the relations of the database ``:schema``: name, and ``table`` or ``view``.
    relations: ClassVar[str]
    longest_name: ClassVar[int]
    #: DDL is transactional: a publish is one database transaction.
    ddl_in_transaction: ClassVar[bool] = True
    #: Several tables can be published atomically.
    groups: ClassVar[bool] = True
    #: Whether a database has a comment, which is set in the transaction that creates the database.
    comments_databases: bool = False
    #: ``CREATE TABLE`` takes comments, in the syntax of MariaDB and MySQL; they hold the owner stamps, too.
    comments_in_ddl: ClassVar[bool] = False
    #: Columns have comments of their own.
    column_comments: ClassVar[bool] = True
    #: Times with a zone are compared with times with a zone; if not, with times in UTC without one.
    aware_times: ClassVar[bool] = False
    #: What an ``INSERT`` says after its columns so that one that always is an identity gets the values of the rows.
    over_identities: ClassVar[str] = ""
    #: What follows the type of a column that may be NULL.
    nullable: ClassVar[str] = ""
    #: Longest comment of a table; None if there is no limit.
    longest_comment: ClassVar[int | None] = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.dialect = settings.parsed.get_dialect()()

    # -- connections ---------------------------------------------------------------------------------------------

    def engine(self, database: str, *, pooled: bool, label: str = "") -> sa.Engine:
        """Make an engine whose connections are set up for this catalog.

        Parameters
        ----------
        database : str
            The database it is for; only SQLite has one engine per database.
        pooled : bool
            Whether connections stay open; those of an executor do not.
        label : str
            The connection's name as the server shows it, if it shows one.
        """
        # Without a limit: each open snapshot of a block holds a connection, and would keep others from theirs.
        pool: dict[str, Any] = {"pool_pre_ping": True, "pool_size": self.settings.pool_size, "max_overflow": -1}
        if not pooled:
            pool = {"poolclass": NullPool}
        engine = sa.create_engine(
            self.url(database), hide_parameters=True, connect_args=self.connect_arguments(label), **pool
        )
        self.configure(engine)
        return keep_from_children(engine)

    def url(self, database: str) -> URL:
        """The URL of a database; the same for all, except in SQLite."""
        return self.settings.parsed

    def engine_key(self, database: str) -> str:
        """Key of the engine: databases with the same key share it, and so can share a transaction."""
        return ""

    @abstractmethod
    def connect_arguments(self, label: str) -> dict[str, Any]:
        """Arguments of the driver's ``connect``."""

    def configure(self, engine: sa.Engine) -> None:
        """Listen to the engine's events."""

    def group(self, home: str) -> str | None:
        """Key of the databases of hidden tables that can be published atomically together; None for one at a time."""
        return self.engine_key(home)

    # -- abilities -----------------------------------------------------------------------------------------------

    def learn(self, engine: sa.Engine, database: str) -> None:
        """Find out what the database supports, before the first write, if its kind does not already determine it."""

    @property
    def keeps_tables(self) -> bool:
        """Whether a replace with the same columns should keep the old table and replace only its rows."""
        return False

    def refusal(self, swaps: bool) -> str | None:
        """Return why a statement cannot be executed with any guarantee; None if it can.

        Parameters
        ----------
        swaps : bool
            Whether a new table is renamed to the target, as opposed to rows that are added to a table.
        """
        return None

    def level_reason(self, swaps: bool) -> str | None:
        """Return why a statement's level is below ``ATOMIC``; None if it is not."""
        return None

    # -- names ---------------------------------------------------------------------------------------------------

    def quote(self, name: str) -> str:
        """Quote a name as the database does."""
        quoted = self.dialect.identifier_preparer.quote_identifier(name)
        # SQLAlchemy doubles percent signs for drivers that expect parameters; our statements have none.
        return quoted.replace("%%", "%") if self.dialect.identifier_preparer._double_percents else quoted

    def name(self, table: ObjectPath) -> str:
        """A table's full name, quoted."""
        return f"{self.quote(table.database)}.{self.quote(table.name)}"

    def schema(self, database: str) -> str | None:
        """The ``schema`` of a database for SQLAlchemy."""
        return database

    def construct(self, table: ObjectPath, *columns: str) -> sa.TableClause:
        """Make SQLAlchemy's lightweight table."""
        quoted = sa.sql.quoted_name
        schema = self.schema(table.database)
        return sa.table(
            quoted(table.name, True),
            *(sa.column(quoted(name, True)) for name in columns),
            schema=None if schema is None else quoted(schema, True),
        )

    def measure(self, name: str) -> int:
        """Length of a name, in the unit of :attr:`longest_name`."""
        return len(name)

    def canonical(self, path: ObjectPath) -> ObjectPath:
        """Return the canonical spelling of a path."""
        return path

    def check_name(self, name: str, what: str, path: object) -> None:
        """Refuse a name that this database would truncate or does not support.

        Raises
        ------
        CatalogError
        """
        if "\0" in name or not name:
            raise CatalogError(f"{name!r} is no name of a {what} in {self.title}.", path=path)
        if self.measure(name) > self.longest_name:
            raise CatalogError(
                f"The name of the {what} {name[:40]!r}... is {self.measure(name)} long; {self.title} holds "
                f"{self.longest_name}.",
                path=path,
                hint="Choose a shorter one: it would be cut silently.",
            )

    # -- statements ----------------------------------------------------------------------------------------------

    @staticmethod
    def run(connection: sa.Connection, sql: str) -> Any:
        """Run a complete statement: names are already quoted, and it contains no value of a user's."""
        return connection.exec_driver_sql(sql, execution_options=_PLAIN)

    def text(self, value: str) -> str:
        """Write a text as a literal of the database's SQL."""
        return "'" + value.replace("'", "''") + "'"

    # -- databases -----------------------------------------------------------------------------------------------

    @abstractmethod
    def list_databases(self, connection: sa.Connection) -> list[str]:
        """Names of the user's databases, sorted."""

    @abstractmethod
    def create_database(self, connection: sa.Connection, database: str, comment: str | None) -> None:
        """Create a database."""

    @abstractmethod
    def drop_database(self, connection: sa.Connection, database: str) -> None:
        """Drop a database with everything in it."""

    def drop_empty_database(self, connection: sa.Connection, database: str) -> None:
        """Drop a database that is empty except for twophase's own bookkeeping, together with it, atomically.

        Raises
        ------
        CatalogError
            The database contains something else.
        """
        if contents := [name for name in self.list_relations(connection, database) if not self.is_bookkeeping(name)]:
            raise self.not_empty(database, contents)
        for name in self.list_relations(connection, database):
            self.run(connection, f"DROP TABLE {self.name(ObjectPath.of(database, name))}")
        self.run(connection, f"DROP SCHEMA {self.quote(database)}")

    def database_comment(self, connection: sa.Connection, database: str) -> str | None:
        """The comment of a database; only where it has one."""
        raise NotImplementedError

    def set_database_comment(self, connection: sa.Connection, database: str, text: str | None) -> None:
        """Set the comment of a database; only where it has one."""
        raise NotImplementedError

    def database_identity(self, connection: sa.Connection, database: str) -> str | None:
        """An identifier that changes when the database is dropped and created again; None if there is none."""
        return None

    @property
    def unstaged_database_reason(self) -> str:
        """The reason why a transaction neither creates nor drops databases; only where they have no comments."""
        return f"nothing of a database of {self.title} says which transaction has created it"

    def require_sight(self, connection: sa.Connection, database: str) -> None:
        """Refuse to drop a database, or to create one and drop it again, of which the role may not see all contents.

        Raises
        ------
        CatalogError
        """

    def contents(self, connection: sa.Connection, database: str) -> list[str]:
        """Objects that keep a database from being dropped, except for twophase's own hidden tables."""
        return list(self.list_relations(connection, database))

    def is_bookkeeping(self, name: str) -> bool:
        """Whether this is a table of twophase's bookkeeping, as opposed to a staging table."""
        return name in (f"{self.settings.staging_prefix}{kind}" for kind in ("published", "comments"))

    def not_empty(self, database: str, names: Iterable[str]) -> CatalogError:
        """The error for a database that contains these."""
        contents = sorted(names)
        more = f" and {len(contents) - 5} more" if len(contents) > 5 else ""
        return CatalogError(
            f"Database {database} is not empty: it holds {', '.join(contents[:5])}{more}.",
            path=database,
            hint="Drop that first, or say CASCADE: it goes with all that is in it, and what depends on it elsewhere.",
        )

    # -- tables --------------------------------------------------------------------------------------------------

    def table_kind(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        """Return ``table``, ``view``, or None if nothing has this name."""
        return self.kinds(connection, table.database, [table.name]).get(table.name)

    def is_there(self, connection: sa.Connection, table: ObjectPath) -> bool:
        """Whether a table of twophase's is there; an error where the role may not know."""
        return self.table_kind(connection, table) is not None

    def kinds(self, connection: sa.Connection, database: str, names: Sequence[str]) -> dict[str, str]:
        """Return those of some names that are tables or views, with their kind, regardless of how many others exist."""
        return {name: kind for name, kind in self.list_relations(connection, database).items() if name in names}

    def list_relations(self, connection: sa.Connection, database: str) -> dict[str, str]:
        """Return the names of all tables and views with their kind, including hidden ones."""
        rows = connection.execute(sa.text(self.relations), {"schema": database})
        return {str(name): str(kind) for name, kind in rows}

    @abstractmethod
    def columns(self, connection: sa.Connection, table: ObjectPath) -> list[Column]:
        """The columns, in order."""

    def primary_key(self, connection: sa.Connection, table: ObjectPath) -> list[str]:
        """Names of the columns of the primary key; empty if there is none."""
        key = sa.inspect(connection).get_pk_constraint(table.name, schema=self.schema(table.database))
        return [str(name) for name in key.get("constrained_columns", ())]

    @abstractmethod
    def comment(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        """The table's comment."""

    @abstractmethod
    def set_comment(self, connection: sa.Connection, table: ObjectPath, comment: str | None) -> None:
        """Set the table's comment."""

    def set_column_comment(
        self, connection: sa.Connection, table: ObjectPath, column: str, comment: str | None
    ) -> None:
        """Set a column's comment, if the database supports it."""

    def generation(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        """An identifier that changes when the table is dropped and created again; None if the database has none."""
        return None

    @abstractmethod
    def column_type(self, field: pa.Field) -> str | None:
        """The type for a new column; None if there is none."""

    def create(
        self, connection: sa.Connection, table: ObjectPath, columns: Sequence[tuple[str, str]], suffix: str = ""
    ) -> None:
        """Create a table from the names of its columns and what follows each name."""
        body = ", ".join(f"{self.quote(name)} {kind}" for name, kind in columns)
        self.run(connection, f"CREATE TABLE {self.name(table)} ({body}){suffix}")

    def create_index(self, connection: sa.Connection, table: ObjectPath, column: str) -> None:
        """Create an index on a column of a table of twophase's."""
        index = self.quote(f"{table.name}_{column}")
        self.run(connection, f"CREATE INDEX {index} ON {self.name(table)} ({self.quote(column)})")

    def create_like(
        self,
        connection: sa.Connection,
        table: ObjectPath,
        source: ObjectPath,
        columns: Sequence[str],
        more: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Create an empty table with the types of some columns of another table, and nothing else of it.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        table, source : ObjectPath
        columns : sequence of str
        more : sequence of tuple of str
            Names and types of further columns.
        """
        types = {column.name: f"{column.type}{self.nullable}" for column in self.columns(connection, source)}
        self.create(connection, table, [*((name, types[name]) for name in columns), *more])

    def drop(self, connection: sa.Connection, table: ObjectPath) -> None:
        """Drop a table. Idempotent."""
        self.run(connection, f"DROP TABLE IF EXISTS {self.name(table)}")

    @abstractmethod
    def rename(self, connection: sa.Connection, table: ObjectPath, new: ObjectPath) -> None:
        """Rename a table, also to another database if that is possible."""

    def writable_reason(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        """Return why rows of this table cannot be written in a transaction; None if they can."""
        return None

    def overwrite_reason(self, connection: sa.Connection, table: ObjectPath) -> str | None:
        """Return why the rows of this table cannot all be replaced; None if they can."""
        return None

    def missing_right(
        self, connection: sa.Connection, table: ObjectPath, rights: Sequence[str], free: Sequence[ObjectPath]
    ) -> tuple[str, str] | None:
        """Return which right this role lacks for a publish, and how it gets it; None if it lacks none.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        table : ObjectPath
            The target, which is there if it takes any rights.
        rights : sequence of str
            What the publish takes: :data:`OWNER`, :data:`DROPPER`, or words of SQL.
        free : sequence of ObjectPath
            Two names of hidden tables that are not there.

        Raises
        ------
        sqlalchemy.exc.DBAPIError
            The database itself says what is missing.
        """
        if not self.ddl_in_transaction:
            # A role that may not drop tables could stage one, and then neither publish it nor roll it back.
            self.drop(connection, free[0])
        return None

    def close_to_others(self, connection: sa.Connection, table: ObjectPath) -> None:
        """Let no other role read the rows of a new table, whatever the default privileges grant."""

    def delete_all(self, connection: sa.Connection, table: ObjectPath) -> None:
        """Delete all rows. Not TRUNCATE, after which a reader with an older snapshot would see an empty table."""
        self.run(connection, f"DELETE FROM {self.name(table)}")

    def default_row(self, table: ObjectPath) -> str:
        """SQL that inserts a row without any values."""
        return f"INSERT INTO {self.name(table)} DEFAULT VALUES"

    # -- changes of rows -----------------------------------------------------------------------------------------

    def content(self, connection: sa.Connection, table: ObjectPath, *, lock: bool = False) -> list[Any] | None:
        """A checksum that changes with every committed change of a table's rows, by any writer; reads the whole table.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        table : ObjectPath
        lock : bool
            Lock the rows until the end of the transaction, if :meth:`lock_target` does not.

        Returns
        -------
        list or None
            Plain JSON; None if the database does not support it, or the role may not read the table.
        """
        return None

    def content_of_small(self, connection: sa.Connection, table: ObjectPath) -> list[Any] | None:
        """The :meth:`content` of a table that is quick to read; for a larger one ``None`` and the database's counters.

        The counters may be updated with a delay.
        """
        # Counted, not estimated: a different result must mean that rows changed.
        some = sa.select(sa.literal_column("1")).select_from(self.construct(table)).limit(SMALL + 1).subquery()
        count = connection.scalar(sa.select(sa.func.count()).select_from(some))
        return self.content(connection, table) if int(count or 0) <= SMALL else [None, self.counted(connection, table)]

    def counted(self, connection: sa.Connection, table: ObjectPath) -> list[Any] | None:
        """The database's own counters of changes of a table; None if it has none."""
        return None

    # -- locks ---------------------------------------------------------------------------------------------------

    def guard(self, connection: sa.Connection, name: str) -> None:
        """Lock one participant's publish until the end of the transaction or connection."""

    @contextmanager
    def exclusive(self, engine: sa.Engine, home: str, names: Sequence[str]) -> Iterator[sa.Connection]:
        """A transaction that holds the locks of these names until its commit has ended.

        Parameters
        ----------
        engine : sqlalchemy.Engine
        home : str
            The database of the hidden tables.
        names : sequence of str
            The hidden tables' keys.
        """
        with engine.begin() as connection:
            for name in names:
                self.guard(connection, name)
            yield connection

    def lock_target(self, connection: sa.Connection, table: ObjectPath, effect: str) -> None:
        """Block other writers of the target until the end of the transaction, if the effect requires it."""

    def keep_for_reading(self, connection: sa.Connection, table: ObjectPath) -> None:
        """Keep others from replacing or altering a table until the end of the transaction, which has not queried yet.

        Where that is not possible, an error or a comparison after a query must tell.
        """

    def begin_publish(self, connection: sa.Connection) -> None:
        """Make the transaction's commit survive a power cut, regardless of the role's settings.

        Where the server holds locks for a machine that is lost, let it end the transaction after a while.
        """

    def durability_problem(self, connection: sa.Connection) -> str | None:
        """Return why commits may not survive a power cut, and what to do about it; None if they do."""
        return None

    def stop_writers(self, connection: sa.Connection, label: str) -> None:
        """Close connections of tasks that no job waits for any more, if the database supports it."""

    # -- rows ----------------------------------------------------------------------------------------------------

    def arranged(self, columns: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> AbstractContextManager[Any]:
        """Arrange rows in the form that :meth:`load` takes.

        If the database allows one writer at a time, the partition is computed before the writer's lock is taken.
        """
        return nullcontext(batches)

    @abstractmethod
    def load(self, connection: sa.Connection, table: ObjectPath, columns: Mapping[str, str], rows: Any) -> int:
        """Append rows to a table inside the connection's transaction, as fast as is safe.

        Memory is bounded by the batch.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        table : ObjectPath
        columns : mapping of str to str
            Names of the rows' columns, in their order, with the database's types.
        rows : object
            The result of :meth:`arranged`.

        Returns
        -------
        int
            The number of rows.
        """

    def select_expression(self, column: Column) -> str:
        """The SQL that reads a column in the form that :meth:`to_arrow` takes."""
        return self.quote(column.name)

    def compares(self, column: Column) -> bool:
        """Whether comparisons in the database use the same value of a column as is read."""
        return self.select_expression(column) == self.quote(column.name)

    def compared(self, column: Column) -> str:
        """The SQL of the value of a column that is compared, where the database :meth:`compares` it."""
        return self.quote(column.name)

    def compares_texts(self, column: Column) -> bool:
        """Whether a column read as text equals, in the database, at least the texts that it is read as."""
        return True

    def stream(self, connection: sa.Connection, sql: str, values: Mapping[str, Any], size: int) -> Iterator[list[Any]]:
        """Return the rows of a query in blocks; memory is bounded by the block."""
        streaming = connection.execution_options(stream_results=True, max_row_buffer=size)
        with streaming.execute(sa.text(sql), values) as result:
            try:
                yield from (list(block) for block in result.partitions(size))
            except GeneratorExit:
                self.give_up_reading(connection)
                raise

    def give_up_reading(self, connection: sa.Connection) -> None:
        """End a query of which nobody wants the other rows, if closing its result would read them."""

    def snapshot_options(self) -> dict[str, Any]:
        """Execution options with which all statements of a transaction see the same snapshot."""
        return {"isolation_level": "REPEATABLE READ"}

    def is_replaced(self, error: DBAPIError) -> bool:
        """Whether a query failed because its table was replaced after its transaction began."""
        return False

    def cuts(self, connection: sa.Connection, table: ObjectPath) -> list[str]:
        """Conditions that split a table into parts; a single empty text for a table that is read as one part."""
        return [""]

    def ranges(self, column: str, first: int, last: int, rows: int) -> list[str]:
        """Conditions that split a table by an integer column without NULLs."""
        settings = self.settings
        count = max(1, min(settings.read_partitions, rows // settings.read_partition_rows, last - first))
        bounds = [first + (last - first) * number // count for number in range(1, count)]
        starts, ends = ["", *bounds], [*bounds, ""]
        cuts = []
        for start, end in zip(starts, ends, strict=True):
            words = [f"{column} >= {start}"] if start != "" else []
            cuts.append(" AND ".join([*words, *([f"{column} < {end}"] if end != "" else [])]))
        return cuts

    def to_arrow(self, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
        """Convert values of the driver to Arrow."""
        return pa.array(values, kind)
