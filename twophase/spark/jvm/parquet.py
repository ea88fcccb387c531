"""Spark's own Parquet reader over files that are named one by one, by field ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from twophase.spark.jvm.bridge import Jvm, private_name

_OPTIONS = {
    # Brackets and stars in a name are not patterns.
    "__globPaths__": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}


def parquet_scan(jvm: Jvm, locations: Sequence[str], schema: str, wanted: str, predicates: Sequence[Any]) -> Any:
    """A ``ParquetScan``: vectorised, and split as Spark splits files.

    Parameters
    ----------
    jvm : Jvm
    locations : sequence of str
        Of the files; there may be none.
    schema, wanted : str
        JSON of the table's and of the read's ``StructType``, with field ids.
    predicates : sequence of Java ``Predicate``
        What the reader may leave row groups out by; it finds columns by the names that they have in the files.
    """
    facts = {**_OPTIONS, "paths": json.dumps(list(locations))}
    with private_name("ParquetScanBuilder.pruneColumns", jvm.spark):
        builder = jvm.file_source("parquet", schema, facts).newScanBuilder(
            jvm.kind("org.apache.spark.sql.util.CaseInsensitiveStringMap")(jvm.map(facts))
        )
        builder.pruneColumns(jvm.struct(wanted))
    filters = [found for found in (_filter(jvm, predicate) for predicate in predicates) if found is not None]
    with private_name("ParquetScanBuilder.pushedDataFilters_$eq", jvm.spark):
        getattr(builder, "pushedDataFilters_$eq")(jvm.array("org.apache.spark.sql.sources.Filter", filters))
        return builder.build()


def _filter(jvm: Jvm, predicate: Any) -> Any | None:
    with private_name("PredicateUtils.toV1", jvm.spark):
        found = jvm.kind("org.apache.spark.sql.internal.connector.PredicateUtils").toV1(predicate)
    return found.get() if found.isDefined() else None


def table_frame(jvm: Jvm, table: Any) -> Any:
    """The rows of a ``Table`` that need not be in any catalog, as a DataFrame."""
    none = jvm.option(None)
    with private_name("DataSourceV2Relation.create", jvm.spark):
        relation = jvm.kind("org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation")
        options = jvm.kind("org.apache.spark.sql.util.CaseInsensitiveStringMap").empty()
        found = relation.create(table, none, none, options, *[none] * (_width(relation, "create") - 4))
    return jvm.frame_of(found)


def _width(kind: Any, method: str) -> int:
    """The most parameters that an overload of a method takes; newer versions of Spark have added some."""
    found = kind._java_lang_class.getMethods()
    return max(int(one.getParameterCount()) for one in found if str(one.getName()) == method)
