"""Values and columns inside Spark's expressions."""

from __future__ import annotations

from typing import Any

from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.java_sources import java_object

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

    Parameters
    ----------
    jvm : Jvm
    literal : Java ``LiteralValue``
    zone : str
        For timestamps, in Spark's notation.
    """
    return _text(_values(jvm).of(literal, zone))


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
    return _text(_values(jvm).converted(text, kind, zone))


def _text(found: Any) -> str | None:
    return None if found is None else str(found)


def _values(jvm: Jvm) -> Any:
    return jvm.once(("PartitionValues",), lambda: java_object(jvm, "PartitionValues"))
