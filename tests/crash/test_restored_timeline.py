"""A timeline that was restored from a backup has forgotten what came since: nothing goes on its word.

The stores are as they were; only the timeline is older. What it shows as open has ended long ago, what it does not know
has happened, and what it wants to find may have been replaced, dropped and cleaned away since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.core.test_postgresql import empty_schema
from tests.crash.jobs import _execute
from tests.crash.scenario import OLD, Scenario, Statement
from tests.crash.server_sides import PostgreSQLSchema, SQLiteFile
from tests.crash.worlds import World, world_of
from twophase import failpoints
from twophase.errors import TwoPhaseError
from twophase.model import Purpose
from twophase.protocol.states import TransactionState
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import Cleaned, clean
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.recovery import Recovered
from twophase.transactions.transaction import Transaction

COMPLETED, ROLLED_BACK, IN_DOUBT = TransactionState.COMPLETED, TransactionState.ROLLED_BACK, TransactionState.IN_DOUBT
REPLACE, INSERT = Purpose.REPLACE_TABLE_AS, Purpose.INSERT_INTO
LATER = ((8, "b"), (9, "c"))
#: Two tables of each world, of two catalogs where one would publish both in one step.
TABLES = {
    "hive-pointer": ("hive.t", "hive.u"),
    "hive-rename": ("hive.t", "hive.u"),
    "jdbc-sqlite": ("shop.t", "shop.u"),
    "lakehouse-sqlite": ("lake.t", "lake.u"),
    "lakehouse-two_lakes": ("lake.t", "pond.u"),
}
#: Where both are published in one step, and Hive's other recipe.
ALIKE = ("hive-rename", "lakehouse-sqlite")
#: When the backup is taken: all is staged, and it is decided.
STAGED, DECIDED = MOMENTS = ("core.record_committing", "core.publish")


class Past:
    """A world with two tables and a timeline, which has a backup from the middle of a transaction.

    Parameters
    ----------
    world : World
    tables : tuple of str
    url : str
        Of the timeline.
    side : ServerSide
        Saves and restores it, past the code under test.
    """

    def __init__(self, world: World, tables: tuple[str, str], url: str, side: Any) -> None:
        self.world, self.tables, self.url, self.side = world, tables, url, side
        before = dict.fromkeys(tables, tuple(OLD))
        world.set_up(Scenario("restored", tuple(Statement(table, REPLACE) for table in tables), before))
        for catalog in world.catalogs.values():
            catalog.environment.retention = -1.0  # All of it has ended.

    def coordinator(self) -> Coordinator:
        return Coordinator(Timeline(self.url), self.world.catalogs.__getitem__, name="crash", wait_seconds=0.0)

    def begun(self, coordinator: Coordinator, purpose: Purpose, *tables: str, **facts: Any) -> Transaction:
        """A transaction up to its decision."""
        transaction = coordinator.begin()
        for table in tables:
            _execute(self.world, transaction, Statement(table, purpose, **facts), alone=False)
        return transaction

    def run(self, purpose: Purpose, *tables: str, **facts: Any) -> str:
        with closing(self.coordinator()) as coordinator:
            transaction = self.begun(coordinator, purpose, *tables, **facts)
            transaction.commit()
        return transaction.id

    def backed_up(self, moment: str, purpose: Purpose) -> tuple[str, Any]:
        """A transaction that writes both tables, and a backup from a moment of it."""
        saved: list[Any] = []

        def save(_: str) -> None:
            saved.append(saved or self.side.save())

        failpoints.arm(moment, save)
        done = self.run(purpose, *self.tables)
        failpoints.disarm()
        return done, saved[0]

    def recover(self) -> list[Recovered]:
        with closing(self.coordinator()) as coordinator:
            return coordinator.recover()

    def clean(self) -> list[Cleaned]:
        with closing(self.coordinator()) as coordinator:
            return clean(coordinator, self.world.catalogs.values())

    def rows(self) -> list[Any]:
        return [self.world.rows(table) for table in self.tables]


def _nothing(past: Past) -> None:
    pass


def _replaced(past: Past) -> None:
    """The first table, and what was replaced is cleaned away."""
    past.run(REPLACE, past.tables[0], rows=LATER)
    past.clean()


def _dropped(past: Past) -> None:
    table = past.tables[0]
    past.world.catalogs[table.partition(".")[0]].drop_table(past.world.path(table))
    past.clean()


@pytest.fixture
def past_of(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Past]]:
    monkeypatch.setattr(time, "sleep", lambda _: None)  # Waiting only sets the pace.
    opened: list[World] = []

    def make(world: str, timeline: str = "sqlite") -> Past:
        found = world_of(world)(tmp_path)
        opened.append(found)
        if timeline == "sqlite":
            return Past(found, TABLES[world], f"sqlite:///{found.timeline_file}", SQLiteFile(found.timeline_file))
        server = request.getfixturevalue("postgresql")
        url = empty_schema(server, "restored")
        return Past(found, TABLES[world], url, PostgreSQLSchema(server.url, "restored"))

    yield make
    failpoints.disarm()
    for each in opened:
        each.close()


@pytest.mark.promise("restored-backup", "what a restored timeline has forgotten stays")
@pytest.mark.parametrize(
    ("later", "purpose"),
    [(_nothing, REPLACE), (_nothing, INSERT), (_replaced, REPLACE), (_replaced, INSERT), (_dropped, REPLACE)],
)
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("world", [pytest.param(w, marks=[pytest.mark.exhaustive] * (w in ALIKE)) for w in TABLES])
def test_what_a_restored_timeline_has_forgotten_stays(
    past_of: Callable[..., Past], world: str, moment: str, later: Callable[[Past], None], purpose: Purpose
) -> None:
    check(past_of(world), moment, later, purpose)


@pytest.mark.promise("restored-backup", "what a restored timeline on PostgreSQL has forgotten stays", detail=True)
@pytest.mark.parametrize("moment", MOMENTS)
def test_on_postgresql_the_same(past_of: Callable[..., Past], moment: str) -> None:
    check(past_of("lakehouse-two_lakes", "postgresql"), moment, _replaced, REPLACE)


def check(past: Past, moment: str, later: Callable[[Past], None], purpose: Purpose) -> None:
    wanted = {COMPLETED} if later is _nothing else {COMPLETED, IN_DOUBT}
    if moment == STAGED and (later is not _nothing or (purpose is INSERT and past.tables[0].startswith("hive."))):
        # Of a store that has cleaned all traces away, and before Hive's files of an append have names, there is nothing
        # to tell the publish by.
        wanted.add(ROLLED_BACK)
    done, backup = past.backed_up(moment, purpose)
    later(past)
    with closing(past.coordinator()) as coordinator:
        younger = past.begun(coordinator, INSERT, past.tables[1])
        rows = past.rows()
        past.side.restore(backup)
        (recovered,) = past.recover()
        assert recovered.transaction_id == done
        assert recovered.state in wanted
        assert past.rows() == rows
        for _ in range(2):
            kept = [one for one in past.clean() if one.leftover.transaction_id == younger.id]
            assert kept
            assert all("not on this timeline" in str(one.reason) for one in kept)
            assert past.rows() == rows
        with pytest.raises(TwoPhaseError):
            younger.commit()
    assert past.rows() == rows
    with closing(past.coordinator()) as coordinator:
        if recovered.state is IN_DOUBT:
            ended = coordinator.recover(transaction_id=done, assume=COMPLETED)
            assert [one.state for one in ended] == [COMPLETED]
        assert coordinator.recover() == []
    past.clean()
    assert past.rows() == rows
