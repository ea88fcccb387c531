"""What a Hive catalog needs of a metastore, and the neutral values that cross the line.

Two implementations: the Spark session's own metastore (``twophase.spark.metastore``) and one through HiveServer2
(:mod:`twophase.catalogs.hive.hiveserver2`). Locations are Hadoop path strings (``file:/warehouse/t``), not
percent-encoded. Calls that take lists make a bounded number of metastore calls, whatever the length of the list.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from twophase.errors import CatalogError
from twophase.model import BucketSpec

#: What Hive writes for NULL (and the empty string) in a partition's directory name.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
#: Table property with the transaction that published the present state: the owner stamp in the metastore.
STAMP = "twophase.transaction"
#: Behind a stamp: a mark that only makes it another one, for the call of a dead driver that expects it as it was.
_FENCE = "#"

MANAGED = "MANAGED"
EXTERNAL = "EXTERNAL"
VIEW = "VIEW"


@dataclass(frozen=True)
class HiveTable:
    """A table as a metastore knows it, in Spark's terms.

    Parameters
    ----------
    database, name : str
    kind : str
        ``MANAGED``, ``EXTERNAL`` or ``VIEW``.
    schema : pyarrow.Schema
        All columns, partition columns last.
    provider : str or None
        Spark's name of the format; ``hive`` for a SerDe table.
    location : str or None
        Hadoop path string.
    partition_columns : tuple of str
    bucketing : BucketSpec, optional
    serde : mapping of str to str
        ``serde``, ``input_format``, ``output_format``.
    options : mapping of str to str
        Storage properties. May hold secrets: never log.
    properties : mapping of str to str
        Table properties, without those that Spark keeps for itself.
    comment : str, optional
    tracked : bool
        Whether the metastore lists the partitions; otherwise Spark finds them in the directory.
    extra : mapping
        What the implementation keeps to write the table back unchanged; opaque, never stored.
    """

    database: str
    name: str
    kind: str
    schema: pa.Schema
    provider: str | None = None
    location: str | None = None
    partition_columns: tuple[str, ...] = ()
    bucketing: BucketSpec | None = None
    serde: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    comment: str | None = None
    tracked: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __repr__(self) -> str:
        # Options may hold secrets.
        return f"<HiveTable {self.database}.{self.name} {self.kind} at {self.location}>"

    @property
    def stamp(self) -> str | None:
        """The transaction that published this state; None for a table that twophase never wrote."""
        stored = self.stored_stamp
        return None if stored is None else unfenced(stored)

    @property
    def stored_stamp(self) -> str | None:
        """The stamp as the metastore has it, with its fence: what a conditional call expects."""
        return self.properties.get(STAMP)

    @property
    def partitioned(self) -> bool:
        """Whether the metastore tracks this table's partitions: they must be switched one by one."""
        return bool(self.partition_columns) and self.tracked

    def with_stamp(self, transaction_id: str) -> HiveTable:
        """The same table, published by this transaction."""
        return replace(self, properties={**self.properties, STAMP: transaction_id})


@dataclass(frozen=True)
class Located:
    """Where a table lies, and no more of it than a look at many tables needs.

    Parameters
    ----------
    database, name : str
    kind : str
        ``MANAGED``, ``EXTERNAL`` or ``VIEW``.
    location : str or None
        Hadoop path string.
    partition_columns : tuple of str
        Those of partitions that the metastore tracks; empty where it tracks none.
    stamp : str or None
        As of :attr:`HiveTable.stamp`.
    """

    database: str
    name: str
    kind: str
    location: str | None
    partition_columns: tuple[str, ...] = ()
    stamp: str | None = None

    @classmethod
    def of(cls, table: HiveTable) -> Located:
        """What is needed of a table."""
        columns = table.partition_columns if table.partitioned else ()
        return cls(table.database, table.name, table.kind, table.location, columns, table.stamp)


def unfenced(stored_stamp: str) -> str:
    """A stamp without its fence."""
    return stored_stamp.partition(_FENCE)[0]


def fenced(stored_stamp: str) -> str:
    """The same stamp for every reader, and another one for a call that expects it as it was."""
    return f"{unfenced(stored_stamp)}{_FENCE}{secrets.token_hex(4)}"


