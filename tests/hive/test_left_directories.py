"""What a partition has left stays for readers in flight, and is never read again: partitions come and go by anybody."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.hive.world import World, files_of
from twophase.errors import WriteConflictError
from twophase.model import Level, ObjectPath, OverwriteScope, Purpose

ADD = "ALTER TABLE t ADD PARTITION (d = 'x')"
DROP = "ALTER TABLE t DROP PARTITION (d = 'x')"
X = OverwriteScope({"d": "x"})
ALL = OverwriteScope({})


def sought(world: World, by_whom: str) -> None:
    """What an attached session does first. Tables that live in a version of ours need it of nobody."""
    if by_whom == "stock":
        world.catalog.partitions_sought(ObjectPath.of("default", "t"))


def make(world: World, by_whom: str) -> None:
    """A partitioned table of two rows, by twophase or by stock Spark."""
    if by_whom == "twophase":
        world.run("t", world.sql("SELECT 1 AS a, 'x' AS d UNION ALL SELECT 2, 'y'"), by=["d"])
    else:
        world.sql("CREATE TABLE t (a INT, d STRING) USING parquet PARTITIONED BY (d)")
        world.sql("INSERT INTO t VALUES (1, 'x'), (2, 'y')")


def insert(world: World, text: str, overwrite: OverwriteScope | None = None) -> None:
    purpose = Purpose.INSERT_INTO if overwrite is None else Purpose.INSERT_OVERWRITE
    world.run("t", world.sql(f"SELECT {text}"), purpose, by=["d"], overwrite=overwrite)


@pytest.mark.promise("locations", "a partition that is dropped and added again is empty")
@pytest.mark.parametrize("by_whom", ["twophase", "stock"])
@pytest.mark.parametrize("overwrite", [None, X], ids=["into", "overwrite"])
def test_a_partition_that_is_dropped_and_added_again_is_empty(
    world: World, by_whom: str, overwrite: OverwriteScope | None
) -> None:
    make(world, by_whom)
    insert(world, "3 AS a, 'x' AS d", overwrite)
    world.sql(DROP)
    sought(world, by_whom)
    world.sql(ADD)
    assert world.rows("t") == [(2, "y")]
    insert(world, "4 AS a, 'x' AS d")
    assert world.rows("t") == [(2, "y"), (4, "x")]
    # The directory that ADD PARTITION gave it is left in its turn.
    world.sql(DROP)
    sought(world, by_whom)
    world.sql(ADD)
    assert world.rows("t") == [(2, "y")]


@pytest.mark.promise("locations", "a repair (`MSCK`) finds no partition that an overwrite has removed")
@pytest.mark.parametrize("by_whom", ["twophase", "stock"])
def test_a_repair_finds_no_partition_that_an_overwrite_has_removed(world: World, by_whom: str) -> None:
    make(world, by_whom)
    insert(world, "3 AS a, 'z' AS d", ALL)
    sought(world, by_whom)
    world.sql("MSCK REPAIR TABLE t")
    assert world.rows("t") == [(3, "z")]
    world.sql("ALTER TABLE t RECOVER PARTITIONS")
    assert (world.rows("t"), world.partitions("t")) == ([(3, "z")], ["d=z"])


@pytest.mark.promise("locations", "rows that an overwrite has removed do not return with the next append", detail=True)
@pytest.mark.parametrize("links", [True, False])
def test_rows_that_an_overwrite_has_removed_do_not_return_with_an_append_that_adds_their_partition(
    world: World, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def link(*_: str) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    if links:
        world = world.with_options(append="files")
    else:
        monkeypatch.setattr(os, "link", link)
    left = overwritten(world)
    insert(world, "4 AS a, 'x' AS d UNION ALL SELECT 5, 'y'")
    assert world.rows("t") == [(3, "x"), (4, "x"), (5, "y")]
    assert left.exists()  # For readers in flight.
    world.clean()
    insert(world, "6 AS a, 'y' AS d")
    assert (world.rows("t"), left.exists()) == ([(3, "x"), (4, "x"), (5, "y"), (6, "y")], False)
    # What is left of it goes like any other version.
    insert(world, "7 AS a, 'y' AS d", ALL)
    world.clean()
    assert (world.rows("t"), len(list(world.warehouse.rglob("*.parquet")))) == ([(7, "y")], 1)


def overwritten(world: World) -> Path:
    """A table of one partition at its default location; return the file of another one that an overwrite removed."""
    make(world, "stock")
    (left,) = (world.warehouse / "t" / "d=y").glob("*.parquet")
    insert(world, "3 AS a, 'x' AS d", ALL)
    return left


def test_an_append_that_is_undone_takes_its_new_partition_with_it(world: World) -> None:
    world = world.with_options(append="files")
    left = overwritten(world)
    append = world.stage("t", world.sql("SELECT 4 AS a, 'x' AS d UNION ALL SELECT 5, 'y'"), Purpose.INSERT_INTO)
    append.commit()
    assert world.reborn(append).compensate()
    world.reborn(append).abort()
    assert (world.rows("t"), world.partitions("t"), left.exists()) == ([(3, "x")], ["d=x"], True)
    assert not any(append.transaction_id in name for name in files_of(world.warehouse))


def test_of_two_appends_that_add_the_partition_of_removed_rows_none_is_lost(world: World) -> None:
    world = world.with_options(append="files")
    overwritten(world)
    rows = world.sql("SELECT 5 AS a, 'y' AS d UNION ALL SELECT 6, 'y'")
    first, second = (world.stage("t", rows, Purpose.INSERT_INTO, by=["d"]) for _ in range(2))
    first.commit()
    first.finish()
    with pytest.raises(WriteConflictError):
        second.commit()
    second.prepare()
    second.commit()
    second.finish()
    assert world.rows("t") == [(3, "x"), (5, "y"), (5, "y"), (6, "y"), (6, "y")]


@pytest.mark.promise(
    "locations", "a repair removes no replaced partition over which there is another table", detail=True
)
def test_a_repair_leaves_a_replaced_partition_that_another_table_uses(world: World) -> None:
    make(world, "stock")
    place = f"{world.catalog.existing(ObjectPath.of('default', 't')).location}/d=x"
    world.sql(f"CREATE TABLE used (a INT) USING parquet LOCATION '{place}'")
    insert(world, "3 AS a, 'x' AS d", X)
    sought(world, "stock")
    assert world.rows("used") == [(1,)]
    world.sql("DROP TABLE used")
    sought(world, "stock")
    world.sql("MSCK REPAIR TABLE t")
    assert world.rows("t") == [(2, "y"), (3, "x")]


@pytest.mark.parametrize("by_whom", ["twophase", "stock"])
def test_a_renamed_partition_leaves_no_old_rows_behind(world: World, by_whom: str) -> None:
    make(world, by_whom)
    insert(world, "3 AS a, 'x' AS d", X)
    world.sql("ALTER TABLE t PARTITION (d = 'x') RENAME TO PARTITION (d = 'w')")
    sought(world, by_whom)
    world.sql("MSCK REPAIR TABLE t")
    assert world.rows("t") == [(2, "y"), (3, "w")]


def test_truncated_and_dropped_partitions_stay_gone(world: World) -> None:
    make(world, "twophase")
    insert(world, "3 AS a, 'x' AS d", X)
    world.sql("TRUNCATE TABLE t")
    world.sql(DROP)
    world.sql("ALTER TABLE t RECOVER PARTITIONS")
    assert world.rows("t") == []
    world.sql("INSERT INTO t VALUES (5, 'x'), (6, 'v')")
    assert world.rows("t") == [(5, "x"), (6, "v")]


@pytest.mark.parametrize("by_whom", ["twophase", "stock"])
def test_another_insert_may_give_the_table_its_new_directory_meanwhile(world: World, by_whom: str) -> None:
    make(world, by_whom)
    rows = world.sql("SELECT 4 AS a, 'y' AS d")
    first = world.stage("t", rows, Purpose.INSERT_INTO, by=["d"])
    insert(world, "3 AS a, 'x' AS d")
    first.commit()
    first.finish()
    assert first.level is Level.ATOMIC
    assert world.rows("t") == [(1, "x"), (2, "y"), (3, "x"), (4, "y")]


def test_a_table_at_its_default_location_stays_there(world: World) -> None:
    make(world, "stock")
    place = world.catalog.existing(ObjectPath.of("default", "t")).location
    insert(world, "3 AS a, 'x' AS d")
    assert world.catalog.existing(ObjectPath.of("default", "t")).location == place
    # What a session writes that knows the table from before is found.
    world.sql("INSERT INTO t VALUES (9, 'new')")
    assert world.rows("t") == [(1, "x"), (2, "y"), (3, "x"), (9, "new")]


def test_an_insert_that_is_undone_gives_the_table_its_directory_back(world: World) -> None:
    make(world, "twophase")
    place = world.catalog.existing(ObjectPath.of("default", "t")).location
    rows = world.sql("SELECT 3 AS a, 'x' AS d")
    participant = world.stage("t", rows, Purpose.INSERT_INTO, by=["d"])
    participant.commit()
    assert world.catalog.existing(ObjectPath.of("default", "t")).location != place
    other = world.reborn(participant)
    assert other.compensate()
    other.abort()
    assert world.catalog.existing(ObjectPath.of("default", "t")).location == place
    assert world.rows("t") == [(1, "x"), (2, "y")]
    assert world.staged() == []


def test_the_table_is_replaced_dropped_and_cleaned_like_any_other(world: World) -> None:
    make(world, "twophase")
    insert(world, "3 AS a, 'x' AS d")
    replacing = world.sql("SELECT a + 10 AS a, d FROM t")
    world.run("t", replacing, Purpose.REPLACE_TABLE_AS, by=["d"])
    assert world.rows("t") == [(11, "x"), (12, "y"), (13, "x")]
    insert(world, "4 AS a, 'x' AS d", X)
    world.run("t", world.sql("SELECT a, 'n' AS new, d FROM t"), Purpose.REPLACE_TABLE_AS, by=["d"])
    assert world.rows("t") == [(12, "n", "y"), (4, "n", "x")]
    insert(world, "5 AS a, 'n' AS new, 'x' AS d")
    assert world.staged() == []

    world.sql("DROP TABLE t")
    world.catalog.table_dropped(ObjectPath.of("default", "t"))
    world.clean()
    assert not [entry for entry in world.warehouse.rglob("*.parquet") if "/t/" in str(entry)]
    make(world, "twophase")
    assert world.rows("t") == [(1, "x"), (2, "y")]


def test_what_was_published_stays_so_when_the_table_leaves_its_directory(world: World) -> None:
    created = world.run("t", world.sql("SELECT 1 AS a, 'x' AS d UNION ALL SELECT 2, 'y'"), by=["d"])
    insert(world, "3 AS a, 'x' AS d")
    # Its own recovery comes late: it must not take for unpublished what the table no longer points at.
    late = world.reborn(created)
    late.abort()
    late.finish()
    assert world.rows("t") == [(1, "x"), (2, "y"), (3, "x")]


@pytest.mark.parametrize("emptied", ["TRUNCATE TABLE t", "INSERT OVERWRITE t VALUES (8), (9)"])
@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS], ids=str)
def test_a_table_that_stock_spark_has_emptied_is_written_and_cleaned_like_any_other(
    world: World, emptied: str, purpose: Purpose
) -> None:
    """Its stamp went with the files."""
    world.run("t", world.sql("SELECT id FROM range(4)"))
    world.sql(emptied)
    left = len(world.rows("t")) if purpose is Purpose.INSERT_INTO else 0
    written = world.run("t", world.sql("SELECT id FROM range(0, 6, 1, 2)"), purpose)
    assert written.level is Level.ATOMIC
    assert world.rows("t") == [(id,) for id in range(6)] + [(8,), (9,)][:left]
    world.clean()
    assert {name.split("/")[1] for name in files_of(world.warehouse / ".twophase")} == {f"{written.transaction_id}-0"}
