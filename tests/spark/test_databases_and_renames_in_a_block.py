"""Databases that a transaction creates and drops, and tables that it renames: published or undone with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.isolation.places import session
from tests.spark.blocks import RolledBack, elsewhere, rows
from twophase import failpoints
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    SnapshotTooOldError,
    TransactionInDoubt,
    TwoPhaseError,
    WriteConflictError,
)
from twophase.model import Isolation
from twophase.protocol.states import TransactionState

#: The prefix of the databases of each store.
STORES = {"session": "", "lakehouse": "ice.", "postgresql": "pg.", "mariadb": "maria."}
#: Those that the suite of all catalogs shows by their own participants.
SHOWN_BY_THE_SUITE = ("mariadb",)
#: The database of each store that renames tables.
RENAMING = {"session": "default", "postgresql": "pg.hermitage", "sqlite": "lite.main"}
RENAMING |= {"mariadb": "maria.hermitage", "lakehouse": "ice.db"}

#: Those in which a block can create a table by a name that another one has left, and those where rows can follow a
#: rename.
CREATING = ("default.", "pg.", "lite.", "maria.")
WRITING = CREATING[1:3]
OF_DATABASES = ["postgresql", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("sqlite", "mariadb"))]
WITH_ROWS = OF_DATABASES[:2]
#: Those that exchange names beside other blocks and writers.
BESIDE_OTHERS = [pytest.param("session", marks=pytest.mark.exhaustive), *OF_DATABASES, "lakehouse"]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, postgresql: Any, mariadb: Any) -> Iterator[SparkSession]:
    with session(tmp_path_factory.mktemp("databases"), {"pg": postgresql, "maria": mariadb}) as found:
        yield found


@pytest.fixture(
    params=[pytest.param(name, marks=pytest.mark.exhaustive if name in SHOWN_BY_THE_SUITE else ()) for name in STORES]
)
def named(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names of a store's databases, of this test only."""
    suffix = f"{abs(hash(request.node.name)) % 10**8}"
    return lambda name: f"{STORES[request.param]}{name}_{suffix}"


@pytest.fixture(
    params=[
        pytest.param(name, marks=pytest.mark.exhaustive if name in ("sqlite", "mariadb") else ()) for name in RENAMING
    ]
)
def table(request: pytest.FixtureRequest) -> Callable[[str], str]:
    """Names of a store's tables, of this test only."""
    suffix = f"{abs(hash(request.node.name)) % 10**8}"
    return lambda name: f"{RENAMING[request.param]}.{name}_{suffix}"


def level_of_several(table: str) -> str:
    """The level of a block with several tables: each session table is published by a call of its own."""
    return "REVERSIBLE" if table.startswith("default.") else "ATOMIC"


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
    [pytest.param(name, marks=() if name == "session" else pytest.mark.exhaustive) for name in STORES],
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


@pytest.mark.promise("ddl-in-blocks", "a table that a block renames is found by its new name, and published or undone")
@pytest.mark.parametrize("isolation", [Isolation.READ_COMMITTED, Isolation.SNAPSHOT])
def test_a_renamed_table_is_seen_by_the_block_and_published_or_undone_with_it(
    spark: SparkSession, table: Callable[[str], str], isolation: Isolation
) -> None:
    old, new, other = table("old"), table("new"), spark.newSession()
    spark.sql(f"CREATE TABLE {old} AS SELECT id, id + 10 AS more FROM range(3)")
    for ends in (True, False):
        try:
            with twophase.transaction(spark, isolation=isolation) as tx:
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
                spark.sql(f"CREATE TABLE {table(f'copy_{ends}')} AS SELECT * FROM {new}")
                if ends:
                    raise RolledBack
        except RolledBack:
            assert len(rows(other, f"SELECT * FROM {old}")) == 3 and not other.catalog.tableExists(new)
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


