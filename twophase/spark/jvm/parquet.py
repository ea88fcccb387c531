"""Spark's own Parquet reader for a list of files, by field ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from twophase.spark.jvm import frames, tables, values
from twophase.spark.jvm.gateway import Jvm, private_name

_OPTIONS = {
    # Brackets and stars in a name are not patterns.
    "__globPaths__": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.fieldId.read.ignoreMissing": "false",
    "datetimeRebaseMode": "CORRECTED",
    "int96RebaseMode": "CORRECTED",
}


def parquet_scan(jvm: Jvm, locations: Sequence[str], schema: str, wanted: str, predicates: Sequence[Any]) -> Any:
    """A ``ParquetScan``: vectorised, with Spark's own file splits.

    Parameters
    ----------
    jvm : Jvm
    locations : sequence of str
        Paths of the files; may be empty.
    schema, wanted : str
        JSON of the table's and of the read's ``StructType``, with field ids.
    predicates : sequence of Java ``Predicate``
        Conditions for skipping row groups; columns are found by their names in the files.
    """
    facts = {**_OPTIONS, "paths": json.dumps(list(locations))}
    with private_name("ParquetScanBuilder.pruneColumns", jvm.spark):
        builder = tables.file_source(jvm, "parquet", schema, facts).newScanBuilder(
            jvm.kind("org.apache.spark.sql.util.CaseInsensitiveStringMap")(values.java_map(jvm, facts))
        )
        builder.pruneColumns(tables.struct(jvm, wanted))
    filters = [found for found in (_filter(jvm, predicate) for predicate in predicates) if found is not None]
    with private_name("ParquetScanBuilder.pushedDataFilters_$eq", jvm.spark):
        getattr(builder, "pushedDataFilters_$eq")(values.array(jvm, "org.apache.spark.sql.sources.Filter", filters))
        return builder.build()


def _filter(jvm: Jvm, predicate: Any) -> Any | None:
    with private_name("PredicateUtils.toV1", jvm.spark):
        found = jvm.kind("org.apache.spark.sql.internal.connector.PredicateUtils").toV1(predicate)
    return found.get() if found.isDefined() else None


def table_frame(jvm: Jvm, table: Any) -> Any:
    """The rows of a ``Table``, which need not be in any catalog, as a DataFrame."""
    none = values.option(jvm, None)
    with private_name("DataSourceV2Relation.create", jvm.spark):
        relation = jvm.kind("org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation")
        options = jvm.kind("org.apache.spark.sql.util.CaseInsensitiveStringMap").empty()
        found = relation.create(table, none, none, options, *[none] * (_width(relation, "create") - 4))
    return frames.frame_of(jvm, found)


def _width(kind: Any, method: str) -> int:
    """The largest number of parameters of a method's overloads; newer versions of Spark have added some."""
    found = kind._java_lang_class.getMethods()
    return max(int(one.getParameterCount()) for one in found if str(one.getName()) == method)
