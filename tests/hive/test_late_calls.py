"""A metastore server may end a call for a driver that has died, and that a recovery has rolled back meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hive.test_housekeeping import clean
from tests.hive.test_statements import HIVE, hive_of
from tests.hive.world import World
from twophase import failpoints
from twophase.catalogs.hive.participant import INSERT, HiveParticipant
from twophase.catalogs.hive.recipe_partitions import PointerPartitions
from twophase.errors import WriteConflictError
from twophase.failpoints import FailpointError
from twophase.model import Outcome, Purpose
from twophase.spark.metastore import SessionMetastore

pytestmark = [pytest.mark.spark40, HIVE]

QUERY = "SELECT 7L AS id, 0L AS k"
OLD = [(0, 0), (1, 1)]
REPLACE = pytest.param([], Purpose.REPLACE_TABLE_AS, QUERY, [(7, 0)], id="replace")
WHOLE_TABLES = [REPLACE, pytest.param([], Purpose.INSERT_INTO, QUERY, [*OLD, (7, 0)], id="insert")]
PARTITIONS = [
    pytest.param(["k"], Purpose.INSERT_INTO, QUERY, [*OLD, (7, 0)], id="partition"),
    pytest.param(["k"], Purpose.INSERT_INTO, "SELECT 7L AS id, 5L AS k", [*OLD, (7, 5)], id="new partition"),
]


@pytest.fixture(autouse=True)
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionMetastore, "ends_with_driver", False)


def filled(world: World, by: list[str]) -> None:
    world.run("t", world.sql("SELECT id, id AS k FROM range(2)"), by=by)


def publish_late(world: World, participant: HiveParticipant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything before the metastore's call, a recovery of it in another process, and then the call."""
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.reborn(participant).abort()
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    participant.commit()


def call_of(world: World, participant: HiveParticipant) -> tuple[object, str]:
    """Where the metastore's call is made that publishes."""
    if not isinstance(participant, PointerPartitions):
        return hive_of(world), "_alter"
    return world.catalog.metastore, "add_partitions" if participant.existing_plan.only_adds else "alter_partitions"


@pytest.mark.parametrize("recipe", ["pointer", "rename"])
@pytest.mark.parametrize(("by", "purpose", "query", "after"), WHOLE_TABLES)
def test_a_late_call_is_refused(
    world: World,
    recipe: str,
    by: list[str],
    purpose: Purpose,
    query: str,
    after: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    it = world.with_options(recipe=recipe)
    filled(it, by)
    participant = it.stage("t", world.sql(query), purpose, by=by)
    if recipe == "rename" and participant.effect == INSERT:
        assert type(participant).__name__ == "MoveInsert"  # renames files itself: no call of the metastore publishes
        participant.abort()
        return
    with pytest.raises(WriteConflictError):
        publish_late(it, participant, monkeypatch)
    assert sorted(it.rows("t")) == OLD
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    clean(it)
    assert it.hidden_tables() == []
    # The fence is none for those who come after it.
    it.run("t", world.sql(query), purpose, by=by)
    assert sorted(it.rows("t")) == after


def test_a_late_call_finds_what_another_writer_published(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one with a timeline of its own, that no reservation keeps away."""
    filled(world, [])
    participant = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.run("t", world.sql("SELECT 8L AS id, 8L AS k"), Purpose.INSERT_INTO)
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    with pytest.raises(WriteConflictError):
        participant.commit()
    participant.abort()
    assert not world.catalog.files.exists(participant.version)
    assert sorted(world.rows("t")) == [*OLD, (8, 8)]


@pytest.mark.parametrize(("by", "purpose", "query", "after"), WHOLE_TABLES)
def test_a_late_call_is_refused_after_another_publish_was_taken_back(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, by)
    participant = world.stage("t", world.sql(query), purpose, by=by)
    owner, name = call_of(world, participant)
    call = getattr(owner, name)

    def late(*arguments: Any, **named: Any) -> Any:
        monkeypatch.setattr(owner, name, call)
        world.reborn(participant).abort()
        other = world.run("t", world.sql("SELECT 8L AS id, 8L AS k"), Purpose.INSERT_INTO)
        assert other.compensate()
        return call(*arguments, **named)

    monkeypatch.setattr(owner, name, late)
    with pytest.raises(WriteConflictError):
        participant.commit()
    assert sorted(world.rows("t")) == OLD
    clean(world)


def test_a_writer_that_looked_before_the_fence_publishes(world: World) -> None:
    filled(world, [])
    dead = world.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    other = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    stamp = world.catalog.find(other.path).stored_stamp
    world.reborn(dead).abort()
    assert world.catalog.find(other.path).stored_stamp != stamp
    other.commit()
    other.finish()
    assert sorted(world.rows("t")) == [*OLD, (7, 0)]


@pytest.mark.parametrize(
    ("by", "purpose", "query", "after"),
    [*PARTITIONS, pytest.param([], Purpose.INSERT_INTO, QUERY, [*OLD, (7, 0)], id="foreign table")],
)
def test_what_has_no_fence_is_wholly_new_after_a_late_call(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = "t" if by else "f"
    if by:
        filled(world, by)
    else:
        world.sql("CREATE TABLE f USING parquet AS SELECT id, id AS k FROM range(2)")
    participant = world.stage(table, world.sql(query), purpose, by=by)
    publish_late(world, participant, monkeypatch)
    assert sorted(world.rows(table)) == after
    clean(world)
    assert sorted(world.rows(table)) == after


@pytest.mark.parametrize(("by", "purpose", "query", "after"), [*WHOLE_TABLES, *PARTITIONS])
def test_what_was_rolled_back_stays_as_long_as_a_replaced_version_and_then_goes(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any
) -> None:
    filled(world, by)
    participant = world.stage("t", world.sql(query), purpose, by=by)
    survivor = world.reborn(participant)
    survivor.abort()
    survivor.abort()
    assert world.catalog.files.exists(participant.version)
    assert clean(world, retention=3600.0) == []
    assert "staging" in clean(world)
    assert not world.catalog.files.exists(participant.version)
    assert sorted(world.rows("t")) == OLD


@pytest.mark.parametrize("recipe", ["pointer", "rename"])
@pytest.mark.parametrize("action", ["error", "error_after"])
def test_a_recovery_that_dies_at_the_fence_is_carried_through_by_the_next(
    world: World, recipe: str, action: Any
) -> None:
    it = world.with_options(recipe=recipe)
    filled(it, [])
    participant = it.stage("t", world.sql(QUERY), Purpose.REPLACE_TABLE_AS)
    failpoints.arm(f"hive.{recipe}.fence", action)
    with pytest.raises(FailpointError):
        it.reborn(participant).abort()
    failpoints.disarm()
    it.reborn(participant).abort()
    clean(it)
    assert sorted(it.rows("t")) == OLD
    assert not it.catalog.files.exists(participant.version)


def test_a_statement_that_never_called_the_metastore_leaves_nothing(world: World) -> None:
    filled(world, [])
    participant = world.stage("t", world.sql(QUERY), Purpose.INSERT_INTO)
    participant.abort()
    assert not world.catalog.files.exists(participant.version)


def test_an_undecided_statement_of_a_dead_driver_leaves_nothing(world: World) -> None:
    filled(world, [])
    rows = world.sql(QUERY)
    participant = world.offer("t", rows, Purpose.INSERT_INTO)
    participant.begin()
    participant.write(rows)
    survivor = world.reborn(participant)  # the document of before prepare()
    participant.prepare()
    survivor.abort()
    assert not world.catalog.files.exists(participant.version)