@pytest.mark.promise("ddl-in-blocks", "tables that exchange their names in a block are published or undone with it")
@pytest.mark.parametrize("table", ["session", *OF_DATABASES, "lakehouse"], indirect=True)
def test_tables_that_exchange_their_names_are_seen_by_the_block_and_published_or_undone_with_it(
    spark: SparkSession, table: Callable[[str], str]
) -> None:
    blue, green, aside, other = table("blue"), table("green"), table("aside"), spark.newSession()
    spark.sql(f"CREATE TABLE {blue} AS SELECT 'blue' AS name")
    spark.sql(f"CREATE TABLE {green} AS SELECT 1 AS id, 'green' AS name")
    for ends in (True, False):
        try:
            with twophase.transaction(spark) as tx:
                spark.sql(f"ALTER TABLE {blue} RENAME TO {aside}")
                tx.savepoint("aside")
                spark.sql(f"ALTER TABLE {green} RENAME TO {blue}")
                spark.sql(f"ALTER TABLE {aside} RENAME TO {green}")
                assert rows(spark, f"SELECT * FROM {blue}") == [(1, "green")]
                tx.rollback_to("aside")
                assert rows(spark, f"SELECT * FROM {aside}") == [("blue",)]
                assert rows(spark, f"SELECT * FROM {green}") == [(1, "green")] and not spark.catalog.tableExists(blue)
                spark.sql(f"ALTER TABLE {green} RENAME TO {blue}")
                spark.sql(f"ALTER TABLE {aside} RENAME TO {green}")
                assert rows(spark, f"SELECT * FROM {green}") == [("blue",)] and not spark.catalog.tableExists(aside)
                assert rows(other, f"SELECT * FROM {blue}") == [("blue",)]
                if ends:
                    raise RolledBack
        except RolledBack:
            assert rows(other, f"SELECT * FROM {blue}") == [("blue",)]
            assert rows(other, f"SELECT * FROM {green}") == [(1, "green")]
    assert str(tx.level) == level_of_several(blue) and not other.catalog.tableExists(aside)
    assert rows(other, f"SELECT * FROM {blue}") == [(1, "green")]
    assert rows(other, f"SELECT * FROM {green}") == [("blue",)]
    if of_lakehouse := green.startswith(RENAMING["lakehouse"]):
        assert rows(spark, f"SELECT * FROM {green} VERSION AS OF '{tx.id}'") == [("blue",)]
        with pytest.raises(TwoPhaseError, match=f"another table had this name before transaction {tx.id}"):
            twophase.undo(spark, tx.id)
    with twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {green} RENAME TO {aside}")
        spark.sql(f"ALTER TABLE {aside} RENAME TO {table('third')}")
        spark.sql(f"ALTER TABLE {blue} RENAME TO {green}")
    assert rows(other, f"SELECT * FROM {green}") == [(1, "green")]
    assert rows(other, f"SELECT * FROM {table('third')}") == [("blue",)] and not other.catalog.tableExists(blue)
    if of_lakehouse:
        with pytest.raises(Exception, match="another table had this name before"):
            spark.sql(f"SELECT * FROM {green} VERSION AS OF '{tx.id}'")


@pytest.mark.promise("isolation", "a block that began before an exchange of names reads no table by the other's name")
@pytest.mark.parametrize("table", BESIDE_OTHERS, indirect=True)
def test_a_block_that_began_before_an_exchange_reads_no_table_by_the_name_of_the_other(
    spark: SparkSession, table: Callable[[str], str]
) -> None:
    blue, green, aside, beside, other = *map(table, ("blue", "green", "aside", "beside")), spark.newSession()
    handle = twophase.attach(other)
    for name in (blue, green, beside):
        spark.sql(f"CREATE TABLE {name} AS SELECT '{name}' AS name")

    def exchange() -> None:
        with suppress(TransactionInDoubt), twophase.transaction(spark):
            spark.sql(f"ALTER TABLE {blue} RENAME TO {aside}")
            spark.sql(f"ALTER TABLE {green} RENAME TO {blue}")
            spark.sql(f"ALTER TABLE {aside} RENAME TO {green}")

    for point in ("", "core.record_completed"):  # The second one is published, but has no commit number yet.
        before = rows(spark, f"SELECT * FROM {blue}")
        with twophase.transaction(other, isolation="snapshot"):
            rows(other, f"SELECT * FROM {beside}")
            if point:
                failpoints.arm(point, "error")
            try:
                elsewhere(exchange)
                with suppress(SnapshotTooOldError):
                    assert rows(other, f"SELECT * FROM {blue}") == before
            finally:
                failpoints.disarm()
        handle.recover()
        assert rows(spark, f"SELECT * FROM {blue}") != before


@pytest.mark.promise("ddl-in-blocks", "a name that a table leaves is given again in the block")
@pytest.mark.parametrize("table", ["session", *OF_DATABASES], indirect=True)
def test_a_name_that_is_left_is_given_again(spark: SparkSession, table: Callable[[str], str]) -> None:
    live, built, former, other = table("live"), table("built"), table("former"), spark.newSession()
    spark.sql(f"CREATE TABLE {live} AS SELECT 1 AS id")
    with twophase.transaction(spark) as tx:
        spark.sql(f"CREATE TABLE {built} AS SELECT 2 AS id, 'new' AS name")
        spark.sql(f"ALTER TABLE {live} RENAME TO {former}")
        tx.savepoint("left")
        spark.sql(f"CREATE TABLE {live} AS SELECT 9 AS mistaken")
        spark.sql(f"DROP TABLE {live}")
        assert not spark.catalog.tableExists(live)
        tx.rollback_to("left")
        spark.sql(f"ALTER TABLE {built} RENAME TO {live}")
        spark.sql(f"INSERT INTO {live} VALUES (3, 'more')")
        spark.sql(f"CREATE OR REPLACE TABLE {live} AS SELECT id FROM {live}")
        assert rows(spark, f"SELECT * FROM {live}") == [(2,), (3,)] and rows(spark, f"SELECT * FROM {former}") == [(1,)]
    assert str(tx.level) == level_of_several(live) and not other.catalog.tableExists(built)
    assert rows(other, f"SELECT * FROM {live}") == [(2,), (3,)] and rows(other, f"SELECT * FROM {former}") == [(1,)]


