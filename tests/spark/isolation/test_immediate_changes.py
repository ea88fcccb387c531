"""Changes without a transaction, by twophase or by Spark itself: each gets a number, if it changes a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.spark.blocks import elsewhere
from tests.spark.isolation.stores import OLD, Store
from twophase import failpoints
from twophase.errors import SnapshotTooOldError
from twophase.spark.routing import spark_ddl


@pytest.mark.parametrize("kind", ["session"])
def test_what_changes_no_table_has_no_number(spark: SparkSession, other: SparkSession, store: Store) -> None:
    timeline = twophase.attach(other).timeline
    other.sql("CREATE TABLE free (id INT) STORED AS PARQUET")
    before = timeline.last_number()

    def change_nothing() -> None:
        for statement in (
            "CREATE TABLE IF NOT EXISTS free (id INT) STORED AS PARQUET",
            "CREATE VIEW seen AS SELECT * FROM b",
            "ALTER VIEW seen RENAME TO shown",
            "CREATE TEMPORARY VIEW a AS SELECT 1 AS id",
            "DROP VIEW a",
            "DROP TABLE IF EXISTS missing",
            "DROP DATABASE IF EXISTS missing CASCADE",
        ):
            other.sql(statement)
        for statement in (
            "CREATE TABLE a (id INT) STORED AS PARQUET",
            "ALTER TABLE a RENAME TO b",
            "ALTER TABLE missing RENAME TO other",
            "DROP TABLE missing",
            "DROP DATABASE default CASCADE",
        ):
            with pytest.raises(AnalysisException):
                other.sql(statement)

    with twophase.transaction(spark, isolation="serializable"):
        assert store.rows(spark, "a") == OLD
        elsewhere(change_nothing)
        assert spark.table("shown").count() == 2
        store.write(spark, "b", [(3, 30)])
    assert timeline.last_number() == before + 1
    other.sql("DROP VIEW shown")
    other.sql("DROP TABLE free")
    assert (timeline.last_number(), timeline.transactions(open_only=True)) == (before + 2, [])


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("session", "error"),
        *(pytest.param(kind, "error", marks=pytest.mark.exhaustive) for kind in ("lakehouse", "sqlite")),
        pytest.param("session", "lost_reply", marks=pytest.mark.exhaustive),
    ],
)
def test_an_alter_whose_end_is_not_recorded_is_in_no_snapshot_and_gets_its_number_later(
    spark: SparkSession, other: SparkSession, store: Store, kind: str, action: str
) -> None:
    name = store.of("a")
    columns = spark.table(name).columns
    with twophase.transaction(spark):
        failpoints.arm("core.record_immediate_end", action)
        elsewhere(lambda: other.sql(f"ALTER TABLE {name} ADD COLUMNS (more INT)"))
        failpoints.disarm()
        for _ in range(2):
            if kind == "sqlite":
                with pytest.raises(SnapshotTooOldError, match=name):
                    spark.table(name).collect()
            else:
                assert (spark.table(name).columns, store.rows(spark, "a")) == (columns, OLD)
            twophase.attach(other).recover()
    assert spark.table(name).columns == [*columns, "more"]
    with twophase.transaction(spark):
        assert spark.table(name).columns == [*columns, "more"]


@pytest.mark.parametrize(
    "kind", ["session", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("lakehouse", "sqlite"))]
)
def test_an_alter_that_is_refused_is_no_change(
    spark: SparkSession, other: SparkSession, store: Store, kind: str
) -> None:
    timeline = twophase.attach(other).timeline
    before = timeline.last_number()
    with twophase.transaction(spark, isolation="serializable"):
        assert store.rows(spark, "a") == OLD
        for change in ("RENAME COLUMN none TO some", "ADD COLUMNS (value INT)"):
            with pytest.raises(Exception, match=r"(?i)none|some|value"):
                other.sql(f"ALTER TABLE {store.of('a')} {change}")
        store.append(spark, "b", (3, 30))
    assert timeline.last_number() == before + 1
    assert timeline.transactions(open_only=True) == timeline.locks() == []


@pytest.mark.parametrize("kind", ["serde"])
def test_an_alter_that_the_metastore_refuses_holds_up_no_writer(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a change that fails Spark reports only that it is about to be made."""
    name, timeline = store.of("a"), twophase.attach(spark).timeline
    before = timeline.last_number()
    monkeypatch.setattr(spark_ddl, "_PAUSE", 3600.0)  # It is seen at one of the first looks.
    for _ in range(2):
        with pytest.raises(AnalysisException, match="x,y"):
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS (s STRUCT<`x,y`: INT>)")
    store.append(spark, "a", (3, 30))
    assert timeline.last_number() == before + 1
    assert timeline.transactions(open_only=True) == timeline.locks() == []
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (more INT)")
    assert (timeline.last_number(), timeline.transactions(open_only=True)) == (before + 2, [])


