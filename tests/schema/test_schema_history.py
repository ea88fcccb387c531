"""The history: one winner of two writers, nothing of a failed commit to be seen, ids that never come back."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Thread
from typing import cast

import pyarrow as pa
import pytest
import sqlalchemy

from twophase import failpoints
from twophase.schema import (
    AddField,
    ChangeType,
    DirectoryHistoryStore,
    DropField,
    Fate,
    HistoryStore,
    Record,
    Schema,
    SchemaHistory,
    SqlHistoryStore,
    assign_ids,
)
from twophase.schema.errors import NewerDocumentError, SchemaConflictError, SchemaDocumentError, SchemaHistoryError

BASE = assign_ids(pa.schema([("a", pa.int32()), ("b", pa.string())]))
OpenStore = Callable[[], HistoryStore]


@pytest.fixture(params=["directory", "sql"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    if request.param == "directory":
        yield lambda: DirectoryHistoryStore(tmp_path / "t")
        return
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/history.db")
    yield lambda: SqlHistoryStore(engine, "sales.daily")
    engine.dispose()


class Fates(dict[str, Fate]):
    """What became of each transaction; committed where nothing else is said."""

    def __call__(self, transaction_id: str) -> Fate:
        return self.get(transaction_id, Fate.COMMITTED)


def add(history: SchemaHistory, current: Schema, name: str, transaction: str, instant: int) -> Schema:
    return history.evolve(current, AddField(name, pa.int32()), transaction_id=transaction, instant=instant)


def test_a_table_without_history_gets_one_at_its_first_change(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    assert history.latest() is None
    changed = add(history, BASE, "c", "t1", 10)
    assert [record.number for record in history.versions()] == [0, 1]
    assert history.version(0) == BASE
    assert history.latest() == changed


def test_a_change_without_effect_makes_no_version_but_keeps_the_first_one(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    assert history.evolve(BASE, [], transaction_id="t1", instant=1) is BASE
    assert [record.number for record in history.versions()] == [0]


def test_an_instant_without_a_version_gives_the_nearest_earlier(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    first = add(history, BASE, "c", "t1", 10)
    second = add(history, first, "d", "t2", 20)
    assert [history.at(i) for i in (0, 9, 10, 19, 20, 99)] == [BASE, BASE, first, first, second, second]
    with pytest.raises(SchemaHistoryError, match="begins after"):
        history.at(-1)
    with pytest.raises(SchemaHistoryError, match="it has 0, 1, 2"):
        history.version(7)
    with pytest.raises(SchemaHistoryError, match="before that of the latest"):
        add(history, second, "e", "t3", 5)


def test_a_file_is_read_by_the_version_that_it_names(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    text = history.evolve(BASE, ChangeType("a", pa.string()), transaction_id="t1", instant=1, promotion="explicit")
    history.evolve(text, ChangeType("a", pa.date32()), transaction_id="t2", instant=2, promotion="explicit")
    data = pa.table([pa.array([2021], pa.int32()), pa.array(["x"])], schema=BASE.arrow)
    rows = history.read_plan(0).project(data)
    assert str(rows.column("a").to_pylist()) == "[datetime.date(2021, 1, 1)]"


def test_a_writer_that_saw_an_older_schema_is_refused(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    add(history, BASE, "c", "t1", 1)
    with pytest.raises(SchemaConflictError, match="version 1, not 0"):
        add(history, BASE, "d", "t2", 2)


def test_of_two_writers_at_once_one_wins(open_store: OpenStore) -> None:
    add(SchemaHistory(open_store()), BASE, "c", "t0", 1)
    current = SchemaHistory(open_store()).latest()
    assert current is not None
    barrier = Barrier(4)
    outcomes: list[str] = []

    def write(name: str) -> None:
        fates = Fates()
        history = SchemaHistory(open_store(), lambda t: Fate.COMMITTED if t == "t0" else fates.get(t, Fate.PENDING))
        barrier.wait()
        try:
            add(history, current, name, f"t-{name}", 2)
            outcomes.append("won")
        except SchemaConflictError:
            outcomes.append("lost")

    threads = [Thread(target=write, args=(name,)) for name in "wxyz"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["lost", "lost", "lost", "won"]
    assert [record.number for record in open_store().read()] == [0, 1, 2]


def test_the_residue_of_a_failed_commit_is_invisible_and_removed(open_store: OpenStore) -> None:
    fates = Fates(t2=Fate.PENDING)
    history = SchemaHistory(open_store(), fates)
    first = add(history, BASE, "c", "t1", 1)
    failed = add(history, first, "d", "t2", 2)
    assert history.latest() == first
    with pytest.raises(SchemaConflictError, match="t2 is recording"):
        add(history, first, "e", "t3", 3)
    fates["t2"] = Fate.FAILED
    assert history.latest() == first
    assert [record.number for record in history.residue()] == [2]
    assert history.clean() == 1
    assert history.residue() == [] and history.clean() == 0
    again = add(history, first, "d", "t4", 4)
    assert again.find("d").id > failed.find("d").id
    assert again.schema_id > failed.schema_id
    history.clean()
    assert [record.number for record in open_store().read()] == [0, 1, 3]


def test_ids_of_a_failed_commit_do_not_come_back_even_where_it_was_never_cleaned(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store(), Fates(t1=Fate.FAILED))
    failed = add(history, BASE, "c", "t1", 1)
    again = add(history, BASE, "c", "t2", 2)
    assert again.find("c").id > failed.find("c").id
    with pytest.raises(SchemaHistoryError, match="was used before"):
        SchemaHistory(open_store(), Fates(t1=Fate.FAILED)).record(
            Schema((*again.fields, failed.find("c").__class__(3, "e", leaf=pa.int32()))),
            transaction_id="t3",
            instant=3,
            based_on=again,
        )


def test_a_slow_cleaner_does_not_remove_a_newer_version(open_store: OpenStore) -> None:
    fates = Fates(t1=Fate.FAILED)
    history = SchemaHistory(open_store(), fates)
    add(history, BASE, "c", "t1", 1)
    (seen,) = history.residue()
    history.clean()
    again = add(history, BASE, "c", "t2", 2)
    # The slow cleaner acts on what it saw long ago.
    store = open_store()
    store.replace(Record(seen.number, seen.transaction_id, seen.instant, None, seen.highest_field_id))
    store.delete(seen)
    assert history.latest() == again


def test_a_merged_schema_is_recorded_under_the_next_number(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    made = history.record(BASE, transaction_id="t1", instant=1, based_on=None)
    assert made.schema_id == 0
    with pytest.raises(SchemaConflictError):
        history.record(BASE, transaction_id="t2", instant=2, based_on=None)


def test_a_dropped_columns_id_stays_taken_across_versions(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    first = add(history, BASE, "c", "t1", 1)
    second = history.evolve(first, DropField("c"), transaction_id="t2", instant=2)
    third = add(SchemaHistory(open_store()), second, "c", "t3", 3)
    assert third.find("c").id == first.find("c").id + 1


@pytest.mark.parametrize("name", ["schema.history.write", "schema.history.link"])
@pytest.mark.parametrize("action", ["exit", "exit_after"])
def test_a_writer_killed_at_any_step_leaves_a_readable_history(tmp_path: Path, name: str, action: str) -> None:
    store = DirectoryHistoryStore(tmp_path)
    add(SchemaHistory(store), BASE, "c", "t1", 1)
    code = (
        "import pyarrow as pa; from twophase.schema import *\n"
        f"history = SchemaHistory(DirectoryHistoryStore({str(tmp_path)!r}))\n"
        "history.evolve(history.latest(), AddField('d', pa.int32()), transaction_id='t2', instant=2)\n"
    )
    environment = {**os.environ, "TWOPHASE_FAILPOINTS": f"{name}={action}"}
    killed = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert killed.returncode == failpoints.EXIT_CODE
    landed = (name, action) == ("schema.history.link", "exit_after")
    assert [record.number for record in store.read()] == ([0, 1, 2] if landed else [0, 1])
    hidden = len(list(store.directory.glob(".schema-*")))
    assert store.remove_stale_files(older_than=0) == 0
    assert store.remove_stale_files(older_than=float("inf")) == hidden
    history = SchemaHistory(store, Fates(t2=Fate.FAILED))
    latest = history.latest()
    assert latest is not None
    assert add(history, latest, "e", "t3", 3).schema_id == (3 if landed else 2)


def test_each_version_is_a_file_that_people_can_read(tmp_path: Path) -> None:
    add(SchemaHistory(DirectoryHistoryStore(tmp_path)), BASE, "c", "t1", 1)
    assert sorted(os.listdir(tmp_path / "schema")) == ["schema-0", "schema-1"]
    assert '"name":"c"' in (tmp_path / "schema" / "schema-1").read_text()


def test_a_version_in_the_callers_sql_transaction_goes_with_it(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/history.db")
    with engine.connect() as connection:
        with connection.begin():
            history = SchemaHistory(SqlHistoryStore(connection, "t"))
            add(history, BASE, "c", "t1", 1)
        transaction = connection.begin()
        latest = history.latest()
        assert latest is not None
        add(history, latest, "d", "t2", 2)
        transaction.rollback()
        assert len(history.versions()) == 2
    engine.dispose()


def test_tables_of_one_database_do_not_meet(tmp_path: Path) -> None:
    engine = sqlalchemy.create_engine(f"sqlite:///{tmp_path}/history.db")
    add(SchemaHistory(SqlHistoryStore(engine, "one")), BASE, "c", "t1", 1)
    assert SchemaHistory(SqlHistoryStore(engine, "two")).latest() is None
    engine.dispose()


def test_an_entry_of_a_newer_version_or_no_entry_is_named() -> None:
    with pytest.raises(NewerDocumentError, match="Upgrade"):
        Record.from_json('{"format": 99}')
    for text in ("", "[]", "{}", '{"format": 1, "schema": {}}'):
        with pytest.raises(SchemaDocumentError):
            Record.from_json(text)


class OvertakenStore:
    """A store in which another writer commits a version right after our first reading."""

    def __init__(self, store: HistoryStore, overtake: Callable[[], object]) -> None:
        self._store = store
        self._overtake: Callable[[], object] | None = overtake

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def read(self) -> list[Record]:
        found = self._store.read()
        overtake, self._overtake = self._overtake, None
        if overtake is not None:
            overtake()
        return found


def test_a_version_that_commits_between_two_steps_of_ours_is_not_lost(open_store: OpenStore) -> None:
    store = open_store()
    history = SchemaHistory(store)
    first = history.record(BASE, transaction_id="t0", instant=1, based_on=None)
    theirs = [AddField("theirs", pa.string())]
    overtake = OvertakenStore(store, lambda: history.evolve(first, theirs, transaction_id="t1", instant=2))
    overtaken = SchemaHistory(cast("HistoryStore", overtake))
    with pytest.raises(SchemaConflictError):
        overtaken.evolve(first, [AddField("ours", pa.int32())], transaction_id="t2", instant=2)
    latest = history.latest()
    assert latest is not None
    assert "theirs" in latest.arrow.names
    assert "ours" not in latest.arrow.names
