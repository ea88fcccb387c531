"""Spark's parser and session catalog, as used to read statements and names.

:class:`StatementReader` uses the parser, :class:`NameReader` the session catalog. Few calls into the JVM, no
execution. A version that lacks a name fails with a :class:`twophase.errors.ConfigurationError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twophase.spark.jvm.formats import short_name
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object

_SEPARATOR = "\0"


#: Analysing these executes the statements in them.
_RUN_WHEN_ANALYSED = ("CompoundBody", "UnresolvedExecuteImmediate", "ExecuteImmediateQuery")


class StatementReader:
    """Spark's own parser and analyser."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        with private_name("SessionState.sqlParser", spark):
            self._parser = spark._jsparkSession.sessionState().sqlParser()

    # -- parsing -------------------------------------------------------------------------------------------------

    def parse(self, text: str, args: Any = None) -> Any | None:
        """The parsed plan; None for a text that Spark will refuse."""
        with private_name("ParserInterface.parsePlan", self.spark):
            try:
                return self._parser.parsePlan(text)
            except _refusals():
                if not args:
                    return None
        return self._parse_with(text, args)

    def is_in_grammar(self, text: str) -> bool:
        """Return whether Spark's grammar has such a statement, also one that Spark will refuse for another reason.

        Spark 4.0 refuses scripts unless ``spark.sql.scripting.enabled`` is set.
        """
        from pyspark.errors import ParseException

        with private_name("ParserInterface.parsePlan", self.spark):
            try:
                self._parser.parsePlan(text)
            except ParseException:
                return False
            except _refusals():
                return True
        return True

    def _parse_with(self, text: str, args: Any) -> Any | None:
        # Since Spark 4.1 a parameter is allowed wherever a literal is; the plain parser refuses some of those places.
        from py4j.protocol import Py4JError

        try:
            return self._parser.parsePlanWithParameters(text, self._parameters(args))
        except (*_refusals(), Py4JError, TypeError):
            return None

    def _parameters(self, args: Any) -> Any:
        jvm = self.spark._jvm
        contexts = jvm.org.apache.spark.sql.catalyst.parser
        if isinstance(args, Mapping):
            named = {name: self._expression(value) for name, value in args.items()}
            return contexts.NamedParameterContext(jvm.PythonUtils.toScalaMap(named))
        values = [self._expression(value) for value in args]
        return contexts.PositionalParameterContext(jvm.PythonUtils.toSeq(values))

    def _expression(self, value: Any) -> Any:
        from pyspark.sql.classic.column import _to_java_column
        from pyspark.sql.functions import lit

        return self.spark._jsparkSession.expression(_to_java_column(lit(value)))

    def parse_name(self, text: str) -> tuple[str, ...] | None:
        """The parts of a table name as parsed by Spark; None if it is not a table name."""
        with private_name("ParserInterface.parseMultipartIdentifier", self.spark):
            try:
                return _strings(self._parser.parseMultipartIdentifier(text))
            except _refusals():
                return None

    def analysed(self, text: str, args: Any = None) -> Any | None:
        """Spark's analysed plan of a statement, which is not run; None if there is none.

        A script or an ``EXECUTE IMMEDIATE`` has none: analysing one would execute the statements in it.

        Raises
        ------
        pyspark.errors.PySparkException
            Spark's own error for the statement.
        """
        plan = self.parse(text)
        if plan is None or str(plan.nodeName()) in _RUN_WHEN_ANALYSED:
            return None
        with private_name("SessionState.executePlan", self.spark):
            skip = self.spark._jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
            execution = self.spark._jsparkSession.sessionState().executePlan(self._bound(plan, args), skip)
            execution.assertAnalyzed()
            return execution.analyzed()

    def _bound(self, plan: Any, args: Any) -> Any:
        """Bind the values of the parameters to a parsed plan."""
        if not args:
            return plan
        jvm = self.spark._jvm
        queries = jvm.org.apache.spark.sql.catalyst.analysis
        if isinstance(args, Mapping):
            names, values = list(args), [self._expression(value) for value in args.values()]
            return queries.NameParameterizedQuery(plan, jvm.PythonUtils.toSeq(names), jvm.PythonUtils.toSeq(values))
        return queries.PosParameterizedQuery(plan, jvm.PythonUtils.toSeq([self._expression(value) for value in args]))


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts of the session catalog about a table or view.

    Attributes
    ----------
    provider : str or None
        The short name; ``hive`` for a SerDe table; None for a view.
    partition_columns : tuple of str
    options : mapping
        The table's own options. May contain secrets: never log.
    properties : mapping
        Its properties. May contain secrets, too.
    """

    provider: str | None
    partition_columns: tuple[str, ...]
    options: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)


class NameReader:
    """Spark's session catalog and catalog manager: resolves names without reading any file."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self.spark = spark = jvm.spark
        with private_name("SparkSession.sessionState", spark):
            self._state = spark._jsparkSession.sessionState()

    @property
    def _reader(self) -> Any:
        return self._jvm.once(("SessionNames",), lambda: java_object(self._jvm, "SessionNames"))

    def current_catalog(self) -> str:
        """Name of the current catalog; empty if Spark cannot load it, which Spark itself will report."""
        return str(self._reader.currentCatalog(self._state))

    def context(self, parts: Sequence[str]) -> dict[str, Any]:
        """The context in which Spark resolves a name: the facts of :class:`~twophase.spark.routing.targets.Names`."""
        return json.loads(str(self._reader.context(self._state, parts[0], len(parts))))

    def table(self, database: str, name: str) -> TableFacts | None:
        """Look a table up in the metastore, once; None if it does not exist."""
        table = self._reader.table(self._state, database, name)
        if table is None:
            return None
        facts = json.loads(str(table))
        if facts["type"] == "VIEW":
            return TableFacts(None, ())
        provider = self.short_name(facts["provider"] or "hive")
        return TableFacts(provider, tuple(facts["partition_columns"]), facts["options"], facts["properties"])

    def partition_exists(self, database: str, name: str, values: Mapping[str, str | None]) -> bool:
        """Return whether a partition, given by a value for each column, exists."""
        with private_name("SessionCatalog.listPartitionNames", self.spark):
            spec = self.spark._jvm.PythonUtils.toScalaMap(dict(values))
            some = self.spark._jvm.scala.Option.apply
            identifier = self.spark._jvm.org.apache.spark.sql.catalyst.TableIdentifier(name, some(database))
            return not self._state.catalog().listPartitionNames(identifier, some(spec)).isEmpty()

    def short_name(self, provider: str) -> str:
        """The short name of a provider that may be given as a class name."""
        return short_name(self.spark, provider)

    def setting(self, name: str, default: str | None = None) -> str:
        """A configuration value; ``default`` is required if Spark itself has no default for it."""
        return str(self.spark.conf.get(name) if default is None else self.spark.conf.get(name, default))


def _refusals() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


def _strings(sequence: Any) -> tuple[str, ...]:
    """The items of a Scala ``Seq[String]``, in one call."""
    return tuple(str(sequence.mkString(_SEPARATOR)).split(_SEPARATOR))
