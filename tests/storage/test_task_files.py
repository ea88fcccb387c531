"""Appends on an object store: no file is renamed before the publish, and each row is published once."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import twophase
from tests.hive.world import World, jvm_of
from tests.storage import counting
from twophase.model import OverwriteScope, Purpose
from twophase.spark.handle import Handle
from twophase.spark.jvm.java_sources import java_class

#: A file of each row, two tasks, and a second attempt of each.
CONF = {"spark.master": "local[2,2]", "spark.sql.files.maxRecordsPerFile": "1"}
ROWS = "SELECT /*+ REPARTITION(2) */ CAST(id AS INT) AS a, CAST(id % 2 AS INT) AS k FROM range({}, {})"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tasks")


@pytest.fixture(scope="module")
def spark(root: Path) -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYSPARK_PYTHON", sys.executable)
        session = counting.session(root, CONF)
        session.sql(f"CREATE DATABASE d LOCATION '{counting.place_of(root, 'counted')}'")
        yield session
        session.stop()


@pytest.fixture(scope="module")
def handle(spark: SparkSession) -> Iterator[Handle]:
    found = twophase.attach(spark)
    yield found
    found.detach()


@pytest.fixture(autouse=True)
def no_table(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "handle" in request.fixturenames:
        request.getfixturevalue("spark").sql("DROP TABLE IF EXISTS d.t")


@pytest.fixture
def world(spark: SparkSession, root: Path) -> Iterator[World]:
    """A catalog, and a table ``d.w`` with two rows."""
    found = counting.world_of(spark, str(root / "warehouse"))
    found.run("w", found.sql("SELECT 0 AS a"), database="d")
    yield found
    spark.sql("DROP TABLE d.w")


def rows(spark: SparkSession, table: str, columns: str = "*") -> list[Any]:
    return sorted(tuple(row) for row in spark.sql(f"SELECT {columns} FROM {table}").collect())


def failing() -> Any:
    """Made in here, as a worker cannot import the tests."""

    def found(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        yield from batches
        if context.attemptNumber() == 0:
            raise RuntimeError("The first attempt, after its last row.")

    return found


@pytest.mark.promise("exactly-once", "on an object store a task that has failed after its last row appends it once")
def test_a_task_that_runs_twice_appends_its_rows_once(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE d.t (id BIGINT) USING parquet")
    spark.range(0, 6, numPartitions=2).mapInArrow(failing(), "id BIGINT").write.insertInto("d.t")
    assert rows(spark, "d.t") == [(number,) for number in range(6)]
    assert handle.catalog("hive").leftovers() == []


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE d.t (id BIGINT) USING parquet")
    with pytest.raises(PySparkException, match="not this one"):
        spark.sql("INSERT INTO d.t SELECT if(id < 2, id, raise_error('not this one')) FROM range(0, 3, 1, 2)")
    assert (rows(spark, "d.t"), handle.catalog("hive").leftovers()) == ([], [])


@pytest.mark.promise("exactly-once", "on an object store files of an attempt that does not count are not published")
@pytest.mark.parametrize("by", [(), ("k",)], ids=["plain", "new partitions"])
def test_the_files_of_an_attempt_that_does_not_count_are_not_published(
    world: World, root: Path, by: tuple[str, ...]
) -> None:
    if by:
        world.sql("DROP TABLE d.w")
        world.run("w", world.sql("SELECT 0 AS a, 0 AS k"), by=by, database="d")
    df = world.sql(f"SELECT CAST(id AS INT) AS a {', 7 AS k' if by else ''} FROM range(1, 4, 1, 2)")
    participant = world.offer("w", df, Purpose.INSERT_INTO, database="d")
    participant.begin()
    participant.write(df)
    staging, files = participant.publisher.staging, world.catalog.store.files
    (counted, *_) = (f"{staging.rows_at}/{entry.name}" for entry in staging.rows())
    place, spare = counted.rpartition("/")[0], f"{counting.place_of(root, 'counted')}/spare.parquet"
    files.copy(counted, spare)

    def comes_late(name: str) -> None:
        files.copy(spare, f"{place}/part-00000-{name}.snappy.parquet")

    comes_late("before prepare")
    participant.prepare()
    comes_late("after prepare")
    survivor = world.reborn(participant)
    survivor.prepare()
    survivor.commit()
    comes_late("after the publish")
    survivor.finish()
    files.remove_file(spare)
    assert [row[0] for row in world.rows("d.w")] == [0, 1, 2, 3]
    assert world.catalog.leftovers() == []
    files.write_json(f"{place}/part-00000-after the end.snappy.parquet", "an upload that ends late")
    assert world.clean() == (
        [] if by else ["staging"]
    )  # A version with partitions goes as a whole, when it is replaced.
    assert world.catalog.leftovers() == []


def test_a_rollback_and_a_recovery_remove_the_files_of_all_attempts(world: World) -> None:
    df = world.sql("SELECT CAST(id AS INT) AS a FROM range(1, 4, 1, 2)")
    participant = world.stage("w", df, Purpose.INSERT_INTO, database="d")
    world.catalog.store.files.write_json(f"{participant.publisher.staging.rows_at}/part-00000-late.parquet", "")
    world.reborn(participant).abort()
    assert (world.rows("d.w"), world.catalog.leftovers()) == ([(0,)], [])


# -- every kind of append ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "provider", ["parquet", *(pytest.param(p, marks=pytest.mark.exhaustive) for p in ("orc", "csv", "json"))]
)
@pytest.mark.parametrize(
    ("by", "located"),
    [("", False), ("PARTITIONED BY (k)", False), ("PARTITIONED BY (k)", True)],
    ids=["plain", "partitioned", "partitioned at a location"],
)
def test_an_append_copies_each_file_once_and_reads_its_manifest_once(
    spark: SparkSession, handle: Handle, root: Path, provider: str, by: str, located: bool
) -> None:
    elsewhere = f"LOCATION '{counting.place_of(root, 'counted')}/{provider} else%where'" if located else ""
    spark.sql(f"CREATE TABLE d.t (a INT, k INT) USING {provider} {by} {elsewhere}")
    for expected in range(1, 3):  # Into new partitions, and into those.
        counting.requests()
        spark.sql(f"INSERT INTO d.t {ROWS.format(0, 6)}")
        requests = counting.request_lines()
        assert len([line for line in requests if line.startswith("COPY ")]) == 6
        assert len([line for line in requests if line.startswith("GET ") and line.endswith("_manifest.json")]) == 1
        assert rows(spark, "d.t") == sorted([(number, number % 2) for number in range(6)] * expected)
    spark.sql(f"INSERT INTO d.t {ROWS.format(0, 0)}")
    with twophase.transaction(spark):
        spark.sql(f"INSERT INTO d.t {ROWS.format(6, 7)}")
    assert len(rows(spark, "d.t")) == 13
    assert handle.catalog("hive").leftovers() == []


def test_rows_that_a_block_has_appended_are_not_read_as_none(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE d.t (a INT) USING parquet")
    with twophase.transaction(spark):
        spark.sql("INSERT INTO d.t SELECT 1")
        with pytest.raises((PySparkException, twophase.errors.TwoPhaseError)):
            spark.sql("SELECT * FROM d.t").collect()
    assert rows(spark, "d.t") == [(1,)]


def test_an_overwrite_in_place_copies_each_new_file_once(world: World) -> None:
    renaming = world.with_options(recipe="rename")
    renaming.environment = world.environment
    renaming.catalog = type(world.catalog)("hive", {"recipe": "rename"}, world.environment)
    df = world.sql("SELECT CAST(id AS INT) AS a FROM range(1, 4, 1, 2)")
    counting.requests()
    staged = renaming.stage("w", df, Purpose.INSERT_OVERWRITE, database="d", overwrite=OverwriteScope())
    assert counting.requests()["COPY"] == 0
    staged.commit()
    staged.finish()
    assert world.rows("d.w") == [(1,), (2,), (3,)]


def test_rows_without_the_column_of_their_partitions_are_not_written(world: World, root: Path) -> None:
    """Else all would be in one file, with that column, and no reader of the partitions would find them."""
    writer, place = world.environment.file_writer, counting.place_of(root, "counted")
    with pytest.raises(PySparkException, match="no column k"):
        writer.write(world.sql("SELECT 1 AS a"), "parquet", f"{place}/nowhere", partition_columns=["k"])


def test_a_committer_of_the_session_writes_the_rows(spark: SparkSession, handle: Handle) -> None:
    jobs: Any = lambda: int(SparkContext._jvm.java.lang.Integer.getInteger("twophasetests.magic.jobs", 0))  # noqa: E731
    spark.sql("CREATE TABLE d.t (a INT) USING parquet")
    before = jobs()
    spark.conf.set("spark.sql.sources.commitProtocolClass", "twophasetests.MagicProtocol")
    try:
        spark.sql("INSERT INTO d.t SELECT 1")
    finally:
        spark.conf.unset("spark.sql.sources.commitProtocolClass")
    assert (jobs() - before, rows(spark, "d.t")) == (1, [(1,)])


def test_a_committer_of_s3a_that_the_session_names_writes_the_rows(spark: SparkSession, handle: Handle) -> None:
    spark.sql("CREATE TABLE d.t (a INT) USING csv")
    factory = "org.apache.hadoop.fs.s3a.commit.S3ACommitterFactory"
    conf = {"mapreduce.outputcommitter.factory.scheme.counted": factory, "fs.s3a.committer.name": "magic"}
    for key, value in conf.items():
        spark.conf.set(key, value)
    try:
        with pytest.raises(Exception, match="S3ACommitterFactory"):  # Hadoop asks for it: there is no client of S3A.
            spark.sql("INSERT INTO d.t SELECT 1")
        spark.conf.set("fs.s3a.committer.name", "file")
        spark.sql("INSERT INTO d.t SELECT 2")
    finally:
        for key in conf:
            spark.conf.unset(key)
    assert rows(spark, "d.t") == [(2,)]


def written(spark: SparkSession) -> dict[str, str]:
    """What Spark's UI shows of the last write of files, but for times."""
    jvm: Any = SparkContext._jvm
    spark._jsc.sc().listenerBus().waitUntilEmpty()
    store = spark._jsparkSession.sharedState().statusStore()
    as_java = jvm.scala.jdk.javaapi.CollectionConverters.asJava
    for execution in reversed(list(as_java(store.executionsList()))):
        for node in as_java(store.planGraph(execution.executionId()).allNodes()):
            if node.name() == "Execute InsertIntoHadoopFsRelationCommand":
                values = {
                    int(key): value for key, value in as_java(store.executionMetrics(execution.executionId())).items()
                }
                shown = {metric.name(): values.get(metric.accumulatorId()) for metric in as_java(node.metrics())}
                return {name: value for name, value in shown.items() if "time" not in name}
    raise AssertionError("No write is shown.")


