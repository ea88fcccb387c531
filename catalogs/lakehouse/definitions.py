"""Table definitions to and from Iceberg's schemas, partition specs and properties; invalid input is refused early."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.transforms import (
    BucketTransform,
    IdentityTransform,
    TimeTransform,
    TruncateTransform,
    parse_transform,
)
from pyiceberg.transforms import Transform as IcebergTransform

from twophase.catalog.spark_columns import collated_types, spark_field
from twophase.catalogs.lakehouse import sorting
from twophase.catalogs.lakehouse.transforms import TIMES
from twophase.config.settings import nearest
from twophase.errors import CatalogError
from twophase.model import ObjectPath, TableDefinition, Transform
from twophase.schema import Field, Kind, Schema, assign_ids, from_iceberg, to_arrow, to_iceberg
from twophase.schema.convert_arrow import without_ids
from twophase.schema.errors import SchemaError

PROVIDER = "iceberg"
TRANSFORMS = frozenset({"identity", "bucket", "truncate", "years", "months", "days", "hours"})
#: Providers in ``USING`` for this catalog's only format; ``parquet`` is the default of a ``DataFrameWriter``.
_PROVIDERS = (None, PROVIDER, "parquet", "twophase.lakehouse")
#: Options of one table, in ``OPTIONS (...)`` or of a ``DataFrameWriter``.
TABLE_OPTIONS = ("compression",)
#: Options by the Iceberg properties that they set.
_AS_PROPERTY = {"compression": "write.parquet.compression-codec"}
_FORMAT_VERSION = "format-version"
#: Properties by which tables of other catalogs choose changes of type, with the value that holds here.
_POLICIES = {"twophase.promotion": "exact", "twophase.on_cast_failure": "error"}
#: Names that Iceberg shows among the properties, but stores elsewhere.
_NOT_STORED = (_FORMAT_VERSION, sorting.SORT_ORDER)
NAME_MAPPING = "schema.name-mapping.default"

_COMMENT = b"comment"
#: Prefixes of the names of Spark types without a counterpart in Iceberg.
_FOREIGN = ("interval", "variant", "void", "null", "geography", "geometry", "string collate")
FIRST_SPEC_FIELD = 1000
_LONGEST_NAME = 255

_OTHER_WORDS = {"date": "day", "date_hour": "hour"}


# -- names -------------------------------------------------------------------------------------------------------------


def check_name(name: str, what: str, path: object) -> None:
    """Refuse a name that other Iceberg engines would split, or cannot read.

    Raises
    ------
    CatalogError
    """
    problem = None
    if "." in name:
        problem = "a dot separates names in an Iceberg catalog"
    elif name != name.strip() or not name.isprintable():
        problem = "it begins or ends with a space, or has characters that cannot be printed"
    elif len(name) > _LONGEST_NAME:
        problem = f"it is longer than {_LONGEST_NAME} characters"
    if problem:
        raise CatalogError(f"{name!r} cannot be the name of a {what} here: {problem}.", path=path)


# -- definitions to Iceberg --------------------------------------------------------------------------------------------


def check(path: ObjectPath, definition: TableDefinition) -> None:
    """Refuse a definition that an Iceberg table does not support, before any work.

    Raises
    ------
    CatalogError
        A layout, an option, a property, or a column's name or type is not supported.
    """
    _check_layout(path, definition)
    for key, value in definition.properties.items():
        check_policy(path, "made", key, value)
    _check_columns(path, definition.schema)
    schema = to_schema(path, definition)
    to_spec(path, schema, definition.partitioning)
    to_sort_order(path, to_iceberg(schema), definition.properties)


def _check_layout(path: ObjectPath, definition: TableDefinition) -> None:
    problem = None
    if definition.provider not in _PROVIDERS:
        problem = f"its files are Parquet below Iceberg metadata, not {definition.provider}"
    elif definition.bucketing:
        problem = "CLUSTERED BY makes Spark's own buckets; write PARTITIONED BY (bucket(n, column))"
    elif definition.location or definition.external:
        problem = "its place is chosen by the catalog, not by LOCATION"
    elif definition.serde:
        problem = "an Iceberg table has no SerDe"
    elif (version := definition.properties.get(_FORMAT_VERSION, "2")) != "2":
        problem = f"it is written in format version 2, not {version}"
    if problem:
        raise CatalogError(f"{path} cannot be made: {problem}.", path=path)
    for name in definition.options:
        if name not in TABLE_OPTIONS:
            known = nearest(name, TABLE_OPTIONS)
            raise CatalogError(f"There is no option {name} for {path}.", path=path, hint=known)


def check_policy(path: ObjectPath, done: str, key: str, value: str | None) -> None:
    """Refuse a property that asks for changes of type that other readers of the table could not follow.

    Parameters
    ----------
    path : ObjectPath
    done : str
        ``made`` or ``altered``, for the error.
    key : str
    value : str or None

    Raises
    ------
    CatalogError
    """
    only = _POLICIES.get(key)
    if only is not None and value is not None and value.lower() != only:
        raise CatalogError(
            f"{path} was not {done}: {key} is {only} for an Iceberg table, not {value!r}, as other readers of it cast "
            "no further.",
            path=path,
            hint="To change a type further, make a new table with the rows cast: CREATE OR REPLACE TABLE ... AS SELECT",
        )


def _check_columns(path: ObjectPath, schema: pa.Schema) -> None:
    if len(schema) == 0:
        raise CatalogError(f"{path} needs at least one column.", path=path)
    if any(not name for name in schema.names):
        raise CatalogError(f"{path}: a column has no name.", path=path)
    twice = [name for name, times in Counter(name.lower() for name in schema.names).items() if times > 1]
    if twice:
        raise CatalogError(f"{path}: two columns are named {twice[0]}.", path=path)
    check_dots(path, schema.names)
    check_types(path, schema)


def check_dots(path: ObjectPath, names: Iterable[str]) -> None:
    """Refuse names of columns that Iceberg would take for paths.

    Raises
    ------
    CatalogError
    """
    for name in names:
        if "." in name:
            raise CatalogError(
                f"{path}: the column {name!r} has a dot, which separates the levels of a path.", path=path
            )


def check_types(path: ObjectPath, schema: pa.Schema) -> None:
    """Refuse columns of Spark types without a counterpart in Iceberg.

    Raises
    ------
    CatalogError
    """
    for column in schema:
        if (kind := _foreign(column)) is not None:
            raise CatalogError(
                f"{path}: the column {column.name} has the type {kind}, which Iceberg tables do not have.",
                path=path,
                hint="Cast it, for instance to STRING or BIGINT.",
            )


def _foreign(column: pa.Field) -> str | None:
    """A Spark type in a column without a counterpart in Iceberg; None if there is none."""
    described = spark_field(column)
    found = _types_of(described) if described else ()
    return next((kind for kind in found if kind.startswith(_FOREIGN) or kind == "udt"), None)


def _types_of(field: Mapping[str, Any]) -> Iterator[str]:
    yield from collated_types(field)
    yield from _atoms(field["type"])


def _atoms(kind: Any) -> Iterator[str]:
    if isinstance(kind, str):
        yield kind
    elif kind["type"] == "struct":
        for field in kind["fields"]:
            yield from _types_of(field)
    elif kind["type"] == "udt":
        yield "udt"
    else:
        for part in ("elementType", "keyType", "valueType"):
            if part in kind:
                yield from _atoms(kind[part])


def plain(schema: pa.Schema) -> pa.Schema:
    """A schema in Iceberg's types, with comments and no other metadata."""
    return pa.schema([without_ids(column, _iceberg_type) for column in schema])


