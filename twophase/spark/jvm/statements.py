"""The private Spark names that reading a statement needs: the second half of :mod:`twophase.spark.jvm.bridge`.

:class:`StatementReader` asks Spark's parser, :class:`NameReader` its session catalog. Few crossings into the JVM, no
analysis, no execution. A version that lacks a name fails with a :class:`twophase.errors.ConfigurationError`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.model import quote
from twophase.spark.jvm.bridge import Jvm, private_name
from twophase.spark.jvm.formats import short_name

#: Plan nodes that hold statements inside, and the accessors that lead to them.
_INNER: Mapping[str, tuple[str, ...]] = {
    "UnresolvedWith": ("child",),
    "Union": ("children",),
    "CompoundBody": ("collection", "handlers"),
    "ExceptionHandler": ("body",),
    "IfElseStatement": ("conditionalBodies", "elseBody"),
    "SimpleCaseStatement": ("conditionalBodies", "elseBody"),
    "SearchedCaseStatement": ("conditionalBodies", "elseBody"),
    "WhileStatement": ("body",),
    "RepeatStatement": ("body",),
    "LoopStatement": ("body",),
    "ForStatement": ("body",),
}
#: The same for whatever such a node reads.
_STATEMENTS: Mapping[str, tuple[str, ...]] = {
    "SingleStatement": ("parsedPlan",),
    "ExplainCommand": ("logicalPlan",),
    "DescribeQueryCommand": ("plan",),
    "CacheTableAsSelect": ("plan",),
    **{kind: accessors for kind, accessors in _INNER.items() if kind not in ("UnresolvedWith", "Union")},
    "IfElseStatement": ("conditions", "conditionalBodies", "elseBody"),
    "SearchedCaseStatement": ("conditions", "conditionalBodies", "elseBody"),
    "WhileStatement": ("condition", "body"),
    "RepeatStatement": ("condition", "body"),
    "ForStatement": ("query", "body"),
}
#: Statements that tell of the table that stands below them, or of what Spark keeps of it.
_DESCRIBING = (
    *("DescribeRelation", "DescribeRelationJsonCommand", "DescribeColumn", "DescribeTablePartition", "ShowColumns"),
    *("ShowTableProperties", "ShowCreateTable", "ShowPartitions", "AnalyzeTable", "AnalyzeColumn", "RefreshTable"),
)
_SEPARATOR = "\0"
#: Where Spark keeps that a text column is a CHAR or VARCHAR.
_LENGTH = "__CHAR_VARCHAR_TYPE_STRING"


@dataclass(frozen=True, slots=True)
class WriteNode:
    """A statement that writes or makes a table, as Spark's parser reads it.

    Attributes
    ----------
    kind : str
        ``create``, ``replace`` (both AS SELECT), ``insert``, ``execute`` (EXECUTE IMMEDIATE), ``empty`` (a table made
        without rows), ``directory`` (INSERT OVERWRITE DIRECTORY) or ``unknown`` (any statement on an
        ``IDENTIFIER(...)``: its text tells which).
    parts : tuple of str or None
        The target's name; None where only the analyser will know it.
    position : int
        Where the statement begins, to bring several into the order of the text.
    provider : str, optional
        ``USING``; ``hive`` for ``STORED AS`` and ``ROW FORMAT``.
    delimited : bool
        ``ROW FORMAT DELIMITED`` without ``STORED AS``: of this a catalog is told the options alone.
    partition : mapping of str to str or None
        ``PARTITION (p = 1, q)``: the columns that have a value, values as in a directory name.
    partition_columns : tuple of str
        All columns that it names.
    overwrite, if_not_exists : bool
        ``INSERT OVERWRITE``; ``PARTITION (...) IF NOT EXISTS``.
    replaces_rows : bool
        ``INSERT INTO ... REPLACE WHERE`` and its kin.
    options : mapping of str to str
        ``INSERT INTO t WITH (...)``.
    statement : int
        Where the statement with one outcome begins that it is part of: another one for each statement of a script.
    """

    kind: str
    parts: tuple[str, ...] | None
    position: int
    provider: str | None = None
    delimited: bool = False
    partition: Mapping[str, str | None] = field(default_factory=dict)
    partition_columns: tuple[str, ...] = ()
    overwrite: bool = False
    if_not_exists: bool = False
    replaces_rows: bool = False
    options: Mapping[str, str] = field(default_factory=dict)
    statement: int = 0


@dataclass(frozen=True, slots=True)
class ReadNode:
    """A table or view that a statement reads: its name, and where in the text it stands.

    Attributes
    ----------
    parts : tuple of str
    start, stop : int
    use : str
        ``rows``; ``description`` where no row is read; ``kept`` where a view that stays in the catalog names it.
    """

    parts: tuple[str, ...]
    start: int
    stop: int
    use: str = "rows"


class StatementReader:
    """Spark's own parser, and what its plans say of the tables that a statement writes."""

    def __init__(self, spark: Any) -> None:
        self.spark = spark
        self._has_criteria = True
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

    def _parse_with(self, text: str, args: Any) -> Any | None:
        # Since 4.1 a parameter may stand wherever a literal may, and the bare parser refuses some of those places.
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
        """The parts of a table name as Spark reads it; None where it is none."""
        with private_name("ParserInterface.parseMultipartIdentifier", self.spark):
            try:
                return _strings(self._parser.parseMultipartIdentifier(text))
            except _refusals():
                return None

    def substituted(self, text: str) -> str:
        """The text with its variables (``${name}``) put in, as Spark does before it parses."""
        with private_name("VariableSubstitution", self.spark):
            return str(self.spark._jvm.org.apache.spark.sql.internal.VariableSubstitution().substitute(text))

    def analysed(self, text: str, args: Any = None) -> Any | None:
        """Spark's analysed plan of a statement, which is not run; None where it cannot be had.

        There is none of a script, nor of an ``EXECUTE IMMEDIATE``: to analyse one is to run what it holds.

        Raises
        ------
        pyspark.errors.PySparkException
            Spark's own refusal of the statement.
        """
        plan = self.parse(text)
        if plan is None or self.is_script(plan) or any(node.kind == "execute" for node in self.writes(plan)):
            return None
        with private_name("SessionState.executePlan", self.spark):
            skip = self.spark._jvm.org.apache.spark.sql.execution.CommandExecutionMode.SKIP()
            execution = self.spark._jsparkSession.sessionState().executePlan(self._bound(plan, args), skip)
            execution.assertAnalyzed()
            return execution.analyzed()

    def _bound(self, plan: Any, args: Any) -> Any:
        """A parsed plan with the values of its parameters."""
        if not args:
            return plan
        jvm = self.spark._jvm
        queries = jvm.org.apache.spark.sql.catalyst.analysis
        if isinstance(args, Mapping):
            names, values = list(args), [self._expression(value) for value in args.values()]
            return queries.NameParameterizedQuery(plan, jvm.PythonUtils.toSeq(names), jvm.PythonUtils.toSeq(values))
        return queries.PosParameterizedQuery(plan, jvm.PythonUtils.toSeq([self._expression(value) for value in args]))

    def is_constant(self, frame: Any) -> bool:
        """Whether the one column of a query is a value that needs no rows: no subquery, no aggregate."""
        with private_name("Dataset.queryExecution", self.spark):
            plan = frame._jdf.queryExecution().analyzed()
            return str(plan.nodeName()) == "Project" and bool(plan.projectList().apply(0).child().foldable())

    def rows_of(self, plan: Any) -> Any | None:
        """The rows that an analysed INSERT into a data source table writes: a ``Dataset`` of all its columns."""
        if str(plan.nodeName()) != "InsertIntoHadoopFsRelationCommand":
            return None
        with private_name("Dataset.ofRows", self.spark):
            made = self.spark._jvm.org.apache.spark.sql.classic.Dataset
            return self._with_lengths(made.ofRows(self.spark._jsparkSession, plan.query()), plan)

    def _with_lengths(self, rows: Any, plan: Any) -> Any:
        """Rows whose texts say that they are CHAR or VARCHAR: Spark has checked them, and takes them as they are."""
        from pyspark.sql.classic.dataframe import DataFrame

        table = plan.catalogTable()
        fields = json.loads(str(table.get().schema().json()))["fields"] if table.isDefined() else []
        lengths = {f["name"].lower(): f["metadata"][_LENGTH] for f in fields if _LENGTH in f["metadata"]}
        if not lengths:
            return rows
        frame = DataFrame(rows, self.spark)
        told = {name: {_LENGTH: lengths[name.lower()]} if name.lower() in lengths else {} for name in frame.columns}
        columns = (frame[quote(name)].alias(name, metadata=metadata) for name, metadata in told.items())
        return frame.select(*columns)._jdf

    # -- what a plan writes --------------------------------------------------------------------------------------

    def is_script(self, plan: Any) -> bool:
        """Whether it is a script (``BEGIN ... END``)."""
        return str(plan.nodeName()) == "CompoundBody"

    def writes(self, plan: Any) -> list[WriteNode]:
        """Every statement in a plan that writes or makes a table, in the order of the text."""
        with private_name("logical plan", self.spark):
            return sorted(self._writes(plan), key=lambda node: node.position)

    def _writes(self, plan: Any) -> Iterator[WriteNode]:
        kind = str(plan.nodeName())
        if kind in ("CreateTableAsSelect", "ReplaceTableAsSelect", "CreateTable", "ReplaceTable"):
            yield self._create(kind, plan)
        elif kind in ("InsertIntoStatement", "UnresolvedInsert"):
            yield self._insert(plan)
        elif kind == "PlanWithUnresolvedIdentifier":
            yield WriteNode("unknown", None, _position(plan))
        elif kind in ("UnresolvedExecuteImmediate", "ExecuteImmediateQuery"):
            yield WriteNode("execute", None, _position(plan))
        elif kind == "InsertIntoDir":
            yield WriteNode("directory", None, _position(plan))
        elif kind == "ExplainCommand":  # It runs nothing but what an EXECUTE IMMEDIATE holds.
            yield from (node for node in self._writes(plan.logicalPlan()) if node.kind == "execute")
        elif kind == "SingleStatement":
            start = _position(plan)
            yield from (replace(node, statement=start) for node in self._writes(plan.parsedPlan()))
        else:
            for accessor in _INNER.get(kind, ()):
                for inner in _plans(plan, accessor):
                    yield from self._writes(inner)

    def statements(self, plan: Any) -> list[tuple[int, int]]:
        """Where each single statement of a script begins and ends."""
        with private_name("logical plan", self.spark):
            return list(self._statements(plan))

    def _statements(self, plan: Any) -> Iterator[tuple[int, int]]:
        kind = str(plan.nodeName())
        if kind == "SingleStatement":
            # A handler's statement has the whole handler for its own place.
            inner = plan.parsedPlan()
            stop = plan.origin().stopIndex()
            yield _position(inner) or _position(plan), int(stop.get()) + 1
            return
        for accessor in _STATEMENTS.get(kind, ()):
            for inner in _plans(plan, accessor):
                yield from self._statements(inner)

    def _create(self, kind: str, plan: Any) -> WriteNode:
        name, specification = plan.name(), plan.tableSpec()
        parts = _strings(name.nameParts()) if str(name.nodeName()) == "UnresolvedIdentifier" else None
        serde = specification.serde()
        has_serde = bool(serde.isDefined())
        provider = "hive" if has_serde else option_text(specification.provider())
        verb = "create" if kind.startswith("Create") else "replace"
        kind = verb if kind.endswith("AsSelect") else "empty"
        delimited = has_serde and _says_no_format(serde.get())
        return WriteNode(kind, parts, _position(plan), provider, delimited)

    def _insert(self, plan: Any) -> WriteNode:
        table = plan.table()
        if str(table.nodeName()) != "UnresolvedRelation":
            return WriteNode("insert", None, _position(plan))
        overwrite = bool(plan.overwrite())
        partition = _partition(plan.partitionSpec())
        return WriteNode(
            "insert",
            _strings(table.multipartIdentifier()),
            _position(plan),
            partition={column: value for column, (is_static, value) in partition.items() if is_static},
            partition_columns=tuple(partition),
            overwrite=overwrite,
            if_not_exists=bool(plan.ifPartitionNotExists()),
            replaces_rows=self._replaces_rows(plan),
            options=_options(table) if overwrite else {},
        )

    # -- what a plan reads ---------------------------------------------------------------------------------------

    def reads(self, plan: Any) -> list[ReadNode] | None:
        """Every table or view that a plan reads at any depth, names of CTEs left out; None where one cannot be told."""
        with private_name("logical plan", self.spark):
            found = list(self._reads(plan, frozenset()))
        return None if None in found else [node for node in found if node is not None]

    def _reads(self, plan: Any, hidden: frozenset[str]) -> Iterator[ReadNode | None]:
        kind = str(plan.nodeName())
        if kind == "UnresolvedRelation":
            node = _read(plan)
            if len(node.parts) > 1 or node.parts[0].lower() not in hidden:
                yield node
            return
        if kind in _DESCRIBING:
            told = (inner for inner in _plans(plan, "children") if str(inner.nodeName()).startswith("UnresolvedTable"))
            yield from (_read(inner, "description") for inner in told)
            return
        if kind in ("CreateView", "AlterViewAs"):
            found = self._reads(plan.query(), hidden)
            yield from (node and replace(node, use="kept") for node in found)
            return
        if kind == "PlanWithUnresolvedIdentifier":
            yield None
        if kind == "UnresolvedWith":
            yield from self._reads_with(plan, hidden)
            return
        for accessor in ("children", "innerChildren", *_STATEMENTS.get(kind, ())):
            for inner in _plans(plan, accessor):
                yield from self._reads(inner, hidden)

    def _reads_with(self, plan: Any, hidden: frozenset[str]) -> Iterator[ReadNode | None]:
        """Each CTE sees those before it (and itself, where it may recurse); the statement sees all."""
        relations = plan.cteRelations()
        recursive = "recursive" in str(plan.origin().sqlText().get()).lower()
        for index in range(relations.size()):
            relation = relations.apply(index)
            name = frozenset({str(relation._1()).lower()})
            yield from self._reads(relation._2(), hidden | name if recursive else hidden)
            hidden |= name
        yield from self._reads(plan.child(), hidden)

    def tables_behind(self, name: str) -> set[tuple[str, str]]:
        """Database and name of each table of the session catalog that a view reads, as Spark analyses it.

        Raises
        ------
        pyspark.errors.PySparkException
            Spark's own refusal of the view.
        """
        with private_name("Dataset.queryExecution", self.spark):
            return set(self._tables(self.spark._jsparkSession.table(name).queryExecution().analyzed()))

    def _tables(self, plan: Any) -> Iterator[tuple[str, str]]:
        kind = str(plan.nodeName())
        if kind in ("LogicalRelation", "HiveTableRelation"):
            table = catalog_table(kind, plan)
            if table is not None:
                identifier = table.identifier()
                yield str(identifier.database().get()).lower(), str(identifier.table()).lower()
            return
        for accessor in ("children", "innerChildren"):
            for inner in _plans(plan, accessor):
                yield from self._tables(inner)

    def _replaces_rows(self, plan: Any) -> bool:
        from py4j.protocol import Py4JError

        if self._has_criteria:
            try:
                return bool(plan.replaceCriteriaOpt().isDefined())
            except Py4JError:
                self._has_criteria = False  # before 4.2 these forms have a node of their own
        return False


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What the session catalog says of a table or view.

    Attributes
    ----------
    provider : str or None
        The short name; ``hive`` for a SerDe table; None for a view.
    partition_columns : tuple of str
    options : callable
        The table's own options, which only an overwrite asks for. May hold secrets: never log.
    properties : callable
        Its properties. May hold secrets, too.
    """

    provider: str | None
    partition_columns: tuple[str, ...]
    options: Callable[[], Mapping[str, str]] = field(default=dict, compare=False, repr=False)
    properties: Callable[[], Mapping[str, str]] = field(default=dict, compare=False, repr=False)


class NameReader:
    """Spark's session catalog and catalog manager: what a name means, without a look at any file."""

    def __init__(self, jvm: Jvm) -> None:
        self._entries = jvm.entries
        self.spark = spark = jvm.spark
        with private_name("SessionState.catalogManager", spark):
            state = spark._jsparkSession.sessionState()
            self._manager, self._catalog = state.catalogManager(), state.catalog()
            self._table_identifier = spark._jvm.org.apache.spark.sql.catalyst.TableIdentifier
            self._some = spark._jvm.scala.Option.apply

    def current_catalog(self) -> str:
        """Name of the current catalog; empty where Spark cannot load it, as it will say itself."""
        with private_name("CatalogManager.currentCatalog", self.spark):
            try:
                return str(self._manager.currentCatalog().name())
            except _refusals() as error:
                if not any(words in str(error) for words in ("CANNOT_LOAD_CATALOG", "catalog plugin class")):
                    raise
                return ""

    def current_namespace(self) -> tuple[str, ...]:
        """The current namespace of the current catalog."""
        with private_name("CatalogManager.currentNamespace", self.spark):
            return tuple(str(part) for part in self._manager.currentNamespace())

    def current_database(self) -> str:
        """The current database of the session catalog."""
        with private_name("SessionCatalog.getCurrentDatabase", self.spark):
            return str(self._catalog.getCurrentDatabase())

    def is_catalog(self, name: str) -> bool:
        with private_name("CatalogManager.isCatalogRegistered", self.spark):
            return bool(self._manager.isCatalogRegistered(name))

    def same_name(self, one: str, other: str) -> bool:
        """Whether two names mean the same column, as the session compares them."""
        with private_name("SQLConf.resolver", self.spark):
            return bool(self.spark._jsparkSession.sessionState().conf().resolver().apply(one, other))

    def is_temporary_view(self, name: str) -> bool:
        with private_name("SessionCatalog.getTempView", self.spark):
            return bool(self._catalog.getTempView(name).isDefined())

    def table(self, database: str, name: str) -> TableFacts | None:
        """One look-up in the metastore; None where there is no such table."""
        with private_name("SessionCatalog.getTableMetadata", self.spark):
            try:
                table = self._catalog.getTableMetadata(self._table_identifier(name, self._some(database)))
            except _refusals() as error:
                # Any other error is a fault: what the table is stays unknown, and nothing may be taken for granted.
                if _condition(error) not in _NOT_FOUND:
                    raise
                return None
            if str(table.tableType().name()) == "VIEW":
                return TableFacts(None, ())
            columns = table.partitionColumnNames()
            provider = self.short_name(option_text(table.provider()) or "hive")
            names = () if columns.isEmpty() else _strings(columns)
            read = self._entries
            return TableFacts(
                provider, names, lambda: read(table.storage().properties()), lambda: read(table.properties())
            )

    def partition_exists(self, database: str, name: str, values: Mapping[str, str | None]) -> bool:
        """Whether a partition, given by a value for each column, exists."""
        with private_name("SessionCatalog.listPartitionNames", self.spark):
            wanted = self.spark._jvm.PythonUtils.toScalaMap(dict(values))
            identifier = self._table_identifier(name, self._some(database))
            return not self._catalog.listPartitionNames(identifier, self._some(wanted)).isEmpty()

    def short_name(self, provider: str) -> str:
        """The short name of a provider that may be given as a class name."""
        return short_name(self.spark, provider)

    def setting(self, name: str, default: str | None = None) -> str:
        """A configuration value; one that Spark has no default for needs ``default``."""
        return str(self.spark.conf.get(name) if default is None else self.spark.conf.get(name, default))


