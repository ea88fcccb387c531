"""A table's stamp goes with its definition into tables made of it: there it proves nothing, and takes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hive.world import Rows, World
from twophase import failpoints
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.catalogs.hive.stamps import STAMP
from twophase.catalogs.hive.tables import EXTERNAL
from twophase.errors import TableAlreadyExistsError, WriteConflictError
from twophase.model import ObjectPath, Outcome, Purpose

ROWS = "SELECT id, id % 2 AS k FROM range(2)"
OTHER = [(7, 7)]


def like(world: World, source: str, copy: str) -> None:
    world.sql(f"CREATE TABLE {copy} LIKE {source} TBLPROPERTIES ('{STAMP}' = '{stamp(world, source)}')")


def by_text(world: World, source: str, copy: str) -> None:
    text = world.sql(f"SHOW CREATE TABLE {source}").collect()[0][0]
    assert STAMP in text
    world.sql(text.replace(f"default.{source}", f"default.{copy}"))


def stamp(world: World, table: str) -> str | None:
    found = world.catalog.find(ObjectPath.of("default", table))
    return None if found is None else found.stamp


def copied(world: World, participant: HiveParticipant, copy: str = "copy", how: str = "text") -> None:
    """A table that stock Spark makes of one's definition, with a row of its own."""
    {"like": like, "text": by_text}[how](world, participant.path.name, copy)
    world.sql(f"INSERT INTO {copy} VALUES (7, 7)")
    assert stamp(world, copy) == participant.transaction_id


@pytest.fixture(params=["pointer", "rename"])
def recipe(world: World, request: pytest.FixtureRequest) -> World:
    return world.with_options(recipe=request.param)


@pytest.mark.promise("identity", "a copy of a table, stamp and all, is a table of its own")
@pytest.mark.parametrize(("by", "how"), [([], "like"), (["k"], "text")])
def test_a_copy_is_a_table_of_its_own(recipe: World, by: list[str], how: str) -> None:
    world = recipe
    made = world.run("t", world.sql(ROWS), by=by)
    copied(world, made, how=how)
    assert world.clean() == []
    world.run("copy", world.sql("SELECT 8L AS id, 8L AS k"), Purpose.INSERT_INTO)
    assert world.rows("copy") == [(7, 7), (8, 8)]
    world.run("copy", world.sql("SELECT 9L AS id, 9L AS k"), Purpose.REPLACE_TABLE_AS, by=by)
    assert world.rows("copy") == [(9, 9)]
    world.catalog.drop_table(ObjectPath.of("default", "copy"))
    world.clean()
    assert world.rows("t") == [(0, 0), (1, 1)]
    copied(world, made, how=how)
    world.sql("DROP TABLE copy")
    world.clean()
    assert world.rows("t") == [(0, 0), (1, 1)]


@pytest.mark.promise("identity", "a copy in the place of the original is not what the transaction published")
@pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])
def test_a_copy_in_the_place_of_the_original_is_not_what_the_transaction_published(
    recipe: World, by: list[str]
) -> None:
    world = recipe
    made = world.run("t", world.sql(ROWS), by=by)
    copied(world, made)
    world.sql("DROP TABLE t")
    world.sql("ALTER TABLE copy RENAME TO t")
    assert stamp(world, "t") == made.transaction_id
    found = world.reborn(made)
    assert not found.publisher.is_ours(found.table_write.current())
    assert not found.compensate()
    found.abort()
    world.clean()
    assert world.rows("t") == OTHER


def exchanged(world: World) -> Rows:
    """Another table takes the name, and its directory the place, of what was there; its rows."""
    world.sql("DROP TABLE t")
    world.sql("ALTER TABLE copy RENAME TO t")
    found = world.rows("t")
    # Spark's catalog in memory may rename a partitioned table without its partitions.
    assert found == OTHER or not world.is_hive
    return found


WRITES = [([], Purpose.INSERT_INTO), (["k"], Purpose.INSERT_OVERWRITE), ([], Purpose.REPLACE_TABLE_AS)]


def staged(world: World, by: list[str], purpose: Purpose) -> HiveParticipant:
    facts = {"by": by} if purpose is Purpose.REPLACE_TABLE_AS else {}
    return world.stage("t", world.sql("SELECT 5L AS id, 5L AS k"), purpose, **facts)


