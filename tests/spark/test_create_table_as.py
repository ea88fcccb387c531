"""``create_table_as``: the rows fit the table or nothing begins, alone and in a block, in every store."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, SparkRuntimeException
from pyspark.sql import DataFrame, SparkSession

import twophase
from tests.spark.conftest import Start
from twophase import Purpose, Transaction, TransactionState
from twophase.errors import (
    CatalogError,
    ConfigurationError,
    TableAlreadyExistsError,
    TableNotExistError,
    WriteConflictError,
)
from twophase.hooks import JobStatus, JobStatusHook
from twophase.model import ObjectPath, OverwriteScope
from twophase.spark import assignment

#: Each store: the catalog's name, and a database of it.
STORES = {"hive": "default", "jdbc": "main", "lakehouse": "db"}
INSERTS = (Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE)


@dataclass
class Store:
    """One catalog of the session."""

    spark: SparkSession
    name: str
    database: str

    def sql(self, text: str) -> DataFrame:
        return self.spark.sql(text.replace("@", f"{self.name}.{self.database}."))

    def write(self, rows: DataFrame | str, table: str, purpose: Purpose, **facts: Any) -> Transaction | None:
        frame = self.sql(rows) if isinstance(rows, str) else rows
        return twophase.create_table_as(frame, self.name, (self.database, table), purpose=purpose, **facts)

    def insert(self, rows: DataFrame | str, table: str, **facts: Any) -> Transaction | None:
        return self.write(rows, table, Purpose.INSERT_INTO, **facts)

    def rows(self, table: str) -> list[tuple[Any, ...]]:
        return sorted((tuple(row) for row in self.sql(f"SELECT * FROM @{table}").collect()), key=str)

    def began(self) -> int:
        """Transactions that have staged anything."""
        return len(twophase.attach(self.spark).timeline.transactions())


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores")


@pytest.fixture(scope="module")
def spark(start: Start, root: Path) -> SparkSession:
    conf = {
        "spark.sql.catalog.jdbc": "twophase.jdbc",
        "spark.sql.catalog.jdbc.url": f"sqlite:///{root / 'shop.db'}",
        "spark.sql.catalog.lakehouse": "twophase.lakehouse",
    }
    session = start(conf)
    twophase.attach(session).catalog("lakehouse").create_database("db")
    return session


def store_of(spark: SparkSession, name: str) -> Iterator[Store]:
    store = Store(spark, name, STORES[name])
    yield store
    for row in store.sql(f"SHOW TABLES IN {name}.{store.database}").collect():
        store.sql(f"DROP TABLE @`{row.tableName}`")


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, spark: SparkSession) -> Iterator[Store]:
    """Each of the stores, and afterwards without tables."""
    yield from store_of(spark, request.param)


@pytest.fixture
def hive(spark: SparkSession) -> Iterator[Store]:
    yield from store_of(spark, "hive")


@pytest.fixture
def jdbc(spark: SparkSession) -> Iterator[Store]:
    yield from store_of(spark, "jdbc")


@pytest.fixture
def lakehouse(spark: SparkSession) -> Iterator[Store]:
    yield from store_of(spark, "lakehouse")


# -- the purposes ------------------------------------------------------------------------------------------------------


def test_each_purpose_in_each_store(store: Store) -> None:
    made = store.write("SELECT 1 AS id", "t", Purpose.CREATE_TABLE_AS)
    assert made is not None and made.state is TransactionState.COMPLETED
    assert store.write("SELECT 2 AS id", "t", Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS) is None
    with pytest.raises(TableAlreadyExistsError):
        store.write("SELECT 2 AS id", "t", Purpose.CREATE_TABLE_AS)
    store.insert("SELECT 2 AS id", "t")
    assert store.rows("t") == [(1,), (2,)]
    store.write("SELECT 3 AS id", "t", Purpose.INSERT_OVERWRITE)
    assert store.rows("t") == [(3,)]
    store.write("SELECT 'x' AS name", "t", Purpose.REPLACE_TABLE_AS)
    assert store.rows("t") == [("x",)]
    store.write("SELECT 4L AS id", "t", Purpose.CREATE_OR_REPLACE_TABLE_AS)
    assert store.rows("t") == [(4,)]
    with pytest.raises(TableNotExistError):
        store.insert("SELECT 1 AS id", "none")


@pytest.mark.parametrize("purpose", INSERTS)
def test_a_failing_job_leaves_the_table_as_it_was(store: Store, purpose: Purpose) -> None:
    store.sql("CREATE TABLE @t AS SELECT 1 AS id")
    for value in ("CAST(raise_error('wrong') AS INT)", "raise_error('wrong')"):
        with pytest.raises(SparkRuntimeException, match="wrong"):
            store.write(f"SELECT {value} AS id", "t", purpose)
    with pytest.raises(SparkRuntimeException, match="wrong"):
        store.write("SELECT CAST(raise_error('wrong') AS INT) AS id", "u", Purpose.CREATE_TABLE_AS)
    assert store.rows("t") == [(1,)]
    assert [row.tableName for row in store.sql(f"SHOW TABLES IN {store.name}.{store.database}").collect()] == ["t"]


def test_only_the_partitions_of_the_scope_are_overwritten(hive: Store) -> None:
    hive.sql("CREATE TABLE @t PARTITIONED BY (day) AS SELECT id AS n, id AS day FROM range(2)")
    hive.write("SELECT 1 AS day, 7 AS n", "t", Purpose.INSERT_OVERWRITE, overwrite=OverwriteScope(dynamic=True))
    assert hive.rows("t") == [(0, 0), (7, 1)]


@pytest.mark.parametrize("name", ["a.b", "a`b", "a b", "größe"])
def test_a_column_may_have_a_name_with_any_character(jdbc: Store, name: str) -> None:
    quoted = name.replace("`", "``")
    jdbc.sql(f"CREATE TABLE @t AS SELECT 1 AS `{quoted}`, 'x' AS b")
    jdbc.insert(f"SELECT 'y' AS b, 2 AS `{quoted}`", "t")
    assert jdbc.rows("t") == [(1, "x"), (2, "y")]


@pytest.mark.parametrize("name", ["a``b", "..", "a.b", "größe"])
def test_a_name_that_the_session_catalog_cannot_hold_is_refused_in_sparks_words(hive: Store, name: str) -> None:
    before = hive.began()
    with pytest.raises(PySparkException, match="is not a valid name"):
        hive.spark.sql(f"CREATE TABLE `{name}` AS SELECT raise_error('ran') AS a")
    assert hive.began() == before


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"df": "SELECT 1"}, "df, a DataFrame"),
        ({"catalog": None}, "catalog, a Catalog"),
        ({"catalog": "hvie"}, "Did you mean hive"),
        ({"path": None}, "names no table"),
        ({"path": b"default.t"}, "names no table"),
        ({"path": ("default", b"t")}, "names no table"),
        ({"path": ()}, "names no table"),
        ({"purpose": "create_table_as"}, "purpose, a Purpose"),
        ({"partitioned_by": [1]}, "partitioned_by, names"),
        ({"properties": {"a": 1}}, "properties and options"),
        ({"options": "a=1"}, "properties and options"),
        ({"comment": 5}, "comment and location, texts"),
        ({"location": ""}, "location, which is not empty"),
        ({"transaction": "t"}, "transaction, a Transaction"),
        ({"hooks": 5}, "5 is no JobStatusHook"),
        ({"hooks": [JobStatusHook]}, "is no JobStatusHook"),
    ],
)
def test_an_argument_of_another_type_is_named_and_nothing_begins(
    hive: Store, facts: dict[str, Any], words: str
) -> None:
    before = hive.began()
    given = {"df": hive.sql("SELECT raise_error('ran') AS a"), "catalog": "hive", "path": "default.t"} | facts
    with pytest.raises(ConfigurationError, match=words):
        twophase.create_table_as(**given)
    assert hive.began() == before


def test_what_is_no_hook_is_refused_by_attach_and_by_a_block(spark: SparkSession) -> None:
    hook: Any = "Log"
    with pytest.raises(ConfigurationError, match="no JobStatusHook"):
        twophase.attach(spark, hooks=[hook])
    with pytest.raises(ConfigurationError, match="no JobStatusHook"), twophase.transaction(spark, hooks=[hook]):
        pytest.fail("it began")


def test_a_single_partition_column_needs_no_list(hive: Store) -> None:
    hive.write("SELECT 1 AS id, 2 AS day", "t", Purpose.CREATE_TABLE_AS, partitioned_by="day")
    assert hive.rows("t") == [(1, 2)]


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("create-table-as", "rows of another type than the table's are refused before anything begins")
@pytest.mark.parametrize("purpose", INSERTS)
@pytest.mark.parametrize(
    ("column", "value", "given"),
    [
        ("INT", "5000000000L", "bigint"),
        ("INT", "'1'", "string"),
        ("STRING", "1", "int"),
        ("DECIMAL(10, 2)", "CAST(1 AS DECIMAL(10, 3))", "decimal(10,3)"),
        ("FLOAT", "1.5D", "double"),
        ("DATE", "TIMESTAMP_NTZ '2026-01-01 10:00:00'", "timestamp_ntz"),
    ],
)
def test_rows_of_another_type_are_refused_before_anything_begins(
    store: Store, purpose: Purpose, column: str, value: str, given: str
) -> None:
    store.sql(f"CREATE TABLE @t (n {column})")
    before = store.began()
    with pytest.raises(CatalogError) as caught:
        store.write(f"SELECT {value} AS n", "t", purpose)
    text = str(caught.value)
    assert text.startswith(f"Column n of {store.database}.t is ") and f"the rows have {given}" in text
    assert "Nothing was started." in text and "Cast it: df.withColumn('n', df['n'].cast(" in text
    assert store.began() == before
    assert store.rows("t") == []


def test_what_fits_without_loss_is_cast(store: Store) -> None:
    store.sql("CREATE TABLE @t (n BIGINT, f DOUBLE, d DECIMAL(20, 2), t TIMESTAMP_NTZ, s STRING)")
    store.insert(
        "SELECT 'x' AS s, 1 AS N, CAST(1.5 AS FLOAT) AS f, CAST(3 AS SMALLINT) AS d, DATE '2026-01-02' AS t", "t"
    )
    store.insert("SELECT NULL AS s, NULL AS n, NULL AS f, NULL AS d, NULL AS t", "t")
    shown = store.sql("SELECT n, f, CAST(d AS STRING), CAST(t AS STRING), s FROM @t WHERE n = 1").collect()
    assert [tuple(row) for row in shown] == [(1, 1.5, "3.00", "2026-01-02 00:00:00", "x")]
    assert (None,) * 5 in store.rows("t")


def test_the_same_holds_below_structs_lists_and_maps(lakehouse: Store) -> None:
    lakehouse.sql("CREATE TABLE @t (s STRUCT<a: BIGINT, b: ARRAY<DOUBLE>>, m MAP<STRING, BIGINT>)")
    lakehouse.insert("SELECT named_struct('b', array(1.5F), 'a', 1) AS s, map('k', 2) AS m", "t")
    lakehouse.insert("SELECT named_struct('a', 1L, 'b', array()) AS s, NULL AS m", "t")
    assert lakehouse.rows("t") == [(((1, [1.5])), {"k": 2}), ((1, []), None)]
    for wrong in ("named_struct('a', 'x', 'b', array(1D))", "named_struct('a', 1)", "array(1)"):
        with pytest.raises(CatalogError, match=r"Column s of db\.t is struct<a:bigint,b:array<double>>"):
            lakehouse.insert(f"SELECT {wrong} AS s, NULL AS m", "t")
    with pytest.raises(CatalogError, match=r"\(m\.value is long, and double in the rows\)"):
        lakehouse.insert("SELECT NULL AS s, map('k', 1D) AS m", "t")


@pytest.mark.parametrize(
    ("column", "right", "wrong"),
    [
        ("INTERVAL YEAR TO MONTH", "INTERVAL '1-2' YEAR TO MONTH", "14"),
        ("INTERVAL DAY TO SECOND", "INTERVAL '1 0:0:0' DAY TO SECOND", "INTERVAL '1' MONTH"),
        ("VARIANT", "parse_json('1')", "named_struct('value', X'01', 'metadata', X'01')"),
        ("INT", "1", "INTERVAL '1' MONTH"),
    ],
)
def test_types_that_share_one_of_arrow_are_not_taken_for_each_other(
    hive: Store, column: str, right: str, wrong: str
) -> None:
    hive.sql(f"CREATE TABLE @t (c {column})")
    with pytest.raises(CatalogError, match=r"Column c of default\.t is "):
        hive.insert(f"SELECT {wrong} AS c", "t")
    hive.insert(f"SELECT {right} AS c", "t")
    hive.insert("SELECT NULL AS c", "t")
    assert hive.sql("SELECT count(*), count_if(c IS NULL) FROM @t").first() == (2, 1)


def test_texts_are_as_long_as_char_and_varchar_let_them(hive: Store) -> None:
    hive.sql("CREATE TABLE @t (c CHAR(4), v VARCHAR(3))")
    hive.insert("SELECT 'ab' AS c, 'abc   ' AS v", "t")
    hive.insert("SELECT NULL AS c, NULL AS v", "t")
    for wrong in ("'abcde' AS c, 'a' AS v", "'a' AS c, 'abcd' AS v"):
        with pytest.raises(SparkRuntimeException, match="is longer than"):
            hive.insert(f"SELECT {wrong}", "t")
    assert hive.rows("t") == [("ab  ", "abc"), (None, None)]
    hive.sql("CREATE TABLE @nested (a ARRAY<CHAR(4)>)")
    with pytest.raises(CatalogError, match="char or varchar inside another type"):
        hive.insert("SELECT array('a') AS a", "nested")


def test_null_in_a_not_null_column_is_the_jobs_error(jdbc: Store, lakehouse: Store, root: Path) -> None:
    with sqlite3.connect(root / "shop.db") as connection:
        connection.execute("CREATE TABLE t (n INTEGER NOT NULL)")
    connection.close()
    lakehouse.sql("CREATE TABLE @t (n BIGINT NOT NULL)")
    for store in (jdbc, lakehouse):
        store.insert("SELECT IF(id > 5, NULL, id) AS n FROM range(2)", "t")
        with pytest.raises(PySparkException, match="n is NOT NULL, and a row holds NULL there"):
            store.insert("SELECT IF(id > 0, NULL, id) AS n FROM range(2)", "t")
        assert store.rows("t") == [(0,), (1,)]


def test_columns_are_found_by_name_and_all_are_needed(store: Store) -> None:
    store.sql("CREATE TABLE @t (a INT, `b c` INT)")
    store.insert("SELECT 2 AS `B C`, 1 AS A", "t")
    assert store.rows("t") == [(1, 2)]
    with pytest.raises(CatalogError, match=r"missing \['b c'\], unknown \['d'\]"):
        store.insert("SELECT 1 AS a, 2 AS d", "t")
    with pytest.raises(CatalogError, match="more than one column of the name a"):
        store.insert("SELECT 1 AS a, 2 AS a, 3 AS `b c`", "t")


@pytest.mark.promise(
    "create-table-as", "rows go into no other columns than those that they were put in order for", detail=True
)
def test_rows_go_into_no_other_columns_than_those_that_they_were_put_in_order_for(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.sql("CREATE TABLE @t AS SELECT 1 AS a, 2 AS b")
    fitted = assignment.fitted

    def replace_first(*facts: Any) -> DataFrame:
        store.write("SELECT 4 AS b, 3 AS a", "t", Purpose.REPLACE_TABLE_AS)
        return fitted(*facts)

    monkeypatch.setattr("twophase.spark.create_table_as.fitted", replace_first)
    with pytest.raises(WriteConflictError, match=r"t was not written.* from a, b to b, a"):
        store.insert("SELECT 8 AS b, 7 AS a", "t")
    monkeypatch.undo()
    assert store.rows("t") == [(4, 3)]
    store.insert("SELECT 7 AS a, 8 AS b", "t")
    assert store.rows("t") == [(4, 3), (8, 7)]


def test_a_table_that_takes_any_schema_follows_the_rows(lakehouse: Store) -> None:
    lakehouse.sql(
        "CREATE TABLE @t TBLPROPERTIES ('write.spark.accept-any-schema' = 'true') AS SELECT 1 AS n, 'x' AS name"
    )
    lakehouse.insert("SELECT 5000000000L AS n, 'new' AS more", "t")
    assert lakehouse.rows("t") == [(1, None, "x"), (5000000000, "new", None)]


# -- in a block --------------------------------------------------------------------------------------------------------


def test_a_table_that_was_staged_is_there_for_later_statements(store: Store) -> None:
    with twophase.transaction(store.spark):
        store.sql("CREATE TABLE @t AS SELECT 1 AS id")
        assert store.write("SELECT 2 AS id", "t", Purpose.CREATE_TABLE_AS_IF_NOT_EXISTS) is None
        with pytest.raises(TableAlreadyExistsError):
            store.write("SELECT 2 AS id", "t", Purpose.CREATE_TABLE_AS)
        store.insert("SELECT 3 AS id", "t")
        assert store.rows("t") == [(1,), (3,)]
    assert store.rows("t") == [(1,), (3,)]


def test_an_insert_has_the_columns_of_the_staged_table(store: Store) -> None:
    store.sql("CREATE TABLE @t AS SELECT 1L AS a, 2L AS b")
    with twophase.transaction(store.spark):
        store.sql("CREATE OR REPLACE TABLE @t AS SELECT 20L AS b, 10L AS a, 'x' AS more")
        store.insert("SELECT 11 AS a, 21 AS b, 'y' AS more", "t")
        with pytest.raises(CatalogError, match=r"missing \['more'\]"):
            store.insert("SELECT 12 AS a, 22 AS b", "t")
    assert store.rows("t") == [(20, 10, "x"), (21, 11, "y")]


def test_sql_after_it_has_the_columns_that_it_staged(store: Store) -> None:
    with twophase.transaction(store.spark):
        store.write("SELECT 1 AS a, 'x' AS b", "t", Purpose.CREATE_OR_REPLACE_TABLE_AS)
        store.sql("INSERT INTO @t (b, a) SELECT 'y', 2")
        store.write("SELECT b, a + 10 AS a FROM @t", "t", Purpose.INSERT_OVERWRITE)
    assert store.rows("t") == [(11, "x"), (12, "y")]


@pytest.mark.promise("immediate-effects", "a refused `create_table_as` that is caught leaves the block as it was")
def test_a_refused_insert_that_is_caught_leaves_the_block_as_it_was(store: Store) -> None:
    store.sql("CREATE TABLE @t AS SELECT 1 AS id")
    with twophase.transaction(store.spark) as tx:
        store.sql("CREATE TABLE @other AS SELECT 1 AS id")
        store.insert("SELECT 2 AS id", "t")
        for wrong in ("1 AS id, 2 AS id", "1 AS id, 2 AS more", "'x' AS id"):
            with pytest.raises(CatalogError):
                store.insert(f"SELECT {wrong}", "t")
        with pytest.raises(SparkRuntimeException, match="wrong"):
            store.insert("SELECT CAST(raise_error('wrong') AS INT) AS id", "t")
        assert store.rows("t") == [(1,), (2,)]
    assert tx.state is TransactionState.COMPLETED
    assert (store.rows("t"), store.rows("other")) == ([(1,), (2,)], [(1,)])


def test_the_hooks_of_a_block_are_called(hive: Store) -> None:
    class Names(JobStatusHook):
        def __init__(self) -> None:
            self.finished: list[str] = []

        def on_finished(self, job: JobStatus) -> None:
            self.finished.append(job.path)

    names, own = Names(), Names()
    with twophase.transaction(hive.spark, hooks=[names]):
        hive.write("SELECT 1 AS id", "t", Purpose.CREATE_TABLE_AS, hooks=[own])
    assert names.finished == own.finished == ["hive.default.t"]


def test_what_is_cached_stays_cached_and_shows_the_new_rows(hive: Store) -> None:
    hive.sql("CREATE TABLE @t AS SELECT 1 AS id")
    hive.spark.table("t").cache().count()
    hive.insert("SELECT 2 AS id", "t")
    assert hive.spark.catalog.isCached("t")
    assert sorted(row.id for row in hive.spark.table("t").collect()) == [1, 2]


# -- arguments ---------------------------------------------------------------------------------------------------------


def test_columns_of_a_new_table_may_be_null_as_in_sql(store: Store) -> None:
    rows = store.spark.range(1)
    assert not rows.schema["id"].nullable
    store.write(rows, "t", Purpose.CREATE_TABLE_AS)
    store.insert("SELECT CAST(NULL AS BIGINT) AS id", "t")
    assert store.rows("t") == [(0,), (None,)]


@pytest.mark.parametrize(
    "facts",
    [
        {"provider": "orc"},
        {"partitioned_by": ["id"]},
        {"properties": {"k": "v"}},
        {"options": {"compression": "zstd"}},
        {"comment": "c"},
        {"location": "/nowhere"},
        {"overwrite": OverwriteScope(dynamic=True)},
    ],
    ids=lambda facts: next(iter(facts)),
)
def test_an_insert_refuses_what_only_a_new_table_needs(hive: Store, facts: dict[str, Any]) -> None:
    hive.write("SELECT 1L AS id", "t", Purpose.CREATE_TABLE_AS)
    began = hive.began()
    with pytest.raises(ConfigurationError, match=f"of default.t has no use for {next(iter(facts))}="):
        hive.insert("SELECT 2L AS id", "t", **facts)
    assert (hive.began(), hive.rows("t")) == (began, [(1,)])


# -- without an attached session ---------------------------------------------------------------------------------------


def test_statements_of_a_transaction_that_was_begun_by_hand_see_each_other(hive: Store) -> None:
    handle = twophase.attach(hive.spark)
    facts: Any = {"coordinator": handle.coordinator, "transaction": handle.coordinator.begin()}
    catalog, path = handle.catalog("hive"), ObjectPath.of("default", "t")
    twophase.create_table_as(hive.sql("SELECT 1L AS id"), catalog, path, **facts)
    twophase.create_table_as(hive.sql("SELECT 2 AS id"), catalog, path, purpose=Purpose.INSERT_INTO, **facts)
    assert not catalog.table_exists(path)
    facts["transaction"].commit()
    assert hive.rows("t") == [(1,), (2,)]
