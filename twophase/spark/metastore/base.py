"""What every part of the session's metastore stands on: its Spark catalogs, and values of the JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twophase.catalogs.hive.metastore import Metastore
from twophase.spark import types
from twophase.spark.jvm import hive as jvm_hive
from twophase.spark.jvm import metastore as jvm_metastore
from twophase.spark.jvm.bridge import Jvm
from twophase.spark.jvm.caches import TableCaches
from twophase.spark.jvm.partitions import PartitionTexts

_CATALOG = "org.apache.spark.sql.catalyst.catalog."
#: The parts of a Hive format, and Spark's fields for them.
SERDE_FIELDS = {"serde": "serde", "input_format": "inputFormat", "output_format": "outputFormat"}


class SessionStore(Metastore):
    """The session's catalogs, and their small values.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.
    jvm : Jvm, optional
        Its JVM, where it is at hand: what has been fetched once is shared then.
    """

    def __init__(self, spark: Any, jvm: Jvm | None = None) -> None:
        self._spark = spark
        self._jvm = jvm or Jvm(spark)
        self._version = str(spark.version)
        self._catalog = jvm_metastore.external_catalog(spark)
        self._hive = jvm_hive.hive_tables(self._jvm)
        self._caches = TableCaches(self._jvm)
        self._case = jvm_metastore.case_classes(self._jvm)
        self._texts = PartitionTexts(self._jvm)

    @property
    def is_hive(self) -> bool:
        """Whether a Hive metastore is behind the session."""
        return self._hive is not None

    def _struct(self, schema: Any) -> Any:
        return self._jvm.struct(types.from_arrow(schema))

    def _identifier(self, database: str, name: str) -> Any:
        return self._jvm.table_identifier(database, name)

    def _kind(self, kind: str) -> Any:
        return self._jvm.table_type(kind)

    def _session_catalog(self) -> Any:
        return self._spark._jsparkSession.sessionState().catalog()

    def _uri(self, location: str | None) -> Any | None:
        return None if location is None else self._jvm.static(_CATALOG + "CatalogUtils", "stringToURI")(location)

    def _option(self, value: Any | None) -> Any:
        return self._jvm.option(value)

    def _none(self) -> Any:
        return self._jvm.option(None)

    def _seq(self, items: Sequence[Any]) -> Any:
        return self._jvm.seq(items)

    def _map(self, entries: Mapping[str, str]) -> Any:
        return self._texts.map(entries)


def items(seq: Any) -> list[Any]:
    return [seq.apply(index) for index in range(seq.size())]


def strings(seq: Any) -> list[str]:
    return [str(item) for item in items(seq)]


def spark_errors() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return (Py4JJavaError, PySparkException)


def tells(error: Exception, *marks: str) -> bool:
    text = words(error)
    return any(mark in text for mark in marks)


def words(error: Exception) -> str:
    origin = getattr(error, "java_exception", None)
    return str(origin.toString()) if origin is not None else str(error)
