"""The timeline: durable, shared by processes, and clear about what it cannot read."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests.core.bench import child, path, reserve
from twophase.catalog import SchemaChange, TableSchema
from twophase.errors import ConfigurationError, LeaseLostError, TimelineError
from twophase.model import Level, Purpose
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.schema import assign_ids
from twophase.spark import options
from twophase.timeline import engines, sqlite_files, tables
from twophase.timeline.commit_order import Decided
from twophase.timeline.immediate import Immediate
from twophase.timeline.owners import this_process
from twophase.timeline.records import ParticipantRecord, describe_error
from twophase.timeline.reservations import WHOLE_TABLE, Mode, Reservation
from twophase.timeline.tables import path_text, schemas, target_key
from twophase.timeline.timeline import Timeline


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new directory" / "timeline.db"


@pytest.fixture
def timeline(file: Path) -> Iterator[Timeline]:
    with closing(Timeline(f"sqlite:///{file}")) as timeline:
        yield timeline


def participant(ordinal: int = 0, **values: Any) -> ParticipantRecord:
    given = {"state": ParticipantState.STAGED, "document": {"key": "wört"}} | values
    return ParticipantRecord(ordinal, "hive", path("t"), Purpose.CREATE_TABLE_AS, **given)


def begin(timeline: Timeline, transaction_id: str, seconds: float = 60.0) -> Any:
    who = {"owner": this_process(), "user": "ann", "application": "etl"}
    return timeline.begin(transaction_id, participant(), coordinator="app", seconds=seconds, **who)


# -- what it keeps ----------------------------------------------------------------------------------------------------


def test_it_keeps_who_what_when_and_the_level(timeline: Timeline) -> None:
    lease = begin(timeline, "app-1")
    prepared = participant(state=ParticipantState.PREPARED, level=Level.ATOMIC, document={"key": "wörter"})
    timeline.record(lease, TransactionState.COMMITTING, level=Level.ATOMIC, prepared=[prepared])
    timeline.record(lease, TransactionState.COMPLETED)
    timeline.finish(lease, ("/old/version",))
    record = timeline.transaction("app-1")
    assert record is not None
    assert (record.user, record.application, record.coordinator) == ("ann", "etl", "app")
    assert record.owner == this_process()
    assert record.state is TransactionState.COMPLETED
    assert record.level is Level.ATOMIC
    assert record.created <= (record.decided or 0) <= (record.finished or 0)
    assert record.left_behind == ("/old/version",)
    (found,) = record.participants
    assert found.name == "hive.default.t"
    assert found.state is ParticipantState.PUBLISHED
    assert found.level is Level.ATOMIC
    assert found.document == {"key": "wörter"}  # Kept: it left something behind.


def test_documents_are_dropped_when_nothing_is_left_to_do(timeline: Timeline) -> None:
    lease = begin(timeline, "app-1")
    timeline.record(lease, TransactionState.ROLLED_BACK)
    timeline.finish(lease)
    record = timeline.transaction("app-1")
    assert record is not None
    assert record.participants[0].document is None


def test_the_newest_transactions_come_first(timeline: Timeline) -> None:
    for number in range(5):
        lease = begin(timeline, f"app-{number}")
        if number % 2:
            timeline.record(lease, TransactionState.ROLLED_BACK)
            timeline.finish(lease)
    assert [r.id for r in timeline.transactions(limit=2)] == ["app-4", "app-3"]
    assert [r.id for r in timeline.transactions(open_only=True)] == ["app-4", "app-2", "app-0"]
    assert timeline.transactions(coordinator="other") == []
    assert timeline.transaction("app-9") is None


def plans_of(timeline: Timeline, beginning: str) -> list[str]:
    """How SQLite looks for the rows of each query with this beginning, filled as they run."""
    plans: list[str] = []

    @sa.event.listens_for(timeline._engine, "before_cursor_execute")
    def _(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if re.match(beginning, statement, re.DOTALL):
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[3] for row in cursor.fetchall())

    return plans


@pytest.mark.parametrize(
    ("asked", "index"),
    [
        ({"limit": 50}, "created"),
        ({"open_only": True}, "finished"),
        ({"open_only": True, "coordinator": "app"}, "finished"),
        ({"coordinator": "app", "limit": 100}, "coordinator"),
        ({"left_behind": True}, "left_behind"),
    ],
)
def test_a_look_at_a_few_transactions_does_not_read_the_others(
    timeline: Timeline, asked: dict[str, Any], index: str
) -> None:
    begin(timeline, "app-1")
    plans = plans_of(timeline, "SELECT.*FROM twophase_transactions")
    timeline.transactions(**asked)
    assert f"INDEX twophase_transactions_{index}" in plans[0]


def test_a_look_at_the_changes_of_a_table_reads_only_those_since_the_snapshot(timeline: Timeline) -> None:
    """Its earlier changes may be a million."""
    plans = plans_of(timeline, "SELECT twophase_changes")
    assert timeline.changes_since("hive", path("t"), 7, "app-1") == []
    found = [plan for plan in plans if "twophase_changes" in plan]
    assert len(found) == 2 and all("INDEX twophase_changes_target (target=? AND number" in plan for plan in found)


def test_a_look_at_what_came_after_a_commit_reads_no_earlier_transactions(timeline: Timeline) -> None:
    elsewhere = replace(this_process(), host="elsewhere", boot_id="another")
    who = {"owner": elsewhere, "user": "ann", "application": "etl"}
    timeline.begin("app-1", participant(), coordinator="app", seconds=60.0, snapshot=0, **who)
    plans = plans_of(timeline, "SELECT (min|count).*FROM twophase_transactions")
    assert (timeline.needed_since(), timeline.knows_all_since(0)) == (None, True)
    found = [plan for plan in plans if "twophase_transactions" in plan]
    indexes = [re.findall(r"SEARCH twophase_transactions USING (?:COVERING )?INDEX \w+_(\w+)", plan) for plan in found]
    assert indexes == [["finished"], ["number"], ["number"]], found


def test_a_final_state_is_not_overwritten_by_another(timeline: Timeline) -> None:
    lease = begin(timeline, "app-1")
    timeline.record(lease, TransactionState.COMPLETED)
    timeline.record(lease, TransactionState.COMPLETED)
    with pytest.raises(LeaseLostError):
        timeline.record(lease, TransactionState.ROLLED_BACK)


def test_the_names_of_reserved_tables_may_be_long_and_strange(timeline: Timeline) -> None:
    first, second = begin(timeline, "app-1"), begin(timeline, "app-2")
    names = ["ü" * 200, 'a"b', "a.b", "a`b", "a b", "A", "a"]
    for name in names:
        assert reserve(timeline, first, name) is None
        assert reserve(timeline, second, name) == "app-1"


# -- many processes ---------------------------------------------------------------------------------------------------


def write_many(url: str, name: str, count: int) -> None:
    timeline = Timeline(url)
    for number in range(count):
        lease = begin(timeline, f"{name}-{number}")
        holder = reserve(timeline, lease, "contended")
        state = TransactionState.ROLLED_BACK if holder else TransactionState.COMPLETED
        timeline.record(lease, state)
        timeline.finish(lease)


def test_many_processes_make_and_write_one_sqlite_file_together(file: Path) -> None:
    url = f"sqlite:///{file}"
    processes = [child(write_many, url, f"p{number}", 15) for number in range(4)]
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0] * 4
    records = Timeline(url, create=False).transactions()
    assert len(records) == 60
    assert all(record.finished and record.state.is_final and record.participants for record in records)
    assert any(record.state is TransactionState.COMPLETED for record in records)


def test_what_is_recorded_survives_a_power_failure(timeline: Timeline) -> None:
    settings = []
    lease = begin(timeline, "app-1")

    @sa.event.listens_for(timeline._engine, "commit")
    def _(connection: sa.Connection) -> None:
        settings.append(connection.exec_driver_sql("PRAGMA synchronous").scalar())

    timeline.enlist(lease, participant(1))
    timeline.record(lease, TransactionState.COMMITTING)
    timeline.record(lease, TransactionState.ROLLED_BACK)
    assert settings == [2, 2, 2]  # FULL
    timeline.finish(lease)
    assert settings[3:] == [1]  # NORMAL: recovery would just do it again.


# -- what cannot be read ----------------------------------------------------------------------------------------------


def refuse(url: str, **arguments: Any) -> str:
    with pytest.raises(TimelineError) as caught:
        Timeline(url, **arguments)
    return str(caught.value)


def test_a_file_that_is_no_database_is_refused_and_untouched(tmp_path: Path) -> None:
    file = tmp_path / "timeline.db"
    file.write_bytes(b"these are not the rows you are looking for " * 50)
    before = file.read_bytes()
    assert "damaged or no SQLite database" in refuse(f"sqlite:///{file}")
    assert file.read_bytes() == before


def test_a_truncated_timeline_is_refused_with_words(file: Path, timeline: Timeline) -> None:
    for number in range(50):
        begin(timeline, f"app-{number}")
    timeline.close()
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    for wal in file.parent.glob("timeline.db-*"):
        wal.unlink()
    with pytest.raises(TimelineError, match="damaged"):
        Timeline(f"sqlite:///{file}").transactions()


@pytest.mark.parametrize(
    "url", ["postgres://ann@host/db", "postgresql://ann@host/db", "postgresql+psycopg://ann@host/db"]
)
def test_a_postgresql_timeline_has_the_driver_of_twophase_if_it_names_none(url: str) -> None:
    assert engines.parsed(url).drivername == "postgresql+psycopg"


@pytest.mark.parametrize("url", ["postgresql://user:hush@host:port/db", "postgresql://user:hush/db"])
def test_a_port_that_is_no_number_is_refused_without_the_password(url: str) -> None:
    told = refuse(url)

    assert "cannot be read" in told
    assert "hush" not in told


def test_a_directory_in_its_place_is_refused(tmp_path: Path) -> None:
    assert str(tmp_path) in refuse(f"sqlite:///{tmp_path}")


def test_a_locked_file_is_waited_for_once_and_only_so_long(file: Path, timeline: Timeline) -> None:
    """Whoever writes to it may hold locks of its own, as Spark does that drops a table."""
    with closing(Timeline(f"sqlite:///{file}?timeout=0.5")) as hurried, closing(sqlite3.connect(file)) as other:
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        with pytest.raises(TimelineError, match="another process keeps it locked") as refused:
            begin(hurried, "app-1")
        assert 0.5 <= time.monotonic() - began < 2
        assert "timeout" in refused.value.hint
        other.rollback()
        begin(hurried, "app-1")


@pytest.mark.parametrize("timeout", ["long", "-1", "nan", "inf", "3000000"])
def test_a_time_that_sqlite_cannot_wait_is_refused(file: Path, timeout: str) -> None:
    assert "timeout of the timeline" in refuse(f"sqlite:///{file}?timeout={timeout}")


def test_a_newer_timeline_is_refused_and_untouched(file: Path, timeline: Timeline) -> None:
    timeline.close()
    set_version(file, tables.VERSION + 1)
    assert "newer twophase" in refuse(f"sqlite:///{file}")


def test_a_timeline_too_old_is_refused_with_words(file: Path, timeline: Timeline) -> None:
    timeline.close()
    set_version(file, 0)
    assert "too old" in refuse(f"sqlite:///{file}")


def test_an_old_timeline_is_upgraded_and_keeps_its_rows(
    file: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(timeline, "app-1")
    timeline.close()

    def add_column(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE twophase_transactions ADD COLUMN note TEXT")

    monkeypatch.setattr(tables, "VERSION", tables.VERSION + 1)
    monkeypatch.setitem(tables.UPGRADES, tables.VERSION - 1, add_column)
    for _ in range(2):
        upgraded = Timeline(f"sqlite:///{file}")
        assert [record.id for record in upgraded.transactions()] == ["app-1"]
        upgraded.close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT version FROM twophase_schema_version").fetchall() == [(tables.VERSION,)]


def test_an_upgrade_that_fails_changes_nothing(file: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline.close()

    def half(connection: sa.Connection) -> None:
        connection.exec_driver_sql("ALTER TABLE twophase_transactions ADD COLUMN note TEXT")
        raise RuntimeError("no more room")

    monkeypatch.setattr(tables, "VERSION", tables.VERSION + 1)
    monkeypatch.setitem(tables.UPGRADES, tables.VERSION - 1, half)
    assert "no more room" in refuse(f"sqlite:///{file}")
    monkeypatch.undo()
    with closing(sqlite3.connect(file)) as connection:
        assert "note" not in [row[1] for row in connection.execute("PRAGMA table_info(twophase_transactions)")]
    Timeline(f"sqlite:///{file}").close()


def set_version(file: Path, version: int) -> None:
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("UPDATE twophase_schema_version SET version = ?", (version,))
        connection.commit()


def test_a_timeline_that_is_not_there_is_not_made_by_looking(tmp_path: Path) -> None:
    file = tmp_path / "none" / "timeline.db"
    assert "no timeline" in refuse(f"sqlite:///{file}", create=False)
    assert not file.parent.exists()


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:line?mode=memory&uri=true",
        "sqlite:///file:/line?vfs=memdb&uri=true",
    ],
)
def test_a_timeline_in_memory_is_refused(url: str) -> None:
    assert "forget" in refuse(url)


@pytest.mark.parametrize("url", ["postgres secret=hunter2", "postgresql://ann:hunter2@host:port/db"])
def test_a_wrong_url_is_refused_without_repeating_it(url: str) -> None:
    text = refuse(url)
    assert "hunter2" not in text
    assert "sqlite:////" in text


def test_a_database_without_a_driver_is_refused_with_the_remedy() -> None:
    assert "pip install" in refuse("nosuchdb://user:hunter2@host/db")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql+psycopg://ann:hunter2@127.0.0.1:1/db?connect_timeout=2",
        "postgresql+psycopg://ann@127.0.0.1:1/db?connect_timeout=2&password=hunter2",
    ],
)
def test_a_server_that_does_not_answer_is_reported_without_its_password(url: str) -> None:
    text = refuse(url)
    assert "hunter2" not in text
    assert "127.0.0.1" in text


@pytest.mark.filterwarnings("ignore:Query string argument:sqlalchemy.exc.SAWarning")
def test_a_secret_in_a_url_is_neither_shown_nor_in_a_suggested_command(file: Path) -> None:
    with closing(Timeline(f"sqlite:///{file}?password=hunter2")) as timeline:
        assert "hunter2" not in timeline.display_url + timeline.option + repr(timeline)
        assert timeline.option == ""


# -- no secrets -------------------------------------------------------------------------------------------------------


@pytest.mark.promise("secrets", "an error on the timeline holds no secret")
@pytest.mark.parametrize(
    "text",
    [
        "cannot connect to postgresql://ann:hunter2@host/db",
        "login failed: password=hunter2, try again",
        'Missing grant; "secret_key": "hunter2"',
        "AWS access-key: hunter2",
        "token = hunter2",
        "first line\n== SQL ==\nSELECT 'hunter2'",
    ],
)
def test_an_error_on_the_timeline_holds_no_secret(timeline: Timeline, file: Path, text: str) -> None:
    assert "hunter2" not in (describe_error(RuntimeError(text)) or "")
    lease = begin(timeline, "app-1")
    timeline.record(lease, TransactionState.ROLLED_BACK, error=RuntimeError(text))
    timeline.finish(lease)
    timeline.close()
    assert all(b"hunter2" not in part.read_bytes() for part in file.parent.iterdir())


# -- its place and its users ------------------------------------------------------------------------------------------


def modes(file: Path) -> set[int]:
    return {part.stat().st_mode & 0o777 for part in file.parent.glob("timeline.db*")}


def test_its_files_are_the_owner_s_alone(file: Path, timeline: Timeline) -> None:
    begin(timeline, "app-1")
    assert modes(file) == {0o600}


def test_its_files_are_the_group_s_too_where_the_directory_is(file: Path) -> None:
    file.parent.mkdir()
    file.parent.chmod(0o2770)
    with closing(Timeline(f"sqlite:///{file}")) as timeline:
        begin(timeline, "app-1")
        assert modes(file) == {0o660}


def test_one_that_is_there_keeps_its_mode(file: Path, timeline: Timeline) -> None:
    timeline.close()
    file.chmod(0o640)
    Timeline(f"sqlite:///{file}").close()
    assert modes(file) == {0o640}


def test_another_user_is_told_how_to_share_it(file: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch) -> None:
    timeline.close()
    monkeypatch.setattr(sqlite_files.os, "access", lambda *_: False)  # As root everything may be written.
    told = refuse(f"sqlite:///{file}")
    assert "may not write it" in told
    assert "chgrp" in told
    assert "postgresql" in told


def test_one_that_is_mounted_read_only_is_said_to_be_so_whoever_owns_it(
    file: Path, timeline: Timeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline.close()
    found = os.statvfs(file)
    monkeypatch.setattr(sqlite_files.os, "access", lambda *_: False)
    monkeypatch.setattr(sqlite_files.os, "statvfs", lambda _: SimpleNamespace(f_flag=found.f_flag | os.ST_RDONLY))
    told = refuse(f"sqlite:///{file}")
    assert "read-only" in told
    assert "chgrp" not in told


def test_where_sqlite_cannot_keep_its_log_is_refused(tmp_path: Path) -> None:
    told = refuse(f"sqlite:///file:{tmp_path / 'timeline.db'}?vfs=unix-dotfile&uri=true")
    assert "journal mode delete" in told


@pytest.mark.parametrize(
    ("kind", "found"),
    [("nfs4", "nfs4"), ("cifs", "cifs"), ("fuse.sshfs", "fuse.sshfs"), ("9p", "9p"), ("ext4", None), ("fuseblk", None)],
)
def test_a_network_file_system_is_known_by_its_mount(
    tmp_path: Path, kind: str, found: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "a b"
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n"
        f"30 22 0:44 / {str(place).replace(' ', chr(92) + '040')} rw shared:2 - {kind} server:/export rw\n"
    )
    monkeypatch.setattr(sqlite_files, "_MOUNTS", mounts)
    assert sqlite_files.network_file_system(place / "new" / "timeline.db") == found
    assert sqlite_files.network_file_system(tmp_path / "timeline.db") is None
    Timeline(f"sqlite:///{place}/timeline.db").close()
    assert ("network file system" in caplog.text) == (found is not None)
    if found:
        with pytest.raises(ConfigurationError, match=r"spark\.twophase\.timeline"):
            options.default_timeline(str(place))


# -- versions of schemas -----------------------------------------------------------------------------------------------


def commit_schema(timeline: Timeline, change: SchemaChange | None, state: TransactionState, number: int) -> None:
    """A transaction that changes the columns of a table, and how it ends."""
    lease = begin(timeline, f"app-20260101t000000-{number:08x}")
    decided = Decided("hive", path("t"), WHOLE_TABLE, schema=change)
    timeline.record(lease, TransactionState.COMMITTING, changes=[decided])
    if state is not TransactionState.COMMITTING:
        timeline.record(lease, state)
        timeline.finish(lease)


def announce(timeline: Timeline, number: int) -> Any:
    """A change of the table outside transactions."""
    who = {"coordinator": "app", "owner": this_process(), "user": "ann", "application": "etl", "seconds": 60.0}
    changes = [Immediate("hive", path("t"), Purpose.ALTER_TABLE)]
    return timeline.announce(f"app-20260101t000000-{number:08x}", changes, since=timeline.last_number(), **who)


def check_schemas(timeline: Timeline) -> None:
    """Also on PostgreSQL."""

    def of(*names: str) -> TableSchema:
        return TableSchema(assign_ids([pa.field(name, pa.int32()) for name in names]))

    def names() -> list[tuple[list[str], int | None]]:
        found = timeline.schema_versions("hive", path("t"))
        return [([f"{f.name}{f.id}" for f in one.schema], one.number) for one in found]

    done, undone = TransactionState.COMPLETED, TransactionState.ROLLED_BACK
    commit_schema(timeline, SchemaChange(of("a"), creates=True), done, 1)
    commit_schema(timeline, SchemaChange(of("never"), of("a")), undone, 2)
    commit_schema(timeline, SchemaChange(of("a"), of("a")), done, 3)
    commit_schema(timeline, SchemaChange(of("c", "b"), of("a", "b"), renames={"c": "a"}), done, 4)
    timeline.settle(announce(timeline, 40), [("hive", path("t"), SchemaChange(of("c"), of("c", "b")))])
    timeline.revoke(announce(timeline, 41))
    commit_schema(timeline, SchemaChange(of("c", "b"), of("c")), TransactionState.COMMITTING, 5)
    expected = [(["a1"], 1), (["a1", "b2"], None), (["c1", "b2"], 3), (["c1"], 4)]
    assert names() == expected
    assert timeline.prune(-1, limit=100) == 5
    assert names() == expected
    commit_schema(timeline, SchemaChange(None), done, 6)
    commit_schema(timeline, SchemaChange(of("z"), creates=True), done, 7)
    assert names() == [(["z1"], 6)]
    timeline.prune(-1, limit=100)
    assert names() == [(["z1"], 6)]
    with timeline._engine.connect() as connection:
        assert connection.execute(sa.select(schemas.c.target).where(schemas.c.schema.is_(None))).all() == []


def test_the_versions_of_a_schema_are_those_of_completed_transactions_and_survive_pruning(timeline: Timeline) -> None:
    check_schemas(timeline)


def test_a_column_by_the_name_that_another_one_had_is_a_new_one(timeline: Timeline) -> None:
    """As of RENAME COLUMN a TO b, and ADD COLUMN a, in one transaction."""

    def of(*names: str) -> TableSchema:
        return TableSchema(assign_ids([pa.field(name, pa.int32()) for name in names]))

    done = TransactionState.COMPLETED
    commit_schema(timeline, SchemaChange(of("a"), creates=True), done, 1)
    commit_schema(timeline, SchemaChange(of("b", "A"), of("a"), renames={"b": "a"}), done, 2)
    commit_schema(timeline, SchemaChange(of("a", "b"), of("b", "A"), renames={"a": "b", "b": "a"}), done, 3)
    found = timeline.schema_versions("hive", path("t"))
    assert [[(f.name, f.id) for f in one.schema] for one in found] == [
        [("a", 1)],
        [("b", 1), ("A", 2)],
        [("a", 1), ("b", 2)],
    ]


# -- an earlier version ------------------------------------------------------------------------------------------------

#: The tables as the first version made them.
_FIRST_VERSION = """
CREATE TABLE twophase_schema_version (version INTEGER NOT NULL, PRIMARY KEY (version));
CREATE TABLE twophase_transactions (id VARCHAR(64) NOT NULL, coordinator VARCHAR(24) NOT NULL,
  host VARCHAR(255) NOT NULL, boot_id VARCHAR(128) NOT NULL, pid INTEGER NOT NULL, pid_started VARCHAR(40) NOT NULL,
  "user" VARCHAR(255) NOT NULL, application VARCHAR(255) NOT NULL, state VARCHAR(16) NOT NULL, fencing INTEGER NOT NULL,
  lease_until DOUBLE PRECISION NOT NULL, silent_since DOUBLE PRECISION, created DOUBLE PRECISION NOT NULL,
  decided DOUBLE PRECISION, finished DOUBLE PRECISION, level INTEGER, error TEXT, left_behind TEXT, PRIMARY KEY (id));
