"""Each row once: whatever is tried again, runs twice at a time, or comes late."""

from __future__ import annotations

import pickle
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import twophase
from tests import lost_executors
from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, ordered
from tests.jdbc.statements import ROWS, offer, table
from twophase import failpoints
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.catalogs.jdbc.loading import Loader
from twophase.catalogs.jdbc.participant import JdbcParticipant
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Outcome, Purpose

BATCHES = table(ROWS).to_batches()


@pytest.fixture
def begun(catalog: JdbcCatalog, path: ObjectPath) -> Iterator[JdbcParticipant]:
    """A statement whose tasks may run."""
    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS)
    participant.begin()
    yield participant
    failpoints.disarm()
    participant.abort()


def loader(participant: JdbcParticipant) -> Loader:
    """A task of it, as it arrives on an executor."""
    made = Loader(participant.store.settings, participant._load_target())
    arrived: Loader = pickle.loads(pickle.dumps(made))
    return arrived


def staged(place: Place, participant: JdbcParticipant) -> list[Any]:
    staging = participant.place.staging
    return ordered(place.rows(ObjectPath.of(staging.database, staging.name)))


def test_a_second_attempt_changes_nothing(place: Place, begun: JdbcParticipant) -> None:
    task = loader(begun)
    assert [task(0, BATCHES), task(0, BATCHES), task(1, BATCHES)] == [2, 2, 2]
    assert staged(place, begun) == ordered(ROWS * 2)


def test_an_attempt_that_failed_leaves_nothing(place: Place, begun: JdbcParticipant) -> None:
    def breaks() -> Iterator[pa.RecordBatch]:
        yield BATCHES[0]
        raise RuntimeError("the user's own")

    with pytest.raises(RuntimeError, match="the user's own"):
        loader(begun)(0, breaks())
    assert staged(place, begun) == []
    assert loader(begun)(0, BATCHES) == 2
    assert staged(place, begun) == ordered(ROWS)


def test_an_attempt_whose_commit_lost_its_reply_is_not_repeated(place: Place, begun: JdbcParticipant) -> None:
    failpoints.arm("jdbc.part_commit", "lost_reply", nth=1)
    with pytest.raises(CatalogError):
        loader(begun)(0, BATCHES)
    assert loader(begun)(0, BATCHES) == 2
    assert staged(place, begun) == ordered(ROWS)


def test_of_speculative_twins_one_writes(place: Place, begun: JdbcParticipant) -> None:
    barrier, told = threading.Barrier(4), []

    def batches() -> Iterator[pa.RecordBatch]:
        barrier.wait(30)  # All of them have looked into the ledger, and none has written.
        yield from BATCHES

    threads = [threading.Thread(target=lambda: told.append(loader(begun)(0, batches()))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [2] * 4
    assert staged(place, begun) == ordered(ROWS)


@pytest.mark.promise("exactly-once", "a task that ends after the publish changes nothing")
@pytest.mark.parametrize("moment", ["after the publish", "after the end", "after an abort"])
def test_a_straggler_changes_nothing(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, begun: JdbcParticipant, moment: str
) -> None:
    task = loader(begun)
    begun.write(table(ROWS))
    begun.prepare()
    if moment == "after an abort":
        begun.abort()
    else:
        begun.commit()
    if moment == "after the end":
        begun.finish()
    with pytest.raises(CatalogError):
        task(7, BATCHES)
    assert begun.outcome() is (Outcome.NOT_PUBLISHED if moment == "after an abort" else Outcome.PUBLISHED)
    begun.finish()
    assert ordered(place.rows(path)) == ROWS if catalog.table_exists(path) else moment == "after an abort"


def test_a_straggler_in_the_middle_of_its_rows_does_not_hold_up_the_publish(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = make_place("postgresql", request, tmp_path)
    catalog, path = place.catalog(), ObjectPath.of("public", "held_up")
    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS)
    participant.begin()
    reached, go = threading.Event(), threading.Event()
    ended: list[BaseException] = []

    def straggles() -> Iterator[pa.RecordBatch]:
        yield BATCHES[0]
        reached.set()
        go.wait(30)

    def late() -> None:
        try:
            loader(participant)(0, straggles())
        except CatalogError as error:
            ended.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    assert reached.wait(30)
    loader(participant)(0, BATCHES)
    participant.prepare()
    participant.commit()
    go.set()
    thread.join()
    assert ended, "The straggler must have been told that it came too late."
    assert ordered(place.rows(path)) == ROWS
    catalog.drop_table(path)
    catalog.close()


# -- Spark -------------------------------------------------------------------------------------------------------------


DATABASES = {"sqlite": "main", "postgresql": "public", "mariadb": "twophase"}
#: How many, how many different ones, and their sum.
ALL_OF_THEM = (4000, 4000, sum(range(4000)))


@pytest.mark.promise("exactly-once", "lost executors and speculative tasks write each row once")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("kinds", [["postgresql"], ["sqlite", "mariadb"]], ids=" and ".join)
def test_lost_executors_and_speculation_write_each_row_once(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kinds: list[str]
) -> None:
    """A statement into each database: tables without a key, and one with a key."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    places = {kind: make_place(kind, request, tmp_path) for kind in kinds}
    builder: Any = SparkSession.builder.appName("exactly once")
    conf = {
        **lost_executors.CONF,
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
    }
    for kind, place in places.items():
        conf[f"spark.sql.catalog.{kind}"] = "twophase.jdbc"
        # Tasks queue for SQLite's only writer.
        options = place.options(lock_timeout="60")
        conf |= {f"spark.sql.catalog.{kind}.{key}": value for key, value in options.items()}
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        twophase.attach(spark)
        rows = spark.range(0, 4000, numPartitions=8).mapInArrow(lost_executors.deadly(), "id BIGINT")
        for kind, place in places.items():
            name = f"{DATABASES[kind]}.once"
            rows.writeTo(f"{kind}.{name}").create()
            assert place.execute(f"SELECT count(*), count(DISTINCT id), sum(id) FROM {name}") == [ALL_OF_THEM]
            place.execute(f"CREATE UNIQUE INDEX once_id ON {'once' if kind == 'sqlite' else name} (id)")
            rows.write.insertInto(f"{kind}.{name}", overwrite=True)
            assert place.execute(f"SELECT count(*), count(DISTINCT id), sum(id) FROM {name}") == [ALL_OF_THEM]
            assert place.hidden(DATABASES[kind]) == []
    finally:
        spark.stop()
        for kind, place in places.items():
            place.execute(f"DROP TABLE IF EXISTS {DATABASES[kind]}.once")
