"""The environment that an attached Spark session provides to its catalogs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from twophase.catalog import Environment
from twophase.spark.execution.executors import executor_problems
from twophase.spark.execution.parquet import SparkParquet
from twophase.spark.execution.partitions import SparkPartitions
from twophase.spark.jvm import session_state
from twophase.spark.jvm.file_writer import SessionFileWriter
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.hadoop_files import SessionHadoopFiles
from twophase.spark.options import Options


class SessionConfiguration(Mapping[str, str]):
    """The session's current configuration, read only."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def __getitem__(self, key: str) -> str:
        value = self._jvm.spark.conf.get(key, None)
        if value is None:
            raise KeyError(key)
        return str(value)

    def __iter__(self) -> Iterator[str]:
        return iter(session_state.settings(self._jvm))

    def __len__(self) -> int:
        return len(session_state.settings(self._jvm))

    def __repr__(self) -> str:
        # Values may be secrets.
        return f"<{type(self).__name__}>"


class SessionEnvironment(Environment):
    """The environment of the catalogs of one session.

    Parameters
    ----------
    jvm : Jvm
    settings : Options
        The settings of the session's configuration.
    has_ended : callable
        Implements :meth:`has_ended`.
    """

    def __init__(self, jvm: Jvm, settings: Options, has_ended: Callable[[str], bool | None]) -> None:
        self._has_ended = has_ended
        self._spark = jvm.spark
        self._jvm = jvm
        self.retention = settings.retention
        self.fsync = settings.fsync
        self.allows_untested_storage = settings.untested_storage
        self.has_local_timeline = settings.has_local_timeline
        self.storage_kinds = settings.storage
        self.hadoop_files = SessionHadoopFiles(jvm)
        self.file_writer = SessionFileWriter(jvm)
        self.warehouse = str(jvm.spark.conf.get("spark.sql.warehouse.dir"))
        self.conf = SessionConfiguration(jvm)
        self.partition_runner = SparkPartitions()
        self.parquet_writer = SparkParquet()

    @cached_property
    def session_metastore(self) -> Any:
        """The session's own metastore; connected at first use."""
        from twophase.spark.metastore.session import SessionMetastore

        return SessionMetastore(self._spark, self._jvm)

    @cached_property
    def table_writer(self) -> Any:
        """Spark's own writer of session tables."""
        from twophase.spark.routing.table_writer import SessionTableWriter

        return SessionTableWriter(self._spark)

    def executor_problems(self, modules: Sequence[str]) -> list[str]:
        return executor_problems(self._spark, modules)

    def has_ended(self, transaction_id: str) -> bool | None:
        return self._has_ended(transaction_id)
