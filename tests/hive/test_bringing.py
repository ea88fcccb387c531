"""Writes that bring columns to session tables: rows and columns are published together, found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

import twophase
from tests.hive.conftest import attached_session
from twophase import failpoints
from twophase.errors import AtomicityNotSupportedError, CatalogError, TransactionAborted, WriteConflictError


@pytest.fixture(scope="module", params=["hive", pytest.param("memory", marks=pytest.mark.exhaustive)])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield from attached_session(request.param, tmp_path_factory)


def made(spark: SparkSession, query: str, more: str = "") -> None:
    spark.sql(f"CREATE OR REPLACE TABLE t USING parquet {more} AS {query}")


def rows(spark: SparkSession, query: str) -> list[tuple[object, ...]]:
    return sorted((tuple(row) for row in spark.sql(query).collect()), key=repr)


@pytest.mark.promise(
    "evolution", "one write brings its columns to a session table: `mergeSchema`, `INSERT WITH SCHEMA EVOLUTION`"
)
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_one_write_brings_its_columns_and_no_other_does(spark: SparkSession, t: str, by: str) -> None:
    made(spark, "SELECT 1 AS id, 'x' AS name, 0 AS p", by)
    merged = {"mergeSchema": "true"}
    spark.sql("SELECT 'a' AS name, 2 AS id, 0 AS p, 1 AS by_save").write.mode("append").options(**merged).saveAsTable(t)
    spark.sql("SELECT 3L AS id, 'b' AS name, 1 AS p, 1 AS by_insert").write.option("mergeSchema", True).insertInto(t)
    spark.sql("SELECT 4 AS id, 1 AS p, 1 AS by_write_to").writeTo(t).options(**merged).append()
    if spark.version.startswith("4.3"):
        spark.sql("INSERT WITH SCHEMA EVOLUTION INTO t SELECT 5 AS id, 2 AS p, 1 AS by_sql")
    else:
        spark.sql("SELECT 5 AS id, 2 AS p, 1 AS by_sql").writeTo(t).option("mergeSchema", "true").append()
    added = ["by_save", "by_insert", "by_write_to", "by_sql"]
    assert sorted(spark.table(t).columns) == sorted(["id", "name", "p", *added])
    assert spark.table(t).schema["id"].dataType.simpleString() == "bigint"
    assert rows(spark, f"SELECT id, name, p, {', '.join(added)} FROM t") == [
        (1, "x", 0, None, None, None, None),
        (2, "a", 0, 1, None, None, None),
        (3, "b", 1, None, 1, None, None),
        (4, None, 1, None, None, 1, None),
        (5, None, 2, None, None, None, 1),
    ]
    assert rows(spark, "SELECT id FROM t WHERE by_sql = 1 OR by_save = 1") == [(2,), (5,)]


#: Ways of a statement into Spark.
WAYS: dict[str, Callable[[SparkSession, str], object]] = {
    "EXECUTE IMMEDIATE": lambda spark, text: spark.sql(f"EXECUTE IMMEDIATE '{text}'"),
    "a script": lambda spark, text: spark.sql(f"BEGIN SELECT 1; {text}; END"),
    "behind WITH": lambda spark, text: spark.sql(f"WITH rows AS (SELECT 1) {text}"),
    "the JVM": lambda spark, text: spark._jsparkSession.sql(text),
    "a block": lambda spark, text: spark.sql(f"BEGIN ATOMIC {text}; END"),
}


@pytest.mark.parametrize("name", ["t", "hive.default.t"])
@pytest.mark.parametrize("way", WAYS)
def test_an_insert_that_evolves_the_schema_brings_its_columns_however_it_is_said(
    spark: SparkSession, t: str, name: str, way: str
) -> None:
    made(spark, "SELECT 1 AS id")
    text = f"INSERT WITH SCHEMA EVOLUTION INTO {name} SELECT 2 AS more, 3 AS id"
    if not spark.version.startswith("4.3"):
        with pytest.raises(ParseException):
            WAYS[way](spark, text)
        return
    WAYS[way](spark, text)
    assert rows(spark, "SELECT id, more FROM t") == [(1, None), (3, 2)]


def test_only_the_insert_of_a_statement_that_says_so_brings_columns(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS id")
    evolving, plain = "INSERT WITH SCHEMA EVOLUTION INTO t SELECT 2 AS id, 2 AS a", "INSERT INTO t SELECT 3, 3, 3"
    if not spark.version.startswith("4.3"):
        with pytest.raises(ParseException):
            spark.sql(evolving)
        return
    with pytest.raises(AnalysisException):
        spark.sql(f"BEGIN {evolving}; {plain}; END")
    assert rows(spark, "SELECT id, a FROM t") == [(1, None), (2, 2)]
    spark.sql("CREATE OR REPLACE TABLE u AS SELECT 1 AS id")
    try:
        with pytest.raises(AnalysisException):
            spark.sql("FROM range(1) INSERT WITH SCHEMA EVOLUTION INTO t SELECT 4 AS b INSERT INTO u SELECT 4, 4")
        spark.sql("FROM range(1) INSERT WITH SCHEMA EVOLUTION INTO t SELECT 4 AS b INSERT INTO u SELECT 4")
        assert rows(spark, "SELECT id, a, b FROM t") == [(1, None, None), (2, 2, None), (None, None, 4)]
        assert rows(spark, "SELECT * FROM u") == [(1,), (4,)]
    finally:
        spark.sql("DROP TABLE u")


@pytest.mark.promise(
    "evolution", "a table's property `twophase.merge_schema` lets all of its writes bring their columns", detail=True
)
def test_all_writes_of_a_table_bring_their_columns_where_it_says_so(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS id, 'x' AS name, 0 AS p", "PARTITIONED BY (p)")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.merge_schema' = 'true')")
    spark.sql("INSERT INTO t SELECT 0 AS p, 2 AS id, 2 AS by_sql")
    spark.sql("SELECT 3 AS id, 1 AS p, 3 AS by_save").write.mode("append").saveAsTable(t)
    spark.sql("SELECT 4 AS id, 1 AS p, 4 AS by_insert").write.insertInto(t)
    spark.sql("SELECT 5 AS id, 1 AS p, 5 AS by_write_to").writeTo(t).append()
    with twophase.transaction(spark):
        spark.sql("INSERT INTO t SELECT 6 AS id, 2 AS p, 6 AS in_block")
    spark.sql("INSERT OVERWRITE t PARTITION (p = 0) SELECT 7 AS id, 7 AS over")
    spark.sql("INSERT INTO t (p, id) VALUES (3, 8)")
    columns = "id, p, name, by_sql, by_save, by_insert, by_write_to, in_block, over"
    assert rows(spark, f"SELECT {columns} FROM t") == [
        (3, 1, None, None, 3, None, None, None, None),
        (4, 1, None, None, None, 4, None, None, None),
        (5, 1, None, None, None, None, 5, None, None),
        (6, 2, None, None, None, None, None, 6, None),
        (7, 0, None, None, None, None, None, None, 7),
        (8, 3, None, None, None, None, None, None, None),
    ]
    spark.sql("ALTER TABLE t UNSET TBLPROPERTIES ('twophase.merge_schema')")
    with pytest.raises(AnalysisException):
        spark.sql("INSERT INTO t SELECT 9 AS id, 0 AS p")


def test_other_rows_than_those_of_the_table_fit_or_are_refused_before_any_work(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS id, named_struct('x', 1, 'y', 'a') AS s, array(named_struct('u', 1)) AS l, 5 AS gone")
    spark.sql("ALTER TABLE t ADD COLUMN d INT DEFAULT 7")
    spark.sql("ALTER TABLE t DROP COLUMN gone")

    def bring(query: str, overwrite: bool = False) -> None:
        spark.sql(query).write.option("mergeSchema", "true").insertInto(t, overwrite=overwrite)

    bring("SELECT array(named_struct('v', 2, 'u', 3L)) AS l, named_struct('z', 1.5D, 'x', 1L << 40) AS s, 2 AS ID")
    assert rows(spark, "SELECT id, s.x, s.z, s.y, l[0].u, l[0].v, d FROM t") == [
        (1, 1, None, "a", 1, None, 7),
        (2, 1 << 40, 1.5, None, 3, 2, 7),
    ]
    assert rows(spark, "SELECT id FROM t WHERE s.x > 1 AND s.z > 1") == [(2,)]
    before = (spark.table(t).schema, rows(spark, "SELECT * FROM t"))
    for query, why in (
        ("SELECT 1 AS id, 2 AS gone", "twophase.alter"),
        ("SELECT 1 AS id, INTERVAL '1' DAY AS i", "ALTER TABLE .* ADD COLUMN `i`"),
        ("SELECT 'no number' AS id", "was not written"),
        ("SELECT named_struct('x', 'no number') AS s", "was not written"),
    ):
        with pytest.raises(CatalogError, match=why) as refused:
            bring(query)
        assert getattr(refused.value, "transaction_id", None) is None, query
    assert (spark.table(t).schema, rows(spark, "SELECT * FROM t")) == before
    bring("SELECT 6L AS id, 'c' AS other", overwrite=True)
    assert rows(spark, "SELECT id, other, d, s FROM t") == [(6, "c", 7, None)]


def test_a_null_of_no_type_is_one_of_the_type_of_its_column(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS id, 'x' AS name, named_struct('a', 1, 'b', 'x') AS s")
    query = "SELECT 2 AS id, NULL AS name, named_struct('a', NULL, 'b', 'y') AS s, 2 AS more"
    spark.sql(query).write.option("mergeSchema", "true").insertInto(t)
    assert rows(spark, "SELECT id, name, s.a, s.b, more FROM t") == [(1, "x", 1, "x", None), (2, None, None, "y", 2)]


def test_a_new_column_comes_with_its_comment_and_is_refused_with_a_collation(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS id")
    noted = spark.sql("SELECT 2 AS id, 2 AS more").withMetadata("more", {"comment": "of its own"})
    noted.write.option("mergeSchema", "true").insertInto(t)
    assert spark.table(t).schema["more"].metadata["comment"] == "of its own"
    collated = spark.sql("SELECT 3 AS id, 'x' COLLATE UTF8_LCASE AS c")
    with pytest.raises(CatalogError, match="ADD COLUMN `c` string collate UTF8_LCASE"):
        collated.write.option("mergeSchema", "true").insertInto(t)
    assert rows(spark, "SELECT * FROM t") == [(1, None), (2, 2)]


@pytest.mark.parametrize("provider", ["csv", pytest.param("json", marks=pytest.mark.exhaustive)])
def test_a_table_of_another_format_keeps_its_columns(spark: SparkSession, t: str, provider: str) -> None:
    spark.sql(f"CREATE TABLE t USING {provider} AS SELECT 1 AS id, 'x' AS name")
    writer = spark.sql("SELECT 'b' AS name, 2 AS id").write.mode("append").format(provider)
    writer.option("mergeSchema", "true").saveAsTable(t)
    with pytest.raises(CatalogError, match=r"ALTER TABLE .* ADD COLUMNS"):
        spark.sql("SELECT 3 AS id, 1 AS other").write.option("mergeSchema", "true").insertInto(t)
    assert rows(spark, "SELECT id, name FROM t") == [(1, "x"), (2, "b")]


@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_columns_are_there_only_if_the_block_is_published(spark: SparkSession, t: str, by: str) -> None:
    made(spark, "SELECT 1 AS id, 0 AS p", by)
    columns = spark.table(t).columns
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql("SELECT 2 AS id, 0 AS p, 1 AS n").write.option("mergeSchema", "true").insertInto(t)
        raise ZeroDivisionError
    assert spark.table(t).columns == columns
    with twophase.transaction(spark):
        spark.sql("SELECT 2 AS id, 0 AS p, 1 AS n").write.option("mergeSchema", "true").insertInto(t)
        assert rows(spark, "SELECT id, n FROM t") == [(1, None), (2, 1)]
        spark.sql("INSERT INTO t (id, n, p) VALUES (3, 2, 1)")
        with pytest.raises(AtomicityNotSupportedError, match="already written in this transaction"):
            spark.sql("SELECT 4 AS id, 0 AS p, 1 AS m").write.option("mergeSchema", "true").insertInto(t)
    assert rows(spark, "SELECT id, n FROM t") == [(1, None), (2, 1), (3, 2)]
    assert "twophase.brought" not in {row.key for row in spark.sql("SHOW TBLPROPERTIES t").collect()}


def staged_by(spark: SparkSession, how: str) -> None:
    """A table that a block has staged, whose property lets all of its writes bring columns."""
    property_of_it = "TBLPROPERTIES ('twophase.merge_schema' = 'true')"
    if how == "made":
        spark.sql(f"CREATE OR REPLACE TABLE t USING parquet {property_of_it} AS SELECT 1 AS id, 'x' AS name")
    elif how == "written":
        spark.sql("INSERT INTO t SELECT 'x' AS name, 1 AS id")
    else:
        spark.sql(f"ALTER TABLE t SET {property_of_it}")


@pytest.mark.promise(
    "evolution", "a block sees the property `twophase.merge_schema` of a table that it has staged", detail=True
)
@pytest.mark.parametrize("how", ["made", "altered", "written"])
def test_a_block_matches_by_name_what_it_writes_to_a_table_that_it_has_staged(
    spark: SparkSession, t: str, how: str
) -> None:
    made(spark, f"SELECT 1 AS id, 'x' AS name WHERE {str(how == 'altered').upper()}")
    if how == "written":
        spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.merge_schema' = 'true')")
    with twophase.transaction(spark):
        staged_by(spark, how)
        spark.sql("SELECT 'b' AS name, 2 AS id").write.mode("append").saveAsTable(t)
        spark.sql("SELECT 3 AS id").write.mode("append").saveAsTable(t)
        spark.sql("INSERT INTO t SELECT 'c' AS name, 4 AS id")
        with pytest.raises(AtomicityNotSupportedError, match="already written in this transaction"):
            spark.sql("SELECT 5 AS id, 1 AS more").write.mode("append").saveAsTable(t)
        assert rows(spark, "SELECT id, name FROM t") == [(1, "x"), (2, "b"), (3, None), (4, "c")]
    assert rows(spark, "SELECT id, name FROM t") == [(1, "x"), (2, "b"), (3, None), (4, "c")]


@pytest.mark.promise("evolution", "another writer's rows and an ALTER meanwhile land beside new columns, or conflict")
@pytest.mark.parametrize("by", ["", "PARTITIONED BY (p)"])
def test_what_others_publish_meanwhile_lands_beside_new_columns_or_is_a_conflict(
    spark: SparkSession, t: str, by: str
) -> None:
    made(spark, "SELECT 1 AS id, 0 AS p", by)
    bring = "SELECT 2 AS id, 0 AS p, 1 AS n UNION ALL SELECT 3 AS id, 1 AS p, 2 AS n"
    with ThreadPoolExecutor(1) as other:
        with twophase.transaction(spark):
            spark.sql(bring).write.option("mergeSchema", "true").insertInto(t)
            other.submit(spark.sql, "INSERT INTO t VALUES (9, 0)").result()
        assert rows(spark, "SELECT id, n FROM t") == [(1, None), (2, 1), (3, 2), (9, None)]
        with pytest.raises(WriteConflictError), twophase.transaction(spark):
            spark.sql(bring.replace("AS n", "AS o")).write.option("mergeSchema", "true").insertInto(t)
            other.submit(spark.sql, "ALTER TABLE t ADD COLUMN m INT").result()
    assert "o" not in spark.table(t).columns


@pytest.mark.promise("evolution", "another writer's rows and an ALTER meanwhile land beside new columns, or conflict")
def test_rows_that_replace_others_do_not_join_a_writer_who_has_brought_the_same_columns(
    spark: SparkSession, t: str
) -> None:
    made(spark, "SELECT 1 AS id, 0 AS p")
    bring, merged = "SELECT {} AS id, 0 AS p, 1 AS n", {"mergeSchema": "true"}
    with ThreadPoolExecutor(1) as other, pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql(bring.format(2)).write.options(**merged).insertInto(t, overwrite=True)
        spark.sql("INSERT INTO t (id, n, p) VALUES (3, 2, 1)")
        theirs = spark.newSession().sql(bring.format(9)).write.options(**merged)
        other.submit(theirs.insertInto, t).result()
    spark.catalog.refreshTable(t)
    assert rows(spark, "SELECT id, n FROM t") == [(1, None), (9, 1)]


@pytest.mark.parametrize(
    "theirs",
    [
        ["ALTER TABLE t ALTER COLUMN p SET DEFAULT 9"],
        ["ALTER TABLE t ADD COLUMN y INT", "INSERT INTO t VALUES (4, 0, 77)", "ALTER TABLE t DROP COLUMN y"],
    ],
    ids=["default", "dropped"],
)
def test_new_columns_do_not_take_back_what_an_alter_has_left_meanwhile(
    spark: SparkSession, t: str, theirs: list[str]
) -> None:
    made(spark, "SELECT 1 AS id, 0 AS p")
    conflict = pytest.raises(WriteConflictError, match="its columns were changed")
    with ThreadPoolExecutor(1) as other, conflict, twophase.transaction(spark):
        spark.sql("SELECT 2 AS id, 0 AS p, 5 AS n").write.option("mergeSchema", "true").insertInto(t)
        for statement in theirs:
            other.submit(spark.sql, statement).result()
    assert spark.table(t).columns == ["id", "p"]
    if len(theirs) == 1:
        spark.sql("INSERT INTO t (id) VALUES (3)")
        assert rows(spark, "SELECT p FROM t WHERE id = 3") == [(9,)]
    else:
        with pytest.raises(CatalogError, match="another column y"):
            spark.sql("ALTER TABLE t ADD COLUMN y INT")


def test_columns_go_with_their_rows_where_a_later_publish_of_the_block_is_refused(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS id")
    with ThreadPoolExecutor(1) as other:

        def other_writer(_: str) -> None:
            other.submit(spark.sql, "CREATE TABLE u (x INT) USING parquet").result()

        failpoints.arm("hive.pointer.publish", other_writer, nth=2)
        with pytest.raises(TransactionAborted), twophase.transaction(spark):
            spark.sql("SELECT 2L AS id, 1 AS n").write.option("mergeSchema", "true").insertInto(t)
            spark.sql("CREATE TABLE u AS SELECT 1 AS y")
    spark.sql("DROP TABLE u")
    assert spark.table(t).schema.simpleString() == "struct<id:int>"
    assert rows(spark, "SELECT * FROM t") == [(1,)]
    spark.sql("INSERT INTO t VALUES (2)")
    assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]


@pytest.mark.promise(
    "evolution", "an id of a column that was rolled back is not given again, nor is its value lost", detail=True
)
@pytest.mark.parametrize("is_used", [False, True])
def test_a_column_that_is_rolled_back_stays_where_others_may_have_written_it(
    spark: SparkSession, t: str, is_used: bool
) -> None:
    made(spark, "SELECT 1 AS id, 0 AS p", "PARTITIONED BY (p) TBLPROPERTIES ('twophase.field_ids' = 'true')")
    given: list[int] = []

    def outside() -> None:
        schema = spark.table(t).schema
        given.append(schema["n"].metadata["parquet.field.id"])
        if is_used:
            place = spark.table(t).where("p = 0").inputFiles()[0].rpartition("/")[0]
            rows_of = StructType([field for field in schema.fields if field.name != "p"])
            spark.createDataFrame([(7, 70)], rows_of).write.mode("append").parquet(place)

    def fail(_: str) -> None:
        with ThreadPoolExecutor(1) as other:
            other.submit(outside).result()
        raise OSError("the metastore is gone")

    failpoints.arm("hive.append.file_in", fail)
    with pytest.raises((OSError, TransactionAborted)):
        spark.sql("SELECT 2 AS id, 0 AS p, 5 AS n").write.option("mergeSchema", "true").insertInto(t)
    failpoints.disarm()
    spark.catalog.refreshTable(t)
    assert ("n" in spark.table(t).columns) == is_used
    if is_used:
        assert rows(spark, "SELECT id, n FROM t") == [(1, None), (7, 70)]
    spark.sql("SELECT 3 AS id, 0 AS p, 5 AS m").write.option("mergeSchema", "true").insertInto(t)
    assert spark.table(t).schema["m"].metadata["parquet.field.id"] > given[0]
