"""What Spark knows of the functions of SQL text that a job has made: a part of :mod:`twophase.spark.jvm.bridge`."""

from __future__ import annotations

import json
from typing import Any

from twophase.model import quote
from twophase.spark.jvm.bridge import Jvm, private_name

_BODY = "Body:"
#: Spark 4.0 shows all facts of such a function as one document.
_DOCUMENT = "Usage: {"
_IN_DOCUMENT = ("sqlFunction.query", "sqlFunction.expression")


class FunctionReader:
    """The functions of one session.

    Parameters
    ----------
    jvm : Jvm
    """

    def __init__(self, jvm: Jvm) -> None:
        self._spark = spark = jvm.spark
        with private_name("SessionCatalog.isTemporaryFunction", spark):
            self._catalog = spark._jsparkSession.sessionState().catalog()
            self._identifier = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier
            self._some = spark._jvm.scala.Option.apply

    def body(self, parts: tuple[str, ...]) -> str | None:
        """The query or expression of a function that was made by ``CREATE FUNCTION ... RETURN``; None for any other.

        Parameters
        ----------
        parts : tuple of str
            Its name; what is no function may be asked for, too.
        """
        if not self._is_made(parts[-2:]):
            return None
        from pyspark.sql.classic.dataframe import DataFrame

        told = self._spark._jsparkSession.sql(f"DESCRIBE FUNCTION EXTENDED {'.'.join(map(quote, parts))}")
        rows: list[Any] = DataFrame(told, self._spark).collect()
        return next((body for row in rows if (body := _body(str(row[0])))), None)

    def _is_made(self, parts: tuple[str, ...]) -> bool:
        """Whether a job has made a function of this name: those of Spark itself read no table."""
        database = parts[0] if len(parts) == 2 else None
        with private_name("SessionCatalog.isTemporaryFunction", self._spark):
            identifier = self._identifier(parts[-1], self._some(database))
            is_temporary = database is None and self._catalog.isTemporaryFunction(identifier)
            return bool(is_temporary or self._catalog.isPersistentFunction(identifier))


def _body(line: str) -> str | None:
    """The body, where a line of a function's description tells it."""
    if line.startswith(_BODY):
        return line.removeprefix(_BODY).strip()
    if not line.startswith(_DOCUMENT):
        return None
    facts = json.loads(line.removeprefix(_DOCUMENT[:-1]))
    return next((facts[key] for key in _IN_DOCUMENT if key in facts), None)
