"""Promises: what was replaced stays where it is for readers in flight, and no statement of Spark's finds it there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.hive.conftest import attached_session
from tests.spark.routed import drop_all, rows, stock_session
from twophase.catalogs.files import Files
from twophase.spark.metastore.session import SessionMetastore


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield from attached_session("hive", tmp_path_factory)


@pytest.fixture
def spark(session: SparkSession) -> Iterator[SparkSession]:
    yield session
    drop_all(session)


def replace_and_drop(spark: SparkSession, value: str) -> None:
    """Leave the replaced row of a partition, which the table does not have any more, at its default location."""
    stock_session(spark).sql(f"INSERT INTO t PARTITION (d = '{value}') VALUES (1)")
    spark.sql(f"INSERT OVERWRITE t PARTITION (d = '{value}') VALUES (2)")
    spark.sql(f"ALTER TABLE t DROP PARTITION (d = '{value}')")


@pytest.mark.promise("locations", "rows that were replaced do not come back with those that LOAD DATA brings")
def test_load_data_brings_no_replaced_rows_back(spark: SparkSession, tmp_path: Path) -> None:
    brought = tmp_path / "rows.txt"
    brought.write_text("5\n")
    spark.sql("CREATE TABLE t (a INT) PARTITIONED BY (d STRING) STORED AS TEXTFILE")
    replace_and_drop(spark, "x")
    spark.sql(f"LOAD DATA LOCAL INPATH '{brought}' INTO TABLE t PARTITION (d = 'x')")
    assert rows(spark, "SELECT * FROM t") == [(5, "x")]


@pytest.mark.parametrize(
    ("kind", "value", "stated"),
    [("STRING", "a b%", "'a b%'"), ("INT", "1", "'01'"), ("CHAR(3)", "x", "'x'"), ("DATE", "2020-01-02", "'2020-1-2'")],
)
def test_a_partition_that_is_added_has_no_replaced_rows_however_the_statement_spells_it(
    spark: SparkSession, kind: str, value: str, stated: str
) -> None:
    spark.sql(f"CREATE TABLE t (a INT, d {kind}) USING parquet PARTITIONED BY (d)")
    replace_and_drop(spark, value)
    spark.sql(f"ALTER TABLE t ADD PARTITION (d = {stated})")
    assert rows(spark, "SELECT * FROM t") == []


@pytest.mark.promise("cost", "ADD PARTITION looks at no other partitions and at no files of theirs")
def test_a_partition_is_added_without_a_look_at_others(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    listed: list[str] = []
    list_files = Files.list

    def noted(files: Files, location: str, **facts: Any) -> Any:
        listed.append(location.rpartition("/t")[2])
        return list_files(files, location, **facts)

    spark.sql("CREATE TABLE t (a INT, d INT, e STRING) USING parquet PARTITIONED BY (d, e)")
    stock_session(spark).sql("INSERT INTO t VALUES (1, 1, 'x'), (2, 2, 'y')")
    monkeypatch.setattr(Files, "list", noted)
    monkeypatch.setattr(SessionMetastore, "partition_locations", None)
    spark.sql("ALTER TABLE t ADD PARTITION (d = 3, e = 'x') PARTITION (D = 4, e = 'y')")
    spark.sql("ALTER TABLE t PARTITION (d = 3, e = 'x') RENAME TO PARTITION (d = 5, e = 'z')")
    assert listed == ["/d=3/e=x", "/d=4/e=y", "/d=5/e=z"]
