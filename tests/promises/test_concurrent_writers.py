"""Two drivers at once write one name: the winner's table is whole, and the loser has touched nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.hive.world import World
from tests.servers import Server
from twophase.errors import TransactionAborted
from twophase.model import Purpose

#: An INSERT INTO of one file would be renamed into the table, and ask no server.
BY_POINTER = {"twophase.append": "links"}
ROUNDS = 6
ROWS = "SELECT {writer} AS writer, id FROM range(0, 1000, 1, 2)"


class Writers:
    """Several drivers that are given their statements at the same moment."""

    def __init__(self, count: int, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "tests.promises.writer", *arguments]
        root = Path(__file__).parents[2]
        self._children = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root)
            for _ in range(count)
        ]
        assert self._answers() == ["READY"] * count

    def run(self, statement: str) -> list[str]:
        """Run a statement everywhere at once, ``{writer}`` replaced by each driver's number."""
        for number, child in enumerate(self._children):
            assert child.stdin is not None
            child.stdin.write(json.dumps(statement.replace("{writer}", str(number))) + "\n")
            child.stdin.flush()
        return self._answers()

    def close(self) -> None:
        for child in self._children:
            child.communicate(timeout=60)

    def _answers(self) -> list[Any]:
        return [json.loads(child.stdout.readline()) for child in self._children if child.stdout is not None]


@pytest.fixture(scope="module")
def spark(hive_metastore: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A stock session that only looks."""
    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "1g")
        .config("spark.log.level", "OFF")
        .config("spark.hadoop.hive.metastore.uris", hive_metastore.url)
        .config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
        .enableHiveSupport()
        .getOrCreate()
    )
    session.sql(f"CREATE DATABASE writers LOCATION '{tmp_path_factory.mktemp('writers_db')}'")
    session.sql("USE writers")
    yield session
    session.stop()


@pytest.fixture(scope="module")
def writers(spark: SparkSession, hive_metastore: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writers]:
    warehouse = spark.conf.get("spark.sql.warehouse.dir")
    timeline = f"sqlite:///{tmp_path_factory.mktemp('timeline')}/timeline.db"
    running = Writers(2, [hive_metastore.url, warehouse, "writers", timeline])
    yield running
    running.close()


def rows_by_writer(spark: SparkSession, table: str) -> dict[int, int]:
    spark.catalog.refreshTable(table)
    return {row.writer: row.n for row in spark.sql(f"SELECT writer, count(*) AS n FROM {table} GROUP BY 1").collect()}


def versions(spark: SparkSession, table: str) -> int:
    """How many version directories there are."""
    location = spark.sql("DESCRIBE DATABASE writers").where("info_name = 'Location'").first()
    assert location is not None
    return len(list(Path(location.info_value.removeprefix("file:"), ".twophase", table).glob("*")))


@pytest.mark.promise("conflicts", "of two creates of one name one wins, and the loser leaves nothing")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("layout", ["", "PARTITIONED BY (writer) "], ids=["flat", "partitioned"])
def test_of_two_creates_of_one_name_one_wins_and_the_loser_leaves_nothing(
    spark: SparkSession, writers: Writers, layout: str
) -> None:
    for number in range(ROUNDS):
        table = f"c{number}_{len(layout)}"
        ends = writers.run(f"CREATE TABLE {table} {layout}AS {ROWS}")
        assert ends.count("done") == 1, ends
        assert set(ends) <= {"done", "exists", "conflict"}
        assert rows_by_writer(spark, table) == {ends.index("done"): 1000}
        assert versions(spark, table) == 1


@pytest.mark.timeout(600)
def test_of_two_replaces_each_is_whole_or_refused(spark: SparkSession, writers: Writers) -> None:
    for number in range(ROUNDS):
        ends = writers.run(f"CREATE OR REPLACE TABLE replaced AS {ROWS}")
        assert set(ends) <= {"done", "conflict", "exists"}, ends
        assert "done" in ends
        ((writer, rows),) = rows_by_writer(spark, "replaced").items()
        assert rows == 1000
        assert ends[writer] == "done", f"round {number}: a refused replace is visible"


@pytest.mark.promise("exactly-once", "rows that were acknowledged are there, once")
@pytest.mark.timeout(600)
def test_of_two_inserts_each_row_that_was_acknowledged_is_there_once(spark: SparkSession, writers: Writers) -> None:
    spark.sql("CREATE TABLE inserted (writer INT, id BIGINT) USING parquet")
    expected = {0: 0, 1: 0}
    for _ in range(ROUNDS):
        ends = writers.run(f"INSERT INTO inserted {ROWS}")
        assert set(ends) <= {"done", "conflict"}, ends
        assert "done" in ends
        for writer, end in enumerate(ends):
            expected[writer] += 1000 if end == "done" else 0
        assert rows_by_writer(spark, "inserted") == {w: n for w, n in expected.items() if n}


@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.REPLACE_TABLE_AS], ids=str)
def test_the_server_refuses_the_late_call_of_a_driver_that_was_rolled_back(
    spark: SparkSession, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(spark, Path(spark.conf.get("spark.sql.warehouse.dir")))
    table = f"late_{purpose.value}"
    rows = spark.range(3).selectExpr("id")
    world.run(table, rows, Purpose.CREATE_OR_REPLACE_TABLE_AS, database="writers", properties=BY_POINTER)
    participant = world.stage(table, rows, purpose, database="writers")
    below = world.environment.session_metastore._hive
    alter = below._alter

    def late(*arguments: Any, **named: Any) -> None:
        monkeypatch.setattr(below, "_alter", alter)
        world.reborn(participant).abort()
        alter(*arguments, **named)

    monkeypatch.setattr(below, "_alter", late)
    with pytest.raises(TransactionAborted):
        participant.commit()
    assert sorted(row.id for row in spark.table(table).collect()) == [0, 1, 2]
    world.run(table, rows, Purpose.INSERT_INTO, database="writers")
    assert spark.table(table).count() == 6


@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.REPLACE_TABLE_AS], ids=str)
def test_a_server_that_takes_no_conditions_is_written_without(spark: SparkSession, purpose: Purpose) -> None:
    world = World(spark, Path(spark.conf.get("spark.sql.warehouse.dir")))
    table = f"plain_{purpose.value}"
    rows = spark.range(3).selectExpr("id")
    below = world.environment.session_metastore._hive
    world.run(table, rows, Purpose.CREATE_OR_REPLACE_TABLE_AS, database="writers", properties=BY_POINTER)
    below._run(lambda store: store.setMetaConf("hive.metastore.try.direct.sql.ddl", "false"))
    try:
        world.run(table, rows, purpose, database="writers")
    finally:
        below._run(lambda store: store.setMetaConf("hive.metastore.try.direct.sql.ddl", "true"))
    assert not below._conditions
    assert spark.table(table).count() == (6 if purpose is Purpose.INSERT_INTO else 3)
