"""Plain Spark statements on a named catalog are all-or-nothing, and the rest of Spark is as it was."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyspark.errors import AnalysisException, SparkRuntimeException
from pyspark.sql import Row, SparkSession
from pyspark.sql.functions import col

import twophase
from tests.spark.conftest import CHAOS, Start
from twophase.cli import commands
from twophase.errors import AtomicityNotSupportedError, CatalogError, TransactionAborted, TransactionInDoubt
from twophase.hooks import JobStatus, JobStatusHook
from twophase.model import ObjectPath
from twophase.protocol.machine import TransactionState
from twophase.spark.attach import Handle
from twophase.spark.connector.catalog import NativeCatalog
from twophase.testing import ChaosCatalog

spark40_first_cases = True


@pytest.fixture(scope="module")
def spark(start: Start) -> SparkSession:
    session = start(
        {
            "spark.twophase.session.catalog": "none",
            "spark.sql.scripting.enabled": "true",
            "spark.sql.catalog.few": CHAOS,
            "spark.sql.catalog.few.purposes": "insert_into",
        }
    )
    twophase.attach(session).catalog("lake").create_database("db")
    return session


@pytest.fixture
def handle(spark: SparkSession) -> Handle:
    return twophase.attach(spark)


@pytest.fixture
def lake(handle: Handle) -> Iterator[ChaosCatalog]:
    """The catalog, without the tables of other tests."""
    catalog = handle.catalog("lake")
    assert isinstance(catalog, ChaosCatalog)
    catalog.faults.clear()
    for name in catalog.list_tables("db"):
        catalog.drop_table(ObjectPath.of("db", name))
    yield catalog
    catalog.faults.clear()


def ids(spark: SparkSession, table: str = "lake.db.t") -> list[Any]:
    return sorted(row[0] for row in spark.table(table).collect())


def states(handle: Handle) -> list[TransactionState]:
    return [record.state for record in handle.timeline.transactions()]


# -- the six purposes --------------------------------------------------------------------------------------------------


def test_create_table_as_is_visible_when_it_returns(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t COMMENT 'c' TBLPROPERTIES ('k' = 'v') AS SELECT id FROM range(3)")

    assert ids(spark) == [0, 1, 2]
    definition = lake.load_table(ObjectPath.of("db", "t"))
    assert (definition.comment, dict(definition.properties)) == ("c", {"k": "v"})


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE lake.db.new AS SELECT raise_error('boom') AS id",
        "CREATE OR REPLACE TABLE lake.db.t AS SELECT raise_error('boom') AS id",
        "REPLACE TABLE lake.db.t AS SELECT raise_error('boom') AS id",
        "INSERT INTO lake.db.t SELECT CAST(raise_error('boom') AS BIGINT)",
        "INSERT OVERWRITE lake.db.t SELECT CAST(raise_error('boom') AS BIGINT)",
    ],
)
def test_a_failing_statement_changes_nothing_and_its_error_is_sparks_own(
    spark: SparkSession, lake: ChaosCatalog, handle: Handle, statement: str
) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT id FROM range(3)")

    with pytest.raises(SparkRuntimeException) as caught:
        spark.sql(statement)

    assert caught.value.getCondition() == "USER_RAISED_EXCEPTION"
    assert ids(spark) == [0, 1, 2]
    assert lake.list_tables("db") == ["t"]
    assert lake.leftovers() == []
    assert states(handle)[0] is TransactionState.ROLLED_BACK


def test_replaces_and_inserts_do_what_spark_documents(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT id FROM range(3)")
    spark.sql("INSERT INTO lake.db.t VALUES (7)")
    assert ids(spark) == [0, 1, 2, 7]

    spark.sql("INSERT OVERWRITE lake.db.t SELECT max(id) FROM lake.db.t")
    assert ids(spark) == [7]

    spark.sql("CREATE OR REPLACE TABLE lake.db.t AS SELECT 'x' AS name")
    assert ids(spark) == ["x"]

    spark.sql("REPLACE TABLE lake.db.t AS SELECT 1 AS n")
    assert spark.table("lake.db.t").columns == ["n"]


def test_a_static_overwrite_replaces_its_partition_only(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t (id INT, p STRING) PARTITIONED BY (p)")
    spark.sql("INSERT INTO lake.db.t VALUES (1, 'a'), (2, 'b')")

    spark.sql("INSERT OVERWRITE lake.db.t PARTITION (p = 'a') SELECT 9")

    assert sorted(spark.table("lake.db.t").collect()) == [Row(id=2, p="b"), Row(id=9, p="a")]


def test_a_boolean_partition_is_overwritten_through_each_door(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t (id INT, p BOOLEAN) PARTITIONED BY (p)")
    spark.sql("INSERT INTO lake.db.t VALUES (1, true), (2, false), (3, NULL)")

    spark.sql("INSERT OVERWRITE lake.db.t PARTITION (p = false) SELECT 4")
    spark.sql("SELECT 5 AS id, true AS p").writeTo("lake.db.t").overwrite(col("p").eqNullSafe(True))

    assert spark.table("lake.db.t").orderBy("id").collect() == [
        Row(id=3, p=None),
        Row(id=4, p=False),
        Row(id=5, p=True),
    ]


@pytest.mark.parametrize("name", ["größe", "c d", "c.d"])
def test_a_column_of_any_name_makes_partitions(spark: SparkSession, lake: ChaosCatalog, name: str) -> None:
    spark.sql(f"CREATE TABLE lake.db.t (id INT, `{name}` INT) PARTITIONED BY (`{name}`)")
    spark.sql(f"INSERT INTO lake.db.t PARTITION (`{name}` = 5) VALUES (1)")
    spark.sql(f"INSERT OVERWRITE lake.db.t PARTITION (`{name}` = 5) VALUES (2)")
    assert [tuple(row) for row in spark.table("lake.db.t").collect()] == [(2, 5)]


def test_the_data_frame_writers_work_too(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.range(3).writeTo("lake.db.t").create()
    spark.range(1).writeTo("lake.db.t").append()
    spark.range(1).write.insertInto("lake.db.t")
    spark.range(1).write.mode("append").saveAsTable("lake.db.t")
    assert ids(spark) == [0, 0, 0, 0, 1, 2]

    spark.range(2).writeTo("lake.db.t").createOrReplace()
    assert ids(spark) == [0, 1]
    spark.range(4).write.mode("overwrite").saveAsTable("lake.db.t")
    assert ids(spark) == [0, 1, 2, 3]
    spark.range(9).write.mode("ignore").saveAsTable("lake.db.t")
    assert ids(spark) == [0, 1, 2, 3]


# -- what must begin nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE IF NOT EXISTS lake.db.t AS SELECT 1 AS id",
        "EXPLAIN CREATE TABLE lake.db.new AS SELECT 1 AS id",
        "EXPLAIN EXTENDED CREATE OR REPLACE TABLE lake.db.t AS SELECT 1 AS id",
        "EXPLAIN INSERT OVERWRITE lake.db.t SELECT 1L",
    ],
)
def test_explain_and_if_not_exists_begin_nothing(
    spark: SparkSession, lake: ChaosCatalog, handle: Handle, statement: str
) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 5L AS id")
    before = len(states(handle))

    spark.sql(statement).collect()

    assert (ids(spark), len(states(handle))) == ([5], before)


@pytest.mark.parametrize(
    ("statement", "condition"),
    [
        ("CREATE TABLE lake.db.t AS SELECT 1 AS id", "TABLE_OR_VIEW_ALREADY_EXISTS"),
        ("CREATE TABLE lake.nowhere.t AS SELECT 1 AS id", "SCHEMA_NOT_FOUND"),
        ("REPLACE TABLE lake.db.missing AS SELECT 1 AS id", "TABLE_OR_VIEW_NOT_FOUND"),
        ("INSERT INTO lake.db.missing SELECT 1", "TABLE_OR_VIEW_NOT_FOUND"),
        ("SELECT * FROM lake.db.missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("DROP TABLE lake.db.missing", "TABLE_OR_VIEW_NOT_FOUND"),
        ("CREATE DATABASE lake.db", "SCHEMA_ALREADY_EXISTS"),
        ("DROP DATABASE lake.db", "SCHEMA_NOT_EMPTY"),
        ("DROP DATABASE lake.nowhere", "SCHEMA_NOT_FOUND"),
        ("SHOW TABLES IN lake.nowhere", "SCHEMA_NOT_FOUND"),
        ("CREATE TABLE lake.db.new AS SELECT 1 AS a, 2 AS a", "COLUMN_ALREADY_EXISTS"),
        ("INSERT INTO lake.db.t SELECT 1, 2", "INSERT_COLUMN_ARITY_MISMATCH.TOO_MANY_DATA_COLUMNS"),
        ("INSERT INTO lake.db.t SELECT array(1)", "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_SAFELY_CAST"),
    ],
)
def test_bad_statements_get_sparks_own_error_and_begin_nothing(
    spark: SparkSession, lake: ChaosCatalog, handle: Handle, statement: str, condition: str
) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 5L AS id")
    before = len(states(handle))

    with pytest.raises(AnalysisException) as caught:
        spark.sql(statement)

    assert caught.value.getCondition() == condition
    assert (ids(spark), len(states(handle))) == ([5], before)


# -- errors ------------------------------------------------------------------------------------------------------------


def test_our_errors_arrive_as_themselves(spark: SparkSession, lake: ChaosCatalog) -> None:
    lake.faults.add("publish", "error")
    spark.newSession()  # PySpark wraps Py4J anew with each session; our errors must come through that
    with pytest.raises(TransactionAborted):
        spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    assert lake.list_tables("db") == []


def test_an_unknown_outcome_arrives_as_in_doubt(spark: SparkSession, lake: ChaosCatalog) -> None:
    lake.faults.add("publish", "error")
    lake.faults.add("outcome", "error")
    with pytest.raises(TransactionInDoubt) as caught:
        spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    assert "twophase recover" in str(caught.value)


def test_a_checked_java_exception_is_not_masked(spark: SparkSession, lake: ChaosCatalog) -> None:
    """SparkException is a checked one: through a proxy it comes wrapped, and is unwrapped for the user."""
    group = "cancelled by the test"
    spark.sparkContext.setJobGroup(group, group, interruptOnCancel=True)
    cancel = threading.Timer(2.0, spark.sparkContext.cancelJobGroup, [group])
    cancel.start()
    try:
        with pytest.raises(Exception, match="cancelled part of cancelled job group") as caught:
            spark.sql(
                "CREATE TABLE lake.db.t AS SELECT java_method('java.lang.Thread','sleep',60000L) AS s FROM range(2)"
            )
    finally:
        cancel.join()
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
    assert "UndeclaredThrowable" not in str(caught.value)
    assert lake.list_tables("db") == []


def test_a_catalog_without_two_phase_writes_is_refused_with_words(spark: SparkSession) -> None:
    with pytest.raises(AtomicityNotSupportedError, match="no two-phase write for create_table_as"):
        spark.sql("CREATE TABLE few.default.t AS SELECT 1 AS id")


# -- describing and changing -------------------------------------------------------------------------------------------


def test_databases_and_tables_are_listed_described_and_dropped(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE DATABASE IF NOT EXISTS lake.other COMMENT 'spare'")
    spark.sql("CREATE TABLE lake.db.t (id INT NOT NULL COMMENT 'key', name VARCHAR(5)) COMMENT 'people'")

    assert ("db",) in [tuple(row) for row in spark.sql("SHOW DATABASES IN lake").collect()]
    assert [row.tableName for row in spark.sql("SHOW TABLES IN lake.db").collect()] == ["t"]
    described = {row[0]: (row[1], row[2]) for row in spark.sql("DESCRIBE TABLE EXTENDED lake.db.t").collect()}
    assert described["id"] == ("int", "key")
    assert described["name"][0] == "varchar(5)"
    assert described["Comment"][0] == "people"

    spark.sql("DROP TABLE lake.db.t")
    spark.sql("DROP DATABASE lake.other")
    assert lake.list_tables("db") == []
    assert not lake.database_exists("other")


def test_alter_table_reaches_the_catalog(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    spark.sql("ALTER TABLE lake.db.t ADD COLUMN name STRING COMMENT 'who'")
    spark.sql("ALTER TABLE lake.db.t SET TBLPROPERTIES ('k' = 'v')")
    spark.sql("COMMENT ON TABLE lake.db.t IS 'people'")
    spark.sql("ALTER TABLE lake.db.t RENAME TO db.u")

    definition = lake.load_table(ObjectPath.of("db", "u"))
    assert definition.schema.names == ["id", "name"]
    assert definition.comment == "people"
    assert definition.properties["k"] == "v"


def test_alter_database_reaches_the_catalog(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("ALTER DATABASE lake.db SET DBPROPERTIES ('j' = 'u', 'k' = 'v')")
    spark.sql("COMMENT ON DATABASE lake.db IS 'people'")

    facts = lake.load_database("db")
    assert (facts["k"], facts["comment"]) == ("v", "people")
    assert "people" in str(spark.sql("DESCRIBE DATABASE EXTENDED lake.db").collect())


def test_the_analyser_asks_once_for_a_database(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """It wants the properties a dozen times; each question that reaches Python counts in a statement of few rows."""
    asked: list[str] = []
    answer = NativeCatalog.loadNamespaceMetadata

    def counting(self: NativeCatalog, namespace: Any) -> Any:
        asked.append(".".join(namespace))
        return answer(self, namespace)

    monkeypatch.setattr(NativeCatalog, "loadNamespaceMetadata", counting)
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id, 'a' AS name")
    assert len(asked) <= 1


def test_names_of_any_kind_work(spark: SparkSession, lake: ChaosCatalog) -> None:
    for name in ("select", "a.b", "with space", 'quo"te', "back`tick", "naïve-表", "x" * 128):
        quoted = "`" + name.replace("`", "``") + "`"
        spark.sql(f"CREATE TABLE lake.db.{quoted} AS SELECT 1 AS {quoted}")
        assert spark.table(f"lake.db.{quoted}").columns == [name]
        spark.sql(f"DROP TABLE lake.db.{quoted}")


def test_every_type_survives_a_create_table_as(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql(
        "CREATE TABLE lake.db.typed (c CHAR(3), v VARCHAR(7), s STRING COLLATE UNICODE_CI, y INTERVAL YEAR, "
        "h INTERVAL DAY TO HOUR, j VARIANT, n STRUCT<a: ARRAY<CHAR(2)> NOT NULL COMMENT 'inner', m: MAP<INT, DATE>>, "
        "t TIMESTAMP_NTZ, d DECIMAL(38, 37), x BINARY)"
    )
    shown = spark.sql("DESCRIBE lake.db.typed").collect()

    assert [row.data_type for row in shown] == [
        "char(3)",
        "varchar(7)",
        "string collate UNICODE_CI",
        "interval year",
        "interval day to hour",
        "variant",
        "struct<a:array<char(2)>,m:map<int,date>>",
        "timestamp_ntz",
        "decimal(38,37)",
        "binary",
    ]


# -- caches and hooks --------------------------------------------------------------------------------------------------


def test_a_cached_table_shows_the_new_rows_after_a_replace(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1L AS id")
    spark.sql("CACHE TABLE lake.db.t")
    assert ids(spark) == [1]

    spark.sql("INSERT INTO lake.db.t VALUES (2L)")
    assert ids(spark) == [1, 2]
    assert spark.catalog.isCached("lake.db.t")

    spark.sql("CREATE OR REPLACE TABLE lake.db.t AS SELECT 3L AS id")
    assert ids(spark) == [3]


def test_hooks_of_the_session_are_called(spark: SparkSession, lake: ChaosCatalog, handle: Handle) -> None:
    events: list[str] = []

    class Hook(JobStatusHook):
        def on_created(self, job: JobStatus) -> None:
            events.append(f"created {job.path}")

        def on_finished(self, job: JobStatus) -> None:
            events.append("finished")

        def on_failed(self, job: JobStatus, error: BaseException) -> None:
            events.append(f"failed {type(error).__name__}")

    before = handle.hooks
    twophase.attach(spark, hooks=[Hook()])
    try:
        spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
        with pytest.raises(SparkRuntimeException):
            spark.sql("INSERT INTO lake.db.t SELECT CAST(raise_error('x') AS INT)")
    finally:
        handle.hooks = before

    assert events == ["created lake.db.t", "finished", "created lake.db.t", "failed SparkRuntimeException"]


def test_time_travel_is_refused_with_words(spark: SparkSession, lake: ChaosCatalog) -> None:
    spark.sql("CREATE TABLE lake.db.t AS SELECT 1 AS id")
    with pytest.raises(CatalogError, match="time travel"):
        spark.sql("SELECT * FROM lake.db.t VERSION AS OF 1")


@pytest.mark.parametrize(
    ("step", "statement"),
    [
        ("create_table", "CREATE TABLE lake.db.`a b` (id INT)"),
        ("write", "CREATE TABLE lake.db.`a b` AS SELECT 1 AS id"),
    ],
)
def test_what_a_store_that_knows_no_tables_says_is_raised_with_the_table(
    spark: SparkSession, lake: ChaosCatalog, step: str, statement: str
) -> None:
    lake.faults.add(step, "error")
    with pytest.raises(CatalogError, match=r"Table: db\.`a b`\."):
        spark.sql(statement)


# -- the command line --------------------------------------------------------------------------------------------------


@pytest.fixture
def command(handle: Handle, lake: ChaosCatalog, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs ``twophase sql`` in this session instead of one of its own, a statement for each argument."""
    monkeypatch.setattr(commands.Context, "session", lambda _, **__: handle)

    def run(*statements: str, options: Sequence[str] = ()) -> Result:
        words = [word for statement in statements for word in ("-e", statement)]
        return CliRunner().invoke(commands.main, ["sql", *words, *options])

    return run