def _iceberg_type(kind: pa.DataType) -> pa.DataType:
    return pa.int32() if pa.types.is_int8(kind) or pa.types.is_int16(kind) else kind


def to_schema(path: ObjectPath, definition: TableDefinition, base: TableMetadata | None = None) -> Schema:
    """The schema of a new table; if it replaces another one, a retained column keeps its id.

    Raises
    ------
    CatalogError
        A type is not supported by Iceberg, or names cannot be distinguished in Spark.
    """
    try:
        if base is None:
            schema = assign_ids(plain(definition.schema))
        else:
            old = from_iceberg(base.schema(), highest_field_id=base.last_column_id)
            schema = _with_known_ids(assign_ids(plain(definition.schema)), old)
        to_iceberg(schema).check_format_version_compatibility(2)
    except (SchemaError, ValueError) as error:
        raise CatalogError(f"{path} cannot be an Iceberg table: {error}", path=path) from error
    return schema


def _with_known_ids(fresh: Schema, old: Schema) -> Schema:
    """A schema whose fields keep the ids of old fields with the same path and type; others get new ids."""
    numbers = count(old.highest_field_id + 1)

    def siblings(new: Sequence[Field], known: Sequence[Field]) -> tuple[Field, ...]:
        named = {node.name: node for node in known}
        return tuple(one(node, named.get(node.name)) for node in new)

    def one(node: Field, match: Field | None) -> Field:
        same = match is not None and (match.kind, match.leaf) == (node.kind, node.leaf)
        number = match.id if same and match else next(numbers)
        return replace(node, id=number, children=siblings(node.children, match.children if same and match else ()))

    fields = siblings(fresh.fields, old.fields)
    highest = max([old.highest_field_id, *(node.id for top in fields for node in top.walk())])
    return Schema(fields, fresh.schema_id, highest)


