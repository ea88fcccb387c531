"""The settings of a ``DataFrameWriter``, read from its JVM side."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from twophase.model import quote
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object


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


def writer_facts(jvm: Jvm, writer: Any) -> WriterFacts:
    """Read a Java ``DataFrameWriter``, in one call (``java/WriterSettings.java``)."""
    reader = jvm.once(("WriterSettings",), lambda: java_object(jvm, "WriterSettings"))
    with private_name("DataFrameWriter.source", jvm.spark):
        facts = json.loads(str(reader.read(writer)))
    buckets = facts["buckets"]
    return WriterFacts(
        facts["source"],
        facts["mode"],
        _names(facts["partition_columns"]),
        (buckets, _names(facts["bucket_columns"]) or (), _names(facts["sort_columns"]) or ()) if buckets else None,
        _names(facts["clustering_columns"]),
        facts["options"],
    )


@contextmanager
def quoted_partitions(spark: Any, writer: Any, columns: Sequence[str] | None) -> Iterator[None]:
    """Quote the partition columns of a Java ``DataFrameWriter`` temporarily: for a v2 catalog Spark parses them."""
    if not columns:
        yield
        return
    with private_name("DataFrameWriter.partitioningColumns", spark):
        before = writer.partitioningColumns()
        set_names = getattr(writer, "partitioningColumns_$eq")
        set_names(spark._jvm.scala.Option.apply(spark._jvm.PythonUtils.toSeq([quote(name) for name in columns])))
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


def _names(columns: list[str] | None) -> tuple[str, ...] | None:
    return None if columns is None else tuple(columns)
