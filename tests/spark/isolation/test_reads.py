"""Two writers at once in real stores: who is refused, who waits, and that no acknowledged row is lost.

The names of the cases are those of the Hermitage suite, where they have one there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import twophase
from benchmarks.routing.counting import Counts, counted
from tests.hive.world import World
from tests.spark.blocks import elsewhere
from tests.spark.isolation.stores import OLD, Rows, Store, every_publish, every_store, once, session_tables, values
from twophase import (
    OverwriteScope,
    Purpose,
    TransactionState,
)
from twophase.errors import (
    AtomicityNotSupportedError,
    SnapshotTooOldError,
    TransactionAborted,
    WriteConflictError,
)
from twophase.spark.jvm.caches import TableCaches
from twophase.transactions.clean import clean

# -- a write rests on what its transaction has read -------------------------------------------------------------------


@pytest.mark.promise("lost-updates", "a write after a read does not remove rows that were committed in between")
@every_store
def test_p4_a_write_after_a_read_does_not_end_rows_that_came_in_between(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    with twophase.transaction(spark) as tx:
        seen = store.rows(spark, "a")
        elsewhere(lambda: store.append(other, "a", (3, 30)))
        with pytest.raises(WriteConflictError, match="has read it"):
            store.write(spark, "a", [(key, value + 1) for key, value in seen])
        store.write(spark, "b", [(9, 90)])

    assert tx.state is TransactionState.COMPLETED
    assert store.rows(spark, "a") == [*OLD, (3, 30)]
    assert store.rows(spark, "b") == [(9, 90)]


@every_store
def test_a_look_at_a_table_s_columns_is_no_read_of_its_rows(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    with twophase.transaction(spark, isolation="read_committed"):
        assert {"value", "id"} <= {row.col_name for row in spark.sql(f"DESCRIBE {store.of('a')}").collect()}
        elsewhere(lambda: store.append(other, "a", (3, 30)))
        store.write(spark, "a", [(9, 90)])

    assert store.rows(spark, "a") == [(9, 90)]


@pytest.mark.parametrize("kind", ["lakehouse", "sqlite", "plugin"])
def test_rows_that_are_cached_are_read_all_the_same(spark: SparkSession, other: SparkSession, store: Store) -> None:
    kept = spark.table(store.of("a")).cache()
    kept.count()
    try:
        with twophase.transaction(spark):
            assert len(store.rows(spark, "a")) == 2
            elsewhere(lambda: store.append(other, "a", (3, 30)))
            with pytest.raises(WriteConflictError, match="has read it"):
                store.write(spark, "a", [(9, 90)])
    finally:
        kept.unpersist()


@pytest.mark.promise("staged-reads", "an INSERT reads its own table in a subquery as elsewhere, in a block and outside")
@every_store
def test_an_insert_reads_its_own_table_in_a_subquery(spark: SparkSession, store: Store) -> None:
    a, b = store.of("a"), store.of("b")
    new = f"SELECT * FROM VALUES (20, 2), (30, 3) AS rows(value, id) WHERE id NOT IN (SELECT id FROM {a})"
    inserts = f"INSERT INTO {a} SELECT value, id + 10 INSERT INTO {b} SELECT value, id + 20"

    for block in (nullcontext(), twophase.transaction(spark)):
        store.write(spark, "a", OLD)
        store.write(spark, "b", OLD)
        with block:
            spark.sql(f"INSERT INTO {a} {new}")
            spark.sql(f"INSERT INTO {a} {new}")
            spark.sql(f"INSERT INTO {a} SELECT 40, (SELECT max(id) FROM {a}) + 1")
            assert store.rows(spark, "a") == [*OLD, (3, 30), (4, 40)]
            spark.sql(f"INSERT OVERWRITE {a} SELECT value, id FROM {a} WHERE id > (SELECT min(id) FROM {a}) + 1")
            spark.sql(f"FROM {a} {inserts} WHERE id IN (SELECT id FROM {a})")
        assert store.rows(spark, "a") == [(3, 30), (4, 40), (13, 30), (14, 40)]
        assert store.rows(spark, "b") == [*OLD, (23, 30), (24, 40)]


@pytest.mark.promise("lost-updates", "the subquery of an INSERT that reads its own table counts as a read of the block")
@every_store
def test_the_subquery_of_an_insert_into_its_own_table_reads_the_snapshot(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    a = store.of("a")
    with twophase.transaction(spark) as tx:
        store.rows(spark, "b")
        elsewhere(lambda: store.append(other, "a", (3, 30)))
        with suppress(SnapshotTooOldError):
            spark.sql(f"INSERT INTO {a} SELECT 90, max(id) FROM {store.of('b')} WHERE 3 NOT IN (SELECT id FROM {a})")
            assert tx.participants
    assert store.rows(spark, "a") == [*OLD, *([(2, 90)] if tx.participants else []), (3, 30)]


@every_publish
def test_its_own_reads_and_writes_do_not_stand_in_a_transaction_s_way(spark: SparkSession, store: Store) -> None:
    with twophase.transaction(spark):
        store.append(spark, "a", (3, 30))
        store.write(spark, "a", store.rows(spark, "a"))
        spark.sql(f"INSERT OVERWRITE {store.of('b')} SELECT value + 1, id FROM {store.of('b')}")

    assert store.rows(spark, "a") == [*OLD, (3, 30)]
    assert store.rows(spark, "b") == [(1, 11), (2, 21)]


READS: dict[str, Callable[[SparkSession, str], Any]] = {
    "spark.table": lambda spark, name: spark.table(name).collect(),
    "spark.read.table": lambda spark, name: spark.read.table(name).collect(),
    "a view": lambda spark, _: spark.sql("SELECT * FROM v").collect(),
    "a subquery": lambda spark, name: spark.sql(f"SELECT (SELECT max(id) FROM {name}) AS m").collect(),
    "a CTE": lambda spark, name: spark.sql(f"WITH c AS (SELECT * FROM {name}) SELECT * FROM c").collect(),
    "a source of an INSERT": lambda spark, name: spark.sql(f"INSERT INTO b SELECT value, id FROM {name}"),
    "a source of a CTAS": lambda spark, name: spark.sql(f"CREATE TABLE copied AS SELECT * FROM {name}"),
    "the DataFrame of a write": lambda spark, _: frame.write.insertInto("b"),
}
frame: Any = None


@pytest.mark.promise("lost-updates", "every way to read counts as a read")
@pytest.mark.parametrize("kind", ["session"])
@pytest.mark.parametrize("read", READS)
def test_every_way_to_read_counts(spark: SparkSession, other: SparkSession, store: Store, read: str) -> None:
    global frame
    spark.sql("DROP TABLE IF EXISTS copied")
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW v AS SELECT * FROM a")
    frame = spark.table("a")
    with twophase.transaction(spark):
        READS[read](spark, "a")
        elsewhere(lambda: store.append(other, "a", (3, 30)))
        with pytest.raises(WriteConflictError):
            spark.sql("CREATE OR REPLACE TABLE a USING parquet AS SELECT 1 AS value, 1 AS id")
    assert store.rows(spark, "a") == [*OLD, (3, 30)]


@pytest.mark.promise("lost-updates", "rows of an old DataFrame do not replace what others wrote since")
@session_tables
@pytest.mark.parametrize("cached", [False, True])
def test_p4_rows_of_an_old_dataframe_do_not_end_what_came_since(
    spark: SparkSession, other: SparkSession, store: Store, cached: bool
) -> None:
    old = spark.table(store.of("a")).selectExpr("value + 1 AS value", "id")
    if cached:
        old.cache().count()
    store.append(other, "a", (3, 30))
    try:
        old.write.insertInto(store.of("a"), overwrite=True)
        assert store.rows(spark, "a") == [(1, 11), (2, 21), (3, 31)]  # Spark has read it anew.
    except WriteConflictError:
        assert store.rows(spark, "a") == [*OLD, (3, 30)]
    finally:
        old.unpersist()


@pytest.mark.promise(
    "lost-updates", "rows of an old DataFrame do not replace what another application has renamed in since"
)
@pytest.mark.parametrize(
    ("kind", "cached"),
    [("session", False), ("session", True), ("partitioned", False), ("serde", False), ("serde", True)],
)
def test_p4_rows_of_an_old_dataframe_do_not_end_what_another_application_has_renamed_in_since(
    spark: SparkSession, store: Store, cached: bool
) -> None:
    old = spark.table(store.of("a")).selectExpr("value + 1 AS value", "id")
    old.cache().count() if cached else old.collect()
    renamed_in(store.place("a", 2))
    try:
        old.write.insertInto(store.of("a"), overwrite=True)
        now = [(1, 11), (2, 21), (2, 31)]  # Spark has read it anew.
    except WriteConflictError:
        now = [*OLD, (2, 30)]
    finally:
        old.unpersist()
    assert now == sorted((r.id, r.value) for r in spark.newSession().table(store.of("a")).collect())


def renamed_in(place: Path) -> None:
    """A row that comes as another application's append does: a file is renamed, and the metastore told nothing."""
    row = {"value": 30} if "=" in place.name else {"value": 30, "id": 2}
    pq.write_table(pa.table({name: pa.array([value], pa.int32()) for name, value in row.items()}), place / "_part")
    (place / "_part").rename(place / "part-of-another.parquet")