def document(result: Result) -> Any:
    """The one document on stdout, by the letter of JSON."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(result.stdout, parse_constant=refuse)


JSON = ("--output", "json")


def ends(transactions: Sequence[Any]) -> list[tuple[str, list[str]]]:
    return [(row["state"], [".".join(p["path"]) for p in row["participants"]]) for row in transactions]


def test_several_statements_make_one_json_document(command: Callable[..., Result]) -> None:
    result = command("SELECT 1 AS a", "CREATE TABLE lake.db.t AS SELECT 2 AS b", options=JSON)
    assert result.exit_code == 0
    first, second = document(result)["results"]
    assert (first["columns"], first["rows"], first["transactions"]) == (["a"], [[1]], [])
    assert ends(second["transactions"]) == [("COMPLETED", ["db.t"])]


def test_statements_together_make_one_json_document_with_their_one_transaction(command: Callable[..., Result]) -> None:
    statements = ("CREATE TABLE lake.db.t AS SELECT 1 AS a", "SELECT * FROM lake.db.t")
    first, second = document(command(*statements, options=["--together", *JSON]))["results"]
    assert (first["columns"], second["rows"]) == ([], [[1]])
    assert first["transactions"] == second["transactions"]
    assert ends(second["transactions"]) == [("COMPLETED", ["db.t"])]


def test_a_script_that_the_session_does_not_allow_fails_for_spark_s_own_reason(
    command: Callable[..., Result], spark: SparkSession, tmp_path: Path
) -> None:
    file = tmp_path / "load.sql"
    file.write_text("SELECT 1 AS a;\nBEGIN SELECT 2; SELECT 3; END;\nSELECT 4 AS b;\n")
    spark.conf.set("spark.sql.scripting.enabled", "false")
    try:
        result = command(options=["--file", str(file), *JSON])
    finally:
        spark.conf.set("spark.sql.scripting.enabled", "true")
    assert result.exit_code == 1
    assert "spark.sql.scripting.enabled" in document(result)["error"]["message"]
    assert "This was statement 2 of 3" in "".join(document(result)["error"]["notes"])


@pytest.mark.promise(
    "sql", "BEGIN and COMMIT among the statements of twophase sql make one transaction of those between"
)
def test_a_transaction_in_a_file_of_statements_is_one_transaction(
    command: Callable[..., Result], lake: ChaosCatalog, tmp_path: Path
) -> None:
    file = tmp_path / "load.sql"
    file.write_text(
        "-- the load; in one transaction\nBEGIN TRANSACTION;\nCREATE TABLE lake.db.t AS SELECT 1 AS a;\n"
        "BEGIN INSERT INTO lake.db.t SELECT 2; INSERT INTO lake.db.t SELECT 3; END;\nCOMMIT;\n"
        "BEGIN ATOMIC\n INSERT INTO lake.db.t SELECT 4;\n SELECT count(*) AS n FROM lake.db.t;\nEND;\n"
    )
    result = command(options=["--file", str(file), *JSON])
    assert result.exit_code == 0, result.stdout
    results = document(result)["results"]
    assert [ends(one["transactions"]) for one in results] == [
        [], [], [], [("COMPLETED", ["db.t", "db.t", "db.t"])], [("COMPLETED", ["db.t"])]
    ]  # fmt: skip
    assert results[3]["transactions"][0]["id"] == results[0]["rows"][0][0]
    assert results[4]["rows"] == [[4]]


@pytest.mark.promise("sql", "twophase sql rolls a transaction back that is open at its end, and exits with 1")
def test_a_transaction_that_is_left_open_is_rolled_back(command: Callable[..., Result], lake: ChaosCatalog) -> None:
    begun = ("CREATE TABLE lake.db.t AS SELECT 1 AS a", "BEGIN TRANSACTION; INSERT INTO lake.db.t SELECT 2")
    result = command(*begun, options=JSON)
    assert result.exit_code == 1
    error = document(result)["error"]
    assert "was still open at the end of the statements, and was rolled back" in error["message"]
    assert ends(error["transactions"]) == [("ROLLED_BACK", ["db.t"])]

    result = command(*begun[1:], "INSERT INTO lake.db.t SELECT raise_error('no') AS a", "COMMIT", options=JSON)
    assert result.exit_code == 1
    error = document(result)["error"]
    (note,) = [note for note in error["notes"] if "statement 3 of 4" in note]
    assert "which was open, was rolled back; what had been committed before it stays" in note
    assert [end for end, _ in ends(error["transactions"])] == ["ROLLED_BACK"]
    assert [row.a for row in twophase.attach().spark.table("lake.db.t").collect()] == [1]


def test_together_has_the_terms_of_its_transaction(command: Callable[..., Result], lake: ChaosCatalog) -> None:
    terms = ["--together", "--isolation", "serializable", "--conflict", "wound_wait", "--wait", "1s"]
    result = command("CREATE TABLE lake.db.t AS SELECT 1 AS a", options=[*terms, *JSON])
    assert document(result)["results"][0]["transactions"][0]["isolation"] == "serializable"
    result = command("SELECT 1", options=["--together", "--conflict", "nosuch", *JSON])
    assert (result.exit_code, document(result)["error"]["kind"]) == (1, "ConfigurationError")


def test_a_failure_after_a_success_makes_one_json_document_that_lists_both(command: Callable[..., Result]) -> None:
    result = command(
        "CREATE TABLE lake.db.t AS SELECT 1 AS a",
        "INSERT INTO lake.db.t SELECT raise_error('no') AS a",
        "SELECT 'never run'",
        options=JSON,
    )
    assert result.exit_code == 1
    found = document(result)
    assert [ends(done["transactions"]) for done in found["results"]] == [[("COMPLETED", ["db.t"])]]
    assert ends(found["error"]["transactions"]) == [("ROLLED_BACK", ["db.t"])]
    assert found["error"]["notes"] == [
        "This was statement 2 of 3. What those before it did stays. Those after it were not run."
    ]


def test_what_a_script_did_before_it_failed_is_listed(command: Callable[..., Result], spark: SparkSession) -> None:
    if spark.version < "4.1":
        return  # Spark 4.0 has no scripts unless told so.
    script = (
        "BEGIN CREATE TABLE lake.db.t AS SELECT 1 AS a; "
        "INSERT INTO lake.db.t SELECT CAST(raise_error('no') AS INT) AS a; END"
    )
    found = document(command(script, options=JSON))
    assert ends(found["error"]["transactions"]) == [("COMPLETED", ["db.t"]), ("ROLLED_BACK", ["db.t"])]


def test_a_failure_of_statements_together_leaves_nothing_and_says_so(
    command: Callable[..., Result], lake: ChaosCatalog
) -> None:
    result = command("CREATE TABLE lake.db.t AS SELECT 1 AS a", "SELECT nope", options=["--together", *JSON])
    assert result.exit_code == 1
    assert ends(document(result)["error"]["transactions"]) == [("ROLLED_BACK", ["db.t"])]
    assert "results" not in document(result)
    assert lake.list_tables("db") == []


def test_a_failure_after_a_success_is_told_to_people_too(command: Callable[..., Result]) -> None:
    result = command("CREATE TABLE lake.db.t AS SELECT 1 AS a", "INSERT INTO lake.db.t SELECT raise_error('no') AS a")
    assert result.exit_code == 1
    assert "COMPLETED, ATOMIC: transaction" in result.stdout
    assert "This was statement 2 of 2. What those before it did stays." in result.stderr
    assert "ROLLED_BACK: transaction" in result.stderr


def test_a_doubt_makes_one_json_document(command: Callable[..., Result], lake: ChaosCatalog) -> None:
    lake.faults.add("publish", "lost_reply", 1)
    lake.faults.add("outcome", "error")
    result = command("SELECT 1 AS a", "CREATE TABLE lake.db.t AS SELECT 1 AS a", options=JSON)
    assert result.exit_code == 3
    found = document(result)
    assert (len(found["results"]), found["error"]["kind"]) == (1, "TransactionInDoubt")
    assert ends(found["error"]["transactions"]) == [("IN_DOUBT", ["db.t"])]


def test_values_that_json_has_no_words_for_become_text(command: Callable[..., Result]) -> None:
    query = (
        "SELECT double('NaN') AS a, array(double('inf'), -double('inf')) AS b, map(date'2024-01-02', 1) AS c, "
        "map(1, float('NaN')) AS d, named_struct('x', double('NaN')) AS e, 1.5D AS f"
    )
    ((row,),) = [done["rows"] for done in document(command(query, options=JSON))["results"]]
    assert row == ["NaN", ["Infinity", "-Infinity"], {"2024-01-02": 1}, {"1": "NaN"}, ["NaN"], 1.5]


def test_what_looks_like_markup_is_shown_as_it_is(command: Callable[..., Result]) -> None:
    result = command("SELECT '[/x] hi' AS a, '[bold]abc' AS `[b]c`, ':smile:' AS `[/]`")
    assert result.exit_code == 0
    for text in ("[/x] hi", "[bold]abc", "[b]c", ":smile:", "[/]"):
        assert text in result.stdout
    assert "[/data/in]" in command("SELECT raise_error('[/data/in]')").stderr
