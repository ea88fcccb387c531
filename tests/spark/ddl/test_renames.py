"""Tables that a transaction renames: seen by it, and published or undone with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.spark.blocks import elsewhere, rolled_back_then_published, rows
from tests.spark.ddl.stores import CREATING, WRITING, level_of_several
from twophase.errors import AtomicityNotSupportedError, TwoPhaseError, WriteConflictError
from twophase.model import Isolation


@pytest.mark.promise("ddl-in-blocks", "a table that a block renames is found by its new name, and published or undone")
@pytest.mark.parametrize("isolation", [Isolation.READ_COMMITTED, Isolation.SNAPSHOT])
def test_a_renamed_table_is_seen_by_the_block_and_published_or_undone_with_it(
    spark: SparkSession, table: Callable[[str], str], isolation: Isolation
) -> None:
    old, new, other = table("old"), table("new"), spark.newSession()
    spark.sql(f"CREATE TABLE {old} AS SELECT id, id + 10 AS more FROM range(3)")
    copies = iter((table("copy"), table("copy_again")))

    def run(tx: Any) -> None:
        mark = tx.savepoint()
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        tx.rollback_to(mark)
        assert len(rows(spark, f"SELECT * FROM {old}")) == 3 and not spark.catalog.tableExists(new)
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        assert rows(spark, f"SELECT max(id), max(more) FROM {new} WHERE id > 0") == [(2, 12)]
        assert not spark.catalog.tableExists(old) and not other.catalog.tableExists(new)
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.sql(f"SELECT * FROM {old}")
        listed = {r.tableName for r in spark.sql(f"SHOW TABLES IN {old.rpartition('.')[0]}").collect()}
        assert {new.rpartition(".")[2], old.rpartition(".")[2]} & listed == {new.rpartition(".")[2]}
        spark.sql(f"CREATE TABLE {next(copies)} AS SELECT * FROM {new}")

    def is_as_before() -> bool:
        return len(rows(other, f"SELECT * FROM {old}")) == 3 and not other.catalog.tableExists(new)

    tx = rolled_back_then_published(spark, run, is_as_before, isolation=isolation)
    assert str(tx.level) == level_of_several(old)
    assert len(rows(other, f"SELECT * FROM {new}")) == 3 and not other.catalog.tableExists(old)
    spark.sql(f"INSERT INTO {new} VALUES (7, 7)")
    with twophase.transaction(spark, isolation=isolation) as tx:
        spark.sql(f"ALTER TABLE {new} RENAME TO {table('third')}")
    assert str(tx.level) == "ATOMIC" and len(rows(other, f"SELECT * FROM {table('third')}")) == 4
    spark.sql(f"CREATE TABLE {old} AS SELECT 1 AS other")


@pytest.mark.promise("ddl-in-blocks", "a table that others have changed since is not renamed, nor over one of theirs")
def test_a_rename_conflicts_with_the_changes_of_others(spark: SparkSession, table: Callable[[str], str]) -> None:
    old, new, other = table("old"), table("new"), spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {old} AS SELECT 1 AS id")
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        elsewhere(lambda: other.sql(f"INSERT INTO {old} VALUES (2)"))
    assert rows(spark, f"SELECT * FROM {old}") == [(1,), (2,)]
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        elsewhere(lambda: other.sql(f"CREATE TABLE {new} AS SELECT 'theirs' AS name"))
    assert rows(spark, f"SELECT * FROM {old}") == [(1,), (2,)]
    assert rows(spark, f"SELECT * FROM {new}") == [("theirs",)]


@pytest.mark.promise("ddl-in-blocks", "rows are no answer to a conflict of a rename: its block is rolled back")
@pytest.mark.parametrize("table", ["session", "postgresql", "lakehouse"], indirect=True)
def test_a_merge_is_not_asked_for_the_name_of_a_renamed_table(spark: SparkSession, table: Callable[[str], str]) -> None:
    old, new, other = table("old"), table("new"), spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {old} AS SELECT 1 AS id")
    block = twophase.transaction(spark, isolation="snapshot", merge=lambda before, mine, theirs: mine.union(theirs))
    with pytest.raises(WriteConflictError), block:
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        elsewhere(lambda: other.sql(f"CREATE TABLE {new} AS SELECT 2 AS id"))
    assert rows(spark, f"SELECT * FROM {old}") == [(1,)] and rows(spark, f"SELECT * FROM {new}") == [(2,)]


@pytest.mark.promise("ddl-in-blocks", "what a renamed table cannot be used for in the block is refused by name")
def test_what_a_renamed_table_cannot_be_used_for_is_refused(spark: SparkSession, table: Callable[[str], str]) -> None:
    old, new, taken = table("old"), table("new"), table("taken")
    for name in (old, taken):
        spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS id")
    with twophase.transaction(spark) as tx:
        with pytest.raises(
            (AnalysisException, TwoPhaseError), match=rf"(?i)\b{taken.rpartition('.')[2]}\b.* already exists"
        ):
            spark.sql(f"ALTER TABLE {old} RENAME TO {taken}")
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        refused = [f"ALTER TABLE {new} ADD COLUMN more INT", f"CREATE OR REPLACE TABLE {new} AS SELECT 2 AS id"]
        if not old.startswith(CREATING):
            refused.append(f"CREATE TABLE {old} AS SELECT 1 AS id")
        if not old.startswith(WRITING):
            refused += [f"INSERT INTO {new} VALUES (2)", f"INSERT OVERWRITE {new} VALUES (2)"]
        for text in refused:
            with pytest.raises(AtomicityNotSupportedError, match="has renamed a table"):
                spark.sql(text)
        tx.savepoint("renamed")
        spark.sql(f"DROP TABLE {new}")
        with pytest.raises(AtomicityNotSupportedError, match="has renamed a table"):
            spark.sql(f"CREATE TABLE {new} AS SELECT 1 AS id")
        tx.rollback_to("renamed")
        spark.sql(f"INSERT INTO {taken} VALUES (2)")
        with pytest.raises(AtomicityNotSupportedError, match="has written it before"):
            spark.sql(f"ALTER TABLE {taken} RENAME TO {table('late')}")
        assert rows(spark, f"SELECT * FROM {taken}") == [(1,), (2,)]
    assert rows(spark, f"SELECT * FROM {new}") == [(1,)] and not spark.catalog.tableExists(old)


@pytest.mark.promise("ddl-in-blocks", "a renamed table keeps what belongs to it")
def test_a_renamed_table_keeps_its_indexes_and_views(spark: SparkSession, postgresql: Any) -> None:
    spark.sql("CREATE TABLE pg.hermitage.indexed AS SELECT 1 AS id")
    engine = sa.create_engine(postgresql.url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX by_id ON hermitage.indexed (id)")
        connection.exec_driver_sql("CREATE VIEW hermitage.shown AS SELECT id FROM hermitage.indexed")
    with twophase.transaction(spark):
        spark.sql("ALTER TABLE pg.hermitage.indexed RENAME TO pg.hermitage.moved")
    with engine.begin() as connection:
        found = connection.exec_driver_sql("SELECT indexname FROM pg_indexes WHERE tablename = 'moved'").all()
        assert connection.exec_driver_sql("SELECT id FROM hermitage.shown").all() == [(1,)]
    assert [row[0] for row in found] == ["by_id"]
