"""The user's answer to a conflict: a function that merges the rows of both sides, at the end of the block."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import coalesce, col, lit

import twophase
from tests.isolation.places import session
from twophase.errors import CatalogError, ConfigurationError, WriteConflictError
from twophase.model import Purpose
from twophase.transactions.merging import Merging

#: The database of each store, and the clause of a counter table there.
STORES = {
    "session": ("default", "USING parquet"),
    "partitioned": ("default", "USING parquet PARTITIONED BY (id)"),
    "lakehouse": ("ice.db", ""),
    "postgresql": ("pg.hermitage", ""),
}
ADD = "INSERT OVERWRITE {} SELECT value + {}, id FROM {}"

Counters = Callable[[str], str]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("merge")


@pytest.fixture(scope="module")
def spark(directory: Path, postgresql: Any) -> Iterator[SparkSession]:
    with session(directory, {"pg": postgresql}) as found:
        yield found


@pytest.fixture(scope="module")
def other(spark: SparkSession) -> SparkSession:
    return spark.newSession()


@pytest.fixture
def counters(spark: SparkSession, request: pytest.FixtureRequest) -> Counters:
    """Makes a table of two counters in a store, for this test only."""

    def make(store: str) -> str:
        database, clause = STORES.get(store, ("lite.main", ""))
        name = f"{database}.counters_{abs(hash(request.node.name)) % 10**8}"
        spark.sql(f"CREATE TABLE {name} {clause} AS SELECT 10 AS value, id FROM VALUES (1), (2) AS t(id)")
        return name

    return make


def add(before: DataFrame, mine: DataFrame, theirs: DataFrame) -> DataFrame:
    """Both increments."""
    old = before.select("id", col("value").alias("old"))
    own = mine.select("id", col("value").alias("own"))
    both = theirs.join(old, "id", "left").join(own, "id", "left")
    return both.select((col("value") + coalesce(col("own") - col("old"), lit(0))).alias("value"), "id")


def beside(session: SparkSession, *statements: str) -> None:
    """Run statements in another session, on a thread of its own."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            for statement in statements:
                session.sql(statement)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors, errors


def rows(session: SparkSession, table: str) -> list[tuple[int, int]]:
    return sorted((row.id, row.value) for row in session.sql(f"SELECT id, value FROM {table}").collect())


@pytest.mark.promise("merge", "the rows of a user's merge are published instead of a refusal")
@pytest.mark.parametrize("late", [False, True], ids=["early", "late"])
@pytest.mark.parametrize("store", STORES)
def test_two_increments_of_a_counter_merge_to_both(
    spark: SparkSession, other: SparkSession, counters: Counters, store: str, late: bool
) -> None:
    table = counters(store)
    seen: list[list[list[int]]] = []

    def merge(*states: DataFrame) -> DataFrame:
        seen.append([sorted(row.value for row in state.collect()) for state in states])
        return add(*states)

    with twophase.transaction(spark, merge=merge):
        assert rows(spark, table) == [(1, 10), (2, 10)]
        if late:
            beside(other, ADD.format(table, 5, table))
        spark.sql(ADD.format(table, 1, table))
        assert rows(spark, table) == [(1, 11), (2, 11)]
        if not late:
            beside(other, ADD.format(table, 2, table), ADD.format(table, 3, table))
    assert seen == [[[10, 10], [11, 11], [15, 15]]]
    assert rows(spark, table) == rows(other, table) == [(1, 16), (2, 16)]


@pytest.mark.promise(
    "merge", "a conflict to which a merge has no answer, or an error, leaves nothing of the block", detail=True
)
def test_a_block_whose_merge_has_no_answer_is_refused(
    spark: SparkSession, other: SparkSession, counters: Counters
) -> None:
    first, second = counters("session"), counters("lakehouse")

    def attempt(merge: Any) -> None:
        with twophase.transaction(spark, merge=merge):
            spark.sql(ADD.format(second, 1, second))
            spark.sql(ADD.format(first, 1, first))
            beside(other, ADD.format(first, 10, first))

    with pytest.raises(WriteConflictError, match="has changed since it began; nothing was published"):
        attempt(lambda before, mine, theirs: None)
    with pytest.raises(ZeroDivisionError):
        attempt(lambda before, mine, theirs: 1 / 0)
    with pytest.raises(ConfigurationError, match="merge returned int"):
        attempt(lambda before, mine, theirs: 1)
    with pytest.raises(CatalogError, match=r"missing \['value'\]"):
        attempt(lambda before, mine, theirs: mine.select("id"))
    with pytest.raises(WriteConflictError):
        attempt({second: add})
    assert rows(spark, second) == [(1, 10), (2, 10)]
    attempt({second: lambda *states: None, first: add})
    assert (rows(spark, first), rows(spark, second)) == ([(1, 71), (2, 71)], [(1, 11), (2, 11)])


