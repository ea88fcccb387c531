"""Conversion of Spark's columns, transforms, properties, predicates and changes to :mod:`twophase.model`, and back."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from twophase.catalog import Catalog, TableChange
from twophase.errors import CatalogError
from twophase.model import BucketSpec, OverwriteScope, TableDefinition, Transform, quote
from twophase.spark import types
from twophase.spark.jvm import column_defaults, tables, values
from twophase.spark.jvm.expressions import column_of, is_literal, text_as, text_of, truth_of
from twophase.spark.jvm.formats import hive_format, short_name
from twophase.spark.jvm.gateway import Jvm

OPTION = "option."
#: Prefix of a property whose key has a meaning to Spark if a catalog other than its own creates the table.
PLAIN = "twophase.property."
_HIVE = {"hive.serde": "serde", "hive.input-format": "input_format", "hive.output-format": "output_format"}
_STORED_AS = "hive.stored-as"
#: What Spark's ALTER TABLE passes as properties, and does to session tables only.
_OF_THE_SESSION = {"location": "SET LOCATION", "collation": "DEFAULT COLLATION"}
#: Keys that Spark itself adds to the properties, and that are not properties of the user.
RESERVED = frozenset(
    {"provider", "location", "comment", "owner", "external", "is_managed_location", "table_type", _STORED_AS, *_HIVE}
)


# -- from Spark --------------------------------------------------------------------------------------------------------


def definition_of(jvm: Jvm, catalog: Catalog, columns: Any, transforms: Any, properties: Any) -> TableDefinition:
    """The definition that is passed to ``stageCreate`` and ``createTable``.

    Parameters
    ----------
    jvm : Jvm
    catalog : Catalog
        If it supports bucketing, ``bucket`` becomes a :class:`BucketSpec`, otherwise a partition transform.
    columns : Java ``Column[]`` or ``StructType``
    transforms : Java ``Transform[]``
    properties : Java map
    """
    entries = values.entries(jvm, properties)
    serde = _serde(jvm, entries)
    options = _options(entries, of_serde=bool(serde))
    # Spark passes each option twice, with and without its prefix.
    facts = {key: value for key, value in entries.items() if key == "provider" or options.get(key) != value}
    bucketing, partitioning = _layout([transform_of(t) for t in transforms], catalog.capabilities.bucketing)
    location = facts.get("location")
    return TableDefinition(
        schema=types.to_arrow(tables.columns_json(jvm, columns)),
        **_provider(jvm, facts.get("provider", "hive" if serde else None)),
        partitioning=partitioning,
        bucketing=bucketing,
        comment=facts.get("comment"),
        properties=_user_properties(facts, options),
        options=options,
        location=location,
        external=facts.get("external") == "true" or location is not None,
        serde=serde,
    )


def _provider(jvm: Jvm, written: str | None) -> dict[str, str | None]:
    """The format by its short name, and as it was written if that is another one."""
    provider = short_name(jvm.spark, written) if written else None
    return {"provider": provider, "written_provider": written if provider not in (written, "hive") else None}


def _options(facts: Mapping[str, str], *, of_serde: bool) -> dict[str, str]:
    """The options among Spark's properties: each is passed with and without its prefix, one of ROW FORMAT only with it.

    In other tables a key that occurs only with the prefix is a property of the user.
    """
    named = ((key.removeprefix(OPTION), value) for key, value in facts.items() if key.startswith(OPTION))
    return {name: value for name, value in named if of_serde or name in facts}


def _user_properties(facts: Mapping[str, str], options: Mapping[str, str]) -> dict[str, str]:
    reserved = {*RESERVED, *(OPTION + name for name in options)}
    return {key.removeprefix(PLAIN): value for key, value in facts.items() if key not in reserved}


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
    """A twophase transform from a Spark transform."""
    paths = [list(reference.fieldNames()) for reference in transform.references()]
    columns = tuple(".".join(path) for path in paths)
    name = str(transform.name())
    if name == "cluster_by":
        return Transform.cluster_by(*paths)
    literals = [str(a.value()) for a in transform.arguments() if hasattr(a, "value") and is_literal(a)]
    arguments: tuple[Any, ...] = tuple(int(v) if v.lstrip("-").isdigit() else v for v in literals)
    if name == "sorted_bucket":
        return _sorted_bucket(transform, arguments)
    return Transform(name, columns, arguments)


def _sorted_bucket(transform: Any, arguments: tuple[Any, ...]) -> Transform:
    """Convert a sorted bucket: bucket columns precede the number of buckets, sort columns follow it."""
    columns: list[list[str]] = [[], []]
    behind = 0
    for argument in transform.arguments():
        if is_literal(argument):
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
    """The result of ``Table.properties()``: Spark's reserved keys and the user's properties."""
    facts = {OPTION + key: value for key, value in definition.options.items()} | dict(definition.properties)
    reserved = {"provider": definition.provider, "comment": definition.comment, "location": definition.location}
    facts |= {key: value for key, value in reserved.items() if value is not None}
    if definition.external:
        facts["external"] = "true"
    return facts


def table_transforms(definition: TableDefinition) -> list[tuple[str, Sequence[str], Sequence[Any]]]:
    """The result of ``Table.partitioning()``, for :func:`twophase.spark.jvm.tables.transforms`."""
    transforms = [(t.name, t.columns, t.arguments) for t in definition.partitioning]
    if definition.bucketing:
        transforms.append(("bucket", definition.bucketing.columns, (definition.bucketing.count,)))
    whole = {name.lower() for name in definition.schema.names}
    return [
        (name, [_reference(column, whole) for column in columns], arguments) for name, columns, arguments in transforms
    ]


def _reference(column: str, whole: Collection[str]) -> str:
    """A column in the syntax of Spark's parser; a dot is part of the name if there is a column of that name."""
    path = [column] if column.lower() in whole else column.split(".")
    return ".".join(map(quote, path))