@pytest.mark.spark40
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (k)"], ids=["plain", "partitioned"])
def test_sparks_ui_shows_of_an_append_what_it_shows_of_stock_sparks(
    spark: SparkSession, handle: Handle, root: Path, by: str
) -> None:
    spark.sql(f"CREATE TABLE d.t (a INT, k INT) USING parquet {by}")
    spark.sql(f"INSERT INTO d.t {ROWS.format(0, 6)}")
    found = written(spark)
    stock = spark.sql(ROWS.format(0, 6)).write.partitionBy(*(["k"] if by else []))
    stock.parquet(f"{counting.place_of(root, 'counted')}/stock {bool(by)}")
    assert found == written(spark)
    assert (found["number of output rows"], found["number of written files"]) == ("6", "6")


def test_an_error_of_the_jvm_is_raised_as_it_is(spark: SparkSession) -> None:
    """Such as one of memory, which is no exception."""
    kinds = spark._jvm.java.lang  # type: ignore[union-attr]
    nodes = java_class(jvm_of(spark), "Nodes")
    invoke = next(method for method in nodes.getMethods() if method.getName() == "invoke")
    load = next(
        method for method in kinds.Class.forName("java.lang.System").getMethods() if method.getName() == "loadLibrary"
    )
    names = spark._sc._gateway.new_array(kinds.Object, 1)  # type: ignore[union-attr]
    names[0] = "missing"
    arguments = spark._sc._gateway.new_array(kinds.Object, 3)  # type: ignore[union-attr]
    arguments[0], arguments[2] = load, names
    with pytest.raises(Py4JJavaError) as raised:
        invoke.invoke(None, arguments)
    assert raised.value.java_exception.getCause().getClass().getName() == "java.lang.UnsatisfiedLinkError"
