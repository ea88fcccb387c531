"""What a ``DELETE FROM ... WHERE`` says, as frames: for conditions that Spark does not hand to a table."""

from __future__ import annotations

from typing import Any

from twophase.model import ObjectPath
from twophase.spark.jvm.bridge import Jvm, private_name

_FILE = "__twophase_file"


class Delete:
    """An analysed ``DELETE FROM ... WHERE`` of a table of a catalog.

    Parameters
    ----------
    jvm : Jvm
    plan : Java ``DeleteFromTable``
    """

    def __init__(self, jvm: Jvm, plan: Any) -> None:
        self._jvm = jvm
        with private_name("DeleteFromTable.condition", jvm.spark):
            self._condition = plan.condition()
            self._relation = plan.table().collectLeaves().head()

    def target(self) -> tuple[str, ObjectPath] | None:
        """The catalog's name, and the table in it; None where it is no table of a catalog."""
        if str(self._relation.getClass().getSimpleName()) != "DataSourceV2Relation":
            return None
        catalog, identifier = self._relation.catalog(), self._relation.identifier()
        if catalog.isEmpty() or identifier.isEmpty():
            return None
        found = identifier.get()
        return str(catalog.get().name()), ObjectPath.of(*map(str, found.namespace()), str(found.name()))

    @property
    def is_deterministic(self) -> bool:
        """Whether the condition is the same for a row each time that it is asked."""
        return bool(self._condition.deterministic())

    def files(self, table: Any) -> list[str]:
        """The files of a table that hold rows to be deleted, as Spark writes their names."""
        from pyspark.sql.functions import input_file_name

        named = self._jvm.frame_of(self._read(table)).withColumn(_FILE, input_file_name())
        with private_name("Dataset.queryExecution", self._jvm.spark):
            rows = named._jdf.queryExecution().analyzed()
        found = self._jvm.frame_of(self._filter(self._condition, rows)).select(_FILE).distinct()
        return [str(row[0]) for row in found.collect()]

    def kept(self, table: Any) -> Any:
        """The rows of a table that stay: those for which the condition is false or NULL."""
        expressions = "org.apache.spark.sql.catalyst.expressions."
        with private_name("Literal.TrueLiteral", self._jvm.spark):
            true = self._jvm.kind(expressions + "Literal").TrueLiteral()
            goes = self._jvm.kind(expressions + "EqualNullSafe")(self._condition, true)
            stays = self._jvm.kind(expressions + "Not")(goes)
        return self._jvm.frame_of(self._filter(stays, self._read(table)))

    def _read(self, table: Any) -> Any:
        """The relation that the condition speaks of, over another table of the same columns."""
        with private_name("DataSourceV2Relation.makeCopy", self._jvm.spark):
            parts = self._jvm.kind("java.util.ArrayList")()
            parts.add(table)  # An array takes no object of Python's.
            for place in range(1, self._relation.productArity()):
                parts.add(self._relation.productElement(place))
            return self._relation.makeCopy(parts.toArray())

    def _filter(self, condition: Any, rows: Any) -> Any:
        with private_name("plans.logical.Filter", self._jvm.spark):
            return self._jvm.kind("org.apache.spark.sql.catalyst.plans.logical.Filter")(condition, rows)
