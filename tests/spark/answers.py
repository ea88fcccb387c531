"""The answers of a session to some statements, with and without ``twophase.attach``.

The statements are run twice over, in two databases of the same name in turn, once by an attached session and once by
one that is not. What must differ is put aside by name: locations, expression ids and the owner stamp. Errors are
compared word by word, with the names in them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import twophase
from tests.spark.routed import stock_session

_CATALOG = (r"(table or view|schema) `spark_catalog`\.(\S+ (because it already exists|cannot be found))", r"\1 \2")
#: What is never the same twice, also in an error. A CTAS names a table that exists, or a database that does not
#: exist, without Spark's catalog, as docs/spark.md says.
_VARYING = [(r"file:/\S*", "<location>"), (r"#\d+L?", "#"), (r"(?s)(;\n|\n\nJVM stacktrace:).*", ""), _CATALOG]
#: In an answer besides: the owner stamp that is to be there, and the name of our catalog.
_VARYING_IN_ROWS = [
    (r"'?twophase\.transaction'?\s*=\s*'?[\w-]+'?,?\s*", ""),
    *_VARYING[:2],
    (r"`?(hive|spark_catalog)`?\.", ""),
    (r"\[path=[^\]]*\]", "[path]"),
    (r"'transient_lastDdlTime' = '\d+',?\s*", ""),
    (r",(\s*\)\s*)$", r"\1"),
    (r"TBLPROPERTIES \(\s*\)\s*", ""),
    # Stock Spark takes a SerDe table's column for NOT NULL where the first rows cannot be NULL.
    (r" NOT NULL", ""),
]


def _stable(value: Any, varying: Sequence[tuple[str, str]] = _VARYING_IN_ROWS) -> Any:
    if isinstance(value, str):
        for pattern, replacement in varying:
            value = re.sub(pattern, replacement, value)
    return value


@dataclass(frozen=True)
class Call:
    """A step that is no SQL: a name for it, and what it does with a session."""

    name: str
    run: Callable[[SparkSession], Any]

    def __str__(self) -> str:
        return self.name


def _answer(session: SparkSession, step: str | Call) -> Any:
    try:
        if isinstance(step, Call):
            step.run(session)
            return []
        frame = session.sql(step)
        return [tuple(_stable(value) for value in row) for row in frame.collect()]
    except PySparkException as error:
        return type(error).__name__, error.getCondition(), _stable(str(error), _VARYING)
    except Py4JJavaError as error:  # what PySpark has no class for
        return str(error.java_exception.getClass().getName()), str(error.java_exception.getCondition())


def _answers(session: SparkSession, statements: Sequence[str | Call]) -> dict[str, Any]:
    session.sql("CREATE DATABASE same")
    session.sql("USE same")
    try:
        return {f"{number} {text}": _answer(session, text) for number, text in enumerate(statements)}
    finally:
        session.sql("USE default")
        session.sql("DROP DATABASE same CASCADE")


def assert_same_answers(session: SparkSession, statements: Sequence[str | Call]) -> None:
    """Run the statements in two new sessions of one context."""
    stock = _answers(stock_session(session), statements)
    attached = session.newSession()
    handle = twophase.attach(attached)
    ours = _answers(attached, statements)
    assert {text: (answer, stock[text]) for text, answer in ours.items() if answer != stock[text]} == {}
    assert any(record.level is not None for record in handle.timeline.transactions())
