"""ALTER TABLE of columns of session tables: in one metastore call, without touching a file, and never wrong rows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.hive.conftest import attached_session
from twophase.errors import CatalogError, WriteConflictError
from twophase.spark.metastore import columns


@pytest.fixture(scope="module", params=["hive", "memory"])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield from attached_session(request.param, tmp_path_factory)


def made(spark: SparkSession, query: str, *, ids: bool = True, more: str = "") -> None:
    ids_wanted = "TBLPROPERTIES ('twophase.field_ids' = 'true')" if ids else ""
    spark.sql(f"CREATE OR REPLACE TABLE t USING parquet {more} {ids_wanted} AS {query}")


def rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    """The rows of a query, the same by both of Spark's readers."""
    found = []
    for vectorised in ("true", "false"):
        spark.conf.set("spark.sql.parquet.enableVectorizedReader", vectorised)
        found.append(sorted(tuple(row) for row in spark.sql(query).collect()))
    spark.conf.unset("spark.sql.parquet.enableVectorizedReader")
    assert found[0] == found[1]
    return found[0]


def files_of(spark: SparkSession) -> set[str]:
    return {row[0] for row in spark.sql("SELECT DISTINCT input_file_name() FROM t").collect()}


@pytest.mark.promise("evolution", "a renamed column of a session table keeps its rows, filters and files")
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_a_renamed_column_keeps_its_rows_filters_and_files(spark: SparkSession, t: str, by: str) -> None:
    made(spark, "SELECT CAST(id AS INT) AS a, CAST(id + 100 AS INT) AS b, id % 2 AS p FROM range(10)", more=by)
    before = files_of(spark)
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert files_of(spark) == before
    spark.sql("INSERT INTO t VALUES (10, 110, 0)")

    assert rows(spark, "SELECT c, b FROM t") == [(i, i + 100) for i in range(11)]
    assert rows(spark, "SELECT b FROM t WHERE c = 5 OR c = 10") == [(105,), (110,)]
    assert rows(spark, "SELECT c FROM t WHERE c IS NULL") == []
    assert rows(spark, "SELECT c FROM t WHERE p = 0 AND c > 7") == [(8,), (10,)]
    spark.sql("ALTER TABLE t RENAME COLUMN c TO a")  # The name that it had before.
    assert rows(spark, "SELECT b FROM t WHERE a >= 9") == [(109,), (110,)]
    if by:
        spark.sql("INSERT OVERWRITE t PARTITION (p = 1) SELECT 1, 1")
        assert rows(spark, "SELECT a FROM t WHERE p = 1") == [(1,)]
        with pytest.raises(CatalogError, match="laid out by p"):
            spark.sql("ALTER TABLE t RENAME COLUMN p TO q")


