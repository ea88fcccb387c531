"""The formats of SerDe tables: ``STORED AS`` and the options of ``USING hive``, completed as by Spark.

Spark completes such a table only if its own session catalog creates it (rule ``ResolveHiveSerdeTable``); another
catalog receives only what the statement contains.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from twophase.errors import CatalogError
from twophase.model import TableDefinition
from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm, private_name

#: The setting with the format of SerDe tables whose statement names none, and its default.
DEFAULT_FORMAT, TEXT = "hive.default.fileformat", "textfile"
_FIELDS = {"serde": "serde", "input_format": "inputFormat", "output_format": "outputFormat"}
_LAZY_SIMPLE = "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"


def short_name(spark: Any, provider: str) -> str:
    """The short name, in lower case, of a format that may be given as a class name."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    if "." not in provider:
        return provider.lower()
    with private_name("DataSource.lookupDataSource", spark):
        try:
            source = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
                provider, spark._jsparkSession.sessionState().conf()
            )
            return str(source.newInstance().shortName()).lower()
        except (Py4JJavaError, PySparkException):  # There is no such class, or it has no short name.
            return provider.lower()


def has_source(spark: Any, provider: str) -> bool:
    """Return whether Spark finds a data source of this name."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    with private_name("DataSource.lookupDataSource", spark):
        try:
            spark._jvm.org.apache.spark.sql.execution.datasources.DataSource.lookupDataSource(
                provider, spark._jsparkSession.sessionState().conf()
            )
        except (Py4JJavaError, PySparkException):
            return False
        return True


def hive_format(jvm: Jvm, word: str) -> dict[str, str]:
    """``serde``, ``input_format`` and ``output_format`` of a word of ``STORED AS``; empty for an unknown one."""
    return jvm.once(("HiveSerDe", word), lambda: _of_word(jvm, word))


def _of_word(jvm: Jvm, word: str) -> dict[str, str]:
    with private_name("HiveSerDe.sourceToSerDe", jvm.spark):
        found = jvm.kind("org.apache.spark.sql.internal.HiveSerDe").sourceToSerDe(word)
        return {} if found.isEmpty() else _fields(found.get())


def _fields(facts: object) -> dict[str, str]:
    parts = {name: getattr(facts, field)() for name, field in _FIELDS.items()}
    return {name: str(value.get()) for name, value in parts.items() if value.isDefined()}


def with_hive_format(jvm: Jvm, definition: TableDefinition, default: Callable[[], str | None]) -> TableDefinition:
    """The definition of a SerDe table with all three parts of its format; any other definition unchanged.

    Parameters
    ----------
    jvm : Jvm
    definition : TableDefinition
    default : callable
        Returns the session's ``hive.default.fileformat``.

    Raises
    ------
    CatalogError
        Its options name a format unknown to Spark, or it is bucketed.
    py4j.protocol.Py4JJavaError
        Spark's own error for the options.
    """
    if (definition.provider or "").lower() != "hive":
        return definition
    usual = {"serde": _LAZY_SIMPLE, **hive_format(jvm, TEXT), **hive_format(jvm, default() or TEXT)}
    if definition.serde:
        return replace(definition, serde={**usual, **definition.serde})
    if definition.bucketing is not None:
        raise CatalogError("A bucketed table USING hive cannot be made, as in Spark itself.", hint="Say STORED AS.")
    with private_name("HiveOptions", jvm.spark):
        options = jvm.kind("org.apache.spark.sql.hive.execution.HiveOptions")(values.scala_map(jvm, definition.options))
        word = options.fileFormat()
        said = _of_options(jvm, str(word.get())) if word.isDefined() else {}
        settings = values.entries(jvm, options.serdeProperties())
        return replace(definition, serde={**usual, **said, **_fields(options)}, options=settings)


def _of_options(jvm: Jvm, word: str) -> dict[str, str]:
    found = hive_format(jvm, word)
    if not found:
        raise CatalogError(f"USING hive OPTIONS (fileFormat '{word}'): Spark knows no Hive format of this name.")
    return found
