"""The scenarios of the Hermitage suite on session tables, a lakehouse and SQLite, under each isolation level."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.isolation.cases import cases, check
from tests.isolation.one_statement import check_one_statement
from tests.isolation.places import World


@pytest.mark.promise("isolation", "no schedule of the Hermitage suite shows what its level forbids")
@cases("session", "partitioned", "lakehouse", "partitioned lakehouse", "sqlite", "session+lakehouse", "sqlite+session")
def test_no_schedule_shows_what_its_level_forbids(world: World, name: str, store: str, level: str) -> None:
    check(world, name, store, level)


@pytest.mark.promise("isolation", "one statement of a block never reads two states of a table")
@pytest.mark.parametrize("store", ["session", "partitioned", "lakehouse", "sqlite"])
def test_one_statement_of_a_block_never_reads_two_states_of_a_table(world: World, store: str, tmp_path: Path) -> None:
    check_one_statement(world, store, tmp_path)
