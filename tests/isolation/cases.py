"""Which scenario is tried where, and under which level."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.isolation.hermitage import (
    ANOMALY,
    LEVELS,
    READ_COMMITTED,
    SCENARIOS,
    SERIALIZABLE,
    SNAPSHOT,
    Scenario,
)
from tests.isolation.places import STORES, WITH_OLD_STATES, World
from tests.isolation.schedules import Unit, steps_of
from tests.isolation.verdicts import Judge

#: Where each scenario is tried in ``make test``, in turns.
QUICKLY = ("session", "lakehouse")
#: Scenarios of which another one tries the like: ``make test-all`` runs them on session tables.
VARIANTS = {
    "G1a",
    "G1b",
    "P2",
    "P4_one_statement",
    "P4_appended_row_lost",
    "READ_EARLY_WRITE_LATE",
    "DEADLOCK_OVERWRITE",
    "TWO_INSERTS",
    "TWO_INSERTS_OTHER_PARTITIONS",
    "READER_TWO_READS",
    "OTV",
    "OTV2",
    "PMPw",
    "P2_late_collect",
    "P2w",
    "P4_late_write",
    "P4_old_dataframe",
    "Gsingle_write",
    "G2_one_table",
    "OVERLAP",
    "LONG_HOLDER",
    "DEADLOCK_INSERT",
    "TWO_INSERTS_SAME_PARTITION",
    "TWO_INSERTS_NEW_PARTITIONS",
    "TWO_INSERTS_ONE_NEW_PARTITION",
    "TWO_OVERWRITES_OTHER_PARTITIONS",
    "READER_ONE_QUERY",
}
assert SCENARIOS.keys() >= VARIANTS
#: Stores and pairs of which another one does the same.
ALIKE = ("mariadb", "mariadb+sqlite", "sqlite+session", "postgresql+lakehouse")


def cases(*stores: str) -> pytest.MarkDecorator:
    """All scenarios on some stores, or on pairs of them (``one+other``), under all levels."""
    found = [
        _case(scenario, store, level)
        for level in (SNAPSHOT, SERIALIZABLE, READ_COMMITTED)
        for store in stores
        for scenario in SCENARIOS.values()
        if _fits(scenario, store)
    ]
    return pytest.mark.parametrize(("name", "store", "level"), found)


def _fits(scenario: Scenario, store: str) -> bool:
    if scenario.partitions:
        return "+" not in store and "PARTITIONED" in STORES[store][1]
    return store != "partitioned lakehouse" and ("+" not in store or scenario.is_over_two_tables)


def _case(scenario: Scenario, store: str, level: str) -> Any:
    marks = ()
    if _is_quick(scenario, store, level):
        marks = (pytest.mark.quick,)
    elif _repeats(scenario, store, level):
        marks = (pytest.mark.exhaustive,)
    return pytest.param(scenario.name, store, level, id=f"{scenario.name}-{store}-{level}", marks=marks)


def _is_quick(scenario: Scenario, store: str, level: str) -> bool:
    """Under the default level, and those that need another one under that."""
    if scenario.name in VARIANTS:
        return False
    place = [*SCENARIOS].index(scenario.name) % len(QUICKLY)
    if scenario.partitions:
        return (store, level) == ("partitioned", SNAPSHOT)
    return store == QUICKLY[place] and level == (SERIALIZABLE if scenario.needs_serializable else SNAPSHOT)


def _repeats(scenario: Scenario, store: str, level: str) -> bool:
    """Whether it tries the like of what others try."""
    if store in ALIKE and not (store == "mariadb" and level == SERIALIZABLE):
        return True
    if scenario.name in VARIANTS and not scenario.partitions and store != "session":
        return True
    if level == READ_COMMITTED:
        return store not in QUICKLY or scenario.allowed[0] < ANOMALY
    return level == SERIALIZABLE and not scenario.is_stricter_when_serializable


def check(world: World, name: str, store: str, level: str) -> None:
    """Run a scenario, and compare what its transactions have seen and left with what its level allows."""
    scenario, stores = SCENARIOS[name], store.split("+")

    def opens(session: SparkSession, verb: str) -> AbstractContextManager[Any]:
        if verb == "SNAPSHOT" and level != READ_COMMITTED:
            return twophase.snapshot(session)
        return twophase.transaction(session, isolation=level)

    units, final = world.run(steps_of(scenario.steps), stores, opens)
    judge, place = Judge(units, final), LEVELS.index(level)
    kind, allowed = judge.kind(), scenario.allowed[place]
    assert kind <= allowed, f"{kind.name}: {judge.read_one_state_each()}"
    if level == READ_COMMITTED:
        assert kind == allowed or not scenario.certain
    else:
        assert judge.read_one_state_each() is None
    keeps_states = WITH_OLD_STATES.issuperset(stores)
    # Of a pair, it matters which of its tables keeps them.
    if len(stores) > 1 and level != READ_COMMITTED and scenario.reads and not keeps_states:
        return
    refused = scenario.refused_under(place, keeps_states=keeps_states)
    if refused != "?":
        assert _refused(units) == refused.split(), [unit.refused for unit in units]


def _refused(units: Sequence[Unit]) -> list[str]:
    return sorted({unit.agent for unit in units if unit.refused})
