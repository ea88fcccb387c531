"""A metastore server may end a call for a driver that has died, and that a recovery has rolled back meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hive.test_housekeeping import clean
from tests.hive.test_statements import HIVE, hive_of
from tests.hive.world import World
from twophase.catalogs.hive.participant import INSERT, HiveParticipant
from twophase.catalogs.hive.recipe_partitions import PointerPartitions
from twophase.model import Purpose
from twophase.spark.metastore import SessionMetastore

pytestmark = [pytest.mark.spark40, HIVE]

CASES = [
    pytest.param([], Purpose.REPLACE_TABLE_AS, "SELECT 7L AS id, 0L AS k", [(7, 0)], id="replace"),
    pytest.param([], Purpose.INSERT_INTO, "SELECT 7L AS id, 0L AS k", [(0, 0), (1, 1), (7, 0)], id="insert"),
    pytest.param(["k"], Purpose.INSERT_INTO, "SELECT 7L AS id, 0L AS k", [(0, 0), (1, 1), (7, 0)], id="partition"),
    pytest.param(["k"], Purpose.INSERT_INTO, "SELECT 7L AS id, 5L AS k", [(0, 0), (1, 1), (7, 5)], id="new partition"),
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
    store = world.catalog.metastore
    if isinstance(participant, PointerPartitions):
        return store, "add_partitions" if participant.existing_plan.only_adds else "alter_partitions"
    return (store, "alter_table") if participant.effect == INSERT else (hive_of(world), "_alter")


@pytest.mark.parametrize(("by", "purpose", "query", "after"), CASES)
def test_a_late_call_leaves_a_table_that_is_wholly_new(
    world: World, by: list[str], purpose: Purpose, query: str, after: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(world, by)
    participant = world.stage("t", world.sql(query), purpose, by=by)
    publish_late(world, participant, monkeypatch)
    assert sorted(world.rows("t")) == after
    clean(world)
    assert sorted(world.rows("t")) == after


@pytest.mark.parametrize(("by", "purpose", "query", "after"), CASES)
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
    assert sorted(world.rows("t")) == [(0, 0), (1, 1)]


def test_a_statement_that_never_called_the_metastore_leaves_nothing(world: World) -> None:
    filled(world, [])
    participant = world.stage("t", world.sql("SELECT 7L AS id, 0L AS k"), Purpose.INSERT_INTO)
    participant.abort()
    assert not world.catalog.files.exists(participant.version)


def test_an_undecided_statement_of_a_dead_driver_leaves_nothing(world: World) -> None:
    filled(world, [])
    rows = world.sql("SELECT 7L AS id, 0L AS k")
    participant = world.offer("t", rows, Purpose.INSERT_INTO)
    participant.begin()
    participant.write(rows)
    survivor = world.reborn(participant)  # the document of before prepare()
    participant.prepare()
    survivor.abort()
    assert not world.catalog.files.exists(participant.version)
