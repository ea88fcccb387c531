"""Overwrites and DELETE: which rows and files they replace."""

from __future__ import annotations

import struct
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import AnalysisException, ArithmeticException

import twophase
from tests.lakehouse.foreign import append_file
from tests.lakehouse.shop import DATABASE, Shop
from tests.levels import Levels
from twophase.errors import CatalogError
from twophase.model import Level

spark40_first_cases = True
KIND = "sqlite"


@pytest.mark.promise(
    "iceberg-sql",
    "`INSERT OVERWRITE` of the whole table, a static partition, or dynamic partitions: atomic",
)
def test_overwrites_replace_just_what_they_say(shop: Shop) -> None:
    levels = Levels(shop.spark)
    shop.sql("CREATE TABLE @t PARTITIONED BY (part) AS SELECT id, CAST(id % 3 AS STRING) AS part FROM range(6)")
    shop.sql("INSERT OVERWRITE @t PARTITION (part = '1') SELECT 100L")
    assert shop.rows("t") == [(0, "0"), (100, "1"), (2, "2"), (3, "0"), (5, "2")]
    shop.sql("SELECT 7L AS id, '2' AS part").writeTo(shop.name("t")).overwritePartitions()
    assert shop.rows("t") == [(0, "0"), (100, "1"), (3, "0"), (7, "2")]
    shop.sql("INSERT OVERWRITE @t SELECT 1L, NULL")
    assert (shop.rows("t"), levels()) == ([(1, None)], {Level.ATOMIC})


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("BOOLEAN", "true"),
        ("BOOLEAN", "false"),
        ("DOUBLE", "1e10"),
        ("DECIMAL(9, 2)", "1.50"),
        ("DATE", "DATE'2026-01-02'"),
        ("TIMESTAMP", "TIMESTAMP'2026-01-02 03:04:05.123456'"),
        ("TIMESTAMP_NTZ", "TIMESTAMP_NTZ'2026-01-02 03:04:05'"),
    ],
)
def test_a_static_overwrite_finds_its_partition_by_a_value_of_any_type(shop: Shop, kind: str, value: str) -> None:
    shop.sql(f"CREATE TABLE @t PARTITIONED BY (`the part`) AS SELECT 1 AS id, CAST({value} AS {kind}) AS `the part`")
    shop.sql("INSERT INTO @t VALUES (2, NULL)")
    shop.sql(f"INSERT OVERWRITE @t PARTITION (`the part` = {value}) SELECT 3")
    assert sorted(row[0] for row in shop.rows("t")) == [2, 3]


def test_a_static_overwrite_reads_an_instant_in_the_sessions_time_zone(shop: Shop) -> None:
    setting = "spark.sql.session.timeZone"
    before = shop.spark.conf.get(setting)
    shop.spark.conf.set(setting, "America/New_York")
    try:
        shop.sql("CREATE TABLE @t PARTITIONED BY (at) AS SELECT 1 AS id, TIMESTAMP'2026-07-02 03:04:05' AS at")
        shop.sql("INSERT INTO @t VALUES (2, TIMESTAMP'2026-07-02 03:04:05 UTC')")
        shop.sql("INSERT OVERWRITE @t PARTITION (at = '2026-07-02 03:04:05') SELECT 3")
        assert sorted(row[0] for row in shop.rows("t")) == [2, 3]
        shop.spark.conf.set(setting, "GMT+02:00")  # Arrow knows no such name.
        with pytest.raises(CatalogError, match="timeZone to a region"):
            shop.sql("INSERT OVERWRITE @t PARTITION (at = '2026-07-02 03:04:05') SELECT 4")
        assert sorted(row[0] for row in shop.rows("t")) == [2, 3]
    finally:
        shop.spark.conf.set(setting, before)


def test_a_dynamic_overwrite_goes_by_the_transform(shop: Shop) -> None:
    rows = "SELECT id, date_add(DATE'2024-01-01', CAST(id AS INT)) AS d FROM range(3)"
    shop.sql(f"CREATE TABLE @t PARTITIONED BY (days(d)) AS {rows}")
    shop.sql("SELECT 9L AS id, DATE'2024-01-02' AS d").writeTo(shop.name("t")).overwritePartitions()
    assert [row[0] for row in shop.rows("t")] == [0, 2, 9]


