"""ALTER TABLE by a rewrite: what Spark's reader cannot follow, atomically, where the user has chosen it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import col

import twophase
from tests.hive.conftest import attached_session
from tests.hive.test_evolution import files_of, rows
from twophase import failpoints
from twophase.catalog import Rewrite
from twophase.catalogs.hive import HiveCatalog
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    TwoPhaseError,
    WriteConflictError,
)

REWRITE = "TBLPROPERTIES ('twophase.alter' = 'rewrite')"


@pytest.fixture(scope="module", params=["hive", pytest.param("memory", marks=pytest.mark.exhaustive)])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    yield from attached_session(request.param, tmp_path_factory)


def made(spark: SparkSession, query: str, more: str = "") -> None:
    spark.sql(f"CREATE OR REPLACE TABLE t USING parquet {more} {REWRITE} AS {query}")


def properties(spark: SparkSession) -> dict[str, str]:
    found = {row.key: row.value for row in spark.sql("SHOW TBLPROPERTIES t").collect()}
    return {
        key: value for key, value in found.items() if key.startswith(("twophase.", "k")) and "transaction" not in key
    }


def test_a_wider_decimal_that_filters_of_old_files_would_take_for_another_is_rewritten(
    spark: SparkSession, t: str
) -> None:
    """Parquet has decimals of up to 9 and of up to 18 digits as integers, and longer ones as bytes."""
    query = "CAST(1.5 AS DECIMAL(9,2)) AS a, CAST(1.5 AS DECIMAL(18,2)) AS b, CAST(1.5 AS DECIMAL(20,2)) AS c"
    wider = {
        "a": ("DECIMAL(12,2)", "30000000.00"),
        "b": ("DECIMAL(20,2)", f"1{0:017}"),
        "c": ("DECIMAL(24,2)", f"1{0:021}"),
    }
    made(spark, f"SELECT {query}")
    for choice in ("exact", "wide"):
        spark.sql(f"ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'native', 'twophase.promotion' = '{choice}')")
        for name, (wanted, _) in wider.items():
            with pytest.raises(CatalogError, match="filters of its files"):
                spark.sql(f"ALTER TABLE t ALTER COLUMN {name} TYPE {wanted}")
            brought = spark.table("t").withColumn(name, col(name).cast(wanted))
            with pytest.raises(CatalogError, match="filters of its files"):
                brought.write.option("mergeSchema", "true").insertInto("t")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'rewrite')")
    for name, (wanted, large) in wider.items():
        spark.sql(f"ALTER TABLE t ALTER COLUMN {name} TYPE {wanted}")
        assert len(rows(spark, f"SELECT * FROM t WHERE {name} < {large}")) == 1


@pytest.mark.promise(
    "evolution", "a plain Parquet table is altered by a rewrite where the user chose it, and read right", detail=True
)
@pytest.mark.parametrize("by", ["PARTITIONED BY (p)", pytest.param("", marks=pytest.mark.exhaustive)])
def test_a_plain_table_is_renamed_and_takes_a_dropped_name_again(spark: SparkSession, t: str, by: str) -> None:
    query = "SELECT CAST(id AS INT) AS a, CAST(id + 100 AS INT) AS b, id % 2 AS p FROM range(10)"
    made(spark, query, f"{by} COMMENT 'of ten'")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('k' = 'v')")
    spark.sql("ALTER TABLE t ALTER COLUMN b COMMENT 'one hundred more'")
    before = files_of(spark)
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert files_of(spark).isdisjoint(before)
    assert rows(spark, "SELECT c, b FROM t") == [(i, i + 100) for i in range(10)]
    assert rows(spark, "SELECT b FROM t WHERE c = 5") == [(105,)]
    assert properties(spark) == {"k": "v", "twophase.alter": "rewrite", "twophase.field_ids": "true"}
    assert "one hundred more" in str(spark.sql("DESCRIBE t").collect())
    described = {row.col_name: row.data_type for row in spark.sql("DESCRIBE EXTENDED t").collect()}
    assert (described["Comment"], described["Type"]) == ("of ten", "MANAGED")
    if by:
        assert len(spark.sql("SHOW PARTITIONS t").collect()) == 2

    before = files_of(spark)
    spark.sql("ALTER TABLE t RENAME COLUMN c TO a")  # It has ids now.
    spark.sql("ALTER TABLE t DROP COLUMN b")
    assert files_of(spark) == before
    spark.sql("ALTER TABLE t ADD COLUMN b INT DEFAULT 7")
    spark.sql("INSERT INTO t (a, b, p) VALUES (10, 8, 0)")
    spark.sql("INSERT INTO t (a, p) VALUES (11, 0)")
    assert rows(spark, "SELECT a FROM t WHERE b <> 7") == [(10,)]
    assert rows(spark, "SELECT a FROM t WHERE b = 7 AND p = 0 AND a > 6") == [(8,), (11,)]
    assert rows(spark, "SELECT a FROM t WHERE b > 100 OR b IS NULL") == []
    spark.sql("ALTER TABLE t DROP COLUMN b")
    spark.sql("ALTER TABLE t ADD COLUMN B STRING FIRST")
    assert spark.table("t").columns == ["B", "a", "p"]
    assert rows(spark, "SELECT count(*) FROM t WHERE b IS NULL") == [(12,)]
    if by:
        with pytest.raises(CatalogError, match="laid out by p"):
            spark.sql("ALTER TABLE t RENAME COLUMN p TO q")


@pytest.mark.promise("evolution", "a rewrite casts to another type as far as the policy of the table goes", detail=True)
def test_a_type_changes_as_far_as_the_policy_goes(spark: SparkSession, t: str) -> None:
    query = "SELECT CAST(id AS INT) AS a, CAST(id AS TINYINT) AS b, X'C3' AS c, DATE '2024-01-01' AS d FROM range(4)"
    made(spark, query)
    spark.sql("ALTER TABLE t ALTER COLUMN b TYPE DECIMAL(5,1)")
    assert rows(spark, "SELECT b FROM t WHERE b = 2.0") == [(2,)]
    with pytest.raises(CatalogError, match="wide"):
        spark.sql("ALTER TABLE t ALTER COLUMN a TYPE STRING")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'hudi')")
    spark.sql("ALTER TABLE t ALTER COLUMN a TYPE STRING")
    spark.sql("ALTER TABLE t ALTER COLUMN d TYPE STRING")
    spark.sql("INSERT INTO t VALUES ('x', 1, X'', 'y')")
    assert rows(spark, "SELECT a FROM t WHERE a >= '2'") == [("2",), ("3",), ("x",)]
    assert rows(spark, "SELECT DISTINCT d FROM t") == [("2024-01-01",), ("y",)]

    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'explicit')")
    before = (files_of(spark), spark.table("t").schema)
    with pytest.raises(Exception, match="A value of c is no string"):
        spark.sql("ALTER TABLE t ALTER COLUMN c TYPE STRING")
    spark.catalog.refreshTable("t")
    assert (files_of(spark), spark.table("t").schema) == before
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.on_cast_failure' = 'null')")
    spark.sql("ALTER TABLE t ALTER COLUMN c TYPE STRING")
    assert rows(spark, "SELECT c FROM t WHERE c IS NOT NULL") == [("",)]
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'whatever')")
    with pytest.raises(ConfigurationError, match=r"twophase\.promotion is exact or"):
        spark.sql("ALTER TABLE t RENAME COLUMN a TO z")
    with twophase.transaction(spark):
        spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'hudi')")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'whatever')")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'hudi')")


def test_structs_and_what_is_below_lists_are_renamed_and_other_types_pass(spark: SparkSession, t: str) -> None:
    made(
        spark,
        "SELECT id, named_struct('x', CAST(id AS INT), 'y', 1) AS s, array(named_struct('u', id, 'v', 2)) AS l, "
        "INTERVAL '1' DAY AS i, CAST('ab' AS VARCHAR(5)) AS w FROM range(3)",
    )
    spark.sql("ALTER TABLE t RENAME COLUMN s TO r")
    spark.sql("ALTER TABLE t RENAME COLUMN r.x TO z")
    spark.sql("ALTER TABLE t DROP COLUMN r.y")
    spark.sql("ALTER TABLE t ADD COLUMN r.y STRING FIRST")
    spark.sql("ALTER TABLE t RENAME COLUMN l.element.u TO q")
    spark.sql("ALTER TABLE t DROP COLUMN i")
    spark.sql("ALTER TABLE t ADD COLUMN i INTERVAL DAY AFTER id")
    assert rows(spark, "SELECT id, i, r.y, r.z, l[0].q, l[0].v, w FROM t WHERE r.z = 2 AND r.y IS NULL") == [
        (2, None, None, 2, 2, 2, "ab")
    ]
    assert rows(spark, "SELECT id FROM t WHERE l[0].q > 1") == [(2,)]
    assert dict(spark.sql("DESCRIBE t").select("col_name", "data_type").collect())["i"] == "interval day"


def test_a_table_stays_at_a_place_of_its_own_and_in_its_buckets(spark: SparkSession, t: str, tmp_path: Path) -> None:
    made(spark, "SELECT 1 AS a, 2 AS b", f"CLUSTERED BY (b) INTO 2 BUCKETS LOCATION '{tmp_path}/own'")
    spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    described = {row.col_name: row.data_type for row in spark.sql("DESCRIBE EXTENDED t").collect()}
    assert described["Location"].endswith("/own") and described["Type"] == "EXTERNAL"
    assert described["Num Buckets"] == "2"
    assert all("_0000" in name for name in files_of(spark))
    assert rows(spark, "SELECT c FROM t WHERE c = 1") == [(1,)]


def test_the_refusal_names_the_option(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.alter' = 'native')")
    with pytest.raises(CatalogError, match=r"'twophase\.alter' = 'rewrite'.*alter = rewrite"):
        spark.sql("ALTER TABLE t RENAME COLUMN a TO c")


@pytest.mark.promise(
    "evolution", "a block stages an ALTER TABLE that rewrites: its later statements see it, others after the commit"
)
@pytest.mark.parametrize("name", ["t", pytest.param("hive.default.t", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("by", ["", pytest.param("PARTITIONED BY (p)", marks=pytest.mark.exhaustive)])
def test_a_block_stages_a_rewrite(spark: SparkSession, t: str, name: str, by: str) -> None:
    made(spark, "SELECT 1 AS a, 1 AS b, 0 AS p", by)
    before, session = files_of(spark), spark.newSession()
    with pytest.raises(ZeroDivisionError), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN a TO c")
        assert spark.table("t").columns == ["c", "b", "p"]
        raise ZeroDivisionError
    assert (files_of(spark), spark.table("t").columns) == (before, ["a", "b", "p"])
    with twophase.transaction(spark) as block:
        block.savepoint("s")
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN a TO e")
        block.rollback_to("s")
        spark.sql(f"ALTER TABLE {name} RENAME COLUMN a TO c")
        spark.sql("INSERT INTO t VALUES (2, 2, 0)")
        spark.sql("ALTER TABLE t DROP COLUMN b")
        spark.sql("SELECT 3 AS c, 0 AS p").writeTo("t").append()
        assert rows(spark, "SELECT c, p FROM t WHERE c > 0") == [(1, 0), (2, 0), (3, 0)]
        assert session.table("t").columns == ["a", "b", "p"]
    assert rows(spark, "SELECT c, p FROM t WHERE c > 0") == [(1, 0), (2, 0), (3, 0)]
    assert files_of(spark).isdisjoint(before)


@pytest.mark.promise("evolution", "a rewrite in a block loses nothing of other writers: it is a conflict")
@pytest.mark.parametrize("isolation", ["read_committed", "snapshot"])
@pytest.mark.parametrize("other", ["INSERT INTO t VALUES (2)", "ALTER TABLE t SET TBLPROPERTIES ('k' = 'v')"])
def test_a_rewrite_in_a_block_loses_nothing_of_other_writers(
    spark: SparkSession, t: str, isolation: str, other: str
) -> None:
    made(spark, "SELECT 1 AS a")
    with ThreadPoolExecutor(1) as thread:
        with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation=isolation):
            spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
            spark.sql("INSERT INTO t VALUES (3)")
            thread.submit(spark.sql, other).result()
        is_insert = other.startswith("INSERT")
        if is_insert and isolation == "snapshot":
            with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation=isolation):
                thread.submit(spark.sql, other).result()
                spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert spark.table("t").columns == ["a"]
    times = is_insert * (2 if isolation == "snapshot" else 1)
    assert rows(spark, "SELECT a FROM t") == [(1,), *[(2,)] * times]
    if not is_insert:
        assert properties(spark)["k"] == "v"


def test_a_block_that_has_changed_the_table_before_does_not_rewrite_it(spark: SparkSession, t: str) -> None:
    made(spark, "SELECT 1 AS a")
    for first in ("INSERT INTO t VALUES (2)", "ALTER TABLE t SET TBLPROPERTIES ('k' = 'v')"):
        with pytest.raises(AtomicityNotSupportedError, match="before"), twophase.transaction(spark):
            spark.sql(first)
            spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert rows(spark, "SELECT a FROM t") == [(1,)]


INSERT, ALTER = "INSERT INTO t VALUES (2, 2)", "ALTER TABLE t ADD COLUMN d INT FIRST"
PROPERTY = "ALTER TABLE t SET TBLPROPERTIES ('k' = 'v')"


@pytest.mark.promise(
    "evolution", "a rewrite loses nothing that another writer does meanwhile, and a failed one changes nothing"
)
@pytest.mark.parametrize(
    ("other", "moment", "conflicts"),
    [
        (INSERT, "core.reserve", True),
        (INSERT, "planned", False),  # The rows are read after it.
        (ALTER, "planned", True),
        (ALTER, "core.publish", True),
        (PROPERTY, "hive.pointer.write", True),
    ],
)
def test_nothing_is_lost_that_another_writer_does_meanwhile(
    spark: SparkSession, t: str, other: str, moment: str, conflicts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(spark, "SELECT 1 AS a, 1 AS b")
    session, plan = spark.newSession(), HiveCatalog.plan_rewrite
    done: list[str] = []

    def interfere(_: str) -> None:
        if not done:
            done.append(other)
            session.sql(other)

    def planned(*arguments: Any) -> Rewrite | None:
        found = plan(*arguments)
        interfere(moment)
        return found

    if moment == "planned":
        monkeypatch.setattr(HiveCatalog, "plan_rewrite", planned)
    else:
        failpoints.arm(moment, interfere)
    with pytest.raises(WriteConflictError) if conflicts else nullcontext():
        spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    failpoints.disarm()
    assert done
    new = ["d"] if other is ALTER else []
    if conflicts:
        spark.catalog.refreshTable("t")
        assert spark.table("t").columns == [*new, "a", "b"]
        spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    assert spark.table("t").columns == [*new, "c", "b"]
    assert rows(spark, "SELECT c FROM t WHERE c > 0") == [(1,), (2,)][: 1 + (other is INSERT)]


@pytest.mark.parametrize("moment", ["core.begin", "core.publish"])
def test_a_failure_in_the_middle_leaves_the_table_as_it_was(spark: SparkSession, t: str, moment: str) -> None:
    made(spark, "SELECT 1 AS a, 1 AS p", "PARTITIONED BY (p)")
    before = files_of(spark)
    failpoints.arm(moment, "error")
    with pytest.raises(Exception, match=moment) as failed:
        spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
    failpoints.disarm()
    assert isinstance(failed.value, (TwoPhaseError, failpoints.FailpointError))
    assert files_of(spark) == before
    assert rows(spark, "SELECT a FROM t WHERE a = 1") == [(1,)]


def test_the_options_of_the_catalog_are_for_all_tables_that_have_no_such_property(spark: SparkSession, t: str) -> None:
    options = {"field_ids": "true", "alter": "rewrite", "promotion": "explicit", "on_cast_failure": "null"}
    twophase.attach(spark).detach()
    for name, value in options.items():
        spark.conf.set(f"spark.sql.catalog.hive.{name}", value)
    twophase.attach(spark)
    try:
        spark.sql("CREATE TABLE t USING parquet AS SELECT 1 AS a, X'C3' AS b")
        before = files_of(spark)
        spark.sql("ALTER TABLE t RENAME COLUMN a TO c")
        assert files_of(spark) == before
        spark.sql("ALTER TABLE t ALTER COLUMN b TYPE STRING")
        assert rows(spark, "SELECT c, b FROM t WHERE c = 1") == [(1, None)]
        spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'exact')")
        with pytest.raises(CatalogError, match="policy 'exact'"):
            spark.sql("ALTER TABLE t ALTER COLUMN c TYPE STRING")
        spark.sql("ALTER TABLE t SET TBLPROPERTIES ('twophase.promotion' = 'hudi', 'twophase.alter' = 'native')")
        with pytest.raises(CatalogError, match=r"'twophase\.alter' = 'rewrite'"):
            spark.sql("ALTER TABLE t ALTER COLUMN c TYPE STRING")
    finally:
        twophase.attach(spark).detach()
        for name in options:
            spark.conf.unset(f"spark.sql.catalog.hive.{name}")
        twophase.attach(spark)


def test_a_rewrite_keeps_the_default_collation_of_the_table(spark: SparkSession, t: str) -> None:
    chosen = "TBLPROPERTIES ('twophase.alter' = 'rewrite')"
    spark.sql(f"CREATE TABLE t (id INT, s STRING) USING parquet DEFAULT COLLATION UTF8_LCASE {chosen}")
    spark.sql("INSERT INTO t VALUES (1, 'x')")
    spark.sql("ALTER TABLE t RENAME COLUMN id TO k")
    spark.sql("ALTER TABLE t SET TBLPROPERTIES ('a' = 'b')")
    described = {row[0]: row[1] for row in spark.sql("DESCRIBE TABLE EXTENDED t").collect()}
    assert described["Collation"] == "UTF8_LCASE"
    assert "collation" not in {row[0] for row in spark.sql("SHOW TBLPROPERTIES t").collect()}
    assert [tuple(row) for row in spark.sql("SELECT k FROM t WHERE s = 'X'").collect()] == [(1,)]
