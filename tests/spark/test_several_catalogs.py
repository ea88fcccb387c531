"""One block over Hive, an Iceberg catalog in SQL and a relational database: all tables change, or none does."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import twophase
from tests.spark.conftest import Start
from twophase import TransactionState, failpoints
from twophase.errors import TransactionInDoubt, WriteConflictError
from twophase.model import Level, ObjectPath
from twophase.spark.jvm.deletes import Delete

OLD, NEW = [0, 1, 2], [0, 1, 2, 100]
HIVE, LAKE, OTHER = "hive_t", "ice.db.t", "ice.db.u"
#: A database before the other catalogs by its name, and one behind them.
FIRST, LAST = "a_lite.main.t", "lite.main.t"


@dataclass
class Stores:
    """The session, and its stores past it."""

    spark: SparkSession
    directory: Path

    def rows(self, table: str) -> list[int]:
        self.spark.sql(f"REFRESH TABLE {table}")
        return [row[0] for row in self.spark.table(table).orderBy("id").collect()]

    def insert(self, *tables: str, but: Callable[[], None] = lambda: None) -> twophase.Transaction:
        """A block that adds a row to each table; another writer comes when it is about to decide."""
        failpoints.arm("core.record_committing", lambda _: but())
        try:
            with twophase.transaction(self.spark) as tx:
                for table in tables:
                    self.spark.sql(f"INSERT INTO {table} SELECT 100L AS id")
                self.tx = tx
        finally:
            failpoints.disarm()
        return tx

    def lite(self, table: str, statement: str) -> None:
        """Another writer in a SQLite file."""
        with closing(sqlite3.connect(self.directory / f"{table.partition('.')[0]}.db")) as connection:
            connection.execute(statement)
            connection.commit()

    def drop(self, catalog: str, *names: str) -> None:
        twophase.attach(self.spark).catalog(catalog).drop_table(ObjectPath.of(*names))


@pytest.fixture(scope="module")
def stores(start: Start, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    directory = tmp_path_factory.mktemp("several")
    conf = {"spark.sql.catalog.ice": "twophase.lakehouse", "spark.sql.catalog.ice.warehouse": str(directory / "lake")}
    for name in ("a_lite", "lite"):
        conf |= {
            f"spark.sql.catalog.{name}": "twophase.jdbc",
            f"spark.sql.catalog.{name}.url": f"sqlite:///{directory}/{name}.db",
        }
    spark = start(conf)
    twophase.attach(spark).catalog("ice").create_database("db")
    return Stores(spark, directory)


@pytest.fixture(autouse=True)
def tables(stores: Stores) -> Iterator[None]:
    for table in (HIVE, LAKE, OTHER, FIRST, LAST):
        stores.spark.sql(f"CREATE OR REPLACE TABLE {table} AS SELECT id FROM range(3)")
    yield
    assert twophase.attach(stores.spark).timeline.transactions(open_only=True) == []


ALL = (HIVE, LAKE, OTHER, LAST)


@pytest.mark.promise("several-catalogs", "with at most one that cannot be rolled back: reversible")
def test_tables_of_several_catalogs_change_together(stores: Stores) -> None:
    tx = stores.insert(*ALL)
    assert (tx.state, tx.level) == (TransactionState.COMPLETED, Level.REVERSIBLE)
    assert [stores.rows(table) for table in ALL] == [NEW] * 4


@pytest.mark.promise("several-catalogs", "a late refusal by a database rolls back all, whatever its name")
@pytest.mark.parametrize("database", [FIRST, LAST])
def test_a_late_refusal_of_the_database_undoes_all_whatever_its_name(stores: Stores, database: str) -> None:
    with pytest.raises(WriteConflictError):
        stores.insert(HIVE, LAKE, OTHER, database, but=lambda: stores.lite(database, "ALTER TABLE t RENAME TO away"))
    stores.lite(database, "ALTER TABLE away RENAME TO t")
    assert stores.tx.state is TransactionState.ROLLED_BACK
    assert [stores.rows(table) for table in (HIVE, LAKE, OTHER, database)] == [OLD] * 4


@pytest.mark.promise("several-catalogs", "a late refusal by a lakehouse rolls back all")
@pytest.mark.parametrize("database", [FIRST, LAST])
def test_a_late_refusal_of_the_lake_undoes_all(stores: Stores, database: str) -> None:
    with pytest.raises(WriteConflictError):
        stores.insert(HIVE, LAKE, OTHER, database, but=lambda: stores.drop("ice", "db", "u"))
    assert stores.tx.state is TransactionState.ROLLED_BACK
    assert [stores.rows(table) for table in (HIVE, LAKE, database)] == [OLD] * 3


@pytest.mark.promise("several-catalogs", "a late refusal by Hive rolls back all")
@pytest.mark.parametrize("database", [FIRST, LAST])
def test_a_late_refusal_of_hive_undoes_all(stores: Stores, database: str) -> None:
    with pytest.raises(WriteConflictError):
        stores.insert(HIVE, LAKE, OTHER, database, but=lambda: stores.drop("hive", "default", HIVE))
    assert stores.tx.state is TransactionState.ROLLED_BACK
    assert [stores.rows(table) for table in (LAKE, OTHER, database)] == [OLD] * 3


def test_a_created_and_a_replaced_table_of_the_lake_are_undone_too(stores: Stores) -> None:
    spark = stores.spark
    other_writer = lambda _: stores.lite(LAST, "ALTER TABLE t RENAME TO away")  # noqa: E731
    failpoints.arm("core.record_committing", other_writer)
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql("CREATE TABLE ice.db.made AS SELECT 1 AS id")
        spark.sql("CREATE OR REPLACE TABLE ice.db.t AS SELECT 'other' AS word")
        spark.sql("INSERT OVERWRITE ice.db.u SELECT 7L")
        spark.sql(f"INSERT INTO {LAST} SELECT 100L")
    failpoints.disarm()
    stores.lite(LAST, "ALTER TABLE away RENAME TO t")
    assert not spark.catalog.tableExists("ice.db.made")
    assert [stores.rows(table) for table in (LAKE, OTHER, LAST)] == [OLD] * 3


def in_part(stores: Stores) -> twophase.Transaction:
    """Two databases cannot be undone, and the second one refuses."""
    with pytest.raises(TransactionInDoubt) as caught:
        stores.insert(*ALL, FIRST, but=lambda: stores.lite(LAST, "ALTER TABLE t RENAME TO away"))
    tx = stores.tx
    assert (tx.state, tx.level) == (TransactionState.IN_DOUBT, Level.BEST_EFFORT)
    assert f"not published: {LAST}" in str(caught.value)
    assert f"twophase recover {tx.id}" in str(caught.value)
    return tx


@pytest.mark.promise(
    "several-catalogs",
    "two publishes that cannot be undone: best effort, completed by recovery once nothing is in the way",
)
def test_two_databases_are_level_one_and_completed_by_the_recovery_once_nothing_is_in_the_way(
    stores: Stores,
) -> None:
    tx = in_part(stores)
    handle = twophase.attach(stores.spark)
    (still,) = handle.recover()
    assert (still.state, still.account.not_published) == (TransactionState.IN_DOUBT, (LAST,))
    stores.lite(LAST, "ALTER TABLE away RENAME TO t")
    (ended,) = handle.recover()
    assert (ended.transaction_id, ended.state) == (tx.id, TransactionState.COMPLETED)
    assert [stores.rows(table) for table in (*ALL, FIRST)] == [NEW] * 5


@pytest.mark.parametrize("state", [TransactionState.COMPLETED, TransactionState.ROLLED_BACK])
def test_an_operator_sees_each_table_of_a_partially_published_transaction(
    stores: Stores, state: TransactionState
) -> None:
    tx = in_part(stores)
    (ended,) = twophase.attach(stores.spark).coordinator.recover(transaction_id=tx.id, assume=state)
    stores.lite(LAST, "ALTER TABLE away RENAME TO t")
    is_new = {table for table in (*ALL, FIRST) if stores.rows(table) == NEW}
    told = {name.replace("hive.default.", "") for name in ended.account.published}
    assert told == is_new
    assert is_new == ({HIVE, LAKE, OTHER, FIRST} if state is TransactionState.COMPLETED else {FIRST})


NONE = "CAST(raise_error('no such row') AS BIGINT)"


@pytest.mark.promise("iceberg-sql", "a subquery of a `DELETE` is run once, also over a database", detail=True)
@pytest.mark.parametrize(
    "condition",
    [
        "id IN (SELECT k FROM lite.main.gone)",
        f"id = (SELECT max(k) FROM lite.main.gone JOIN {HIVE} ON id = k)",
        "1 = (SELECT count(*) FROM lite.main.gone AS g WHERE g.k = d.id)",
        "EXISTS (SELECT 1 FROM lite.main.gone AS g WHERE g.k = d.id AND g.k IN (SELECT k FROM lite.main.gone))",
    ],
)
def test_a_subquery_of_a_delete_is_run_once(stores: Stores, monkeypatch: pytest.MonkeyPatch, condition: str) -> None:
    stores.spark.sql("CREATE TABLE ice.db.d AS SELECT /*+ COALESCE(1) */ id FROM range(4)")
    stores.spark.sql("CREATE OR REPLACE TABLE lite.main.gone AS SELECT 1L AS k")
    find = Delete.files

    def change_afterwards(*facts: Any) -> list[str]:
        found = find(*facts)
        stores.lite("lite.main.gone", "UPDATE gone SET k = 2")
        return found

    monkeypatch.setattr(Delete, "files", change_afterwards)
    try:
        with pytest.raises(PySparkException, match="no such row"):
            stores.spark.sql(f"DELETE FROM ice.db.d AS d WHERE {condition} AND id IN (SELECT {NONE} FROM {LAST})")
        stores.spark.sql(f"DELETE FROM ice.db.d AS d WHERE {condition}")
        assert stores.rows("ice.db.d") == [0, 2, 3]
    finally:
        stores.spark.sql("DROP TABLE ice.db.d")
