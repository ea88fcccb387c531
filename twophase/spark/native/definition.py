"""Spark's columns, transforms, properties, predicates and changes as values of :mod:`twophase.model`, and back."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from twophase.catalog import Catalog, TableChange
from twophase.errors import CatalogError
from twophase.model import BucketSpec, ObjectPath, TableDefinition, Transform
from twophase.spark import types
from twophase.spark.jvm.bridge import Jvm
from twophase.spark.jvm.formats import hive_format

OPTION = "option."
_HIVE = {"hive.serde": "serde", "hive.input-format": "input_format", "hive.output-format": "output_format"}
_STORED_AS = "hive.stored-as"
#: What Spark itself puts among the properties and what is no property of the user's.
_RESERVED = frozenset(
    {"provider", "location", "comment", "owner", "external", "is_managed_location", "table_type", _STORED_AS, *_HIVE}
)


def object_path(jvm: Jvm, identifier: Any) -> ObjectPath:
    """The path of a v2 identifier."""
    return ObjectPath(jvm.parts(identifier.namespace()), identifier.name())


# -- from Spark --------------------------------------------------------------------------------------------------------


def definition_of(jvm: Jvm, catalog: Catalog, columns: Any, transforms: Any, properties: Any) -> TableDefinition:
    """The definition that ``stageCreate`` and ``createTable`` carry.

    Parameters
    ----------
    jvm : Jvm
    catalog : Catalog
        One that knows bucketing gets ``bucket`` as :class:`BucketSpec`, another as a partition transform.
    columns : Java ``Column[]`` or ``StructType``
    transforms : Java ``Transform[]``
    properties : Java map
    """
    facts = jvm.entries(properties)
    options = {key.removeprefix(OPTION): value for key, value in facts.items() if key.startswith(OPTION)}
    bucketing, partitioning = _layout([transform_of(t) for t in transforms], catalog.capabilities.bucketing)
    serde = _serde(jvm, facts)
    location = facts.get("location")
    return TableDefinition(
        schema=types.to_arrow(jvm.columns_json(columns)),
        provider=facts.get("provider", "hive" if serde else None),
        partitioning=partitioning,
        bucketing=bucketing,
        comment=facts.get("comment"),
        properties=_user_properties(facts, options),
        options=options,
        location=location,
        external=facts.get("external") == "true" or location is not None,
        serde=serde,
    )


def _user_properties(facts: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    # Spark gives each option twice, with and without its prefix.
    return {
        key: value
        for key, value in facts.items()
        if key not in _RESERVED and not key.startswith(OPTION) and options.get(key) != value
    }


def _serde(jvm: Jvm, facts: Mapping[str, str]) -> dict[str, str]:
    stored_as = facts.get(_STORED_AS)
    serde = hive_format(jvm, stored_as) if stored_as else {}
    serde |= {name: facts[key] for key, name in _HIVE.items() if key in facts}
    if stored_as:
        if not serde:
            raise CatalogError(f"STORED AS {stored_as}: Spark knows no Hive format of this name.")
        serde["stored_as"] = stored_as.lower()
    return serde


def transform_of(transform: Any) -> Transform:
    """A transform of ours from one of Spark's."""
    paths = [list(reference.fieldNames()) for reference in transform.references()]
    columns = tuple(".".join(path) for path in paths)
    name = str(transform.name())
    if name == "cluster_by":
        return Transform.cluster_by(*paths)
    literals = [str(a.value()) for a in transform.arguments() if hasattr(a, "value") and _is_literal(a)]
    arguments: tuple[Any, ...] = tuple(int(v) if v.lstrip("-").isdigit() else v for v in literals)
    if name == "sorted_bucket":
        return _sorted_bucket(transform, arguments)
    return Transform(name, columns, arguments)


def _is_literal(argument: Any) -> bool:
    return "Literal" in str(argument.getClass().getSimpleName())


def _sorted_bucket(transform: Any, arguments: tuple[Any, ...]) -> Transform:
    """Bucket columns stand before the number of buckets, sort columns after it."""
    columns: list[list[str]] = [[], []]
    behind = 0
    for argument in transform.arguments():
        if _is_literal(argument):
            behind = 1
        else:
            columns[behind].append(".".join(argument.fieldNames()))
    return Transform("bucket", tuple(columns[0]), (*arguments, columns[1]))


def _layout(transforms: list[Transform], has_bucketing: bool) -> tuple[BucketSpec | None, tuple[Transform, ...]]:
    if not has_bucketing:
        return None, tuple(transforms)
    bucketing = None
    rest = []
    for transform in transforms:
        if transform.name == "bucket":
            sort = transform.arguments[1] if len(transform.arguments) > 1 else ()
            bucketing = BucketSpec(int(transform.arguments[0]), transform.columns, tuple(sort))
        else:
            rest.append(transform)
    return bucketing, tuple(rest)


# -- to Spark ----------------------------------------------------------------------------------------------------------


def table_properties(definition: TableDefinition) -> dict[str, str]:
    """What ``Table.properties()`` answers: Spark's reserved keys and the user's."""
    facts = {OPTION + key: value for key, value in definition.options.items()} | dict(definition.properties)
    reserved = {"provider": definition.provider, "comment": definition.comment, "location": definition.location}
    facts |= {key: value for key, value in reserved.items() if value is not None}
    if definition.external:
        facts["external"] = "true"
    return facts


def table_transforms(definition: TableDefinition) -> list[tuple[str, Sequence[str], Sequence[Any]]]:
    """What ``Table.partitioning()`` answers, for :meth:`Jvm.transforms`."""
    transforms: list[tuple[str, Sequence[str], Sequence[Any]]] = [
        (t.name, t.columns, t.arguments) for t in definition.partitioning
    ]
    if definition.bucketing:
        transforms.append(("bucket", definition.bucketing.columns, (definition.bucketing.count,)))
    return transforms


