"""Conversion of a statement's rows to the columns of the target table, for statements that Spark does not check.

Spark's analyser does this for ``INSERT``. Here it is done from two schemas, without a JVM: a column of the target's
type is used unchanged, one that fits without loss is cast, and all others are refused before anything begins.
:mod:`twophase.schema.promotion` defines which casts are lossless; the expressions are those of a reconciled write.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from twophase.catalog.spark_columns import CHAR_VARCHAR, declared_type
from twophase.errors import CatalogError
from twophase.model import ObjectPath, quote
from twophase.schema import ReconcilePolicy, assign_ids, reconcile
from twophase.schema.errors import SchemaError
from twophase.schema.names import fold
from twophase.schema.plan_spark import string_literal
from twophase.spark import types

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Json = Any
#: A column as Spark's JSON describes it.
Column = Mapping[str, Json]

#: The table keeps its schema, all of its columns must be present, and casts are lossless.
_AS_THE_TABLE = ReconcilePolicy(missing=False, new="refuse", widen=False)

_LENGTH = re.compile(r"(char|varchar)\((\d+)\)")


def fitted(df: DataFrame, table: pa.Schema, path: ObjectPath) -> DataFrame:
    """Return rows with a table's columns: found by name, in the table's order and types.

    Parameters
    ----------
    df : pyspark.sql.DataFrame
        Classic or Connect.
    table : pyarrow.Schema
        The table's columns.
    path : ObjectPath
        The table, for errors.

    Raises
    ------
    CatalogError
        A column is missing, unknown or ambiguous, or its type cannot be converted without loss.
    """
    wanted = _columns(table)
    given = _by_name(_columns(types.to_arrow_schema(df.schema)), wanted, path)
    return df.selectExpr(*(_expression(have, want, path) for have, want in zip(given, wanted, strict=True)))


def _columns(schema: pa.Schema) -> list[Column]:
    return json.loads(types.from_arrow(schema))["fields"]


def _by_name(given: Sequence[Column], wanted: Sequence[Column], path: ObjectPath) -> list[Column]:
    """The source column for each target column; case is ignored, unless the table's names differ only in case."""
    key = fold if len({fold(column["name"]) for column in wanted}) == len(wanted) else str
    found = {key(column["name"]): column for column in given}
    twice = sorted({column["name"] for column in given if found[key(column["name"])] is not column})
    if twice:
        raise CatalogError(
            f"The rows for {path} have more than one column of the name {', '.join(twice)}. Nothing was started.",
            path=path,
            hint="Give each column of the DataFrame a name of its own.",
        )
    names = [key(column["name"]) for column in wanted]
    missing = [column["name"] for column in wanted if key(column["name"]) not in found]
    unknown = [column["name"] for name, column in found.items() if name not in names]
    if missing or unknown:
        raise CatalogError(
            f"The columns of the rows are not those of {path}: missing {missing}, unknown {unknown}. "
            "Nothing was started.",
            path=path,
            hint="Select the table's columns: they are found by name.",
        )
    return [found[name] for name in names]


def _expression(have: Column, want: Column, path: ObjectPath) -> str:
    """SQL of one column of the table, computed from the rows."""
    have = {**have, "type": _plain(have["type"])}
    declared = declared_type(want)
    if isinstance(declared, str) and (length := _LENGTH.fullmatch(declared)):
        value = _value(have, {**want, "type": "string"}, path)
        text = _within(value, length[1], int(length[2]), f"{want['name']} of {path}")
    elif _holds_length(declared):
        raise CatalogError(
            f"Column {want['name']} of {path} has a char or varchar inside another type, whose length only Spark's own "
            "INSERT checks. Nothing was started.",
            path=path,
            hint="Insert the rows with SQL, or make the column one of strings.",
        )
    else:
        text = _value(have, want, path)
    return f"{text} AS {quote(want['name'])}"


def _value(have: Column, want: Column, path: ObjectPath) -> str:
    source = quote(have["name"])
    if have["type"] == "void" and (name := _sql_type(want["type"])):
        source = f"CAST({source} AS {name})"  # not a literal NULL: computing it may fail
    elif _is_reported_by_arrow(have["type"]) and _is_reported_by_arrow(want["type"]):
        return _reconciled(have, want, path)
    elif not _goes_as_it_is(have["type"], want["type"]):
        raise _refused(have, want, path)
    return source if want["nullable"] or not have["nullable"] else _never_null(source, want, path)


def _reconciled(have: Column, want: Column, path: ObjectPath) -> str:
    table, rows = (types.to_arrow(types.struct_json([_bare_column(column)])) for column in (want, have))
    try:
        fit = reconcile(assign_ids(table), rows, _AS_THE_TABLE)
        (text,) = fit.plan.spark_expressions()
    except SchemaError as error:
        raise _refused(have, want, path, _where(error, want["name"])) from error
    return text.removesuffix(f" AS {quote(want['name'])}")


