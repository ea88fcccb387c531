"""Databases that a transaction creates and drops: published or undone with it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.spark.blocks import RolledBack, elsewhere, rows
from tests.spark.ddl.stores import DATABASES
from twophase import failpoints
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    TransactionInDoubt,
    TwoPhaseError,
    WriteConflictError,
)
from twophase.protocol.states import TransactionState


def is_there(spark: SparkSession, database: str) -> bool:
    return bool(spark.catalog.databaseExists(database))


@pytest.mark.promise("ddl-in-blocks", "a database that a block creates is published with its tables")
def test_a_database_is_published_with_the_tables_in_it(spark: SparkSession, named: Callable[[str], str]) -> None:
    database, other = named("made"), spark.newSession()
    with twophase.transaction(spark) as tx:
        spark.sql(f"CREATE DATABASE {database} COMMENT 'of a block'")
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {database}")
        with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)already exists"):
            spark.sql(f"CREATE DATABASE {database}")
        spark.sql(f"CREATE TABLE {database}.t AS SELECT 1 AS id")
        spark.sql(f"USE {database}")
        spark.sql("INSERT INTO t SELECT id + 1 FROM t")
        assert rows(spark, "SELECT * FROM t") == [(1,), (2,)]
        assert "t" in {row.tableName for row in spark.sql("SHOW TABLES").collect()}
        spark.sql("USE spark_catalog.default")
        assert not other.catalog.tableExists(f"{database}.t")
    assert tx.state is TransactionState.COMPLETED
    assert str(tx.level) == "REVERSIBLE" and any("before the transaction" in reason for reason in tx.level_reasons)
    assert rows(other, f"SELECT * FROM {database}.t") == [(1,), (2,)]
    assert "of a block" in {row[1] for row in spark.sql(f"DESCRIBE DATABASE {database}").collect()}
    spark.sql(f"DROP DATABASE {database} CASCADE")


@pytest.mark.promise("ddl-in-blocks", "a database that a block creates is undone with it")
def test_a_database_is_undone_with_the_block(spark: SparkSession, named: Callable[[str], str]) -> None:
    database = named("undone")
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"CREATE DATABASE {database}")
        spark.sql(f"CREATE TABLE {database}.t AS SELECT 1 AS id")
        raise RolledBack
    assert not is_there(spark, database)
    with twophase.transaction(spark) as tx:
        mark = tx.savepoint()
        spark.sql(f"CREATE DATABASE {database}")
        spark.sql(f"CREATE TABLE {database}.t AS SELECT 1 AS id")
        tx.rollback_to(mark)
        assert not is_there(spark, database)
        spark.sql(f"CREATE DATABASE {database}")
        spark.sql(f"CREATE TABLE {database}.t AS SELECT 2 AS id")
        spark.sql(f"DROP TABLE {database}.t")
        spark.sql(f"DROP DATABASE {database}")
    assert not is_there(spark, database)


@pytest.mark.promise("ddl-in-blocks", "a database into which others have put a table stays after a rollback")
def test_a_database_that_others_use_stays_after_a_rollback(
    spark: SparkSession, named: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    database, other = named("shared"), spark.newSession()
    twophase.attach(other)
    with caplog.at_level(logging.WARNING), pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"CREATE DATABASE {database}")
        spark.sql(f"CREATE TABLE {database}.mine AS SELECT 1 AS id")
        elsewhere(lambda: other.sql(f"CREATE TABLE {database}.theirs AS SELECT 7 AS id"))
        raise RolledBack
    assert rows(spark, f"SELECT * FROM {database}.theirs") == [(7,)]
    assert not spark.catalog.tableExists(f"{database}.mine")
    assert "theirs is in it" in caplog.text
    spark.sql(f"DROP DATABASE {database} CASCADE")


@pytest.mark.promise("ddl-in-blocks", "a database that another session creates first is a clear error")
def test_a_database_that_others_have_created_is_a_clear_error(spark: SparkSession, named: Callable[[str], str]) -> None:
    database, other = named("theirs"), spark.newSession()
    twophase.attach(other)
    with pytest.raises(WriteConflictError, match="another session has dropped it"), twophase.transaction(spark):
        spark.sql(f"CREATE DATABASE {database}")
        elsewhere(lambda: other.sql(f"DROP DATABASE {database}"))
        elsewhere(lambda: other.sql(f"CREATE DATABASE {database}"))
    assert is_there(spark, database)
    with twophase.transaction(spark), pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)already exists"):
        spark.sql(f"CREATE DATABASE {database}")
    assert is_there(spark, database)
    spark.sql(f"DROP DATABASE {database}")


@pytest.mark.promise("ddl-in-blocks", "a database that a block drops is gone with its tables, or stays with them")
def test_a_database_is_dropped_with_the_block(spark: SparkSession, named: Callable[[str], str]) -> None:
    database, other = named("dropped"), spark.newSession()
    spark.sql(f"CREATE DATABASE {database}")
    spark.sql(f"CREATE TABLE {database}.t AS SELECT 1 AS id")
    with pytest.raises(RolledBack), twophase.transaction(spark):
        with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)not.?empty"):
            spark.sql(f"DROP DATABASE {database}")
        spark.sql(f"INSERT INTO {database}.t VALUES (2)")
        spark.sql(f"DROP DATABASE {database} CASCADE")
        spark.sql(f"DROP DATABASE IF EXISTS {database}")
        for text in (f"SELECT * FROM {database}.t", f"CREATE TABLE {database}.u AS SELECT 1 AS id"):
            with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)not.?(exist|found)|cannot be found"):
                spark.sql(text)
        with pytest.raises(AtomicityNotSupportedError, match="which drops it"):
            spark.sql(f"CREATE DATABASE {database}")
        assert rows(other, f"SELECT * FROM {database}.t") == [(1,)]
        raise RolledBack
    assert rows(spark, f"SELECT * FROM {database}.t") == [(1,)]
    with twophase.transaction(spark) as tx:
        spark.sql(f"DROP TABLE {database}.t")
        spark.sql(f"DROP DATABASE {database}")
        assert is_there(other, database)
    assert str(tx.level) == "REVERSIBLE" and any("dropped after the tables" in r for r in tx.level_reasons)
    assert not is_there(spark, database)


@pytest.mark.promise("in-doubt", "what others write to the other tables of a block that waits to drop a database stays")
@pytest.mark.parametrize(
    "named",
    [pytest.param(name, marks=() if name == "session" else pytest.mark.exhaustive) for name in DATABASES],
    indirect=True,
)
def test_other_tables_are_free_while_a_database_waits_to_be_dropped(
    spark: SparkSession, named: Callable[[str], str]
) -> None:
    database, table, other = named("waiting"), f"{named('beside')}.t", spark.newSession()
    handle = twophase.attach(other)
    for name in (database, named("beside")):
        spark.sql(f"CREATE DATABASE {name}")
    spark.sql(f"CREATE TABLE {table} AS SELECT 1 AS id")
    failpoints.arm("core.finish", "error")
    try:
        with pytest.raises(TransactionInDoubt, match="Dropped, but still there"), twophase.transaction(spark) as tx:
            spark.sql(f"CREATE OR REPLACE TABLE {table} AS SELECT 2 AS id")
            spark.sql(f"DROP DATABASE {database}")
    finally:
        failpoints.disarm()
    elsewhere(lambda: other.sql(f"CREATE OR REPLACE TABLE {table} AS SELECT 3 AS id"))
    assert rows(other, f"SELECT * FROM {table}") == [(3,)] and is_there(other, database)
    assert [found.state for found in handle.recover() if found.transaction_id == tx.id] == [TransactionState.COMPLETED]
    assert rows(other, f"SELECT * FROM {table}") == [(3,)] and not is_there(other, database)
    spark.sql(f"DROP DATABASE {named('beside')} CASCADE")


@pytest.mark.promise("ddl-in-blocks", "a table that others put into a database is not lost by a block that drops it")
def test_a_table_that_others_put_into_a_dropped_database_is_not_lost(
    spark: SparkSession, named: Callable[[str], str]
) -> None:
    database, other = named("filled"), spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE DATABASE {database}")
    spark.sql(f"CREATE TABLE {database}.t AS SELECT 1 AS id")
    with pytest.raises(WriteConflictError, match="has put theirs into it"), twophase.transaction(spark):
        spark.sql(f"DROP DATABASE {database} CASCADE")
        elsewhere(lambda: other.sql(f"CREATE TABLE {database}.theirs AS SELECT 7 AS id"))
    assert rows(spark, f"SELECT * FROM {database}.t") == [(1,)]
    assert rows(spark, f"SELECT * FROM {database}.theirs") == [(7,)]
    spark.sql(f"DROP DATABASE {database} CASCADE")


@pytest.mark.promise("ddl-in-blocks", "a database of a script, or of `spark.catalog`, is undone with the block")
def test_a_database_is_undone_however_it_is_created(spark: SparkSession) -> None:
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql("EXECUTE IMMEDIATE 'CREATE DATABASE of_a_text'")
        if hasattr(spark.catalog, "createDatabase"):  # Spark 4.3
            spark.catalog.createDatabase("of_the_api")
            assert is_there(spark, "of_the_api")
        assert is_there(spark, "of_a_text")
        raise RolledBack
    assert not is_there(spark, "of_a_text") and not is_there(spark, "of_the_api")


@pytest.mark.promise("restore", "an undo leaves an empty database, and is refused where one was dropped")
def test_an_undo_leaves_a_database_that_its_transaction_has_created(spark: SparkSession) -> None:
    with twophase.transaction(spark, merge=lambda before, mine, theirs: mine, isolation="snapshot") as created:
        spark.sql("CREATE DATABASE taken_back")
        spark.sql("CREATE TABLE taken_back.t AS SELECT 1 AS id")
    twophase.undo(spark, created.id)
    assert not spark.catalog.tableExists("taken_back.t") and is_there(spark, "taken_back")
    with twophase.transaction(spark) as dropped:
        spark.sql("DROP DATABASE taken_back")
    with pytest.raises(ConfigurationError, match=r"it has dropped database hive\.taken_back"):
        twophase.undo(spark, dropped.id)


@pytest.mark.promise("ddl-in-blocks", "a database that could not be undone, or is not all tables, is refused")
def test_a_database_that_could_not_be_undone_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    spark.range(3).write.parquet(str(tmp_path / "files" / "of_a_user"))
    spark.sql("CREATE DATABASE viewed")
    spark.sql("CREATE TABLE viewed.t AS SELECT 1 AS id")
    spark.sql("CREATE VIEW viewed.v AS SELECT * FROM viewed.t")
    with twophase.transaction(spark):
        with pytest.raises(CatalogError, match="there are files in"):
            spark.sql(f"CREATE DATABASE placed LOCATION '{tmp_path / 'files'}'")
        with pytest.raises(AtomicityNotSupportedError, match="looks like a secret"):
            spark.sql("CREATE DATABASE secret WITH DBPROPERTIES ('password' = 'hunter2')")
        with pytest.raises(CatalogError, match="is a view"):
            spark.sql("DROP DATABASE viewed CASCADE")
        assert rows(spark, "SELECT * FROM viewed.v") == [(1,)]
        with pytest.raises(AtomicityNotSupportedError, match=r"immediately .*: a database of SQLite is a file"):
            spark.sql("CREATE DATABASE lite.more")
    assert spark.read.parquet(str(tmp_path / "files" / "of_a_user")).count() == 3
    assert rows(spark, "SELECT * FROM viewed.v") == [(1,)]
    assert not is_there(spark, "placed") and not is_there(spark, "secret")
    spark.sql("DROP DATABASE viewed CASCADE")
