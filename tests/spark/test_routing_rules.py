"""The rules on Spark's plans: whoever makes the plan, beside other extensions, in every thread, and out of the way."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyspark
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import drop_all, is_ours, rows
from twophase.errors import AtomicityNotSupportedError
from twophase.spark.attach import Handle
from twophase.spark.connector.base import Proxy
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.java_sources import java_class
from twophase.spark.routing.plan_answers import Answers

spark40_first_cases = True

SINGLE_PASS = "spark.sql.analyzer.singlePassResolver."
#: An extension of somebody else: a rule in the same batch, and a parser around Spark's own. Both count their calls.
OTHER = """
package other;

import java.lang.reflect.*;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.catalyst.parser.ParserInterface;

public final class Other {
    public static int rules = 0;
    public static int parses = 0;

    public static final class Counted extends Rule {
        public TreeNode apply(TreeNode plan) {
            rules++;
            return plan;
        }
    }

    public static final class MakeRule extends scala.runtime.AbstractFunction1 {
        public Object apply(Object session) {
            return new Counted();
        }
    }

    public static final class MakeParser extends scala.runtime.AbstractFunction2 {
        public Object apply(Object session, final Object parser) {
            return Proxy.newProxyInstance(parser.getClass().getClassLoader(), new Class[] {ParserInterface.class},
                new InvocationHandler() {
                    public Object invoke(Object self, Method method, Object[] arguments) throws Throwable {
                        parses++;
                        try {
                            return method.invoke(parser, arguments);
                        } catch (InvocationTargetException error) {
                            throw error.getCause();
                        }
                    }
                });
        }
    }

    public static final class Maker {
        public Object rule() { return new MakeRule(); }
        public Object parser() { return new MakeParser(); }
        public int rules() { return rules; }
        public int parses() { return parses; }
    }
}
"""


@pytest.fixture(scope="module")
def spark(start: Start, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    """With Hive support: its session has rules of its own beside Spark's."""
    metastore = tmp_path_factory.mktemp("metastore") / "derby"
    session = start(
        {
            "spark.sql.scripting.enabled": "true",
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={metastore};create=true",
        }
    )
    twophase.attach(session)
    return session


@pytest.fixture
def handle(spark: SparkSession) -> Handle:
    return twophase.attach(spark)


@pytest.fixture(autouse=True)
def clean(spark: SparkSession) -> Iterator[None]:
    """Each test has the default database for itself."""
    yield
    drop_all(spark)


def begun(handle: Handle) -> int:
    return len(handle.timeline.transactions())


@pytest.mark.promise("routing", "a statement that a program in the JVM runs is routed")
def test_a_statement_that_a_program_in_the_jvm_runs_is_routed(spark: SparkSession, handle: Handle) -> None:
    before = begun(handle)
    spark._jsparkSession.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
    spark._jsparkSession.sql("INSERT OVERWRITE t SELECT a + 1 FROM t")
    spark.range(1).selectExpr("5 AS a")._jdf.write().insertInto("t")
    spark.range(1).selectExpr("6 AS a")._jdf.write().mode("append").saveAsTable("t")
    assert begun(handle) - before == 4
    assert rows(spark, "SELECT * FROM t") == [(2,), (5,), (6,)]
    with pytest.raises(AtomicityNotSupportedError, match="inside a script"):
        spark._jsparkSession.sql("FROM range(1) INSERT INTO t SELECT id INSERT INTO t SELECT id")
    with twophase.transaction(spark), pytest.raises(AtomicityNotSupportedError, match="takes effect immediately"):
        spark._jsparkSession.sql("CREATE TABLE u LIKE t")
    with twophase.transaction(spark):
        spark._jsparkSession.sql("DROP TABLE t")
        assert not spark.catalog.tableExists("t")
        assert spark._jsparkSession.newSession().catalog().tableExists("t")
    assert not spark.catalog.tableExists("t")


