"""The services that a host provides to a catalog, and plain values that a catalog returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twophase.model import TableDefinition


@dataclass(frozen=True)
class Leftover:
    """A leftover of a transaction in a store, which ``twophase clean`` may remove.

    Attributes
    ----------
    kind : str
        ``staging``, ``version`` (a superseded version retained for active readers) or ``metadata``.
    location : str
        Path or table name, as an operator of that store would write it.
    size : int
        In bytes; -1 if unknown.
    transaction_id : str
        The transaction that created it, from its owner stamp.
    since : float
        When it became obsolete, in seconds since the epoch.
    kept : str or None
        The reason why it must only be listed and not removed; None if there is none.
    holds_rows : bool
        Whether it may have been published by a committed transaction, or is the evidence of that; then the retention
        period applies, no matter what refers to it now.
    unmarked : bool
        Whether it can be identified as obsolete by its transaction only: it is removed only if that transaction was
        rolled back. If the transaction was committed, it may be in use without showing up in any listing.
    dropped : str or None
        The dropped table, with its catalog, to which the files belong. No catalog can know if another user still needs
        them, so they are removed only if a user names the table (``twophase clean --purge-dropped``).
    uuid : str or None
        The dropped table's identity, whatever its name: a savepoint whose document has it as ``uuid`` keeps the files.
    """

    kind: str
    location: str
    size: int
    transaction_id: str
    since: float
    kept: str | None = None
    holds_rows: bool = False
    unmarked: bool = False
    dropped: str | None = None
    uuid: str | None = None


@dataclass(frozen=True)
class TableChange:
    """One change of ``ALTER TABLE``.

    Attributes
    ----------
    kind : str
        ``set_property``, ``remove_property``, ``set_comment``, ``add_column``, ``drop_column``, ``rename_column``,
        ``update_column_type``, ``update_column_comment``, ``update_column_nullability``,
        ``update_column_default``, ``move_column``, ``add_partition_field``, ``drop_partition_field``,
        ``replace_partition_field``.
    path : tuple of str
        The column's path, one name per level; empty for changes of the table itself.
    arguments : mapping
        The arguments of this kind: ``key``/``value``, ``field`` (a one-field :class:`pyarrow.Schema`), ``name``,
        ``nullable``, ``comment``, ``default`` (in Spark's SQL; None for none), ``position`` (``first`` or
        ``after:<name>``); ``old`` and ``new``, each a :class:`~twophase.model.Transform`, and ``name``, of a
        partition field.
    """

    kind: str
    path: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Rewrite:
    """The replacement of a table by its own rows, which is how a store makes some changes of its columns.

    Attributes
    ----------
    definition : TableDefinition
        The table's new definition.
    expressions : tuple of str
        Its columns over the old ones, in Spark's SQL.
    replaced : object
        The definition on which this rests: another one after the statement has begun is a conflict.
    """

    definition: TableDefinition
    expressions: tuple[str, ...]
    replaced: Any


class Environment:
    """The services that a host provides to a catalog. The Spark layer subclasses it; tests use it as it is.

    A catalog must raise a clear error if a service that it needs is ``None``.

    Attributes
    ----------
    session_metastore : object or None
        The Spark session's own metastore, behind :class:`twophase.catalogs.hive.metastore.Metastore`.
    table_writer : object or None
        Writes a DataFrame as Spark's own ``INSERT`` does, for formats that ``DataFrameWriter.save``
        cannot write (bucketed tables, Hive SerDes); see :class:`twophase.catalogs.hive.metastore.TableWriter`.
    partition_runner : object or None
        Runs a function over each partition of a DataFrame on the executors, in Arrow batches; see
        :class:`twophase.spark.execution.partitions.SparkPartitions`.
    parquet_writer : object or None
        Writes a DataFrame with Spark's own Parquet writer, with field ids; see
        :class:`twophase.spark.execution.parquet.SparkParquet`.
    file_writer : object or None
        Writes a DataFrame as files that no committer renames, and names those that hold its rows; see
        :class:`twophase.spark.jvm.file_writer.SessionFileWriter`.
    warehouse : str
        Root directory of the default database, as a URI or an absolute path.
    retention : float
        Seconds for which superseded versions are retained for active readers.
    fsync : bool
        Whether staged and published files on local file systems must survive a power failure.
    conf : mapping of str to str
        The session's Spark SQL configuration, read only.
    allows_untested_storage : bool
        Whether tables may be written to untested file systems, that is, to any that are not local.
    has_local_timeline : bool
        Whether the timeline is a file of this machine, so that only tables of local file systems may be written.
    hadoop_files : object or None
        The file systems of the session's Hadoop configuration: :class:`twophase.catalogs.files.hadoop.HadoopFiles`.
    storage_kinds : mapping of str to str
        By scheme, the name of the kind of its file systems, where the user gives one.
    """

    session_metastore: Any = None
    table_writer: Any = None
    partition_runner: Any = None
    parquet_writer: Any = None
    file_writer: Any = None
    warehouse: str = ""
    retention: float = 86_400.0
    fsync: bool = True
    conf: Mapping[str, str] = {}
    allows_untested_storage: bool = False
    has_local_timeline: bool = False
    hadoop_files: Any = None
    storage_kinds: Mapping[str, str] = {}

    def executor_problems(self, modules: Sequence[str]) -> list[str]:
        """Report which of these modules the executors cannot import, and the remedy; for :meth:`Catalog.check`.

        Parameters
        ----------
        modules : sequence of str
            Import names of the modules that the catalog's tasks need.

        Returns
        -------
        list of str
            One sentence per problem; empty if all modules can be imported, or if there are no executors.
        """
        return []

    def has_ended(self, transaction_id: str) -> bool | None:
        """Return whether a transaction has ended, according to the host's timeline.

        Parameters
        ----------
        transaction_id : str

        Returns
        -------
        bool or None
            None if the transaction is unknown here: it may be open on another timeline.
        """
        return None