# -- predicates of a static overwrite ----------------------------------------------------------------------------------


def static_partition(jvm: Jvm, predicates: Sequence[Any], definition: TableDefinition) -> dict[str, str | None] | None:
    """The partition named by ``INSERT OVERWRITE ... PARTITION (p = 1)``; None for any other predicates.

    Parameters
    ----------
    jvm : Jvm
    predicates : sequence of Java ``Predicate``
        A conjunction.
    definition : TableDefinition
        Definition of the table that is written.
    """
    known = {name.lower(): name for name in definition.partition_columns}
    zone = _time_zone(jvm, definition)
    result: dict[str, str | None] = {}
    for predicate in predicates:
        equality = _equality(jvm, predicate, zone)
        if equality is None or equality[0].lower() not in known:
            return None
        column, value = known[equality[0].lower()], equality[1]
        if result.setdefault(column, value) != value:
            return None  # No partition has both.
    return result


def with_written_values(jvm: Jvm, scope: OverwriteScope, definition: TableDefinition) -> OverwriteScope:
    """A scope with the values of a PARTITION clause as Spark writes them into directory names.

    Parameters
    ----------
    jvm : Jvm
    scope : OverwriteScope
        The values as in the clause: ``'1e10'`` for a DOUBLE, a date for a TIMESTAMP.
    definition : TableDefinition
        Definition of the table that is written.
    """
    if not scope.static_partition:
        return scope
    fields = json.loads(types.from_arrow(definition.schema))["fields"]
    kinds = {field["name"].lower(): field["type"] for field in fields}

    def written(column: str, text: str | None) -> str | None:
        kind = str(kinds.get(column.lower(), "string"))
        if text is None or kind.startswith(("string", "varchar")):
            return text
        if kind.startswith("char"):
            return text.ljust(int(kind.removeprefix("char(").removesuffix(")")))
        return text_as(jvm, text, json.dumps(kind), _time_zone(jvm, definition))

    return replace(scope, static_partition={c: written(c, text) for c, text in scope.static_partition.items()})


def _time_zone(jvm: Jvm, definition: TableDefinition) -> str:
    """The time zone of timestamps in directory names: as in Spark's writer, the table's option takes precedence."""
    own = (value for key, value in definition.options.items() if key.lower() == "timezone")
    return next(own, None) or str(jvm.spark.conf.get("spark.sql.session.timeZone"))


def _equality(jvm: Jvm, predicate: Any, zone: str) -> tuple[str, str | None] | None:
    """The column and the value that a predicate compares."""
    name, children = str(predicate.name()), list(predicate.children())
    if name == "IS_NULL":
        column = column_of(children[0])
        return (column, None) if column else None
    if name not in ("=", "<=>") or len(children) != 2:
        return None
    reference, value = children if column_of(children[0]) else reversed(children)
    column = column_of(reference)
    if column is None:
        return None
    text = text_of(jvm, value, zone) if is_literal(value) else truth_of(value)
    return (column, text) if text is not None else None


