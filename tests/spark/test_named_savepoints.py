"""Named savepoints in SQL and Python, over session tables and an Iceberg catalog."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import drop_all, rows
from twophase import failpoints
from twophase.cli import commands
from twophase.errors import AtomicityNotSupportedError, CatalogError, ConfigurationError, TransactionStatementError
from twophase.timeline.savepoints import SavepointRecord
from twophase.transactions.clean import clean


@pytest.fixture(scope="module")
def spark(start: Start, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    root: Path = tmp_path_factory.mktemp("ice")
    session = start(
        {
            "spark.twophase.wait": "5s",
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={root / 'metastore'};create=true",
            "spark.sql.catalog.ice": "twophase.lakehouse",
            "spark.sql.catalog.ice.uri": f"sqlite:///{root / 'ice.db'}",
            "spark.sql.catalog.ice.warehouse": str(root / "ice"),
            "spark.sql.catalog.lite": "twophase.jdbc",
            "spark.sql.catalog.lite.url": f"sqlite:///{root / 'lite.db'}",
        }
    )
    twophase.attach(session)
    session.sql("CREATE DATABASE ice.db")
    return session


@pytest.fixture(autouse=True)
def nothing_left(spark: SparkSession) -> Iterator[None]:
    drop_all(spark)
    yield
    failpoints.disarm()
    for savepoint in twophase.savepoints(spark):
        twophase.drop_savepoint(spark, savepoint.name)
    for row in spark.sql("SHOW TABLES IN ice.db").collect():
        spark.sql(f"DROP TABLE ice.db.{row.tableName} PURGE")
    assert twophase.attach(spark).timeline.transactions(open_only=True) == []


@pytest.fixture
def tables(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t PARTITIONED BY (day) AS SELECT id, id % 2 AS day FROM range(4)")
    spark.sql("CREATE TABLE ice.db.u AS SELECT id, 'a' AS name FROM range(3)")


def last(spark: SparkSession) -> Any:
    (record,) = twophase.attach(spark).timeline.transactions(limit=1)
    return record


@pytest.mark.usefixtures("tables")
@pytest.mark.promise("restore", "tables of several stores are restored in one transaction")
def test_rows_and_schemas_of_several_stores_come_back_in_one_transaction(spark: SparkSession) -> None:
    made = spark.sql("CREATE SAVEPOINT before FOR DATABASE default, ice.db KEEP 30 DAYS").first()
    assert made is not None
    assert (made.name, made.state, made.tables) == ("before", "READY", ["hive.default.t", "ice.db.u"])
    assert (made.expires - made.created).days == 30
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 'x' AS other")
    spark.sql("ALTER TABLE ice.db.u ADD COLUMN more INT")
    spark.sql("INSERT INTO ice.db.u SELECT 9, 'b', 1")
    spark.sql("CREATE TABLE ice.db.new AS SELECT 1 AS id")
    restored = spark.sql("RESTORE TO SAVEPOINT before").first()
    assert restored is not None
    record = last(spark)
    assert (record.id, record.state.name, str(record.level)) == (restored.transaction_id, "COMPLETED", "REVERSIBLE")
    assert [p.purpose.name for p in record.participants].count("CREATE_OR_REPLACE_TABLE_AS") == 2
    assert rows(spark, "SELECT * FROM t ORDER BY id") == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert [row[0] for row in spark.sql("SHOW PARTITIONS t").collect()] == ["day=0", "day=1"]
    assert rows(spark, "SELECT * FROM ice.db.u ORDER BY id") == [(0, "a"), (1, "a"), (2, "a")]
    assert [row.tableName for row in spark.sql("SHOW TABLES IN ice.db").collect()] == ["u"]
    assert [row.name for row in spark.sql("SHOW SAVEPOINTS").collect()] == ["before"]
    spark.sql("DROP SAVEPOINT before")
    assert spark.sql("SHOW SAVEPOINTS").isEmpty()


@pytest.mark.usefixtures("tables")
def test_tables_dropped_since_come_back(spark: SparkSession) -> None:
    twophase.create_savepoint(spark, "before", tables=["t", "ice.db.u"], keep="1d")
    spark.sql("DROP TABLE t")
    spark.sql("DROP TABLE ice.db.u")
    tx = twophase.restore(spark, "before")
    assert tx.state is twophase.TransactionState.COMPLETED
    assert rows(spark, "SELECT * FROM t ORDER BY id") == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert rows(spark, "SELECT * FROM ice.db.u ORDER BY id") == [(0, "a"), (1, "a"), (2, "a")]


@pytest.mark.promise("restore", "a dropped EXTERNAL table comes back where its LOCATION is empty, and else is named")
def test_a_dropped_external_table_comes_back_where_nothing_is_at_its_location(
    spark: SparkSession, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    spark.sql(f"CREATE TABLE outside USING parquet LOCATION '{place}' AS SELECT 1 AS id")
    spark.sql("CREATE TABLE beside AS SELECT 1 AS id")
    spark.sql("CREATE SAVEPOINT before FOR TABLE outside, beside")
    spark.sql("INSERT INTO beside VALUES (2)")
    spark.sql("DROP TABLE outside")
    with pytest.raises(CatalogError, match=f"default.outside cannot be created: the directory .*{place} is not empty"):
        spark.sql("RESTORE TO SAVEPOINT before")
    assert rows(spark, "SELECT * FROM beside ORDER BY id") == [(1,), (2,)]
    assert not spark.catalog.tableExists("outside") and list(place.glob("*.parquet"))
    spark.sql(f"CREATE TABLE outside USING parquet LOCATION '{place}'")  # The way that the error names.
    spark.sql("INSERT INTO outside VALUES (2)")
    spark.sql("RESTORE TO SAVEPOINT before")
    assert rows(spark, "SELECT * FROM outside") == rows(spark, "SELECT * FROM beside") == [(1,)]
    spark.sql("DROP TABLE outside")
    place.rename(tmp_path / "elsewhere")
    spark.sql("RESTORE TABLE outside TO SAVEPOINT before")
    assert rows(spark, "SELECT * FROM outside") == [(1,)] and list(place.glob("*.parquet"))


@pytest.mark.usefixtures("tables")
def test_only_some_tables_are_restored_if_asked(spark: SparkSession) -> None:
    spark.sql("CREATE SAVEPOINT before FOR TABLE t, ice.db.u")
    spark.sql("INSERT INTO t SELECT 9, 9")
    spark.sql("INSERT INTO ice.db.u SELECT 9, 'b'")
    spark.sql("RESTORE TABLE t TO SAVEPOINT before")
    assert (spark.table("t").count(), spark.table("ice.db.u").count()) == (4, 4)
    twophase.restore(spark, "before", databases="ice.db")
    assert spark.table("ice.db.u").count() == 3


@pytest.mark.usefixtures("tables")
@pytest.mark.promise("restore", "a table is read as a transaction has left it, by the transaction's id")
def test_a_table_is_read_as_of_a_transaction(spark: SparkSession) -> None:
    with twophase.transaction(spark) as first:
        spark.sql("INSERT INTO t SELECT 9, 9")
        spark.sql("INSERT INTO ice.db.u SELECT 9, 'b'")
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 'x' AS other")
    spark.sql("INSERT INTO t SELECT 'y'")
    second = last(spark).id
    spark.sql("CREATE OR REPLACE TABLE ice.db.u AS SELECT 'x' AS other")
    old = [(0, 0), (1, 1), (2, 0), (3, 1), (9, 9)]
    assert rows(spark, f"SELECT * FROM t VERSION AS OF '{first.id}' ORDER BY id") == old
    assert rows(spark, f"SELECT max(id), max(name) FROM ice.db.u VERSION AS OF '{first.id}'") == [(9, "b")]
    # Of those, too, that it has not written: the state of then.
    assert rows(spark, f"SELECT max(id) FROM ice.db.u VERSION AS OF '{second}'") == [(9,)]
    assert rows(spark, f"SELECT * FROM t VERSION AS OF '{second}' ORDER BY 1") == [("x",), ("y",)]
    spark.sql("INSERT OVERWRITE t SELECT 'z'")
    assert rows(spark, f"SELECT * FROM t VERSION AS OF '{second}' ORDER BY 1") == [("x",), ("y",)]
    with pytest.raises(Exception, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.sql("CREATE TABLE later AS SELECT 1 AS id")
        spark.sql(f"SELECT * FROM later VERSION AS OF '{second}'")
    with pytest.raises(RuntimeError), twophase.transaction(spark) as failed:
        spark.sql("INSERT INTO t SELECT 'never'")
        raise RuntimeError
    with pytest.raises(Exception, match="has published nothing"):
        spark.sql(f"SELECT * FROM t VERSION AS OF '{failed.id}'")
    with pytest.raises(Exception, match="no transaction of this id"):
        spark.sql("SELECT * FROM t VERSION AS OF 'never'")
    spark.sql("INSERT OVERWRITE t SELECT 'w'")
    writer = last(spark).id
    spark.sql("INSERT INTO ice.db.u SELECT 'v'")
    written_outside(spark, "t")
    for transaction in (writer, last(spark).id):
        with pytest.raises(Exception, match="changed since by a program outside twophase"):
            spark.sql(f"SELECT * FROM t VERSION AS OF '{transaction}'")


@pytest.mark.usefixtures("tables")
def test_a_savepoint_is_read_by_its_name(spark: SparkSession) -> None:
    spark.sql("CREATE SAVEPOINT before FOR TABLE t, ice.db.u")
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 'x' AS other")
    spark.sql("CREATE OR REPLACE TABLE ice.db.u AS SELECT 'x' AS other")
    old = [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert rows(spark, "SELECT * FROM t VERSION AS OF 'before' ORDER BY id") == old
    assert rows(spark, "SELECT t.id, x.other FROM t VERSION AS OF 'before' AS t, t AS x WHERE t.day = 1") == [
        (1, "x"),
        (3, "x"),
    ]
    assert rows(spark, "SELECT count(*) FROM default.t VERSION AS OF 'before' WHERE id IN (SELECT 1)") == [(1,)]
    assert rows(spark, "SELECT max(id) FROM ice.db.u FOR VERSION AS OF 'before'") == [(2,)]
    spark.sql("INSERT OVERWRITE t SELECT CAST(id AS STRING) FROM t VERSION AS OF 'before'")
    assert rows(spark, "SELECT * FROM t ORDER BY 1") == [("0",), ("1",), ("2",), ("3",)]
    with twophase.transaction(spark):
        spark.sql("INSERT INTO t SELECT 'y'")
        assert rows(spark, "SELECT * FROM t VERSION AS OF 'before' ORDER BY id") == old
    spark.sql("DROP TABLE t")
    assert rows(spark, "SELECT * FROM t VERSION AS OF 'before' ORDER BY id") == old
    with pytest.raises(Exception, match="There is no savepoint never"):
        spark.sql("SELECT * FROM t VERSION AS OF 'never'")
    spark.sql("DROP SAVEPOINT before")
    with pytest.raises(Exception, match="There is no savepoint before"):
        spark.sql("SELECT * FROM t VERSION AS OF 'before'")


@pytest.mark.usefixtures("tables")
def test_formats_buckets_and_options_come_back(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE c USING csv OPTIONS (header 'true') AS SELECT id, 'a' AS name FROM range(3)")
    spark.sql("CREATE TABLE b CLUSTERED BY (id) INTO 2 BUCKETS AS SELECT id FROM range(10)")
    spark.sql("CREATE TABLE h STORED AS TEXTFILE AS SELECT id FROM range(5)")
    spark.sql("CREATE VIEW v AS SELECT 1 AS one")
    record: SavepointRecord = twophase.create_savepoint(spark, "before", databases="default")
    assert [table.path.name for table in record.tables] == ["b", "c", "h", "t"]
    for name in ("b", "c", "h"):
        spark.sql(f"CREATE OR REPLACE TABLE {name} USING parquet AS SELECT 'x' AS other")
    spark.sql("RESTORE DATABASE default TO SAVEPOINT before KEEP NEW TABLES")
    assert rows(spark, "SELECT * FROM c ORDER BY id") == [(0, "a"), (1, "a"), (2, "a")]
    assert rows(spark, "SELECT sum(id) FROM b") == [(45,)]
    assert rows(spark, "SELECT sum(id) FROM h") == [(10,)]
    described = {row.col_name: row.data_type for row in spark.sql("DESCRIBE EXTENDED b").collect()}
    assert (described["Num Buckets"], described["Provider"]) == ("2", "parquet")
    spark.sql("INSERT INTO h SELECT 5L")
    assert rows(spark, "SELECT sum(id) FROM h") == [(15,)]
    with pytest.raises(Exception, match="only through the metastore"):
        spark.sql("SELECT * FROM h VERSION AS OF 'before'")
    spark.sql("DROP VIEW v")


@pytest.mark.usefixtures("tables")
def test_bad_input_is_refused_and_nothing_changes(spark: SparkSession) -> None:
    spark.sql("CREATE SAVEPOINT before FOR TABLE t")
    spark.sql("CREATE OR REPLACE TABLE lite.main.p AS SELECT 1 AS id")
    for text, words, kind in [
        ("CREATE SAVEPOINT before FOR TABLE t", "There is a savepoint before already", ConfigurationError),
        ("CREATE SAVEPOINT x FOR TABLE never", "does not exist", CatalogError),
        ("CREATE SAVEPOINT x FOR DATABASE never", "does not exist", CatalogError),
        ("CREATE SAVEPOINT x FOR DATABASE ice", "does not exist|is not the name of a database", Exception),
        ("CREATE SAVEPOINT x FOR TABLE t KEEP 0 DAYS", "longer than 0 seconds", ConfigurationError),
        ("CREATE SAVEPOINT x FOR TABLE t KEEP never", "a number of days", TransactionStatementError),
        ("CREATE SAVEPOINT x FOR TABLE t KEEP 4000000 DAYS", "into the year 9999", ConfigurationError),
        ("CREATE SAVEPOINT x FOR TABLE t KEEP 3 MOONS", "SECONDS, MINUTES", TransactionStatementError),
        ("CREATE SAVEPOINT x", "where FOR is expected", TransactionStatementError),
        ("RESTORE TABLE never TO SAVEPOINT before", "does not contain hive.default.never", ConfigurationError),
        ("RESTORE TO SAVEPOINT never", "There is no savepoint never", ConfigurationError),
        ("DROP SAVEPOINT never", "There is no savepoint never", ConfigurationError),
        (
            "CREATE SAVEPOINT x FOR DATABASE lake.default",
            "cannot keep states of its tables",
            AtomicityNotSupportedError,
        ),
        ("CREATE SAVEPOINT x FOR DATABASE lite.main", "lite cannot keep states", AtomicityNotSupportedError),
        ("CREATE SAVEPOINT x FOR TABLE t, lite.main.p", "lite cannot keep states", AtomicityNotSupportedError),
    ]:
        with pytest.raises(kind, match=words):
            spark.sql(text)
    with pytest.raises(ConfigurationError, match="keep "):
        twophase.create_savepoint(spark, "x", tables="t", keep="three moons")
    with twophase.transaction(spark):
        for text in ("CREATE SAVEPOINT x FOR TABLE t", "RESTORE TO SAVEPOINT before", "DROP SAVEPOINT before"):
            with pytest.raises(TransactionStatementError, match="inside transaction"):
                spark.sql(text)
    assert [savepoint.name for savepoint in twophase.savepoints(spark)] == ["before"]
    assert spark.table("t").count() == 4


@pytest.mark.usefixtures("tables")
@pytest.mark.promise("restore", "a snapshot sees all tables before a restore, or all after it")
def test_a_reader_sees_each_table_wholly_before_or_after_a_restore(spark: SparkSession) -> None:
    spark.sql("CREATE SAVEPOINT before FOR TABLE t, ice.db.u")
    seen: set[tuple[int, int]] = set()
    failed: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        other = spark.newSession()
        twophase.attach(other)
        while not stop.is_set():
            try:
                with twophase.snapshot(other):
                    seen.add((other.table("t").count(), other.table("ice.db.u").count()))
            except BaseException as error:
                failed.append(error)
                return

    def seen_by_now(counts: tuple[int, int]) -> None:
        while counts not in seen and not failed:
            stop.wait(0.01)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(2):
            seen_by_now((4, 3))
            with twophase.transaction(spark):
                spark.sql("INSERT OVERWRITE t SELECT 1, 1")
                spark.sql("CREATE OR REPLACE TABLE ice.db.u AS SELECT 1 AS id")
            seen_by_now((1, 1))
            twophase.restore(spark, "before")
    finally:
        stop.set()
        reader.join()
    assert failed == []
    assert seen == {(4, 3), (1, 1)}


@pytest.mark.usefixtures("tables")
def test_the_command_line_creates_lists_restores_and_drops(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = twophase.attach(spark)
    monkeypatch.setattr(commands.Context, "session", lambda _, **__: handle)

    def run(*words: str, code: int = 0) -> Any:
        timeline = handle.timeline.display_url
        found = CliRunner().invoke(commands.main, [*words, "--timeline", timeline, "--output", "json"])
        assert found.exit_code == code, found.output
        return json.loads(found.stdout or found.stderr)

    what = ("--database", "default", "--table", "ice.db.u", "--keep", "2d")
    (made,) = run("create-savepoint", "b f", *what)["savepoints"]
    assert (made["name"], made["state"], made["tables"]) == ("b f", "ready", ["hive.default.t", "ice.db.u"])
    spark.sql("INSERT INTO t SELECT 9, 9")
    assert run("restore", "b f", "--table", "t")["state"] == "COMPLETED"
    assert spark.table("t").count() == 4
    assert [found["name"] for found in run("savepoints")["savepoints"]] == ["b f"]
    listed = CliRunner().invoke(commands.main, ["savepoints", "--timeline", handle.timeline.display_url])
    assert "hive.default.t" in listed.stdout
    assert "There is no savepoint never" in run("restore", "never", code=1)["error"]["message"]
    spark.sql("CREATE TABLE made AS SELECT 1 AS id")
    assert run("restore", "b f", "--database", "default", "--keep-new")["state"] == "COMPLETED"
    assert spark.catalog.tableExists("made")
    assert run("create-savepoint", "x", code=2)["error"]["message"]
    assert run("drop-savepoint", "b f")["savepoints"] == []


@pytest.mark.usefixtures("tables")
def test_the_command_line_takes_a_transaction_back(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = twophase.attach(spark)
    monkeypatch.setattr(commands.Context, "session", lambda _, **__: handle)

    def run(*words: str) -> Any:
        return CliRunner().invoke(commands.main, [*words, "--timeline", handle.timeline.display_url])

    spark.sql("INSERT OVERWRITE t SELECT 7, 7")
    wrong = last(spark).id
    undone = json.loads(run("undo", wrong, "--output", "json").stdout)
    assert (undone["state"], undone["undoes"]) == ("COMPLETED", wrong)
    assert rows(spark, "SELECT * FROM t") == [(0, 0), (1, 1), (2, 0), (3, 1)]
    shown = run("show", undone["id"]).stdout
    assert any(line.split() == ["Undoes", wrong] for line in shown.splitlines())
    refused = run("undo", wrong)
    assert (refused.exit_code, undone["id"] in refused.stderr) == (1, True)
    assert "There is no transaction never" in run("undo", "never").stderr
    assert spark.table("t").count() == 4


def test_the_versions_of_a_schema_are_listed_with_their_commits_as_far_as_they_are_known(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    handle = twophase.attach(spark)
    monkeypatch.setattr(commands.Context, "session", lambda _, **__: handle)
    spark.sql("CREATE TABLE ice.db.u AS SELECT 1 AS id, 'a' AS name")
    spark.sql("ALTER TABLE ice.db.u RENAME COLUMN name TO label")
    spark.sql("ALTER TABLE ice.db.u ALTER COLUMN id TYPE BIGINT")
    spark.sql("INSERT INTO ice.db.u VALUES (2, 'b')")
    spark.sql("CREATE TABLE t PARTITIONED BY (day) AS SELECT 1 AS id, named_struct('x', 2) AS s, 3 AS day")
    first, renamed, widened = twophase.schema_history(spark, "ice.db.u")
    assert [[field.name for field in v.schema] for v in (first, renamed)] == [["id", "name"], ["id", "label"]]
    assert [v.is_current for v in (first, renamed, widened)] == [False, False, True]
    assert (renamed.commit, renamed.transaction_id) == (None, None)  # Nothing was written with it.
    snapshots = [str(row.snapshot_id) for row in spark.sql("SELECT * FROM ice.db.u.snapshots").collect()]
    assert [first.commit, widened.commit] == snapshots
    queried = spark.sql("SELECT schema_id, commit FROM ice.db.u.schema_history ORDER BY schema_id").collect()
    assert [tuple(row) for row in queried] == [(0, first.commit), (1, None), (2, widened.commit)]
    line = handle.timeline
    assert line.transaction(widened.transaction_id) is not None
    times = [version.since for version in (first, renamed, widened)]
    assert None not in times and times == sorted(times)
    for commit in (widened.transaction_id, widened.commit):
        assert twophase.schema_as_of(spark, "ice.db.u", commit) == widened
    with pytest.raises(ConfigurationError, match="is known as of 17"):
        twophase.schema_as_of(spark, "ice.db.u", 17)
    (only,) = twophase.schema_history(spark, "t")
    assert ([field.name for field in only.schema], only.is_current) == (["id", "s", "day"], True)
    assert only.since is not None
    assert line.transaction(only.transaction_id) is not None

    def show(table: str, *words: str) -> str:
        found = CliRunner().invoke(commands.main, ["show-schema", table, "--timeline", line.display_url, *words])
        assert found.exit_code == 0, found.output
        return str(found.stdout)

    shown = json.loads(show("ice.db.u", "--output", "json"))
    assert [version["commit"] for version in shown["schemas"]] == [snapshots[0], None, snapshots[1]]
    assert shown["schemas"][1]["schema"]["fields"][1]["name"] == "label"
    assert json.loads(show("ice.db.u", "--as-of", snapshots[0], "--output", "json"))["schemas"] == shown["schemas"][:1]
    text = show("t")
    assert "unknown" not in text
    assert "s.x int" in text


# -- undo --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tables")
def test_one_transaction_is_taken_back_where_nothing_was_built_on_it(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 'x' AS other")
    wrong = last(spark)
    spark.sql("INSERT INTO t SELECT 'y'")
    later = last(spark).id
    with pytest.raises(ConfigurationError, match=f"transaction {later} has changed table hive.default.t since"):
        twophase.undo(spark, wrong.id)
    twophase.undo(spark, later)
    assert rows(spark, "SELECT * FROM t") == [("x",)]
    twophase.undo(spark, wrong.id)
    assert spark.table("t").columns == ["id", "day"] and spark.table("t").count() == 4


@pytest.mark.promise("restore", "transactions of one table are taken back one after the other, the last one first")
@pytest.mark.parametrize(
    "changes",
    [
        ("INSERT INTO {} VALUES (1, 1)", "INSERT INTO {} VALUES (2, 2)", "INSERT OVERWRITE {} VALUES (3, 3)"),
        (
            "INSERT OVERWRITE {} VALUES (1, 1)",
            "CREATE OR REPLACE TABLE {} AS SELECT 'x' AS other",
            "INSERT INTO {} VALUES ('y')",
        ),
    ],
    ids=["rows", "tables"],
)
@pytest.mark.parametrize(
    "by",
    [
        pytest.param("", id="plain"),
        pytest.param("PARTITIONED BY (k)", id="partitioned", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("table", ["chained", pytest.param("ice.db.chained", marks=pytest.mark.exhaustive)])
def test_transactions_are_taken_back_one_after_the_other(
    spark: SparkSession, table: str, by: str, changes: tuple[str, ...]
) -> None:
    spark.sql(f"CREATE TABLE {table} {by} AS SELECT 0 AS id, 0 AS k")
    states, made = [rows(spark, f"SELECT * FROM {table}")], []
    for change in changes:
        spark.sql(change.format(table))
        made.append(last(spark).id)
        states.append(sorted(rows(spark, f"SELECT * FROM {table}")))
    for number in (2, 1, 0):
        if number:
            with pytest.raises(ConfigurationError, match=f"{made[number]} has changed table"):
                twophase.undo(spark, made[0])
        undone = twophase.undo(spark, made[number])
        assert twophase.attach(spark).timeline.transaction(undone.id).undoes == made[number]  # type: ignore[union-attr]
        assert sorted(rows(spark, f"SELECT * FROM {table}")) == states[number]
    twophase.undo(spark, undone.id)
    assert sorted(rows(spark, f"SELECT * FROM {table}")) == states[1]
    twophase.undo(spark, made[0])
    assert sorted(rows(spark, f"SELECT * FROM {table}")) == states[0]


@pytest.mark.promise("restore", "an undo loses no rows that others have added between two transactions")
@pytest.mark.parametrize("table", ["between", "ice.db.between"])
def test_an_undo_loses_no_rows_that_others_have_added_between(spark: SparkSession, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} AS SELECT 0 AS id")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (1)")
    early = last(spark).id
    written_outside(spark, table)
    spark.sql(f"INSERT OVERWRITE {table} VALUES (2)")
    twophase.undo(spark, last(spark).id)
    assert rows(spark, f"SELECT * FROM {table} ORDER BY id") == [(1,), (99,)]
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, early)
    spark.sql(f"INSERT OVERWRITE {table} VALUES (3)")
    later = last(spark).id
    twophase.undo(spark, later)
    written_outside(spark, table)
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, last(spark).id)


@pytest.mark.promise("restore", "an undo loses no rows that others have added between two transactions")
@pytest.mark.parametrize("table", ["twice", pytest.param("ice.db.twice", marks=pytest.mark.exhaustive)])
def test_an_undo_loses_no_rows_that_others_have_added_after_the_undo_of_a_later_transaction(
    spark: SparkSession, table: str
) -> None:
    spark.sql(f"CREATE TABLE {table} AS SELECT 0 AS id")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (1)")
    early = last(spark).id
    for number in (2, 3):
        spark.sql(f"INSERT OVERWRITE {table} VALUES ({number})")
        twophase.undo(spark, last(spark).id)
        if number == 2:
            written_outside(spark, table)
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, early)
    assert rows(spark, f"SELECT * FROM {table} ORDER BY id") == [(1,), (99,)]


@pytest.mark.usefixtures("tables")
def test_an_undo_gives_rows_and_schema_back_and_drops_what_was_created(spark: SparkSession) -> None:
    with twophase.transaction(spark) as wrong:
        spark.sql("CREATE OR REPLACE TABLE t AS SELECT 'x' AS other")
        spark.sql("INSERT INTO ice.db.u SELECT 9, 'b'")
        spark.sql("CREATE TABLE made AS SELECT 1 AS id")
        spark.sql("CREATE TABLE ice.db.made AS SELECT 1 AS id")
    undone = twophase.undo(spark, wrong.id)
    assert undone.state is twophase.TransactionState.COMPLETED
    assert rows(spark, "SELECT * FROM t ORDER BY id") == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert [row[0] for row in spark.sql("SHOW PARTITIONS t").collect()] == ["day=0", "day=1"]
    assert rows(spark, "SELECT * FROM ice.db.u ORDER BY id") == [(0, "a"), (1, "a"), (2, "a")]
    assert [row.tableName for row in spark.sql("SHOW TABLES").collect()] == ["t"]
    assert [row.tableName for row in spark.sql("SHOW TABLES IN ice.db").collect()] == ["u"]
    with pytest.raises(CatalogError, match=r"former state of ice\.db\.made can no longer be read: .* was dropped"):
        twophase.undo(spark, undone.id)


@pytest.mark.promise("restore", "an undo loses no rows that a program outside twophase has added since")
@pytest.mark.parametrize(
    "wrong",
    [
        "INSERT OVERWRITE {} SELECT 7",
        "CREATE OR REPLACE TABLE {} AS SELECT 7 AS id",
        "CREATE TABLE {}_new AS SELECT 7 AS id",
    ],
)
@pytest.mark.parametrize("table", ["plain", "ice.db.plain"])
def test_an_undo_loses_no_rows_of_others(spark: SparkSession, tmp_path: Path, table: str, wrong: str) -> None:
    spark.sql(f"CREATE TABLE {table} AS SELECT 1 AS id")
    spark.sql(wrong.format(table))
    made = last(spark)
    changed = f"{table}_new" if "_new" in wrong else table
    written_outside(spark, changed)
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, made.id)
    assert rows(spark, f"SELECT id FROM {changed} ORDER BY id") == [(7,), (99,)]


def test_an_undo_loses_no_rows_of_others_in_overwritten_partitions(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE parts PARTITIONED BY (k) AS SELECT id, id AS k FROM range(3)")
    spark.sql("INSERT OVERWRITE parts PARTITION (k = 1) SELECT 7")
    kept = last(spark)
    twophase.undo(spark, kept.id)
    assert rows(spark, "SELECT * FROM parts ORDER BY k") == [(0, 0), (1, 1), (2, 2)]
    spark.sql("INSERT OVERWRITE parts PARTITION (k = 1) SELECT 7")
    made = last(spark)
    written_outside(spark, "parts", "PARTITION (k = 1)")
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, made.id)


def test_several_statements_on_one_table_are_taken_back_together(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE t AS SELECT 1 AS id")
    spark.sql("CREATE TABLE ice.db.u AS SELECT 1 AS id")
    with twophase.transaction(spark) as wrong:
        for table in ("t", "ice.db.u"):
            spark.sql(f"CREATE OR REPLACE TABLE {table} AS SELECT 7 AS id")
            spark.sql(f"INSERT INTO {table} SELECT 8")
            spark.sql(f"INSERT OVERWRITE {table} SELECT id + 1 FROM {table}")
            spark.sql(f"INSERT INTO {table} SELECT 9")
    twophase.undo(spark, wrong.id)
    assert rows(spark, "SELECT * FROM t") == rows(spark, "SELECT * FROM ice.db.u") == [(1,)]


def test_what_was_made_is_recognized_whatever_it_is_defined_by(spark: SparkSession) -> None:
    definitions = (
        "USING csv OPTIONS (header 'true', sep ';') COMMENT 'some' TBLPROPERTIES ('a.b'='c', 'password'='hidden')",
        "USING parquet PARTITIONED BY (s) CLUSTERED BY (id) INTO 2 BUCKETS",
        "STORED AS parquet TBLPROPERTIES ('x'='y')",
        "ROW FORMAT DELIMITED FIELDS TERMINATED BY ';'",
        "USING parquet CLUSTER BY (id)",
    )
    values = "CAST(1 AS BIGINT) AS id, CAST('x' AS VARCHAR(5)) AS s, 1.5BD AS `Dec`, DATE'2020-01-01' AS d"
    spark.sql("CREATE TABLE t (id BIGINT COMMENT 'one', v VARCHAR(3), c CHAR(2)) USING parquet")
    for definition in definitions:
        nested = "" if "csv" in definition else ", named_struct('N', 1) AS `St`"
        spark.sql(f"CREATE OR REPLACE TABLE t {definition} AS SELECT {values}{nested}")
        twophase.undo(spark, last(spark).id)
        assert spark.table("t").columns == ["id", "v", "c"], definition
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 1 AS id")
    replaced = last(spark)
    spark.sql("ALTER TABLE t ADD COLUMNS (more INT)")
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, replaced.id)
    with pytest.raises(ConfigurationError, match=r"is an ALTER TABLE of hive\.default\.t outside of a transaction"):
        twophase.undo(spark, last(spark).id)
    for statement in ("DROP TABLE t", "CREATE TABLE t (id INT) USING parquet", "ALTER TABLE t RENAME TO renamed"):
        spark.sql(statement)
        with pytest.raises(ConfigurationError, match=r"is a (DROP|CREATE).* of hive.*outside of"):
            twophase.undo(spark, last(spark).id)
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, replaced.id)
    spark.sql("DROP TABLE renamed")
    spark.sql("CREATE OR REPLACE TABLE t AS SELECT 2 AS id")
    replaced = last(spark)
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('important'='yes')")
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        twophase.undo(spark, replaced.id)


@pytest.mark.parametrize("table", ["t", "ice.db.u"])
def test_an_altered_table_is_read_as_of_a_later_transaction_unless_others_have_written(
    spark: SparkSession, table: str
) -> None:
    spark.sql(f"CREATE TABLE {table} AS SELECT CAST(1 AS INT) AS id")
    spark.sql(f"ALTER TABLE {table} ADD COLUMNS (more INT)")
    spark.sql("CREATE TABLE other AS SELECT 1 AS id")
    later = last(spark)
    assert rows(spark, f"SELECT * FROM {table} VERSION AS OF '{later.id}'") == [(1, None)]
    written_outside(spark, table)
    with pytest.raises(CatalogError, match="outside twophase"):
        spark.sql(f"SELECT * FROM {table} VERSION AS OF '{later.id}'").collect()


@pytest.mark.promise(
    "restore", "VERSION AS OF an ALTER TABLE outside of a block reads the table as that has left it", detail=True
)
@pytest.mark.parametrize("table", ["t", "ice.db.u"])
def test_a_table_is_read_as_an_alter_table_outside_of_a_block_has_left_it(spark: SparkSession, table: str) -> None:
    spark.sql(f"CREATE TABLE {table} AS SELECT CAST(1 AS INT) AS id")
    altered = []
    for column in ("more", "most"):
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({column} INT)")
        altered.append(f"SELECT * FROM {table} VERSION AS OF '{last(spark).id}'")
    assert rows(spark, altered[1]) == [(1, None, None)]
    spark.sql(f"INSERT INTO {table} VALUES (2, 2, 2)")
    spark.sql(f"INSERT OVERWRITE {table} VALUES (3, 3, 3)")
    assert rows(spark, altered[0]) == [(1, None)]
    assert rows(spark, altered[1]) == [(1, None, None)]


def written_outside(spark: SparkSession, table: str, partition: str = "") -> None:
    """Let another program commit a row."""
    new = pa.table({"id": pa.array([99], pa.int32())})
    if table.startswith("ice."):
        uri, warehouse = (spark.conf.get(f"spark.sql.catalog.ice.{key}") for key in ("uri", "warehouse"))
        SqlCatalog("ice", uri=uri, warehouse=warehouse).load_table(table.removeprefix("ice.")).append(new)
        return
    described = spark.sql(f"DESCRIBE EXTENDED {table} {partition}").collect()
    place = next(row.data_type for row in described if row.col_name == "Location")
    pq.write_table(new, f"{place.removeprefix('file:')}/part-99.parquet")
    spark.catalog.refreshTable(table)


@pytest.mark.usefixtures("tables")
def test_an_undo_that_is_not_possible_says_why(spark: SparkSession) -> None:
    with pytest.raises(ConfigurationError, match="There is no transaction never"):
        twophase.undo(spark, "never")
    with pytest.raises(RuntimeError), twophase.transaction(spark) as failed:
        spark.sql("INSERT INTO t SELECT 9, 9")
        raise RuntimeError
    with pytest.raises(ConfigurationError, match="ROLLED_BACK and has published nothing"):
        twophase.undo(spark, failed.id)
    spark.sql("DROP TABLE t")
    spark.sql("CREATE TABLE t AS SELECT 1 AS a")
    spark.sql("INSERT OVERWRITE t SELECT 2")
    overwritten = last(spark).id
    handle = twophase.attach(spark)
    retention, handle.environment.retention = handle.environment.retention, 0.0
    clean(handle.coordinator, handle.catalogs.values())
    handle.environment.retention = retention
    with pytest.raises(CatalogError, match=r"former state of hive\.default\.t can no longer be read"):
        twophase.undo(spark, overwritten)
    assert rows(spark, "SELECT * FROM t") == [(2,)]
