"""The private Spark names that looking into a ``DataFrameWriter`` needs: a part of :mod:`twophase.spark.jvm.bridge`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from twophase.model import quote
from twophase.spark.jvm.bridge import private_name


@dataclass(frozen=True, slots=True)
class WriterFacts:
    """What a job has told its ``DataFrameWriter``.

    Attributes
    ----------
    source : str
        The format.
    mode : str
        ``Append``, ``Overwrite``, ``ErrorIfExists`` or ``Ignore``.
    partition_columns : tuple of str or None
        None where ``partitionBy`` was not called.
    bucketing : tuple or None
        Number of buckets, bucket columns, sort columns.
    clustering_columns : tuple of str or None
        As the job wrote them; None where ``clusterBy`` was not called.
    options : dict
        Keys as the job wrote them.
    """

    source: str
    mode: str
    partition_columns: tuple[str, ...] | None = None
    bucketing: tuple[int, tuple[str, ...], tuple[str, ...]] | None = None
    clustering_columns: tuple[str, ...] | None = None
    options: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str | None:
        """The option ``path``: where an external table is to be."""
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
def without_layout(spark: Any, writer: Any) -> Iterator[None]:
    """Make a Java ``DataFrameWriter`` forget its partitions, buckets and clustering for a while."""
    fields = ("partitioningColumns", "numBuckets", "bucketColumnNames", "sortColumnNames", "clusteringColumns")
    with private_name("DataFrameWriter.partitioningColumns", spark):
        before = {name: getattr(writer, name)() for name in fields}
        nothing = spark._jvm.scala.Option.empty()
        for name in fields:
            getattr(writer, f"{name}_$eq")(nothing)
    try:
        yield
    finally:
        for name, value in before.items():
            getattr(writer, f"{name}_$eq")(value)


@contextmanager
def quoted_partitions(spark: Any, writer: Any) -> Iterator[None]:
    """Quote the partition columns of a Java ``DataFrameWriter`` for a while: for a v2 catalog Spark parses them."""
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


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """What Spark compares a ``saveAsTable`` in append mode with."""

    columns: tuple[str, ...]
    bucketing: tuple[int, tuple[str, ...], tuple[str, ...]] | None
    #: As JSON, a list of names for each column.
    clustering: str | None
    location: str | None


def stored_facts(spark: Any, table: Any) -> StoredFacts:
    """Read a ``CatalogTable``."""
    with private_name("CatalogTable.bucketSpec", spark):
        bucketing, location = table.bucketSpec(), table.storage().locationUri()
        clustering = table.properties().get("clusteringColumns")
        return StoredFacts(
            tuple(str(name) for name in table.schema().fieldNames()),
            _bucketing(bucketing.get()) if bucketing.isDefined() else None,
            str(clustering.get()) if clustering.isDefined() else None,
            str(location.get().toString()) if location.isDefined() else None,
        )


def qualified(spark: Any, path: str) -> str:
    """A path with its scheme, as Spark's session catalog stores it."""
    with private_name("Hadoop Path", spark):
        hadoop = spark._jvm.org.apache.hadoop.fs.Path(path)
        files = hadoop.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf())
        return str(hadoop.makeQualified(files.getUri(), files.getWorkingDirectory()).toUri().toString())


def _bucketing(specification: Any) -> tuple[int, tuple[str, ...], tuple[str, ...]]:
    columns, sort = specification.bucketColumnNames(), specification.sortColumnNames()
    return int(specification.numBuckets()), _strings(columns), _strings(sort)


def _names(option: Any) -> tuple[str, ...] | None:
    return _strings(option.get()) if option.isDefined() else None


def _strings(sequence: Any) -> tuple[str, ...]:
    return () if sequence.isEmpty() else tuple(str(sequence.mkString("\0")).split("\0"))


def _options(spark: Any, writer: Any) -> dict[str, str]:
    entries = spark._jvm.scala.jdk.javaapi.CollectionConverters.asJava(writer.extraOptions().originalMap())
    return {str(entry.getKey()): str(entry.getValue()) for entry in entries.entrySet()}
