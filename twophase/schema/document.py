"""Schemas as JSON documents, as stored in the history, for people and other tools."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from twophase.schema.defaults import format_default, parse_default
from twophase.schema.errors import NewerDocumentError, SchemaDocumentError, SchemaError
from twophase.schema.leaf import format_leaf, parse_leaf
from twophase.schema.schema import MAX_DEPTH, Field, Kind, Schema

#: Version of the document format. A reader refuses documents of a higher version.
FORMAT = 1

_WAYS = ("a document that to_document wrote",)


def to_document(schema: Schema) -> dict[str, Any]:
    """Convert a schema to plain JSON values, from which :func:`from_document` restores it exactly.

    Parameters
    ----------
    schema : Schema
        Any version.
    """
    return {
        "format": FORMAT,
        "schema_id": schema.schema_id,
        "highest_field_id": schema.highest_field_id,
        "primary_keys": list(schema.primary_keys),
        "partition_keys": list(schema.partition_keys),
        "fields": [_write(top) for top in schema],
    }


def to_json(schema: Schema) -> str:
    """Convert a schema to the text of its document.

    Parameters
    ----------
    schema : Schema
        Any version.
    """
    return json.dumps(to_document(schema), ensure_ascii=False, separators=(",", ":"))


def _write(node: Field) -> dict[str, Any]:
    document: dict[str, Any] = {"id": node.id, "name": node.name}
    if node.leaf is not None:
        document["type"] = format_leaf(node.leaf)
    else:
        document[node.kind.value] = [_write(child) for child in node.children]
    if not node.nullable:
        document["nullable"] = False
    if node.comment is not None:
        document["comment"] = node.comment
    if node.initial_default is not None:
        document["initial_default"] = format_default(node.initial_default, node.name)
    if node.write_default is not None:
        document["write_default"] = format_default(node.write_default, node.name)
    if node.metadata:
        document["metadata"] = dict(node.metadata)
    return document


def from_json(text: str | bytes) -> Schema:
    """Read a schema from the text of its document.

    Parameters
    ----------
    text : str or bytes
        Result of :func:`to_json`.

    Raises
    ------
    SchemaDocumentError
        The text is not JSON, or not a schema.
    NewerDocumentError
        A newer version wrote it.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SchemaDocumentError(f"The schema document is no JSON: {error}.", field_path="$", allowed=_WAYS) from error
    return from_document(document)


def _refuse_newer(version: int) -> None:
    if version > FORMAT:
        raise NewerDocumentError(
            f"The schema document has the format {version}; this version reads up to {FORMAT}.",
            field_path="$.format",
            hint="Upgrade twophase.",
        )


def from_document(document: Any) -> Schema:
    """Read a schema from a document.

    Parameters
    ----------
    document : Any
        Result of :func:`to_document`, possibly after conversion to JSON and back.

    Raises
    ------
    SchemaDocumentError
        The document is not a schema; the error names the place.
    NewerDocumentError
        A newer version wrote it.
    """
    top = _mapping(document, "$")
    _refuse_newer(_take(top, "format", int, "$"))
    fields = tuple(_read(item, f"$.fields[{i}]", 1) for i, item in enumerate(_take(top, "fields", list, "$")))
    keys = [_ids(top, name) for name in ("primary_keys", "partition_keys")]
    try:
        return Schema(fields, _take(top, "schema_id", int, "$"), _take(top, "highest_field_id", int, "$"), *keys)
    except SchemaDocumentError:
        raise
    except SchemaError as error:
        raise SchemaDocumentError(
            f"The document is no valid schema: {error.message}",
            field_path=error.field_path,
            old_type=error.old_type,
            new_type=error.new_type,
            allowed=error.allowed or _WAYS,
        ) from error


def _ids(top: Mapping[str, Any], name: str) -> tuple[int, ...]:
    ids = _take(top, name, list, "$")
    if not all(type(item) is int for item in ids):
        raise SchemaDocumentError(
            f"$.{name} holds something that is no field id: {ids}.", field_path=f"$.{name}", allowed=("field ids",)
        )
    return tuple(ids)


def _read(item: Any, where: str, depth: int) -> Field:
    if depth > MAX_DEPTH:
        raise SchemaDocumentError(
            f"The schema document is nested deeper than {MAX_DEPTH} levels.",
            field_path=where,
            allowed=(f"up to {MAX_DEPTH} levels",),
        )
    document = _mapping(item, where)
    kinds = [kind for kind in Kind if kind.value in document]
    if "type" in document:
        kinds.append(Kind.LEAF)
    if len(kinds) != 1:
        raise SchemaDocumentError(
            f"{where} needs one of type, struct, list and map.",
            field_path=where,
            old_type=" and ".join(kind.value for kind in kinds) or None,
            allowed=("just one of them",),
        )
    try:
        return _make(document, kinds[0], where, depth)
    except SchemaDocumentError:
        raise
    except SchemaError as error:
        raise SchemaDocumentError(
            f"{where} is no field: {error.message}",
            field_path=where,
            old_type=error.old_type,
            new_type=error.new_type,
            allowed=error.allowed or _WAYS,
        ) from error


def _make(document: Mapping[str, Any], kind: Kind, where: str, depth: int) -> Field:
    leaf = parse_leaf(_take(document, "type", str, where), where) if kind is Kind.LEAF else None
    below = [] if leaf is not None else _take(document, kind.value, list, where)
    texts = [_take(document, key, str, where, None) for key in ("initial_default", "write_default")]
    initial, write = (None if text is None or leaf is None else parse_default(text, leaf, where) for text in texts)
    if leaf is None and any(text is not None for text in texts):
        raise SchemaDocumentError(
            f"{where} has a default but is no leaf.",
            field_path=where,
            old_type=kind.value,
            allowed=("defaults of leaves",),
        )
    metadata = _mapping(document.get("metadata", {}), f"{where}.metadata")
    return Field(
        _take(document, "id", int, where),
        _take(document, "name", str, where),
        kind,
        leaf,
        _take(document, "nullable", bool, where, True),
        _take(document, "comment", str, where, None),
        initial,
        write,
        tuple(sorted((str(k), str(v)) for k, v in metadata.items())),
        tuple(_read(child, f"{where}.{kind.value}[{i}]", depth + 1) for i, child in enumerate(below)),
    )


_MISSING = object()


def _take(document: Mapping[str, Any], key: str, kind: type, where: str, default: Any = _MISSING) -> Any:
    value = document.get(key, default)
    if value is _MISSING:
        raise SchemaDocumentError(
            f"{where} has no {key!r}.", field_path=where, new_type=kind.__name__, allowed=(f"a {key!r} there",)
        )
    if value is not default and type(value) is not kind:
        raise SchemaDocumentError(
            f"{where}.{key} is {value!r}, not of type {kind.__name__}.",
            field_path=where,
            old_type=type(value).__name__,
            new_type=kind.__name__,
            allowed=(f"a value of type {kind.__name__}",),
        )
    return value


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise SchemaDocumentError(
            f"{where} is no object.",
            field_path=where,
            old_type=type(value).__name__,
            new_type="object",
            allowed=("a JSON object",),
        )
    return value
