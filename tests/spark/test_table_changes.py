"""Promises: whoever drops a session table in whatever way, its place is free again, and nothing else costs anything."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from tests.spark.routed import drop_all, rows, stock_session
from twophase.spark.attach import Handle
from twophase.spark.jvm import table_events
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.metastore import external_catalog
from twophase.spark.jvm.table_events import TableListener

spark40_first_cases = True


@pytest.fixture(scope="module")
def session(start: Start) -> SparkSession:
    return start({"spark.sql.scripting.enabled": "true"})


@pytest.fixture
def handle(session: SparkSession) -> Iterator[Handle]:
    yield twophase.attach(session)
    drop_all(session)
    twophase.attach(session).detach()


@pytest.fixture
def spark(handle: Handle) -> SparkSession:
    return handle.spark


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The kind of each event that crosses into Python."""
    found: list[str] = []
    told = table_events._Listener.accept

    def accept(self: Any, event: str, thread: int) -> None:
        found.append(event.split("\n")[0])
        told(self, event, thread)

    monkeypatch.setattr(table_events._Listener, "accept", accept)
    return found


def listeners(spark: SparkSession) -> int:
    return int(external_catalog(spark).listeners().size())


DROPS: dict[str, Callable[[SparkSession], object]] = {
    "of the JVM": lambda spark: spark._jsparkSession.sql("DROP TABLE t"),
    "script": lambda spark: spark.sql("BEGIN DROP TABLE t; CREATE TABLE t (a INT) USING parquet; END"),
    "EXECUTE IMMEDIATE": lambda spark: spark.sql("EXECUTE IMMEDIATE 'DROP TABLE IDENTIFIER(?)' USING 't'"),
    "another session": lambda spark: spark.newSession().sql("DROP TABLE t"),
    "stock session": lambda spark: stock_session(spark).sql("DROP TABLE t"),
    "metastore": lambda spark: external_catalog(spark).dropTable("default", "t", False, False),
}


@pytest.mark.promise("locations", "a dropped table leaves its location free, whichever session drops it")
@pytest.mark.parametrize("drop", DROPS.values(), ids=DROPS)
def test_a_table_leaves_its_place_free_however_it_is_dropped(
    spark: SparkSession, drop: Callable[[SparkSession], object]
) -> None:
    spark.sql("CREATE TABLE t (a INT) USING parquet")
    spark.sql("INSERT INTO t VALUES (1)")
    spark.sql("INSERT OVERWRITE t VALUES (2)")

    assert rows(spark, "SELECT * FROM t") == [(2,)]  # The session keeps the table's relation.
    drop(spark)
    spark.sql("CREATE TABLE IF NOT EXISTS t (a INT) USING parquet")

    assert rows(spark, "SELECT * FROM t") == []


def test_only_what_others_make_drop_and_rename_is_told_to_python(spark: SparkSession, heard: list[str]) -> None:
    spark.sql("CREATE TABLE t (a INT, d STRING) USING parquet PARTITIONED BY (d)")
    heard.clear()
    spark.sql("ALTER TABLE t ADD PARTITION (d = 'x')")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('k' = 'v')")
    spark.sql("CREATE DATABASE aside")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT 1 AS a")
    spark.sql("DROP VIEW v")
    # Ours, each of which drops or renames something in the end.
    spark.sql("CREATE TABLE u AS SELECT 1 AS a")
    spark.sql("CREATE OR REPLACE TABLE u AS SELECT 'b' AS b")
    spark.sql("ALTER TABLE hive.default.u RENAME TO default.w")
    spark.sql("DROP TABLE hive.default.w")
    spark.sql("CREATE TABLE hive.aside.t (a INT) USING parquet")
    spark.sql("DROP DATABASE hive.aside CASCADE")
    assert heard == []

    spark.sql("CREATE TABLE s (a INT) USING csv")
    spark.sql("ALTER TABLE s RENAME TO z")
    spark.sql("DROP TABLE z")
    spark.sql("CREATE DATABASE aside")
    spark.sql("DROP DATABASE aside CASCADE")
    changes = ("CreateTable", "RenameTable", "DropTable", "DropDatabase")
    assert heard == [f"{change}{event}" for change in changes for event in ("PreEvent", "Event")]


def test_a_table_that_another_session_drops_with_its_database_is_forgotten(spark: SparkSession) -> None:
    other = spark.newSession()
    spark.sql("CREATE DATABASE aside")
    spark.sql("CREATE TABLE aside.t USING parquet AS SELECT 1 AS a")
    assert rows(spark, "SELECT * FROM aside.t") == [(1,)]
    other.sql("DROP TABLE aside.t")
    other.sql("DROP DATABASE aside")
    assert rows(spark, "SELECT 2") == [(2,)]
    assert not spark.catalog.tableExists("aside.t")


def test_it_is_told_once_whatever_is_attached_and_not_after_the_last_detach(
    session: SparkSession, heard: list[str]
) -> None:
    before = listeners(session)
    handles = [twophase.attach(session), twophase.attach(session.newSession())]
    assert listeners(session) == before + 1
    session.sql("CREATE TABLE t (a INT) USING csv")
    handles[0].detach()
    heard.clear()
    session.sql("DROP TABLE t")
    assert heard == ["DropTablePreEvent", "DropTableEvent"]

    handles[1].detach()
    assert listeners(session) == before


def test_what_goes_wrong_is_logged_and_the_drop_counts(
    handle: Handle, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(path: object) -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(handle.catalog("hive"), "table_dropped", fail)
    handle.spark.sql("CREATE TABLE t (a INT) USING parquet")
    with caplog.at_level(logging.WARNING):
        handle.spark.sql("DROP TABLE t")

    assert not handle.spark.catalog.tableExists("t")
    assert "dropped table default.t" in caplog.text


def test_an_interrupt_while_it_is_told_does_not_end_the_listening(spark: SparkSession) -> None:
    dropped: list[str] = []

    def interrupted(_call: object, _database: str, name: str) -> None:
        dropped.append(name)
        spark._jvm.java.lang.Thread.currentThread().interrupt()  # type: ignore[union-attr]

    listener = TableListener(Jvm(spark), {"dropped": interrupted})
    try:
        for name in ("a", "b"):
            spark.sql(f"CREATE TABLE {name} (a INT) USING csv")
            spark.sql(f"DROP TABLE {name}")
    finally:
        listener.close()
        listener.close()
    assert dropped == ["a", "b"]
