"""Tables that a transaction alters or renames: seen by it, published or undone with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.isolation.places import session
from tests.spark.blocks import (
    STORES,
    RolledBack,
    altered_elsewhere,
    columns,
    elsewhere,
    insert_id,
    properties,
    rows,
    run_each,
)
from twophase.errors import AtomicityNotSupportedError, CatalogError, TwoPhaseError, WriteConflictError
from twophase.protocol.states import TransactionState
from twophase.spark.ddl import created_tables

spark40_first_cases = True

#: The databases that alter their tables in a block: in the transaction of the publish, or by a copy.
ALTERING = {"sqlite": "lite.main", "postgresql": "pg.hermitage", "mariadb": "maria.hermitage"}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, postgresql: Any, mariadb: Any) -> Iterator[SparkSession]:
    with session(tmp_path_factory.mktemp("alter"), {"pg": postgresql, "maria": mariadb}) as found:
        yield found


@pytest.mark.promise("ddl-in-blocks", "a block alters an Iceberg table: seen by it, published or undone with it")
def test_a_table_is_altered_by_a_block(spark: SparkSession) -> None:
    table, other = "ice.db.altered", spark.newSession()
    spark.sql(f"CREATE TABLE {table} TBLPROPERTIES ('a' = '1', 'b' = '2') AS SELECT id, 'x' AS name FROM range(2)")
    before = columns(spark, table)
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
        assert columns(spark, table) == [*before, "extra int"]
        raise RolledBack
    assert columns(spark, table) == before
    with twophase.transaction(spark) as tx:
        spark.sql(f"INSERT INTO {table} VALUES (2, 'own')")
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS (extra INT COMMENT 'new', s STRUCT<a: INT>)")
        spark.sql(f"INSERT INTO {table} VALUES (3, 'more', 30, named_struct('a', 1))")
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
        spark.sql(f"ALTER TABLE {table} ADD COLUMN s.b STRING FIRST")
        assert rows(spark, f"SELECT id, label FROM {table} WHERE label = 'own'") == [(2, "own")]
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN extra TYPE BIGINT")
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN label COMMENT 'what'")
        tx.savepoint("mark")
        spark.sql(f"ALTER TABLE {table} DROP COLUMN label")
        assert "label" not in spark.table(table).columns
        tx.rollback_to("mark")
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = '3', 'c' = '4')")
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('b')")
        assert properties(spark, table) == {"format-version": "2", "a": "3", "c": "4"}
        assert columns(other, table) == before
        assert rows(spark, f"SELECT id, label, extra, s.a, s.b FROM {table}") == [
            *((0, "x", None, None, None), (1, "x", None, None, None)),
            *((2, "own", None, None, None), (3, "more", 30, 1, None)),
        ]
    assert tx.state is TransactionState.COMPLETED and str(tx.level) == "ATOMIC"
    assert columns(other, table) == ["id bigint", "label string", "extra bigint", "s struct<b:string,a:int>"]
    for condition in ("label = 'own'", "label IS NOT NULL AND id = 2"):
        assert rows(other, f"SELECT id, label FROM {table} WHERE {condition}") == [(2, "own")]
    assert {k: v for k, v in properties(other, table).items() if k in "abc"} == {"a": "3", "c": "4"}
    assert {row.col_name: row.comment for row in other.sql(f"DESCRIBE {table}").collect()}["label"] == "what"
    assert rows(other, f"SELECT id, label FROM {table} VERSION AS OF 'main' WHERE extra = 30") == [(3, "more")]


@pytest.mark.promise(
    "ddl-in-blocks", "a block alters an Iceberg table that it has created or replaced itself", detail=True
)
@pytest.mark.parametrize("purpose", ["CREATE TABLE", "CREATE OR REPLACE TABLE"])
def test_a_table_is_altered_by_the_block_that_makes_it(spark: SparkSession, purpose: str) -> None:
    table, other = f"ice.db.made_{purpose.replace(' ', '_').lower()}", spark.newSession()
    if "REPLACE" in purpose:
        spark.sql(f"CREATE TABLE {table} TBLPROPERTIES ('old' = '1') AS SELECT 'was' AS label, 1 AS day")
    with twophase.transaction(spark) as tx:
        spark.sql(f"{purpose} {table} PARTITIONED BY (day) AS SELECT id, 'x' AS name, 1 AS day FROM range(2)")
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
        spark.sql(f"INSERT INTO {table} VALUES (2, 'y', 2)")
        spark.sql(f"ALTER TABLE {table} DROP COLUMN id")
        spark.sql(f"ALTER TABLE {table} ADD COLUMN id STRING FIRST")
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('new' = '2')")
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES IF EXISTS ('old')")
        assert rows(spark, f"SELECT * FROM {table} WHERE label = 'y'") == [(None, "y", 2)]
        spark.sql(f"INSERT OVERWRITE {table} PARTITION (day = 2) VALUES ('3', 'z')")
    assert str(tx.level) == "ATOMIC"
    found = [(None, "x", 1), (None, "x", 1), ("3", "z", 2)]
    assert sorted(map(tuple, other.table(table).collect()), key=str) == sorted(found, key=str)
    for condition in ("label = 'x'", "day = 1 AND label = 'x'", "label IS NOT NULL AND day < 2"):
        assert len(rows(other, f"SELECT * FROM {table} WHERE {condition}")) == 2
    assert rows(other, f"SELECT * FROM {table} WHERE id = '0'") == []
    assert {k: v for k, v in properties(other, table).items() if k in ("old", "new")} == {"new": "2"}


@pytest.mark.promise("ddl-in-blocks", "what an ALTER TABLE of a block cannot do is refused, and the block goes on")
def test_what_a_block_cannot_alter_is_refused(spark: SparkSession) -> None:
    table = "ice.db.unaltered"
    spark.sql(f"CREATE TABLE {table} AS SELECT id, 'x' AS name FROM range(2)")
    before = columns(spark, table)
    with twophase.transaction(spark):
        spark.sql(f"INSERT INTO {table} VALUES (NULL, 'y')")
        for change in (
            *("DROP COLUMN nowhere", "ALTER COLUMN id TYPE INT", "SET LOCATION '/elsewhere'"),
            *("SET TBLPROPERTIES ('format-version' = '1')", "SET TBLPROPERTIES ('sort-order' = 'id')"),
            *("ADD COLUMN name INT", "RENAME COLUMN id TO name", "RENAME TO ice.db.elsewhere"),
        ):
            with pytest.raises((AnalysisException, TwoPhaseError)):
                spark.sql(f"ALTER TABLE {table} {change}")
        with pytest.raises(AtomicityNotSupportedError, match="NOT NULL in a transaction"):
            spark.sql(f"ALTER TABLE {table} ALTER COLUMN name SET NOT NULL")
        assert columns(spark, table) == before
        spark.sql(f"DROP TABLE {table}")
        with pytest.raises((AnalysisException, TwoPhaseError)):
            spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
    assert not spark.catalog.tableExists(table)


@pytest.mark.promise("ddl-in-blocks", "of an ALTER TABLE of a block and another writer the first to commit wins")
def test_an_altered_table_that_others_have_changed(spark: SparkSession) -> None:
    table, other = "ice.db.altered_twice", spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {table} AS SELECT id, 'x' AS name FROM range(2)")
    for isolation in ("snapshot", "serializable"):
        with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation=isolation):
            spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
            elsewhere(lambda: other.sql(f"INSERT INTO {table} VALUES (2, 'y')"))
    with pytest.raises(TwoPhaseError, match="label"), twophase.transaction(spark, isolation="read_committed"):
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
        elsewhere(lambda: other.sql(f"ALTER TABLE {table} RENAME COLUMN name TO title"))
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN title TO name")
    with twophase.transaction(spark, isolation="read_committed"):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN mine INT")
        elsewhere(lambda: other.sql(f"INSERT INTO {table} VALUES (7, 'q')"))
    assert rows(spark, f"SELECT * FROM {table} WHERE id = 7") == [(7, "q", None)]


def test_rows_behind_an_alter_take_back_nothing_that_others_alter(spark: SparkSession) -> None:
    other = spark.newSession()
    twophase.attach(other)
    spark.sql("CREATE TABLE altered_and_written USING parquet AS SELECT 1 AS id, 2 AS v")
    for theirs in ("SET TBLPROPERTIES ('k' = 'v')", "ALTER COLUMN v SET DEFAULT 9"):
        with pytest.raises(WriteConflictError, match="changed meanwhile"), twophase.transaction(spark):
            spark.sql("ALTER TABLE altered_and_written ADD COLUMN z INT")
            spark.sql("INSERT INTO altered_and_written VALUES (3, 4, 5)")
            elsewhere(lambda text=theirs: other.sql(f"ALTER TABLE altered_and_written {text}"))
    assert rows(spark, "SELECT * FROM altered_and_written") == [(1, 2)]
    assert properties(spark, "altered_and_written")["k"] == "v"


#: Session tables that a block alters: those with and without partitions.
LAYOUTS = {"plain": "", "parted": " PARTITIONED BY (part)"}


@pytest.mark.promise("ddl-in-blocks", "a block alters a session table: seen by it, published or undone with it")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_session_table_is_altered_by_a_block(spark: SparkSession, layout: str) -> None:
    table, other = f"altered_{layout}", spark.newSession()
    query = "AS SELECT id, CONCAT('n', id) AS name, id % 2 AS part FROM range(3)"
    facts = "TBLPROPERTIES ('twophase.field_ids' = 'true', 'a' = '1', 'b' = '2')"
    spark.sql(f"CREATE TABLE {table} USING parquet {LAYOUTS[layout]} {facts} {query}")
    before = columns(spark, table)
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
        assert "extra int" in columns(spark, table)
        raise RolledBack
    assert columns(spark, table) == before
    with twophase.transaction(spark) as tx:
        spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT AFTER id")
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN extra TYPE BIGINT")
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN label COMMENT 'what'")
        assert rows(spark, f"SELECT id, extra, label, part FROM {table} WHERE label = 'n1'") == [(1, None, "n1", 1)]
        tx.savepoint("mark")
        spark.sql(f"ALTER TABLE {table} DROP COLUMN label")
        assert "label" not in spark.table(table).columns
        tx.rollback_to("mark")
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = '3', 'c' = '4')")
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('b')")
        spark.sql(f"COMMENT ON TABLE {table} IS 'all of it'")
        with pytest.raises(AtomicityNotSupportedError, match="has written it before"):
            spark.sql(f"ALTER TABLE {table} RENAME TO elsewhere")
        for refused in (
            *("DROP COLUMN nowhere", "ADD COLUMN label INT", "ALTER COLUMN label TYPE INT"),
            *("SET TBLPROPERTIES ('EXTERNAL' = 'TRUE')", "SET TBLPROPERTIES ('password' = 'x')"),
        ):
            with pytest.raises((AnalysisException, TwoPhaseError)):
                spark.sql(f"ALTER TABLE {table} {refused}")
        assert columns(other, table) == before
    assert tx.state is TransactionState.COMPLETED and str(tx.level) == "ATOMIC"
    for reader in (spark, other):
        assert columns(reader, table) == ["id bigint", "extra bigint", "label string", "part bigint"]
        assert rows(reader, f"SELECT id, label FROM {table} WHERE label = 'n2' AND extra IS NULL") == [(2, "n2")]
    assert {k: v for k, v in properties(spark, table).items() if k in "abc"} == {"a": "3", "c": "4"}
    described = spark.sql(f"DESCRIBE EXTENDED {table}").collect()
    assert {row.col_name: row.comment for row in described}["label"] == "what"
    assert "all of it" in {row.data_type for row in described}
    spark.sql(f"INSERT INTO {table} VALUES (7, 70, 'n7', 1)")
    assert rows(other, f"SELECT extra FROM {table} WHERE label = 'n7'") == [(70,)]


@pytest.mark.promise("ddl-in-blocks", "rows that a block writes to a session table after its ALTER come with it")
def test_rows_are_written_to_a_session_table_after_its_alter(spark: SparkSession, tmp_path: Any) -> None:
    table, other = "altered_and_filled", spark.newSession()
    spark.sql(f"CREATE TABLE {table} USING parquet AS SELECT id, 'x' AS name FROM range(2)")
    for end in (RolledBack, None):
        with suppress(RolledBack), twophase.transaction(spark) as tx:
            spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
            spark.sql(f"INSERT INTO {table} VALUES (2, 'y', 20)")
            tx.savepoint("mark")
            spark.sql(f"INSERT INTO {table} SELECT id + 10, name, extra FROM {table} WHERE extra = 20")
            assert rows(spark, f"SELECT id FROM {table} WHERE extra = 20") == [(2,), (12,)]
            tx.rollback_to("mark")
            with pytest.raises(AtomicityNotSupportedError):
                spark.sql(f"ALTER TABLE {table} DROP COLUMN name")
            assert len(rows(other, f"SELECT * FROM {table}")) == 2
            if end is not None:
                raise end
    assert sorted(map(tuple, other.table(table).collect())) == [(0, "x", None), (1, "x", None), (2, "y", 20)]
    spark.sql("CREATE TABLE filled_parts USING parquet PARTITIONED BY (part) AS SELECT 1 AS id, 2 AS part")
    spark.sql(f"CREATE TABLE filled_outside USING parquet LOCATION '{tmp_path / 'files'}' AS SELECT 1 AS id, 2 AS part")
    for name, why in (("filled_parts", "it has partitions"), ("filled_outside", "its files stay where they are")):
        with twophase.transaction(spark):
            spark.sql(f"ALTER TABLE {name} ADD COLUMN extra INT")
            with pytest.raises(AtomicityNotSupportedError, match=why):
                spark.sql(f"INSERT INTO {name} SELECT * FROM {name}")
        assert rows(spark, f"SELECT id, extra FROM {name}") == [(1, None)]
        with twophase.transaction(spark):
            spark.sql(f"INSERT INTO {name} SELECT * FROM {name}")
            with pytest.raises(AtomicityNotSupportedError, match=r"has written rows to it before|cannot show"):
                spark.sql(f"ALTER TABLE {name} ADD COLUMN more INT")
        assert len(rows(spark, f"SELECT * FROM {name}")) == 2


#: Statements of a block behind which a table cannot be altered in it, by their stores.
WRITTEN = {
    "session": (
        ("INSERT INTO {t} VALUES (2, 1)",),
        ("INSERT OVERWRITE {t} VALUES (2, 1)",),
        ("TRUNCATE TABLE {t}",),
        ("ALTER TABLE {t} ADD COLUMN e INT", "INSERT INTO {t} VALUES (2, 1, 3)"),
        ("ALTER TABLE {t} ADD COLUMN e INT", "INSERT OVERWRITE {t} VALUES (2, 1, 3)"),
    ),
    "sqlite": (("INSERT INTO {t} VALUES (2, 1)",), ("INSERT OVERWRITE {t} VALUES (2, 1)",), ("TRUNCATE TABLE {t}",)),
}


@pytest.mark.parametrize("store", WRITTEN, indirect=True)
def test_an_alter_behind_rows_of_the_block_is_refused_with_the_reason(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    for number, statements in enumerate(WRITTEN[store]):
        table = named(f"written_{number}")
        spark.sql(f"CREATE TABLE {table} {STORES[store][1]} AS SELECT CAST(1 AS INT) AS id, CAST(1 AS INT) AS p")
        with twophase.transaction(spark):
            run_each(spark, table, statements)
            for change in ("ADD COLUMN x INT", "SET TBLPROPERTIES ('k' = 'v')", "ALTER COLUMN p SET DEFAULT 5"):
                with pytest.raises(AtomicityNotSupportedError) as refused:
                    spark.sql(f"ALTER TABLE {table} {change}")
                assert "has written rows to it before" in str(refused.value)
                assert "commit them before" in str(refused.value) and "immediately" not in str(refused.value)
            with pytest.raises(AtomicityNotSupportedError, match=r"not renamed: .* has (written|altered) it before"):
                spark.sql(f"ALTER TABLE {table} RENAME TO {table}_new")


@pytest.mark.promise("ddl-in-blocks", "an ALTER of a block and another writer's change of the definition conflict")
def test_a_session_table_whose_definition_others_have_changed(spark: SparkSession) -> None:
    table, other = "altered_by_two", spark.newSession()
    twophase.attach(other)
    facts = "TBLPROPERTIES ('a' = '1')"
    spark.sql(f"CREATE TABLE {table} USING parquet {facts} AS SELECT id, 'x' AS name FROM range(2)")
    for ours, theirs in (
        ("ADD COLUMN mine INT", f"ALTER TABLE {table} ADD COLUMN theirs INT"),
        ("ALTER COLUMN name COMMENT 'mine'", f"ALTER TABLE {table} ALTER COLUMN name COMMENT 'theirs'"),
        ("SET TBLPROPERTIES ('a' = '2')", f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = '3')"),
        ("ADD COLUMN mine INT", f"CREATE OR REPLACE TABLE {table} {facts} AS SELECT id, 'x' AS name FROM range(2)"),
    ):
        with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation="read_committed"):
            spark.sql(f"ALTER TABLE {table} {ours}")
            elsewhere(lambda text=theirs: other.sql(text))
        assert "mine int" not in columns(spark, table)
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN mine INT")
        elsewhere(lambda: other.sql(f"INSERT INTO {table} VALUES (6, 'p')"))
        assert len(rows(spark, f"SELECT id, mine FROM {table}")) == 2
    with twophase.transaction(spark, isolation="read_committed"):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN mine INT")
        elsewhere(lambda: other.sql(f"INSERT INTO {table} VALUES (7, 'q')"))
    assert len(rows(spark, f"SELECT * FROM {table} WHERE mine IS NULL")) == 4
    with pytest.raises(WriteConflictError), twophase.transaction(other, isolation="read_committed"):
        other.sql(f"INSERT INTO {table} VALUES (8, 'r', 1)")
        elsewhere(lambda: altered_elsewhere(spark, f"ALTER TABLE {table} DROP COLUMN mine"))


@pytest.mark.promise(
    "ddl-in-blocks", "a block that began before an ALTER of another block reads the former columns", detail=True
)
def test_a_block_reads_a_session_table_as_it_was_before_an_alter(spark: SparkSession) -> None:
    other = spark.newSession()
    twophase.attach(other)
    for layout, clause in LAYOUTS.items():
        table = f"altered_beside_{layout}"
        spark.sql(f"CREATE TABLE {table} USING parquet {clause} AS SELECT id, id % 2 AS part FROM range(2)")
        with twophase.transaction(spark):
            spark.sql("SELECT 1").collect()
            elsewhere(lambda name=table: altered_elsewhere(other, f"ALTER TABLE {name} ADD COLUMN extra INT"))
            elsewhere(lambda name=table: other.sql(f"INSERT INTO {name} (id, part, extra) VALUES (9, 1, 90)"))
            assert rows(spark, f"SELECT * FROM {table}") == [(0, 0), (1, 1)]
        assert rows(spark, f"SELECT id FROM {table} WHERE extra = 90") == [(9,)]


@pytest.fixture(params=ALTERING)
def database(request: pytest.FixtureRequest) -> str:
    return ALTERING[request.param]


@pytest.mark.promise("ddl-in-blocks", "a block alters a table of a database: seen by it, published or undone with it")
def test_a_table_of_a_database_is_altered_by_a_block(spark: SparkSession, database: str) -> None:
    table, other = f"{database}.altered", spark.newSession()
    query = "SELECT CAST(id AS INT) AS id, CONCAT('n', id) AS name FROM range(3)"
    spark.sql(f"CREATE TABLE {table} TBLPROPERTIES ('a' = '1', 'b' = '2') AS {query}")
    before = columns(spark, table)
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
        assert rows(spark, f"SELECT * FROM {table} WHERE id = 1") == [(1, "n1", None)]
        raise RolledBack
    assert columns(spark, table) == before
    with twophase.transaction(spark) as tx:
        spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT")
        assert rows(spark, f"SELECT * FROM {table} WHERE label = 'n1' AND id > 0") == [(1, "n1", None)]
        assert rows(spark, f"SELECT count(*) FROM {table} WHERE extra IS NULL") == [(3,)]
        tx.savepoint("mark")
        spark.sql(f"ALTER TABLE {table} DROP COLUMN label")
        assert "label" not in spark.table(table).columns
        tx.rollback_to("mark")
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a' = '3', 'c' = '4')")
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('b')")
        for refused in (
            *("DROP COLUMN nowhere", "ADD COLUMN label INT", "RENAME TO elsewhere"),
            "SET TBLPROPERTIES ('password' = 'x')",
        ):
            with pytest.raises((AnalysisException, TwoPhaseError)):
                spark.sql(f"ALTER TABLE {table} {refused}")
        with pytest.raises(AtomicityNotSupportedError, match="was altered in transaction"):
            spark.sql(f"INSERT INTO {table} VALUES (7, 'n7', 70)")
        assert columns(other, table) == before
    assert tx.state is TransactionState.COMPLETED and str(tx.level) == "ATOMIC"
    for reader in (spark, other):
        assert columns(reader, table) == ["id bigint", "label string", "extra int"]
        assert rows(reader, f"SELECT id FROM {table} WHERE label = 'n2'") == [(2,)]
    assert {k: v for k, v in properties(spark, table).items() if k in "abc"} == {"a": "3", "c": "4"}
    with twophase.transaction(spark):
        spark.sql(f"INSERT INTO {table} VALUES (7, 'n7', 70)")
        with pytest.raises(AtomicityNotSupportedError, match="has written rows to it before"):
            spark.sql(f"ALTER TABLE {table} ADD COLUMN more INT")
    assert rows(spark, f"SELECT extra FROM {table} WHERE id = 7") == [(70,)]


@pytest.mark.promise("ddl-in-blocks", "of an ALTER of a block and another change of a database's table one is refused")
def test_a_table_of_a_database_that_others_have_changed(spark: SparkSession, database: str) -> None:
    table, other = f"{database}.altered_by_two", spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {table} AS SELECT 1 AS id, 'x' AS name")
    for theirs in (f"ALTER TABLE {table} ADD COLUMN theirs INT", f"INSERT INTO {table} VALUES (6, 'p', NULL)"):
        with pytest.raises(TwoPhaseError, match=r"meanwhile|since"), twophase.transaction(spark):
            spark.sql(f"ALTER TABLE {table} ADD COLUMN mine INT")
            elsewhere(lambda text=theirs: other.sql(text))
        assert "mine int" not in columns(spark, table)
    assert rows(spark, f"SELECT id, name, theirs FROM {table} WHERE id = 6") == [(6, "p", None)]


@pytest.mark.promise("ddl-in-blocks", "a block alters a table that it has created or replaced, in each store")
def test_a_block_alters_what_it_has_made(spark: SparkSession, store: str, named: Callable[[str], str]) -> None:
    table, kept, other = named("shaped"), named("kept"), spark.newSession()
    clause = STORES[store][1]
    spark.sql(f"CREATE TABLE {kept} {clause} AS SELECT 'old' AS was")
    with twophase.transaction(spark) as tx:
        spark.sql(f"CREATE TABLE {table} {clause} AS SELECT CAST(id AS INT) AS id, 'x' AS name FROM range(2)")
        spark.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
        spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
        spark.sql(f"INSERT INTO {table} VALUES (2, 'y', 20)")
        spark.sql(f"ALTER TABLE {table} ALTER COLUMN extra TYPE BIGINT")
        tx.savepoint("mark")
        spark.sql(f"ALTER TABLE {table} DROP COLUMN label")
        assert rows(spark, f"SELECT * FROM {table} WHERE extra = 20") == [(2, 20)]
        tx.rollback_to("mark")
        assert rows(spark, f"SELECT * FROM {table} WHERE label = 'y'") == [(2, "y", 20)]
        spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('a.b' = 'c', 'a.d' = 'e')")
        spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('a.d')")
        spark.sql(f"COMMENT ON TABLE {table} IS 'what it is'")
        for refused in ("DROP COLUMN nowhere", "ADD COLUMN label INT", "ALTER COLUMN label TYPE INT"):
            with pytest.raises((AnalysisException, TwoPhaseError)):
                spark.sql(f"ALTER TABLE {table} {refused}")
        spark.sql(f"CREATE OR REPLACE TABLE {kept} {clause} AS SELECT 1 AS id")
        spark.sql(f"ALTER TABLE {kept} ADD COLUMN more STRING")
        assert not other.catalog.tableExists(table) and columns(other, kept) == ["was string"]
    assert tx.state is TransactionState.COMPLETED
    for reader in (spark, other):
        assert columns(reader, table) == ["id int", "label string", "extra bigint"]
        found = [(0, "x", None), (1, "x", None), (2, "y", 20)]
        assert sorted(map(tuple, reader.table(table).collect())) == found
        assert rows(reader, f"SELECT * FROM {kept}") == [(1, None)]
    assert {k: v for k, v in properties(spark, table).items() if k.startswith("a.")} == {"a.b": "c"}
    assert "what it is" in {row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {table}").collect()}


@pytest.mark.promise("ddl-in-blocks", "a block renames a table that it has created, in each store", detail=True)
def test_a_block_renames_what_it_has_made(
    spark: SparkSession, store: str, named: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, renamed, taken, other = named("made"), named("renamed"), named("taken"), spark.newSession()
    clause = STORES[store][1]
    spark.sql(f"CREATE TABLE {taken} {clause} AS SELECT 1 AS id")
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"CREATE TABLE {made} {clause} AS SELECT id FROM range(2)")
        spark.sql(f"ALTER TABLE {made} RENAME TO {renamed}")
        raise RolledBack
    assert not spark.catalog.tableExists(made) and not spark.catalog.tableExists(renamed)
    with twophase.transaction(spark) as tx:
        spark.sql(f"CREATE TABLE {made} {clause} AS SELECT id FROM range(2)")
        with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)already exists"):
            spark.sql(f"ALTER TABLE {made} RENAME TO {taken}")
        assert len(rows(spark, f"SELECT * FROM {made}")) == 2
        with monkeypatch.context() as patched, pytest.raises(AtomicityNotSupportedError, match="cannot be renamed"):
            patched.setattr(created_tables, "drop_in_block", lambda *_, **__: None)
            spark.sql(f"ALTER TABLE {made} RENAME TO {renamed}")
        assert not spark.catalog.tableExists(renamed)
        assert len(rows(spark, f"SELECT * FROM {made}")) == 2
        spark.sql(f"ALTER TABLE {made} RENAME TO {renamed}")
        assert not spark.catalog.tableExists(made)
        spark.sql(f"INSERT INTO {renamed} VALUES (7)")
        assert not other.catalog.tableExists(renamed)
    assert tx.state is TransactionState.COMPLETED
    assert rows(other, f"SELECT * FROM {renamed}") == [(0,), (1,), (7,)]
    assert not other.catalog.tableExists(made) and rows(other, f"SELECT * FROM {taken}") == [(1,)]
    spark.sql(f"CREATE TABLE {made} {clause} AS SELECT 1 AS id")


@pytest.mark.promise(
    "ddl-in-blocks", "a block alters a session table that it has created, with its layout and types", detail=True
)
def test_a_session_table_keeps_its_layout_and_types(spark: SparkSession, tmp_path: Any) -> None:
    spark.conf.set("spark.sql.scripting.enabled", "true")  # Spark 4.0 asks for it.
    with twophase.transaction(spark):
        spark.sql("CREATE TABLE laid (id INT, name VARCHAR(5), part STRING) USING parquet PARTITIONED BY (part)")
        spark.sql("INSERT INTO laid VALUES (1, 'a', 'p'), (2, 'b', 'q')")
        for change in ("RENAME COLUMN part TO other", "DROP COLUMN part"):
            with pytest.raises((AnalysisException, TwoPhaseError)):
                spark.sql(f"ALTER TABLE laid {change}")
        spark.sql("ALTER TABLE laid ADD COLUMN code CHAR(3)")
        spark.sql("ALTER TABLE laid RENAME COLUMN id TO number")
        spark.sql(f"CREATE TABLE placed USING parquet LOCATION '{tmp_path / 'placed'}' AS SELECT 1 AS id")
        spark.sql("ALTER TABLE placed ADD COLUMN more INT")
        with pytest.raises(AtomicityNotSupportedError, match="cannot be renamed"):
            spark.sql("ALTER TABLE placed RENAME TO elsewhere")
        spark.sql("BEGIN ALTER TABLE laid ADD COLUMN last INT; END")
    assert [f"{row.col_name} {row.data_type}" for row in spark.sql("DESCRIBE laid").collect()][:5] == [
        *("number int", "name varchar(5)", "code char(3)", "last int", "part string"),
    ]
    assert rows(spark, "SELECT number, name, part FROM laid") == [(1, "a", "p"), (2, "b", "q")]
    assert len(spark.sql("SHOW PARTITIONS laid").collect()) == 2
    assert rows(spark, "SELECT * FROM placed") == [(1, None)]
    assert spark.read.parquet(str(tmp_path / "placed")).count() == 1


#: Changes of defaults, each with what an INSERT gives then; the table is made with ``id`` and a row of it.
DEFAULTS = (
    "ALTER TABLE {t} ADD COLUMN c INT DEFAULT 5",
    2,
    "INSERT INTO {t} VALUES (3, DEFAULT), (4, NULL)",
    "ALTER TABLE {t} ALTER COLUMN c SET DEFAULT 6",
    "ALTER TABLE {t} ADD COLUMNS (price DECIMAL(2, 1) DEFAULT 1.5, word STRING DEFAULT 'it''s', `a b.c` DATE)",
    5,
    "ALTER TABLE {t} ALTER COLUMN word DROP DEFAULT",
    "ALTER TABLE {t} ALTER COLUMN c TYPE BIGINT",
    "ALTER TABLE {t} RENAME COLUMN c TO count",
    6,
)


def defaults(spark: SparkSession, table: str) -> list[tuple[Any, ...]]:
    """The columns of a table, with the defaults that Spark has noted."""
    kept = ("CURRENT_DEFAULT", "EXISTS_DEFAULT", "__CHAR_VARCHAR_TYPE_STRING")
    fields = spark.table(table).schema
    return [(f.name, f.dataType.simpleString(), [f.metadata.get(key) for key in kept]) for f in fields]


@pytest.mark.promise(
    "ddl-in-blocks", "a table that a block has made gets the DEFAULTs of ALTER TABLE as one outside", detail=True
)
@pytest.mark.parametrize("provider", ["parquet", "orc"])
def test_a_session_table_that_a_block_has_made_gets_defaults(spark: SparkSession, provider: str) -> None:
    inside, outside = f"defaults_in_{provider}", f"defaults_out_{provider}"
    facts = "TBLPROPERTIES ('twophase.field_ids' = 'true')" if provider == "parquet" else ""
    made = f"USING {provider} {facts} AS SELECT CAST(1 AS INT) AS id"
    # An ORC table is renamed a column by a rewrite, outside of a block.
    statements = [one for one in DEFAULTS if provider == "parquet" or "RENAME" not in str(one)]
    spark.sql(f"CREATE TABLE {outside} {made}")
    run_each(spark, outside, statements)
    spark.sql(f"CREATE TABLE {inside}_replaced USING {provider} AS SELECT 'was' AS id")
    with twophase.transaction(spark) as tx:
        for table, create in ((inside, "CREATE TABLE"), (f"{inside}_replaced", "CREATE OR REPLACE TABLE")):
            spark.sql(f"{create} {table} {made}")
            tx.savepoint("made")
            spark.sql(f"ALTER TABLE {table} ADD COLUMN c INT DEFAULT 9")
            tx.rollback_to("made")
            run_each(spark, table, statements)
            assert rows(spark, f"SELECT * FROM {table}") == rows(spark, f"SELECT * FROM {outside}")
    for table in (inside, f"{inside}_replaced"):
        assert rows(spark, f"SELECT * FROM {table}") == rows(spark, f"SELECT * FROM {outside}")
        assert defaults(spark, table) == defaults(spark, outside)
    for table in (inside, outside):
        insert_id(spark, table, 7)
    assert rows(spark, f"SELECT * FROM {inside}") == rows(spark, f"SELECT * FROM {outside}")


@pytest.mark.promise(
    "ddl-in-blocks", "a database's table that a block has made gets the DEFAULTs of ALTER TABLE", detail=True
)
def test_a_table_of_a_database_that_a_block_has_made_gets_defaults(spark: SparkSession, database: str) -> None:
    inside, outside, replaced = (f"{database}.defaults_{name}" for name in ("in", "out", "replaced"))
    for table in (outside, replaced):
        spark.sql(f"CREATE TABLE {table} AS SELECT CAST(1 AS INT) AS id")
    statements = [
        one if isinstance(one, int) else one.replace("it''s", "its") for one in DEFAULTS
    ]  # Databases take no quotes in a default.
    run_each(spark, outside, statements)
    spark.sql(f"ALTER TABLE {replaced} ADD COLUMNS (word STRING DEFAULT 'was', kept INT DEFAULT 4, gone INT DEFAULT 5)")
    with twophase.transaction(spark) as tx:
        spark.sql(f"CREATE TABLE {inside} AS SELECT CAST(1 AS INT) AS id")
        tx.savepoint("made")
        spark.sql(f"ALTER TABLE {inside} ADD COLUMN c INT DEFAULT 9")
        tx.rollback_to("made")
        run_each(spark, inside, statements)
        assert rows(spark, f"SELECT * FROM {inside}") == rows(spark, f"SELECT * FROM {outside}")
        with pytest.raises(CatalogError, match="its DEFAULT 1 \\+ 1 is no literal"):
            spark.sql(f"ALTER TABLE {inside} ALTER COLUMN count SET DEFAULT 1 + 1")
        query = "SELECT CAST(1 AS INT) AS id, 'x' AS word, CAST(2 AS INT) AS kept, CAST(3 AS INT) AS gone"
        spark.sql(f"CREATE OR REPLACE TABLE {replaced} AS {query}")
        spark.sql(f"ALTER TABLE {replaced} ALTER COLUMN word SET DEFAULT 'new'")
        spark.sql(f"ALTER TABLE {replaced} ALTER COLUMN gone DROP DEFAULT")
    for table in (inside, outside):
        insert_id(spark, table, 7)
    assert rows(spark, f"SELECT * FROM {inside}") == rows(spark, f"SELECT * FROM {outside}")
    insert_id(spark, replaced, 2)
    assert rows(spark, f"SELECT * FROM {replaced}") == [(1, "x", 2, 3), (2, "new", 4, None)]
    with twophase.transaction(spark):
        spark.sql(f"ALTER TABLE {replaced} ALTER COLUMN word SET DEFAULT 'newer'")
        spark.sql(f"ALTER TABLE {replaced} ALTER COLUMN kept DROP DEFAULT")
    insert_id(spark, replaced, 3)
    assert rows(spark, f"SELECT * FROM {replaced} WHERE id = 3") == [(3, "newer", None, None)]


def test_a_session_table_that_a_block_has_created_with_defaults_has_them(spark: SparkSession) -> None:
    columns_ = "(id INT, x INT DEFAULT 3, word VARCHAR(4) DEFAULT 'ab') USING parquet"
    statements = (
        1,
        "INSERT INTO {t} VALUES (2, DEFAULT, DEFAULT)",
        "ALTER TABLE {t} ALTER COLUMN word TYPE VARCHAR(9)",
        "ALTER TABLE {t} ALTER COLUMN word SET DEFAULT 'abcdefghi'",
        "ALTER TABLE {t} ALTER COLUMN x DROP DEFAULT",
        3,
    )
    spark.sql(f"CREATE TABLE created_outside {columns_}")
    run_each(spark, "created_outside", statements)
    with twophase.transaction(spark):
        spark.sql(f"CREATE TABLE created_inside {columns_}")
        run_each(spark, "created_inside", statements)
        for change in ("ADD COLUMN n INT DEFAULT rand()", "ALTER COLUMN x SET DEFAULT 'abc'"):
            with pytest.raises(AnalysisException, match="INVALID_DEFAULT_VALUE"):
                spark.sql(f"ALTER TABLE created_inside {change}")
    assert rows(spark, "SELECT * FROM created_inside") == rows(spark, "SELECT * FROM created_outside")
    assert defaults(spark, "created_inside") == defaults(spark, "created_outside")


def test_a_table_made_of_a_query_has_the_same_defaults_in_a_block_and_outside(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    source, inside, outside = f"with_defaults_{store}", named("queried_inside"), named("queried_outside")
    spark.sql(f"CREATE TABLE {source} (id INT, x INT DEFAULT 3) USING parquet")
    query = f"{STORES[store][1]} AS SELECT * FROM {source}"
    spark.sql(f"CREATE TABLE {outside} {query}")
    insert_id(spark, outside, 1)
    with twophase.transaction(spark):
        spark.sql(f"CREATE TABLE {inside} {query}")
        insert_id(spark, inside, 1)
    assert rows(spark, f"SELECT * FROM {inside}") == rows(spark, f"SELECT * FROM {outside}")
    assert defaults(spark, inside) == defaults(spark, outside)


@pytest.mark.promise("ddl-in-blocks", "a snapshot that was begun before sees an altered table as it was")
def test_a_snapshot_sees_an_altered_table_as_it_was(spark: SparkSession) -> None:
    table, other = "ice.db.altered_beside", spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {table} AS SELECT id, 'x' AS name FROM range(2)")

    def altered() -> None:
        with twophase.transaction(other):
            other.sql(f"ALTER TABLE {table} RENAME COLUMN name TO label")
            other.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
            other.sql(f"INSERT INTO {table} VALUES (7, 'y', 70)")

    with twophase.transaction(spark, isolation="snapshot"):
        spark.sql("SELECT 1").collect()
        elsewhere(altered)
        assert spark.table(table).columns == ["id", "name"]
        assert rows(spark, f"SELECT * FROM {table} WHERE name = 'x'") == [(0, "x"), (1, "x")]
        elsewhere(lambda: other.sql(f"ALTER TABLE {table} DROP COLUMN label"))
        assert rows(spark, f"SELECT id, name FROM {table}") == [(0, "x"), (1, "x")]
    assert rows(spark, f"SELECT * FROM {table} WHERE id = 7") == [(7, 70)]
