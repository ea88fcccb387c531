"""The scenarios of the Hermitage suite on PostgreSQL, MariaDB and pairs of stores, under each isolation level."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import twophase
from tests.isolation.cases import cases, check
from tests.isolation.one_statement import check_one_statement
from tests.isolation.places import World
from tests.isolation.schedules import PATIENCE
from twophase.errors import SnapshotTooOldError

SERVERS = {"pg": "postgresql", "maria": "mariadb"}


@cases("postgresql", "mariadb", "session+postgresql", "postgresql+lakehouse", "mariadb+sqlite")
def test_no_schedule_shows_what_its_level_forbids_in_databases(world: World, name: str, store: str, level: str) -> None:
    check(world, name, store, level)


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])
def test_one_statement_of_a_block_never_reads_two_states_of_a_table_of_a_database(
    world: World, store: str, tmp_path: Path
) -> None:
    check_one_statement(world, store, tmp_path)


@pytest.mark.parametrize("store", ["postgresql", "mariadb"])
def test_a_block_is_refused_a_table_of_a_database_that_was_altered_since_its_begin(world: World, store: str) -> None:
    table, altering, reading = world.one_table(store), world.agents["T1"], world.agents["T2"]

    def alter(change: str) -> None:
        altering.call(lambda session: session.sql(f"ALTER TABLE {table} {change}")).result(PATIENCE)

    def read(session: SparkSession) -> None:
        with twophase.transaction(session):
            alter("ADD COLUMN more INT")
            session.table(table).collect()

    with pytest.raises(SnapshotTooOldError, match=f"{table}.*again"):
        reading.call(read).result(PATIENCE)
    versions = reading.call(lambda session: twophase.schema_history(session, table)).result(PATIENCE)
    assert ([f.name for f in versions[-1].schema], versions[-1].commit is not None) == (["value", "id", "more"], True)
    alter("DROP COLUMN more")