# -- crossed blocks ---------------------------------------------------------------------------------------------------


def crossed(sessions: list[SparkSession], write: Callable[[SparkSession, str, int], None]) -> list[BaseException]:
    """Two blocks write ``a`` and ``b`` in opposite order, the second statements at once; what their users were told."""
    told: list[BaseException] = []
    second, end = threading.Barrier(2, timeout=120), threading.Barrier(2, timeout=120)

    def run(session: SparkSession, names: str, number: int) -> None:
        try:
            with twophase.transaction(session):
                write(session, names[0], number)
                second.wait()
                write(session, names[1], number)
                end.wait()
        except BaseException as error:
            told.append(error)

    threads = [InheritableThread(target=run, args=facts) for facts in zip(sessions, ("ab", "ba"), (3, 4), strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told


@pytest.mark.promise("reservations", "of two Spark blocks whose overwrites cross one gets through")
@every_publish
def test_deadlock_overwrite_of_crossed_blocks_one_gets_through(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    told = crossed([spark, other], lambda session, name, number: store.write(session, name, [(number, 0)]))

    assert [type(error) for error in told] == [WriteConflictError]
    assert store.rows(spark, "a") == store.rows(spark, "b")
    assert store.rows(spark, "a") in ([(3, 0)], [(4, 0)])


@pytest.mark.promise("reservations", "two Spark blocks whose inserts cross both get through")
@pytest.mark.parametrize("kind", ["lakehouse", "sqlite", "plugin"])
def test_deadlock_insert_both_crossed_blocks_get_through(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    told = crossed([spark, other], lambda session, name, number: store.append(session, name, (number, 0)))

    assert told == []
    assert store.rows(spark, "a") == store.rows(spark, "b") == [*OLD, (3, 0), (4, 0)]


@pytest.mark.promise("reservations", "an open block does not prevent others from writing its tables")
@every_publish
@pytest.mark.parametrize("early", [True, False])
def test_long_holder_a_block_that_goes_on_keeps_nobody_from_its_tables(
    spark: SparkSession, other: SparkSession, store: Store, early: bool
) -> None:
    with suppress(WriteConflictError), twophase.transaction(spark) as tx:
        store.write(spark, "a", [(7, 70)])
        elsewhere(lambda: store.write(other, "b", [(4, 40)]))
        if early:
            elsewhere(lambda: store.append(other, "a", (3, 30)))
        store.append(spark, "a", (8, 80))
        if not early:
            elsewhere(lambda: store.append(other, "a", (3, 30)))

    # A partition that came meanwhile stays beside those of the overwrite; elsewhere there is no place for the row.
    mine = [(7, 70), (8, 80)] if tx.state is TransactionState.COMPLETED else OLD
    assert store.rows(spark, "a") == sorted([*mine, (3, 30)])
    assert store.rows(spark, "b") == [(4, 40)]


@pytest.mark.parametrize("change", ["append", "write"])
@session_tables
def test_a_dataframe_that_a_block_runs_later_reads_the_blocks_state(
    spark: SparkSession, other: SparkSession, store: Store, change: str
) -> None:
    """Spark lists the partitions of a table only then; other files it has listed, and may list again."""
    assert store.rows(spark, "a") == OLD  # Spark keeps the relation.
    with twophase.transaction(spark, isolation="snapshot"):
        rows = spark.sql(f"SELECT id, value FROM {store.of('a')}")
        part = rows.where("id = 2")
        if change == "append":
            elsewhere(lambda: store.append(other, "a", (2, 99)))
        else:
            elsewhere(lambda: store.write(other, "a", [(2, 99)]))
        assert sorted(map(tuple, rows.collect())) == OLD
        assert part.collect() == [(2, 20)]
        assert store.rows(spark, "a") == OLD
    assert (2, 99) in store.rows(spark, "a")


@pytest.mark.parametrize("kind", ["session", "partitioned"])
def test_a_read_in_a_snapshot_costs_what_it_costs_under_read_committed(spark: SparkSession, store: Store) -> None:
    """But for a question, when the query has its files, whether they are of the block's state."""
    query = f"SELECT value FROM {store.of('a')}"
    plain, asked = (spent(spark, query, level) for level in ("read_committed", "snapshot"))

    assert asked[0].calls["send_command"] == plain[0].calls["send_command"] <= 20
    assert asked[0].metastore == plain[0].metastore
    assert [c.calls["_call_proxy"] for c in plain] == [1, 0]
    assert [c.calls["_call_proxy"] for c in asked] == [1, 1]
    # Where Spark looks partitions up, so is the table.
    looks = 1 if "parts" in query else 0
    assert asked[1].metastore == plain[1].metastore + looks
    assert asked[1].calls["send_command"] == plain[1].calls["send_command"] + looks


def spent(spark: SparkSession, query: str, isolation: str) -> list[Counts]:
    """What the analysis of a query costs in a block, and what its run."""
    with twophase.transaction(spark, isolation=isolation):
        spark.sql(query).collect()
        frames: list[Any] = []
        return [
            counted(spark, lambda: frames.append(spark.sql(query))),
            counted(spark, lambda: frames[0].collect()),
        ]


@pytest.mark.parametrize("kind", ["partitioned"])
def test_a_query_in_a_snapshot_is_planned_as_outside(spark: SparkSession, store: Store) -> None:
    spark.sql(
        "CREATE OR REPLACE TABLE parts.facts USING parquet PARTITIONED BY (id) AS SELECT id AS v, id FROM range(9)"
    )
    spark.sql("CREATE OR REPLACE TABLE parts.keys USING parquet AS SELECT id AS k, id % 3 AS kind FROM range(9)")
    for name in ("one", "two"):
        clause = "USING parquet CLUSTERED BY (id) INTO 4 BUCKETS"
        spark.sql(f"CREATE OR REPLACE TABLE parts.{name} {clause} AS SELECT id, id AS {name} FROM range(9)")
    marks = {
        "dynamicpruning": "SELECT v FROM parts.facts JOIN parts.keys ON id = k WHERE kind = 1",
        "SelectedBucketsCount": "SELECT one, two FROM parts.one JOIN parts.two USING (id)",
        "ReusedExchange": (
            "SELECT x.n + y.n FROM (SELECT kind, count(*) n FROM parts.keys GROUP BY kind) x JOIN "
            "(SELECT kind, count(*) n FROM parts.keys GROUP BY kind) y USING (kind)"
        ),
    }
    nodes = (
        "Exchange",
        "ReusedExchange",
        "dynamicpruning",
        "SelectedBucketsCount",
        "BroadcastHashJoin",
        "SortMergeJoin",
    )
    settings = {"spark.sql.autoBroadcastJoinThreshold": "-1", "spark.sql.adaptive.enabled": "false"}
    for key, value in settings.items():
        spark.conf.set(key, value)
    try:
        for mark, query in marks.items():
            outside = planned(spark, query)
            with twophase.transaction(spark, isolation="snapshot"):
                inside = planned(spark, query)
            assert mark in outside
            assert [inside.count(node) for node in nodes] == [outside.count(node) for node in nodes]
    finally:
        for key in settings:
            spark.conf.unset(key)


def planned(spark: SparkSession, query: str) -> str:
    frame = spark.sql(query)
    frame.collect()
    return str(frame._jdf.queryExecution().executedPlan().toString())


@pytest.mark.parametrize("kind", ["session"])
def test_rows_that_a_block_has_cached_are_not_read_after_another_write(spark: SparkSession, store: Store) -> None:
    with twophase.transaction(spark, isolation="snapshot"):
        kept = spark.table(store.of("a")).cache()
        assert kept.count() == 2
    try:
        store.append(spark, "a", (3, 30))
        assert spark.table(store.of("a")).count() == 3
        with twophase.transaction(spark, isolation="snapshot"):
            assert spark.table(store.of("a")).count() == 3
    finally:
        kept.unpersist()


@pytest.mark.parametrize("becomes", ["USING parquet AS SELECT 1L AS id, 77L AS amount", "USING orc AS SELECT 5L AS id"])
def test_a_table_that_is_replaced_while_its_name_is_resolved_is_refused(
    spark: SparkSession, other: SparkSession, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    spark.sql("CREATE OR REPLACE TABLE resolved USING parquet AS SELECT 1L AS id, 10L AS value")
    once(lambda: other.sql(f"CREATE OR REPLACE TABLE resolved {becomes}"), "resolved", monkeypatch)
    with pytest.raises(SnapshotTooOldError, match="resolved"), twophase.transaction(spark):
        spark.table("resolved").collect()


def test_a_read_that_is_interrupted_before_it_is_moved_on_leaves_no_old_rows_to_the_next_block(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    alien = spark.newSession()  # As another process, it tells no other session.
    twophase.attach(alien).session.caches._siblings = lambda: ()
    spark.sql("CREATE OR REPLACE TABLE interrupted USING parquet AS SELECT 10L AS value")
    with twophase.transaction(spark):
        spark.table("interrupted").collect()
    alien.sql("INSERT OVERWRITE interrupted SELECT 11L")

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt), twophase.transaction(spark):
        patch.setattr(TableCaches, "follow", interrupt)
        spark.table("interrupted").collect()
    with twophase.transaction(spark, isolation="serializable"):
        spark.sql("INSERT OVERWRITE interrupted SELECT value + 1 FROM interrupted")
    assert [row.value for row in spark.table("interrupted").collect()] == [12]


def test_p4_a_partitioned_dataframe_of_an_ended_block_does_not_end_what_came_since(
    spark: SparkSession, other: SparkSession
) -> None:
    spark.sql("CREATE OR REPLACE TABLE kept USING parquet PARTITIONED BY (id) AS SELECT 10L AS value, 1L AS id")
    with twophase.transaction(spark):
        frame = spark.table("kept")
        assert frame.count() == 1
    other.sql("INSERT INTO kept VALUES (99L, 1L)")
    frame.write.insertInto("kept", overwrite=True)
    assert sorted(row.value for row in spark.table("kept").collect()) == [10, 99]


def test_former_partitions_are_pruned_where_spark_does_not_prune_them_itself(
    spark: SparkSession, other: SparkSession
) -> None:
    spark.sql(
        "CREATE OR REPLACE TABLE pruned USING parquet PARTITIONED BY (id) AS SELECT id + 10 AS value, id FROM range(3)"
    )
    rule = "org.apache.spark.sql.execution.datasources.PruneFileSourcePartitions"
    spark.conf.set("spark.sql.optimizer.excludedRules", rule)
    try:
        with twophase.transaction(spark):
            frame = spark.sql("SELECT value FROM pruned WHERE id = 2")
            assert frame.count() == 1
            elsewhere(lambda: other.sql("INSERT INTO pruned VALUES (99L, 2L)"))
            assert [row.value for row in frame.collect()] == [12]
    finally:
        spark.conf.unset("spark.sql.optimizer.excludedRules")


def test_a_block_that_was_rolled_back_meanwhile_reads_no_present_state(
    spark: SparkSession, other: SparkSession
) -> None:
    spark.sql("CREATE OR REPLACE TABLE late USING parquet PARTITIONED BY (id) AS SELECT 10L AS value, 1L AS id")
    with pytest.raises(TransactionAborted), twophase.transaction(spark) as tx:
        frame = spark.table("late")
        elsewhere(lambda: other.sql("INSERT OVERWRITE late SELECT 11L, 1L"))
        tx.abort(None)
        frame.collect()


@pytest.mark.parametrize("by", ["PARTITIONED BY (id)", ""])
@pytest.mark.parametrize("kind", ["partitioned"])
def test_a_dataframe_that_a_block_runs_later_reads_rows_whose_table_has_other_partitions_by_then(
    spark: SparkSession, other: SparkSession, store: Store, by: str
) -> None:
    spark.sql(f"CREATE OR REPLACE TABLE parts.a USING parquet PARTITIONED BY (value) AS {values(OLD)} AS t(value, id)")
    with twophase.transaction(spark, isolation="snapshot"):
        rows = spark.sql("SELECT id, value FROM parts.a")
        part = rows.where("value = 20")
        new = f"CREATE OR REPLACE TABLE parts.a USING parquet {by} AS SELECT 7 AS value, 8 AS id"
        elsewhere(lambda: other.sql(new))
        assert part.collect() == [(2, 20)]
        assert sorted(map(tuple, rows.collect())) == OLD


#: How a statement may name table ``a``; views and functions of it were made before.
NAMES = (
    "SELECT id, value FROM {a}",
    "SELECT id, value FROM shown",
    "SELECT id, value FROM passing",
    "SELECT id, value FROM rows_of_a()",
    "SELECT id, value FROM (SELECT * FROM {a}) WHERE most_of_a() >= value AND id IN (SELECT id FROM {a})",
    "SELECT id, value FROM kept_rows_of_a()",
    "WITH c AS (SELECT * FROM {a}) SELECT id, value FROM c",
    "SELECT id, value FROM IDENTIFIER('{a}')",
    "EXECUTE IMMEDIATE 'SELECT id, value FROM {a}'",
    "BEGIN IF EXISTS (SELECT 1 FROM {a}) THEN SELECT id, value FROM {a}; END IF; END",
)


@pytest.mark.promise("isolation", "a block reads the state of its snapshot however a statement names the table")
@pytest.mark.parametrize(
    "kind", ["session", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("partitioned", "lakehouse"))]
)
def test_a_block_reads_the_state_of_its_snapshot_however_it_names_the_table(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    a, b = store.of("a"), store.of("b")
    spark.sql(f"CREATE OR REPLACE VIEW shown AS SELECT * FROM {a}")
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW passing AS SELECT id, value FROM {a}")
    for function in ("TEMPORARY FUNCTION rows_of_a", "FUNCTION kept_rows_of_a"):
        spark.sql(f"CREATE OR REPLACE {function}() RETURNS TABLE(id INT, value INT) RETURN SELECT id, value FROM {a}")
    spark.sql(f"CREATE OR REPLACE TEMPORARY FUNCTION most_of_a() RETURNS INT RETURN SELECT max(value) FROM {a}")

    def change() -> None:
        store.write(other, "a", [(7, 70)])
        store.append(other, "a", (8, 80))
        store.write(other, "b", [(7, 70)])

    def found(query: str) -> Rows:
        return sorted((row.id, row.value) for row in spark.sql(query.format(a=a)).collect())

    with twophase.transaction(spark):
        store.append(spark, "b", (3, 30))
        assert store.rows(spark, "b") == [*OLD, (3, 30)]
        elsewhere(change)
        assert [found(query) for query in NAMES] == [OLD] * len(NAMES)
        for frame in (spark.table(a), spark.read.table(a), spark.table("shown"), spark.table("passing")):
            assert sorted((row.id, row.value) for row in frame.collect()) == OLD
        spark.sql(
            f"CREATE OR REPLACE TABLE copied USING parquet AS SELECT * FROM shown JOIN (SELECT id FROM {b}) USING (id)"
        )
        assert found("SELECT id, value FROM copied") == OLD
        assert store.rows(spark, "b") == [*OLD, (3, 30)]
    assert [found(query) for query in NAMES[:4]] == [[(7, 70), (8, 80)]] * 4
    assert store.rows(spark, "b") == [(3, 30), (7, 70)]
    spark.sql("DROP VIEW shown")
    spark.sql("DROP FUNCTION kept_rows_of_a")


@pytest.mark.parametrize("kind", ["partitioned"])
def test_what_shows_the_present_state_of_a_table_is_refused_in_a_block_that_sees_a_former_one(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    statements = (
        "SHOW PARTITIONS parts.a",
        "ANALYZE TABLE parts.a COMPUTE STATISTICS NOSCAN",
        "SHOW TABLE EXTENDED IN parts LIKE 'a' PARTITION (id = 1)",
    )
    with twophase.transaction(spark, isolation="snapshot"):
        for statement in statements[::2]:
            spark.sql(statement).collect()
        elsewhere(lambda: store.append(other, "a", (3, 30)))
        for statement in statements:
            with pytest.raises(AtomicityNotSupportedError, match=r"parts\.a as it is now"):
                spark.sql(statement)
    assert spark.sql(statements[0]).count() == 3
    with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation="serializable"):
        spark.sql(statements[0]).collect()
        elsewhere(lambda: store.append(other, "a", (4, 40)))
        store.write(spark, "b", [(9, 90)])
    with twophase.transaction(spark, isolation="serializable"):
        spark.sql("DESCRIBE TABLE parts.a").collect()
        elsewhere(lambda: store.append(other, "a", (5, 50)))
        store.write(spark, "b", [(9, 90)])


@pytest.mark.promise("visibility", "a block reads what another process had published before it began", detail=True)
@pytest.mark.parametrize("isolation", ["snapshot", "read_committed"])
@pytest.mark.parametrize("catalog", ["", "hive."])
@pytest.mark.parametrize("kind", ["session", "serde"])
def test_a_block_reads_session_tables_as_another_process_has_published_them(
    spark: SparkSession, store: Store, catalog: str, isolation: str
) -> None:
    name = catalog + store.of("a")
    # It has a catalog of its own, which tells this session's nothing of what it does.
    another = World(spark, Path(spark.conf.get("spark.sql.warehouse.dir").removeprefix("file:")))
    for row, purpose in enumerate((Purpose.INSERT_OVERWRITE, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE), 5):
        with twophase.transaction(spark, isolation=isolation):
            before = spark.sql(f"SELECT value, id FROM {name}").collect()
        scope = OverwriteScope() if purpose is Purpose.INSERT_OVERWRITE else None
        rows = spark.createDataFrame([(row, 0)], "value INT, id INT")
        database = store.of("").rstrip(".")
        another.run("a", rows, purpose, overwrite=scope, database=database, transaction=f"another-{uuid.uuid4().hex}")
        with twophase.transaction(spark, isolation=isolation):
            found = spark.sql(f"SELECT value, id FROM {name}").collect()
            spark.sql(f"INSERT OVERWRITE {name} {values([(9, 9)])}")
        kept = [] if scope else [tuple(old) for old in before]
        assert sorted(map(tuple, found)) == sorted([*kept, (row, 0)])


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_block_whose_snapshot_a_task_no_longer_finds_is_run_again(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    tries = 0

    def work() -> int:
        nonlocal tries
        tries += 1
        frame = spark.table(store.of("a"))
        if tries == 1:
            elsewhere(lambda: store.append(other, "a", (3, 30)))
        return frame.count()

    assert twophase.run(spark, work) == 3
    assert tries == 2


@pytest.mark.promise(
    "visibility", "a snapshot for readers keeps all that it sees in every store, before its first read"
)
def test_clean_keeps_what_a_snapshot_sees_in_every_store_before_it_has_read_anything(
    spark: SparkSession, other: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = [Store(spark, kind) for kind in ("session", "partitioned", "lakehouse")]
    handle = twophase.attach(other)
    catalogs = [handle.catalog(name) for name in ("hive", "ice")]
    for catalog in catalogs:
        monkeypatch.setattr(catalog.environment, "retention", 0.0)

    def replace_and_clean() -> None:
        for store in stores:
            store.write(other, "a", [(7, 70)])
        clean(handle.coordinator, catalogs)

    with twophase.snapshot(spark):
        elsewhere(replace_and_clean)
        assert [store.rows(spark, "a") for store in stores] == [OLD] * 3
    assert [store.rows(spark, "a") for store in stores] == [[(7, 70)]] * 3