def scanned(spark: SparkSession, query: str) -> tuple[int, list[tuple[object, ...]]]:
    """How many rows a query has read of its files, and its own rows."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    df = spark.sql(query)
    found = sorted(tuple(row) for row in df.collect())
    spark.conf.unset("spark.sql.adaptive.enabled")
    scan = df._jdf.queryExecution().executedPlan().collectLeaves().head()
    return scan.metrics().apply("numOutputRows").value(), found


@pytest.mark.promise(
    "evolution", "a filter on a renamed column of a session table skips what it skipped before", detail=True
)
def test_a_filter_on_a_renamed_column_skips_row_groups_of_files_that_have_it_under_former_names(
    spark: SparkSession, t: str
) -> None:
    more = "SELECT /*+ REPARTITION_BY_RANGE(4, {0}) */ id + {1} AS {0}, id % 7 AS b, 0 AS x FROM range(4000)"
    made(spark, more.format("a", 0))
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    spark.sql("INSERT INTO t " + more.format("c", 4000))
    spark.sql("ALTER TABLE t RENAME COLUMN b TO e")
    spark.sql("ALTER TABLE t RENAME COLUMN c TO d")
    spark.sql("INSERT INTO t " + more.format("d", 8000))
    spark.sql("ALTER TABLE t DROP COLUMN x")
    spark.sql("ALTER TABLE t ADD COLUMN y INT")
    for where, wanted, most in (
        ("d = 5", [5], 1500),
        ("d IN (5, 4005, 8005)", [5, 4005, 8005], 4500),
        ("NOT d > 1", [0, 1], 1500),
        ("d = 5 OR d = 4006 OR e = 9", [5, 4006], 3000),
        ("d = 5 AND e = 5 AND y IS NULL", [5], 1500),
        ("d = 5 OR y = 3", [5], 12000),
        ("d <=> 5L AND d + e = 10", [5], 1500),
    ):
        read, found = scanned(spark, f"SELECT d FROM t WHERE {where}")
        assert (where, found) == (where, [(one,) for one in wanted])
        assert read <= most, where
    assert rows(spark, "SELECT count(*) FROM t WHERE d >= 0") == [(12000,)]


@pytest.mark.promise(
    "evolution", "a filter on a renamed column of a session table skips what it skipped before", detail=True
)
@pytest.mark.parametrize("marked", ["", "TBLPROPERTIES ('twophase.field_ids' = 'true')"])
def test_a_table_over_files_with_the_notes_of_another_loses_no_row_by_its_former_names(
    spark: SparkSession, t: str, tmp_path: Path, marked: str
) -> None:
    made(spark, "SELECT id AS a, id + 100 AS b FROM range(10)")
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    spark.sql("SELECT c AS x, b AS a FROM t").write.parquet(str(tmp_path / "copy"))
    spark.sql(f"CREATE TABLE copy USING parquet {marked} LOCATION '{tmp_path / 'copy'}'")
    try:
        assert rows(spark, "SELECT * FROM copy WHERE x = 5") == [(5, 105)]
    finally:
        spark.sql("DROP TABLE copy")


def test_a_table_that_a_session_without_twophase_has_made_of_an_altered_one_is_filtered_by_its_own_names(
    spark: SparkSession, t: str
) -> None:
    made(spark, "SELECT 1L AS a, 2L AS b")
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    spark.sql("INSERT OVERWRITE t VALUES (5, 105)")  # Without twophase, a file is read by the names that are in it.
    twophase.attach(spark).detach()
    try:
        spark.sql("CREATE TABLE copy USING csv AS SELECT c, b FROM t")
    finally:
        twophase.attach(spark)
    try:
        assert rows(spark, "SELECT * FROM copy WHERE c = 5") == [(5, 105)]
    finally:
        spark.sql("DROP TABLE copy")


@pytest.mark.promise(
    "evolution", "a session without twophase reads an altered table as `schema.md` says, and no wrong value"
)
def test_a_session_without_twophase_reads_renamed_columns_of_old_files_as_null_and_no_others_for_them(
    spark: SparkSession, t: str
) -> None:
    made(spark, "SELECT id AS a, CAST(id AS INT) AS b, 'gone' AS x FROM range(2)")
    for change in ("RENAME COLUMN a TO c", "ALTER COLUMN b TYPE BIGINT", "DROP COLUMN x", "ADD COLUMN y STRING FIRST"):
        spark.sql(f"ALTER TABLE t {change}")
    spark.sql("INSERT INTO t VALUES ('new', 7, 1L << 40)")
    twophase.attach(spark).detach()
    try:
        assert spark.conf.get("spark.sql.parquet.fieldId.read.enabled") == "false"
        assert rows(spark, "SELECT b FROM t WHERE c IS NULL AND y IS NULL") == [(0,), (1,)]
        assert rows(spark, "SELECT y, c, b FROM t WHERE c = 7") == [("new", 7, 1 << 40)]
        spark.sql("INSERT INTO t VALUES ('stock', 8, 2)")
    finally:
        twophase.attach(spark)
    assert rows(spark, "SELECT c, b, y FROM t WHERE c >= 0") == [
        (0, 0, None),
        (1, 1, None),
        (7, 1 << 40, "new"),
        (8, 2, "stock"),
    ]


@pytest.mark.promise("evolution", "a dropped column of a session table is never taken for another of its name")
@pytest.mark.parametrize("ids", [True, False])
def test_a_dropped_column_is_gone_and_its_name_is_not_taken_for_another(spark: SparkSession, t: str, ids: bool) -> None:
    made(spark, "SELECT CAST(id AS INT) AS a, CAST(id + 100 AS INT) AS b FROM range(3)", ids=ids)
    before = files_of(spark)
    spark.sql("ALTER TABLE t DROP COLUMN b")
    assert spark.table("t").columns == ["a"]
    for add in ("ADD COLUMN B INT", "ADD COLUMN b STRING FIRST"):
        with pytest.raises(CatalogError, match=r"twophase\.alter"):
            spark.sql(f"ALTER TABLE t {add}")
    spark.sql("ALTER TABLE t ADD COLUMN d INT FIRST")
    spark.sql("ALTER TABLE t ADD COLUMNS (e INT AFTER d, f INT DEFAULT 7)")
    assert files_of(spark) == before
    spark.sql("INSERT INTO t VALUES (1, 2, 3, 4)")
    assert spark.table("t").columns == ["d", "e", "a", "f"]
    assert rows(spark, "SELECT a, f FROM t WHERE d IS NULL") == [(0, 7), (1, 7), (2, 7)]
    assert rows(spark, "SELECT * FROM t WHERE d = 1") == [(1, 2, 3, 4)]

    # A rewrite by hand; afterwards the name is free.
    spark.sql("CREATE OR REPLACE TABLE t USING parquet AS SELECT a FROM t")
    spark.sql("ALTER TABLE t ADD COLUMN b INT")
    assert rows(spark, "SELECT a FROM t WHERE b IS NULL") == [(0,), (1,), (2,), (3,)]


@pytest.mark.promise(
    "evolution",
    "fields within a session table's structs change without touching a file, or the change is refused",
    detail=True,
)
def test_nested_fields_are_renamed_added_dropped_moved_and_widened(spark: SparkSession, t: str) -> None:
    made(
        spark,
        "SELECT id, named_struct('x', CAST(id AS INT), 'y', CAST(id AS STRING)) AS s, "
        "array(named_struct('u', CAST(id AS INT), 'v', 1)) AS l FROM range(4)",
    )
    for change in (
        "RENAME COLUMN s.x TO z",
        "ADD COLUMN s.w INT FIRST",
        "ALTER COLUMN s.z TYPE BIGINT",
        "DROP COLUMN s.y",
        "ADD COLUMN l.element.w INT AFTER u",
        "ALTER COLUMN l.element.u TYPE BIGINT",
        "ALTER COLUMN s FIRST",
        "ALTER COLUMN s.z COMMENT 'widened'",
    ):
        spark.sql(f"ALTER TABLE t {change}")
    entry = "named_struct('u', 1L << 40, 'w', 2, 'v', 3)"
    spark.sql(f"INSERT INTO t VALUES (named_struct('w', 1, 'z', 1L << 40), 9, array({entry}))")
    assert rows(spark, "SELECT id FROM t WHERE s.z = 2") == [(2,)]
    assert rows(spark, "SELECT s.z, s.w FROM t WHERE s.z > 2") == [(3, None), (1 << 40, 1)]
    assert rows(spark, "SELECT id FROM t WHERE s.w IS NULL") == [(0,), (1,), (2,), (3,)]
    assert rows(spark, "SELECT l[0].u, l[0].w, l[0].v FROM t WHERE l[0].u > 2") == [(3, None, 1), (1 << 40, 2, 3)]
    for change, why in (
        ("RENAME COLUMN s TO r", "holds a struct"),
        ("RENAME COLUMN l.element.u TO q", "below a list or map"),
        ("ADD COLUMN s.x INT", "filters"),
        ("ADD COLUMN s.y STRING", "filters"),
    ):
        with pytest.raises(CatalogError, match=why):
            spark.sql(f"ALTER TABLE t {change}")


WIDER = [
    ("INT", "BIGINT"), ("INT", "DOUBLE"), ("FLOAT", "DOUBLE"), ("TINYINT", "INT"), ("SMALLINT", "BIGINT"),
    ("TINYINT", "DOUBLE"), ("DECIMAL(10,2)", "DECIMAL(12,2)"), ("DECIMAL(5,2)", "DECIMAL(30,4)"),
    ("INT", "DECIMAL(12,2)"), ("BIGINT", "DECIMAL(20,0)"), ("SMALLINT", "DECIMAL(10,0)"),
]  # fmt: skip


@pytest.mark.promise(
    "evolution", "a wider type of a session table is read rightly by Spark itself, and no other is taken"
)
@pytest.mark.parametrize("ids", [True, False])
def test_a_wider_type_is_read_by_spark_itself_and_no_other_is_taken(spark: SparkSession, t: str, ids: bool) -> None:
    old = ", ".join(f"CAST(id AS {before}) AS c{i}" for i, (before, _) in enumerate(WIDER))
    made(spark, f"SELECT {old}, CAST(id AS DECIMAL(10,2)) AS d, CAST(id AS TINYINT) AS b FROM range(5)", ids=ids)
    for i, (_, after) in enumerate(WIDER):
        spark.sql(f"ALTER TABLE t ALTER COLUMN c{i} TYPE {after}")
    spark.sql(f"INSERT INTO t SELECT {', '.join(f'CAST(7 AS {after})' for _, after in WIDER)}, 7, 7")
    for i, (before, after) in enumerate(WIDER):
        where = f"c{i} = CAST(3 AS {after}) OR c{i} = CAST(7 AS {after})"
        assert (before, after, len(rows(spark, f"SELECT c{i} FROM t WHERE {where}"))) == (before, after, 2)
    assert rows(spark, f"SELECT {', '.join(f'count(c{i})' for i in range(len(WIDER)))} FROM t") == [(6,) * len(WIDER)]
    with pytest.raises(CatalogError, match="ten digits"):
        spark.sql("ALTER TABLE t ALTER COLUMN b TYPE DECIMAL(5,0)")
    with pytest.raises(AnalysisException, match="NOT_SUPPORTED_CHANGE_COLUMN"):
        spark.sql("ALTER TABLE t ALTER COLUMN d TYPE DOUBLE")


@pytest.mark.promise(
    "evolution", "a session table with `twophase.promotion = exact` gets no other types than Iceberg has", detail=True
)
def test_a_table_with_the_policy_exact_gets_only_types_that_every_engine_reads(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b, 1.5 AS d", more="TBLPROPERTIES ('twophase.promotion' = 'exact')", ids=False)
    merged = {"mergeSchema": "true"}
    with pytest.raises(CatalogError, match=r"policy 'exact'.*policy 'wide'"):
        spark.sql("ALTER TABLE t ALTER COLUMN a TYPE DOUBLE")
    with pytest.raises(CatalogError, match="was not written"):
        spark.sql("SELECT 2.5D AS a, 2 AS b, 1.5 AS d").write.options(**merged).insertInto(t)
    spark.sql("ALTER TABLE t ALTER COLUMN a TYPE BIGINT")
    spark.sql("SELECT 2L AS a, 3L AS b, CAST(2.5 AS DECIMAL(9,1)) AS d").write.options(**merged).insertInto(t)
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
    with pytest.raises(CatalogError, match="policy 'exact'"):
        spark.sql("ALTER TABLE t ALTER COLUMN a TYPE STRING")
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert spark.table("t").dtypes == [("c", "bigint"), ("b", "bigint"), ("d", "decimal(9,1)")]
    assert [row[0] for row in rows(spark, "SELECT c FROM t WHERE c > 0")] == [1, 2]


def test_a_table_without_ids_is_not_renamed_unless_it_is_empty(spark: SparkSession, t: str) -> None:
    spark.sql("CREATE TABLE t (a INT, v VARCHAR(3)) USING parquet")
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    spark.sql("INSERT INTO t VALUES (1, 'two')")
    spark.sql("ALTER TABLE t RENAME COLUMN c TO d")
    spark.sql("ALTER TABLE t ALTER COLUMN v TYPE VARCHAR(9)")
    spark.sql("INSERT INTO t VALUES (1, 'hundred')")
    assert rows(spark, "SELECT d, v FROM t WHERE d = 1") == [(1, "hundred"), (1, "two")]
    made(spark, "SELECT 1 AS a", ids=False)
    with pytest.raises(CatalogError, match=r"no field ids.*twophase\.alter"):
        spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    made(spark, "SELECT a FROM t", ids=True)
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert rows(spark, "SELECT c FROM t WHERE c = 1") == [(1,)]


def test_a_session_that_reads_by_names_renames_no_column(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a")
    spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "false")
    try:
        with pytest.raises(CatalogError, match=r"fieldId\.read\.enabled is false"):
            spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
        assert rows(spark, "SELECT a FROM t") == [(1,)]
    finally:
        spark.conf.set("spark.sql.parquet.fieldId.read.enabled", "true")


@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_a_table_counts_as_empty_only_without_any_file_or_partition(spark: SparkSession, t: str, by: str) -> None:
    spark.sql(f"CREATE TABLE t (a INT, p INT) USING parquet {by}")
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    spark.sql("INSERT INTO t VALUES (1, 2)")
    spark.sql("ALTER TABLE t RENAME COLUMN c TO d")
    assert spark.sql("SHOW TBLPROPERTIES t ('twophase.field_ids')").first()[1] == "true"
    assert rows(spark, "SELECT d FROM t WHERE d = 1") == [(1,)]
    spark.sql("DROP TABLE t")
    spark.sql(f"CREATE TABLE t (a INT, p INT) USING parquet {by}")
    spark.sql("INSERT INTO t VALUES (1, 2)")
    with pytest.raises(CatalogError, match="no field ids"):
        spark.sql("ALTER TABLE t RENAME COLUMN a TO c")


@pytest.mark.promise(
    "evolution",
    "files that a job writes from tables with field ids, and reads by their path, are read by names",
    detail=True,
)
def test_ids_of_tables_mean_nothing_in_files_that_are_read_by_their_path(
    spark: SparkSession, t: str, tmp_path: Path
) -> None:
    made(spark, "SELECT id AS a, named_struct('x', id + 100, 'y', 0L) AS s FROM range(2)")
    other = "SELECT named_struct('y', 0L, 'x', id + 500) AS s, id + 10 AS a FROM range(2)"
    spark.sql(f"CREATE OR REPLACE TABLE u USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true') AS {other}")
    files = str(tmp_path / "files")
    spark.table("t").write.parquet(files)
    spark.table("u").select("a", "s").write.mode("append").parquet(files)
    spark.sql("SELECT 20L AS a, named_struct('x', 600L, 'y', 0L) AS s").write.mode("append").parquet(files)
    found = [(0, 100), (1, 101), (10, 500), (11, 501), (20, 600)]
    assert rows(spark, f"SELECT a, s.x FROM parquet.`{files}`") == found
    read = spark.read.parquet(files)
    assert (sorted(map(tuple, read.selectExpr("a", "s.x").collect())), read.schema["a"].metadata) == (found, {})
    assert rows(spark, f"SELECT a FROM t WHERE a IN (SELECT s.x - 100 FROM parquet.`{files}` WHERE a < 2)") == [
        (0,),
        (1,),
    ]

    spark.sql(f"INSERT OVERWRITE DIRECTORY '{files}' USING parquet SELECT t.a, t.a AS b, u.a AS c FROM t JOIN u")
    assert rows(spark, f"SELECT DISTINCT b, c FROM parquet.`{files}`") == [(0, 10), (0, 11), (1, 10), (1, 11)]
    spark.newSession().read.parquet(files).createOrReplaceGlobalTempView("files")
    assert rows(spark, "SELECT count(*) FROM global_temp.files WHERE a = b") == [(4,)]
    spark.sql("DROP TABLE u")


def test_a_table_of_another_format_has_no_ids_of_those_that_it_is_made_from(spark: SparkSession, t: str) -> None:
    if spark.conf.get("spark.sql.catalogImplementation") != "hive":
        return
    made(spark, "SELECT id AS a, id + 100 AS b FROM range(2)")
    spark.sql("CREATE TABLE u STORED AS parquet AS SELECT one.a, other.a AS b FROM t AS one JOIN t AS other USING (b)")
    assert rows(spark, "SELECT a, b FROM u") == [(0, 0), (1, 1)]
    assert spark.table("u").schema["a"].metadata == {}
    spark.sql("DROP TABLE u")


def test_ids_stay_with_their_table(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a, named_struct('x', 2) AS s")
    assert spark.table("t").schema["a"].metadata["parquet.field.id"] == 1
    joined = "SELECT l.*, r.a AS b, r.s AS q FROM t l JOIN t r ON l.a = r.a"
    spark.sql(f"CREATE OR REPLACE TABLE u USING parquet AS {joined}")
    assert "parquet.field.id" not in spark.table("u").schema.json()
    assert rows(spark, "SELECT a, b, s.x, q.x FROM u") == [(1, 1, 2, 2)]
    spark.sql("INSERT INTO t SELECT b, q FROM u")
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert rows(spark, "SELECT c, s.x FROM t WHERE c = 1") == [(1, 2), (1, 2)]
    spark.sql("DROP TABLE u")
    child = spark.newSession()
    assert [tuple(row) for row in child.sql("SELECT c FROM t WHERE c = 1").collect()] == [(1,), (1,)]


@pytest.mark.parametrize("ids", [True, False])
def test_what_spark_itself_can_alter_it_still_can(spark: SparkSession, t: str, ids: bool) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b", ids=ids, more="CLUSTERED BY (a) INTO 2 BUCKETS")
    if ids:
        spark.sql("ALTER TABLE t RENAME COLUMN b TO c")
    name = "c" if ids else "b"
    spark.sql("ALTER TABLE t ALTER COLUMN a COMMENT 'by which the files are laid out'")
    spark.sql("ALTER TABLE t CHANGE COLUMN a a INT COMMENT 'said again'")
    spark.sql(f"ALTER TABLE t ALTER COLUMN {name} SET DEFAULT 7")
    spark.sql("INSERT INTO t (a) VALUES (2)")
    spark.sql(f"ALTER TABLE t ALTER COLUMN {name} DROP DEFAULT")
    spark.sql("INSERT INTO t (a) VALUES (3)")
    assert rows(spark, f"SELECT a, {name} FROM t WHERE a > 0") == [(1, 2), (2, 7), (3, None)]
    assert spark.table("t").schema["a"].metadata["comment"] == "said again"


def test_a_collation_changes_as_in_a_session_that_is_not_attached(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 'x' AS a", ids=False)
    spark.sql("ALTER TABLE t ALTER COLUMN a TYPE STRING COLLATE UTF8_LCASE")
    spark.sql("INSERT INTO t VALUES ('X'), ('y')")
    assert rows(spark, "SELECT a FROM t WHERE a = 'X'") == [("X",), ("x",)]


def test_a_column_with_a_collation_comes_last_and_first(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 'x' AS a, 1 AS b")
    spark.sql("ALTER TABLE t ADD COLUMN d STRING COLLATE UTF8_LCASE")  # Hive knows no such type.
    spark.sql("ALTER TABLE t ADD COLUMN c STRING COLLATE UTF8_LCASE FIRST")
    spark.sql("ALTER TABLE t RENAME COLUMN b TO e")
    spark.sql("INSERT INTO t VALUES ('Y', 'y', 2, 'z')")
    assert rows(spark, "SELECT a, e FROM t WHERE c = 'y' AND d = 'Z'") == [("y", 2)]
    assert rows(spark, "SELECT a, e FROM t WHERE c IS NULL") == [("x", 1)]


@pytest.mark.parametrize("text", ["{}", "BEGIN {}; END", "EXECUTE IMMEDIATE '{}'"])
def test_not_null_is_refused_with_what_can_be_done_instead(spark: SparkSession, t: str, text: str) -> None:
    spark.conf.set("spark.sql.scripting.enabled", "true")
    made(spark, "SELECT 1 AS a")
    with pytest.raises(CatalogError, match=r"checks no NOT NULL of a session table.*assert_true"):
        spark.sql(text.format("ALTER TABLE t ALTER COLUMN a SET NOT NULL"))


@pytest.mark.parametrize("ids", [True, False])
def test_defaults_of_a_table_whose_columns_were_moved_are_set_and_dropped(
    spark: SparkSession, t: str, ids: bool
) -> None:
    made(spark, "SELECT 1 AS a, 2L AS b", ids=ids)
    spark.sql("ALTER TABLE t ALTER COLUMN b FIRST")
    spark.sql("ALTER TABLE t ALTER COLUMN a SET DEFAULT 7")
    spark.sql("INSERT INTO t (b) VALUES (3)")
    spark.sql("ALTER TABLE t ALTER COLUMN a DROP DEFAULT")
    spark.sql("INSERT INTO t (b) VALUES (4)")
    assert rows(spark, "SELECT b, a FROM t") == [(2, 1), (3, 7), (4, None)]

    spark.sql("ALTER TABLE t ADD COLUMN d INT DEFAULT 5")
    spark.sql("INSERT INTO t VALUES (5, 6, 1)")
    early = ("ADD COLUMN x INT FIRST", "ADD COLUMN x INT DEFAULT 8 AFTER b", "ALTER COLUMN d FIRST")
    for change in (*early, "ALTER COLUMN b AFTER d"):  # The reader that is not vectorised would take them for the last.
        with pytest.raises(CatalogError, match=r"old rows of [dx] wrongly.*twophase\.alter"):
            spark.sql(f"ALTER TABLE t {change}")
    spark.sql("ALTER TABLE t ALTER COLUMN a FIRST")
    spark.sql("SELECT 9L AS b, 9 AS brought").write.option("mergeSchema", "true").insertInto(t)
    assert spark.table(t).columns == ["a", "b", "d", "brought"]
    expected = [(2, 1, 5), (3, 7, 5), (4, None, 5), (5, 6, 1), (9, None, 5)]
    assert rows(spark, "SELECT b, a, d FROM t") == expected
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
    spark.sql("ALTER TABLE t ALTER COLUMN d FIRST")
    assert rows(spark, "SELECT b, a, d FROM t") == expected
    assert rows(spark, "SELECT b FROM t WHERE d = 1") == [(5,)]


def test_a_table_with_ids_gets_no_files_without_them(spark: SparkSession, t: str) -> None:
    """Nobody could read them."""
    made(spark, "SELECT 1 AS a, 'x' AS b")
    spark.conf.set("spark.sql.parquet.fieldId.write.enabled", "false")
    try:
        for statement in ("INSERT INTO t VALUES (2, 'y')", "INSERT OVERWRITE t VALUES (2, 'y')"):
            with pytest.raises(CatalogError, match=r"t was not written: .*fieldId\.write\.enabled is false"):
                spark.sql(statement)
        with pytest.raises(CatalogError, match=r"fieldId\.write\.enabled is false"):
            made(spark, "SELECT 2 AS a")
        assert rows(spark, "SELECT * FROM t") == [(1, "x")]
        made(spark, "SELECT 2 AS a", ids=False)
        spark.sql("INSERT INTO t VALUES (3)")
        assert rows(spark, "SELECT * FROM t") == [(2,), (3,)]
    finally:
        spark.conf.unset("spark.sql.parquet.fieldId.write.enabled")


#: Defaults of all kinds, by the types of their columns.
GIVEN = (
    ("INT", "7"),
    ("INT", "1 + 1"),
    ("STRING", r"'it\'s'"),
    ("STRING", "NULL"),
    ("DOUBLE", "1e3"),
    ("DATE", "DATE'2026-01-01'"),
    ("DATE", "current_date()"),
    ("TIMESTAMP", "TIMESTAMP'2026-01-01 10:00:00'"),
    ("ARRAY<INT>", "array(1, 2)"),
    ("CHAR(3)", "'x'"),
)


@pytest.mark.promise(
    "evolution", "a column's DEFAULT may be what it may be for Spark: old rows read its present value", detail=True
)
@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_new_column_has_any_default_that_it_may_have_in_spark(spark: SparkSession, t: str, kind: str) -> None:
    """Natively behind the last column, by a rewrite before the first one; compared with a table that Spark alters."""
    spark.sql(f"CREATE OR REPLACE TABLE t USING {kind} TBLPROPERTIES ('twophase.alter'='rewrite') AS SELECT 1 AS id")
    spark.sql("ALTER TABLE t ADD COLUMN first INT FIRST")
    spark.sql(f"CREATE OR REPLACE TABLE u USING {kind} AS SELECT CAST(NULL AS INT) AS first, 1 AS id")
    for place in ("", "FIRST"):
        for index, (data_type, default) in enumerate(GIVEN):
            column = f"c{index}{place} {data_type} DEFAULT {default}"
            spark.sql(f"ALTER TABLE t ADD COLUMN {column} {place}")
            spark.sql(f"ALTER TABLE u ADD COLUMNS ({column})")
    for table in ("t", "u"):
        spark.sql(f"INSERT INTO {table} (id) VALUES (2)")
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN c1 SET DEFAULT 3 * 3")
        spark.sql(f"INSERT INTO {table} (id) VALUES (3)")
    names = ", ".join(spark.table("u").columns)
    found = spark.sql(f"SELECT {names} FROM t ORDER BY id").collect()
    assert found == spark.sql(f"SELECT {names} FROM u ORDER BY id").collect()
    assert [(row.c0, row.c1, row.c2, row.c3) for row in found] == [(7, n, "it's", None) for n in (2, 2, 9)]
    spark.sql("DROP TABLE u")
    with pytest.raises(AnalysisException, match="DEFAULT"):
        spark.sql("ALTER TABLE t ADD COLUMN wrong INT DEFAULT (SELECT 1)")


def test_a_part_of_a_column_has_no_default(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a, named_struct('x', 2) AS s")
    for change in ("ADD COLUMN s.y INT DEFAULT 5", "ALTER COLUMN s.x SET DEFAULT 5", "ALTER COLUMN s.x DROP DEFAULT"):
        with pytest.raises((AnalysisException, CatalogError), match="only a whole column has a DEFAULT"):
            spark.sql(f"ALTER TABLE t {change}")
        with pytest.raises((AnalysisException, CatalogError), match="only a whole column"), twophase.transaction(spark):
            spark.sql("CREATE TABLE made_with_a_part USING parquet AS SELECT named_struct('x', 2) AS s")
            spark.sql(f"ALTER TABLE made_with_a_part {change}")
    spark.sql("ALTER TABLE t ADD COLUMN s.y INT DEFAULT NULL")
    spark.sql("ALTER TABLE t ADD COLUMN s.z INT")
    assert rows(spark, "SELECT a, s.x, s.y, s.z FROM t") == [(1, 2, None, None)]


@pytest.mark.parametrize("kind", ["parquet", "orc"])
def test_a_char_or_varchar_that_becomes_text_takes_longer_ones(spark: SparkSession, t: str, kind: str) -> None:
    """Unless its length were only a matter of the reader."""
    spark.sql(f"CREATE TABLE t (c CHAR(4), v VARCHAR(3), w VARCHAR(3)) USING {kind}")
    spark.sql("INSERT INTO t VALUES ('a', 'b', 'c')")
    spark.sql("ALTER TABLE t ADD COLUMN d CHAR(3) DEFAULT 'x'")
    for change in ("c TYPE STRING", "v TYPE STRING", "w TYPE VARCHAR(5)"):
        spark.sql(f"ALTER TABLE t ALTER COLUMN {change}")
    with pytest.raises((AnalysisException, CatalogError), match="to which only a CHAR adds spaces"):
        spark.sql("ALTER TABLE t ALTER COLUMN d TYPE STRING")
    found = [f"{row.col_name} {row.data_type}" for row in spark.sql("DESCRIBE t").collect()][:4]
    assert found == ["c string", "v string", "w varchar(5)", "d char(3)"]
    spark.sql("INSERT INTO t VALUES ('longer', 'longer', 'five5', 'y')")
    assert rows(spark, "SELECT * FROM t") == [("a   ", "b", "c", "x  "), ("longer", "longer", "five5", "y  ")]
    assert rows(spark, "SELECT v FROM t WHERE c = 'a   ' AND v = 'b'") == [("b",)]


@pytest.mark.promise(
    "restore", "a session table whose columns were dropped, renamed or moved is restored as it was", detail=True
)
@pytest.mark.parametrize("is_there", [True, False])
def test_an_evolved_table_is_restored_as_it_was(spark: SparkSession, t: str, is_there: bool) -> None:
    made(spark, "SELECT 1 AS id, 'a' AS a, 'b' AS b, 'c' AS c")
    for change in ("DROP COLUMN a", "RENAME COLUMN b TO z", "ALTER COLUMN c FIRST", "ADD COLUMN d INT DEFAULT 5"):
        spark.sql(f"ALTER TABLE t {change}")
    spark.sql("INSERT INTO t (id, z) VALUES (2, 'z')")
    before, query = [(1, "c", "b", 5), (2, None, "z", 5)], "SELECT id, c, z, d FROM t"
    assert rows(spark, query) == before
    spark.sql("CREATE SAVEPOINT evolved FOR TABLE t")
    spark.sql("ALTER TABLE t DROP COLUMN c" if is_there else "DROP TABLE t")
    spark.sql("RESTORE TABLE t TO SAVEPOINT evolved")
    assert (spark.table("t").columns, rows(spark, query)) == (["c", "id", "z", "d"], before)
    assert rows(spark, "SELECT id FROM t WHERE z = 'b'") == [(1,)]
    with pytest.raises((AnalysisException, CatalogError), match="have another column a"):
        spark.sql("ALTER TABLE t ADD COLUMN a STRING")
    spark.sql("INSERT INTO t (id, c) VALUES (3, 'cc')")
    assert rows(spark, f"{query} WHERE id = 3") == [(3, "cc", None, 5)]
    spark.sql("DROP SAVEPOINT evolved")


def test_a_table_whose_property_asked_in_vain_for_ids_is_restored_as_it_was(spark: SparkSession, t: str) -> None:
    """Spark's own CREATE TABLE gives none."""
    spark.sql("CREATE TABLE t (id INT, a STRING) USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true')")
    spark.sql("INSERT INTO t VALUES (1, 'a')")
    spark.sql("CREATE SAVEPOINT unnumbered FOR TABLE t")
    spark.sql("INSERT INTO t VALUES (2, 'b')")
    spark.sql("RESTORE TABLE t TO SAVEPOINT unnumbered")
    assert rows(spark, "SELECT * FROM t") == [(1, "a")]
    spark.sql("DROP SAVEPOINT unnumbered")


