"""Conditions on rows: what goes from Spark to a table and comes back is the value that the statement wrote."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.functions import col

import twophase
from tests.lakehouse.places import NAME
from tests.lakehouse.shop import Shop
from tests.levels import Levels
from twophase.errors import AtomicityNotSupportedError, CatalogError, SnapshotTooOldError, WriteConflictError
from twophase.model import Level

spark40_first_cases = True

#: What holds the Iceberg catalog of the session.
KIND = "sqlite"

#: The one row of a table that each condition is true for, by its id.
CONDITIONS = {
    1: "ntz = TIMESTAMP_NTZ'2020-01-01 10:00:00'",
    2: "ntz < TIMESTAMP_NTZ'2019-07-01 12:00:00.000001'",
    3: "ntz = TIMESTAMP_NTZ'2020-03-08 02:30:00'",  # There is no such hour in New York.
    4: "ltz = timestamp_seconds(1604212200)",  # One of two equal hours there.
    5: "ltz < timestamp_seconds(-14831700000)",  # In 1500, when calendars differed.
    6: "d = DATE'0044-03-15'",
    7: "d IN (DATE'1582-10-14', DATE'1582-10-16')",
    8: "n = 12345678901234567890.12",
    9: "f = CAST(0.1 AS FLOAT)",
    10: "x = CAST('NaN' AS DOUBLE)",
    11: "x >= CAST('Infinity' AS DOUBLE) AND x < CAST('NaN' AS DOUBLE)",
    12: "s = 'it''s \\\\ \"Ü\"'",
    13: "s LIKE 'a.b%'",
    14: "big = -9223372036854775808L",
    15: "small = CAST(-128 AS TINYINT)",
    16: "bin = X'00FF'",
    17: "yes <=> true",
    18: "d > DATE'9999-12-31'",
    19: "ntz > TIMESTAMP_NTZ'9999-12-31 23:59:59.999999'",
    20: "ltz < TIMESTAMP'-0001-01-01 00:00:00'",
}
_COLUMNS = {
    "ntz": {
        1: "TIMESTAMP_NTZ'2020-01-01 10:00:00'",
        2: "TIMESTAMP_NTZ'2019-07-01 12:00:00'",
        3: "TIMESTAMP_NTZ'2020-03-08 02:30:00'",
        None: "TIMESTAMP_NTZ'2020-01-01 05:00:00'",
    },
    "ltz": {
        4: "timestamp_seconds(1604212200)",
        5: "timestamp_seconds(-14831700001)",
        None: "timestamp_seconds(1604208600)",
    },
    "d": {6: "DATE'0044-03-15'", 7: "DATE'1582-10-14'", None: "DATE'1582-10-15'"},
    "n": {8: "12345678901234567890.12", None: "12345678901234567890.13"},
    "f": {9: "CAST(0.1 AS FLOAT)", None: "CAST(0.2 AS FLOAT)"},
    "x": {10: "CAST('NaN' AS DOUBLE)", 11: "CAST('Infinity' AS DOUBLE)", None: "1.5D"},
    "s": {12: "'it''s \\\\ \"Ü\"'", 13: "'a.bc'", None: "'axb'"},
    "big": {14: "-9223372036854775808L", None: "9223372036854775807L"},
    "small": {15: "CAST(-128 AS TINYINT)", None: "CAST(127 AS TINYINT)"},
    "bin": {16: "X'00FF'", None: "X'FF'"},
    "yes": {17: "true", None: "false"},
}
_LATE = {18: "d", 19: "ntz", 20: "ltz"}


# The first one, of `make test`, tries the types that a time zone matters for; the other one tries all.
@pytest.fixture(params=["Asia/Kolkata", "America/New_York"])
def zone(request: pytest.FixtureRequest, shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A time zone of the session that is not the process's."""
    before = shop.spark.conf.get("spark.sql.session.timeZone")
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    time.tzset()
    shop.spark.conf.set("spark.sql.session.timeZone", request.param)
    yield request.param
    shop.spark.conf.set("spark.sql.session.timeZone", before)
    monkeypatch.undo()
    time.tzset()


def _row(number: int) -> str:
    return ", ".join(values.get(number, values[None]) for values in _COLUMNS.values())