# -- ALTER TABLE -------------------------------------------------------------------------------------------------------


def changes_of(jvm: Jvm, changes: Sequence[Any]) -> list[TableChange]:
    """Convert Spark's changes to twophase's.

    Raises
    ------
    CatalogError
        A change that no catalog supports.
    """
    return [_change(jvm, change) for change in changes]


def database_changes(changes: Sequence[Any]) -> dict[str, str | None]:
    """Properties to set, and None for properties to remove, from Spark's ``NamespaceChange``."""
    properties: dict[str, str | None] = {}
    for change in changes:
        sets = str(change.getClass().getSimpleName()) == "SetProperty"
        properties[str(change.property())] = str(change.value()) if sets else None
    return properties


def _change(jvm: Jvm, change: Any) -> TableChange:
    kind = str(change.getClass().getSimpleName())
    if kind == "AddColumn":
        return _add_column(jvm, change)
    if kind not in _CHANGES:
        raise CatalogError(f"ALTER TABLE: the change {kind} is not supported.")
    return _CHANGES[kind](change)


def _path(change: Any) -> tuple[str, ...]:
    return tuple(change.fieldNames())


def _field(
    name: str, data_type: Any, nullable: bool, comment: str | None, default: Mapping[str, str] | None = None
) -> pa.Schema:
    metadata = {**({} if comment is None else {"comment": comment}), **(default or {})}
    field = {"name": name, "type": json.loads(str(data_type.json())), "nullable": nullable, "metadata": metadata}
    return types.to_arrow(types.struct_json([field]))


def _position(position: Any) -> dict[str, str]:
    if position is None:
        return {}
    if str(position.getClass().getSimpleName()) == "First":
        return {"position": "first"}
    return {"position": f"after:{position.column()}"}


def _set_property(change: Any) -> TableChange:
    key, value = str(change.property()), str(change.value())
    if key in _OF_THE_SESSION:
        raise CatalogError(f"ALTER TABLE: {_OF_THE_SESSION[key]} is not supported.")
    if key == "comment":
        return TableChange("set_comment", (), {"comment": value})
    return TableChange("set_property", (), {"key": key, "value": value})


def _remove_property(change: Any) -> TableChange:
    if str(change.property()) == "comment":
        return TableChange("set_comment", (), {"comment": None})
    return TableChange("remove_property", (), {"key": str(change.property())})


def _add_column(jvm: Jvm, change: Any) -> TableChange:
    path = _path(change)
    default = change.defaultValue()
    field = _field(
        path[-1],
        change.dataType(),
        bool(change.isNullable()),
        change.comment(),
        None if default is None else column_defaults.of_new_column(jvm, change.dataType(), str(default.getSql())),
    )
    return TableChange("add_column", path, {"field": field, **_position(change.position())})


def _update_type(change: Any) -> TableChange:
    path = _path(change)
    return TableChange("update_column_type", path, {"field": _field(path[-1], change.newDataType(), True, None)})


def _update_default(change: Any) -> TableChange:
    sql = change.newDefaultValue()  # Empty for DROP DEFAULT.
    return TableChange("update_column_default", _path(change), {"default": str(sql) if sql else None})


_CHANGES: Mapping[str, Any] = {
    "SetProperty": _set_property,
    "RemoveProperty": _remove_property,
    "DeleteColumn": lambda c: TableChange("drop_column", _path(c), {"if_exists": bool(c.ifExists())}),
    "RenameColumn": lambda c: TableChange("rename_column", _path(c), {"name": str(c.newName())}),
    "UpdateColumnType": _update_type,
    "UpdateColumnComment": lambda c: TableChange("update_column_comment", _path(c), {"comment": c.newComment()}),
    "UpdateColumnNullability": lambda c: TableChange(
        "update_column_nullability", _path(c), {"nullable": bool(c.nullable())}
    ),
    "UpdateColumnDefaultValue": _update_default,
    "UpdateColumnPosition": lambda c: TableChange("move_column", _path(c), _position(c.position())),
}
