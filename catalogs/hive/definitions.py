"""Convert between a statement's :class:`TableDefinition` and the metastore's :class:`HiveTable`; redact secrets."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalog.spark_columns import spark_field
from twophase.catalogs.hive.stamps import BROUGHT, STAMP
from twophase.catalogs.hive.tables import EXTERNAL, HiveTable
from twophase.errors import CatalogError
from twophase.model import BucketSpec, ObjectPath, TableDefinition, Transform
from twophase.redaction import is_secret

#: Formats that ``DataFrameWriter.save`` writes as plain files, so that a directory is a table.
FILE_PROVIDERS = frozenset({"parquet", "orc", "csv", "json", "text", "avro"})
SERDE_PROVIDER = "hive"
PROVIDERS = FILE_PROVIDERS | {SERDE_PROVIDER}
#: Spark's option to read the subdirectories of a table, too.
RECURSIVE = "recursiveFileLookup"

#: Property in which Spark stores the columns of ``CLUSTER BY``.
CLUSTERING = "clusteringColumns"

#: Table property: whether a new table gets field ids; it overrides the catalog's ``field_ids`` option.
FIELD_IDS = "twophase.field_ids"

REDACTED = "*********(redacted)"

#: Properties and options that metastores set themselves.
_BY_METASTORES = frozenset(
    "COLUMN_STATS_ACCURATE EXTERNAL TRANSLATED_TO_EXTERNAL bucketing_version external.table.purge last_modified_by "
    "last_modified_time numFiles numFilesErasureCoded numPartitions numRows rawDataSize serialization.format totalSize "
    "transient_lastDdlTime".split()
)

_TEXT_SERDE = {
    "serde": "org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe",
    "input_format": "org.apache.hadoop.mapred.TextInputFormat",
    "output_format": "org.apache.hadoop.hive.ql.io.HiveIgnoreKeyTextOutputFormat",
}


def complete(definition: TableDefinition, conf: Mapping[str, str]) -> TableDefinition:
    """Complete the definition of a table to create: add Spark's defaults and move partition columns last."""
    provider = (definition.provider or _default_provider(conf)).lower()
    serde = dict(definition.serde)
    if provider == SERDE_PROVIDER and not serde:
        serde = dict(_TEXT_SERDE)
    bucketing, partitioning = _bucketing(definition), tuple(t for t in definition.partitioning if t.name == "identity")
    completed = replace(
        definition,
        provider=provider,
        serde=serde,
        bucketing=bucketing,
        partitioning=partitioning,
        properties=_with_clustering(definition),
        external=False,
    )
    return replace(completed, schema=_partition_columns_last(completed))


def _default_provider(conf: Mapping[str, str]) -> str:
    hive = conf.get("spark.sql.catalogImplementation") == "hive"
    if hive and conf.get("spark.sql.legacy.createHiveTableByDefault", "false") == "true":
        return SERDE_PROVIDER
    return conf.get("spark.sql.sources.default") or "parquet"


def _bucketing(definition: TableDefinition) -> BucketSpec | None:
    """``CLUSTERED BY``, which Spark may also pass as a ``bucket`` transform."""
    for transform in definition.partitioning:
        if transform.name in ("bucket", "sorted_bucket"):
            sorting = transform.arguments[1] if len(transform.arguments) > 1 else ()
            return definition.bucketing or BucketSpec(int(transform.arguments[0]), transform.columns, tuple(sorting))
    return definition.bucketing


def _with_clustering(definition: TableDefinition) -> Mapping[str, str]:
    """The properties, including the one in which Spark's session catalog stores ``CLUSTER BY``."""
    columns = definition.clustering_columns
    if not columns:
        return definition.properties
    return {**definition.properties, CLUSTERING: json.dumps(columns, separators=(",", ":"), ensure_ascii=False)}


def _clustering(properties: Mapping[str, str]) -> tuple[Transform, ...]:
    """``CLUSTER BY`` of a table in the metastore; a property that is not a list of paths is ignored."""
    try:
        columns = json.loads(properties.get(CLUSTERING, "[]"))
        return (Transform.cluster_by(*columns),) if columns else ()
    except (ValueError, TypeError):
        return ()


def _partition_columns_last(definition: TableDefinition) -> pa.Schema:
    """The schema for a metastore: data columns, then partition columns in the order of PARTITIONED BY."""
    keys = [definition.schema.field(name) for name in _as_in_schema(definition)]
    data = [field for field in definition.schema if field not in keys]
    # As in stock Spark, the columns of a table created from a query are nullable.
    return pa.schema([field.with_nullable(True) for field in [*data, *keys]])


def to_table(path: ObjectPath, definition: TableDefinition, *, kind: str, location: str) -> HiveTable:
    """Convert a completed definition to the metastore's table."""
    return HiveTable(
        database=path.database,
        name=path.name,
        kind=kind,
        schema=definition.schema,
        provider=definition.written_provider or definition.provider,
        location=location,
        partition_columns=_as_in_schema(definition),
        bucketing=definition.bucketing,
        serde=definition.serde,
        options=definition.options,
        properties=definition.properties,
        comment=definition.comment,
    )


def _as_in_schema(definition: TableDefinition) -> tuple[str, ...]:
    """The partition columns, spelled as in the schema; if Spark is case-sensitive, the schema may have both cases."""
    names = {name: name for name in definition.schema.names}
    lowered = {name.lower(): name for name in names}
    return tuple(names.get(column) or lowered[column.lower()] for column in definition.partition_columns)


