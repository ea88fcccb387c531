"""The rows of a ``DELETE FROM ... WHERE`` as DataFrames: for conditions that Spark does not pass to a table."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from twophase.model import ObjectPath
from twophase.spark.jvm import frames
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.gateway import Jvm, private_name

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
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
        """The catalog's name, and the table in it; None if it is not a table of a catalog."""
        if str(self._relation.getClass().getSimpleName()) != "DataSourceV2Relation":
            return None
        catalog, identifier = self._relation.catalog(), self._relation.identifier()
        if catalog.isEmpty() or identifier.isEmpty():
            return None
        found = identifier.get()
        return str(catalog.get().name()), ObjectPath.of(*map(str, found.namespace()), str(found.name()))

    @property
    def is_deterministic(self) -> bool:
        """Return whether the condition has the same value for a row at each evaluation."""
        return bool(self._condition.deterministic())

    def run_subqueries(
        self, run: Callable[[Any, int], Any], failing: Callable[[Jvm], AbstractContextManager[None]]
    ) -> None:
        """Run what the subqueries read once, before the condition is evaluated for the files and for their rows.

        Of a subquery that depends on the row, these are its largest parts that do not.

        Parameters
        ----------
        run : callable
            Returns a DataFrame with the same rows, in one state; given one, and the number of tables that it reads.
        failing : callable
            Turns errors into those of the JVM, which calls ``run``.
        """
        with private_name("Expression.transformDown", self._jvm.spark):
            if self._jvm.static(_EXPRESSIONS + "SubqueryExpression", "hasSubquery")(self._condition):
                self._condition = self._condition.transformDown(_Run(self._jvm, run, failing))

    def files(self, table: Any) -> list[str]:
        """The files of a table that contain rows to delete, with names as written by Spark."""
        from pyspark.sql.functions import input_file_name

        named = frames.frame_of(self._jvm, self._read(table)).withColumn(_FILE, input_file_name())
        with private_name("Dataset.queryExecution", self._jvm.spark):
            rows = named._jdf.queryExecution().analyzed()
        found = frames.frame_of(self._jvm, self._filter(self._condition, rows)).select(_FILE).distinct()
        return [str(row[0]) for row in found.collect()]

    def kept(self, table: Any) -> Any:
        """The rows of a table that are kept: those for which the condition is false or NULL."""
        with private_name("Literal.TrueLiteral", self._jvm.spark):
            true = self._jvm.kind(_EXPRESSIONS + "Literal").TrueLiteral()
            goes = self._jvm.kind(_EXPRESSIONS + "EqualNullSafe")(self._condition, true)
            stays = self._jvm.kind(_EXPRESSIONS + "Not")(goes)
        return frames.frame_of(self._jvm, self._filter(stays, self._read(table)))

    def _read(self, table: Any) -> Any:
        """The relation that the condition refers to, over another table with the same columns."""
        with private_name("DataSourceV2Relation.makeCopy", self._jvm.spark):
            parts = self._jvm.kind("java.util.ArrayList")()
            parts.add(table)  # Py4J cannot put a Python object into an array.
            for place in range(1, self._relation.productArity()):
                parts.add(self._relation.productElement(place))
            return self._relation.makeCopy(parts.toArray())

    def _filter(self, condition: Any, rows: Any) -> Any:
        with private_name("plans.logical.Filter", self._jvm.spark):
            return self._jvm.kind("org.apache.spark.sql.catalyst.plans.logical.Filter")(condition, rows)


class _Run(JavaCallable):
    """A Scala function for the nodes of a condition: rows in the place of what its subqueries read."""

    def __init__(
        self, jvm: Jvm, run: Callable[[Any, int], Any], failing: Callable[[Jvm], AbstractContextManager[None]]
    ) -> None:
        self._jvm = jvm
        self._run, self._failing = run, failing
        kind = jvm.static("java.lang.Class", "forName")
        self._subqueries = kind(_EXPRESSIONS + "SubqueryExpression")
        self._plans = kind("org.apache.spark.sql.catalyst.plans.logical.LogicalPlan")
        self._depends_on_row = jvm.static(_EXPRESSIONS + "SubExprUtils", "hasOuterReferences")

    def applyOrElse(self, node: Any, _: Any) -> Any:  # noqa: N802
        with self._failing(self._jvm):
            if self._subqueries.isInstance(node):
                return node.withNewPlan(node.plan().transformDownWithSubqueries(self))
            if not self._plans.isInstance(node) or self._depends_on_row(node):
                return node
            frame = frames.frame_of(self._jvm, node)
            found = self._run(frame, self._leaves(node))
            return node if found is frame else found._jdf.queryExecution().analyzed()

    @staticmethod
    def _leaves(plan: Any) -> int:
        found, below = int(plan.collectLeaves().size()), plan.subqueriesAll().iterator()
        while below.hasNext():
            found += int(below.next().collectLeaves().size())
        return found

    class Java:
        implements = ["scala.PartialFunction"]
