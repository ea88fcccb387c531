"""Tables and partitions as a metastore stores them, in Spark's terms: the values of :mod:`.metastore`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from twophase.catalogs.hive.stamps import STAMP, no_stamp, unfenced
from twophase.model import BucketSpec

#: Hive's value for NULL (and the empty string) in a partition's directory name.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
#: Table property of a table that only keeps its hidden name from being taken.
PLACEHOLDER = "twophase.placeholder"

MANAGED = "MANAGED"
EXTERNAL = "EXTERNAL"
VIEW = "VIEW"


@dataclass(frozen=True)
class HiveTable:
    """A table as stored in a metastore, in Spark's terms.

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
        Table properties, without those that Spark uses internally.
    comment : str, optional
    tracked : bool
        Whether the metastore lists the partitions; otherwise Spark finds them in the directory.
    created : int, optional
        Time of its creation, in milliseconds since the epoch; a Hive metastore counts seconds.
    extra : mapping
        Data of the implementation, to write the table back unchanged; opaque, never stored.
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
    created: int | None = field(default=None, compare=False)
    extra: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __repr__(self) -> str:
        # Options may hold secrets.
        return f"<HiveTable {self.database}.{self.name} {self.kind} at {self.location}>"

    @property
    def stamp(self) -> str | None:
        """The transaction that published this state; None if twophase never wrote the table."""
        stored = self.stored_stamp
        return None if stored is None else unfenced(stored)

    @property
    def stored_stamp(self) -> str | None:
        """The stamp as stored in the metastore, with its fence: the value that a conditional call expects."""
        return self.properties.get(STAMP)

    @property
    def expected_stamp(self) -> str:
        """The stored stamp that a table must still have when it is changed; :func:`.no_stamp` if it has none."""
        return self.stored_stamp or no_stamp(self.created)

    @property
    def partitioned(self) -> bool:
        """Whether the metastore tracks this table's partitions: they must be switched one by one."""
        return bool(self.partition_columns) and self.tracked

    def with_stamp(self, transaction_id: str) -> HiveTable:
        """The same table, published by this transaction."""
        return replace(self, properties={**self.properties, STAMP: transaction_id})


@dataclass(frozen=True)
class Located:
    """The location of a table, with the few attributes needed when many tables are listed.

    Parameters
    ----------
    database, name : str
    kind : str
        ``MANAGED``, ``EXTERNAL`` or ``VIEW``.
    location : str or None
        Hadoop path string.
    partition_columns : tuple of str
        The partition columns if the metastore tracks partitions; otherwise empty.
    stamp : str or None
        As :attr:`HiveTable.stamp`.
    """

    database: str
    name: str
    kind: str
    location: str | None
    partition_columns: tuple[str, ...] = ()
    stamp: str | None = None

    @classmethod
    def of(cls, table: HiveTable) -> Located:
        """Return these attributes of a table."""
        columns = table.partition_columns if table.partitioned else ()
        return cls(table.database, table.name, table.kind, table.location, columns, table.stamp)


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
        Whether all its files are now in the table's format, so that the partition loses a format of its own.
    files : tuple of int, optional
        Number of its data files, and their total size in bytes: a metastore that keeps them need not list the files.
    extra : object
        Data of the implementation, to write the partition back unchanged (format, parameters); opaque, never stored.
    """

    values: Mapping[str, str]
    location: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    as_table: bool = False
    files: tuple[int, int] | None = None
    extra: Any = field(default=None, compare=False, repr=False)


def partition_key(values: Mapping[str, str], columns: Sequence[str]) -> tuple[str, ...]:
    """Key of a partition, whatever the case of the column names in ``values``."""
    lowered = {column.lower(): value for column, value in values.items()}
    return tuple(lowered[column.lower()] for column in columns)


def partition_specs(partitions: Sequence[HivePartition]) -> list[dict[str, str]]:
    """Return the values of partitions, which identify them."""
    return [dict(partition.values) for partition in partitions]
