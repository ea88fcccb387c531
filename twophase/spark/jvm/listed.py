"""Spark's own readers for files that were listed already, in the partitions of a metastore."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from twophase.catalog.reading import FileList
from twophase.model import ObjectPath
from twophase.spark.jvm import session_state, tables, values
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object
from twophase.spark.jvm.metastore import case_classes
from twophase.spark.jvm.partitions import PartitionTexts

_INDEX = "org.apache.spark.sql.execution.datasources.InMemoryFileIndex"
#: By default, the index of a table without partitions looks at the directories of its files.
_ALL = {"recursiveFileLookup": "true"}
#: The fields of a partition that its values do not depend on.
_PARTITION = {
    "storage": {"compressed": False, "properties": {}, "locationUri": None},
    "parameters": {},
    "createTime": 0,
    "lastAccessTime": -1,
    "stats": None,
}


def listed_scan_builder(
    jvm: Jvm, provider: str, listed: FileList, schema_json: str, table_options: Mapping[str, str], options: Any
) -> Any:
    """The ``ScanBuilder`` of a format's own file source for a list of files.

    Parameters
    ----------
    jvm : Jvm
    provider : str
    listed : FileList
    schema_json : str
        All columns of the table, partition columns last.
    table_options : mapping of str to str
        The table's own options to read with.
    options : Any
        Spark's ``CaseInsensitiveStringMap`` with the options of the read.
    """
    index = listed_index(jvm, listed, schema_json, table_options)
    return _builder(jvm, provider, index, schema_json, listed.partition_columns, table_options, options)


def checked_scan_builder(
    jvm: Jvm,
    provider: str,
    name: ObjectPath,
    schema_json: str,
    partition_columns: Sequence[str],
    table_options: Mapping[str, str],
    options: Any,
    former: Any,
    transaction_id: str,
) -> Any:
    """The ``ScanBuilder`` of a session table, whose files are listed when the query runs.

    Parameters
    ----------
    jvm : Jvm
    provider : str
    name : ObjectPath
    schema_json : str
        All columns of the table, partition columns last.
    partition_columns : sequence of str
    table_options : mapping of str to str
        The table's own options to read with.
    options : Any
        Spark's ``CaseInsensitiveStringMap`` with the options of the read.
    former : Any
        A ``java.util.function.Supplier``, called after each listing: it returns null, or the index of other files, by
        :func:`listed_index`, to be read instead.
    transaction_id : str
        The transaction whose state of the table is read.
    """
    table = session_state.session_table(jvm, name.database, name.name)
    with private_name("CatalogFileIndex", jvm.spark):
        size = _size(jvm, table, partition_columns)
        _, columns = _structs(jvm, schema_json, partition_columns)
        facts = values.scala_map(jvm, table_options)
        files = java_object(jvm, "CheckedFiles", jvm.session, table, columns, facts, str(size))
        index = files.otherwise(former, transaction_id)
        return _builder(jvm, provider, index, schema_json, partition_columns, table_options, options)


def _size(jvm: Jvm, table: Any, partition_columns: Sequence[str]) -> Any:
    """The bytes of a ``CatalogTable`` as Spark's planner estimates them."""
    stats = table.stats()
    if stats.isDefined():
        return stats.get().sizeInBytes()
    return jvm.session.sessionState().conf().defaultSizeInBytes() if partition_columns else -1


def _builder(
    jvm: Jvm,
    provider: str,
    index: Any,
    schema_json: str,
    partition_columns: Sequence[str],
    table_options: Mapping[str, str],
    options: Any,
) -> Any:
    facts = {**table_options, "paths": "[]", "__globPaths__": "false"}
    empty = tables.file_source(jvm, provider, schema_json, facts).newScanBuilder(options)
    data, _ = _structs(jvm, schema_json, partition_columns)
    whole = tables.struct(jvm, schema_json)
    return case_classes(jvm).copy(empty, fileIndex=index, schema=whole, dataSchema=data)


def _structs(jvm: Jvm, schema_json: str, partition_columns: Sequence[str]) -> tuple[Any, Any]:
    """The data columns and the partition columns."""
    schema, keys = json.loads(schema_json), {column.lower() for column in partition_columns}
    data = [field for field in schema["fields"] if field["name"].lower() not in keys]
    partitions = [field for field in schema["fields"] if field["name"].lower() in keys]
    both = (json.dumps({**schema, "fields": fields}) for fields in (data, partitions))
    one, other = (tables.struct(jvm, text) for text in both)
    return one, other


def listed_index(jvm: Jvm, listed: FileList, schema_json: str, table_options: Mapping[str, str]) -> Any:
    """Spark's ``InMemoryFileIndex`` of a list of files; for the parameters, see :func:`listed_scan_builder`."""
    with private_name("InMemoryFileIndex", jvm.spark):
        _, columns = _structs(jvm, schema_json, listed.partition_columns)
        return _index(jvm, listed, columns, table_options)


def _index(jvm: Jvm, listed: FileList, partition_columns: Any, table_options: Mapping[str, str]) -> Any:
    files = java_object(jvm, "ListedFiles", json.dumps(listed.files))
    specs = (dict(zip(listed.partition_columns, key, strict=True)) for key, _ in listed.partitions)
    found = PartitionTexts(jvm).partitions({**_PARTITION, "spec": spec} for spec in specs)
    directories = json.dumps([location for _, location in listed.partitions])
    zone = str(jvm.session.sessionState().conf().sessionLocalTimeZone())
    spec = files.partitions(found, directories, partition_columns, zone)
    none = values.option(jvm, None)
    facts = values.scala_map(jvm, {**table_options, **({} if listed.partition_columns else _ALL)})
    return jvm.kind(_INDEX)(jvm.session, files.roots(), facts, none, files, values.option(jvm, spec), none)