def test_a_partition_that_both_have_overwritten_is_merged_with_the_others_partitions(
    spark: SparkSession, other: SparkSession, counters: Counters
) -> None:
    table = counters("partitioned")
    overwrite = f"INSERT OVERWRITE {table} PARTITION (id = {{}}) SELECT {{}}"
    with twophase.transaction(spark, merge=add):
        spark.sql(overwrite.format(1, 11))
        beside(other, overwrite.format(2, 30))
    assert rows(spark, table) == [(1, 11), (2, 30)]  # No conflict: nothing was asked.
    with twophase.transaction(spark, merge=add):
        spark.sql(overwrite.format(1, 13))
        beside(other, overwrite.format(2, 50), overwrite.format(1, 100), f"INSERT INTO {table} VALUES (7, 3)")
    assert rows(spark, table) == [(1, 102), (2, 50), (3, 7)]


def test_a_replaced_table_is_merged_and_keeps_what_the_block_has_made_of_it(
    spark: SparkSession, other: SparkSession, counters: Counters
) -> None:
    table = counters("lakehouse")
    replace = f"REPLACE TABLE {table} TBLPROPERTIES ('by' = '{{}}') AS SELECT value + {{}} AS value, id FROM {table}"
    with twophase.transaction(spark, merge=add):
        spark.sql(replace.format("us", 1))
        beside(other, replace.format("them", 2))
    assert rows(spark, table) == [(1, 13), (2, 13)]
    assert ("by", "us") in [tuple(row) for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()]


def test_what_another_program_has_committed_is_merged(spark: SparkSession, directory: Path, counters: Counters) -> None:
    table = counters("lakehouse")
    for late in (False, True):
        with twophase.transaction(spark, merge=add):
            assert len(rows(spark, table)) == 2 + late
            if late:
                append_past_twophase(directory, table, 4)
            spark.sql(ADD.format(table, 1, table))
            if not late:
                append_past_twophase(directory, table, 3)
    assert rows(spark, table) == [(1, 12), (2, 12), (3, 8), (4, 7)]


@pytest.mark.promise(
    "merge", "rows that were read before the block, of a state that it does not see, replace nothing", detail=True
)
@pytest.mark.parametrize(
    "write",
    [
        lambda df, table: df.write.insertInto(table, overwrite=True),
        lambda df, table: df.writeTo(table).createOrReplace(),
        lambda df, table: df.writeTo(table).overwrite(col("id") > 0),
        lambda df, table: twophase.create_table_as(df, "ice", table.split(".")[1:], purpose=Purpose.INSERT_OVERWRITE),
    ],
    ids=["insert", "replace", "condition", "create_table_as"],
)
def test_rows_that_were_read_before_a_block_are_those_that_it_sees(
    spark: SparkSession, other: SparkSession, counters: Counters, write: Any
) -> None:
    table = counters("lakehouse")
    old = spark.table(table).selectExpr("value + 0 AS value", "id")  # Spark itself looks a bare table up again.
    beside(other, ADD.format(table, 5, table))
    with pytest.raises(WriteConflictError), twophase.transaction(spark, merge=add):
        write(old, table)
    assert rows(other, table) == [(1, 15), (2, 15)]
    before = spark.table(table).selectExpr("value + 1 AS value", "id")
    with twophase.transaction(spark, merge=add):
        write(before, table)
        beside(other, ADD.format(table, 2, table))
    assert rows(spark, table) == [(1, 18), (2, 18)]


def test_rows_that_a_block_has_read_are_merged_however_they_are_written(
    spark: SparkSession, other: SparkSession, counters: Counters
) -> None:
    table = counters("lakehouse")
    with twophase.transaction(spark, merge=add):
        mine = spark.table(table).selectExpr("value + 1 AS value", "id")
        beside(other, ADD.format(table, 5, table))
        twophase.create_table_as(mine, "ice", table.split(".")[1:], purpose=Purpose.INSERT_OVERWRITE)
    assert rows(spark, table) == [(1, 16), (2, 16)]