CREATE INDEX twophase_transactions_finished ON twophase_transactions (finished, created);
CREATE TABLE twophase_participants (transaction_id VARCHAR(64) NOT NULL, ordinal INTEGER NOT NULL,
  catalog VARCHAR(255) NOT NULL, path TEXT NOT NULL, purpose VARCHAR(40) NOT NULL, document TEXT,
  state VARCHAR(16) NOT NULL, level INTEGER, PRIMARY KEY (transaction_id, ordinal));
CREATE TABLE twophase_reservations (target VARCHAR(64) NOT NULL, catalog VARCHAR(255) NOT NULL, path TEXT NOT NULL,
  transaction_id VARCHAR(64) NOT NULL, PRIMARY KEY (target));
CREATE INDEX ix_twophase_reservations_transaction_id ON twophase_reservations (transaction_id);
INSERT INTO twophase_schema_version VALUES (1);
INSERT INTO twophase_transactions VALUES ('app-1', 'app', 'elsewhere', 'boot/pid:[1]', 42, 'ticks:7', 'ann', 'etl',
  'INFLIGHT', 1, 100.0, NULL, 40.0, NULL, NULL, NULL, NULL, NULL);
INSERT INTO twophase_participants VALUES
  ('app-1', 0, 'hive', '["default", "t"]', 'create_table_as', '{}', 'staged', NULL)
