"""ALTER TABLE of columns of ORC session tables: what Spark's reader follows by name, or a rewrite, never wrong rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import orc
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import attached_session
from tests.hive.test_evolution import files_of, meanwhile
from twophase.errors import CatalogError, WriteConflictError


@pytest.fixture(scope="module", params=["hive", pytest.param("memory", marks=pytest.mark.exhaustive)])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield from attached_session(request.param, tmp_path_factory)


def made(spark: SparkSession, query: str, more: str = "") -> None:
    spark.sql(f"CREATE OR REPLACE TABLE t USING orc {more} AS {query}")


def rewritten(spark: SparkSession, change: str) -> None:
    """Refused with the words that let it be rewritten; then made so."""
    before = files_of(spark)
    with pytest.raises(CatalogError, match=r"'twophase\.alter' = 'rewrite'"):
        spark.sql(f"ALTER TABLE t {change}")
    assert files_of(spark) == before
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
    spark.sql(f"ALTER TABLE t {change}")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'native')")
    assert files_of(spark).isdisjoint(before)


def rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    """The rows of a query, the same by both of Spark's readers."""
    found = []
    for vectorised in ("true", "false"):
        spark.conf.set("spark.sql.orc.enableVectorizedReader", vectorised)
        found.append(sorted((tuple(row) for row in spark.sql(query).collect()), key=repr))
    spark.conf.unset("spark.sql.orc.enableVectorizedReader")
    assert found[0] == found[1]
    return found[0]


@pytest.mark.promise(
    "evolution", "an ORC session table takes new, dropped and moved columns without touching a file, found by name"
)
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_columns_of_an_orc_table_are_added_dropped_and_moved_by_name(spark: SparkSession, t: str, by: str) -> None:
    made(spark, "SELECT CAST(id AS INT) AS a, id + 100 AS b, CAST(id AS STRING) AS c, id % 2 AS p FROM range(4)", by)
    before = files_of(spark)
    for change in (
        "ADD COLUMN d INT",
        "ADD COLUMN e STRING FIRST",
        "ADD COLUMN f INT DEFAULT 7",
        "ALTER COLUMN c AFTER e",
        "DROP COLUMN b",
        "ALTER COLUMN a COMMENT 'the first one'",
    ):
        spark.sql(f"ALTER TABLE t {change}")
    assert files_of(spark) == before
    spark.sql("INSERT INTO t (e, c, a, d, f, p) VALUES ('x', 'y', 9, 1, 2, 0)")
    assert [column for column in spark.table(t).columns if column != "p"] == ["e", "c", "a", "d", "f"]
    assert rows(spark, "SELECT e, c, a, d, f FROM t WHERE a >= 3") == [("x", "y", 9, 1, 2), (None, "3", 3, None, 7)]
    assert rows(spark, "SELECT a FROM t WHERE d IS NULL AND f = 7 AND p = 0") == [(0,), (2,)]
    assert rows(spark, "SELECT a FROM t WHERE e = 'x' OR c = '1'") == [(1,), (9,)]


