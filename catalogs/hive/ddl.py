"""Convert types and definitions to SQL text, and types back, for metastores that are reached through SQL."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from twophase.catalog.spark_columns import declared_type, spark_field
from twophase.catalogs.hive.tables import HivePartition, HiveTable
from twophase.errors import CatalogError
from twophase.model import quote

_NAMES = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_WORDS = {kind: name for name, kind in _NAMES.items()}
#: Names of types in Spark's JSON that differ from SQL.
_SPARK_WORDS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "timestamp_ltz": "timestamp",
}


# -- types to SQL ------------------------------------------------------------------------------------------------------


def sql_type(field: pa.Field) -> str:
    """Return the SQL type of a column; Spark's own spelling if the field has it.

    Raises
    ------
    CatalogError
        The type has no supported SQL spelling.
    """
    declared = declared_type(spark_field(field))
    return _sql_of_arrow(field.type, field.name) if declared is None else _spark_type(declared)


def spark_atom(kind: pa.DataType) -> str | None:
    """Return the name of a type in Spark's JSON; None for one that has others below it."""
    if pa.types.is_nested(kind):
        return None
    word = _sql_of_arrow(kind, "")
    return next((name for name, sql in _SPARK_WORDS.items() if sql == word and name != "timestamp_ltz"), word)


def _spark_type(kind: Any) -> str:
    if isinstance(kind, str):
        return _SPARK_WORDS.get(kind, kind)
    if kind["type"] == "array":
        return f"array<{_spark_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{_spark_type(kind['keyType'])},{_spark_type(kind['valueType'])}>"
    return "struct<" + ",".join(f"{quote(f['name'])}:{_spark_type(f['type'])}" for f in kind["fields"]) + ">"


def _sql_of_arrow(kind: pa.DataType, name: str) -> str:
    if kind in _WORDS:
        return _WORDS[kind]
    if pa.types.is_large_string(kind):
        return "string"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pa.types.is_timestamp(kind):
        return "timestamp" if kind.tz else "timestamp_ntz"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return f"array<{_sql_of_arrow(kind.value_type, name)}>"
    if pa.types.is_map(kind):
        return f"map<{_sql_of_arrow(kind.key_type, name)},{_sql_of_arrow(kind.item_type, name)}>"
    if pa.types.is_struct(kind):
        fields = (kind.field(index) for index in range(kind.num_fields))
        return "struct<" + ",".join(f"{quote(f.name)}:{_sql_of_arrow(f.type, f.name)}" for f in fields) + ">"
    raise CatalogError(f"Column {name!r} has the type {kind}, which has no spelling in SQL here.")


# -- SQL to types ------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"`((?:[^`]|``)*)`|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|([<>(),:])|\s+")


def arrow_type(text: str) -> pa.DataType:
    """Return the Arrow type of an SQL type.

    Raises
    ------
    CatalogError
        The type is not supported.
    """
    tokens = [m[1].replace("``", "`") if m[1] is not None else m[0] for m in _TOKEN.finditer(text) if m[0].strip()]
    parser = _Types(text, tokens)
    return parser.type()


class _Types:
    """Recursive descent parser of one type."""

    def __init__(self, text: str, tokens: list[str]) -> None:
        self._text = text
        self._tokens = tokens

    def type(self) -> pa.DataType:
        word = self._next().lower()
        if word in _NAMES:
            return _NAMES[word]
        if word in ("char", "varchar"):
            list(self._arguments())
            return pa.string()
        if word == "decimal":
            precision, scale = [*self._arguments(), 10, 0][:2] if self._peek() == "(" else (10, 0)
            return pa.decimal128(precision, scale)
        return self._nested(word)

    def _nested(self, word: str) -> pa.DataType:
        self._expect("<")
        if word == "array":
            kind = pa.list_(self.type())
        elif word == "map":
            key = self.type()
            self._expect(",")
            kind = pa.map_(key, self.type())
        elif word == "struct":
            kind = pa.struct(list(self._fields()))
        else:
            raise CatalogError(f"The type {self._text!r} is not known to twophase.")
        self._expect(">")
        return kind

    def _fields(self) -> Iterator[pa.Field]:
        while self._peek() != ">":
            name = self._next()
            self._expect(":")
            yield pa.field(name, self.type())
            if self._peek() == ",":
                self._next()

    def _arguments(self) -> Iterator[int]:
        self._expect("(")
        while (token := self._next()) != ")":
            if token != ",":
                yield int(token)

    def _peek(self) -> str:
        return self._tokens[0] if self._tokens else ""

    def _next(self) -> str:
        if not self._tokens:
            raise CatalogError(f"The type {self._text!r} is not known to twophase.")
        return self._tokens.pop(0)

    def _expect(self, token: str) -> None:
        if self._next() != token:
            raise CatalogError(f"The type {self._text!r} is not known to twophase.")


# -- statements --------------------------------------------------------------------------------------------------------


#: Start of a server variable (or environment variable), which the server substitutes before parsing a statement.
VARIABLE = "${"


def literal(text: str) -> str:
    """Return a string literal of Spark and Hive SQL, in which a server does not substitute variables."""
    text = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return "'" + text.replace(VARIABLE, "\\u0024{") + "'"


def table_name(database: str, name: str) -> str:
    """Return ``database.table`` in backticks."""
    return f"{quote(database)}.{quote(name)}"


def pairs(entries: Mapping[str, str]) -> str:
    """Return ``('key' = 'value', ...)``."""
    return "(" + ", ".join(f"{literal(key)} = {literal(value)}" for key, value in sorted(entries.items())) + ")"


def column(field: pa.Field) -> str:
    """Return one column of a CREATE TABLE."""
    comment = (field.metadata or {}).get(b"comment")
    default = spark_field(field).get("metadata", {}).get("CURRENT_DEFAULT")
    words = f"{quote(field.name)} {sql_type(field)}" + ("" if default is None else f" DEFAULT {default}")
    return words if comment is None else f"{words} COMMENT {literal(comment.decode())}"


def create_table(table: HiveTable) -> str:
    """Return ``CREATE TABLE ... USING ... LOCATION``."""
    parts = [
        f"CREATE TABLE {table_name(table.database, table.name)} ({', '.join(column(f) for f in table.schema)})",
        f"USING {table.provider}",
    ]
    if table.options:
        parts.append("OPTIONS " + pairs(table.options))
    if table.partition_columns:
        parts.append(f"PARTITIONED BY ({', '.join(quote(name) for name in table.partition_columns)})")
    if table.comment is not None:
        parts.append("COMMENT " + literal(table.comment))
    parts.append("LOCATION " + literal(str(table.location)))
    if table.properties:
        parts.append("TBLPROPERTIES " + pairs(table.properties))
    return " ".join(parts)


def partition_spec(partition: HivePartition) -> str:
    """Return ``PARTITION (a = '1')``."""
    return "PARTITION (" + ", ".join(f"{quote(k)} = {literal(v)}" for k, v in partition.values.items()) + ")"


def add_partitions(table: HiveTable, partitions: Sequence[HivePartition]) -> str:
    """Return one ``ALTER TABLE ... ADD PARTITION ... LOCATION ...`` for all partitions."""
    added = " ".join(f"{partition_spec(part)} LOCATION {literal(part.location)}" for part in partitions)
    return f"ALTER TABLE {table_name(table.database, table.name)} ADD {added}"
