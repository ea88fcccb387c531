"""The settings of a ``DataFrameWriter``, read from its JVM side."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from twophase.model import quote
from twophase.spark.jvm.gateway import private_name


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """The settings that a job has given its ``DataFrameWriter``.

    Attributes
    ----------
    source : str
        The format.
    mode : str
        ``Append``, ``Overwrite``, ``ErrorIfExists`` or ``Ignore``.
    partition_columns : tuple of str or None
        None if ``partitionBy`` was not called.
    bucketing : tuple or None
        Number of buckets, bucket columns, sort columns.
    clustering_columns : tuple of str or None
        As written by the job; None if ``clusterBy`` was not called.
    options : dict
        Keys as written by the job.
    """

    source: str
    mode: str
    partition_columns: tuple[str, ...] | None = None
    bucketing: tuple[int, tuple[str, ...], tuple[str, ...]] | None = None
    clustering_columns: tuple[str, ...] | None = None
    options: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str | None:
        """The option ``path``: the location of an external table."""
        return next((value for key, value in self.options.items() if key.lower() == "path"), None)


def writer_facts(spark: Any, writer: Any) -> WriterFacts:
    """Read a Java ``DataFrameWriter``."""
    with private_name("DataFrameWriter.source", spark):
        count = writer.numBuckets()
        return WriterFacts(
            str(writer.source()),
            str(writer.curmode().name()),
            _names(writer.partitioningColumns()),
            (int(count.get()), _names(writer.bucketColumnNames()) or (), _names(writer.sortColumnNames()) or ())
            if count.isDefined()
            else None,
            _names(writer.clusteringColumns()),
            _options(spark, writer),
        )


@contextmanager
def quoted_partitions(spark: Any, writer: Any) -> Iterator[None]:
    """Quote the partition columns of a Java ``DataFrameWriter`` temporarily: for a v2 catalog Spark parses them."""
    with private_name("DataFrameWriter.partitioningColumns", spark):
        before = writer.partitioningColumns()
        names = _names(before)
        set_names = getattr(writer, "partitioningColumns_$eq")
        if names:
            set_names(spark._jvm.scala.Option.apply(spark._jvm.PythonUtils.toSeq([quote(name) for name in names])))
    try:
        yield
    finally:
        set_names(before)


def qualified(spark: Any, path: str) -> str:
    """A path with its scheme, as Spark's session catalog stores it."""
    with private_name("Hadoop Path", spark):
        hadoop = spark._jvm.org.apache.hadoop.fs.Path(path)
        files = hadoop.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        return str(hadoop.makeQualified(files.getUri(), files.getWorkingDirectory()).toUri().toString())


def _names(option: Any) -> tuple[str, ...] | None:
    return _strings(option.get()) if option.isDefined() else None


def _strings(sequence: Any) -> tuple[str, ...]:
    return () if sequence.isEmpty() else tuple(str(sequence.mkString("\0")).split("\0"))


def _options(spark: Any, writer: Any) -> dict[str, str]:
    entries = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(writer.extraOptions().originalMap())
    return {str(entry.getKey()): str(entry.getValue()) for entry in entries.entrySet()}