@pytest.mark.promise(
    "types", "a `DELETE` removes the rows that a `SELECT` finds, whatever the type and time zone", detail=True
)
def test_a_delete_takes_just_the_rows_of_its_condition(shop: Shop, zone: str) -> None:
    rows = ", ".join(f"({number}, {_row(number)})" for number in CONDITIONS if number not in _LATE)
    shop.sql(f"CREATE TABLE @t AS SELECT * FROM VALUES {rows} AS v(id, {', '.join(_COLUMNS)})")
    left = set(CONDITIONS) - set(_LATE)
    for number, condition in CONDITIONS.items():
        if zone == "Asia/Kolkata" and "tz" not in condition:
            continue
        left -= {number}
        assert shop.read(f"SELECT id FROM @t WHERE {condition}") == ([] if number in _LATE else [(number,)]), condition
        shop.sql(f"DELETE FROM @t WHERE {condition}")
        assert {row[0] for row in shop.read("SELECT id FROM @t")} == left, condition


@pytest.mark.promise("iceberg-sql", "`INSERT INTO ... REPLACE WHERE`, `writeTo(...).overwrite(condition)`: atomic")
def test_rows_of_a_condition_are_replaced_in_one_snapshot(shop: Shop) -> None:
    levels = Levels(shop.spark)
    shop.sql("CREATE TABLE @t PARTITIONED BY (p) AS SELECT id, id % 2 AS p, nullif(id, 4) AS n FROM range(6)")
    before = shop.data_files("t")
    shop.sql("INSERT INTO @t REPLACE WHERE p = 0 AND n < 2 SELECT 10L, 1L, id FROM @t WHERE id = 5")
    assert sorted(row[0] for row in shop.rows("t")) == [1, 2, 3, 4, 5, 10]
    assert len(before & shop.data_files("t")) == 1, "Files without such rows stay."
    assert len(shop.iceberg("t").metadata.snapshots) == 2
    new = shop.sql("SELECT 20L AS id, 0L AS p, CAST(NULL AS BIGINT) AS n")
    new.writeTo(shop.name("t")).overwrite((col("id") > 4) | col("n").isNull())
    assert shop.rows("t") == [(1, 1, 1), (2, 0, 2), (20, 0, None), (3, 1, 3)]
    new.writeTo(shop.name("t")).overwrite(col("id") > 100)  # There are none: it is an append.
    new.limit(0).writeTo(shop.name("t")).overwrite(col("id") < 20)
    assert shop.rows("t") == [(20, 0, None)] * 2
    new.writeTo(shop.name("t")).overwrite(col("p") == 0)
    assert shop.rows("t") == [(20, 0, None)]
    with pytest.raises(PySparkException, match="no such row"):
        shop.sql("INSERT INTO @t REPLACE WHERE id = 20 SELECT CAST(raise_error('no such row') AS BIGINT), 1L, 1L")
    shop.sql("EXPLAIN INSERT INTO @t REPLACE WHERE id = 20 SELECT 1L, 1L, 1L").collect()
    assert (shop.rows("t"), levels()) == ([(20, 0, None)], {Level.ATOMIC})


