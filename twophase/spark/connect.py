"""What a Spark Connect client lends the catalogs: the executors of its server. It needs no JVM of its own."""

from __future__ import annotations

from collections.abc import Mapping

from twophase.catalog import Environment
from twophase.spark.parquet import SparkParquet
from twophase.spark.partitions import SparkPartitions

_DAY = 86_400.0


class ConnectEnvironment(Environment):
    """The environment of catalogs that :func:`twophase.create_table_as` writes to over Spark Connect.

    There is no session metastore in it, so that a Hive catalog has to go through HiveServer2.

    Parameters
    ----------
    warehouse : str
        Where a catalog keeps files that has no option for it: a URI or an absolute path that the server has, too.
    retention : float
        Seconds that replaced versions stay for readers in flight.
    conf : mapping of str to str, optional
        What a catalog may ask of Spark's SQL configuration.
    allows_untested_storage : bool
        Whether tables are written on file systems that were not tried: ``spark.twophase.storage.untested=allow``.
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