def _read(relation: Any, use: str = "rows") -> ReadNode:
    stop = int(relation.origin().stopIndex().get()) + 1
    return ReadNode(_strings(relation.multipartIdentifier()), _position(relation), stop, use)


def catalog_table(kind: str, relation: Any) -> Any | None:
    """The catalog's entry of an analysed relation; None where it reads files by path."""
    if kind == "HiveTableRelation":
        return relation.tableMeta()
    table = relation.catalogTable()
    return table.get() if table.isDefined() else None


def _plans(plan: Any, accessor: str) -> Iterator[Any]:
    """The plans behind an accessor: one, an Option or a Seq."""
    from py4j.protocol import Py4JError

    try:
        value = getattr(plan, accessor)()
    except Py4JError:
        if accessor == "handlers":  # scripts of early versions have none
            return
        raise
    kind = str(value.getClass().getName())
    if kind.startswith(("scala.Some", "scala.None")):
        yield from (value.get(),) if kind.startswith("scala.Some") else ()
    elif kind.startswith("scala."):
        for index in range(value.size()):
            yield value.apply(index)
    else:
        yield value


def _refusals() -> tuple[type[Exception], ...]:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    return PySparkException, Py4JJavaError


#: Conditions of Spark's errors that say that a table is not there.
_NOT_FOUND = frozenset({"TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND", "DATABASE_NOT_FOUND"})