@pytest.mark.promise(
    "lost-updates",
    "rows of an old DataFrame do not replace what others wrote since, by a condition either",
    detail=True,
)
def test_rows_of_an_old_dataframe_do_not_replace_newer_ones_by_a_condition(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT id, 0L AS n FROM range(3)")
    old = shop.spark.table(shop.name("t")).where("id < 2").selectExpr("id", "n + 1 AS n")
    old.writeTo(shop.name("t")).overwrite(col("id") < 2)
    assert shop.rows("t") == [(0, 1), (1, 1), (2, 0)]
    shop.sql("INSERT INTO @t REPLACE WHERE id = 2 SELECT id, n + 7 FROM @t WHERE id = 2")
    for condition in (col("id") < 2, col("id") > 100):  # There may have been such rows.
        with pytest.raises(WriteConflictError, match=r"t was not written: .*a state that it had before"):
            old.writeTo(shop.name("t")).overwrite(condition)
    assert shop.rows("t") == [(0, 1), (1, 1), (2, 7)]


def test_an_overwrite_of_a_condition_goes_into_no_other_columns_than_it_was_analysed_with(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.sql("CREATE TABLE @t AS SELECT 1 AS a, 2 AS b")
    catalog, other = twophase.attach(shop.spark).catalog(NAME), shop.spark.newSession()
    plan_delete = catalog.plan_delete

    def alter_first(*facts: Any) -> Any:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(other.sql, f"ALTER TABLE {shop.name('t')} ALTER COLUMN b FIRST").result()
        return plan_delete(*facts)

    monkeypatch.setattr(catalog, "plan_delete", alter_first)
    with pytest.raises(WriteConflictError, match=r"t was not written.* from a, b to b, a"):
        shop.sql("INSERT INTO @t REPLACE WHERE a = 1 SELECT 7, 8")
    assert shop.rows("t") == [(2, 1)]


def test_an_overwrite_of_a_condition_adds_columns_where_the_table_takes_them(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t TBLPROPERTIES ('write.spark.accept-any-schema' = 'true') AS SELECT id FROM range(3)")
    shop.sql("SELECT 'x' AS name, 9 AS id").writeTo(shop.name("t")).overwrite(col("id") < 2)
    assert shop.rows("t") == [("x", 9), (None, 2)]


def test_rows_that_stay_keep_their_columns_where_one_overwrite_of_a_condition_brings_its_own(shop: Shop) -> None:
    made = "SELECT /*+ COALESCE(1) */ * FROM VALUES ('1', 'one'), ('2', 'two') AS rows (id, name)"
    shop.sql(f"CREATE TABLE @t AS {made}")
    new = shop.sql("SELECT 'nine' AS name, '9' AS id")
    new.writeTo(shop.name("t")).option("mergeSchema", "true").overwrite(col("id") == "1")
    assert shop.rows("t") == [("2", "two"), ("9", "nine")]
    more = shop.sql("SELECT 'x' AS more, 'ten' AS name, '10' AS id")
    more.writeTo(shop.name("t")).option("mergeSchema", "true").overwrite(col("id") == "9")
    assert shop.read("SELECT id, name, more FROM @t ORDER BY id") == [("10", "ten", "x"), ("2", "two", None)]


def test_an_overwrite_of_a_condition_is_refused_where_a_block_has_written(shop: Shop) -> None:
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(3)")
    with twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @t REPLACE WHERE id = 0 SELECT 7L")
        for statement in ("INSERT INTO @t REPLACE WHERE id = 1 SELECT 8L", "DELETE FROM @t WHERE id = 1"):
            with pytest.raises((CatalogError, AtomicityNotSupportedError), match="transaction itself"):
                shop.sql(statement)
    assert shop.rows("t") == [(1,), (2,), (7,)]
    with pytest.raises(AtomicityNotSupportedError, match=r"condition ABS.* DELETE FROM and INSERT INTO"):
        shop.sql("INSERT INTO @t REPLACE WHERE abs(id) = 1 SELECT CAST(raise_error('a job ran') AS BIGINT)")


@pytest.mark.parametrize("condition", ["id = 7", "abs(id) = 7"])
def test_rows_that_a_block_has_written_itself_are_not_deleted_in_it(shop: Shop, condition: str) -> None:
    """Wherever they are: no file that was there before has such a row."""
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(3)")
    with twophase.transaction(shop.spark):
        shop.sql("INSERT INTO @t VALUES (7L)")
        shop.sql("CREATE TABLE @made AS SELECT 7L AS id")
        for name in ("t", "made"):
            with pytest.raises(AtomicityNotSupportedError, match=rf"{name}: rows that this transaction itself"):
                shop.sql(f"DELETE FROM @{name} AS x WHERE {condition}")
    assert (shop.rows("t"), shop.rows("made")) == ([(0,), (1,), (2,), (7,)], [(7,)])


@pytest.mark.parametrize("condition", ["id = 1", "abs(id) = 1"])
def test_rows_that_a_block_still_sees_are_deleted_or_the_delete_is_refused(shop: Shop, condition: str) -> None:
    """Nothing is there to delete any more: silence would leave the rows to the block's later reads."""
    shop.sql("CREATE TABLE @t AS SELECT id FROM range(3)")
    other = shop.spark.newSession()
    with pytest.raises(SnapshotTooOldError, match=r"statements\.t"), twophase.transaction(shop.spark):
        assert (1,) in shop.read("SELECT * FROM @t")
        with ThreadPoolExecutor(1) as pool:
            pool.submit(other.sql, f"DELETE FROM {shop.name('t')} WHERE id = 1").result()
        shop.sql(f"DELETE FROM @t WHERE {condition}")


@pytest.mark.promise("types", "years that Python lacks are written, read and replaced", detail=True)
@pytest.mark.parametrize("part", ["d", "", "years(ltz)", "months(ntz)", "hours(ntz)", "bucket(4, d)"])
def test_years_that_python_lacks_are_written_read_and_replaced(shop: Shop, part: str) -> None:
    """As by Iceberg's own library: dates and instants are numbers."""
    days = "VALUES (1, DATE'10000-01-01'), (2, DATE'-0044-03-15'), (3, DATE'2024-02-29'), (4, NULL) AS v(id, d)"
    columns = "id, d, CAST(d AS TIMESTAMP) AS ltz, CAST(d AS TIMESTAMP_NTZ) AS ntz"
    expected = sorted(tuple(row) for row in shop.sql(f"SELECT id, CAST(d AS STRING), year(d) FROM {days}").collect())
    shop.sql(f"CREATE TABLE @t {f'PARTITIONED BY ({part})' if part else ''} AS SELECT {columns} FROM {days}")
    shop.sql(f"INSERT INTO @t SELECT {columns} FROM {days}")
    shop.sql("DELETE FROM @t WHERE d < DATE'-0001-01-01' OR ltz > TIMESTAMP'9999-12-31 23:59:59'")
    shop.sql(f"INSERT INTO @t SELECT {columns} FROM {days} WHERE id < 3")
    shop.spark.table(shop.name("t")).dropDuplicates().writeTo(shop.name("t")).overwritePartitions()
    found = shop.sql("SELECT id, CAST(d AS STRING), year(d) FROM @t").collect()
    assert sorted(map(tuple, found)) == expected
    if part != "d":
        return
    shop.sql("INSERT OVERWRITE @t PARTITION (d = DATE'10000-01-01') SELECT 9, NULL, NULL")
    shop.sql("INSERT OVERWRITE @t PARTITION (d = DATE'-0044-03-15') SELECT 8, NULL, NULL")
    assert sorted(row[0] for row in shop.read("SELECT id FROM @t")) == [3, 4, 8, 9]


@pytest.mark.promise("types", "NaN is one partition")
@pytest.mark.parametrize("more", ["1", "array(1)"], ids=["by Spark", "by Arrow"])
def test_nan_is_one_partition(shop: Shop, more: str) -> None:
    rows = (
        f"SELECT id, CAST(x AS DOUBLE) AS x, {more} AS more FROM VALUES (1, 'NaN'), (2, 'NaN'), (3, '0'), (4, '-0.0')"
    )
    shop.sql(f"CREATE TABLE @t PARTITIONED BY (x) AS {rows} AS v(id, x)")
    shop.sql(f"INSERT INTO @t SELECT 5, float('NaN'), {more}")
    assert shop.read("SELECT id FROM @t WHERE x = double('NaN')") == [(1,), (2,), (5,)]
    shop.sql(f"SELECT 6 AS id, double('NaN') AS x, {more} AS more").writeTo(shop.name("t")).overwritePartitions()
    assert shop.read("SELECT id FROM @t") == [(3,), (4,), (6,)]
    shop.sql(f"INSERT OVERWRITE @t PARTITION (x = 'NaN') SELECT 7, {more}")
    assert shop.read("SELECT id FROM @t") == [(3,), (4,), (7,)]


@pytest.mark.promise("types", "the upper bound of a text is a text", detail=True)
def test_the_upper_bound_of_a_text_is_a_text(shop: Shop) -> None:
    texts = {1: "a" * 15 + "\ud7ff" + "b", 2: "\U0010ffff" * 20, 3: "a" * 14 + "\ud7ff" + "\U0010ffff" * 3, 4: "z" * 30}
    for number, text in texts.items():
        frame = shop.spark.createDataFrame(
            [(number, text, b"\xff" * 20, text.encode())], "id INT, s STRING, b BINARY, c BINARY"
        )
        frame.writeTo(shop.name(f"t{number}")).create()
        assert shop.read(f"SELECT id FROM @t{number} WHERE s >= 'a'") == [(number,)]
        assert shop.spark.table(shop.name(f"t{number}")).where(col("s") == text).count() == 1
        (task,) = shop.iceberg(f"t{number}").scan().plan_files()
        upper = task.file.upper_bounds.get(2)
        assert upper is None or upper.decode() > text
        assert (upper is None) == (number == 2)
        assert task.file.upper_bounds.get(3) is None
    shop.sql("CREATE TABLE @odd AS SELECT CAST(X'61FF' AS STRING) AS s, 1 AS id")
    assert shop.read("SELECT id FROM @odd WHERE s >= 'a'") == [(1,)]
    shop.sql("DROP TABLE @odd PURGE")  # The others cannot read what is no text.
