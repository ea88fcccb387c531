"""The timeline on PostgreSQL, for drivers on many machines: the same promises on a real server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.engine import make_url

from tests.core.bench import SHAPES, Bench, child, run_shape, run_shape_in, write
from tests.core.test_clean import check_pruning
from tests.core.test_leases import wait_until
from tests.core.test_timeline import begin, check_schemas, check_upgrade
from tests.servers import Server
from twophase.catalog.schema_versions import SchemaChange
from twophase.errors import TimelineError
from twophase.failpoints import EXIT_CODE
from twophase.model import ObjectPath, Purpose
from twophase.protocol.states import TransactionState
from twophase.timeline.commit_order import Decided
from twophase.timeline.immediate import Immediate
from twophase.timeline.owners import this_process
from twophase.timeline.reservations import WHOLE_TABLE
from twophase.timeline.tables import target_key
from twophase.timeline.timeline import Timeline


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


def test_what_ended_long_ago_is_forgotten_but_for_how_it_ended(shared: Bench) -> None:
    check_pruning(shared)


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
        check_schemas(fresh)


def test_all_that_lock_several_tables_do_so_in_one_order(schema: str) -> None:
    """Otherwise two wait for each other, until the server ends one of them."""
    first, second = (ObjectPath.of("default", name) for name in ("a", "b"))
    assert target_key("hive", first) > target_key("hive", second)
    locked: list[Any] = []

    def taken() -> list[Any]:
        found = [*locked]
        locked.clear()
        return found

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "pg_advisory_xact_lock" in statement:
            locked.append(parameters)

    with closing(Timeline(schema)) as timeline:
        lease = begin(timeline, "app-20260101t000000-00000001")
        sa.event.listen(timeline._engine, "before_cursor_execute", note)
        timeline.reserve_all(lease, [("hive", path, WHOLE_TABLE) for path in (first, second)])
        order = taken()
        who = {"coordinator": "app", "owner": this_process(), "user": "ann", "application": "etl", "seconds": 60.0}
        renamed = [Immediate("hive", path, Purpose.DROP_TABLE) for path in (second, first)]
        other = timeline.announce("app-20260101t000000-00000002", renamed, since=0, **who)
        assert taken() == order
        timeline.settle(other, [("hive", path, SchemaChange(None)) for path in (second, first)])
        assert taken() == order
        changes = [Decided("hive", path, WHOLE_TABLE, schema=SchemaChange(None)) for path in (second, first)]
        timeline.record(lease, TransactionState.COMMITTING, changes=changes)
        assert taken() == order
    assert len(order) == 2


def test_a_cut_connection_is_replaced(shared: Bench, postgresql: Server) -> None:
    coordinator = shared.coordinator()
    tx = coordinator.begin()
    write(tx, shared.catalogs["one"], "t")
    address = f"host={postgresql.host} port={postgresql.port} user=twophase dbname=postgres"
    with psycopg.connect(address, autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'twophase'")
    tx.commit()
    assert shared.tables() == ["one.t"]


@pytest.fixture
def line_to_server(postgresql: Server) -> Iterator[Line]:
    line = Line(postgresql.host, postgresql.port)
    yield line
    line.close()


class Line:
    """A line to a server that can be cut without a word: what is connected stays so, and nothing gets through."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._cut = threading.Event()
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def cut(self) -> None:
        """Silence those that are connected; others can connect."""
        self._cut.set()
        self._cut = threading.Event()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        self._listener.close()
        for end in self._open:
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                here, _ = self._listener.accept()
            except OSError:
                return
            there = socket.create_connection(self._target)
            self._open += [here, there]
            for ends in ((here, there), (there, here)):
                threading.Thread(target=self._carry, args=(*ends, self._cut), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket, cut: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if cut.is_set():
                    return
                target.sendall(data)
            target.close()


def test_a_server_that_falls_silent_holds_no_heartbeat_for_longer_than_a_lease(
    schema: str, tmp_path: Path, line_to_server: Line
) -> None:
    url = make_url(schema).set(host="127.0.0.1", port=line_to_server.port).render_as_string(hide_password=False)
    bench, watcher = Bench(url, tmp_path), Timeline(schema)
    tx = bench.coordinator(lease_seconds=4).begin()
    write(tx, bench.catalogs["one"], "t")

    line_to_server.cut()
    (before,) = watcher.transactions()
    wait_until(lambda: watcher.now() > before.lease_until)  # Without a beat meanwhile, others might take it over now.

    (after,) = watcher.transactions()
    assert not after.lease_until < watcher.now()
    tx.commit()
    assert bench.tables() == ["one.t"]
    watcher.close()
    bench.close()


def test_what_is_recorded_survives_a_power_failure_whatever_the_role_has_set(schema: str, postgresql: Server) -> None:
    setting = make_url(schema)
    options = f"{setting.query['options']} -csynchronous_commit=off"
    with closing(Timeline(setting.set(query={"options": options}).render_as_string(hide_password=False))) as timeline:
        found = []
        lease = begin(timeline, "app-1")

        @sa.event.listens_for(timeline._engine, "commit")
        def _(connection: sa.Connection) -> None:
            found.append(connection.exec_driver_sql("SHOW synchronous_commit").scalar())

        timeline.record(lease, TransactionState.COMMITTING)
        timeline.record(lease, TransactionState.ROLLED_BACK)
        assert found == ["on", "on"]
        timeline.finish(lease)
        assert found[2:] == ["off"]


def test_what_others_keep_locked_is_waited_for_as_long_as_a_file(schema: str) -> None:
    with closing(Timeline(schema)) as timeline:
        assert settings_of(timeline) == {"lock_timeout": "30s", "idle_in_transaction_session_timeout": "1min"}
    url = make_url(schema)
    options = f"{url.query['options']} -clock_timeout=100ms -cstatement_timeout=5s"
    impatient = url.set(query={"options": options}).render_as_string(hide_password=False)
    engine = sa.create_engine(schema)
    with closing(Timeline(impatient)) as timeline, engine.connect() as other:
        assert settings_of(timeline)["lock_timeout"] == "100ms"
        lease = begin(timeline, "app-1")
        other.exec_driver_sql("LOCK TABLE twophase_transactions IN SHARE MODE")
        with pytest.raises(TimelineError, match=r"another process keeps it locked.*pg_terminate_backend"):
            timeline.record(lease, TransactionState.COMMITTING)
        other.rollback()
        timeline.record(lease, TransactionState.COMMITTING)
    engine.dispose()


def settings_of(timeline: Timeline) -> dict[str, str]:
    """The limits of a transaction that writes; no limit of a role ends a statement of it."""

    def shown(connection: sa.Connection) -> dict[str, str]:
        names = ("lock_timeout", "idle_in_transaction_session_timeout", "statement_timeout")
        return {name: str(connection.exec_driver_sql(f"SHOW {name}").scalar()) for name in names}

    found = timeline._transact(shown)
    assert found.pop("statement_timeout") == "0"
    return found


def test_a_silent_server_is_given_up(schema: str) -> None:
    with closing(Timeline(schema)) as timeline, timeline._engine.connect() as connection:
        given = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
        assert {"connect_timeout", "tcp_user_timeout", "keepalives_idle", "keepalives_interval"} <= given.keys()


def test_its_password_needs_no_place_in_the_url(schema: str) -> None:
    with closing(Timeline(schema, password="hunter2")) as timeline:
        assert "hunter2" not in timeline.display_url + timeline.option + repr(timeline)
        assert timeline.option  # It can be suggested: it holds no secret.
        assert timeline._engine.url.password == "hunter2"


def test_leases_go_by_the_server_s_clock(schema: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline = Timeline(schema)
    right = timeline.now()
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert timeline.now() >= right
    timeline.close()