def _condition(error: Exception) -> str | None:
    """The condition of a Spark error; None where it has none."""
    from pyspark.errors import PySparkException

    return error.getCondition() if isinstance(error, PySparkException) else None


def _strings(sequence: Any) -> tuple[str, ...]:
    """A Scala ``Seq[String]`` in one crossing."""
    return tuple(str(sequence.mkString(_SEPARATOR)).split(_SEPARATOR))


def _says_no_format(serde: Any) -> bool:
    return not any(part.isDefined() for part in (serde.storedAs(), serde.formatClasses(), serde.serde()))


def option_text(option: Any) -> str | None:
    """The text of an ``Option[String]`` in one crossing."""
    said = str(option.toString())
    return None if said == "None" else said.removeprefix("Some(").removesuffix(")")


def _position(plan: Any) -> int:
    return int(option_text(plan.origin().startIndex()) or 0)


def _partition(specification: Any) -> dict[str, tuple[bool, str | None]]:
    """The columns of a PARTITION clause: whether each has a value, and which."""
    named: dict[str, tuple[bool, str | None]] = {}
    if specification.isEmpty():
        return named
    entries = specification.toSeq()
    for index in range(entries.size()):
        column, value = entries.apply(index)._1(), entries.apply(index)._2()
        given = value.get() if value.isDefined() else None
        named[str(column)] = (bool(value.isDefined()), None if given is None else str(given))
    return named


def _options(relation: Any) -> dict[str, str]:
    """Options of ``INSERT ... WITH (...)``, keys in lower case, without Spark's own."""
    entries = {str(entry.getKey()): str(entry.getValue()) for entry in relation.options().entrySet()}
    return {key.lower(): value for key, value in entries.items() if not key.startswith("__")}
