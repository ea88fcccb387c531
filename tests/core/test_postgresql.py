"""The timeline on PostgreSQL, for drivers on many machines: the same promises on a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.core.bench import SHAPES, Bench, child, run_shape, run_shape_in, write
from tests.core.test_timeline import check_upgrade
from tests.servers import Server
from twophase.failpoints import EXIT_CODE
from twophase.states import TransactionState
from twophase.timeline import Timeline


@pytest.fixture
def schema(postgresql: Server) -> str:
    """A schema of its own; the URL that leads there."""
    return empty_schema(postgresql, "core_timeline")


def empty_schema(postgresql: Server, name: str) -> str:
    address = f"host={postgresql.host} port={postgresql.port} user=twophase dbname=twophase"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE")
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{postgresql.url}?options=-csearch_path%3D{name}"


@pytest.fixture
def shared(schema: str, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(schema, tmp_path)
    yield bench
    bench.close()


@pytest.mark.parametrize("shape", SHAPES)
def test_transactions_run_over_it(shared: Bench, shape: str) -> None:
    tx = run_shape(shared, shape)
    assert tx.state is TransactionState.COMPLETED
    record = shared.coordinator().timeline.transaction(tx.id)
    assert record is not None
    assert record.finished


@pytest.mark.parametrize("step", ["core.record_inflight", "core.record_committing", "core.publish"])
@pytest.mark.parametrize("action", ["exit", "exit_after"])
def test_a_killed_driver_is_recovered(shared: Bench, step: str, action: str) -> None:
    process = child(run_shape_in, shared.url, shared.directory, "several", failpoint=f"{step}={action}@1")
    process.join(60)
    assert process.exitcode == EXIT_CODE
    coordinator = shared.coordinator()
    coordinator.recover()
    assert len(shared.tables()) in (0, 2)
    assert shared.staged() == []
    assert not coordinator.timeline.transactions(open_only=True)


def test_many_make_its_tables_at_once(schema: str) -> None:
    made: list[Any] = []
    threads = [threading.Thread(target=lambda: made.append(Timeline(schema))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 8
    for timeline in made:
        timeline.close()


def test_a_timeline_of_the_first_version_becomes_as_a_new_one(schema: str, postgresql: Server) -> None:
    with closing(Timeline(schema)) as fresh:
        check_upgrade(empty_schema(postgresql, "core_old"), fresh)


def test_a_cut_connection_is_replaced(shared: Bench, postgresql: Server) -> None:
    coordinator = shared.coordinator()
    tx = coordinator.begin()
    write(tx, shared.catalogs["one"], "t")
    address = f"host={postgresql.host} port={postgresql.port} user=twophase dbname=postgres"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'twophase'")
    tx.commit()
    assert shared.tables() == ["one.t"]


def test_leases_go_by_the_server_s_clock(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(schema)
    right = timeline.now()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert timeline.now() >= right
    timeline.close()
