"""Two writers at once in real stores: who is refused, who waits, and that no acknowledged row is lost.

The names of the cases are those of the Hermitage suite, where they have one there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyspark import InheritableThread
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from twophase import TransactionState, failpoints
from twophase.errors import WriteConflictError

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
#: Where a table's files, or rows, have more than one way to be read.
session_tables = pytest.mark.parametrize("kind", ["session", "partitioned", "serde"])


# -- a write rests on what its transaction has read -------------------------------------------------------------------


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


@every_store
def test_deadlock_overwrite_of_crossed_blocks_one_gets_through(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    told = crossed([spark, other], lambda session, name, number: store.write(session, name, [(number, 0)]))

    assert [type(error) for error in told] == [WriteConflictError]
    assert store.rows(spark, "a") == store.rows(spark, "b")
    assert store.rows(spark, "a") in ([(3, 0)], [(4, 0)])


@pytest.mark.parametrize("kind", ["lakehouse", "sqlite", "plugin"])
def test_deadlock_insert_both_crossed_blocks_get_through(
    spark: SparkSession, other: SparkSession, store: Store
) -> None:
    told = crossed([spark, other], lambda session, name, number: store.append(session, name, (number, 0)))

    assert told == []
    assert store.rows(spark, "a") == store.rows(spark, "b") == [*OLD, (3, 0), (4, 0)]


@every_store
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
