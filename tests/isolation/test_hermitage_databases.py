"""The scenarios of the Hermitage suite on PostgreSQL, MariaDB and pairs of stores, under each isolation level."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.isolation.cases import cases, check
from tests.isolation.one_statement import check_one_statement
from tests.isolation.places import World

SERVERS = {"pg": "postgresql", "maria": "mariadb"}


@cases("postgresql", "mariadb", "session+postgresql", "postgresql+lakehouse", "mariadb+sqlite")
def test_no_schedule_shows_what_its_level_forbids_in_databases(world: World, name: str, store: str, level: str) -> None:
    check(world, name, store, level)


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])
def test_one_statement_of_a_block_never_reads_two_states_of_a_table_of_a_database(
    world: World, store: str, tmp_path: Path
) -> None:
    check_one_statement(world, store, tmp_path)