def _partition_field_ids(base: TableMetadata | None) -> dict[tuple[int, str], int]:
    """The ids of the fields of all specs that a table has had, by source and transform."""
    specs = base.partition_specs if base else ()
    return {(field.source_id, str(field.transform)): field.field_id for spec in specs for field in spec.fields}


def to_spec(
    path: ObjectPath, schema: Schema, transforms: Sequence[Transform], base: TableMetadata | None = None
) -> PartitionSpec:
    """The partition spec of ``PARTITIONED BY``.

    Raises
    ------
    CatalogError
        A transform or column is unknown, or the transform does not support the column's type.
    """
    iceberg = to_iceberg(schema)
    fields: list[PartitionField] = []
    numbers = count((base.last_partition_id or FIRST_SPEC_FIELD - 1) + 1 if base else FIRST_SPEC_FIELD)
    known = _partition_field_ids(base)
    for transform in transforms:
        source = partition_source(path, schema, transform)
        made, name = partition_transform(path, transform, source)
        if not made.can_transform(iceberg.find_type(source.id)):
            raise CatalogError(
                f"{path} cannot be partitioned by {transform.name} of {source.name}: it is {source.type_name}.",
                path=path,
            )
        number = known.get((source.id, str(made)))
        fields.append(PartitionField(source.id, next(numbers) if number is None else number, made, name))
    check_spec(path, schema, fields)
    spec = PartitionSpec(*fields, spec_id=0)
    if base is None:
        return spec
    same = next((old for old in base.partition_specs if old.fields == spec.fields), None)
    return same or PartitionSpec(*fields, spec_id=max(old.spec_id for old in base.partition_specs) + 1)


def partition_source(path: ObjectPath, schema: Schema, transform: Transform) -> Field:
    if len(transform.columns) != 1:
        raise CatalogError(f"{path}: {transform.name} takes one column, not {len(transform.columns)}.", path=path)
    named = transform.columns[0]
    found = next((field for field in schema if field.name.lower() == named.lower()), None)
    if found is None:
        raise CatalogError(
            f"{path} cannot be partitioned by {named}: it has no such column at the top.",
            path=path,
            hint=f"Columns: {', '.join(field.name for field in schema)}.",
        )
    if found.kind is not Kind.LEAF:
        raise CatalogError(f"{path} cannot be partitioned by {named}: it is a {found.type_name}.", path=path)
    return found


def partition_transform(
    path: ObjectPath, transform: Transform, source: Field
) -> tuple[IcebergTransform[Any, Any], str]:
    name = transform.name
    if name == "identity":
        return IdentityTransform(), source.name
    if (word := _OTHER_WORDS.get(name, name.removesuffix("s"))) in TIMES:
        return parse_transform(word), f"{source.name}_{word}"
    if name not in ("bucket", "truncate"):
        raise CatalogError(
            f"{path} cannot be partitioned by {transform.name}({source.name}).",
            path=path,
            hint=nearest(transform.name, tuple(sorted(TRANSFORMS))),
        )
    number = transform.arguments[0] if len(transform.arguments) == 1 else None
    if not isinstance(number, int) or isinstance(number, bool) or not 0 < number < 2**31:
        raise CatalogError(f"{path}: {name} takes one whole number above 0 and a column.", path=path)
    if name == "bucket":
        return BucketTransform(number), f"{source.name}_bucket"
    return TruncateTransform(number), f"{source.name}_trunc"


