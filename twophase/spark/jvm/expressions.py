"""Values and columns inside Spark's expressions."""

from __future__ import annotations

from typing import Any

from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm, private_name

_CATALYST = "org.apache.spark.sql.catalyst.expressions."
_TRUTHS = {"AlwaysTrue": "true", "AlwaysFalse": "false"}


def is_literal(expression: Any) -> bool:
    """Return whether an expression of a v2 catalog is a literal."""
    return "Literal" in str(expression.getClass().getSimpleName())


def column_of(expression: Any) -> str | None:
    """The column that an expression of a v2 catalog refers to; None for any other expression."""
    if str(expression.getClass().getSimpleName()) != "FieldReference":
        return None
    return ".".join(expression.fieldNames())


def truth_of(expression: Any) -> str | None:
    """TRUE or FALSE if Spark treats it as a predicate, as in ``p <=> TRUE``; None for any other expression."""
    return _TRUTHS.get(str(expression.getClass().getSimpleName()))


def text_of(jvm: Jvm, literal: Any, zone: str) -> str | None:
    """The value of a v2 literal as Spark writes it into a partition's directory name; None for NULL.

    The value itself never reaches Python, which supports neither all of Spark's types nor all its time zones.

    Parameters
    ----------
    jvm : Jvm
    literal : Java ``LiteralValue``
    zone : str
        For timestamps, in Spark's notation.
    """
    with private_name("LiteralValue.productIterator", jvm.spark):
        value_and_type = literal.productIterator().toArray(values.any_tag(jvm))
        return _text(jvm, _constructor(jvm).newInstance(value_and_type), zone)


def text_as(jvm: Jvm, text: str, kind: str, zone: str) -> str | None:
    """Convert a text to a type, and format it as Spark writes that value into a partition's directory name.

    Parameters
    ----------
    jvm : Jvm
    text : str
        The value as written in a PARTITION clause.
    kind : str
        JSON of the type.
    zone : str
    """
    with private_name("Literal.create", jvm.spark):
        literal = jvm.static(_CATALYST + "Literal", "create")(text, _string(jvm))
        data_type = jvm.static("org.apache.spark.sql.types.DataType", "fromJson")(kind)
        return _text(jvm, jvm.kind(_CATALYST + "Cast")(literal, data_type, values.option(jvm, zone)), zone)


def _text(jvm: Jvm, value: Any, zone: str) -> str | None:
    found = jvm.kind(_CATALYST + "Cast")(value, _string(jvm), values.option(jvm, zone)).eval(None)
    return None if found is None else str(found.toString())


def _string(jvm: Jvm) -> Any:
    return jvm.once(("StringType",), lambda: jvm.kind("org.apache.spark.sql.types.DataTypes").StringType)


def _constructor(jvm: Jvm) -> Any:
    """The constructor of Spark's own literal from a value and its type."""

    def find() -> Any:
        return jvm.static("java.lang.Class", "forName")(_CATALYST + "Literal").getConstructors()[0]

    return jvm.once(("Literal",), find)
