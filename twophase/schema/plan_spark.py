"""Read plans as Spark SQL expressions: text only, for classic sessions and Spark Connect.

Casts do not depend on the session: neither ``spark.sql.ansi.enabled`` nor the session's time zone affects a result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

import pyarrow as pa

from twophase.schema.errors import UnsupportedTypeError
from twophase.schema.leaf import family, type_name
from twophase.schema.names import quote
from twophase.schema.promotion import Loss, classify
from twophase.schema.read_field import ReadField
from twophase.schema.schema import Field, Kind, Schema

_SQL_TYPES = {
    "null": "VOID",
    "boolean": "BOOLEAN",
    "byte": "TINYINT",
    "short": "SMALLINT",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "STRING",
    "binary": "BINARY",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "time": "TIME",
}


def sql_type(node: Field) -> str:
    """The type of a field in Spark SQL.

    Raises
    ------
    UnsupportedTypeError
        Spark has no such type.
    """
    if node.leaf is not None:
        return sql_leaf(node.leaf, node.name)
    if node.kind is Kind.STRUCT:
        return f"STRUCT<{', '.join(f'{quote(child.name)}: {sql_type(child)}' for child in node.children)}>"
    below = ", ".join(sql_type(child) for child in node.children)
    return f"{'ARRAY' if node.kind is Kind.LIST else 'MAP'}<{below}>"


def sql_leaf(leaf: pa.DataType, path: str) -> str:
    """A leaf type in Spark SQL."""
    kind = family(leaf)
    if kind == "decimal" and 0 <= leaf.scale <= leaf.precision <= 38:
        return f"DECIMAL({leaf.precision}, {leaf.scale})"
    if kind is None or kind == "decimal":
        raise UnsupportedTypeError(
            f"The field {path} has the type {leaf}, which Spark does not have.",
            field_path=path,
            old_type=str(leaf),
            new_type="a type of Spark",
            allowed=("reading with PyArrow (ReadPlan.project)", "a field of a type that Spark has"),
        )
    return _SQL_TYPES[kind]


def expressions(query: Schema, fields: Sequence[ReadField]) -> list[str]:
    """Return one expression per field of the query; see :meth:`ReadPlan.spark_expressions`."""
    writer = _Writer(query)
    return [f"{writer.top(read)} AS {quote(read.field.name)}" for read in fields]


class _Writer:
    def __init__(self, query: Schema) -> None:
        self.query = query
        self.numbers = count()

    def top(self, read: ReadField) -> str:
        return self.value(read, "" if read.source is None else quote(read.source.name))

    def value(self, read: ReadField, source: str) -> str:
        value = self.unchecked(read, source)
        if read.field.nullable or not self.may_be_null(read):
            return value
        failure = string_literal(f"{self.query.name_of(read.field.id)} is NOT NULL, and a row holds NULL there.")
        return f"COALESCE({value}, RAISE_ERROR({failure}))"

    def may_be_null(self, read: ReadField) -> bool:
        if read.source is None:
            return read.constant is None
        return read.source.nullable or any(
            mode == "null" and classify(old, new) is Loss.MAY_FAIL for old, new, mode in read.steps
        )

    def unchecked(self, read: ReadField, source: str) -> str:
        if read.source is None:
            return self.constant(read)
        if read.untouched:
            return source
        if read.field.kind is Kind.LEAF:
            return self.leaf(read, source)
        return self.nested(read, source)

    def constant(self, read: ReadField) -> str:
        target = sql_type(read.field)
        if read.constant is None:
            return f"CAST(NULL AS {target})"
        return f"CAST({literal(read.constant)} AS {target})"

    def leaf(self, read: ReadField, source: str) -> str:
        for old, new, mode in read.steps:
            source = self.cast(source, old, new, mode, self.query.name_of(read.field.id))
        return source

    def cast(self, source: str, old: pa.DataType, new: pa.DataType, mode: str, path: str) -> str:
        if classify(old, new) is not Loss.MAY_FAIL:
            return _total_cast(source, old, new, path)
        attempt = _try_cast(source, old, new, path)
        if mode == "null":
            return attempt
        text = string_literal(f"A value of {path} is no {type_name(new)} ({type_name(old)}): ")
        failure = f"RAISE_ERROR(CONCAT({text}, COALESCE(CAST({source} AS STRING), '')))"
        return f"IF(({source}) IS NOT NULL AND {attempt} IS NULL, {failure}, {attempt})"

    def nested(self, read: ReadField, source: str) -> str:
        if read.field.kind is Kind.STRUCT:
            return self.struct(read, source)
        number = next(self.numbers)
        if read.field.kind is Kind.LIST:
            element = self.value(read.children[0], f"e{number}")
            return f"TRANSFORM({source}, e{number} -> {element})"
        value = self.value(read.children[1], f"v{number}")
        return f"TRANSFORM_VALUES({source}, (k{number}, v{number}) -> {value})"

    def struct(self, read: ReadField, source: str) -> str:
        parts = []
        for child in read.children:
            below = "" if child.source is None else f"{source}.{quote(child.source.name)}"
            parts.append(f"{string_literal(child.field.name)}, {self.value(child, below)}")
        return f"IF({source} IS NULL, NULL, NAMED_STRUCT({', '.join(parts)}))"


def _total_cast(source: str, old: pa.DataType, new: pa.DataType, path: str) -> str:
    target = sql_leaf(new, path)
    if family(new) != "string":
        return f"CAST({source} AS {target})"
    if family(old) == "timestamp":
        # As text in UTC: Spark's own cast uses the session's time zone.
        seconds = f"CAST(UNIX_MICROS({source}) AS DECIMAL(20, 0)) / 1000000"
        epoch = "TIMESTAMP_NTZ '1970-01-01 00:00:00'"
        return f"CAST({epoch} + MAKE_DT_INTERVAL(0, 0, 0, {seconds}) AS STRING)"
    # Not CAST, which writes small decimals with an exponent unless in ANSI mode.
    return f"TRY_CAST({source} AS {target})"


def _try_cast(source: str, old: pa.DataType, new: pa.DataType, path: str) -> str:
    target = sql_leaf(new, path)
    if family(old) == "binary":
        return f"IF(IS_VALID_UTF8(CAST({source} AS STRING)), CAST({source} AS STRING), NULL)"
    if family(old) == "decimal" and family(new) != "decimal":
        # Through text: Spark's own cast of more than 18 digits goes through a double.
        whole = f"IF({source} < 0, CEIL({source}), FLOOR({source}))"
        return f"TRY_CAST(TRY_CAST({whole} AS STRING) AS {target})"
    return f"TRY_CAST({source} AS {target})"


def string_literal(text: str) -> str:
    """Text as a Spark SQL literal that is independent of the escape mode."""
    if text.isprintable() and text.isascii() and "'" not in text and "\\" not in text:
        return f"'{text}'"
    return f"DECODE(X'{text.encode().hex()}', 'UTF-8')"


def _quoted(form: str) -> Callable[[pa.Scalar], str]:
    return lambda scalar: f"{form} '{_plain_text(scalar)}'"


def _plain_text(scalar: pa.Scalar) -> str:
    if pa.types.is_timestamp(scalar.type):
        scalar = scalar.cast(pa.int64()).cast(pa.timestamp(scalar.type.unit))
    return str(scalar.cast(pa.string()).as_py())


_LITERALS: dict[str, Callable[[pa.Scalar], str]] = {
    "boolean": lambda scalar: str(scalar.as_py()).upper(),
    "string": lambda scalar: string_literal(scalar.as_py()),
    "binary": lambda scalar: f"X'{scalar.as_py().hex()}'",
    "float": lambda scalar: f"FLOAT('{scalar.as_py()!r}')",
    "double": lambda scalar: f"DOUBLE('{scalar.as_py()!r}')",
    "decimal": lambda scalar: f"{scalar.as_py():f}BD",
    "date": _quoted("DATE"),
    "timestamp_ntz": _quoted("TIMESTAMP_NTZ"),
    "timestamp": lambda scalar: f"TIMESTAMP '{_plain_text(scalar)}Z'",
    "time": _quoted("TIME"),
}


def literal(scalar: pa.Scalar) -> str:
    """A value of a leaf type as a Spark SQL literal."""
    kind = family(scalar.type)
    if kind in _LITERALS:
        return _LITERALS[kind](scalar)
    return str(scalar.as_py())
