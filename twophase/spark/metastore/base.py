"""Common base of the parts of the session's metastore: its Spark catalogs, and values of the JVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twophase.catalogs.hive.metastore import Metastore
from twophase.spark import types
from twophase.spark.jvm import hive as jvm_hive
from twophase.spark.jvm import metastore as jvm_metastore
from twophase.spark.jvm import session_state, tables, values
from twophase.spark.jvm.caches import TableCaches
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.partitions import PartitionTexts
from twophase.spark.jvm.table_events import OwnChanges

_CATALOG = "org.apache.spark.sql.catalyst.catalog."
#: The parts of a Hive format, and Spark's fields for them.
SERDE_FIELDS = {"serde": "serde", "input_format": "inputFormat", "output_format": "outputFormat"}


class SessionStore(Metastore):
    """The session's catalogs, and conversions of simple values.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.
    jvm : Jvm, optional
        Its JVM, if available: values that were fetched once are then shared.
    """

    def __init__(self, spark: Any, jvm: Jvm | None = None) -> None:
        self._spark = spark
        self._jvm = jvm or Jvm(spark)
        self._version = str(spark.version)
        self._catalog = jvm_metastore.external_catalog(spark)
        self._own = OwnChanges(self._jvm, self._catalog)
        self._hive = jvm_hive.hive_tables(self._jvm)
        self._caches = TableCaches(self._jvm)
        self._case = jvm_metastore.case_classes(self._jvm)
        self._texts = PartitionTexts(self._jvm)

    @property
    def is_hive(self) -> bool:
        """Whether the session uses a Hive metastore."""
        return self._hive is not None

    def _struct(self, schema: Any) -> Any:
        return tables.struct(self._jvm, types.from_arrow(schema))

    def _identifier(self, database: str, name: str) -> Any:
        return session_state.table_identifier(self._jvm, database, name)

    def _kind(self, kind: str) -> Any:
        return session_state.table_type(self._jvm, kind)

    def _session_catalog(self) -> Any:
        return self._spark._jsparkSession.sessionState().catalog()

    def _uri(self, location: str | None) -> Any | None:
        return None if location is None else self._jvm.static(_CATALOG + "CatalogUtils", "stringToURI")(location)

    def _option(self, value: Any | None) -> Any:
        return values.option(self._jvm, value)

    def _none(self) -> Any:
        return values.option(self._jvm, None)

    def _seq(self, items: Sequence[Any]) -> Any:
        return values.seq(self._jvm, items)

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


def mentions(error: Exception, *marks: str) -> bool:
    text = words(error)
    return any(mark in text for mark in marks)


def words(error: Exception) -> str:
    origin = getattr(error, "java_exception", None)
    return str(origin.toString()) if origin is not None else str(error)