def test_the_options_of_one_insert_are_its_own(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t PARTITIONED BY (p) AS SELECT id, id AS p FROM range(2)")
    rows, name = shop.sql("SELECT 9L AS id, 1L AS p"), shop.name("t")
    rows.write.option("partitionOverwriteMode", "dynamic").option("compression", "gzip").insertInto(
        name, overwrite=True
    )
    shop.sql("INSERT OVERWRITE @t WITH (partitionOverwriteMode = 'dynamic', compression = 'gzip') SELECT 8L, 1L")
    assert shop.rows("t") == [(0, 0), (8, 1)]
    files = [row.file_path for row in shop.sql("SELECT file_path FROM @t.files").collect()]
    assert (len(files), sum(file.endswith(".gz.parquet") for file in files)) == (2, 1)
    with pytest.raises(CatalogError, match="no option header"):
        shop.sql("INSERT INTO @t WITH (header = 'true') SELECT 7L, 1L")


@pytest.mark.promise("iceberg-sql", "`DELETE` and `TRUNCATE TABLE`: atomic")
def test_delete_takes_whole_files_away_and_rewrites_others(shop: Shop) -> None:
    levels = Levels(shop.spark)
    shop.sql("CREATE TABLE @t PARTITIONED BY (part) AS SELECT id, id % 2 AS part, nullif(id, 4) AS n FROM range(6)")
    before = shop.data_files("t")
    shop.sql("DELETE FROM @t WHERE part = 1")
    assert shop.data_files("t") < before
    shop.sql("DELETE FROM @t WHERE n > 1 AND id <> 0")  # Where n is NULL the row stays.
    assert shop.rows("t") == [(0, 0, 0), (4, 0, None)]
    with pytest.raises(CatalogError, match="transaction"), twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @t VALUES (1, 1, 1)")
        shop.sql("DELETE FROM @t WHERE id = 1")
    with pytest.raises(CatalogError, match="transaction"), twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @t VALUES (1, 1, 1)")
        shop.sql("DELETE FROM @t WHERE abs(id) = 0")
    shop.sql("TRUNCATE TABLE @t")
    assert (shop.rows("t"), levels()) == ([], {Level.ATOMIC})


def test_delete_keeps_rows_of_a_file_that_counts_no_nulls(shop: Shop) -> None:
    """Another engine has written the bounds of its columns alone."""
    shop.sql("CREATE TABLE @t (id BIGINT, n BIGINT)")
    with shop.lake.iceberg() as other:
        table = other.load_table((DATABASE, "t"))
        rows = pa.table({"id": [1, 2], "n": [7, None]}, schema=table.schema().as_arrow())
        append_file(table, rows, bounds={2: struct.pack("<q", 7)})
    shop.sql("REFRESH TABLE @t")
    shop.sql("DELETE FROM @t WHERE n > 5")
    assert shop.rows("t") == [(2, None)]


@pytest.mark.promise("iceberg-sql", "`DELETE` takes any condition", detail=True)
def test_delete_takes_any_condition(shop: Shop) -> None:
    """Functions and subqueries, which Spark does not hand to tables; files without such rows stay as they are."""
    shop.sql("CREATE TABLE @t PARTITIONED BY (part) AS SELECT id, id % 3 AS part, nullif(id, 4) AS n FROM range(9)")
    shop.sql("CREATE TABLE @gone AS SELECT * FROM VALUES (5L), (7L), (NULL) AS v(k)")
    before = shop.data_files("t")
    shop.sql("DELETE FROM @t WHERE sqrt(n) = 3 OR abs(id) + part = 0")
    assert len(before & shop.data_files("t")) == 2
    assert {row[0] for row in shop.rows("t")} == set(range(1, 9))
    shop.sql("DELETE FROM @t AS a WHERE EXISTS (SELECT 1 FROM @gone WHERE k = a.n)")
    assert {row[0] for row in shop.rows("t")} == {1, 2, 3, 4, 6, 8}
    shop.sql("DELETE FROM @t WHERE id NOT IN (SELECT k FROM @gone)")  # NULL for every row.
    shop.sql("DELETE FROM @t WHERE n NOT IN (SELECT k FROM @gone WHERE k IS NOT NULL) AND n > 6")
    assert {row[0] for row in shop.rows("t")} == {1, 2, 3, 4, 6}
    shop.sql("DELETE FROM @t WHERE sqrt(n) = 1")  # NULL for a row of the same file, which stays.
    assert {row[0] for row in shop.rows("t")} == {2, 3, 4, 6}
    shop.spark.sql(f"DELETE FROM {shop.name('t')} t WHERE t.id IN (:one, length(:two))", {"one": 1, "two": "ab"})
    state = shop.iceberg("t").metadata.current_snapshot_id
    shop.sql("DELETE FROM @t WHERE length(string(id)) = 2")
    assert shop.iceberg("t").metadata.current_snapshot_id == state, "Nothing was to be deleted."
    assert shop.rows("t") == [(3, 0, 3), (4, 1, None), (6, 0, 6)]
    shop.sql("WITH g AS (SELECT k + 1 AS k FROM @gone) DELETE FROM @t WHERE sqrt(id) < 3 AND id IN (SELECT k FROM g)")
    assert shop.rows("t") == [(3, 0, 3), (4, 1, None)]
    for condition in ("nope(id) = 1", "nothing = 1", "rand() < 2", "sum(id) > 1"):
        with pytest.raises(AnalysisException):
            shop.sql(f"DELETE FROM @t WHERE {condition}")
    with pytest.raises(ArithmeticException):
        shop.sql("DELETE FROM @t WHERE 1 / (id - 4) > 0")
    assert len(shop.rows("t")) == 2


def test_delete_finds_files_whatever_their_names(shop: Shop, tmp_path: Path) -> None:
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(3)")
    odd = tmp_path / "a b%20+ü"
    odd.mkdir()
    with_ids = shop.lake.load(shop.path("t")).scan().to_arrow()
    table = shop.lake.load(shop.path("t"))
    with table.transaction() as change:
        change.set_properties({"write.data.path": f"file://{odd}"})
    table.append(with_ids)
    shop.sql("REFRESH TABLE @t")
    assert len(shop.rows("t")) == 6
    shop.sql("DELETE FROM @t WHERE sqrt(id) = 1")
    assert shop.rows("t") == [(0,), (0,), (2,), (2,)]