"""


def make_first_version(url: str) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        for statement in _FIRST_VERSION.split(";"):
            connection.exec_driver_sql(statement)
        held = (target_key("hive", path("t")), "hive", path_text(path("t")), "app-1")
        connection.exec_driver_sql("INSERT INTO twophase_reservations VALUES ('{}', '{}', '{}', '{}')".format(*held))
    engine.dispose()


def shape_of(timeline: Timeline) -> Any:
    """Its tables, columns and indexes."""
    inspector = sa.inspect(timeline._engine)
    return {
        name: (
            {(column["name"], column["nullable"]) for column in inspector.get_columns(name)},
            {(index["name"], tuple(index["column_names"])) for index in inspector.get_indexes(name)},
            set(inspector.get_pk_constraint(name)["constrained_columns"]),
        )
        for name in inspector.get_table_names()
    }


def check_upgrade(url: str, fresh: Timeline) -> None:
    make_first_version(url)
    with closing(Timeline(url)) as upgraded:
        assert shape_of(upgraded) == shape_of(fresh)
        (record,) = upgraded.transactions(open_only=True)
        assert record.owner.token == ""
        assert record.is_dead(upgraded.now())
        lease = upgraded.take_over(record, this_process(), 60)
        assert lease is not None
        assert upgraded.holders("hive", path("t")) == {"app-1": WHOLE_TABLE}
        assert reserve(upgraded, begin(upgraded, "app-2"), "t", Reservation(Mode.APPEND)) == "app-1"
        upgraded.record(lease, TransactionState.ROLLED_BACK)


def test_a_timeline_of_the_first_version_becomes_as_a_new_one(timeline: Timeline, tmp_path: Path) -> None:
    check_upgrade(f"sqlite:///{tmp_path / 'old.db'}", timeline)


def open_in(url: str) -> None:
    Timeline(url).close()


def test_many_processes_upgrade_one_timeline_together(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'old.db'}"
    make_first_version(url)
    processes = [child(open_in, url) for _ in range(4)]
    for process in processes:
        process.join(60)
    assert [process.exitcode for process in processes] == [0] * 4
    with closing(Timeline(url, create=False)) as upgraded:
        assert list(upgraded.holders("hive", path("t"))) == ["app-1"]


def test_a_process_of_an_earlier_version_that_is_still_at_work_reserves_alone(file: Path, timeline: Timeline) -> None:
    begin(timeline, "app-1")
    held = (target_key("hive", path("t")), "hive", path_text(path("t")), "app-1")
    with closing(sqlite3.connect(file)) as connection:
        connection.execute(
            "INSERT INTO twophase_reservations (target, catalog, path, transaction_id) VALUES (?, ?, ?, ?)", held
        )
        connection.commit()
    assert timeline.holders("hive", path("t")) == {"app-1": WHOLE_TABLE}
