"""What differs between databases: connections, names, types, bulk loading, and how a publish is one step.

Each database that is held to every promise has a class of its own beside this module. The driver and the executors
both make one from the same :class:`~twophase.catalogs.jdbc.options.Settings`.
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
from sqlalchemy.pool import NullPool

from twophase.catalogs.jdbc.options import Settings
from twophase.errors import CatalogError
from twophase.model import ObjectPath

_is = pa.types

#: Rows of a table that are looked at as often as one likes.
SMALL = 200_000

#: Without it SQLAlchemy hands an empty tuple to the driver, and a percent sign in a name would be a parameter.
_PLAIN = {"no_parameters": True}


@dataclass(frozen=True)
class Column:
    """A column as the database has it.

    Attributes
    ----------
    name : str
    type : str
        In the database's own words.
    arrow : pyarrow.DataType
        What it is to Spark.
    nullable : bool
    comment : str or None
    generated : bool
        The database makes its values itself and takes none.
    default : str or None
        What it gives where an insert names no value, in the database's SQL; ``auto`` where it counts.
    """

    name: str
    type: str
    arrow: pa.DataType
    nullable: bool = True
    comment: str | None = None
    generated: bool = False
    default: str | None = None


@dataclass(frozen=True)
class Table:
    """A place of rows: a schema (None for SQLite) and a name."""

    database: str
    name: str


class Database(ABC):
    """One kind of database, with the settings to reach it.

    Parameters
    ----------
    settings : Settings
    """

    #: As users call it.
    title: ClassVar[str]
    longest_name: ClassVar[int]
    #: DDL takes part in transactions: a publish is one database transaction.
    ddl_in_transaction: ClassVar[bool] = True
    #: Several tables are published in one step.
    groups: ClassVar[bool] = True
    #: ``CREATE TABLE`` takes comments, in words of MariaDB and MySQL; they hold the owner stamps, too.
    comments_in_ddl: ClassVar[bool] = False
    #: Columns have comments of their own.
    column_comments: ClassVar[bool] = True
    #: Times with a zone are compared with times with a zone.
    aware_times: ClassVar[bool] = False
    #: Longest comment of a table; None without a limit.
    longest_comment: ClassVar[int | None] = None

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.dialect = settings.parsed.get_dialect()()

    # -- connections ---------------------------------------------------------------------------------------------

    def engine(self, database: str, *, pooled: bool, label: str = "") -> sa.Engine:
        """An engine whose connections are set up for this catalog.

        Parameters
        ----------
        database : str
            Where it is used; only SQLite has an engine for each.
        pooled : bool
            Whether connections stay open; an executor's do not.
        label : str
            What the server shows of the connection, where it shows anything.
        """
        pool: dict[str, Any] = {"pool_pre_ping": True, "pool_size": self.settings.pool_size, "max_overflow": 10}
        if not pooled:
            pool = {"poolclass": NullPool}
        engine = sa.create_engine(
            self.url(database), hide_parameters=True, connect_args=self.connect_arguments(label), **pool
        )
        self.configure(engine)
        return engine

    def url(self, database: str) -> URL:
        """The URL of a database; the same for all but for SQLite."""
        return self.settings.parsed

    def engine_key(self, database: str) -> str:
        """Databases with the same key share an engine, and so can share a transaction."""
        return ""

    @abstractmethod
    def connect_arguments(self, label: str) -> dict[str, Any]:
        """Arguments of the driver's ``connect``."""

    def configure(self, engine: sa.Engine) -> None:
        """Listen to the engine's events."""

    def group(self, home: str) -> str | None:
        """Tables of which databases of hidden tables can be published in one step; None where each goes alone."""
        return self.engine_key(home)

    # -- what it can do ------------------------------------------------------------------------------------------

    def learn(self, engine: sa.Engine, database: str) -> None:
        """Find out what the database can do, where its kind does not say it; before the first write."""

    @property
    def keeps_tables(self) -> bool:
        """Whether new rows in the old table are a better replace than a new table, where the columns stay."""
        return False

    def refusal(self, swaps: bool) -> str | None:
        """Why nothing can be promised of a statement; None where it can.

        Parameters
        ----------
        swaps : bool
            Whether a new table takes a name, as opposed to rows that go into a table.
        """
        return None

    def level_reason(self, swaps: bool) -> str | None:
        """Why a statement is below level 3; None where it is not."""
        return None

    # -- names ---------------------------------------------------------------------------------------------------

    def quote(self, name: str) -> str:
        """A name in the database's own quotes."""
        quoted = self.dialect.identifier_preparer.quote_identifier(name)
        # SQLAlchemy doubles percent signs for drivers that look for parameters; our statements have none.
        return quoted.replace("%%", "%") if self.dialect.identifier_preparer._double_percents else quoted

    def name(self, table: Table) -> str:
        """A table's full name, quoted."""
        return f"{self.quote(table.database)}.{self.quote(table.name)}"

    def schema(self, database: str) -> str | None:
        """SQLAlchemy's ``schema`` for a database."""
        return database

    def construct(self, table: Table, *columns: str) -> sa.TableClause:
        """SQLAlchemy's lightweight table."""
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
        """The one spelling of a path."""
        return path

    def check_name(self, name: str, what: str, path: object) -> None:
        """Refuse a name that this database would cut or cannot hold.

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
        """Run a statement whose text is complete: names are quoted in it, and no value of a user's stands in it."""
        return connection.exec_driver_sql(sql, execution_options=_PLAIN)

    def text(self, value: str) -> str:
        """A text as a literal of the database's SQL."""
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
        """Drop a database with all in it."""

    def drop_empty_database(self, connection: sa.Connection, database: str) -> None:
        """Drop a database that holds nothing but twophase's own bookkeeping; both go, or none.

        Raises
        ------
        CatalogError
            It holds something else.
        """
        if found := [name for name in self.list_relations(connection, database) if not self.is_bookkeeping(name)]:
            raise self.not_empty(database, found)
        for name in self.list_relations(connection, database):
            self.run(connection, f"DROP TABLE {self.name(Table(database, name))}")
        self.run(connection, f"DROP SCHEMA {self.quote(database)}")

    def is_bookkeeping(self, name: str) -> bool:
        """Whether it is a table in which twophase keeps what it needs for others."""
        return name in (f"{self.settings.staging_prefix}{kind}" for kind in ("published", "comments"))

    def not_empty(self, database: str, names: Iterable[str]) -> CatalogError:
        """The error for a database that holds these."""
        found = sorted(names)
        more = f" and {len(found) - 5} more" if len(found) > 5 else ""
        return CatalogError(
            f"Database {database} is not empty: it holds {', '.join(found[:5])}{more}.",
            path=database,
            hint="Drop that first, or say CASCADE: it goes with all that is in it, and what depends on it elsewhere.",
        )

    # -- tables --------------------------------------------------------------------------------------------------

    def table_kind(self, connection: sa.Connection, table: Table) -> str | None:
        """``table``, ``view``, or None where nothing has this name."""
        return self.kinds(connection, table.database, [table.name]).get(table.name)

    def kinds(self, connection: sa.Connection, database: str, names: Sequence[str]) -> dict[str, str]:
        """Those of some names that tables and views have, with their kind; however many others there are."""
        return {name: kind for name, kind in self.list_relations(connection, database).items() if name in names}

    @abstractmethod
    def list_relations(self, connection: sa.Connection, database: str) -> dict[str, str]:
        """Names of all tables and views with their kind, hidden ones too."""

    @abstractmethod
    def columns(self, connection: sa.Connection, table: Table) -> list[Column]:
        """The columns, in order."""

    @abstractmethod
    def comment(self, connection: sa.Connection, table: Table) -> str | None:
        """The table's comment."""

    @abstractmethod
    def set_comment(self, connection: sa.Connection, table: Table, comment: str | None) -> None:
        """Give the table a comment."""

    def set_column_comment(self, connection: sa.Connection, table: Table, column: str, comment: str | None) -> None:
        """Give a column a comment, where columns have any."""

    def generation(self, connection: sa.Connection, table: Table) -> str | None:
        """What changes when the table is dropped and made anew, where the database tells."""
        return None

    @abstractmethod
    def column_type(self, field: pa.Field) -> str | None:
        """The type for a new column, None where there is none."""

    def create(
        self, connection: sa.Connection, table: Table, columns: Sequence[tuple[str, str]], suffix: str = ""
    ) -> None:
        """Create a table from names and what stands after each name."""
        body = ", ".join(f"{self.quote(name)} {kind}" for name, kind in columns)
        self.run(connection, f"CREATE TABLE {self.name(table)} ({body}){suffix}")

    def create_index(self, connection: sa.Connection, table: Table, column: str) -> None:
        """Create an index on a column of a table of ours."""
        name = self.index_name(table, column)
        self.run(connection, f"CREATE INDEX {name} ON {self.name(table)} ({self.quote(column)})")

    def index_name(self, table: Table, column: str) -> str:
        """How an index is named where it is made."""
        return self.quote(f"{table.name}_{column}")

    @abstractmethod
    def create_like(self, connection: sa.Connection, table: Table, source: Table, columns: Sequence[str]) -> None:
        """Create an empty table with the types of some columns of another one, and nothing else of it."""

    def drop(self, connection: sa.Connection, table: Table) -> None:
        """Drop a table. Idempotent."""
        self.run(connection, f"DROP TABLE IF EXISTS {self.name(table)}")

    @abstractmethod
    def rename(self, connection: sa.Connection, table: Table, new: Table) -> None:
        """Rename a table, to another database too where that is possible."""

    def writable_reason(self, connection: sa.Connection, table: Table) -> str | None:
        """Why rows of this table cannot be written in a transaction; None where they can."""
        return None

    def overwrite_reason(self, connection: sa.Connection, table: Table) -> str | None:
        """Why not all rows of this table can be replaced by others; None where they can."""
        return None

    def close_to_others(self, connection: sa.Connection, table: Table) -> None:
        """Give the rows of a new table to nobody, whatever new tables are given to by default."""

    def delete_all(self, connection: sa.Connection, table: Table) -> None:
        """Delete all rows. Not TRUNCATE: a reader with an older snapshot would see an empty table."""
        self.run(connection, f"DELETE FROM {self.name(table)}")

    def placeholder(self, text: str, kind: pa.DataType) -> str:
        """The SQL literal for a value of :mod:`~twophase.catalogs.jdbc.defaults`, as a table of ours holds it."""
        return text if _is.is_integer(kind) or _is.is_decimal(kind) else self.text(text)

    def default_row(self, table: Table) -> str:
        """SQL that appends a row of which no value is given."""
        return f"INSERT INTO {self.name(table)} DEFAULT VALUES"

    # -- changes of rows -----------------------------------------------------------------------------------------

    def content(self, connection: sa.Connection, table: Table, *, lock: bool = False) -> list[Any] | None:
        """What every committed change of a table's rows changes, whoever makes it; it reads the whole table.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        table : Table
        lock : bool
            Keep the rows as they are until the transaction's end, where :meth:`lock_target` does not.

        Returns
        -------
        list or None
            Plain JSON; None where the database has no such thing, or the role may not read the table.
        """
        return None

    def content_of_small(self, connection: sa.Connection, table: Table) -> list[Any] | None:
        """:meth:`content` of a table that is read in no time; of a larger one what the database counts, if anything."""
        # Counted, not estimated: another answer has to mean that rows changed.
        some = sa.select(sa.literal_column("1")).select_from(self.construct(table)).limit(SMALL + 1).subquery()
        count = connection.scalar(sa.select(sa.func.count()).select_from(some))
        return self.content(connection, table) if int(count or 0) <= SMALL else self.counted(connection, table)

    def counted(self, connection: sa.Connection, table: Table) -> list[Any] | None:
        """What the database counts of changes of a table, where it does."""
        return None

    # -- locks ---------------------------------------------------------------------------------------------------

    def guard(self, connection: sa.Connection, name: str) -> None:
        """Take the lock of one participant's publish until the transaction's or connection's end."""

    @contextmanager
    def exclusive(self, engine: sa.Engine, home: str, names: Sequence[str]) -> Iterator[sa.Connection]:
        """A transaction in which the locks of these names are held, and until its commit has ended.

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

    def lock_target(self, connection: sa.Connection, table: Table, effect: str) -> None:
        """Keep others from writing the target until the transaction's end, where its effect needs that."""

    def make_durable(self, connection: sa.Connection) -> None:
        """Have the transaction's commit survive a power cut, whatever the role is set to."""

    def durability_problem(self, connection: sa.Connection) -> str | None:
        """Why what is committed may not survive a power cut, in words with what to do; None where it does."""
        return None

    def stop_writers(self, connection: sa.Connection, label: str) -> None:
        """End connections of tasks that nobody waits for any more, where the database can."""

    # -- rows ----------------------------------------------------------------------------------------------------

    def arranged(self, columns: Mapping[str, str], batches: Iterable[pa.RecordBatch]) -> AbstractContextManager[Any]:
        """Rows as :meth:`load` takes them.

        Where there is one writer, a partition is computed before it waits for its turn, not while all others wait.
        """
        return nullcontext(batches)

    @abstractmethod
    def load(self, connection: sa.Connection, table: Table, columns: Mapping[str, str], rows: Any) -> int:
        """Append rows to a table inside the connection's transaction, as fast as is safe.

        Memory is bounded by the batch.

        Parameters
        ----------
        connection : sqlalchemy.Connection
        table : Table
        columns : mapping of str to str
            Names of the rows' columns, in their order, and what the database calls their types.
        rows : object
            What :meth:`arranged` made of the batches.

        Returns
        -------
        int
            The number of rows.
        """

    def select_expression(self, column: Column) -> str:
        """How a column is read so that its value arrives as :meth:`to_arrow` takes it."""
        return self.quote(column.name)

    def compares(self, column: Column) -> bool:
        """Whether a column holds to the database's own comparisons what is read of it."""
        return self.select_expression(column) == self.quote(column.name)

    def compares_texts(self, column: Column) -> bool:
        """Whether a column that is text to Spark is equal to the texts that it is read as, and maybe to more."""
        return True

    def stream(self, connection: sa.Connection, sql: str, values: Mapping[str, Any], size: int) -> Iterator[list[Any]]:
        """The rows of a query in blocks; memory is bounded by the block."""
        streaming = connection.execution_options(stream_results=True, max_row_buffer=size)
        with streaming.execute(sa.text(sql), values) as result:
            yield from (list(block) for block in result.partitions(size))

    def snapshot_options(self) -> dict[str, Any]:
        """Execution options with which all statements of a transaction see the same."""
        return {"isolation_level": "REPEATABLE READ"}

    def cuts(self, connection: sa.Connection, table: Table) -> list[str]:
        """Conditions that cut a table into parts of some size; one empty text for a table that is read at once."""
        return [""]

    def ranges(self, column: str, first: int, last: int, rows: int) -> list[str]:
        """Conditions that cut a table by a number that no row lacks."""
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
        """Values as the driver gives them, as Arrow."""
        return pa.array(values, kind)


def open_database(settings: Settings) -> Database:
    """The class for the URL's database."""
    backend = settings.parsed.get_backend_name()
    if backend == "postgresql":
        from twophase.catalogs.jdbc.postgresql import PostgreSQL

        return PostgreSQL(settings)
    if backend == "sqlite":
        from twophase.catalogs.jdbc.sqlite import SQLite

        return SQLite(settings)
    if backend == "mysql":
        from twophase.catalogs.jdbc.mysql import MySQL

        return MySQL(settings)
    from twophase.catalogs.jdbc.generic import open_generic

    return open_generic(settings)
