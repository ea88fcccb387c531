"""Two writers at once in real stores: who is refused, who waits, and that no acknowledged row is lost.

The names of the cases are those of the Hermitage suite, where they have one there.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet as pq
from pyspark import InheritableThread
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from benchmarks.routing.counting import Counts, counted
from tests.hive.world import World
from tests.spark.conftest import Start
from twophase import (
    ConflictPolicy,
    Contender,
    Isolation,
    OverwriteScope,
    Purpose,
    Resolution,
    TransactionState,
    failpoints,
)
from twophase.catalogs.hive import replaced
from twophase.errors import (
    AtomicityNotSupportedError,
    ConfigurationError,
    SnapshotTooOldError,
    TransactionAborted,
    WoundedError,
    WriteConflictError,
)
from twophase.spark.jvm.caches import TableCaches
from twophase.spark.routing import spark_ddl
from twophase.spark.routing.plan_answers import Answers

#: Where the tables ``a`` and ``b`` are: those of the session with and without partitions, of a SerDe, of a lake, of a
#: database, and of a catalog that tells nothing of the states of a table.
STORES = {
    "session": ("default", ""),
    "partitioned": ("parts", " PARTITIONED BY (id)"),
    "serde": ("serdes", " STORED AS PARQUET"),
    "lakehouse": ("ice.db", ""),
    "sqlite": ("lite.main", ""),
    "plugin": ("lake.db", ""),
}
Rows = list[tuple[int, int]]
OLD: Rows = [(1, 10), (2, 20)]


@pytest.fixture(scope="module")
def spark(start: Start, tmp_path_factory: pytest.TempPathFactory) -> SparkSession:
    directory = tmp_path_factory.mktemp("isolation")
    session = start(
        {
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={directory}/meta;create=true",
            "spark.sql.catalog.ice": "twophase.lakehouse",
            "spark.sql.catalog.ice.warehouse": str(directory / "lake"),
            "spark.sql.catalog.lite": "twophase.jdbc",
            "spark.sql.catalog.lite.url": f"sqlite:///{directory}/lite.db",
            "spark.sql.sources.partitionOverwriteMode": "static",
        }
    )
    handle = twophase.attach(session)
    for name in ("ice", "lake"):
        handle.catalog(name).create_database("db")
    for name in ("parts", "serdes"):
        session.sql(f"CREATE DATABASE {name}")
    return session


@pytest.fixture(scope="module")
def other(spark: SparkSession) -> SparkSession:
    """Another session of the application, with transactions of its own."""
    session = spark.newSession()
    twophase.attach(session)
    return session


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    failpoints.disarm()


class Store:
    """Tables ``a`` and ``b`` in one store."""

    def __init__(self, spark: SparkSession, kind: str) -> None:
        self._spark = spark
        self._database, self._clause = STORES[kind]
        for name in ("a", "b"):
            self.make(name)

    def make(self, name: str) -> None:
        self._spark.sql(f"DROP TABLE IF EXISTS {self.of(name)}")
        using = "" if "STORED" in self._clause else " USING parquet" if self._database in ("default", "parts") else ""
        self._spark.sql(f"CREATE TABLE {self.of(name)}{using}{self._clause} AS SELECT 10 AS value, 1 AS id")
        self.write(self._spark, name, OLD)

    def of(self, name: str) -> str:
        return f"{self._database}.{name}"

    def place(self, name: str, key: int) -> Path:
        """The directory of the files with a row."""
        partition = f" PARTITION (id = {key})" if "PARTITIONED" in self._clause else ""
        found = self._spark.sql(f"DESCRIBE EXTENDED {self.of(name)}{partition}").where("col_name = 'Location'")
        return Path(str(found.collect()[0][1]).removeprefix("file:"))

    def rows(self, session: SparkSession, name: str) -> Rows:
        return sorted((r.id, r.value) for r in session.sql(f"SELECT id, value FROM {self.of(name)}").collect())

    def write(self, session: SparkSession, name: str, rows: Rows) -> None:
        session.sql(f"INSERT OVERWRITE {self.of(name)} {values(rows)}")

    def append(self, session: SparkSession, name: str, row: tuple[int, int]) -> None:
        session.sql(f"INSERT INTO {self.of(name)} {values([row])}")


def meanwhile(statement: Callable[[], None]) -> None:
    """Run a statement to its end on another thread: it is in no block."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            statement()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(120)
    assert not thread.is_alive()
    assert failed == []


def values(rows: Rows) -> str:
    return "VALUES " + ", ".join(f"({value}, {key})" for key, value in rows)


@pytest.fixture
def store(spark: SparkSession, kind: str) -> Store:
    return Store(spark, kind)


every_store = pytest.mark.parametrize("kind", STORES)
#: Where the format of the files says nothing.
every_publish = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.exhaustive if kind == "serde" else ()) for kind in STORES]
)
#: Where a table's files, or rows, have more than one way to be read.
session_tables = pytest.mark.parametrize("kind", ["session", "partitioned", "serde"])


# -- a write rests on what its transaction has read -------------------------------------------------------------------


