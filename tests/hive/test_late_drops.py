"""The calls of a DROP, and of a cleaning up, that reach the metastore late: from a driver that is taken for dead."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.hive.test_housekeeping import clean
from tests.hive.test_late_calls import OLD, filled
from tests.hive.test_statements import HIVE
from tests.hive.world import World
from twophase import failpoints
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED
from twophase.errors import TableAlreadyExistsError, TransactionAborted, WriteConflictError
from twophase.failpoints import FailpointError
from twophase.model import ObjectPath, Outcome, OverwriteScope, Purpose, WriteContext
from twophase.spark.metastore.session import SessionMetastore

pytestmark = [HIVE, pytest.mark.usefixtures("server")]


def dropping(world: World) -> HiveParticipant:
    """A drop of table ``t``, up to the decision."""
    found = world.catalog.two_phase_drop_table(ObjectPath.of("default", "t"), context=WriteContext("dead-drop"))
    assert isinstance(found, HiveParticipant)
    found.begin()
    found.prepare()
    return found


@pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])
def test_a_late_drop_is_refused_until_it_can_no_longer_come(world: World, by: list[str]) -> None:
    """Without conditions of the metastore: the rollback takes the name that the drop would give the table."""
    filled(world, by)
    dead = dropping(world)
    world.reborn(dead).abort()
    world.reborn(dead).abort()
    with pytest.raises(TableAlreadyExistsError):
        dead.table_write.hidden.hide("t", layout.BACKUP)
    world.catalog.metastore.make_managed("default", "t")  # The call before it made the table external.
    assert sorted(world.rows("t")) == OLD
    with pytest.raises(TransactionAborted):
        dead.commit()
    assert clean(world, retention=3600.0) == []
    assert len(world.hidden_tables()) == 1
    assert world.clean() == ["metadata", "staging"]
    assert world.hidden_tables() == []
    assert sorted(world.rows("t")) == OLD


def test_a_drop_that_came_late_before_the_abort_is_carried_through(world: World) -> None:
    filled(world, [])
    dead = dropping(world)
    dead.commit()
    world.reborn(dead).abort()
    assert world.catalog.find(dead.path) is None
    assert world.hidden_tables() == []
    world.clean()


def test_a_drop_gives_back_a_table_that_took_the_name_just_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, [])
    dead = dropping(world)
    hide = dead.table_write.hidden.hide

    def late(name: str, role: str) -> None:
        world.drop("t")
        world.sql("CREATE TABLE t USING parquet AS SELECT 5L AS id, 5L AS k")
        hide(name, role)

    monkeypatch.setattr(dead.table_write.hidden, "hide", late)
    with pytest.raises(WriteConflictError):
        dead.commit()
    assert world.rows("t") == [(5, 5)]
    assert dead.outcome() is Outcome.NOT_PUBLISHED
    world.reborn(dead).abort()
    assert world.rows("t") == [(5, 5)]
    world.clean()
    assert world.catalog.find(dead.path).kind == MANAGED


def test_a_drop_whose_driver_died_between_its_calls_leaves_the_table_managed(world: World) -> None:
    """The metastore renames an external table only: else it would move the files."""
    filled(world, [])
    dead = dropping(world)
    world.catalog.metastore.alter_table(replace(world.catalog.find(dead.path), kind=EXTERNAL))
    world.reborn(dead).abort()
    assert world.catalog.find(dead.path).kind == MANAGED
    clean(world)


def test_a_table_that_was_made_anew_is_not_what_a_recovered_drop_removes(world: World) -> None:
    filled(world, [])
    dead = dropping(world)
    dead.commit()
    world.run("t", world.sql("SELECT 8L AS id, 8L AS k"))
    world.reborn(dead).finish()
    world.reborn(dead).commit()
    world.reborn(dead).finish()
    assert world.rows("t") == [(8, 8)]
    assert not world.reborn(dead).compensate()
    world.clean()
    assert world.rows("t") == [(8, 8)]
    assert world.hidden_tables() == []


def test_a_late_cleaning_up_leaves_a_replaced_table_to_the_one_that_replaced_it_since(world: World) -> None:
    """A clean repeats it, long after other writers may have the table."""
    world.run("t", world.sql("SELECT 1 AS a, 'x' AS d"), by=["d"])

    def replaced(rows: str) -> HiveParticipant:
        found = world.stage("t", world.sql(rows), Purpose.REPLACE_TABLE_AS, by=["d"], properties={"rows": rows})
        found.commit()
        world.reborn(found).finish()
        return found

    first = replaced("SELECT 2 AS a, 'x' AS d")
    second = replaced("SELECT 3 AS a, 'x' AS d")
    world.reborn(first).finish()
    table = world.catalog.find(ObjectPath.of("default", "t"))
    assert table is not None
    assert (table.stamp, table.properties["rows"]) == (second.transaction_id, "SELECT 3 AS a, 'x' AS d")
    assert world.rows("t") == [(3, "x")]


@pytest.mark.parametrize("recipe", ["pointer", "rename"])
def test_a_late_cleaning_up_leaves_a_partition_that_an_overwrite_has_removed_to_the_one_that_wrote_it_since(
    world: World, recipe: str
) -> None:
    """A clean repeats it, long after other writers may have the table."""
    world = world.with_options(recipe=recipe)
    world.run("t", world.sql("SELECT 1 AS a, 'x' AS d UNION ALL SELECT 2, 'y'"), by=["d"])
    scope = OverwriteScope(dynamic=False)
    first = world.stage("t", world.sql("SELECT 3 AS a, 'x' AS d"), Purpose.INSERT_OVERWRITE, by=["d"], overwrite=scope)
    first.commit()
    world.reborn(first).finish()
    assert world.rows("t") == [(3, "x")]
    world.run("t", world.sql("SELECT 4 AS a, 'y' AS d"), Purpose.INSERT_INTO, by=["d"])
    world.reborn(first).finish()
    assert sorted(world.rows("t")) == [(3, "x"), (4, "y")]


def test_rows_that_another_writer_adds_to_an_emptied_partition_before_it_is_removed_stay(world: World) -> None:
    world.run("t", world.sql("SELECT 1 AS a, 'x' AS d UNION ALL SELECT 2, 'y' UNION ALL SELECT 3, 'z'"), by=["d"])
    scope = OverwriteScope(dynamic=False)
    first = world.stage("t", world.sql("SELECT 4 AS a, 'x' AS d"), Purpose.INSERT_OVERWRITE, by=["d"], overwrite=scope)
    failpoints.arm("hive.pointer.drop_partitions", "error")
    with pytest.raises(FailpointError):
        first.commit()
    failpoints.disarm()
    world.spark.sql("INSERT INTO t PARTITION (d = 'y') SELECT 5")
    for _ in range(2):
        late = world.reborn(first)
        late.commit()
        late.finish()
    world.clean()
    assert sorted(world.rows("t")) == [(4, "x"), (5, "y")]
    assert [row[0] for row in world.spark.sql("SHOW PARTITIONS t").collect()] == ["d=x", "d=y"]


def test_a_late_cleaning_up_brings_no_partition_back_that_another_writer_has_removed_since(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As over HiveServer2, where each partition is changed by a statement of its own."""
    monkeypatch.setattr(SessionMetastore, "altered_in_one_step", 1)
    world.run("t", world.sql("SELECT 1 AS a, 'x' AS d UNION ALL SELECT 2, 'y'"), by=["d"])
    scope = OverwriteScope(dynamic=False)
    rows = world.sql("SELECT 3 AS a, 'x' AS d UNION ALL SELECT 4, 'y'")
    first = world.stage("t", rows, Purpose.INSERT_OVERWRITE, by=["d"], overwrite=scope)
    first.commit()
    world.reborn(first).finish()
    world.run("t", world.sql("SELECT 5 AS a, 'x' AS d"), Purpose.INSERT_OVERWRITE, by=["d"], overwrite=scope)
    world.reborn(first).finish()
    assert world.rows("t") == [(5, "x")]