@pytest.mark.promise("ddl-in-blocks", "a table is dropped, and another one gets its name, in one block")
@pytest.mark.parametrize("table", ["session", *OF_DATABASES, "lakehouse"], indirect=True)
def test_a_table_is_dropped_and_another_one_gets_its_name(spark: SparkSession, table: Callable[[str], str]) -> None:
    live, built, third, other = table("live"), table("built"), table("third"), spark.newSession()
    spark.sql(f"CREATE TABLE {live} AS SELECT 1 AS id")
    spark.sql(f"CREATE TABLE {built} AS SELECT 2 AS id, 'new' AS name")
    for ends in (True, False):
        try:
            with twophase.transaction(spark) as tx:
                spark.sql(f"DROP TABLE {live}")
                tx.savepoint("dropped")
                spark.sql(f"ALTER TABLE {built} RENAME TO {live}")
                assert rows(spark, f"SELECT * FROM {live}") == [(2, "new")] and not spark.catalog.tableExists(built)
                tx.rollback_to("dropped")
                assert rows(spark, f"SELECT * FROM {built}") == [(2, "new")] and not spark.catalog.tableExists(live)
                spark.sql(f"ALTER TABLE {built} RENAME TO {live}")
                assert rows(other, f"SELECT * FROM {live}") == [(1,)]
                if ends:
                    raise RolledBack
        except RolledBack:
            assert rows(other, f"SELECT * FROM {live}") == [(1,)]
            assert rows(other, f"SELECT * FROM {built}") == [(2, "new")]
    assert str(tx.level) == level_of_several(live) and not other.catalog.tableExists(built)
    assert rows(other, f"SELECT * FROM {live}") == [(2, "new")]
    with pytest.raises(TwoPhaseError):
        twophase.undo(spark, tx.id)
    spark.sql(f"INSERT INTO {live} VALUES (3, 'more')")
    spark.sql(f"CREATE TABLE {built} AS SELECT 4 AS id")
    with twophase.transaction(spark):
        spark.sql(f"DROP TABLE {built}")
        spark.sql(f"ALTER TABLE {live} RENAME TO {built}")
        spark.sql(f"ALTER TABLE {built} RENAME TO {third}")
    assert rows(other, f"SELECT * FROM {third}") == [(2, "new"), (3, "more")]
    assert not other.catalog.tableExists(built) and not other.catalog.tableExists(live)


@pytest.mark.promise("ddl-in-blocks", "what others write to a table that a block drops for another one is not lost")
@pytest.mark.parametrize("table", BESIDE_OTHERS, indirect=True)
def test_a_drop_for_another_table_conflicts_with_the_changes_of_others(
    spark: SparkSession, table: Callable[[str], str]
) -> None:
    live, built, other = table("live"), table("built"), spark.newSession()
    twophase.attach(other)
    for name in (live, built):
        spark.sql(f"CREATE TABLE {name} AS SELECT '{name}' AS name")
    for changed in (live, built):
        with pytest.raises(WriteConflictError), twophase.transaction(spark):
            spark.sql(f"DROP TABLE {live}")
            spark.sql(f"ALTER TABLE {built} RENAME TO {live}")
            elsewhere(lambda name=changed: other.sql(f"INSERT INTO {name} VALUES ('theirs')"))  # type: ignore[misc]
        assert rows(spark, f"SELECT * FROM {changed}") == [(changed,), ("theirs",)]