def check_spec(path: ObjectPath, schema: Schema, fields: Iterable[PartitionField]) -> None:
    names: set[str] = set()
    times: set[int] = set()
    for field in fields:
        is_time = isinstance(field.transform, TimeTransform)
        if field.name in names or (is_time and field.source_id in times):
            raise CatalogError(f"{path} is partitioned twice by {schema.name_of(field.source_id)}.", path=path)
        if is_time:
            times.add(field.source_id)
        taken = next((column for column in schema if column.name == field.name and column.id != field.source_id), None)
        if taken is not None:
            raise CatalogError(f"{path}: the partition {field.name} and a column have one name.", path=path)
        names.add(field.name)


def to_sort_order(path: ObjectPath, schema: IcebergSchema, properties: Mapping[str, str]) -> SortOrder | None:
    """The sort order set by the properties; None if they set none.

    Raises
    ------
    CatalogError
        It cannot be parsed, or names an unknown column or one that cannot be sorted.
    """
    said = properties.get(sorting.SORT_ORDER)
    return None if said is None else sorting.parse(path, schema, said)


def to_properties(definition: TableDefinition) -> dict[str, str]:
    """The properties of a new table: the user's, the options that are properties, and the comment."""
    found = {key: value for key, value in definition.properties.items() if key not in _NOT_STORED}
    found |= {_AS_PROPERTY[key]: value for key, value in definition.options.items()}
    return found if definition.comment is None else {**found, "comment": definition.comment}


# -- Iceberg to definitions --------------------------------------------------------------------------------------------


def to_definition(metadata: TableMetadata, schema: IcebergSchema | None = None) -> TableDefinition:
    """The definition of a table, with its current schema or the given one.

    Raises
    ------
    CatalogError
        A column has a type that PyArrow or Spark does not have.
    """
    shown = schema or metadata.schema()
    facts = (metadata.spec(), metadata.sort_order(), metadata.properties, metadata.format_version)
    return replace(described(shown, metadata.last_column_id, *facts), location=metadata.location)


def described(
    schema: IcebergSchema,
    highest_field_id: int,
    spec: PartitionSpec,
    order: SortOrder,
    properties: Mapping[str, str],
    format_version: int = 2,
) -> TableDefinition:
    """The definition of a table from its parts, without its place.

    Raises
    ------
    CatalogError
        A column has a type that PyArrow or Spark does not have.
    """
    shown = {_FORMAT_VERSION: str(format_version), **properties}
    shown.pop("comment", None)
    if (sorted_by := sorting.describe(schema, order)) is not None:
        shown[sorting.SORT_ORDER] = sorted_by
    return TableDefinition(
        plain(arrow_of(schema, highest_field_id)),
        provider=PROVIDER,
        partitioning=tuple(_shown(field, schema) for field in spec.fields if field.source_id in schema.field_ids),
        comment=properties.get("comment"),
        properties=shown,
    )


def _shown(field: PartitionField, schema: IcebergSchema) -> Transform:
    column = schema.find_column_name(field.source_id)
    assert column is not None
    transform = field.transform
    if isinstance(transform, TimeTransform):
        return Transform(f"{transform}s", (column,))
    if isinstance(transform, BucketTransform):
        return Transform("bucket", (column,), (transform.num_buckets,))
    if isinstance(transform, TruncateTransform):
        return Transform("truncate", (column,), (transform.width,))
    return Transform(str(transform), (column,))


def schema_of(metadata: TableMetadata, schema: IcebergSchema | None = None) -> Schema:
    """The schema of a table as a `Schema`."""
    return from_iceberg(schema or metadata.schema(), highest_field_id=metadata.last_column_id)


def arrow_of(schema: IcebergSchema, highest_field_id: int) -> pa.Schema:
    """A schema as a PyArrow schema, each field with its id.

    Raises
    ------
    CatalogError
        A column has a type that PyArrow or Spark does not have.
    """
    try:
        found = to_arrow(from_iceberg(schema, highest_field_id=highest_field_id))
    except SchemaError as error:
        raise CatalogError(str(error)) from error
    for column in found:
        if isinstance(column.type, pa.BaseExtensionType):
            raise CatalogError(f"The column {column.name} has Iceberg's type uuid, which Spark does not have.")
    return found