@pytest.mark.promise("lost-updates", "a write after a read does not remove rows that were committed in between")
@every_store
def test_p4_a_write_after_a_read_does_not_end_rows_that_came_in_between(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    with twophase.transaction(spark) as tx:
        seen = store.rows(spark, "a")
        meanwhile(lambda: store.append(other, "a", (3, 30)))
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
        meanwhile(lambda: store.append(other, "a", (3, 30)))
        store.write(spark, "a", [(9, 90)])

    assert store.rows(spark, "a") == [(9, 90)]


@pytest.mark.parametrize("kind", ["lakehouse", "sqlite", "plugin"])
def test_rows_that_are_cached_are_read_all_the_same(spark: SparkSession, other: SparkSession, store: Store) -> None:
    kept = spark.table(store.of("a")).cache()
    kept.count()
    try:
        with twophase.transaction(spark):
            assert len(store.rows(spark, "a")) == 2
            meanwhile(lambda: store.append(other, "a", (3, 30)))
            with pytest.raises(WriteConflictError, match="has read it"):
                store.write(spark, "a", [(9, 90)])
    finally:
        kept.unpersist()


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
        meanwhile(lambda: store.append(other, "a", (3, 30)))
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
        meanwhile(lambda: store.write(other, "b", [(4, 40)]))
        if early:
            meanwhile(lambda: store.append(other, "a", (3, 30)))
        store.append(spark, "a", (8, 80))
        if not early:
            meanwhile(lambda: store.append(other, "a", (3, 30)))

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
            meanwhile(lambda: store.append(other, "a", (2, 99)))
        else:
            meanwhile(lambda: store.write(other, "a", [(2, 99)]))
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


def _once(changed: Callable[[], Any], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let something happen once, between Spark's question about a table and its own look at it."""
    original, pending = Answers._has_moved, [changed]

    def then(self: Answers, target: Any, use: str) -> bool:
        found = original(self, target, use)
        if target.path.name == name and pending:
            meanwhile(pending.pop())
        return found

    monkeypatch.setattr(Answers, "_has_moved", then)


@pytest.mark.parametrize("becomes", ["USING parquet AS SELECT 1L AS id, 77L AS amount", "USING orc AS SELECT 5L AS id"])
def test_a_table_that_is_replaced_while_its_name_is_resolved_is_refused(
    spark: SparkSession, other: SparkSession, monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    spark.sql("CREATE OR REPLACE TABLE resolved USING parquet AS SELECT 1L AS id, 10L AS value")
    _once(lambda: other.sql(f"CREATE OR REPLACE TABLE resolved {becomes}"), "resolved", monkeypatch)
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
            meanwhile(lambda: other.sql("INSERT INTO pruned VALUES (99L, 2L)"))
            assert [row.value for row in frame.collect()] == [12]
    finally:
        spark.conf.unset("spark.sql.optimizer.excludedRules")


def test_a_block_that_was_rolled_back_meanwhile_reads_no_present_state(
    spark: SparkSession, other: SparkSession
) -> None:
    spark.sql("CREATE OR REPLACE TABLE late USING parquet PARTITIONED BY (id) AS SELECT 10L AS value, 1L AS id")
    with pytest.raises(TransactionAborted), twophase.transaction(spark) as tx:
        frame = spark.table("late")
        meanwhile(lambda: other.sql("INSERT OVERWRITE late SELECT 11L, 1L"))
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
        meanwhile(lambda: other.sql(new))
        assert part.collect() == [(2, 20)]
        assert sorted(map(tuple, rows.collect())) == OLD


#: How a statement may name table ``a``; views and functions of it were made before.
NAMES = (
    "SELECT id, value FROM {a}",
    "SELECT id, value FROM shown",
    "SELECT id, value FROM passing",
    "SELECT id, value FROM rows_of_a()",
    "SELECT id, value FROM (SELECT * FROM {a}) WHERE most_of_a() >= value AND id IN (SELECT id FROM {a})",
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
    spark.sql(
        "CREATE OR REPLACE TEMPORARY FUNCTION rows_of_a() RETURNS TABLE(id INT, value INT) "
        f"RETURN SELECT id, value FROM {a}"
    )
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
        meanwhile(change)
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


BRINGS = "SELECT 30 AS value, 3 AS more, 3 AS id"


@pytest.mark.promise("isolation", "a block sees a table without the columns that the writes of others bring to it")
@pytest.mark.parametrize("overwrite", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("kind", ["partitioned", "session"])
def test_a_block_sees_a_table_without_the_columns_that_others_bring_and_they_can_be_undone(
    spark: SparkSession, other: SparkSession, store: Store, overwrite: bool
) -> None:
    brought: list[str] = []

    def bring() -> None:
        with twophase.transaction(other) as block:
            other.sql(BRINGS).write.option("mergeSchema", "true").insertInto(store.of("a"), overwrite=overwrite)
        brought.append(block.id)

    columns = spark.table(store.of("a")).columns
    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        meanwhile(bring)
        for name in (store.of("a"), f"hive.{store.of('a')}"):
            assert spark.table(name).columns == columns
            assert sorted(map(tuple, spark.sql(f"SELECT * FROM {name}").collect())) == [(v, k) for k, v in OLD]
    assert set(spark.table(store.of("a")).columns) == {"value", "more", "id"}
    twophase.undo(spark, brought[0])
    assert (spark.table(store.of("a")).columns, store.rows(spark, "a")) == (columns, OLD)


#: Where a table has former definitions, and where a read of one is refused.
every_definition = pytest.mark.parametrize(
    ("kind", "alter"),
    [
        ("session", "ADD COLUMNS (more INT)"),  # Spark's own.
        ("session", "ADD COLUMN more INT AFTER value"),
        pytest.param("partitioned", "ADD COLUMNS (more INT)", marks=pytest.mark.exhaustive),
        pytest.param("serde", "ADD COLUMNS (more INT)", marks=pytest.mark.exhaustive),
        ("lakehouse", "ADD COLUMNS (more INT)"),
        ("sqlite", "ADD COLUMNS (more INT)"),
    ],
)


@pytest.mark.promise("isolation", "a block never sees what a plain ALTER TABLE has changed since its begin")
@every_definition
def test_a_block_reads_by_the_definition_of_its_snapshot_or_is_refused(
    spark: SparkSession, other: SparkSession, store: Store, kind: str, alter: str
) -> None:
    name = store.of("a")
    columns = spark.table(name).columns
    with twophase.transaction(spark):
        meanwhile(lambda: other.sql(f"ALTER TABLE {name} {alter}"))
        if kind == "sqlite":
            with pytest.raises(SnapshotTooOldError, match=f"{name}.*again"):
                spark.table(name).collect()
        else:
            assert spark.table(name).columns == columns
            assert store.rows(spark, "a") == OLD
            assert store.rows(spark, "b") == OLD
    assert spark.table(name).columns != columns
    assert spark.table(name).count() == 2
    last = twophase.schema_history(spark, name)[-1]
    assert (last.is_current, last.commit is not None) == (True, kind != "lakehouse")  # No snapshot has it yet.
    with twophase.transaction(spark):  # The next one sees it.
        assert spark.table(name).columns != columns


@pytest.mark.parametrize(
    ("kind", "alter"),
    [
        ("session", "ADD COLUMNS (more INT)"),
        *(
            pytest.param(kind, "ADD COLUMN more INT", marks=pytest.mark.exhaustive)
            for kind in ("session", "partitioned", "lakehouse", "sqlite")
        ),
    ],
)
def test_what_a_serializable_block_has_read_was_altered(
    spark: SparkSession, other: SparkSession, store: Store, kind: str, alter: str
) -> None:
    refused = pytest.raises(WriteConflictError, match=f"{store.of('a')}, which transaction .* has changed")
    with refused, twophase.transaction(spark, isolation="serializable"):
        assert store.rows(spark, "a") == OLD
        meanwhile(lambda: other.sql(f"ALTER TABLE {store.of('a')} {alter}"))
        store.append(spark, "b", (3, 30))
    assert store.rows(spark, "b") == OLD


@pytest.mark.parametrize("kind", ["session", "lakehouse", "sqlite"])
def test_rows_that_were_staged_before_an_alter_follow_it_or_are_refused(
    spark: SparkSession, other: SparkSession, store: Store, kind: str
) -> None:
    alter = f"ALTER TABLE {store.of('a')} ADD COLUMNS (more INT)"
    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        store.append(spark, "a", (3, 30))
        meanwhile(lambda: other.sql(alter))
    assert store.rows(spark, "a") == [*OLD, (3, 30)]
    refused = pytest.raises(WriteConflictError) if kind == "sqlite" else nullcontext()
    with refused, twophase.transaction(spark):
        store.write(spark, "b", [(7, 70)])
        meanwhile(lambda: other.sql(alter.replace(store.of("a"), store.of("b"))))
    assert store.rows(spark, "b") == (OLD if kind == "sqlite" else [(7, 70)])


SWAP = ("RENAME COLUMN value TO former", "RENAME COLUMN id TO value", "RENAME COLUMN former TO id")


@pytest.mark.promise("isolation", "rows of a block never go into other columns than those that it sees")
@pytest.mark.parametrize(
    ("kind", "changes", "in_a_block"),
    [
        ("session", ["ALTER COLUMN id FIRST"], False),
        ("session", ["ALTER COLUMN id FIRST"], True),
        ("lakehouse", SWAP, False),
        pytest.param("lakehouse", SWAP, True, marks=pytest.mark.exhaustive),
        pytest.param("sqlite", SWAP, False, marks=pytest.mark.exhaustive),
        ("sqlite", SWAP, True),
    ],
)
def test_rows_never_go_into_columns_that_their_block_does_not_see(
    spark: SparkSession, other: SparkSession, store: Store, kind: str, changes: Sequence[str], in_a_block: bool
) -> None:
    name = store.of("a")

    def swap() -> None:
        with twophase.transaction(other) if in_a_block else nullcontext():
            for change in changes:
                other.sql(f"ALTER TABLE {name} {change}")

    refused = pytest.raises(WriteConflictError, match=f"{name} was not written: .* has changed its columns")
    with refused, twophase.transaction(spark):
        assert spark.table(name).columns == ["value", "id"]
        meanwhile(swap)
        store.append(spark, "a", (3, 30))
    assert spark.table(name).count() == 2
    store.append(spark, "a", (3, 30))


@pytest.mark.parametrize(
    ("kind", "in_a_block"),
    [
        ("sqlite", False),
        pytest.param("sqlite", True, marks=pytest.mark.exhaustive),
        pytest.param("lakehouse", False, marks=pytest.mark.exhaustive),
        pytest.param("lakehouse", True, marks=pytest.mark.exhaustive),
    ],
)
def test_rows_never_go_into_another_table_of_the_name_that_their_block_sees(
    spark: SparkSession, other: SparkSession, store: Store, kind: str, in_a_block: bool
) -> None:
    name = store.of("a")

    def make_anew() -> None:
        for statement in (f"DROP TABLE {name}", f"CREATE TABLE {name} AS SELECT 1 AS id, 10 AS value"):
            with twophase.transaction(other) if in_a_block else nullcontext():
                other.sql(statement)

    with pytest.raises(WriteConflictError, match=f"{name} was not written"), twophase.transaction(spark):
        assert spark.table(name).columns == ["value", "id"]
        meanwhile(make_anew)
        store.append(spark, "a", (3, 30))
    assert store.rows(spark, "a") == [(1, 10)]


@pytest.mark.promise("isolation", "a table that was dropped, created or renamed outside of a block is in no snapshot")
@pytest.mark.parametrize(
    "kind",
    [
        "session",
        *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("partitioned", "serde")),
        "lakehouse",
        pytest.param("sqlite", marks=pytest.mark.exhaustive),
    ],
)
def test_a_table_that_was_dropped_created_or_renamed_since_is_in_no_snapshot(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    a, b, new = store.of("a"), store.of("b"), store.of("new")
    spark.sql(f"DROP TABLE IF EXISTS {new}")

    def change() -> None:
        other.sql(f"CREATE TABLE {new} (id INT)")
        other.sql(f"DROP TABLE {a}")
        other.sql(f"CREATE TABLE {a} (value INT, id INT)")

    with twophase.transaction(spark):
        meanwhile(change)
        with pytest.raises((SnapshotTooOldError, AnalysisException)):
            spark.table(new).collect()
        with pytest.raises(SnapshotTooOldError, match=f"{a}.*again"):
            spark.table(a).collect()
    assert spark.table(new).count() == spark.table(a).count() == 0
    spark.sql(f"DROP TABLE {new}")

    with twophase.transaction(spark):
        meanwhile(lambda: other.sql(f"ALTER TABLE {b} RENAME TO {new.removeprefix('ice.').removeprefix('lite.')}"))
        with pytest.raises(SnapshotTooOldError, match=f"{b}.*again"):
            spark.table(b).collect()
        with pytest.raises((SnapshotTooOldError, AnalysisException)):
            spark.table(new).collect()
    assert store.rows(spark, "new") == OLD
    spark.sql(f"DROP TABLE {new}")


def swap(session: SparkSession, a: str, b: str) -> None:
    for name, new_name in ((a, "c"), (b, "a"), ("c", "b")):
        session.sql(f"ALTER TABLE {name} RENAME TO {new_name}")


def make_anew(session: SparkSession, a: str, _b: str) -> None:
    session.sql(f"DROP TABLE {a}")
    session.sql(f"CREATE TABLE {a} (value INT, id INT) USING parquet")
    session.sql(f"INSERT INTO {a} VALUES (77, 7)")


def save_anew(session: SparkSession, a: str, _b: str) -> None:
    """Spark's own, as twophase does not write this format."""
    session.sql(f"DROP TABLE {a}")
    session.sql("SELECT 77 AS value, 7 AS id").write.format("csv").saveAsTable(a)


def make_anew_by_the_api(session: SparkSession, a: str, _b: str) -> None:
    schema = session.table(a).schema
    session.sql(f"DROP TABLE {a}")
    session.catalog.createTable(a, source="parquet", schema=schema)
    session.sql("SELECT 77 AS value, 7 AS id").write.insertInto(a)


@pytest.mark.promise("isolation", "a block never reads another table under the name of one that it sees")
@pytest.mark.parametrize(
    ("change", "is_read"),
    [
        (make_anew, False),
        (swap, True),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in ((make_anew, True), (swap, False), (save_anew, False), (make_anew_by_the_api, False))
        ),
    ],
)
@pytest.mark.parametrize("kind", ["session"])
def test_another_table_is_never_read_under_the_name_of_one_that_the_block_sees(
    spark: SparkSession,
    other: SparkSession,
    store: Store,
    change: Callable[[SparkSession, str, str], None],
    is_read: bool,
) -> None:
    with twophase.transaction(spark):
        early = spark.table("a")
        if is_read:
            assert store.rows(spark, "a") == OLD
        meanwhile(lambda: change(other, "a", "b"))
        for read in (lambda: spark.table("a"), lambda: spark.sql("SELECT count(*) FROM default.a"), lambda: early):
            with pytest.raises(SnapshotTooOldError, match=r"default\.a.*again"):
                read().collect()
    assert store.rows(spark, "a") != []
    other.sql("DROP TABLE a")


@pytest.mark.promise("isolation", "rows of a block never go into another table of the name that it sees")
@pytest.mark.parametrize(
    ("verb", "change", "is_late"),
    [
        ("INSERT INTO", make_anew, False),
        ("INSERT INTO", swap, True),
        *(
            pytest.param(*case, marks=pytest.mark.exhaustive)
            for case in (
                ("INSERT INTO", make_anew, True),
                ("INSERT INTO", swap, False),
                ("INSERT OVERWRITE", make_anew, False),
                ("INSERT OVERWRITE", swap, True),
            )
        ),
    ],
)
@pytest.mark.parametrize("kind", ["session"])
def test_rows_never_go_into_another_session_table_of_the_name_that_their_block_sees(
    spark: SparkSession,
    other: SparkSession,
    store: Store,
    change: Callable[[SparkSession, str, str], None],
    verb: str,
    is_late: bool,
) -> None:
    def write() -> None:
        spark.sql(f"{verb} a VALUES (30, 3)")

    with pytest.raises(WriteConflictError, match=r"default\.a"), twophase.transaction(spark):
        assert store.rows(spark, "b") == OLD
        if not is_late:
            write()
        meanwhile(lambda: change(other, "a", "b"))
        if is_late:
            write()
    assert (3, 30) not in store.rows(spark, "a")
    other.sql("DROP TABLE a")


@pytest.mark.promise("isolation", "a table that was dropped with its database outside of a block is in no snapshot")
@pytest.mark.parametrize("catalog", ["", pytest.param("ice.", marks=pytest.mark.exhaustive)])
def test_a_table_that_was_dropped_with_its_database_is_in_no_snapshot(
    spark: SparkSession, other: SparkSession, catalog: str
) -> None:
    def make() -> None:
        other.sql(f"CREATE DATABASE {catalog}gone")
        for name in ("a", "b"):
            other.sql(f"CREATE TABLE {catalog}gone.{name} AS SELECT 1 AS id")

    def make_anew() -> None:
        other.sql(f"DROP DATABASE {catalog}gone CASCADE")
        make()

    make()
    timeline = twophase.attach(other).timeline
    before = timeline.last_number()
    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        meanwhile(make_anew)
        for name in ("a", "b"):
            with pytest.raises(SnapshotTooOldError, match=rf"gone\.{name}.*again"):
                spark.table(f"{catalog}gone.{name}").collect()
    assert timeline.last_number() == before + 3  # Of the DROP DATABASE and the two new tables.
    spark.sql(f"DROP DATABASE {catalog}gone CASCADE")


@pytest.mark.parametrize("kind", ["session"])
def test_a_block_reads_what_another_block_has_dropped_since(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    def drop() -> None:
        with twophase.transaction(other):
            other.sql("DROP TABLE a")

    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        meanwhile(drop)
        assert store.rows(spark, "a") == OLD
    assert not spark.catalog.tableExists("a")


@pytest.mark.parametrize("kind", ["session"])
def test_a_table_that_was_overwritten_and_then_altered_or_made_anew_is_read_with_its_former_columns_or_refused(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    def alter() -> None:
        store.write(other, "a", [(7, 70)])
        other.sql("ALTER TABLE a ADD COLUMNS (more INT)")
        store.write(other, "b", [(7, 70)])
        other.sql("DROP TABLE b")
        other.sql("CREATE TABLE b (id INT, value INT, more INT) USING parquet")

    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        meanwhile(alter)
        assert spark.table("a").columns == ["value", "id"]
        assert store.rows(spark, "a") == OLD
        with pytest.raises(SnapshotTooOldError, match=r"default\.b.*again"):
            spark.table("b").collect()


@pytest.mark.parametrize("kind", ["session"])
def test_a_table_that_was_overwritten_is_read_whatever_was_added_since(
    spark: SparkSession, other: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaced, "MOST_FILES", 0)  # As if the INSERT brought more than are recorded.
    store.write(other, "b", OLD)

    def write() -> None:
        store.write(other, "a", [(7, 70)])
        store.append(other, "a", (8, 80))
        store.append(other, "b", (8, 80))

    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        meanwhile(write)
        assert store.rows(spark, "a") == OLD
        with pytest.raises(SnapshotTooOldError, match=r"default\.b.*again"):
            spark.table("b").collect()


@pytest.mark.parametrize("kind", ["session"])
def test_what_changes_no_table_has_no_number(spark: SparkSession, other: SparkSession, store: Store) -> None:
    timeline = twophase.attach(other).timeline
    other.sql("CREATE TABLE free (id INT) STORED AS PARQUET")
    before = timeline.last_number()

    def change_nothing() -> None:
        for statement in (
            "CREATE TABLE IF NOT EXISTS free (id INT) STORED AS PARQUET",
            "CREATE VIEW seen AS SELECT * FROM b",
            "ALTER VIEW seen RENAME TO shown",
            "CREATE TEMPORARY VIEW a AS SELECT 1 AS id",
            "DROP VIEW a",
            "DROP TABLE IF EXISTS missing",
            "DROP DATABASE IF EXISTS missing CASCADE",
        ):
            other.sql(statement)
        for statement in (
            "CREATE TABLE a (id INT) STORED AS PARQUET",
            "ALTER TABLE a RENAME TO b",
            "ALTER TABLE missing RENAME TO other",
            "DROP TABLE missing",
            "DROP DATABASE default CASCADE",
        ):
            with pytest.raises(AnalysisException):
                other.sql(statement)

    with twophase.transaction(spark, isolation="serializable"):
        assert store.rows(spark, "a") == OLD
        meanwhile(change_nothing)
        assert spark.table("shown").count() == 2
        store.write(spark, "b", [(3, 30)])
    assert timeline.last_number() == before + 1
    other.sql("DROP VIEW shown")
    other.sql("DROP TABLE free")
    assert (timeline.last_number(), timeline.transactions(open_only=True)) == (before + 2, [])


@pytest.mark.parametrize(
    ("kind", "action"),
    [
        ("session", "error"),
        *(pytest.param(kind, "error", marks=pytest.mark.exhaustive) for kind in ("lakehouse", "sqlite")),
        pytest.param("session", "lost_reply", marks=pytest.mark.exhaustive),
    ],
)
def test_an_alter_whose_end_is_not_recorded_is_in_no_snapshot_and_gets_its_number_later(
    spark: SparkSession, other: SparkSession, store: Store, kind: str, action: str
) -> None:
    name = store.of("a")
    columns = spark.table(name).columns
    with twophase.transaction(spark):
        failpoints.arm("core.record_immediate_end", action)
        meanwhile(lambda: other.sql(f"ALTER TABLE {name} ADD COLUMNS (more INT)"))
        failpoints.disarm()
        for _ in range(2):
            if kind == "sqlite":
                with pytest.raises(SnapshotTooOldError, match=name):
                    spark.table(name).collect()
            else:
                assert (spark.table(name).columns, store.rows(spark, "a")) == (columns, OLD)
            twophase.attach(other).recover()
    assert spark.table(name).columns == [*columns, "more"]
    with twophase.transaction(spark):
        assert spark.table(name).columns == [*columns, "more"]


@pytest.mark.parametrize(
    "kind", ["session", *(pytest.param(kind, marks=pytest.mark.exhaustive) for kind in ("lakehouse", "sqlite"))]
)
def test_an_alter_that_is_refused_is_no_change(
    spark: SparkSession, other: SparkSession, store: Store, kind: str
) -> None:
    timeline = twophase.attach(other).timeline
    before = timeline.last_number()
    with twophase.transaction(spark, isolation="serializable"):
        assert store.rows(spark, "a") == OLD
        for change in ("RENAME COLUMN none TO some", "ADD COLUMNS (value INT)"):
            with pytest.raises(Exception, match=r"(?i)none|some|value"):
                other.sql(f"ALTER TABLE {store.of('a')} {change}")
        store.append(spark, "b", (3, 30))
    assert timeline.last_number() == before + 1
    assert timeline.transactions(open_only=True) == timeline.locks() == []


@pytest.mark.parametrize("kind", ["serde"])
def test_an_alter_that_the_metastore_refuses_holds_up_no_writer(spark: SparkSession, store: Store) -> None:
    """Of a change that fails Spark reports only that it is about to be made."""
    name, timeline = store.of("a"), twophase.attach(spark).timeline
    before = timeline.last_number()
    for _ in range(2):
        with pytest.raises(AnalysisException, match="x,y"):
            spark.sql(f"ALTER TABLE {name} ADD COLUMNS (s STRUCT<`x,y`: INT>)")
    store.append(spark, "a", (3, 30))
    assert timeline.last_number() == before + 1
    assert timeline.transactions(open_only=True) == timeline.locks() == []
    spark.sql(f"ALTER TABLE {name} ADD COLUMNS (more INT)")
    assert (timeline.last_number(), timeline.transactions(open_only=True)) == (before + 2, [])


@pytest.mark.parametrize("kind", ["session"])
def test_what_follows_a_refused_drop_of_a_database_does_not_end_it(
    spark: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A view has no place in the order of commits; of a statement that fails Spark reports no end."""
    timeline = twophase.attach(spark).timeline
    monkeypatch.setattr(spark_ddl, "_goes_on", lambda _: True)  # The next statement comes before the next look.
    spark.sql("CREATE DATABASE filled")
    spark.sql("CREATE TABLE filled.t (id INT) USING parquet")
    spark.sql("CREATE VIEW filled.v AS SELECT 1 AS id")
    before = timeline.last_number()
    for statement in ("ALTER VIEW filled.v RENAME TO filled.w", "DROP VIEW filled.w"):
        with pytest.raises(AnalysisException, match="filled"):
            spark.sql("DROP DATABASE filled")
        spark.sql(statement)
        assert (timeline.last_number(), timeline.transactions(open_only=True), timeline.locks()) == (before, [], [])
    spark.sql("DROP DATABASE filled CASCADE")
    assert timeline.last_number() == before + 1


@pytest.mark.promise("isolation", "Spark's own DDL that the timeline cannot record is made, and one line says so")
@pytest.mark.parametrize("kind", ["session"])
def test_a_change_by_spark_that_the_timeline_cannot_record_is_made_and_one_line_says_so(
    spark: SparkSession, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    failpoints.arm("core.record_immediate", "error")
    spark.sql(f"ALTER TABLE {store.of('a')} ADD COLUMNS (more INT)")
    assert spark.table(store.of("a")).columns == ["value", "id", "more"]
    spark.sql("DROP TABLE a")
    spark.sql("CREATE TABLE a (id INT) USING parquet")
    assert spark.table("a").collect() == []
    found = [record for record in caplog.records if record.levelname == "WARNING" and "Spark " in record.message]
    for verb, record in zip(("alters", "drops", "creates"), found, strict=True):
        assert (f"Spark {verb} {store.of('a')}" in record.message, record.exc_info) == (True, None)


@pytest.mark.parametrize("kind", ["session"])
def test_a_drop_whose_end_is_not_recorded_is_in_no_snapshot(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    with twophase.transaction(spark):
        spark.sql("SELECT 1").collect()
        failpoints.arm("core.record_immediate_end", "error")
        meanwhile(lambda: other.sql("DROP TABLE a"))
        failpoints.disarm()
        for _ in range(2):
            with pytest.raises(SnapshotTooOldError, match=r"default\.a.*again"):
                spark.table("a").collect()
            twophase.attach(other).recover()
    with twophase.transaction(spark), pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
        spark.table("a")


def test_an_alter_costs_two_writes_of_the_timeline(spark: SparkSession) -> None:
    spark.sql("CREATE OR REPLACE TABLE ice.db.cheap AS SELECT 1 AS id")
    counted: list[str] = []
    for point in ("core.record_immediate", "core.record_immediate_end", "core.record_inflight", "core.reserve"):
        failpoints.arm(point, counted.append)
    spark.sql("ALTER TABLE ice.db.cheap ADD COLUMN more INT")
    spark.table("ice.db.cheap").collect()
    assert counted == ["core.record_immediate", "core.record_immediate_end"]


@pytest.mark.parametrize("by", ["PARTITIONED BY (id)", ""], ids=["partitioned", "flat"])
def test_columns_that_are_brought_in_place_are_left_out_like_their_rows(
    spark: SparkSession, other: SparkSession, tmp_path: Path, by: str
) -> None:
    spark.sql("DROP TABLE IF EXISTS placed")
    spark.sql(f"CREATE TABLE placed (value INT, id INT) USING parquet {by} LOCATION '{tmp_path / 'placed'}'")
    spark.sql("INSERT INTO placed VALUES (10, 1)")
    with twophase.transaction(spark):
        frame = spark.table("placed")
        assert frame.count() == 1
        meanwhile(lambda: other.sql(BRINGS).write.option("mergeSchema", "true").insertInto("placed"))
        assert spark.table("placed").columns == frame.columns == ["value", "id"]
        assert [tuple(row) for row in frame.collect()] == [(10, 1)]
    assert sorted(map(tuple, spark.sql("SELECT id, more FROM placed").collect())) == [(1, None), (3, 3)]


@pytest.mark.parametrize("kind", ["partitioned"])
def test_columns_that_come_while_the_name_of_a_table_is_resolved_are_refused(
    spark: SparkSession, other: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring() -> None:
        other.sql(BRINGS).write.option("mergeSchema", "true").insertInto(store.of("a"))

    _once(bring, "a", monkeypatch)
    with pytest.raises(SnapshotTooOldError, match=r"parts\.a"), twophase.transaction(spark):
        spark.table(store.of("a")).collect()


@pytest.mark.parametrize("kind", ["partitioned"])
def test_what_tells_of_the_present_state_of_a_table_is_refused_in_a_block_that_sees_a_former_one(
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
        meanwhile(lambda: store.append(other, "a", (3, 30)))
        for statement in statements:
            with pytest.raises(AtomicityNotSupportedError, match=r"parts\.a as it is now"):
                spark.sql(statement)
    assert spark.sql(statements[0]).count() == 3


@pytest.mark.promise("visibility", "a block reads what another process had published before it began")
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
            meanwhile(lambda: store.append(other, "a", (3, 30)))
        return frame.count()

    assert twophase.run(spark, work) == 3
    assert tries == 2


# -- conflict policies ------------------------------------------------------------------------------------------------

#: Many short sleeps: a cancelled task ends at its next row.
SLOW = "SELECT id AS value, java_method('java.lang.Thread', 'sleep', 50L) AS id FROM range(0, 4000, 1, 2)"


@pytest.mark.promise("conflicts", "under wound_wait an older block rolls a younger one back, whose job is cancelled")
@pytest.mark.parametrize("kind", ["session", "lakehouse"])
def test_a_block_is_wounded_during_its_job_and_told_by_whom(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    raised: list[BaseException] = []
    with twophase.transaction(spark, conflict="wound_wait", isolation="read_committed") as old:
        store.write(spark, "b", [(9, 90)])  # It is recorded, and so it is older.
        running = threading.Event()

        def quick() -> None:
            try:
                with twophase.transaction(other, conflict="wound_wait"):
                    running.set()
                    other.sql(f"INSERT OVERWRITE {store.of('a')} SELECT value, length(id) AS id FROM ({SLOW})")
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=quick)
        thread.start()
        assert running.wait(60)
        jobs = spark.sparkContext.statusTracker()
        gate = threading.Event()
        while not jobs.getActiveJobsIds():
            gate.wait(0.02)
        store.write(spark, "a", [(8, 80)])
        thread.join(60)
        assert not thread.is_alive()

    (error,) = raised
    assert isinstance(error, WoundedError)
    assert old.id in str(error)
    assert (store.rows(spark, "a"), store.rows(spark, "b")) == ([(8, 80)], [(9, 90)])


@pytest.mark.parametrize("kind", ["session"])
def test_a_table_is_locked_by_its_name(spark: SparkSession, other: SparkSession, store: Store) -> None:
    with twophase.transaction(spark) as tx:
        tx.lock("a")
        with pytest.raises(ConfigurationError, match=r"nowhere\.c\.d"):
            tx.lock("nowhere.c.d")

        def refused() -> None:
            with pytest.raises(WriteConflictError, match=tx.id), twophase.transaction(other, conflict="fail"):
                store.write(other, "a", [(9, 90)])

        meanwhile(refused)
        store.write(spark, "a", [(8, 80)])
    assert store.rows(spark, "a") == [(8, 80)]


@pytest.mark.parametrize("kind", ["session"])
def test_run_keeps_its_age_and_gets_through_next_to_younger_blocks(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    calls: list[Any] = []

    def block(tx: twophase.Transaction) -> None:
        store.write(spark, "b", [(9, 90 + len(calls))])
        calls.append(twophase.attach(spark).timeline.transaction(tx.id))
        if len(calls) == 1:
            meanwhile(lambda: store.write(other, "a", [(7, 70)]))
        store.write(spark, "a", [(8, 80)])

    twophase.run(spark, block, isolation="snapshot", conflict="wait_die", wait="30s")
    first, second = calls
    assert abs(second.first_begun - first.first_begun) < (second.created - first.created) / 2
    assert (store.rows(spark, "a"), store.rows(spark, "b")) == ([(8, 80)], [(9, 91)])


@pytest.mark.parametrize("kind", ["lakehouse"])
def test_run_gives_up_after_its_attempts(spark: SparkSession, other: SparkSession, store: Store) -> None:
    tries: list[str] = []

    def block(tx: twophase.Transaction) -> None:
        tries.append(tx.id)
        meanwhile(lambda: store.append(other, "a", (len(tries) + 2, 30)))
        store.write(spark, "a", [(9, 90)])

    with pytest.raises(WriteConflictError) as refused:
        twophase.run(spark, block, attempts=2)
    assert (len(tries), refused.value.transaction_id) == (2, tries[-1])
    assert store.rows(spark, "a") == [*OLD, (3, 30), (4, 30)]

    def failing() -> None:
        tries.append("another error")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        twophase.run(spark, failing)
    assert tries[2:] == ["another error"]
    with pytest.raises(ConfigurationError, match="at least once"):
        twophase.run(spark, failing, attempts=0)


class Refusing(ConflictPolicy):
    """Lets appends wait."""

    def on_conflict(self, requester: Contender, holder: Contender, mode: str) -> Resolution:
        return Resolution.WAIT if mode == "append" else Resolution.DIE


def configured(spark: SparkSession, **options: str) -> SparkSession:
    """A session with options of its own."""
    session = spark.newSession()
    for key, value in options.items():
        session.conf.set(f"spark.twophase.{key}", value)
    twophase.attach(session)
    return session


@pytest.mark.parametrize("kind", ["session"])
def test_the_options_of_a_session_are_those_of_its_blocks(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    strict = configured(spark, isolation="serializable", conflict=f"{__name__}:Refusing", wait="0.2s")
    with pytest.raises(WriteConflictError, match="reads table"), twophase.transaction(strict):
        assert store.rows(strict, "a") == OLD
        meanwhile(lambda: store.append(other, "a", (3, 30)))
        store.append(strict, "b", (3, 30))
    with twophase.transaction(spark) as holder:
        holder.lock("b")

        def refused() -> None:
            with twophase.transaction(strict):
                with pytest.raises(WriteConflictError, match=rf"{holder.id}\."):
                    store.write(strict, "b", [(9, 90)])
                with pytest.raises(WriteConflictError, match=rf"{holder.id} after 0\.2 s of waiting"):
                    store.append(strict, "b", (9, 90))

        meanwhile(refused)
    short = configured(spark, **{"transaction.timeout": "0.3s", "isolation": "read_committed"})
    ended = threading.Event()
    with pytest.raises(TransactionAborted, match="longer than its timeout"), twophase.transaction(short) as tx:
        assert tx.isolation is Isolation.READ_COMMITTED
        tx.at_end(ended.set)  # type: ignore[arg-type]
        store.write(short, "b", [(9, 90)])
        assert ended.wait(60)
        short.sql("SELECT 1").collect()
    assert store.rows(spark, "b") == OLD


@pytest.mark.promise("conflicts", "a block that lasts longer than its timeout is rolled back, and its job is cancelled")
@pytest.mark.parametrize("kind", ["session"])
def test_a_block_that_lasts_too_long_is_rolled_back_during_its_job(spark: SparkSession, store: Store) -> None:
    with (
        pytest.raises(TransactionAborted, match="longer than its timeout"),
        twophase.transaction(spark, timeout="2s") as tx,
    ):
        spark.sql(f"INSERT OVERWRITE {store.of('a')} SELECT value, length(id) AS id FROM ({SLOW})")
    assert tx.state is TransactionState.ROLLED_BACK
    assert store.rows(spark, "a") == OLD


@pytest.mark.parametrize("terms", [{"conflict": "wound"}, {"wait": "soon"}, {"timeout": "1 parsec"}])
def test_terms_that_do_not_exist_are_refused(spark: SparkSession, terms: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError), twophase.transaction(spark, **terms):  # type: ignore[arg-type]
        pass