def test_columns_are_added_behind_those_that_a_metastore_has_refused(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a, 'x' AS b", ids=False)
    spark.sql("ALTER TABLE t ADD COLUMN c STRING FIRST")  # Hive compares types by position.
    spark.sql("ALTER TABLE t ADD COLUMN d INT")
    spark.sql("ALTER TABLE t ADD COLUMNS (e INT)")
    assert spark.table("t").columns == ["c", "a", "b", "d", "e"]
    assert rows(spark, "SELECT a FROM t WHERE e IS NULL") == [(1,)]


def test_cached_and_analysed_tables_show_the_change(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT CAST(id AS INT) AS a, CAST(id AS INT) AS b, DATE'2020-01-01' AS d FROM range(5)")
    spark.sql("ANALYZE TABLE t COMPUTE STATISTICS FOR ALL COLUMNS")
    spark.sql("CACHE TABLE t")
    assert spark.table("t").count() == 5
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    spark.sql("ALTER TABLE t ALTER COLUMN b TYPE BIGINT")
    spark.sql("ALTER TABLE t ALTER COLUMN d TYPE TIMESTAMP_NTZ")
    assert spark.table("t").columns == ["c", "b", "d"]
    spark.conf.set("spark.sql.cbo.enabled", "true")
    assert rows(spark, "SELECT c FROM t WHERE c = 3 AND b = 3") == [(3,)]
    assert rows(spark, "SELECT one.c FROM t AS one JOIN t AS other USING (d) WHERE other.b = 3 AND one.c > 3") == [(4,)]
    spark.conf.unset("spark.sql.cbo.enabled")


def meanwhile(spark: SparkSession, staged: str, *changes: str) -> None:
    """Stage a statement in a block, change the table in another thread, and commit the block."""
    with ThreadPoolExecutor(1) as other, twophase.transaction(spark):
        spark.sql(staged)
        for change in changes:
            other.submit(spark.sql, f"ALTER TABLE t {change}").result()


@pytest.mark.promise(
    "evolution", "rows that were staged before an `ALTER TABLE` of a session table go where they belong"
)
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_rows_staged_before_an_alter_go_where_they_belong(spark: SparkSession, t: str, by: str) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b, 0 AS p", more=by)
    meanwhile(spark, "INSERT INTO t VALUES (3, 4, 0)", "RENAME COLUMN a TO c", "ADD COLUMN d INT FIRST")
    meanwhile(spark, "INSERT INTO t VALUES (0, 5, 6, 0)", "ADD COLUMN e INT DEFAULT 7", "ALTER COLUMN c TYPE BIGINT")
    assert rows(spark, "SELECT c, d, b, e, p FROM t") == [(1, None, 2, 7, 0), (3, None, 4, 7, 0), (5, 0, 6, 7, 0)]
    several = "SELECT 1, id, id, 8, 1 FROM range(8, 10, 1, 2)"
    meanwhile(spark, f"INSERT INTO t (d, c, b, e, p) {several}", "DROP COLUMN b")
    assert rows(spark, "SELECT d, c, e, p FROM t WHERE c > 5") == [(1, 8, 8, 1), (1, 9, 8, 1)]
    meanwhile(spark, "INSERT OVERWRITE t (d, c, e, p) VALUES (2, 11, 9, 0)", "RENAME COLUMN d TO f")
    assert rows(spark, "SELECT f, c, e, p FROM t") == [(2, 11, 9, 0)]


def test_rows_staged_before_an_alter_of_a_table_without_ids_go_by_their_names(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b", ids=False)
    meanwhile(spark, "INSERT INTO t VALUES (3, 4)", "DROP COLUMN a", "ADD COLUMN c INT")
    assert rows(spark, "SELECT b, c FROM t") == [(2, None), (4, None)]


@pytest.mark.promise(
    "evolution", "a write that cannot follow what others have changed of a session table is a conflict"
)
def test_a_write_that_cannot_follow_an_alter_is_refused(spark: SparkSession, t: str) -> None:
    spark.sql("CREATE TABLE t (a INT, b INT) USING parquet")
    with pytest.raises(WriteConflictError):  # The table has ids then, which the rows do not have.
        meanwhile(spark, "INSERT INTO t VALUES (1, 2)", "RENAME COLUMN a TO c")
    assert rows(spark, "SELECT c, b FROM t") == []
    made(spark, "SELECT 1 AS a, 2 AS b")
    with pytest.raises(WriteConflictError), ThreadPoolExecutor(1) as other, twophase.transaction(spark):
        spark.sql("INSERT INTO t VALUES (3, 4)")
        replaced = (
            "CREATE OR REPLACE TABLE t USING parquet TBLPROPERTIES ('twophase.field_ids' = 'true') AS SELECT 5 AS z"
        )
        other.submit(spark.sql, replaced).result()
    assert rows(spark, "SELECT z FROM t") == [(5,)]


def test_rows_go_into_no_other_table_of_the_name(spark: SparkSession, t: str) -> None:
    spark.sql("CREATE TABLE t (a INT, b INT) USING parquet")
    with pytest.raises(WriteConflictError), ThreadPoolExecutor(1) as other, twophase.transaction(spark):
        spark.sql("INSERT INTO t VALUES (1, 2)")
        for statement in ("DROP TABLE t", "CREATE TABLE t (a INT, c INT) USING parquet"):
            other.submit(spark.sql, statement).result()
    assert rows(spark, "SELECT a, c FROM t") == []


def test_partition_fields_are_refused_with_the_statement_that_partitions_a_table_anew(
    spark: SparkSession, t: str
) -> None:
    made(spark, "SELECT 1 AS a, 2 AS p", more="PARTITIONED BY (p)")
    for change in ("ADD PARTITION FIELD a", "DROP PARTITION FIELD p", "REPLACE PARTITION FIELD p WITH a"):
        with pytest.raises(CatalogError, match=r"directories of its partition columns") as caught:
            spark.sql(f"ALTER TABLE t {change}")
    advice = str(caught.value.hint).partition(": ")[2].replace("PARTITIONED BY (...)", "PARTITIONED BY (a)")
    spark.sql(advice.rstrip("."))
    assert spark.sql("SHOW PARTITIONS t").collect()[0][0] == "a=1"
    assert rows(spark, "SELECT a, p FROM t") == [(1, 2)]


def test_a_column_without_a_field_id_beside_others_that_have_one_is_named() -> None:
    marked = {"name": "a", "type": "integer", "nullable": True, "metadata": {"parquet.field.id": 1}}
    plain = {"name": "b", "type": "integer", "nullable": True, "metadata": {}}
    with pytest.raises(CatalogError, match=r"db\.t was not altered: b has no field id"):
        columns.read("db.t", json.dumps({"type": "struct", "fields": [marked, plain]}), [])