class StampChangedError(Exception):
    """A conditional call found another stamp than it expects: the table was published or fenced meanwhile."""


@dataclass(frozen=True)
class HivePartition:
    """One partition.

    Parameters
    ----------
    values : mapping of str to str
        Partition column to value as text, unescaped; :data:`NULL_PARTITION` for NULL.
    location : str
        Hadoop path string.
    parameters : mapping of str to str
    as_table : bool
        Whether all its files are in the table's own format now, so that a format of its own ends.
    extra : object
        What the implementation keeps to write the partition back unchanged (format, parameters); opaque, never stored.
    """

    values: Mapping[str, str]
    location: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    as_table: bool = False
    extra: Any = field(default=None, compare=False, repr=False)


def _key(table: HiveTable, partition: HivePartition) -> tuple[str, ...]:
    values = {column.lower(): value for column, value in partition.values.items()}
    return tuple(values[column.lower()] for column in table.partition_columns)


def partition_specs(partitions: Sequence[HivePartition]) -> list[dict[str, str]]:
    """The values of partitions, which identify them."""
    return [dict(partition.values) for partition in partitions]


class Metastore(ABC):
    """Databases, tables and partitions of a Hive-compatible metastore.

    Every method raises :class:`twophase.errors.CatalogError` (or one of its kinds) in words, and any other error for
    a metastore that cannot be reached.
    """

    @property
    def longest_name(self) -> int:
        """Characters that the name of a database or table may have.

        Every version holds 128. Since Hive 2.3 a table's may have 256, a database's not; that is left unused, so that
        a table can go to any metastore and its name be the name of a directory beside others.
        """
        return 128

    @property
    def ends_with_driver(self) -> bool:
        """Whether all of it runs inside the driver: no call of a dead driver takes effect any more then."""
        return False

    def creates_in_one_step(self, provider: str) -> bool:
        """Whether :meth:`create_table` makes a managed table of a provider in one call."""
        return True

    def creates_at_once(self, table: HiveTable) -> bool:
        """Whether :meth:`create_table` makes this managed table in one call, though perhaps not each of its provider.

        The metastore then looks at the files that are there, however many.
        """
        return self.creates_in_one_step(str(table.provider))

    @property
    def replaces_tables(self) -> bool:
        """Whether :meth:`replace_table` can change the columns; otherwise a new table takes the name of the old one."""
        return True

    @property
    def added_in_one_step(self) -> int:
        """How many partitions :meth:`add_partitions` adds in one step."""
        return 1_000_000_000

    @property
    def altered_in_one_step(self) -> int:
        """How many partitions :meth:`alter_partitions` switches in one step."""
        return 1_000_000_000

    @property
    def changes_partition_columns(self) -> bool:
        """Whether :meth:`replace_table` may change the partition columns (only Spark's catalog in memory can)."""
        return False

    @property
    def identity(self) -> str:
        """Which metastore this is, the same for all who use it (see :mod:`.identity`); empty: that cannot be told."""
        return ""

    @abstractmethod
    def canonical(self, name: str) -> str:
        """A database's or table's name as the metastore keeps it (usually in lower case)."""

    # -- databases -----------------------------------------------------------------------------------------------

    @abstractmethod
    def list_databases(self) -> list[str]:
        """Names of all databases, sorted."""

    @abstractmethod
    def get_database(self, database: str) -> dict[str, str] | None:
        """``location`` and ``comment`` and the properties of a database; None where it does not exist."""

    def database_exists(self, database: str) -> bool:
        """Whether a database exists; overridden where that is cheaper than reading it."""
        return self.get_database(database) is not None

    def database_location(self, database: str) -> str | None:
        """Root directory of a database; None where it does not exist."""
        found = self.get_database(database)
        return None if found is None else found["location"]

    @abstractmethod
    def create_database(self, database: str, properties: Mapping[str, str], *, ignore_if_exists: bool) -> None:
        """Create a database; ``location`` and ``comment`` are taken from the properties."""

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        """Set properties (``comment`` among them) of a database that exists, and remove those that are None.

        Raises
        ------
        CatalogError
            Not possible here; nothing was changed.
        """
        raise CatalogError(f"This metastore cannot alter the database {database}.", path=database)

    @abstractmethod
    def drop_database(self, database: str, *, ignore_if_not_exists: bool, cascade: bool) -> None:
        """Drop a database."""

    # -- tables --------------------------------------------------------------------------------------------------

    @abstractmethod
    def list_tables(self, database: str) -> list[str]:
        """Names of the tables and views of a database."""

    @abstractmethod
    def get_table(self, database: str, name: str) -> HiveTable | None:
        """A table or view; None where it does not exist."""

    def located_tables(self, database: str) -> list[Located]:
        """Where all tables and views of a database lie; overridden where that takes less than reading each."""
        found = (self.get_table(database, name) for name in self.list_tables(database))
        return [Located.of(table) for table in found if table is not None]

    def partition_locations(self, table: Located) -> list[str]:
        """Where the partitions of a table lie; empty for a table that is gone."""
        found = self.get_table(table.database, table.name) if table.partition_columns else None
        return [] if found is None else [partition.location for partition in self.list_partitions(found)]

    @abstractmethod
    def create_table(self, table: HiveTable) -> None:
        """Create a table at exactly this location, visible in one step; its kind may follow in a second one.

        Raises
        ------
        TableAlreadyExistsError
            The name is taken.
        """

    def make_managed(self, database: str, name: str) -> None:
        """Let the files of a table go with it when it is dropped, where the metastore can. Idempotent."""

    @abstractmethod
    def alter_table(self, table: HiveTable) -> None:
        """Set location, kind, properties and comment of a table whose columns stay, in one step.

        ``table`` must come from :meth:`get_table`, changed by :func:`dataclasses.replace`.
        """

    def point_table(self, table: HiveTable, files: int, size: int, *, instead_of: str | None = None) -> None:
        """Give a table another location, with its new stamp, in one step: the publish of an INSERT.

        Parameters
        ----------
        table : HiveTable
            As for :meth:`alter_table`; nothing else of it is taken where that can be.
        files : int
            How many lie at the new location.
        size : int
            Of all of them, in bytes: the metastore that is told needs not look at each.
        instead_of : str, optional
            The stored stamp that the table must still have, where the metastore outlives its callers and can tell
            (Hive 2.3.10 and 4.0, HIVE-26882); the caller looked just before.

        Raises
        ------
        StampChangedError
            It has another one; nothing was changed.
        """
        self.alter_table(table)

    def set_option(self, database: str, name: str, key: str, value: str) -> None:
        """Set one storage property of a table, which tells Spark how to read it; nothing else of it changes."""
        table = self.get_table(database, name)
        if table is not None:
            self.alter_table(replace(table, options={**table.options, key: value}))

    def place_table(self, table: HiveTable, *, instead_of: str | None = None) -> None:
        """Give a partitioned table another directory for partitions to come, in one step; those that are there stay.

        Parameters
        ----------
        table : HiveTable
            As for :meth:`alter_table`; nothing else of it is taken where that can be.
        instead_of : str, optional
            As for :meth:`point_table`.

        Raises
        ------
        StampChangedError
            It has another stamp; nothing was changed.
        """
        self.alter_table(table)

    @abstractmethod
    def alter_columns(self, table: HiveTable) -> None:
        """Set the data columns of a table, and nothing else."""

    @abstractmethod
    def replace_in_one_step(self, table: HiveTable, template: str) -> bool:
        """Whether :meth:`replace_table` would be one step for every reader of the metastore."""

    @abstractmethod
    def replace_table(
        self, table: HiveTable, template: str, *, same_files: bool = True, instead_of: str | None = None
    ) -> None:
        """Give a table the whole definition (columns, location, properties) of another one of its database.

        Spark readers see one step. The template stays.

        Parameters
        ----------
        table : HiveTable
            What is wanted: its ``database``, ``name``, ``kind`` and ``tracked`` are taken, the rest is the template's.
        template : str
            Name of a table with the same partition columns.
        same_files : bool
            Whether the files that the table then has were there when the template was made: what the metastore then
            noted of their sizes, if it did, holds.
        instead_of : str, optional
            As for :meth:`point_table`.

        Raises
        ------
        StampChangedError
            As for :meth:`point_table`.
        """

    def fence_table(self, database: str, name: str, stamp: str) -> None:
        """Refuse what a dead driver's call may still do to a table that carries this stamp, where that can be.

        Such a call expects the stamp as it was: from now on it finds another one, which is the same to all others.
        """

    @abstractmethod
    def rename_table(self, database: str, name: str, new_name: str, *, kind: str | None = None) -> None:
        """Rename a table and set its kind, in one step; no file moves, the location stays.

        Raises
        ------
        TableAlreadyExistsError
            The new name is taken.
        TableNotExistError
            The old one does not exist.
        """

    def rename_with_files(self, database: str, name: str, new_name: str) -> None:
        """Rename a table as Spark does: the files of a managed one at its default location go with it."""
        self.rename_table(database, name, new_name)

    def lost_location(self, database: str, name: str) -> str | None:
        """Where the files of a table are, when Spark looks for them somewhere else; None when all is well.

        Stock Spark's own ``ALTER TABLE ... RENAME TO`` supposes that the files of every managed table of a Hive
        metastore are at its default location.
        """
        return None

    @abstractmethod
    def drop_table(self, database: str, name: str) -> None:
        """Drop a table as its kind says (the files of a managed one go). Idempotent."""

    def forget_table(self, database: str, name: str) -> None:
        """Drop a table's metadata only. Idempotent."""
        table = self.get_table(database, name)
        if table is not None and table.kind == MANAGED:
            self.alter_table(replace(table, kind=EXTERNAL))
        if table is not None:
            self.drop_table(database, name)

    # -- partitions ----------------------------------------------------------------------------------------------

    @abstractmethod
    def list_partitions(self, table: HiveTable) -> list[HivePartition]:
        """All partitions of a table."""

    def get_partitions(self, table: HiveTable, keys: Collection[tuple[str, ...]]) -> list[HivePartition]:
        """Those of some partitions that exist, named by the values of the table's partition columns, in their order.

        Overridden where they are found without the others.
        """
        return [part for part in self.list_partitions(table) if _key(table, part) in keys] if keys else []

    def partitions_within(self, table: HiveTable, values: Mapping[str, str]) -> list[HivePartition]:
        """The partitions that have these values in some of the partition columns.

        Overridden where they are found without the others.
        """
        wanted = {column.lower(): value for column, value in values.items()}
        found = self.list_partitions(table)
        return [part for part in found if wanted.items() <= {k.lower(): v for k, v in part.values.items()}.items()]

    @abstractmethod
    def add_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        """Add partitions, all in one step; one that exists already is an error and nothing is added."""

    @abstractmethod
    def alter_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        """Give existing partitions new locations, all in one step; what they have beside stays, but for statistics."""

    @abstractmethod
    def drop_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        """Drop the metadata of partitions; no file is touched. Those that do not exist are passed over."""

    def has_own_format(self, table: HiveTable, partition: HivePartition) -> bool:
        """Whether a partition's files are read in another way than the table's, by a SerDe or settings of its own."""
        return False

    # -- the session ---------------------------------------------------------------------------------------------

    def changed(self, database: str, name: str, *, written: bool = False, fresh: bool = False) -> None:
        """Called after a publish: make the session look at the table anew.

        Parameters
        ----------
        database, name : str
        written : bool
            Whether it is the same table with other rows: what was made of it before should show them, and its
            statistics are of other rows.
        fresh : bool
            Whether it is a new table, or a new definition of it, which has no statistics yet.
        """

    @property
    def read_by_session(self) -> bool:
        """Whether Spark's session catalog reads this metastore, so that reads stay Spark's own."""
        return False

    def close(self) -> None:
        """Release connections. Idempotent."""


class TableWriter(ABC):
    """Writes a DataFrame into an existing table the way Spark's own ``INSERT INTO`` does."""

    @abstractmethod
    def insert(self, df: Any, database: str, name: str) -> None:
        """Append the rows, by position, with dynamic partitions; the user's own Spark errors come unchanged."""