@pytest.mark.promise("ddl-in-blocks", "what others write to one of exchanged tables, by either name, is not lost")
@pytest.mark.parametrize("table", BESIDE_OTHERS, indirect=True)
def test_an_exchange_of_names_conflicts_with_the_changes_of_others(
    spark: SparkSession, table: Callable[[str], str]
) -> None:
    one, two, aside, other = table("one"), table("two"), table("aside"), spark.newSession()
    twophase.attach(other)
    for name in (one, two):
        spark.sql(f"CREATE TABLE {name} AS SELECT 1 AS id")
    theirs = [
        f"INSERT INTO {one} VALUES (2)",
        f"INSERT INTO {two} VALUES (2)",
        f"CREATE TABLE {aside} AS SELECT 2 AS id",
    ]
    for text in theirs:
        with pytest.raises(WriteConflictError), twophase.transaction(spark):
            spark.sql(f"ALTER TABLE {one} RENAME TO {aside}")
            spark.sql(f"ALTER TABLE {two} RENAME TO {one}")
            spark.sql(f"ALTER TABLE {aside} RENAME TO {two}")
            elsewhere(lambda text=text: other.sql(text))  # type: ignore[misc]
    assert rows(spark, f"SELECT * FROM {one}") == rows(spark, f"SELECT * FROM {two}") == [(1,), (2,)]

    def exchange() -> None:
        with twophase.transaction(spark):
            spark.sql(f"ALTER TABLE {one} RENAME TO {table('three')}")
            spark.sql(f"ALTER TABLE {two} RENAME TO {one}")
            spark.sql(f"ALTER TABLE {table('three')} RENAME TO {two}")

    # Rows of a block that began before are not added to the table that has got the name.
    with pytest.raises(WriteConflictError), twophase.transaction(other, isolation="snapshot"):
        rows(other, f"SELECT * FROM {aside}")
        elsewhere(exchange)
        other.sql(f"INSERT INTO {one} VALUES (3)")
    assert rows(spark, f"SELECT * FROM {one}") == rows(spark, f"SELECT * FROM {two}") == [(1,), (2,)]
    if not one.startswith(CREATING):
        return
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {one} RENAME TO {table('three')}")
        spark.sql(f"CREATE TABLE {one} AS SELECT 3 AS id")
        elsewhere(lambda: other.sql(f"INSERT INTO {one} VALUES (4)"))
    assert rows(spark, f"SELECT * FROM {one}") == [(1,), (2,), (4,)]


@pytest.mark.promise("ddl-in-blocks", "rows that a block adds to a table after it has renamed it are published with it")
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
    for ends in (True, False):
        try:
            with twophase.transaction(spark, isolation=isolation) as tx:
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
                spark.sql(f"CREATE TABLE {old} AS SELECT 'other' AS name")
                spark.sql(f"INSERT INTO {old} VALUES ('more')")
                if ends:
                    raise RolledBack
        except RolledBack:
            assert rows(other, f"SELECT * FROM {old}") == [(1,)] and not other.catalog.tableExists(new)
    assert str(tx.level) == "ATOMIC" and rows(other, f"SELECT * FROM {old}") == [("more",), ("other",)]
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


@pytest.mark.promise("ddl-in-blocks", "a table that a block has renamed is emptied, overwritten or dropped in it")
@pytest.mark.parametrize("table", WITH_ROWS, indirect=True)
def test_a_renamed_table_is_emptied_overwritten_or_dropped(
    spark: SparkSession, table: Callable[[str], str], postgresql: Any
) -> None:
    old, new, third, other = table("old"), table("new"), table("third"), spark.newSession()
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
    spark.sql(f"CREATE TABLE {third} AS SELECT 'third' AS name")
    with twophase.transaction(spark) as tx:
        spark.sql(f"ALTER TABLE {new} RENAME TO {old}")
        spark.sql(f"ALTER TABLE {third} RENAME TO {new}")
        tx.savepoint("renamed")
        spark.sql(f"DROP TABLE {old}")
        assert not spark.catalog.tableExists(old)
        with pytest.raises(AtomicityNotSupportedError, match="has renamed a table"):
            spark.sql(f"CREATE TABLE {old} AS SELECT 1 AS id")
        tx.rollback_to("renamed")
        assert len(rows(spark, f"SELECT * FROM {old}")) == 8
        spark.sql(f"DROP TABLE {old}")
    assert str(tx.level) == "ATOMIC" and rows(other, f"SELECT * FROM {new}") == [("third",)]
    assert not other.catalog.tableExists(old) and not other.catalog.tableExists(third)


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
    with twophase.transaction(spark):
        with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)already exists"):
            spark.sql(f"ALTER TABLE {old} RENAME TO {taken}")
        spark.sql(f"ALTER TABLE {old} RENAME TO {new}")
        refused = [f"ALTER TABLE {new} ADD COLUMN more INT", f"CREATE OR REPLACE TABLE {new} AS SELECT 2 AS id"]
        if not old.startswith(CREATING):
            refused.append(f"CREATE TABLE {old} AS SELECT 1 AS id")
        if not old.startswith(WRITING):
            refused += [f"INSERT INTO {new} VALUES (2)", f"INSERT OVERWRITE {new} VALUES (2)", f"DROP TABLE {new}"]
        for text in refused:
            with pytest.raises(AtomicityNotSupportedError, match="has renamed a table"):
                spark.sql(text)
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
