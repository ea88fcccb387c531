"""Tables that are created, emptied and dropped inside a transaction: seen by it, published or undone with it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyspark
import pytest
import sqlalchemy as sa
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.isolation.places import session
from tests.levels import Levels
from tests.spark.blocks import STORES, RolledBack, elsewhere, rows
from twophase import failpoints
from twophase.errors import AtomicityNotSupportedError, TransactionAborted, TwoPhaseError, WriteConflictError
from twophase.model import Isolation, Level
from twophase.protocol.states import TransactionState

spark40_first_cases = True


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, postgresql: Any) -> Iterator[SparkSession]:
    with session(tmp_path_factory.mktemp("ddl"), {"pg": postgresql}) as found:
        yield found


@pytest.mark.promise("ddl-in-blocks", "a table that is created without rows is published with the block")
def test_a_table_without_rows_is_seen_by_the_block_and_published_with_it(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    empty, filled, other = named("empty"), named("filled"), spark.newSession()
    clause = STORES[store][1]
    with twophase.transaction(spark) as tx:
        spark.sql(f"CREATE TABLE {empty} (id INT, name STRING) {clause}")
        spark.sql(f"CREATE TABLE IF NOT EXISTS {empty} (other DATE) {clause}")
        with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)already exists"):
            spark.sql(f"CREATE TABLE {empty} (id INT) {clause}")
        spark.sql(f"CREATE TABLE {filled} (id INT, name STRING) {clause}")
        assert rows(spark, f"SELECT * FROM {empty}") == []
        spark.sql(f"INSERT INTO {filled} VALUES (1, 'a')")
        spark.sql(f"INSERT INTO {filled} SELECT id + 1, name FROM {filled}")
        assert rows(spark, f"SELECT * FROM {filled}") == [(1, "a"), (2, "a")]
        assert not other.catalog.tableExists(empty)
    assert tx.state is TransactionState.COMPLETED
    assert rows(spark, f"SELECT * FROM {empty}") == []
    assert [field.name for field in spark.table(empty).schema] == ["id", "name"]
    assert rows(spark, f"SELECT * FROM {filled}") == [(1, "a"), (2, "a")]


@pytest.mark.promise("ddl-in-blocks", "a table that is created without rows is undone with the block")
def test_a_table_without_rows_is_undone_with_the_block(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    empty = named("empty")
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"CREATE TABLE {empty} (id INT) {STORES[store][1]}")
        assert rows(spark, f"SELECT * FROM {empty}") == []
        raise RolledBack
    assert not spark.catalog.tableExists(empty)
    spark.sql(f"CREATE TABLE {empty} (id INT) {STORES[store][1]}")


#: Definitions, and the stores that have them.
DEFINITIONS = {
    "not null": "(id INT NOT NULL, name STRING)",
    "comments": "(id INT COMMENT 'one', name STRING) {clause} COMMENT 'all of them'",
    "char": "(id INT, name VARCHAR(5), code CHAR(3), price DECIMAL(9, 2), at TIMESTAMP)",
    "partitions": "(id INT, day DATE) {clause} PARTITIONED BY (day)",
    "properties": "(id INT) {clause} TBLPROPERTIES ('a.b' = 'c')",
    "nested": "(id INT, s STRUCT<a: INT NOT NULL, b: ARRAY<STRING>>)",
}
ELSEWHERE = {("partitions", "sqlite"), ("partitions", "postgresql"), ("nested", "sqlite"), ("nested", "postgresql")}
OF_SESSION_TABLES = {
    "options": "(id INT, name STRING) USING csv OPTIONS (sep '|')",
    "orc": "(id INT) USING orc",
    "buckets": "(id INT, name STRING) USING parquet CLUSTERED BY (id) SORTED BY (name) INTO 4 BUCKETS",
    "serde": "(id INT) STORED AS PARQUET",
    "delimited": "(id INT, name STRING) ROW FORMAT DELIMITED FIELDS TERMINATED BY ','",
    "hive partitions": "(id INT) PARTITIONED BY (day STRING) STORED AS ORC",
    "default format": "(id INT)",
    "defaults": "(id INT DEFAULT 7, name VARCHAR(5) DEFAULT 'a', price DECIMAL(9, 2) DEFAULT 1, at DATE) USING parquet",
}


#: What differs between any two tables.
UNEQUAL = ("Table", "Name", "Location", "Created Time", "Last Access", "Statistics")


def shown(spark: SparkSession, name: str) -> list[str]:
    """What describes a table, without what differs between any two and what twophase notes on them."""
    described = [(row.col_name, row.data_type, row.comment) for row in spark.sql(f"DESCRIBE EXTENDED {name}").collect()]
    told = [" ".join(map(str, row)) for row in described if row[0] not in (*UNEQUAL, "Table Properties")]
    properties = [value.strip("[]").split(",") for key, value, _ in described if key == "Table Properties"]
    users = [one for found in properties for one in found if one.startswith("a.b")]
    fields = spark.table(name).schema.jsonValue()["fields"]
    if pyspark.__version__.startswith("4.0."):  # Of the same value it writes `1.00BD` for one catalog, for another `1`.
        for field in fields:
            field["metadata"].pop("EXISTS_DEFAULT", None)
    return [*told, *users, json.dumps(fields, sort_keys=True)]


@pytest.mark.promise(
    "ddl-in-blocks", "a table that is created in a block is as one that is created outside of it", detail=True
)
def test_a_table_is_the_same_as_one_that_was_created_outside_of_the_block(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    clause = STORES[store][1]
    wanted = {k: v for k, v in DEFINITIONS.items() if (k, store) not in ELSEWHERE}
    if store == "session":
        wanted |= OF_SESSION_TABLES
    found: dict[str, tuple[list[str], list[str]]] = {}
    for what, text in wanted.items():
        definition = text.format(clause=clause) if "{clause}" in text or "USING" in text or "ROW" in text else text
        if what in ("not null", "char", "nested"):
            definition += f" {clause}"
        outside, inside = (named(f"{what.replace(' ', '_')}_{place}") for place in ("outside", "inside"))
        spark.sql(f"CREATE TABLE {outside} {definition}")
        with twophase.transaction(spark):
            spark.sql(f"CREATE TABLE {inside} {definition}")
            assert rows(spark, f"SELECT * FROM {inside}") == []
        found[what] = shown(spark, outside), shown(spark, inside)
    different = {what: set(outside) ^ set(inside) for what, (outside, inside) in found.items() if outside != inside}
    assert different == {}


@pytest.mark.promise(
    "ddl-in-blocks", "values go into the columns of a partitioned table of the block as outside of it", detail=True
)
def test_values_go_into_the_columns_that_they_go_into_outside_of_the_block(spark: SparkSession) -> None:
    """A metastore has the partition columns behind the others, wherever the statement names them."""
    made = {
        "created": "(p INT, id INT) USING parquet PARTITIONED BY (p)",
        "queried": "USING parquet PARTITIONED BY (q, p) AS SELECT 1 AS p, 2 AS id, 3 AS q",
        "altered": "(id INT, p INT) USING parquet PARTITIONED BY (p)",
    }

    def run(place: str) -> list[list[tuple[Any, ...]]]:
        found = []
        for what, definition in made.items():
            table = f"columns_{what}_{place}"
            spark.sql(f"CREATE TABLE {table} {definition}")
            if what == "altered":
                spark.sql(f"ALTER TABLE {table} ADD COLUMN x INT")
            spark.sql(f"INSERT INTO {table} VALUES ({'10, 20' if what == 'created' else '10, 20, 30'})")
            spark.sql(f"INSERT INTO {table} SELECT * FROM {table}")
            names = sorted(spark.table(table).columns)
            found.append([*map(tuple, spark.sql(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1, 2").collect())])
        return found

    outside = run("outside")
    with twophase.transaction(spark):
        assert run("inside") == outside
    assert rows(spark, "SELECT id, p FROM columns_created_inside") == [(10, 20)] * 2


@pytest.mark.promise("ddl-in-blocks", "what a staged table cannot be is refused")
@pytest.mark.parametrize(
    ("definition", "why"),
    [
        ("(id INT, twice INT GENERATED ALWAYS AS (id * 2)) USING parquet", "does not support generated columns"),
        ("(id INT) USING xml", "takes effect immediately"),
        ("USING parquet LOCATION '{files}'", "without columns"),
        ("(id BIGINT) USING parquet LOCATION '{files}'", "is not empty"),
    ],
)
def test_what_a_staged_table_cannot_be_is_refused(
    spark: SparkSession, tmp_path: Any, definition: str, why: str
) -> None:
    spark.range(3).write.parquet(str(tmp_path / "files"))
    with (
        twophase.transaction(spark),
        pytest.raises((TwoPhaseError, AnalysisException), match=why),
    ):
        spark.sql(f"CREATE TABLE refused {definition.format(files=tmp_path / 'files')}")
    assert not spark.catalog.tableExists("refused")
    assert spark.read.parquet(str(tmp_path / "files")).count() == 3


@pytest.mark.promise("ddl-in-blocks", "a table that a block empties is empty for the block, and for others with it")
def test_a_truncated_table_is_empty_for_the_block_and_for_others_at_its_end(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    table, other = named("emptied"), spark.newSession()
    spark.sql(f"CREATE TABLE {table} {STORES[store][1]} AS SELECT id, id % 2 AS part FROM range(4)")
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"TRUNCATE TABLE {table}")
        assert rows(spark, f"SELECT * FROM {table}") == []
        raise RolledBack
    assert len(rows(spark, f"SELECT * FROM {table}")) == 4
    with twophase.transaction(spark):
        spark.sql(f"INSERT INTO {table} VALUES (8, 0)")
        spark.sql(f"TRUNCATE TABLE {table}")
        spark.sql(f"INSERT INTO {table} VALUES (9, 1)")
        assert rows(spark, f"SELECT * FROM {table}") == [(9, 1)]
        assert len(rows(other, f"SELECT * FROM {table}")) == 4
    assert rows(spark, f"SELECT * FROM {table}") == [(9, 1)]
    with twophase.transaction(spark):
        spark.sql(f"CREATE TABLE {named('made')} {STORES[store][1]} AS SELECT 1 AS id")
        spark.sql(f"TRUNCATE TABLE {named('made')}")
    assert rows(spark, f"SELECT * FROM {named('made')}") == []


@pytest.mark.promise(
    "ddl-in-blocks", "all partitions of a table are emptied, also where overwrites are dynamic", detail=True
)
@pytest.mark.parametrize("clause", ["USING parquet PARTITIONED BY (part)", "PARTITIONED BY (part) STORED AS ORC"])
def test_all_partitions_are_emptied_also_where_overwrites_are_dynamic(spark: SparkSession, clause: str) -> None:
    spark.sql("DROP TABLE IF EXISTS parted")
    spark.sql(f"CREATE TABLE parted {clause} AS SELECT id, id % 2 AS part FROM range(4)")
    spark.conf.set("spark.sql.sources.partitionOverwriteMode", "dynamic")
    try:
        with twophase.transaction(spark):
            spark.sql("TRUNCATE TABLE parted")
            assert rows(spark, "SELECT * FROM parted") == []
        assert rows(spark, "SELECT * FROM parted") == []
    finally:
        spark.conf.set("spark.sql.sources.partitionOverwriteMode", "static")


@pytest.mark.parametrize("clause", ["USING parquet PARTITIONED BY (part)", "PARTITIONED BY (part) STORED AS ORC"])
def test_a_session_table_is_emptied_by_its_full_name_outside_of_a_block_all_or_nothing(
    spark: SparkSession, clause: str
) -> None:
    spark.sql("DROP TABLE IF EXISTS parted")
    spark.sql(f"CREATE TABLE parted {clause} AS SELECT id, id % 3 AS part FROM range(6)")
    failpoints.arm("core.publish", "error", nth=1)
    with pytest.raises(TransactionAborted):
        spark.sql("TRUNCATE TABLE hive.default.parted")
    failpoints.disarm()
    assert len(rows(spark, "SELECT * FROM parted")) == 6
    spark.sql("TRUNCATE TABLE hive.default.parted PARTITION (part = 1)")
    assert {part for _, part in rows(spark, "SELECT * FROM parted")} == {0, 2}
    levels = Levels(spark)
    spark.sql("TRUNCATE TABLE hive.default.parted")
    assert (rows(spark, "SELECT * FROM parted"), levels()) == ([], {Level.ATOMIC})


@pytest.mark.promise(
    "ddl-in-blocks", "a partition that a block empties is as one that is emptied outside of it", detail=True
)
@pytest.mark.parametrize(
    "clause", ["USING parquet PARTITIONED BY (day, part)", "PARTITIONED BY (day, part) STORED AS ORC"]
)
@pytest.mark.parametrize(
    ("partition", "left"),
    [
        ("day = '2020-01-01', part = 1", [0, 1, 3, 4, 5]),
        ("DAY = DATE '2020-01-01'", [1, 3, 5]),
        ("day = '2020-01-02', part = NULL", [0, 1, 2, 3, 4]),
    ],
)
def test_a_partition_is_emptied_as_outside_of_the_block(
    spark: SparkSession, clause: str, partition: str, left: list[int]
) -> None:
    for name in ("inside", "outside"):
        spark.sql(f"DROP TABLE IF EXISTS {name}_parts")
        spark.sql(
            f"CREATE TABLE {name}_parts {clause} AS SELECT CAST(id AS INT) AS id, "
            "date_add(DATE '2020-01-01', CAST(id % 2 AS INT)) AS day, "
            "CASE WHEN id < 5 THEN CAST(id DIV 2 AS INT) END AS part FROM range(6)"
        )
    spark.sql(f"TRUNCATE TABLE outside_parts PARTITION ({partition})")
    with twophase.transaction(spark):
        spark.sql(f"TRUNCATE TABLE inside_parts PARTITION ({partition})")
        assert rows(spark, "SELECT id FROM inside_parts") == [(id,) for id in left]
    for name in ("inside", "outside"):
        assert rows(spark, f"SELECT id FROM {name}_parts") == [(id,) for id in left], name


@pytest.mark.promise(
    "ddl-in-blocks", "a partition that is not there, or that no column makes, is an error", detail=True
)
def test_a_partition_that_is_not_there_is_an_error(spark: SparkSession) -> None:
    spark.sql("DROP TABLE IF EXISTS parted")
    spark.sql("CREATE TABLE parted USING parquet PARTITIONED BY (a, b) AS SELECT 1 AS id, 2 AS a, 3 AS b")
    spark.sql("CREATE TABLE IF NOT EXISTS ice.db.parted PARTITIONED BY (a) AS SELECT 1 AS id, 2 AS a")
    with twophase.transaction(spark):
        for text, why in (
            ("parted PARTITION (a = 2, b = 4)", "has no partition"),
            ("parted PARTITION (b = 3)", "has to name the first"),
            ("parted PARTITION (c = 3)", "has to name the first"),
            ("ice.db.parted PARTITION (a = 2)", "(?i)partition"),
        ):
            with pytest.raises((TwoPhaseError, AnalysisException), match=why):
                spark.sql(f"TRUNCATE TABLE {text}")
        spark.sql("INSERT INTO parted VALUES (2, 2, 3)")
        with pytest.raises(TwoPhaseError, match="has no partition"):
            spark.sql("TRUNCATE TABLE parted PARTITION (a = 2, b = 4)")
        for _ in range(2):  # An empty one is there, too.
            spark.sql("TRUNCATE TABLE parted PARTITION (a = 2, b = 3)")
    assert rows(spark, "SELECT * FROM parted") == []
    assert rows(spark, "SELECT * FROM ice.db.parted") == [(1, 2)]


@pytest.mark.promise("ddl-in-blocks", "what Spark does not empty is not emptied in a block, either", detail=True)
def test_what_spark_does_not_empty_is_not_emptied_in_a_block(spark: SparkSession, tmp_path: Any) -> None:
    spark.range(3).write.parquet(str(tmp_path / "files"))
    spark.sql(f"CREATE TABLE outer USING parquet LOCATION '{tmp_path / 'files'}'")
    spark.sql("CREATE OR REPLACE VIEW shown AS SELECT * FROM outer")
    spark.range(1).createOrReplaceTempView("passing")
    with twophase.transaction(spark):
        for name, why in (
            ("outer", "EXTERNAL"),
            ("shown", "EXPECT_TABLE_NOT_VIEW|takes effect immediately"),
            ("passing", "EXPECT_TABLE_NOT_VIEW|takes effect immediately"),
            ("nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
            ("lite.main.nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
            ("ice.db.nowhere", "TABLE_OR_VIEW_NOT_FOUND"),
        ):
            with pytest.raises((TwoPhaseError, AnalysisException), match=why):
                spark.sql(f"TRUNCATE TABLE {name}")
    for name, why in (("outer", "EXTERNAL"), ("shown", "is a view"), ("nowhere", "TABLE_OR_VIEW_NOT_FOUND")):
        with pytest.raises((TwoPhaseError, AnalysisException), match=why):
            spark.sql(f"TRUNCATE TABLE hive.default.{name}")
    assert spark.table("outer").count() == 3


@pytest.mark.promise("ddl-in-blocks", "a table that a block drops is gone for the block, and for others with it")
def test_a_dropped_table_is_gone_for_the_block_and_for_others_at_its_end(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    table, other = named("dropped"), spark.newSession()
    database = STORES[store][0]
    spark.sql(f"CREATE TABLE {table} AS SELECT id FROM range(3)")
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"DROP TABLE {table}")
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        for text in (f"SELECT * FROM {table}", f"INSERT INTO {table} VALUES (1)", f"DROP TABLE {table}"):
            with pytest.raises(AnalysisException) as refused:
                spark.sql(text)
            assert refused.value.getCondition() == "TABLE_OR_VIEW_NOT_FOUND"
        assert not spark.catalog.tableExists(table)
        listed = {row.tableName for row in spark.sql(f"SHOW TABLES IN {database}").collect()}
        assert table.rpartition(".")[2] not in listed
        assert len(rows(other, f"SELECT * FROM {table}")) == 3
        raise RolledBack
    assert len(rows(spark, f"SELECT * FROM {table}")) == 3
    with twophase.transaction(spark) as tx:
        spark.sql(f"INSERT INTO {table} VALUES (7)")
        spark.sql(f"DROP TABLE {table} PURGE")
        spark.sql(f"CREATE TABLE {named('instead')} AS SELECT 1 AS id")
        assert other.catalog.tableExists(table)
    assert str(tx.level) == ("REVERSIBLE" if store == "session" else "ATOMIC")  # Two tables, by a call for each.
    assert not spark.catalog.tableExists(table) and not other.catalog.tableExists(table)
    assert rows(spark, f"SELECT * FROM {named('instead')}") == [(1,)]
    spark.sql(f"CREATE TABLE {table} AS SELECT 'anew' AS name")
    assert rows(spark, f"SELECT * FROM {table}") == [("anew",)]


@pytest.mark.promise("ddl-in-blocks", "a block creates anew a table that it drops")
def test_a_table_is_created_anew_in_the_block_that_drops_it(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    table, never, other = named("replaced"), named("never"), spark.newSession()
    clause = STORES[store][1]
    spark.sql(f"CREATE TABLE {table} {clause} AS SELECT id FROM range(3)")
    with pytest.raises(RolledBack), twophase.transaction(spark):
        spark.sql(f"DROP TABLE {table}")
        spark.sql(f"CREATE TABLE {table} {clause} AS SELECT 1 AS id")
        raise RolledBack
    assert rows(spark, f"SELECT * FROM {table}") == [(0,), (1,), (2,)]
    with twophase.transaction(spark) as tx:
        spark.sql(f"DROP TABLE IF EXISTS {table}")
        spark.sql(f"CREATE TABLE {table} (name STRING, n INT) {clause}")
        assert rows(spark, f"SELECT * FROM {table}") == []
        with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)already exists"):
            spark.sql(f"CREATE TABLE {table} (id INT) {clause}")
        spark.sql(f"INSERT INTO {table} VALUES ('a', 1)")
        spark.sql(f"INSERT INTO {table} SELECT name, n + 1 FROM {table}")
        assert rows(spark, f"SELECT * FROM {table}") == [("a", 1), ("a", 2)]
        assert len(rows(other, f"SELECT * FROM {table}")) == 3
        spark.sql(f"CREATE TABLE {never} {clause} AS SELECT 1 AS id")
        spark.sql(f"DROP TABLE {never}")
        assert not spark.catalog.tableExists(never)
    # A metastore replaces columns of other types in two calls, as in a CREATE OR REPLACE TABLE.
    assert str(tx.level) == ("REVERSIBLE" if store == "session" else "ATOMIC")
    assert rows(spark, f"SELECT * FROM {table}") == [("a", 1), ("a", 2)]
    assert not spark.catalog.tableExists(never)
    with twophase.transaction(spark):
        for value in range(2):
            spark.sql(f"DROP TABLE {table}")
            spark.sql(f"CREATE TABLE {table} {clause} AS SELECT {value} AS id")
    assert rows(spark, f"SELECT * FROM {table}") == [(1,)]


@pytest.mark.promise("ddl-in-blocks", "rows that others add between a block's DROP and its CREATE are not lost")
@pytest.mark.parametrize("isolation", list(Isolation))
def test_rows_that_others_add_between_drop_and_create_are_not_lost(
    spark: SparkSession, store: str, named: Callable[[str], str], isolation: Isolation
) -> None:
    table, other = named("added"), spark.newSession()
    twophase.attach(other)
    for purpose in ("CREATE TABLE", "CREATE OR REPLACE TABLE"):
        spark.sql(f"CREATE OR REPLACE TABLE {table} {STORES[store][1]} AS SELECT id FROM range(3)")
        with pytest.raises(WriteConflictError), twophase.transaction(spark, isolation=isolation):
            spark.sql(f"DROP TABLE {table}")
            elsewhere(lambda: other.sql(f"INSERT INTO {table} VALUES (9)"))
            spark.sql(f"{purpose} {table} {STORES[store][1]} AS SELECT 1 AS id")
        assert rows(spark, f"SELECT * FROM {table}") == [(0,), (1,), (2,), (9,)]


@pytest.mark.promise(
    "ddl-in-blocks", "a table that is dropped and created anew has nothing of the old one", detail=True
)
def test_a_table_that_is_created_anew_has_nothing_of_the_old_one(spark: SparkSession, postgresql: Any) -> None:
    spark.sql("CREATE TABLE pg.hermitage.indexed AS SELECT 1 AS id")
    spark.sql("CREATE TABLE ice.db.marked TBLPROPERTIES ('a.b' = 'c') AS SELECT 1 AS id")
    engine = sa.create_engine(postgresql.url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE INDEX by_id ON hermitage.indexed (id)")
    with twophase.transaction(spark):
        for table in ("pg.hermitage.indexed", "ice.db.marked"):
            spark.sql(f"DROP TABLE {table}")
            spark.sql(f"CREATE TABLE {table} AS SELECT 2 AS id")
    with engine.begin() as connection:
        found = connection.exec_driver_sql("SELECT indexname FROM pg_indexes WHERE tablename = 'indexed'").all()
    assert found == []
    assert "a.b" not in {row.key for row in spark.sql("SHOW TBLPROPERTIES ice.db.marked").collect()}
    with twophase.transaction(spark):
        spark.sql("DROP TABLE ice.db.marked PURGE")
        with pytest.raises(AtomicityNotSupportedError, match="with PURGE"):
            spark.sql("CREATE TABLE ice.db.marked AS SELECT 2 AS id")


@pytest.mark.promise("ddl-in-blocks", "a table that others have changed since is not dropped")
def test_a_table_that_others_have_changed_is_not_dropped(
    spark: SparkSession, store: str, named: Callable[[str], str]
) -> None:
    table, other = named("contested"), spark.newSession()
    twophase.attach(other)
    spark.sql(f"CREATE TABLE {table} AS SELECT id FROM range(3)")
    with pytest.raises(WriteConflictError), twophase.transaction(spark):
        spark.sql(f"DROP TABLE {table}")
        elsewhere(lambda: other.sql(f"INSERT INTO {table} VALUES (9)"))
    assert len(rows(spark, f"SELECT * FROM {table}")) == 4
    with twophase.transaction(spark):
        spark.sql(f"DROP TABLE {table}")
        elsewhere(lambda: other.sql(f"CREATE TABLE {named('beside')} AS SELECT * FROM {table}"))
    assert not spark.catalog.tableExists(table)
    assert len(rows(spark, f"SELECT * FROM {named('beside')}")) == 4


@pytest.mark.promise("ddl-in-blocks", "what cannot be dropped in a block is refused by name")
def test_what_cannot_be_dropped_in_a_block_is_refused(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE marked_up (id INT) USING xml")
    spark.sql("CREATE OR REPLACE VIEW seen AS SELECT 1 AS id")
    spark.range(1).createOrReplaceTempView("passing")
    with twophase.transaction(spark):
        with pytest.raises(AtomicityNotSupportedError, match=r"DROP TABLE .*takes effect immediately"):
            spark.sql("DROP TABLE marked_up")
        for name in ("seen", "hive.default.seen", "passing"):
            with pytest.raises((TwoPhaseError, AnalysisException), match=r"(?i)view|takes effect immediately"):
                spark.sql(f"DROP TABLE {name}")
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.sql("DROP TABLE nowhere")
        spark.sql("DROP TABLE IF EXISTS nowhere")
    assert rows(spark, "SELECT * FROM seen") == [(1,)]
    assert spark.catalog.tableExists("marked_up") and spark.catalog.tableExists("passing")


@pytest.mark.promise("ddl-in-blocks", "a session table that a block drops is not found by any of its statements")
def test_a_dropped_session_table_is_not_found_by_any_statement(spark: SparkSession) -> None:
    spark.sql("CREATE TABLE gone USING parquet AS SELECT 1 AS id")
    spark.sql("CREATE OR REPLACE VIEW over_gone AS SELECT * FROM gone")
    with pytest.raises(RolledBack), twophase.transaction(spark) as tx:
        tx.savepoint("before")
        spark.sql("DROP TABLE gone")
        for text in (
            *("SELECT * FROM gone", "TABLE default.gone", "INSERT INTO gone VALUES (2)", "DESCRIBE gone"),
            *("TRUNCATE TABLE gone", "INSERT OVERWRITE gone SELECT 2", "SELECT * FROM hive.default.gone"),
            *("SELECT * FROM over_gone", "REPLACE TABLE gone (id INT) USING parquet", "SHOW CREATE TABLE gone"),
        ):
            with pytest.raises((AnalysisException, TwoPhaseError), match=r"(?i)not.(found|exist)|cannot be found"):
                spark.sql(text).collect()
        with pytest.raises(AnalysisException):
            spark.table("gone").collect()
        with pytest.raises((AnalysisException, TwoPhaseError)):
            spark.range(1).write.insertInto("gone")
        assert not spark.catalog.tableExists("gone") and not spark.catalog.tableExists("gone", "default")
        assert [row.tableName for row in spark.sql("SHOW TABLES LIKE '*gone'").collect()] == ["over_gone"]
        tx.rollback_to("before")
        assert rows(spark, "SELECT * FROM gone") == [(1,)] and spark.catalog.tableExists("gone")
        spark.sql("DROP TABLE gone")
        spark.range(3).write.format("parquet").saveAsTable("gone")
        assert len(rows(spark, "SELECT * FROM gone")) == 3
        raise RolledBack
    assert rows(spark, "SELECT * FROM over_gone") == [(1,)]


@pytest.mark.promise("ddl-in-blocks", "the files of an EXTERNAL session table stay, and a name is free after its drop")
@pytest.mark.parametrize("clause", ["", "PARTITIONED BY (part)"])
def test_the_files_of_an_external_table_stay(spark: SparkSession, tmp_path: Any, clause: str) -> None:
    outer, written, made = (f"{kind}_{'parted' if clause else 'plain'}" for kind in ("outer", "written", "made"))
    query = "AS SELECT id, id AS part FROM range(3)"
    spark.sql(f"CREATE TABLE {outer} USING parquet {clause} LOCATION '{tmp_path / 'outer'}' {query}")
    spark.sql(f"CREATE TABLE {written} USING parquet {clause} {query}")
    spark.sql(f"CREATE TABLE {made} (id BIGINT, part BIGINT) USING parquet {clause}")  # where Spark itself puts it
    for table in (outer, written, made):
        spark.sql(f"INSERT INTO {table} SELECT id, id AS part FROM range(2, 4)")
    with twophase.transaction(spark) as tx:
        for table in (outer, written, made):
            spark.sql(f"DROP TABLE {table}")
    assert str(tx.level) == "REVERSIBLE"  # One call of the metastore for each of several tables.
    assert spark.read.parquet(str(tmp_path / "outer")).count() == 5
    for table in (written, made):
        assert not spark.catalog.tableExists(table)
        with twophase.transaction(spark) as tx:
            spark.sql(f"CREATE TABLE {table} USING parquet AS SELECT 9 AS id")
        with twophase.transaction(spark) as tx:
            spark.sql(f"DROP TABLE {table}")
        assert str(tx.level) == "ATOMIC"
        spark.sql(f"CREATE TABLE {table} (id INT) USING parquet")
        assert rows(spark, f"SELECT * FROM {table}") == []


@pytest.mark.promise("ddl-in-blocks", "what depends on a table keeps it from being dropped, as the statement says")
def test_what_depends_on_a_table_keeps_it(spark: SparkSession, postgresql: Any) -> None:
    spark.sql("CREATE TABLE pg.hermitage.based AS SELECT 1 AS id")
    engine = sa.create_engine(postgresql.url, poolclass=sa.pool.NullPool)
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE VIEW hermitage.above AS SELECT id FROM hermitage.based")
    with twophase.transaction(spark):
        with pytest.raises(TwoPhaseError, match="above"):
            spark.sql("DROP TABLE pg.hermitage.based")
        assert rows(spark, "SELECT * FROM pg.hermitage.based") == [(1,)]
    assert rows(spark, "SELECT * FROM pg.hermitage.above") == [(1,)]
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP VIEW hermitage.above")
