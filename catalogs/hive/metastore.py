"""The interface of a metastore to the Hive catalog; what it takes and returns is in :mod:`.tables`.

It has two implementations: the Spark session's own metastore (``twophase.spark.metastore``) and one through HiveServer2
(:mod:`twophase.catalogs.hive.hiveserver2`). Locations are Hadoop path strings (``file:/warehouse/t``), not
percent-encoded. Methods that take lists make a bounded number of metastore calls, whatever the length of the list.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalogs.hive.schema.columns import Columns
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, HivePartition, HiveTable, Located, partition_key
from twophase.errors import CatalogError


class Metastore(ABC):
    """Databases, tables and partitions of a Hive-compatible metastore.

    Every method raises :class:`twophase.errors.CatalogError` (or a subclass) with a readable message, and any other
    error if the metastore cannot be reached.
    """

    @property
    def longest_name(self) -> int:
        """Maximum number of characters in the name of a database or table.

        Every version supports 128. Since Hive 2.3 a table's name may have 256, a database's may not; this is not used,
        so that a table can move to any metastore, and its name can be a directory name.
        """
        return 128

    @property
    def ends_with_driver(self) -> bool:
        """Whether the metastore runs inside the driver, so that no call of a dead driver can take effect."""
        return False

    def creates_in_one_step(self, provider: str) -> bool:
        """Whether :meth:`create_table` creates a managed table of a provider in one call."""
        return True

    def creates_at_once(self, table: HiveTable) -> bool:
        """Whether :meth:`create_table` creates this managed table in one call, even if not every one of its provider.

        The metastore then scans the existing files, however many there are.
        """
        return self.creates_in_one_step(str(table.provider))

    @property
    def replaces_tables(self) -> bool:
        """Whether :meth:`replace_table` can change the columns; otherwise a new table takes the name of the old one."""
        return True

    @property
    def added_in_one_step(self) -> int:
        """Maximum number of partitions that :meth:`add_partitions` adds in one step."""
        return 1_000_000_000

    @property
    def altered_in_one_step(self) -> int:
        """Maximum number of partitions that :meth:`alter_partitions` switches in one step."""
        return 1_000_000_000

    @property
    def changes_partition_columns(self) -> bool:
        """Whether :meth:`replace_table` may change the partition columns (only Spark's in-memory catalog can)."""
        return False

    @property
    def identity(self) -> str:
        """Identity of this metastore, the same for all its clients (see :mod:`.identity`); empty if unknown."""
        return ""

    @abstractmethod
    def canonical(self, name: str) -> str:
        """Return a database's or table's name as the metastore stores it (usually in lower case)."""

    # -- databases -----------------------------------------------------------------------------------------------

    @abstractmethod
    def list_databases(self) -> list[str]:
        """Names of all databases, sorted."""

    @abstractmethod
    def get_database(self, database: str) -> dict[str, str] | None:
        """``location``, ``comment`` and the properties of a database; None if it does not exist."""

    def database_exists(self, database: str) -> bool:
        """Whether a database exists; overridden if that is cheaper than loading it."""
        return self.get_database(database) is not None

    def database_location(self, database: str) -> str | None:
        """Root directory of a database; None if it does not exist."""
        found = self.get_database(database)
        return None if found is None else found["location"]

    def new_database_location(self, database: str) -> str | None:
        """Root directory that a new database gets unless it is given one; None if that is unknown."""
        return None

    def list_functions(self, database: str) -> list[str]:
        """Names of the functions of a database, which keep it from being dropped."""
        return []

    @abstractmethod
    def create_database(self, database: str, properties: Mapping[str, str], *, ignore_if_exists: bool) -> None:
        """Create a database; ``location`` and ``comment`` are taken from the properties."""

    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        """Set properties (including ``comment``) of an existing database, and remove those that are None.

        Raises
        ------
        CatalogError
            This metastore does not support it; nothing was changed.
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
    def get_table(self, database: str, name: str, *, as_analyzed: bool = False) -> HiveTable | None:
        """Load a table or view; None if it does not exist.

        With ``as_analyzed`` it may be as Spark's analysis of the running statement has just loaded it.
        """

    def located_tables(self, database: str) -> list[Located]:
        """Locations of all tables and views of a database; overridden if there is a cheaper way than loading each."""
        found = (self.get_table(database, name) for name in self.list_tables(database))
        return [Located.of(table) for table in found if table is not None]

    def find_located(self, database: str, names: Sequence[str]) -> list[Located]:
        """Locations of those of some tables and views that exist; overridden if there is a cheaper way than that."""
        found = (self.get_table(database, name) for name in names)
        return [Located.of(table) for table in found if table is not None]

    def partition_locations(self, table: Located) -> list[str]:
        """Locations of the partitions of a table; empty if the table does not exist any more."""
        found = self.get_table(table.database, table.name) if table.partition_columns else None
        return [] if found is None else [partition.location for partition in self.list_partitions(found)]

    @abstractmethod
    def create_table(self, table: HiveTable) -> None:
        """Create a table at exactly this location, visible in one step; its kind may be set in a second step.

        Raises
        ------
        TableAlreadyExistsError
            The name is already in use.
        """

    def make_managed(self, database: str, name: str) -> None:
        """Make a table managed, so that dropping it removes its files, if the metastore supports that. Idempotent."""

    @abstractmethod
    def alter_table(self, table: HiveTable) -> None:
        """Set location, kind, properties and comment of a table, but not its columns, in one step.

        ``table`` must be a result of :meth:`get_table`, changed by :func:`dataclasses.replace`.
        """

    def point_table(
        self, table: HiveTable, files: int, size: int, *, instead_of: str | None = None, redefined: bool = False
    ) -> None:
        """Set the location and the new stamp of a table in one step: the publish of an INSERT.

        Parameters
        ----------
        table : HiveTable
            As for :meth:`alter_table`; other changes are ignored if the implementation can.
        files : int
            Number of files at the new location.
        size : int
            Their total size in bytes, so that the metastore need not scan each file.
        instead_of : str, optional
            The stored stamp that the table must still have; checked if the metastore outlives its callers and supports
            it (Hive 2.3.10 and 4.0, HIVE-26882), else looked up just before; empty for none, which no call can demand.
        redefined : bool
            Whether the table gets its columns, too, in the same step; only where :meth:`columns_of` finds any. The
            columns must be as they were read.

        Raises
        ------
        StampChangedError
            The table has another stamp; nothing was changed.
        """
        self.alter_table(table)

    @property
    def points_as_read(self) -> bool:
        """Whether :meth:`point_as_read` saves a look at the table."""
        return False

    def point_as_read(self, table: HiveTable, files: int, size: int) -> HiveTable | None:
        """Do what :meth:`point_table` does, if everything else of the table is still as it was read.

        Returns
        -------
        HiveTable or None
            The table as it is then; None if nothing was changed.
        """
        return None

    def set_option(self, database: str, name: str, key: str, value: str) -> None:
        """Set one storage property of a table, which Spark uses as a read option; nothing else changes."""
        table = self.get_table(database, name)
        if table is not None:
            self.alter_table(replace(table, options={**table.options, key: value}))

    def place_table(self, table: HiveTable, *, instead_of: str | None = None) -> None:
        """Set the directory of a partitioned table for future partitions, in one step; existing partitions stay.

        Parameters
        ----------
        table : HiveTable
            As for :meth:`alter_table`; other changes are ignored if the implementation can.
        instead_of : str, optional
            As for :meth:`point_table`.

        Raises
        ------
        StampChangedError
            The table has another stamp; nothing was changed.
        """
        self.alter_table(table)

    @abstractmethod
    def alter_definition(self, table: HiveTable) -> None:
        """Set the data columns, properties and comment of a table in one step, and no more: an ``ALTER TABLE``.

        The stamp gets a new fence, so that a publish under way that has checked the old definition looks again; unless
        ``table`` has another stamp than the one that was read.

        Parameters
        ----------
        table : HiveTable
            A result of :meth:`get_table`, changed by :func:`dataclasses.replace`.

        Raises
        ------
        StampChangedError
            The table is not as it was read; nothing was changed.
        CatalogError
            The metastore does not take all of it in one step; nothing was changed.
        """

    @property
    def reads_by_ids(self) -> bool:
        """Whether Parquet files are read by the ids of a table's fields, where it has ids."""
        return False

    @property
    def writes_ids(self) -> bool:
        """Whether Parquet files are written with the ids of a table's fields, where it has ids."""
        return False

    def reads_by_position(self, table: HiveTable) -> str | None:
        """The setting by which files of an ORC table are not read by the names of their columns; None if they are."""
        return None

    def columns_of(self, table: HiveTable) -> Columns | None:
        """The columns of a table whose schema can evolve; None if other engines decide how its files are read."""
        return None

    def schema_of_file(self, schema: pa.Schema) -> pa.Schema:
        """The columns of a Parquet file, with all that its writer has noted of them."""
        return schema

    def has_marks(self, schema: pa.Schema) -> bool:
        """Whether a table's columns have field ids, or facts about its older files."""
        return False

    def has_former_columns(self, table: HiveTable) -> bool:
        """Whether the metastore has refused columns that Spark has: it refuses Spark's own ALTER TABLE, too."""
        return False

    def with_columns(self, table: HiveTable, columns: Columns) -> HiveTable:
        """The table with other columns, for :meth:`alter_definition`."""
        raise NotImplementedError

    def numbered(self, schema: pa.Schema, partition_columns: Sequence[str], *, with_ids: bool) -> pa.Schema:
        """The schema of a new Parquet table: with ids for all of its fields, or with none."""
        return schema

    def rows_for(self, df: Any, schema: pa.Schema) -> Any:
        """Rows for Spark's Parquet writer, whose files then have the ids of a table's schema."""
        return df

    @abstractmethod
    def replace_in_one_step(self, table: HiveTable, template: str) -> bool:
        """Whether :meth:`replace_table` is one step for every reader of the metastore."""

    @abstractmethod
    def replace_table(
        self, table: HiveTable, template: str, *, same_files: bool = True, instead_of: str | None = None
    ) -> None:
        """Give a table the whole definition (columns, location, properties) of another table of its database.

        Spark readers see one step. The template is kept.

        Parameters
        ----------
        table : HiveTable
            The target: its ``database``, ``name``, ``kind`` and ``tracked`` are used; the rest comes from the template.
        template : str
            Name of a table with the same partition columns.
        same_files : bool
            Whether the new files of the table existed when the template was created, so that the file sizes that the
            metastore may have recorded then are still valid.
        instead_of : str, optional
            As for :meth:`point_table`.

        Raises
        ------
        StampChangedError
            As for :meth:`point_table`.
        """

    def fence_table(self, database: str, name: str, stamp: str) -> None:
        """Make a dead driver's delayed call to a table with this stamp fail, if the metastore supports that.

        Such a call expects the old stored stamp. It finds another one from now on, which means the same to all others.
        """

    @abstractmethod
    def rename_table(
        self,
        database: str,
        name: str,
        new_name: str,
        *,
        kind: str | None = None,
        stamp: str | None = None,
        instead_of: str | None = None,
    ) -> None:
        """Rename a table and set its kind and stamp, in one step; no file is moved, and the location stays.

        Parameters
        ----------
        database, name, new_name : str
        kind : str, optional
        stamp : str, optional
            The stamp to store; empty for none. By default it stays.
        instead_of : str, optional
            As for :meth:`point_table`.

        Raises
        ------
        TableAlreadyExistsError
            The new name is already in use.
        TableNotExistError
            The old name does not exist.
        StampChangedError
            The table has another stamp; nothing was changed.
        """

    def rename_with_files(self, database: str, name: str, new_name: str) -> None:
        """Rename a table like Spark: the files of a managed table at its default location are moved, too."""
        self.rename_table(database, name, new_name)

    def lost_location(self, database: str, name: str) -> str | None:
        """Real location of a table whose files Spark looks for elsewhere; None if the table is intact.

        Stock Spark's ``ALTER TABLE ... RENAME TO`` assumes that the files of every managed table in a Hive metastore
        are at its default location.
        """
        return None

    @abstractmethod
    def drop_table(self, database: str, name: str) -> None:
        """Drop a table according to its kind (the files of a managed table are removed). Idempotent."""

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

    def has_partitions(self, table: HiveTable) -> bool:
        """Whether a table has partitions; overridden if they need not be loaded for that."""
        return bool(self.list_partitions(table))

    def get_partitions(self, table: HiveTable, keys: Collection[tuple[str, ...]]) -> list[HivePartition]:
        """Load those of the given partitions that exist; a key has the values of the partition columns, in their order.

        Overridden if they can be loaded without the others.
        """
        columns, found = table.partition_columns, self.list_partitions(table) if keys else []
        return [part for part in found if partition_key(part.values, columns) in keys]

    def partitions_within(self, table: HiveTable, values: Mapping[str, str]) -> list[HivePartition]:
        """Load the partitions that have these values in some of the partition columns.

        Overridden if they can be loaded without the others.
        """
        wanted = {column.lower(): value for column, value in values.items()}
        found = self.list_partitions(table)
        return [part for part in found if wanted.items() <= {k.lower(): v for k, v in part.values.items()}.items()]

    @abstractmethod
    def add_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        """Add partitions, all in one step; if one already exists, an error is raised and nothing is added."""

    @abstractmethod
    def alter_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        """Set the locations of existing partitions, all in one step; all else stays, except statistics."""

    @abstractmethod
    def drop_partitions(self, table: HiveTable, partitions: Sequence[HivePartition]) -> None:
        """Drop the metadata of partitions, but no files. Partitions that do not exist are ignored."""

    def has_own_format(self, table: HiveTable, partition: HivePartition) -> bool:
        """Whether a partition's files are read differently from the table's, by a SerDe or settings of its own."""
        return False

    # -- the session ---------------------------------------------------------------------------------------------

    def changed(
        self, database: str, name: str, *, written: bool = False, counted: bool = True, seen: HiveTable | None = None
    ) -> None:
        """Invalidate the session's caches of a table after a publish.

        Parameters
        ----------
        database, name : str
        written : bool
            Whether it is the same table with other rows: objects created from it earlier should show them, and its
            statistics are outdated.
        counted : bool
            Whether the table may have statistics; a new table, or a new definition, has none yet.
        seen : HiveTable, optional
            The table as loaded during the publish, if it was.
        """

    @property
    def read_by_session(self) -> bool:
        """Whether Spark's session catalog reads this metastore, so that Spark itself reads the tables."""
        return False

    def close(self) -> None:
        """Release connections. Idempotent."""


class TableWriter(ABC):
    """Writer of a DataFrame into an existing table, like Spark's own ``INSERT INTO``."""

    @abstractmethod
    def insert(self, df: Any, database: str, name: str) -> None:
        """Append the rows, by position, with dynamic partitions; the user's own Spark errors are raised unchanged."""
