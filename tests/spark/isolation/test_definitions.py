"""A block beside changes of its tables' definitions: it reads the former one, or is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

import twophase
from tests.spark.blocks import elsewhere
from tests.spark.isolation.stores import OLD, Store, once
from twophase.catalogs.hive import replaced
from twophase.errors import SnapshotTooOldError, WriteConflictError

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
        elsewhere(bring)
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
        elsewhere(lambda: other.sql(f"ALTER TABLE {name} {alter}"))
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


@pytest.mark.promise("isolation", "a block never sees what Spark's own statements do to a session table's rows")
@pytest.mark.parametrize(
    "change",
    [
        "TRUNCATE TABLE {}",
        *(
            pytest.param(change, marks=pytest.mark.exhaustive)
            for change in (
                "TRUNCATE TABLE {} PARTITION (id = 1)",
                "ALTER TABLE {} DROP PARTITION (id = 1)",
                "ALTER TABLE {} PARTITION (id = 1) RENAME TO PARTITION (id = 7)",
            )
        ),
    ],
)
@pytest.mark.parametrize("kind", ["partitioned"])
def test_a_block_never_sees_rows_that_spark_itself_has_changed(
    spark: SparkSession, other: SparkSession, store: Store, change: str
) -> None:
    name = store.of("a")
    with twophase.transaction(spark):
        elsewhere(lambda: other.sql(change.format(name)))
        with pytest.raises(SnapshotTooOldError, match=f"{name}.*again"):
            spark.table(name).collect()
    with pytest.raises(WriteConflictError, match=name), twophase.transaction(spark, isolation="serializable"):
        spark.table(name).collect()
        elsewhere(lambda: other.sql(f"TRUNCATE TABLE {name}"))
        store.append(spark, "b", (3, 30))
    assert store.rows(spark, "b") == OLD
    with twophase.transaction(spark):  # The next one sees it.
        assert store.rows(spark, "a") == []


def test_a_block_never_sees_rows_that_load_data_brings_to_a_partition(
    spark: SparkSession, other: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "rows.txt").write_text("7\n")
    spark.sql("CREATE TABLE loaded (value INT) PARTITIONED BY (id INT) STORED AS TEXTFILE")
    spark.sql("INSERT INTO loaded PARTITION (id = 1) VALUES (1)")
    with twophase.transaction(spark):
        elsewhere(lambda: other.sql(f"LOAD DATA LOCAL INPATH '{tmp_path}' INTO TABLE loaded PARTITION (id = 1)"))
        with pytest.raises(SnapshotTooOldError, match=r"loaded.*again"):
            spark.table("loaded").collect()
    assert sorted(map(tuple, spark.table("loaded").collect())) == [(1, 1), (7, 1)]
    spark.sql("DROP TABLE loaded")


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
        elsewhere(lambda: other.sql(f"ALTER TABLE {store.of('a')} {alter}"))
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
        elsewhere(lambda: other.sql(alter))
    assert store.rows(spark, "a") == [*OLD, (3, 30)]
    refused = pytest.raises(WriteConflictError) if kind == "sqlite" else nullcontext()
    with refused, twophase.transaction(spark):
        store.write(spark, "b", [(7, 70)])
        elsewhere(lambda: other.sql(alter.replace(store.of("a"), store.of("b"))))
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
        elsewhere(swap)
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
        elsewhere(make_anew)
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
        elsewhere(change)
        with pytest.raises((SnapshotTooOldError, AnalysisException)):
            spark.table(new).collect()
        with pytest.raises(SnapshotTooOldError, match=f"{a}.*again"):
            spark.table(a).collect()
    assert spark.table(new).count() == spark.table(a).count() == 0
    spark.sql(f"DROP TABLE {new}")

    with twophase.transaction(spark):
        elsewhere(lambda: other.sql(f"ALTER TABLE {b} RENAME TO {new.removeprefix('ice.').removeprefix('lite.')}"))
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
    session.sql("SELECT 77 AS value, 7 AS id").write.format("xml").option("rowTag", "r").saveAsTable(a)


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
        elsewhere(lambda: change(other, "a", "b"))
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
        elsewhere(lambda: change(other, "a", "b"))
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
        elsewhere(make_anew)
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
        elsewhere(drop)
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
        elsewhere(alter)
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
        elsewhere(write)
        assert store.rows(spark, "a") == OLD
        with pytest.raises(SnapshotTooOldError, match=r"default\.b.*again"):
            spark.table("b").collect()


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
        elsewhere(lambda: other.sql(BRINGS).write.option("mergeSchema", "true").insertInto("placed"))
        assert spark.table("placed").columns == frame.columns == ["value", "id"]
        assert [tuple(row) for row in frame.collect()] == [(10, 1)]
    assert sorted(map(tuple, spark.sql("SELECT id, more FROM placed").collect())) == [(1, None), (3, 3)]


@pytest.mark.parametrize("kind", ["partitioned"])
def test_columns_that_come_while_the_name_of_a_table_is_resolved_are_refused(
    spark: SparkSession, other: SparkSession, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bring() -> None:
        other.sql(BRINGS).write.option("mergeSchema", "true").insertInto(store.of("a"))

    once(bring, "a", monkeypatch)
    with pytest.raises(SnapshotTooOldError, match=r"parts\.a"), twophase.transaction(spark):
        spark.table(store.of("a")).collect()