@pytest.mark.promise("immediate-effects", "what a program in the JVM runs past SQL is refused, too")
def test_what_a_program_in_the_jvm_runs_past_sql_is_refused_in_a_block(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    ran: list[str] = []

    class Runner(Proxy):
        def executeCommand(self, command: str, _: Any) -> Any:  # noqa: N802
            ran.append(command)
            return spark.sparkContext._gateway.new_array(jvm.String, 0)

        class Java:
            implements = ["org.apache.spark.sql.connector.ExternalCommandRunner"]

    runner = Runner(Jvm(spark))

    def of_another_system() -> None:
        options = jvm.org.apache.spark.api.python.PythonUtils.toScalaMap(jvm.java.util.HashMap())
        command = jvm.org.apache.spark.sql.execution.command.ExternalCommandExecutor(runner, "a command", options)
        jvm.org.apache.spark.sql.classic.Dataset.ofRows(spark._jsparkSession, command)

    of_another_system()
    assert ran == ["a command"]
    with twophase.transaction(spark):
        for run in (
            of_another_system,
            lambda: spark.range(1)._jdf.write().saveAsTable("saved"),
            lambda: spark.sql("CALL hive.system.nothing()"),
        ):
            with pytest.raises(AtomicityNotSupportedError, match="takes effect immediately"):
                run()
    assert ran == ["a command"]
    assert not spark.catalog.tableExists("saved")


#: Spark's nodes whose names say that they change something, which it calls neither commands nor statements: those that
#: only compute rows, or that Spark makes of a statement that has been looked at.
ROWS = {"AppendColumns", "AppendColumnsWithObject", "MergeRows", "UpdateEventTimeWatermarkColumn", "WriteFiles"}
#: Streaming queries, which end no statement.
STREAMS = {
    *("WriteToStream", "WriteToStreamStatement", "WriteToContinuousDataSource", "WriteToDataSourceV2"),
    *("WriteToMicroBatchDataSource", "WriteToMicroBatchDataSourceV1"),
}
CHANGES = re.compile(
    r"org/apache/spark/sql/[\w/]+/((?:Alter|Append|Auto|Call|Copy|Create|Delete|Drop|Insert|Load|Merge|Overwrite|Replace|"
    r"Save|Set|Truncate|Update|Write)\w*)\.class"
)


def test_every_node_of_spark_that_changes_something_is_taken_for_a_command(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    plans = "org.apache.spark.sql.catalyst.plans.logical."

    def found(name: str) -> Any:
        return jvm.java.lang.Class.forName(name.replace("/", "."), False, loader)

    plan, *known = (found(plans + name) for name in ("LogicalPlan", "Command", "ParsedStatement"))
    others = set()
    for jar in (Path(pyspark.__file__).parent / "jars").glob("spark-*.jar"):
        for entry in filter(CHANGES.fullmatch, ZipFile(jar).namelist()):
            kind = found(entry.removesuffix(".class"))
            is_abstract = jvm.java.lang.reflect.Modifier.isAbstract(kind.getModifiers())
            if plan.isAssignableFrom(kind) and not is_abstract and not any(k.isAssignableFrom(kind) for k in known):
                others.add(kind.getSimpleName())
    commands = set(java_class(Jvm(spark), "Nodes").getField("COMMANDS").get(None))
    assert {"Call", "CreateTable", "InsertIntoDir"} <= others & commands
    assert others - commands <= ROWS | STREAMS


def test_an_error_of_an_earlier_statement_is_not_told_of_a_later_one(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a")
    for text, condition in (
        ("DROP TABLE missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("INSERT INTO t SELECT nothing", "UNRESOLVED_COLUMN.WITHOUT_SUGGESTION"),
        ("CREATE TABLE x.y.z AS SELECT 1 AS a", "REQUIRES_SINGLE_PART_NAMESPACE"),
        ("INSERT INTO missing SELECT 1", "TABLE_OR_VIEW_NOT_FOUND"),
    ):
        with pytest.raises(AnalysisException) as caught:
            spark.sql(text)
        assert caught.value.getCondition() == condition


def test_what_is_only_analysed_begins_nothing(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE t (a INT) USING parquet")
    before = begun(handle)
    for text in (
        "INSERT INTO t SELECT 1",
        "CREATE TABLE n AS SELECT 1 AS a",
        "FROM range(1) INSERT INTO t SELECT id INSERT INTO t SELECT id",
    ):
        assert "hive" in spark.sql(f"EXPLAIN {text}").collect()[0][0]
    assert begun(handle) == before


#: Statements, and what Python is asked about each: once for a node that writes, never for a read.
QUESTIONS = {
    "SELECT a FROM t WHERE a IN (SELECT a FROM v)": [],
    "WITH x AS (SELECT * FROM t) SELECT count(*) FROM x": [],
    "DESCRIBE t": [],
    "SHOW TABLES": [],
    "EXPLAIN INSERT INTO t SELECT 2": ["session_insert"],
    "INSERT INTO t SELECT a + 1 FROM t": ["session_insert"],
    "INSERT OVERWRITE t SELECT 5": ["session_insert"],
    "CREATE OR REPLACE TABLE u AS SELECT a FROM t": ["replace"],
    # In its transaction, each of the two commands is looked at again.
    "FROM t INSERT INTO t SELECT a INSERT INTO u SELECT a": [*["session_insert"] * 2, "group", *["command"] * 2],
}


def test_python_is_asked_once_for_each_write_and_never_for_a_read_outside_of_a_block(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    spark.sql("CREATE VIEW v AS SELECT * FROM t")
    asked: list[str] = []
    apply = Answers.apply

    def counting(self: Answers, question: str, rows: Any) -> Any:
        if rows is None:  # Else it is not a question: the statement runs, and has its rows.
            asked.append(json.loads(question)["question"])
        return apply(self, question, rows)

    monkeypatch.setattr(Answers, "apply", counting)
    found = {}
    for text in QUESTIONS:
        asked.clear()
        spark.sql(text).collect()
        found[text] = list(asked)
    assert found == QUESTIONS


@pytest.mark.promise("routing", "the rules and the parser of other extensions work beside twophase's")
def test_the_rules_stand_beside_those_and_the_parser_of_other_extensions(spark: SparkSession) -> None:
    jvm: Any = spark._jvm
    compiler = jvm.org.codehaus.janino.SimpleCompiler()
    compiler.cook(OTHER)
    kind = compiler.getClassLoader().loadClass("other.Other$Maker")
    other = kind.getDeclaredConstructors()[0].newInstance(spark.sparkContext._gateway.new_array(jvm.Object, 0))
    extensions = spark._jsparkSession.extensions()
    extensions.injectHintResolutionRule(other.rule())
    extensions.injectParser(other.parser())
    session = spark.newSession()  # the extensions are there for sessions that come later
    attached = twophase.attach(session)
    try:
        counted = other.rules(), other.parses()
        before = begun(attached)
        session.sql("CREATE TABLE t AS SELECT 1 AS a")
        session.sql("INSERT INTO t SELECT a + 1 FROM t")
        with twophase.transaction(session):
            session.sql("INSERT INTO t SELECT 9")
            assert rows(session, "SELECT max(a) FROM t") == [(9,)]
        assert begun(attached) - before == 3
        assert rows(session, "SELECT * FROM t") == [(1,), (2,), (9,)]
        assert other.rules() > counted[0]
        assert other.parses() > counted[1]
    finally:
        attached.detach()
    session.sql("CREATE TABLE plain AS SELECT 1 AS a")
    assert not is_ours(spark, "plain")


def test_two_threads_write_at_once_each_by_transactions_of_its_own(spark: SparkSession, handle: Handle) -> None:
    for name, layout in (("a", "USING parquet"), ("b", "STORED AS TEXTFILE")):
        spark.sql(f"CREATE TABLE {name} (x BIGINT) {layout}")
    before, barrier, problems = begun(handle), threading.Barrier(2), []

    def write(name: str) -> None:
        try:
            barrier.wait(60)
            for number in range(3):
                spark.sql(
                    f"FROM range({number}, {number} + 1) INSERT INTO {name} SELECT id INSERT INTO {name} SELECT -id"
                )
                spark.range(10, 11).write.insertInto(name)
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems
    assert begun(handle) - before == 12
    expected = [(-2,), (-1,), (0,), (0,), (1,), (2,), (10,), (10,), (10,)]
    assert rows(spark, "SELECT * FROM a") == rows(spark, "SELECT * FROM b") == expected


@pytest.mark.promise("routing", "Spark's single-pass analyser neither writes outside twophase nor hides what is staged")
def test_the_single_pass_analyser_writes_nothing_past_us_and_hides_nothing_that_is_staged(
    spark: SparkSession, handle: Handle
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    before = begun(handle)
    try:
        spark.conf.set(SINGLE_PASS + "enabledTentatively", "true")
        spark.sql("INSERT INTO t SELECT 2")
        assert begun(handle) - before == 1
        spark.conf.unset(SINGLE_PASS + "enabledTentatively")
        with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
            spark.sql("INSERT INTO t SELECT 3")
            for name in ("enabledTentatively", "enabled"):
                spark.conf.set(SINGLE_PASS + name, "true")
                with pytest.raises((AtomicityNotSupportedError, AnalysisException), match=r"(?i)single.?pass"):
                    spark.sql("SELECT * FROM t")
            for name in ("enabledTentatively", "enabled"):
                spark.conf.unset(SINGLE_PASS + name)
            assert rows(spark, "SELECT * FROM t") == [(1,), (2,), (3,)]
            1 / 0  # noqa: B018
        spark.conf.set(SINGLE_PASS + "enabled", "true")
        for write in (
            lambda: spark.sql("INSERT INTO t SELECT 2"),
            lambda: spark.sql("CREATE TABLE n USING parquet AS SELECT 1 AS a"),
            lambda: spark.range(1).write.insertInto("t"),
        ):
            with pytest.raises(AnalysisException):  # Spark's own: it knows no writes
                write()
    finally:
        for name in ("enabled", "enabledTentatively"):
            spark.conf.unset(SINGLE_PASS + name)
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]


@pytest.mark.parametrize(
    "settings",
    [("enabledTentatively",), ("dualRunWithLegacy", "returnSinglePassResultInDualRun")],
    ids=["tentatively", "dual run"],
)
def test_what_is_refused_in_a_block_for_the_single_pass_analyser_has_staged_nothing(
    spark: SparkSession, settings: tuple[str, ...]
) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    try:
        with twophase.transaction(spark):
            for name in settings:
                spark.conf.set(SINGLE_PASS + name, "true")
            for text in (
                "INSERT INTO t SELECT 2",
                "BEGIN INSERT INTO t SELECT 3; SELECT * FROM t; END",
                "EXECUTE IMMEDIATE 'INSERT INTO t SELECT 4'",
                "CREATE TABLE n AS SELECT 1 AS a",
                "TRUNCATE TABLE t",
                "DROP TABLE t",
            ):
                with pytest.raises(AtomicityNotSupportedError, match="nothing was started"):
                    spark.sql(text)
            spark.range(1).selectExpr("5 AS a").write.insertInto("t")  # its rows were read before
            for name in settings:
                spark.sql(f"SET {SINGLE_PASS}{name} = false")
            assert rows(spark, "SELECT * FROM t") == [(1,), (5,)]
    finally:
        for name in settings:
            spark.conf.unset(SINGLE_PASS + name)
    assert rows(spark, "SELECT * FROM t") == [(1,), (5,)]
    assert not spark.catalog.tableExists("n")
