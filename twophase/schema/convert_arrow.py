"""Conversion of schemas to and from PyArrow. Ids are in ``PARQUET:field_id``, as for Parquet files."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any

import pyarrow as pa

from twophase.schema.defaults import format_default, parse_default
from twophase.schema.errors import FieldIdError, SchemaDocumentError, UnsupportedTypeError
from twophase.schema.leaf import format_leaf
from twophase.schema.schema import Field, Kind, Schema

FIELD_ID = "PARQUET:field_id"
COMMENT = "comment"
INITIAL_DEFAULT = "twophase.initial_default"
WRITE_DEFAULT = "twophase.write_default"
#: Metadata key of a PyArrow schema for facts of the schema (version, keys).
SCHEMA_FACTS = "twophase.schema"
_OURS = frozenset((FIELD_ID, COMMENT, INITIAL_DEFAULT, WRITE_DEFAULT))


def to_arrow(schema: Schema) -> pa.Schema:
    """Convert a schema to a PyArrow schema from which :func:`from_arrow` restores it exactly.

    Parameters
    ----------
    schema : Schema
        Any version.
    """
    facts = {
        "schema_id": schema.schema_id,
        "highest_field_id": schema.highest_field_id,
        "primary_keys": schema.primary_keys,
        "partition_keys": schema.partition_keys,
    }
    return pa.schema([arrow_field(top) for top in schema], metadata={SCHEMA_FACTS: json.dumps(facts)})


def arrow_field(node: Field) -> pa.Field:
    """A field as a PyArrow field, with its id, comment and defaults as metadata."""
    metadata: dict[str, str] = dict(node.metadata)
    metadata[FIELD_ID] = str(node.id)
    if node.comment is not None:
        metadata[COMMENT] = node.comment
    if node.initial_default is not None:
        metadata[INITIAL_DEFAULT] = format_default(node.initial_default, node.name)
    if node.write_default is not None:
        metadata[WRITE_DEFAULT] = format_default(node.write_default, node.name)
    return pa.field(node.name, arrow_type(node), node.nullable, metadata)


def arrow_type(node: Field) -> pa.DataType:
    """The PyArrow type of a field."""
    return _type_of(node, arrow_field)


def plain_type(node: Field) -> pa.DataType:
    """The PyArrow type of a field without metadata, as for data in memory."""
    return _type_of(node, lambda child: pa.field(child.name, plain_type(child), child.nullable))


def _type_of(node: Field, field_of: Callable[[Field], pa.Field]) -> pa.DataType:
    if node.kind is Kind.LEAF:
        return node.leaf
    below = [field_of(child) for child in node.children]
    if node.kind is Kind.STRUCT:
        return pa.struct(below)
    return pa.list_(below[0]) if node.kind is Kind.LIST else pa.map_(*below)


def without_ids(field: pa.Field, leaf: Callable[[pa.DataType], pa.DataType] = lambda kind: kind) -> pa.Field:
    """A field with its comments, at any level, and no other metadata.

    Parameters
    ----------
    field : pyarrow.Field
    leaf : callable
        Converts each type without parts.
    """
    kind, comment = field.type, (field.metadata or {}).get(COMMENT.encode())
    if pa.types.is_struct(kind):
        kind = pa.struct([without_ids(child, leaf) for child in kind])
    elif pa.types.is_map(kind):
        kind = pa.map_(without_ids(kind.key_field, leaf), without_ids(kind.item_field, leaf))
    elif pa.types.is_list(kind):
        kind = pa.list_(without_ids(kind.value_field, leaf))
    else:
        kind = leaf(kind)
    return pa.field(field.name, kind, field.nullable, None if comment is None else {COMMENT: comment})


def from_arrow(source: pa.Schema) -> Schema:
    """Convert a PyArrow schema in which every field has an id.

    Parameters
    ----------
    source : pyarrow.Schema
        From :func:`to_arrow`, or read from a Parquet file that was written with ids.

    Raises
    ------
    FieldIdError
        A field at any level has no id. For a table without ids, use :func:`assign_ids`.
    UnsupportedTypeError
        A type that a field cannot have.
    """
    fields = tuple(_read_field(top, _id_from_metadata, ()) for top in source)
    return _with_facts(fields, source.metadata)


def _with_facts(fields: tuple[Field, ...], metadata: Mapping[bytes, bytes] | None) -> Schema:
    text = (metadata or {}).get(SCHEMA_FACTS.encode())
    if text is None:
        return Schema(fields)
    try:
        facts = json.loads(text)
        return Schema(
            fields,
            int(facts["schema_id"]),
            int(facts["highest_field_id"]),
            tuple(facts["primary_keys"]),
            tuple(facts["partition_keys"]),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise SchemaDocumentError(
            f"The schema's metadata {SCHEMA_FACTS} cannot be read: {error}.",
            allowed=("what to_arrow wrote there", "no such metadata"),
        ) from error


def assign_ids(
    source: pa.Schema | Iterable[pa.Field],
    *,
    first_id: int = 1,
    primary_keys: Iterable[str] = (),
    partition_keys: Iterable[str] = (),
) -> Schema:
    """Create a schema with new ids for a table without ids; ids in the source are ignored.

    All fields of a struct are numbered before their children, as in a new Iceberg table.

    Parameters
    ----------
    source : pyarrow.Schema or iterable of pyarrow.Field
    first_id : int
    primary_keys, partition_keys : iterable of str
        Paths.

    Raises
    ------
    UnsupportedTypeError
        A type that a field cannot have.
    """
    numbers = count(first_id)
    schema = Schema(fresh_fields(list(source), numbers, ()))
    keys = [tuple(schema.find(path).id for path in paths) for paths in (primary_keys, partition_keys)]
    return Schema(schema.fields, 0, schema.highest_field_id, *keys)


def fresh_fields(sources: list[pa.Field], numbers: Iterable[int], above: tuple[str, ...]) -> tuple[Field, ...]:
    """Create fields with new ids; siblings are numbered before their children."""
    counter = iter(numbers)
    own = [next(counter) for _ in sources]
    return tuple(_fresh(source, number, counter, above) for source, number in zip(sources, own, strict=True))


def _fresh(source: pa.Field, number: int, counter: Iterable[int], above: tuple[str, ...]) -> Field:
    path = (*above, source.name)
    kind, below = _below(source.type, path)
    return _make(source, number, kind, fresh_fields(below, counter, path), path)


def _read_field(source: pa.Field, number_of: Any, above: tuple[str, ...]) -> Field:
    path = (*above, source.name)
    kind, below = _below(source.type, path)
    children = tuple(_read_field(child, number_of, path) for child in below)
    return _make(source, number_of(source, path), kind, children, path)


def _below(data_type: pa.DataType, path: tuple[str, ...]) -> tuple[Kind, list[pa.Field]]:
    """The kind of a type and its child fields, with canonical names."""
    if pa.types.is_struct(data_type):
        return Kind.STRUCT, list(data_type)
    if pa.types.is_map(data_type):
        return Kind.MAP, [data_type.key_field.with_name("key"), data_type.item_field.with_name("value")]
    if pa.types.is_list(data_type):
        return Kind.LIST, [data_type.value_field.with_name("element")]
    try:
        format_leaf(data_type)
    except UnsupportedTypeError as error:
        name = ".".join(path)
        raise UnsupportedTypeError(
            f"The field {name} has the type {data_type}, which a schema cannot hold.",
            field_path=name,
            old_type=str(data_type),
            allowed=("plain types, struct, list_ and map_",),
        ) from error
    return Kind.LEAF, []


def _make(source: pa.Field, number: int, kind: Kind, children: tuple[Field, ...], path: tuple[str, ...]) -> Field:
    metadata = {k.decode(): v.decode() for k, v in (source.metadata or {}).items()}
    leaf = source.type if kind is Kind.LEAF else None
    initial, write = metadata.get(INITIAL_DEFAULT), metadata.get(WRITE_DEFAULT)
    return Field(
        id=number,
        name=source.name,
        kind=kind,
        leaf=leaf,
        nullable=source.nullable,
        comment=metadata.get(COMMENT),
        initial_default=None if initial is None or leaf is None else parse_default(initial, leaf, ".".join(path)),
        write_default=None if write is None or leaf is None else parse_default(write, leaf, ".".join(path)),
        metadata=tuple(sorted((k, v) for k, v in metadata.items() if k not in _OURS)),
        children=children,
    )


def _id_from_metadata(source: pa.Field, path: tuple[str, ...]) -> int:
    text = (source.metadata or {}).get(FIELD_ID.encode())
    name = ".".join(path)
    if text is None:
        raise FieldIdError(
            f"The field {name} has no id ({FIELD_ID}).",
            field_path=name,
            old_type=str(source.type),
            hint="Bind it by name with bind_by_name, or number a new table with assign_ids.",
        )
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise FieldIdError(
            f"The field {name} has the id {text.decode()!r}, which is no number.",
            field_path=name,
            old_type=str(source.type),
            allowed=(f"a number from 0 on in {FIELD_ID}",),
        )
    return number


def bind_by_name(source: pa.Schema, written_with: Schema) -> Schema:
    """Create a schema for a file without ids: fields get their ids by name from the schema with which it was written.

    Parameters
    ----------
    source : pyarrow.Schema
        Schema of the file. Its ids are ignored.
    written_with : Schema
        The version of the table's schema that the writer used. With a later one, dropped values would reappear.

    Raises
    ------
    UnknownFieldError
        The file has a field that the version does not have.
    """

    def number_of(source_field: pa.Field, path: tuple[str, ...]) -> int:
        return written_with.find(path).id

    return Schema(
        tuple(_read_field(top, number_of, ()) for top in source),
        written_with.schema_id,
        written_with.highest_field_id,
    )


def verify_file_schema(source: pa.Schema, written_with: Schema) -> None:
    """Check at every level that a file's ids are those of the schema with which it claims to be written.

    Parameters
    ----------
    source : pyarrow.Schema
        The file's own schema.
    written_with : Schema
        The version that the file names.

    Raises
    ------
    FieldIdError
        An id is missing, unknown, or belongs to a field of another name or type: reading the file would swap or lose
        values.
    """
    in_file = from_arrow(pa.schema(list(source)))
    for found in in_file.walk():
        expected = written_with.get(found.id)
        if (
            expected is None
            or (expected.kind, expected.leaf) != (found.kind, found.leaf)
            or written_with.path_of(found.id) != in_file.path_of(found.id)
        ):
            raise FieldIdError(
                f"The file's field {in_file.name_of(found.id)} ({found.type_name}) has the id {found.id}, which in "
                f"schema {written_with.schema_id} is {_described(written_with, expected)}.",
                field_path=in_file.name_of(found.id),
                old_type=None if expected is None else expected.type_name,
                new_type=found.type_name,
                allowed=("the version that the file was written with", "bind_by_name, for a file with wrong ids"),
            )


def _described(schema: Schema, node: Field | None) -> str:
    return "no field" if node is None else f"{schema.name_of(node.id)} ({node.type_name})"
