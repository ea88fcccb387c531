"""Rows and drops of a table that the transaction has renamed before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.sql import SparkSession

import twophase
from tests.spark.blocks import elsewhere, rolled_back_then_published, rows
from tests.spark.ddl.stores import CREATING, WITH_ROWS
from twophase.errors import AtomicityNotSupportedError, TwoPhaseError, WriteConflictError
from twophase.model import Isolation


@pytest.mark.promise(
    "ddl-in-blocks", "rows that a block adds to a table after it has renamed it are published with it", detail=True
)
@pytest.mark.parametrize(
    "isolation", [pytest.param(Isolation.READ_COMMITTED, marks=pytest.mark.exhaustive), Isolation.SNAPSHOT]
)
@pytest.mark.parametrize("table", WITH_ROWS, indirect=True)
def test_rows_are_added_to_a_table_after_its_rename(
    spark: SparkSession, table: Callable[[str], str], isolation: Isolation
) -> None:
    old, new, third, other = table("old"), table("new"), table("third"), spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {old} AS SELECT 1 AS id")

    def run(tx: Any) -> None:
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        tx.savepoint("renamed")
        spark.sql(f"INSERT INTO {new} VALUES (9)")
        tx.rollback_to("renamed")
        assert rows(spark, f"SELECT * FROM {new}") == [(1,)]
        spark.sql(f"INSERT INTO {new} VALUES (2)")
        spark.sql(f"INSERT INTO {new} SELECT id + 10 FROM {new}")
        assert rows(spark, f"SELECT * FROM {new}") == [(1,), (2,), (11,), (12,)]
        with pytest.raises(AtomicityNotSupportedError, match="has written it before"):
            spark.sql(f"ALTER TABLE {new} RENAME TO {third}")
        if old.startswith(CREATING):
            spark.sql(f"CREATE TABLE {old} AS SELECT 'other' AS name")
            spark.sql(f"INSERT INTO {old} VALUES ('more')")

    def is_as_before() -> bool:
        return rows(other, f"SELECT * FROM {old}") == [(1,)] and not other.catalog.tableExists(new)

    tx = rolled_back_then_published(spark, run, is_as_before, isolation=isolation)
    assert str(tx.level) == "ATOMIC"
    if old.startswith(CREATING):
        assert rows(other, f"SELECT * FROM {old}") == [("more",), ("other",)]
    assert rows(other, f"SELECT * FROM {new}") == [(1,), (2,), (11,), (12,)]
    with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation=isolation):
        spark.sql(f"ALTER TABLE {new} RENAME TO {third}")
        spark.sql(f"INSERT INTO {third} VALUES (5)")
        elsewhere(lambda: other.sql(f"INSERT INTO {new} VALUES (6)"))
    with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation=isolation):
        spark.sql(f"ALTER TABLE {new} RENAME TO {third}")
        spark.sql(f"INSERT INTO {third} VALUES (5)")
        elsewhere(lambda: other.sql(f"CREATE TABLE {third} AS SELECT 7 AS id"))
    assert rows(spark, f"SELECT * FROM {new}") == [(1,), (2,), (6,), (11,), (12,)]
    assert rows(spark, f"SELECT * FROM {third}") == [(7,)]


@pytest.mark.promise(
    "ddl-in-blocks", "a table that a block has renamed is emptied, overwritten or dropped in it", detail=True
)
@pytest.mark.parametrize("table", WITH_ROWS, indirect=True)
def test_a_renamed_table_is_emptied_overwritten_or_dropped(
    spark: SparkSession, table: Callable[[str], str], postgresql: Any
) -> None:
    old, new, other = table("old"), table("new"), spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {old} AS SELECT 1 AS id")
    with twophase.transaction(spark) as tx:
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        tx.savepoint("renamed")
        spark.sql(f"INSERT OVERWRITE {new} SELECT id + 8 FROM {new}")
        assert rows(spark, f"SELECT * FROM {new}") == [(9,)]
        tx.rollback_to("renamed")
        assert rows(spark, f"SELECT * FROM {new}") == [(1,)]
        spark.sql(f"TRUNCATE TABLE {new}")
        assert rows(spark, f"SELECT * FROM {new}") == []
        spark.sql(f"INSERT INTO {new} VALUES (2)")
        spark.sql(f"INSERT INTO {new} SELECT id + 10 FROM {new}")
        assert rows(spark, f"SELECT * FROM {new}") == [(2,), (12,)] and rows(other, f"SELECT * FROM {old}") == [(1,)]
    assert str(tx.level) == "ATOMIC" and not other.catalog.tableExists(old)
    assert rows(other, f"SELECT * FROM {new}") == [(2,), (12,)]

    def add(program: bool) -> None:
        if program and new.startswith("pg."):
            engine = sa.create_engine(postgresql.url, poolclass=sa.pool.NullPool)
            with engine.begin() as connection:
                connection.exec_driver_sql(f"INSERT INTO {new.removeprefix('pg.')} VALUES (6)")
        else:
            other.sql(f"INSERT INTO {new} VALUES (6)")

    for last in (f"INSERT OVERWRITE {old} VALUES (5)", f"TRUNCATE TABLE {old}", f"DROP TABLE {old}"):
        for program in (True, False):
            with pytest.raises(WriteConflictError), twophase.transaction(spark):
                spark.sql(f"ALTER TABLE {new} RENAME TO {old}")
                spark.sql(last)
                elsewhere(lambda program=program: add(program))  # type: ignore[misc]
    assert len(rows(spark, f"SELECT * FROM {new}")) == 8


@pytest.mark.promise(
    "ddl-in-blocks", "a name under which a block has dropped an Iceberg table is given to another one", detail=True
)
def test_an_iceberg_table_takes_rows_in_partitions_and_leaves_its_name_by_a_drop(spark: SparkSession) -> None:
    old, new, built = "ice.db.parts", "ice.db.parts_new", "ice.db.parts_built"
    spark.sql(f"CREATE TABLE {old} (id INT, p STRING) PARTITIONED BY (p)")
    spark.sql(f"INSERT INTO {old} VALUES (1, 'a'), (2, 'b')")
    with twophase.transaction(spark) as filled:
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        spark.sql(f"INSERT OVERWRITE {new} PARTITION (p = 'a') VALUES (7)")
        assert rows(spark, f"SELECT * FROM {new}") == [(2, "b"), (7, "a")]
    as_filled = f"SELECT * FROM {new} VERSION AS OF '{filled.id}'"
    assert rows(spark, as_filled) == rows(spark, f"SELECT * FROM {new}") == [(2, "b"), (7, "a")]
    with pytest.raises(TwoPhaseError):
        twophase.undo(spark, filled.id)
    spark.sql(f"CREATE TABLE {built} AS SELECT 'built' AS name")
    with twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {new} RENAME TO {old}")
        spark.sql(f"DROP TABLE {old}")
        spark.sql(f"ALTER TABLE {built} RENAME TO {old}")
        spark.sql(f"INSERT INTO {old} VALUES ('more')")
    assert rows(spark, f"SELECT * FROM {old}") == [("built",), ("more",)] and not spark.catalog.tableExists(new)
    files = [Path(row.file_path.removeprefix("file:")) for row in spark.sql(f"SELECT * FROM {old}.files").collect()]
    assert files and all(file.exists() for file in files)
    spark.sql(f"CREATE TABLE {built} AS SELECT 'other' AS name")
    with twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        spark.sql(f"DROP TABLE {new} PURGE")
        with pytest.raises(AtomicityNotSupportedError, match="with PURGE"):
            spark.sql(f"ALTER TABLE {built} RENAME TO {new}")
    assert not any(file.exists() for file in files) and not spark.catalog.tableExists(old)
