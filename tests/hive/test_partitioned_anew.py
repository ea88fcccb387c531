"""A table that another session has dropped, and made anew with other partition columns, while a statement wrote it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

from tests.hive.world import World, files_of
from twophase.catalogs.hive.participant import HiveParticipant
from twophase.errors import CatalogError, WriteConflictError
from twophase.model import Outcome, OverwriteScope, Purpose

#: By name: the rows, the purpose, and the partitions that an INSERT OVERWRITE replaces.
STATEMENTS: dict[str, tuple[str, Purpose, dict[str, str | None] | None]] = {
    "append": ("SELECT 2 AS a, 1 AS j, 1 AS k", Purpose.INSERT_INTO, None),
    "new partition": ("SELECT 2 AS a, 1 AS j, 7 AS k", Purpose.INSERT_INTO, None),
    "a partition": ("SELECT 2 AS a, 1 AS j, 1 AS k", Purpose.INSERT_OVERWRITE, {"j": "1", "k": "1"}),
    "some partitions": ("SELECT 2 AS a, 1 AS j, 7 AS k", Purpose.INSERT_OVERWRITE, {"j": "1"}),
    "no rows": ("SELECT 2 AS a, 1 AS j, 1 AS k WHERE false", Purpose.INSERT_OVERWRITE, {}),
}
ANEW = ["PARTITIONED BY (j)", "PARTITIONED BY (a, k)", "PARTITIONED BY (k, j)", ""]

by_recipe = pytest.mark.parametrize("recipe", ["pointer", "rename"])


def written(world: World, statement: str, *, autocommit: bool = True) -> HiveParticipant:
    """A statement whose rows are staged."""
    world.sql("CREATE TABLE t (a INT, j INT, k INT) USING parquet PARTITIONED BY (j, k)")
    world.sql("INSERT INTO t VALUES (1, 1, 1)")
    query, purpose, replaced = STATEMENTS[statement]
    facts: dict[str, Any] = {"by": ["j", "k"], "autocommit": autocommit}
    scope = None if replaced is None else OverwriteScope(static_partition=replaced)
    participant = world.offer("t", world.sql(query), purpose, overwrite=scope, **facts)
    participant.begin()
    participant.write(world.sql(query))
    return participant


def make_anew(world: World, by: str = ANEW[0]) -> None:
    world.sql("DROP TABLE t")
    world.sql(f"CREATE TABLE t (a INT, j INT, k INT) USING parquet {by}")
    world.sql("INSERT INTO t (a, j, k) VALUES (9, 1, 1)")


def rows(world: World) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in world.sql("SELECT a, j, k FROM t").collect()]


def check_conflict(world: World, participant: HiveParticipant, step: str) -> None:
    with pytest.raises(WriteConflictError, match=f"default.t .*{participant.transaction_id}"):
        getattr(participant, step)()
    assert world.reborn(participant).outcome() is Outcome.NOT_PUBLISHED
    world.reborn(participant).abort()
    assert rows(world) == [(9, 1, 1)]
    assert not any(participant.transaction_id in name for name in files_of(world.warehouse))


@pytest.mark.promise(
    "conflicts", "rows for a table that was made anew with other partition columns are a conflict", detail=True
)
@by_recipe
@pytest.mark.parametrize("step", ["prepare", "commit"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_rows_for_a_table_that_was_made_anew_are_a_conflict(
    world: World, statement: str, step: str, recipe: str
) -> None:
    world = world.with_options(recipe=recipe)
    participant = written(world, statement)
    if step == "commit":
        participant.prepare()
    make_anew(world)
    check_conflict(world, participant, step)


@pytest.mark.parametrize("by", ANEW)
@pytest.mark.parametrize("autocommit", [True, False], ids=["alone", "in a block"])
def test_however_the_table_is_partitioned_then(world: World, by: str, autocommit: bool) -> None:
    participant = written(world, "a partition", autocommit=autocommit)
    participant.prepare()
    make_anew(world, by)
    check_conflict(world, participant, "commit")


@by_recipe
def test_nor_does_an_overwrite_without_rows_take_a_table_that_was_made_anew_alike_for_its_own(
    world: World, recipe: str
) -> None:
    world = world.with_options(recipe=recipe)
    participant = written(world, "no rows")
    participant.prepare()
    make_anew(world, "PARTITIONED BY (j, k)")
    check_conflict(world, participant, "commit")


@by_recipe
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_table_that_was_made_anew_is_left_alone_by_what_follows_a_publish(
    world: World, statement: str, recipe: str
) -> None:
    world = world.with_options(recipe=recipe)
    participant = written(world, statement, autocommit=False)
    participant.prepare()
    participant.commit()
    make_anew(world)
    world.reborn(participant).finish()
    with suppress(CatalogError):  # It may name files that it has published, and the DROP has removed.
        assert not world.reborn(participant).compensate()
    assert rows(world) == [(9, 1, 1)]
    assert world.partitions("t") == ["j=1"]