def lost(world: World, writing: HiveParticipant, rows: Rows) -> None:
    with pytest.raises(WriteConflictError):
        writing.commit()
    assert writing.outcome() is Outcome.NOT_PUBLISHED
    writing.abort()
    assert world.rows("t") == rows


@pytest.mark.parametrize(("by", "purpose"), WRITES)
def test_a_copy_that_takes_the_place_of_what_a_write_looked_at_is_a_conflict(
    world: World, by: list[str], purpose: Purpose
) -> None:
    made = world.run("t", world.sql(ROWS), by=by)
    copied(world, made)
    writing = staged(world, by, purpose)
    lost(world, writing, exchanged(world))


def test_rows_in_the_directory_of_a_table_that_was_dropped_are_taken_back_by_a_fresh_process(world: World) -> None:
    """The rename of an INSERT makes the directory again, in which no table of that name looks any more."""
    made = world.run("t", world.sql(ROWS))
    copied(world, made)
    writing, rows = staged(world, [], Purpose.INSERT_INTO), exchanged(world)
    failpoints.arm("hive.append.file_in", "error_after")
    with pytest.raises(failpoints.FailpointError):
        writing.commit()
    failpoints.disarm()
    found = world.reborn(writing)
    assert found.outcome() is Outcome.NOT_PUBLISHED
    found.abort()
    assert world.rows("t") == rows
    assert [one.name for one in world.warehouse.rglob("test-*")] == []


@pytest.mark.promise("external-writers", "a table renamed into the location of one that a write replaces is a conflict")
@pytest.mark.parametrize("stamped", [True, False])
@pytest.mark.parametrize(
    ("by", "purpose"),
    [
        ([], Purpose.INSERT_OVERWRITE),
        (["k"], Purpose.INSERT_OVERWRITE),
        ([], Purpose.REPLACE_TABLE_AS),
        (["k"], Purpose.REPLACE_TABLE_AS),
    ],
)
def test_a_table_of_older_rows_at_the_very_place_of_what_a_write_replaces_is_a_conflict(
    recipe: World, by: list[str], purpose: Purpose, stamped: bool
) -> None:
    """Its files and directories are older than the write; all that stock Spark did meanwhile was a rename."""
    world = recipe
    if stamped:
        copied(world, world.run("t", world.sql(ROWS), by=by))
    else:
        parts = f"PARTITIONED BY ({by[0]})" if by else ""
        world.sql(f"CREATE TABLE t USING parquet {parts} AS {ROWS}")
        world.sql(f"CREATE TABLE copy USING parquet {parts} AS SELECT 7L AS id, 7L AS k")
    writing = staged(world, by, purpose)
    lost(world, writing, exchanged(world))


def test_an_external_copy_that_takes_the_name_is_not_made_managed_by_the_rollback(
    recipe: World, tmp_path: Path
) -> None:
    world = recipe
    made = world.run("t", world.sql(ROWS))
    place = f"USING parquet LOCATION '{tmp_path / 'place'}'"
    world.sql(f"CREATE TABLE copy (id BIGINT, k BIGINT) {place} TBLPROPERTIES ('{STAMP}' = '{made.transaction_id}')")
    world.sql("INSERT INTO copy VALUES (7, 7)")
    writing = staged(world, [], Purpose.REPLACE_TABLE_AS)
    lost(world, writing, exchanged(world))
    found = world.catalog.find(ObjectPath.of("default", "t"))
    assert found is not None and found.kind == EXTERNAL


@pytest.mark.promise("identity", "a copy under the other name of a table that is swapped is another table")
@pytest.mark.parametrize("by", [[], ["k"]], ids=["plain", "partitioned"])
def test_a_copy_that_takes_the_name_of_a_tables_other_half_is_another_table(recipe: World, by: list[str]) -> None:
    """A transaction makes two tables; between its publishes somebody makes the second one of the first one's text."""
    world = recipe
    first = world.stage("t", world.sql(ROWS), by=by, transaction="both")
    second = world.stage("u", world.sql(ROWS), by=by, transaction="both", ordinal=1)
    first.commit()
    copied(world, first, "u")
    found = world.reborn(second)
    for retried in (found.prepare, found.commit):
        with pytest.raises(TableAlreadyExistsError):
            retried()
    assert found.outcome() is Outcome.NOT_PUBLISHED
    assert not found.compensate()
    found.abort()
    assert world.rows("u") == OTHER
    assert world.rows("t") == [(0, 0), (1, 1)]
    first.finish()