def to_definition(table: HiveTable) -> TableDefinition:
    """Convert the metastore's table to a definition, without our stamp and without Spark's additions for Hive."""
    serde = table.provider == SERDE_PROVIDER
    return TableDefinition(
        schema=table.schema,
        provider=table.provider,
        partitioning=(*map(Transform.identity, table.partition_columns), *_clustering(table.properties)),
        bucketing=table.bucketing,
        comment=table.comment,
        properties={key: value for key, value in table.properties.items() if key not in (STAMP, BROUGHT)},
        options={key: value for key, value in table.options.items() if serde or key != "serialization.format"},
        location=table.location,
        external=table.kind == EXTERNAL,
        serde=table.serde if serde else {},
    )


# -- comparing ---------------------------------------------------------------------------------------------------------


def same_layout(one: TableDefinition, other: TableDefinition) -> bool:
    """Whether files written for one definition can be read with the other: same columns, format and options."""
    return (
        columns(one.schema) == columns(other.schema)
        and same_partition_columns(one, other)
        and (one.provider, one.bucketing, _how_read(one), dict(one.serde))
        == (other.provider, other.bucketing, _how_read(other), dict(other.serde))
    )


def _how_read(definition: TableDefinition) -> dict[str, str]:
    """The options, without the one that says where files are, not how they are read."""
    return {key: value for key, value in definition.options.items() if key.lower() != RECURSIVE.lower()}


def is_recursive(options: Mapping[str, str]) -> bool:
    """Whether Spark also reads the subdirectories of a table with these options."""
    return any(key.lower() == RECURSIVE.lower() and value.lower() == "true" for key, value in options.items())


def same_partition_columns(one: TableDefinition, other: TableDefinition) -> bool:
    """Whether both have the same partition columns, of the same types."""
    return _keys(one) == _keys(other)


def _keys(definition: TableDefinition) -> list[tuple[Any, ...]]:
    width = len(definition.partition_columns)
    return [(name.lower(), *rest) for name, *rest in columns(definition.schema)[-width:]] if width else []


def columns(schema: pa.Schema) -> list[tuple[Any, ...]]:
    """Name, type and comment of each column, with Spark's spelling of the type if it is known."""
    return [(field.name, _type(field), (field.metadata or {}).get(b"comment")) for field in schema]


def _type(field: pa.Field) -> str:
    described = spark_field(field)
    if not described:
        return str(field.type)
    # Files are bound by a column's id, if it has one.
    number = described.get("metadata", {}).get("parquet.field.id")
    return json.dumps(described["type"], sort_keys=True) + ("" if number is None else f" {number}")


def fingerprint(definition: TableDefinition) -> str:
    """Hash what an ``ALTER TABLE`` changes: columns, comment, properties and options, without what metastores add."""
    facts = [
        [[name, kind, (comment or b"").decode()] for name, kind, comment in columns(definition.schema)],
        definition.partition_columns,
        definition.comment or "",
        *(
            sorted((key, value) for key, value in texts.items() if key not in _BY_METASTORES)
            for texts in (definition.properties, _how_read(definition))
        ),
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def has_ids(definition: TableDefinition) -> bool:
    """Whether the Parquet files of a table are read by field ids."""
    return definition.provider == "parquet" and definition.properties.get(FIELD_IDS) == "true"


def ids_unknown(path: ObjectPath, what: str) -> CatalogError:
    """The error of a table that is read by field ids, of which the metastore tells nothing."""
    return CatalogError(
        f"{path} was not {what}: its columns are read by field ids ({FIELD_IDS}), which HiveServer2 does not tell.",
        path=path,
        hint="Use a session whose own metastore is the server's, in which the table is not one of another catalog.",
    )


# -- redaction ---------------------------------------------------------------------------------------------------------


def has_secrets(definition: TableDefinition, conf: Mapping[str, str]) -> bool:
    """Whether an option or property looks like a secret, to twophase or to Spark's redaction."""
    return redacted(definition, conf) != definition


def redacted(definition: TableDefinition, conf: Mapping[str, str]) -> TableDefinition:
    """Replace the secrets of a definition by a marker."""
    if not definition.options and not definition.properties:
        return definition
    pattern = conf.get("spark.redaction.regex")
    named = re.compile(pattern) if pattern else None

    def hidden(texts: Mapping[str, str]) -> dict[str, str]:
        return {
            key: REDACTED if is_secret(key, value) or (named and named.search(key)) else value
            for key, value in texts.items()
        }

    return replace(definition, options=hidden(definition.options), properties=hidden(definition.properties))


def is_redacted(definition: TableDefinition) -> bool:
    """Whether a secret was removed from this definition."""
    return REDACTED in (*definition.options.values(), *definition.properties.values())


def with_secrets(definition: TableDefinition, source: TableDefinition) -> TableDefinition:
    """Fill in a redacted definition with the secrets of another one."""

    def shown(texts: Mapping[str, str], known: Mapping[str, str]) -> dict[str, str]:
        return {key: known.get(key, value) if value == REDACTED else value for key, value in texts.items()}

    return replace(
        definition,
        options=shown(definition.options, source.options),
        properties=shown(definition.properties, source.properties),
    )