@pytest.mark.promise(
    "evolution", "no name of an ORC table's files is taken for another column: refused, or a rewrite", detail=True
)
def test_names_of_an_orc_table_are_not_taken_for_other_columns(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT id AS a, id + 100 AS b FROM range(3)")
    spark.sql("ALTER TABLE t DROP COLUMN b")
    rewritten(spark, "ADD COLUMN B BIGINT")
    assert rows(spark, "SELECT a, b FROM t WHERE b IS NULL") == [(0, None), (1, None), (2, None)]
    rewritten(spark, "RENAME COLUMN a TO c")
    assert rows(spark, "SELECT c FROM t WHERE c > 0") == [(1,), (2,)]
    assert "twophase.field_ids" not in {row.key for row in spark.sql("SHOW TBLPROPERTIES t").collect()}
    assert "parquet.field.id" not in spark.table(t).schema.json()
    spark.sql("ALTER TABLE t DROP COLUMN b")
    with pytest.raises(CatalogError, match=r"another column b.*Rewrite the table"):
        spark.sql("SELECT 1L AS c, 2 AS b").write.option("mergeSchema", "true").insertInto(t)
    spark.sql("ALTER TABLE t ADD COLUMNS (d INT)")  # As Spark itself would have it.
    with pytest.raises(CatalogError, match=r"twophase\.alter"):
        spark.sql("ALTER TABLE t ADD COLUMNS (b INT)")
    assert rows(spark, "SELECT c FROM t WHERE d IS NULL") == [(0,), (1,), (2,)]


WIDER = [
    ("TINYINT", "SMALLINT"), ("TINYINT", "INT"), ("SMALLINT", "BIGINT"), ("INT", "BIGINT"), ("INT", "DOUBLE"),
    ("TINYINT", "FLOAT"), ("SMALLINT", "DOUBLE"), ("FLOAT", "DOUBLE"), ("DECIMAL(5,2)", "DECIMAL(30,4)"),
    ("INT", "DECIMAL(12,2)"), ("BIGINT", "DECIMAL(20,0)"), ("TINYINT", "DECIMAL(5,0)"),
]  # fmt: skip


@pytest.mark.promise("evolution", "a wider type of an ORC table is read rightly by Spark itself", detail=True)
def test_wider_types_of_an_orc_table_are_read_by_spark_itself(spark: SparkSession, t: str) -> None:
    made(spark, f"SELECT {', '.join(f'CAST(id AS {old}) AS c{i}' for i, (old, _) in enumerate(WIDER))} FROM range(5)")
    before = files_of(spark)
    for i, (_, after) in enumerate(WIDER):
        spark.sql(f"ALTER TABLE t ALTER COLUMN c{i} TYPE {after}")
    assert files_of(spark) == before
    spark.sql(f"INSERT INTO t SELECT {', '.join(f'CAST(7 AS {after})' for _, after in WIDER)}")
    every = ", ".join(f"int(c{i})" for i in range(len(WIDER)))
    for i, (_, after) in enumerate(WIDER):
        where = f"c{i} = CAST(2 AS {after}) OR c{i} > CAST(3 AS {after})"
        assert rows(spark, f"SELECT {every} FROM t WHERE {where}") == [(value,) * len(WIDER) for value in (2, 4, 7)]
    made(spark, "SELECT 1 AS a, DATE'2024-01-01' AS d")
    rewritten(spark, "ALTER COLUMN d TYPE TIMESTAMP_NTZ")
    assert rows(spark, "SELECT a FROM t WHERE d = TIMESTAMP_NTZ'2024-01-01 00:00:00'") == [(1,)]
    with pytest.raises(CatalogError, match="Spark reads no int32 of a as string"):
        spark.sql("ALTER TABLE t ALTER COLUMN a TYPE STRING")


@pytest.mark.promise(
    "evolution", "fields within an ORC table's structs, lists and maps change without touching a file", detail=True
)
def test_fields_within_structs_lists_and_maps_of_an_orc_table_change(spark: SparkSession, t: str) -> None:
    within = "array(named_struct('u', CAST(id AS INT), 'v', 1)) AS l, map('k', named_struct('u', 1, 'v', 2)) AS m"
    made(spark, f"SELECT id, named_struct('x', CAST(id AS INT), 'y', CAST(id AS STRING)) AS s, {within} FROM range(4)")
    before = files_of(spark)
    for change in (
        "ADD COLUMN s.w INT FIRST",
        "ALTER COLUMN s.x TYPE BIGINT",
        "DROP COLUMN s.y",
        "ADD COLUMN l.element.w INT AFTER u",
        "ALTER COLUMN l.element.u TYPE BIGINT",
        "DROP COLUMN m.value.u",
        "ALTER COLUMN s FIRST",
    ):
        spark.sql(f"ALTER TABLE t {change}")
    assert files_of(spark) == before
    assert rows(spark, "SELECT id, s.w, l[0].u, l[0].w, m['k'].v FROM t WHERE s.x = 2") == [(2, None, 2, None, 2)]
    assert rows(spark, "SELECT s.x FROM t WHERE s.w IS NULL AND l[0].u > 2") == [(3,)]
    rewritten(spark, "ADD COLUMN s.y STRING")
    rewritten(spark, "RENAME COLUMN s.x TO z")
    assert rows(spark, "SELECT id FROM t WHERE s.y IS NULL AND s.z > 2") == [(3,)]


def test_a_session_without_twophase_reads_an_altered_orc_table_as_an_attached_one(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT id AS a, CAST(id AS INT) AS b, 'gone' AS x FROM range(2)")
    for change in (
        "ALTER COLUMN b TYPE BIGINT",
        "DROP COLUMN x",
        "ADD COLUMN y STRING FIRST",
        "ADD COLUMN d INT DEFAULT 7",
    ):
        spark.sql(f"ALTER TABLE t {change}")
    spark.sql("INSERT INTO t VALUES ('new', 7, 1L << 40, 8)")
    expected = [("new", 7, 1 << 40, 8), (None, 0, 0, 7), (None, 1, 1, 7)]
    assert rows(spark, "SELECT * FROM t") == expected
    twophase.attach(spark).detach()
    try:
        assert rows(spark, "SELECT * FROM t") == expected
        assert rows(spark, "SELECT b FROM t WHERE y IS NULL AND d = 7") == [(0,), (1,)]
    finally:
        twophase.attach(spark)


@pytest.mark.promise(
    "evolution", "timestamps of an ORC table stay readable, which Spark compares by their position", detail=True
)
def test_a_change_that_would_make_orc_files_unreadable_is_a_rewrite(spark: SparkSession, t: str) -> None:
    both = "TIMESTAMP'2020-01-01 00:00:00' AS a, TIMESTAMP_NTZ'2020-01-01 00:00:00' AS b, 1 AS c"
    made(spark, f"SELECT {both}")
    spark.sql("ALTER TABLE t ADD COLUMN d TIMESTAMP_NTZ")
    assert rows(spark, "SELECT c FROM t WHERE d IS NULL AND year(b) = 2020") == [(1,)]
    rewritten(spark, "DROP COLUMN a")
    rewritten(spark, "ADD COLUMN a TIMESTAMP FIRST")
    assert rows(spark, "SELECT c FROM t WHERE a IS NULL AND year(b) = 2020") == [(1,)]
    made(spark, "SELECT 1 AS c, TIMESTAMP'2020-01-01 00:00:00' AS a")
    spark.sql("ALTER TABLE t DROP COLUMN a")
    rewritten(spark, "ADD COLUMN b TIMESTAMP_NTZ")
    assert rows(spark, "SELECT c FROM t WHERE b IS NULL") == [(1,)]


@pytest.mark.promise(
    "evolution", "an ORC table whose files are not read by name changes its columns only by a rewrite", detail=True
)
def test_what_is_read_by_position_is_rewritten(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS _col0, 2 AS _col1")
    rewritten(spark, "DROP COLUMN _col0")
    assert rows(spark, "SELECT _col1 FROM t WHERE _col1 = 2") == [(2,)]
    made(spark, "SELECT 1 AS a, 2 AS b")
    for key, value in (("orc.force.positional.evolution", "true"), ("spark.sql.orc.impl", "hive")):
        spark.conf.set(key, value)
        try:
            with pytest.raises(CatalogError, match=rf"{key} is {value}.*'twophase\.alter' = 'rewrite'"):
                spark.sql("ALTER TABLE t DROP COLUMN a")
        finally:
            spark.conf.unset(key)
    made(spark, "SELECT 1 AS a, 2 AS b", "OPTIONS ('orc.force.positional.evolution' = 'true')")
    rewritten(spark, "DROP COLUMN a")
    assert rows(spark, "SELECT b FROM t WHERE b = 2") == [(2,)]


@pytest.mark.promise(
    "evolution", "an ORC table over files of Hive before 2.0 is altered by a rewrite, or gets last columns", detail=True
)
@pytest.mark.parametrize("by", ["", pytest.param("PARTITIONED BY (p)", marks=pytest.mark.exhaustive)])
def test_files_without_names_of_columns_are_rewritten(spark: SparkSession, t: str, tmp_path: Path, by: str) -> None:
    directory = tmp_path / "old" / ("p=1" if by else "")
    directory.mkdir(parents=True)
    orc.write_table(pa.table({"_col0": pa.array([1, 2], pa.int32()), "_col1": ["x", "y"]}), directory / "000000_0")
    keys = ", p INT" if by else ""
    spark.sql(f"CREATE TABLE t (a INT, b STRING{keys}) USING orc {by} LOCATION '{tmp_path / 'old'}'")
    if by:
        spark.sql("MSCK REPAIR TABLE t")
    spark.sql("ALTER TABLE t ADD COLUMN c INT")
    last = ", 1" if by else ""
    spark.sql(f"INSERT INTO t VALUES (3, 'z', 4{last})")
    assert rows(spark, "SELECT a, b, c FROM t WHERE a > 1") == [(2, "y", None), (3, "z", 4)]
    with pytest.raises(CatalogError, match=r"no names.*Rewrite the table"):
        bring = "SELECT 5 AS first, 6 AS a, 'w' AS b, 7 AS c" + (", 1 AS p" if by else "")
        spark.sql(bring).write.option("mergeSchema", "true").insertInto(t)
    for change in ("ADD COLUMN d INT FIRST", "DROP COLUMN c"):
        with pytest.raises(CatalogError, match=r"by position.*no names.*'twophase\.alter' = 'rewrite'"):
            spark.sql(f"ALTER TABLE t {change}")
    rewritten(spark, "DROP COLUMN a")
    assert rows(spark, "SELECT b, c FROM t WHERE b > 'x'") == [("y", None), ("z", 4)]
    spark.sql("ALTER TABLE t DROP COLUMN c")
    assert rows(spark, "SELECT b FROM t WHERE b > 'x'") == [("y",), ("z",)]


def test_files_without_names_are_found_behind_empty_files_and_partitions(
    spark: SparkSession, t: str, tmp_path: Path
) -> None:
    for number in (1, 2):
        (tmp_path / "old" / f"p={number}").mkdir(parents=True)
    full = tmp_path / "old" / "p=2"
    (full / "000000_0").touch()
    orc.write_table(pa.table({}), full / "000001_0")
    old = pa.table({"_col0": pa.array([1, 2], pa.int32()), "_col1": pa.array([3, 4], pa.int32())})
    orc.write_table(old, full / "000002_0")
    spark.sql(f"CREATE TABLE t (a INT, b INT, p INT) USING orc PARTITIONED BY (p) LOCATION '{tmp_path / 'old'}'")
    spark.sql("MSCK REPAIR TABLE t")
    with pytest.raises(CatalogError, match=r"no names, as those of .*p=2/000002_0"):
        spark.sql("ALTER TABLE t ADD COLUMN first INT FIRST")
    assert rows(spark, "SELECT a, b FROM t") == [(1, 3), (2, 4)]


def test_files_without_names_are_found_in_a_partition_elsewhere(spark: SparkSession, t: str, tmp_path: Path) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b, 0 AS p", "PARTITIONED BY (p)")
    (tmp_path / "old").mkdir()
    old = pa.table({"_col0": pa.array([3], pa.int32()), "_col1": pa.array([4], pa.int32())})
    orc.write_table(old, tmp_path / "old" / "000000_0")
    spark.sql(f"ALTER TABLE t ADD PARTITION (p = 1) LOCATION '{tmp_path / 'old'}'")
    assert rows(spark, "SELECT a, b, p FROM t") == [(1, 2, 0), (3, 4, 1)]
    with pytest.raises(CatalogError, match=r"no names, as those of .*old/000000_0"):
        spark.sql("ALTER TABLE t DROP COLUMN a")


def test_files_without_names_are_found_behind_those_that_spark_wrote_before(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b")
    place = Path(files_of(spark).pop().removeprefix("file:").removeprefix("//"))
    place = place.rename(place.with_name(f"ctas-1-{place.name}"))  # As one that an append has flattened is named.
    old = pa.table({"_col0": pa.array([3], pa.int32()), "_col1": pa.array([4], pa.int32())})
    orc.write_table(old, place.with_name("000000_0"))
    spark.sql("REFRESH TABLE t")
    assert rows(spark, "SELECT a, b FROM t") == [(1, 2), (3, 4)]
    with pytest.raises(CatalogError, match=r"no names, as those of .*000000_0"):
        spark.sql("ALTER TABLE t DROP COLUMN a")
    rewritten(spark, "DROP COLUMN a")
    assert rows(spark, "SELECT b FROM t") == [(2,), (4,)]


@pytest.mark.promise(
    "evolution", "one write brings its columns and wider types to an ORC table, found by name", detail=True
)
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_one_write_brings_its_columns_to_an_orc_table(spark: SparkSession, t: str, by: str) -> None:
    made(spark, "SELECT 1 AS id, named_struct('x', 1) AS s, 0 AS p", by)
    before = files_of(spark)
    query = "SELECT 5 AS n, 0 AS p, named_struct('y', 2, 'x', 1L << 40) AS s, 2L AS id"
    spark.sql(query).write.mode("append").option("mergeSchema", "true").saveAsTable(t)
    with twophase.transaction(spark):
        spark.sql("SELECT 3 AS id, 1 AS p, 'm' AS m").writeTo(t).option("mergeSchema", "true").append()
    assert len(files_of(spark)) == len(before) + 2
    assert rows(spark, "SELECT id, s.x, s.y, n, m, p FROM t") == [
        (1, 1, None, None, None, 0),
        (2, 1 << 40, 2, 5, None, 0),
        (3, None, None, None, "m", 1),
    ]
    assert rows(spark, "SELECT id FROM t WHERE s.x > 1 OR m = 'm'") == [(2,), (3,)]


@pytest.mark.promise(
    "evolution", "rows that were staged before an ALTER TABLE of an ORC table go by their names", detail=True
)
def test_rows_staged_before_an_alter_of_an_orc_table_go_by_their_names(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b")
    meanwhile(spark, "INSERT INTO t VALUES (3, 4)", "DROP COLUMN a", "ADD COLUMN c INT FIRST")
    meanwhile(spark, "INSERT INTO t VALUES (5, 6)", "ALTER COLUMN b TYPE BIGINT")
    assert rows(spark, "SELECT c, b FROM t") == [(5, 6), (None, 2), (None, 4)]
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
    with pytest.raises(WriteConflictError):
        meanwhile(spark, "INSERT INTO t VALUES (7, 8)", "RENAME COLUMN b TO e")
    assert rows(spark, "SELECT c, e FROM t WHERE e > 5") == [(5, 6)]
