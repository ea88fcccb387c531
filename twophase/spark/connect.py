"""The environment that a Spark Connect client provides: the executors of its server, without a JVM of its own."""

from __future__ import annotations

from collections.abc import Mapping

from twophase.catalog import Environment
from twophase.spark.execution.parquet import SparkParquet
from twophase.spark.execution.partitions import SparkPartitions

_DAY = 86_400.0


class ConnectEnvironment(Environment):
    """The environment of catalogs that :func:`twophase.create_table_as` writes to over Spark Connect.

    It contains no session metastore, so that a Hive catalog must use HiveServer2.

    Parameters
    ----------
    warehouse : str
        Default location of a catalog's files: a URI or an absolute path that the server can access, too.
    retention : float
        Seconds for which superseded versions are kept for running readers.
    conf : mapping of str to str, optional
        Entries of Spark's SQL configuration that a catalog may read.
    allows_untested_storage : bool
        Whether tables may be written on untested file systems: ``spark.twophase.storage.untested=allow``.
    """

    def __init__(
        self,
        *,
        warehouse: str = "",
        retention: float = _DAY,
        conf: Mapping[str, str] | None = None,
        allows_untested_storage: bool = False,
    ) -> None:
        self.allows_untested_storage = allows_untested_storage
        self.warehouse = warehouse
        self.retention = retention
        self.conf = dict(conf or {})
        self.partition_runner = SparkPartitions()
        self.parquet_writer = SparkParquet()