# -- predicates of a static overwrite ----------------------------------------------------------------------------------


def static_partition(
    predicates: Sequence[Any], partition_columns: Sequence[str], zone: str
) -> dict[str, str | None] | None:
    """The partition that ``INSERT OVERWRITE ... PARTITION (p = 1)`` names; None where the predicates say anything else.

    Parameters
    ----------
    predicates : sequence of Java ``Predicate``
        A conjunction.
    partition_columns : sequence of str
    zone : str
        The session's time zone, for timestamp values.
    """
    known = {name.lower(): name for name in partition_columns}
    result: dict[str, str | None] = {}
    for predicate in predicates:
        found = _equality(predicate, zone)
        if found is None or found[0].lower() not in known:
            return None
        result[known[found[0].lower()]] = found[1]
    return result


def _equality(predicate: Any, zone: str) -> tuple[str, str | None] | None:
    children = list(predicate.children())
    if predicate.name() == "IS_NULL":
        return ".".join(children[0].fieldNames()), None
    if predicate.name() not in ("=", "<=>") or len(children) != 2:
        return None
    reference, literal = reversed(children) if _is_literal(children[0]) else children
    if not _is_literal(literal):
        return None
    return ".".join(reference.fieldNames()), _directory_value(literal.value(), str(literal.dataType().typeName()), zone)


def _directory_value(value: Any, kind: str, zone: str) -> str | None:
    """A value of Spark's inner form as it stands in a partition directory's name."""
    if value is None:
        return None
    if isinstance(value, bool):
        return str(value).lower()
    if kind == "date":
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days=value)).isoformat()
    if kind.startswith("timestamp"):
        utc = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=value)
        local = utc if kind == "timestamp_ntz" else utc.astimezone(ZoneInfo(zone))
        text = local.strftime("%Y-%m-%d %H:%M:%S")
        return f"{text}.{local.microsecond:06d}".rstrip("0") if local.microsecond else text
    return value if isinstance(value, str) else str(value.toString() if hasattr(value, "toString") else value)


# -- ALTER TABLE -------------------------------------------------------------------------------------------------------


def changes_of(changes: Sequence[Any]) -> list[TableChange]:
    """Our changes from Spark's.

    Raises
    ------
    CatalogError
        A change that no catalog can be told of.
    """
    return [_change(change) for change in changes]


def database_changes(changes: Sequence[Any]) -> dict[str, str | None]:
    """Properties to set, and None for those to remove, from Spark's ``NamespaceChange``."""
    found: dict[str, str | None] = {}
    for change in changes:
        sets = str(change.getClass().getSimpleName()) == "SetProperty"
        found[str(change.property())] = str(change.value()) if sets else None
    return found


def _change(change: Any) -> TableChange:
    kind = str(change.getClass().getSimpleName())
    if kind not in _CHANGES:
        raise CatalogError(f"ALTER TABLE: the change {kind} is not supported.")
    return _CHANGES[kind](change)


def _path(change: Any) -> tuple[str, ...]:
    return tuple(change.fieldNames())


def _field(name: str, data_type: Any, nullable: bool, comment: str | None, default: str | None = None) -> pa.Schema:
    metadata = {"comment": comment} if comment is not None else {}
    if default is not None:
        metadata |= {"CURRENT_DEFAULT": default, "EXISTS_DEFAULT": default}
    field = {"name": name, "type": types.parse_type(str(data_type.json())), "nullable": nullable, "metadata": metadata}
    return types.to_arrow(types.struct_json([field]))


def _position(position: Any) -> dict[str, str]:
    if position is None:
        return {}
    if str(position.getClass().getSimpleName()) == "First":
        return {"position": "first"}
    return {"position": f"after:{position.column()}"}


def _set_property(change: Any) -> TableChange:
    key, value = str(change.property()), str(change.value())
    if key == "comment":
        return TableChange("set_comment", (), {"comment": value})
    return TableChange("set_property", (), {"key": key, "value": value})


def _remove_property(change: Any) -> TableChange:
    if str(change.property()) == "comment":
        return TableChange("set_comment", (), {"comment": None})
    return TableChange("remove_property", (), {"key": str(change.property())})


def _add_column(change: Any) -> TableChange:
    path = _path(change)
    default = change.defaultValue()
    field = _field(
        path[-1],
        change.dataType(),
        bool(change.isNullable()),
        change.comment(),
        None if default is None else str(default.getSql()),
    )
    return TableChange("add_column", path, {"field": field, **_position(change.position())})


def _update_type(change: Any) -> TableChange:
    path = _path(change)
    return TableChange("update_column_type", path, {"field": _field(path[-1], change.newDataType(), True, None)})


_CHANGES: Mapping[str, Any] = {
    "SetProperty": _set_property,
    "RemoveProperty": _remove_property,
    "AddColumn": _add_column,
    "DeleteColumn": lambda c: TableChange("drop_column", _path(c), {"if_exists": bool(c.ifExists())}),
    "RenameColumn": lambda c: TableChange("rename_column", _path(c), {"name": str(c.newName())}),
    "UpdateColumnType": _update_type,
    "UpdateColumnComment": lambda c: TableChange("update_column_comment", _path(c), {"comment": c.newComment()}),
    "UpdateColumnNullability": lambda c: TableChange(
        "update_column_nullability", _path(c), {"nullable": bool(c.nullable())}
    ),
    "UpdateColumnPosition": lambda c: TableChange("move_column", _path(c), _position(c.position())),
}