@pytest.mark.parametrize("kind", ["session"])
def test_what_follows_a_refused_drop_of_a_database_does_not_end_it(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view has no place in the order of commits; of a statement that fails Spark reports no end."""
    timeline = twophase.attach(spark).timeline
    monkeypatch.setattr(spark_ddl, "_goes_on", lambda _: True)  # The next statement comes before the next look.
    spark.sql("CREATE DATABASE filled")
    spark.sql("CREATE TABLE filled.t (id INT) USING parquet")
    spark.sql("CREATE VIEW filled.v AS SELECT 1 AS id")
    before = timeline.last_number()
    for statement in ("ALTER VIEW filled.v RENAME TO filled.w", "DROP VIEW filled.w"):
        with pytest.raises(AnalysisException, match="filled"):
            spark.sql("DROP DATABASE filled")
        spark.sql(statement)
        assert (timeline.last_number(), timeline.transactions(open_only=True), timeline.locks()) == (before, [], [])
    spark.sql("DROP DATABASE filled CASCADE")
    assert timeline.last_number() == before + 1


@pytest.mark.promise("isolation", "Spark's own DDL that the timeline cannot record is made, and one line says so")
@pytest.mark.parametrize("kind", ["session"])
def test_a_change_by_spark_that_the_timeline_cannot_record_is_made_and_one_line_says_so(
    spark: SparkSession, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    failpoints.arm("core.record_immediate", "error")
    spark.sql(f"ALTER TABLE {store.of('a')} ADD COLUMNS (more INT)")
    assert spark.table(store.of("a")).columns == ["value", "id", "more"]
    spark.sql("DROP TABLE a")
    spark.sql("CREATE TABLE a (id INT) USING parquet")
    assert spark.table("a").collect() == []
    found = [record for record in caplog.records if record.levelname == "WARNING" and "Spark " in record.getMessage()]
    for verb, record in zip(("alters", "drops", "creates"), found, strict=True):
        assert (f"Spark {verb} {store.of('a')}" in record.getMessage(), record.exc_info) == (True, None)


@pytest.mark.promise(
    "isolation", "Spark's own DDL has its place in the order of commits of each timeline that is in use"
)
@pytest.mark.parametrize("kind", ["session"])
def test_a_change_by_spark_is_on_each_timeline_of_the_application(
    spark: SparkSession, other: SparkSession, store: Store, tmp_path: Path
) -> None:
    apart = spark.newSession()
    apart.conf.set("spark.twophase.timeline", f"sqlite:///{tmp_path / 'apart.db'}")
    handle, first = twophase.attach(apart), twophase.attach(spark).timeline
    before = first.last_number()

    def change() -> None:
        other.sql("DROP TABLE a")
        other.sql("CREATE TABLE a (value INT, id INT) USING parquet")

    try:
        with twophase.transaction(apart):
            apart.sql("SELECT 1").collect()
            elsewhere(change)
            with pytest.raises(SnapshotTooOldError, match=r"default\.a.*again"):
                apart.table("a").collect()
        assert (first.last_number(), handle.timeline.last_number()) == (before + 2, 2)
        for timeline in (first, handle.timeline):
            assert timeline.transactions(open_only=True) == timeline.locks() == []
    finally:
        handle.detach()
    other.sql("DROP TABLE a")


@pytest.mark.parametrize("kind", ["session"])
def test_a_drop_whose_end_is_not_recorded_is_in_no_snapshot(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        failpoints.arm("core.record_immediate_end", "error")
        elsewhere(lambda: other.sql("DROP TABLE a"))
        failpoints.disarm()
        for _ in range(2):
            with pytest.raises(SnapshotTooOldError, match=r"default\.a.*again"):
                spark.table("a").collect()
            twophase.attach(other).recover()
    with twophase.transaction(spark), pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table("a")


def test_an_alter_costs_two_writes_of_the_timeline(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TABLE ice.db.cheap AS SELECT 1 AS id")
    counted: list[str] = []
    for point in ("core.record_immediate", "core.record_immediate_end", "core.record_inflight", "core.reserve"):
        failpoints.arm(point, counted.append)
    spark.sql("ALTER TABLE ice.db.cheap ADD COLUMN more INT")
    spark.table("ice.db.cheap").collect()
    assert counted == ["core.record_immediate", "core.record_immediate_end"]