def _bare_column(column: Column) -> Column:
    return {**column, "metadata": {}}


def _where(error: SchemaError, name: str) -> str | None:
    """The part of a nested type that an error is about."""
    if error.field_path in (None, name):
        return None
    have, want = error.new_type or "missing", error.old_type or "no field of the table"
    return f"{error.field_path} is {want}, and {have} in the rows"


# -- types that Arrow does not distinguish -----------------------------------------------------------------------------


def _plain(kind: Json) -> Json:
    """The type with CHAR and VARCHAR as strings, as they are read."""
    return types.mapped(kind, atom=lambda name: "string" if _LENGTH.fullmatch(name) else name)


def _is_reported_by_arrow(kind: Json) -> bool:
    """Return whether the type is restored from its Arrow type alone; intervals, variants and others share theirs."""
    column = {"name": "c", "type": kind, "nullable": True, "metadata": {}}
    arrow = types.to_arrow(types.struct_json([column])).field(0).remove_metadata()
    (back,) = _columns(pa.schema([arrow]))
    return _shape(back["type"]) == _shape(kind)


def _holds_length(kind: Json) -> bool:
    """Return whether it contains a CHAR or VARCHAR: in a type, or in Spark's name of one."""
    return _LENGTH.search(kind) is not None if isinstance(kind, str) else bool(_plain(kind) != kind)


def _shape(kind: Json) -> Json:
    """The type without comments and nullability."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "struct":
        return [[field["name"], _shape(field["type"])] for field in kind["fields"]]
    if kind["type"] == "array":
        return {"element": _shape(kind["elementType"])}
    if kind["type"] == "map":
        return {"key": _shape(kind["keyType"]), "value": _shape(kind["valueType"])}
    return kind


def _goes_as_it_is(have: Json, want: Json) -> bool:
    """Return whether the types are the same, and no nested value may be NULL where the target forbids it."""
    return bool(_shape(have) == _shape(want)) and all(
        loose or not given for given, loose in zip(_nullable(have), _nullable(want), strict=True)
    )


def _nullable(kind: Json) -> list[bool]:
    """The nullability of the nested values of a type, in order."""
    if isinstance(kind, str):
        return []
    if kind["type"] == "struct":
        return [flag for field in kind["fields"] for flag in (field["nullable"], *_nullable(field["type"]))]
    if kind["type"] == "array":
        return [kind["containsNull"], *_nullable(kind["elementType"])]
    if kind["type"] == "map":
        return [kind["valueContainsNull"], *_nullable(kind["keyType"]), *_nullable(kind["valueType"])]
    return []


def _never_null(source: str, want: Column, path: ObjectPath) -> str:
    failure = string_literal(f"{want['name']} of {path} is NOT NULL, and a row holds NULL there.")
    return f"COALESCE({source}, RAISE_ERROR({failure}))"


def _within(source: str, kind: str, length: int, column: str) -> str:
    """A text as Spark writes it into a CHAR or VARCHAR: spaces beyond the length are cut; longer texts are an error."""
    failure = string_literal(f"A value of {column} is longer than {kind}({length}).")
    rest = f"RTRIM(SUBSTRING({source}, {length + 1}))"
    cut = f"IF({rest} = '', LEFT({source}, {length}), RAISE_ERROR({failure}))"
    text = f"IF(CHAR_LENGTH({source}) > {length}, {cut}, {source})"
    return f"RPAD({text}, {length})" if kind == "char" else text


# -- words -------------------------------------------------------------------------------------------------------------


def _refused(have: Column, want: Column, path: ObjectPath, detail: str | None = None) -> CatalogError:
    name = want["name"]
    wanted = want["metadata"].get(CHAR_VARCHAR) or _sql_type(want["type"]) or json.dumps(want["type"])
    given = _sql_type(have["type"]) or json.dumps(have["type"])
    return CatalogError(
        f"Column {name} of {path} is {wanted}, and the rows have {given}, which does not become that without loss"
        f"{f' ({detail})' if detail else ''}. Nothing was started.",
        path=path,
        hint=f"Cast it: df.withColumn({name!r}, df[{have['name']!r}].cast({wanted!r})).",
    )


def _sql_type(kind: Json) -> str | None:
    """The type in Spark SQL; None if this version of Spark, or SQL, cannot express it."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType, UserDefinedType

    column = {"name": "c", "type": kind, "nullable": True, "metadata": {}}
    try:
        made = StructType.fromJson({"type": "struct", "fields": [column]})[0].dataType
    except (PySparkException, ImportError, AttributeError):
        return None
    return None if isinstance(made, UserDefinedType) else made.simpleString()
