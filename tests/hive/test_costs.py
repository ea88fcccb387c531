"""What a write of one row costs beside Spark's own work: counted, as times depend on the machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import twophase
from benchmarks.routing.counting import Counts, counted
from tests.hive.conftest import start_session
from tests.spark.routed import stock_session
from twophase import Isolation, failpoints
from twophase.catalogs import fsync
from twophase.catalogs.hive.catalog import HiveCatalog
from twophase.catalogs.hive.tables import partition_key

#: By statement, the most calls of the metastore that stock Spark does not make, and all calls from Python to the JVM,
#: commits of the timeline, files synced, and waits for them.
COSTS = {
    "INSERT INTO t SELECT 1": (2, 20, 5, 9, 3),
    "INSERT OVERWRITE t SELECT 1": (2, 22, 6, 6, 3),
    "INSERT INTO p PARTITION (k = 5) SELECT 1": (-1, 29, 5, 9, 3),
    "INSERT OVERWRITE p PARTITION (k = 5) SELECT 1": (1, 36, 6, 11, 5),
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    root: Path = tmp_path_factory.mktemp("costs")
    session = start_session(root, hive=True)
    twophase.attach(session)
    session.sql("CREATE TABLE t (a INT) USING parquet")
    session.sql("CREATE TABLE p (a INT, k INT) USING parquet PARTITIONED BY (k)")
    session.sql("INSERT INTO p SELECT 1, id FROM range(3, 9)")
    yield session
    session.stop()


def totals(spent: Counts, own: int = 0) -> tuple[int, ...]:
    """What was spent; of the metastore, what stock Spark does not spend of its own."""
    calls = (spent.calls[name] for name in ("send_command", "do_commit", "fsync", "sync"))
    return (spent.metastore - own, *calls)


def own_calls(spark: SparkSession, statement: str) -> int:
    """How often stock Spark calls the metastore for a statement, which differs from version to version."""
    stock = stock_session(spark)
    for _ in range(2):
        stock.sql(statement)
    return counted(stock, partial(stock.sql, statement)).metastore


@pytest.mark.promise("cost", "a write of one row makes few calls of the metastore, of the JVM and of the timeline")
@pytest.mark.parametrize("statement", COSTS)
def test_a_write_of_one_row_makes_few_calls(
    spark: SparkSession, statement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fsync, "SETTLED", -60.0)  # The directories of the fixture count as old, as those of users are.
    for _ in range(2):
        spark.sql(statement)
    spent: Counts = counted(spark, lambda: spark.sql(statement))
    counts = totals(spent, own_calls(spark, statement))
    assert all(one <= most for one, most in zip(counts, COSTS[statement], strict=True)), counts


#: As :data:`COSTS`, of a statement in a block that has written the table before.
IN_A_BLOCK = {
    "INSERT INTO t SELECT 1": (1, 33, 2, 1, 1),
    "INSERT OVERWRITE t SELECT 1": (1, 36, 3, 1, 1),
    "INSERT INTO p PARTITION (k = 5) SELECT 1": (-3, 46, 2, 1, 1),
}


@pytest.mark.promise(
    "cost", "a write of one row in a block makes few calls of the metastore, of the JVM and of the timeline"
)
@pytest.mark.parametrize("statement", IN_A_BLOCK)
def test_a_write_of_one_row_in_a_block_makes_few_calls(spark: SparkSession, statement: str) -> None:
    with twophase.transaction(spark):
        for _ in range(2):
            spark.sql(statement)
        spent: Counts = counted(spark, lambda: spark.sql(statement))
    counts = totals(spent, own_calls(spark, statement))
    assert all(one <= most for one, most in zip(counts, IN_A_BLOCK[statement], strict=True)), counts


#: By method of a ``DataFrameWriter``, the most calls from Python to the JVM, the writer's own among them.
BY_DATA_FRAME: dict[str, tuple[Callable[[DataFrame, str], None], int]] = {
    "saveAsTable, a new table": (lambda df, name: df.write.saveAsTable(f"new_{name}"), 80),
    "saveAsTable, overwrite": (lambda df, name: df.write.mode("overwrite").saveAsTable("replaced"), 106),
    "saveAsTable, append": (lambda df, name: df.write.mode("append").saveAsTable("appended"), 45),
    "insertInto": (lambda df, name: df.write.insertInto("inserted"), 35),
}


@pytest.mark.promise(
    "cost", "saveAsTable and insertInto make few calls of the JVM, as many for one column as for forty"
)
@pytest.mark.parametrize("method", BY_DATA_FRAME)
def test_a_data_frame_writer_makes_few_calls_as_many_for_one_column_as_for_forty(
    spark: SparkSession, method: str
) -> None:
    write, most = BY_DATA_FRAME[method]
    made = []
    for width in (1, 40):
        rows = spark.range(1).selectExpr(*(f"id AS c{number}" for number in range(width)))
        for table in ("replaced", "appended", "inserted"):
            spark.sql(f"DROP TABLE IF EXISTS {table}")
            rows.write.saveAsTable(table)
        for number in range(2):
            write(rows, f"{width}_{number}")
        made.append(counted(spark, partial(write, rows, str(width))).calls["send_command"])
    assert made[1] <= made[0] <= most, made


@pytest.mark.promise(
    "cost", "a SELECT outside of a block calls the JVM, the metastore and the timeline as stock Spark does"
)
def test_a_select_outside_of_a_block_makes_the_calls_of_stock_spark(spark: SparkSession) -> None:
    def spent(session: SparkSession) -> tuple[int, ...]:
        read = lambda: session.sql("SELECT count(*) FROM t WHERE a > 0").collect()  # noqa: E731
        read()
        return totals(counted(session, read))

    assert spent(spark) == spent(stock_session(spark))


@pytest.mark.promise("cost", "an INSERT INTO a table with statistics drops them without another look at the table")
def test_the_statistics_of_a_table_are_dropped_without_another_look_at_it(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE counted (a INT) USING parquet")
    spark.sql("ANALYZE TABLE counted COMPUTE STATISTICS")
    with audited(spark) as calls:
        spark.sql("INSERT INTO counted SELECT 1")
    assert calls["get_table"] <= 8, calls


#: Of Spark's own statements, the most calls of the metastore that it does not make without twophase.
OWN = {"CREATE TABLE own (a INT) USING parquet": 2, "DROP TABLE own": 2}


@pytest.mark.promise("cost", "a CREATE or DROP TABLE by Spark itself costs two writes of the timeline")
def test_a_table_that_spark_itself_makes_and_drops_costs_two_writes_more(spark: SparkSession) -> None:
    stock = stock_session(spark)
    for session in (spark, stock):
        for statement in (*OWN, *OWN):
            session.sql(statement)
    own = [counted(stock, partial(stock.sql, statement)).metastore for statement in OWN]
    for (statement, most), without in zip(OWN.items(), own, strict=True):
        written: list[str] = []
        for point in ("core.record_immediate", "core.record_immediate_end", "core.record_inflight", "core.reserve"):
            failpoints.arm(point, written.append)
        spent = counted(spark, partial(spark.sql, statement))
        failpoints.disarm()
        assert written == ["core.record_immediate", "core.record_immediate_end"]
        assert spent.metastore - without <= most, (statement, spent.metastore, without)


@contextmanager
def audited(spark: SparkSession) -> Iterator[Counter[str]]:
    """Count the calls of the metastore by their names, as its audit log has them, once the block has ended."""
    jvm: Any = spark._jvm
    log4j, text, found = jvm.org.apache.logging.log4j, jvm.java.io.StringWriter(), Counter[str]()
    logger = log4j.LogManager.getContext(False).getLogger("org.apache.hadoop.hive.metastore.HiveMetaStore.audit")
    log4j.core.config.Configurator.setLevel(logger.getName(), log4j.Level.INFO)
    appender = log4j.core.appender.WriterAppender.createAppender(None, None, text, "text", False, True)
    appender.start()
    logger.addAppender(appender)
    yield found
    logger.removeAppender(appender)
    found.update(re.findall(r"cmd=(?:source:\S+ )?(\w+)", text.toString()))


@pytest.mark.promise("cost", "partitions that are written are looked up by their names, a thousand in each call")
def test_hundreds_of_partitions_are_looked_up_by_their_names_in_one_call(spark: SparkSession) -> None:
    catalog = twophase.attach(spark).catalog("hive")
    assert isinstance(catalog, HiveCatalog)
    metastore = catalog.metastore
    spark.sql("CREATE TABLE named (a INT, B STRING, k INT) USING parquet PARTITIONED BY (B, k)")
    for value in ("'x y%'", "'b=c/d'", "'É'", "NULL", "'01'"):
        spark.sql(f"ALTER TABLE named ADD PARTITION (B = {value}, k = 1) PARTITION (B = {value}, k = 2)")
    table = metastore.get_table("default", "named")
    assert table is not None
    keys = [partition_key(part.values, table.partition_columns) for part in metastore.list_partitions(table)]
    written = keys[2:]
    missing = [("x", str(k)) for k in range(600)]
    with audited(spark) as calls:
        found = metastore.get_partitions(table, [*missing, *written])
    assert calls == {"get_partitions_by_names": 1}
    assert len(found) == 8
    everything = {
        partition_key(part.values, table.partition_columns): part for part in metastore.list_partitions(table)
    }
    assert found == [everything[key] for key in written]
    assert [part.extra for part in found] == [everything[key].extra for key in written]
    one = metastore.get_partitions(table, written[:1])
    assert (one, one[0].extra) == (found[:1], found[0].extra)


@pytest.mark.promise("cost", "an INSERT into many partitions makes as many calls of the metastore as one into few")
def test_an_insert_into_many_partitions_makes_as_many_calls_as_one_into_few(spark: SparkSession) -> None:
    spent = []
    for count in (8, 24):
        spark.sql(f"CREATE TABLE parts{count} (a INT, k INT) USING parquet PARTITIONED BY (k)")
        for _ in range(2):
            with audited(spark) as calls:
                spark.sql(f"INSERT INTO parts{count} SELECT /*+ REPARTITION(1) */ 1, id FROM range({count})")
        spent.append(calls)
    assert spent[0] == spent[1]
    assert "get_partitions" not in spent[0]


CHANGES = ("ADD COLUMN b INT FIRST", "ALTER COLUMN a TYPE BIGINT", "RENAME COLUMN a TO c", "DROP COLUMN b")


@pytest.mark.promise(
    "cost", "a change of columns is one change of the metastore's table, whatever the number of files", detail=True
)
def test_a_change_of_columns_is_one_call_whatever_the_number_of_files(spark: SparkSession) -> None:
    spent = {}
    for name, files in (("few", 1), ("many", 40)):
        query = f"SELECT /*+ REPARTITION({files}) */ int(id) AS a FROM range({files * 10})"
        spark.sql(f"CREATE TABLE {name} USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true') AS {query}")
        before = sorted(spark.table(name).inputFiles())
        assert len(before) == files
        with audited(spark) as calls:
            for change in CHANGES:
                spark.sql(f"ALTER TABLE {name} {change}")
        assert sorted(spark.table(name).inputFiles()) == before
        spent[name] = calls
    assert spent["few"]["alter_table"] == len(CHANGES), spent
    assert spent["many"] == spent["few"]


@pytest.mark.promise("cost", "a table is looked up each time, and transferred again only if it has changed")
def test_a_table_is_transferred_only_if_it_has_changed(spark: SparkSession) -> None:
    catalog = twophase.attach(spark).catalog("hive")
    assert isinstance(catalog, HiveCatalog)
    find: Any = partial(catalog.metastore.get_table, "default", "changing")
    others = spark.newSession()
    others.sql("CREATE TABLE changing (a INT) USING parquet")
    created = find()
    assert find() is created

    others.sql("ALTER TABLE changing SET TBLPROPERTIES ('changed' = 'yes')")
    assert find().properties["changed"] == "yes"
    others.sql("ANALYZE TABLE changing COMPUTE STATISTICS")
    assert (created.extra["facts"]["stats"], find().extra["facts"]["stats"]) == (False, True)
    others.sql("DROP TABLE changing")
    assert find() is None
    others.sql("CREATE TABLE changing (b STRING) USING parquet")
    assert find().schema.names == ["b"]


@pytest.mark.promise(
    "cost", "what a serializable block has read is reserved in one step and looked up in one call", detail=True
)
def test_ten_reads_of_a_serializable_block_cost_little_more_than_those_of_a_snapshot(spark: SparkSession) -> None:
    for number in range(10):
        spark.sql(f"CREATE TABLE r{number} USING parquet AS SELECT {number} AS a")

    def block(isolation: Isolation) -> None:
        with twophase.transaction(spark, isolation=isolation):
            total = sum(spark.sql(f"SELECT a FROM r{number}").collect()[0][0] for number in range(10))
            spark.sql(f"INSERT INTO t SELECT {total}")

    spent = {}
    for isolation in Isolation:
        for _ in range(2):
            block(isolation)
        spent[isolation] = totals(counted(spark, lambda level=isolation: block(level)))
    more = [b - a for a, b in zip(spent[Isolation.SNAPSHOT], spent[Isolation.SERIALIZABLE], strict=True)]
    assert more == [1, 1, 0, 0, 0], spent
    reads = spent[Isolation.SNAPSHOT][2] - spent[Isolation.READ_COMMITTED][2]
    assert reads <= 13, "of the timeline: one for each read and for the rows, and none that waits for the disk"