def append_past_twophase(directory: Path, table: str, number: int) -> None:
    with SqlCatalog(
        "ice", uri=f"sqlite:///{directory}/lake/iceberg_catalog.db", warehouse=f"file://{directory}/lake"
    ) as lake:
        found = lake.load_table(table.removeprefix("ice."))
        found.append(pa.table({"value": [7], "id": [number]}, schema=found.schema().as_arrow()))


def test_a_serializable_block_merges_what_it_has_not_read(
    spark: SparkSession, other: SparkSession, counters: Counters
) -> None:
    table = counters("session")
    asked: list[None] = []

    def merge(*states: DataFrame) -> DataFrame:
        asked.append(None)
        return add(*states)

    with twophase.transaction(spark, isolation="serializable", merge=merge):
        spark.sql(f"INSERT OVERWRITE {table} VALUES (11, 1), (11, 2)")
        beside(other, ADD.format(table, 5, table))
    assert rows(spark, table) == [(1, 16), (2, 16)]
    with (
        pytest.raises(WriteConflictError, match="reads table"),
        twophase.transaction(spark, isolation="serializable", merge=merge),
    ):
        spark.sql(ADD.format(table, 1, table))
        beside(other, ADD.format(table, 5, table))
    assert (rows(spark, table), len(asked)) == ([(1, 21), (2, 21)], 1)


@pytest.mark.parametrize("store", ["session", "lakehouse"])
def test_a_statement_whose_rows_cannot_be_kept_for_a_merge_changes_nothing(
    spark: SparkSession, counters: Counters, monkeypatch: pytest.MonkeyPatch, store: str
) -> None:
    table = counters(store)

    def fail(*_: Any) -> None:
        raise CatalogError("the store does not answer")

    with twophase.transaction(spark, merge=add):
        with monkeypatch.context() as patched, pytest.raises(CatalogError, match="does not answer"):
            patched.setattr(Merging, "keep_rows", fail)
            spark.sql(ADD.format(table, 1, table))
        assert rows(spark, table) == [(1, 10), (2, 10)]
        spark.sql(ADD.format(table, 2, table))
    assert rows(spark, table) == [(1, 12), (2, 12)]


def test_where_no_former_state_is_kept_the_refusal_says_that_nothing_was_asked(
    spark: SparkSession, other: SparkSession, counters: Counters
) -> None:
    table = counters("sqlite")
    with pytest.raises(WriteConflictError) as raised, twophase.transaction(spark, merge=add):
        spark.sql(ADD.format(table, 1, table))
        beside(other, ADD.format(table, 2, table))
    assert "merge was not asked" in "".join(raised.value.__notes__)
    assert rows(spark, table) == [(1, 12), (2, 12)]


def test_a_merge_needs_a_snapshot_and_functions(spark: SparkSession) -> None:
    with (
        pytest.raises(ConfigurationError, match="merge= needs a block that reads one snapshot"),
        twophase.transaction(spark, isolation="read_committed", merge=add),
    ):
        pass
    with pytest.raises(ConfigurationError, match="merge is 'add'"):
        twophase.run(spark, lambda: None, merge="add")


def test_run_asks_each_attempt_and_others_wait_while_a_merge_is_asked(
    spark: SparkSession, other: SparkSession, counters: Counters
) -> None:
    table = counters("session")
    answers = [False, True]
    behind: list[threading.Thread] = []

    def merge(*states: DataFrame) -> DataFrame | None:
        if answers.pop(0):
            thread = threading.Thread(target=lambda: beside(other, f"INSERT INTO {table} VALUES (1, 3)"))
            thread.start()
            behind.append(thread)
            return add(*states)
        return None

    @twophase.run(spark, merge=merge)
    def increment() -> None:
        spark.sql(ADD.format(table, 1, table))
        beside(other, ADD.format(table, 5, table))

    increment()
    behind[0].join()
    assert rows(spark, table) == [(1, 21), (2, 21), (3, 1)]


def test_deleted_rows_are_merged(spark: SparkSession, other: SparkSession, counters: Counters) -> None:
    table = counters("lakehouse")

    def merge(before: DataFrame, mine: DataFrame, theirs: DataFrame) -> DataFrame:
        assert (before.count(), mine.count(), theirs.count()) == (2, 1, 2)
        return theirs.join(mine, "id", "left_semi")

    with twophase.transaction(spark, merge=merge):
        spark.sql(f"DELETE FROM {table} WHERE id = 2")
        beside(other, ADD.format(table, 5, table))
    assert rows(spark, table) == [(1, 15)]
