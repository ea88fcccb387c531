"""The history: one winner of two writers, nothing of a failed commit to be seen, ids that never come back."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Barrier, Event, Thread
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
    RenameField,
    Schema,
    SchemaHistory,
    SqlHistoryStore,
    apply_changes,
    assign_ids,
    promotion_policy,
    to_arrow,
)
from twophase.schema.errors import (
    CastError,
    NewerDocumentError,
    SchemaConflictError,
    SchemaDocumentError,
    SchemaHistoryError,
    UnknownFieldError,
)
from twophase.schema.history_sql import HISTORY_TABLE

BASE = assign_ids(pa.schema([("a", pa.int32()), ("b", pa.string())]))
OpenStore = Callable[[], HistoryStore]


DATABASES = ["sqlite", "postgresql", "mariadb"]


@contextlib.contextmanager
def connected(request: pytest.FixtureRequest, database: str, directory: Path) -> Iterator[sqlalchemy.Engine]:
    """An engine on a database without a history."""
    url = f"sqlite:///{directory}/history.db" if database == "sqlite" else request.getfixturevalue(database).url
    engine = sqlalchemy.create_engine(url)
    HISTORY_TABLE.drop(engine, checkfirst=True)
    try:
        yield engine
    finally:
        engine.dispose()


@pytest.fixture(params=["directory", *DATABASES])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OpenStore]:
    if request.param == "directory":
        yield lambda: DirectoryHistoryStore(tmp_path / "t")
        return
    with connected(request, request.param, tmp_path) as engine:
        yield lambda: SqlHistoryStore(engine, "sales.daily")


@pytest.fixture(params=DATABASES)
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sqlalchemy.Engine]:
    with connected(request, request.param, tmp_path) as made:
        yield made


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


def test_a_change_without_effect_and_a_refused_one_record_nothing(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store())
    assert history.evolve(BASE, [], transaction_id="t1", instant=1) is BASE
    with pytest.raises(UnknownFieldError):
        history.evolve(BASE, DropField("zz"), transaction_id="t1", instant=1)
    assert open_store().read() == []
    first = add(history, BASE, "c", "t1", 1)
    assert history.evolve(first, [], transaction_id="t2", instant=2) is first
    assert history.record(first, transaction_id="t3", instant=3, based_on=first) == first
    assert [record.number for record in history.versions()] == [0, 1]


def test_a_transaction_evolves_its_table_twice_and_others_see_it_once_decided(open_store: OpenStore) -> None:
    fates = Fates(t1=Fate.PENDING)
    history = SchemaHistory(open_store(), fates)
    first = add(history, BASE, "c", "t1", 1)
    second = history.evolve(first, RenameField("c", "d"), transaction_id="t1", instant=1)
    third = history.record(
        apply_changes(second, AddField("e", pa.int32())), transaction_id="t1", instant=1, based_on=second
    )
    assert history.latest("t1") == third and history.latest() == BASE
    assert history.read_plan(0, transaction_id="t1").query == third
    with pytest.raises(SchemaConflictError, match="t1 is recording"):
        add(history, BASE, "f", "t2", 2)
    fates["t1"] = Fate.FAILED
    assert history.latest() == BASE and history.latest("t1") == BASE
    assert history.clean() == 3
    fates["t1"] = Fate.COMMITTED
    assert [record.number for record in history.versions()] == [0]


def test_a_call_repeated_after_a_lost_reply_gives_the_version_that_it_recorded(open_store: OpenStore) -> None:
    fates = Fates(t1=Fate.PENDING, t2=Fate.PENDING)
    history = SchemaHistory(open_store(), fates)
    created = history.record(BASE, transaction_id="t1", instant=1, based_on=None)
    assert history.record(BASE, transaction_id="t1", instant=1, based_on=None) == created
    evolved = [add(history, created, "c", "t1", 1) for _ in range(2)]
    assert evolved[0] == evolved[1]
    merged = apply_changes(evolved[0], AddField("d", pa.int32()))
    recorded = [history.record(merged, transaction_id="t1", instant=1, based_on=evolved[0]) for _ in range(2)]
    assert recorded[0] == recorded[1]
    assert [record.number for record in open_store().read()] == [0, 1, 2]
    # Another change from that schema is none that was repeated; nor is the same one by another transaction.
    with pytest.raises(SchemaConflictError, match="version 2, not 1"):
        add(history, evolved[0], "z", "t1", 1)
    fates["t1"] = Fate.COMMITTED
    with pytest.raises(SchemaConflictError, match="version 2, not 1"):
        history.record(merged, transaction_id="t2", instant=1, based_on=evolved[0])


def test_what_a_value_becomes_that_does_not_fit_is_kept_with_the_version(open_store: OpenStore) -> None:
    text = assign_ids(pa.schema([("a", pa.string()), ("b", pa.string())]))
    history = SchemaHistory(open_store())
    lenient, strict = (promotion_policy("explicit", on_cast_failure=mode) for mode in ("null", "error"))
    first = history.evolve(text, ChangeType("a", pa.int32()), transaction_id="t1", instant=1, promotion=lenient)
    history.evolve(first, ChangeType("b", pa.int32()), transaction_id="t2", instant=2, promotion=strict)
    history = SchemaHistory(open_store())
    assert [record.on_cast_failure for record in history.versions()] == ["error", "null", "error"]
    rows = pa.table([pa.array(["1", "x"]), pa.array(["3", "4"])], schema=to_arrow(text))
    assert history.read_plan(0).project(rows).to_pylist() == [{"a": 1, "b": 3}, {"a": None, "b": 4}]
    with pytest.raises(CastError, match="b are no int"):
        history.read_plan(0).project(pa.table([pa.array(["1"]), pa.array(["x"])], schema=to_arrow(text)))
    with pytest.raises(CastError, match="a are no int"):
        history.read_plan(0, on_cast_failure="error").project(rows)


def test_a_failed_creation_does_not_keep_the_table_from_its_first_version(open_store: OpenStore) -> None:
    history = SchemaHistory(open_store(), Fates(t1=Fate.FAILED))
    failed = history.record(
        apply_changes(BASE, AddField("gone", pa.int32()), schema_id=0), transaction_id="t1", instant=1, based_on=None
    )
    changed = add(history, BASE, "c", "t2", 2)
    assert [record.number for record in history.versions()] == [0, 1]
    assert history.version(0) == BASE
    assert changed.find("c").id > failed.find("gone").id


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
    data = pa.table([pa.array([2021], pa.int32()), pa.array(["x"])], schema=to_arrow(BASE))
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


def test_the_leftover_of_a_failed_commit_is_invisible_and_removed(open_store: OpenStore) -> None:
    fates = Fates(t2=Fate.PENDING)
    history = SchemaHistory(open_store(), fates)
    first = add(history, BASE, "c", "t1", 1)
    failed = add(history, first, "d", "t2", 2)
    assert history.latest() == first
    with pytest.raises(SchemaConflictError, match="t2 is recording"):
        add(history, first, "e", "t3", 3)
    fates["t2"] = Fate.FAILED
    assert history.latest() == first
    assert [record.number for record in history.leftovers()] == [2]
    assert history.clean() == 1
    assert history.leftovers() == [] and history.clean() == 0
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
    (seen,) = history.leftovers()
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
    assert len(hidden(store)) == ((name, action) != ("schema.history.write", "exit"))
    SchemaHistory(store, Fates(t2=Fate.PENDING)).clean()
    assert len(hidden(store)) == ((name, action) != ("schema.history.write", "exit"))
    history = SchemaHistory(store, Fates(t2=Fate.FAILED))
    history.clean()
    assert hidden(store) == []
    latest = history.latest()
    assert latest is not None
    assert add(history, latest, "e", "t3", 3).schema_id == (3 if landed else 2)


def hidden(store: DirectoryHistoryStore) -> list[Path]:
    """Files of writers that have not linked them yet."""
    return list(store.directory.glob(".schema-*"))


def test_a_cleaner_leaves_a_young_file_of_a_writer_whose_fate_nobody_knows(tmp_path: Path) -> None:
    store = DirectoryHistoryStore(tmp_path)
    history = SchemaHistory(store)
    add(history, BASE, "c", "t1", 1)
    young, old = store.directory / ".schema-2.t2.aa", store.directory / ".schema-2..bb"
    for path in (young, old):
        path.touch()
    os.utime(old, (0, 0))
    history.clean()
    assert hidden(store) == [young]


def test_a_cleaner_that_is_overtaken_by_another_one_goes_on(tmp_path: Path) -> None:
    store = DirectoryHistoryStore(tmp_path)
    add(SchemaHistory(store), BASE, "c", "t1", 1)
    paths = [store.directory / f".schema-{i}.t{i}.aa" for i in (2, 3)]
    for path in paths:
        path.touch()

    def failed(_transaction_id: str) -> bool:
        # The other cleaner has removed them all between our look at the directory and now.
        for path in paths:
            path.unlink(missing_ok=True)
        return True

    store.remove_unfinished(failed, 0.0)
    assert hidden(store) == []


def test_a_new_directory_is_durable_before_the_first_version_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def see(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))

    monkeypatch.setattr(os, "fsync", see)
    add(SchemaHistory(DirectoryHistoryStore(tmp_path / "db" / "t")), BASE, "c", "t1", 1)
    assert synced[:3] == [str(tmp_path), str(tmp_path / "db"), str(tmp_path / "db" / "t")]


def test_each_version_is_a_file_that_people_can_read(tmp_path: Path) -> None:
    add(SchemaHistory(DirectoryHistoryStore(tmp_path)), BASE, "c", "t1", 1)
    assert sorted(os.listdir(tmp_path / "schema")) == ["schema-0", "schema-1"]
    assert '"name":"c"' in (tmp_path / "schema" / "schema-1").read_text()


def test_a_version_in_the_callers_sql_transaction_goes_with_it(engine: sqlalchemy.Engine) -> None:
    SqlHistoryStore.create(engine)
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


def test_nothing_is_created_inside_the_callers_transaction(engine: sqlalchemy.Engine) -> None:
    with engine.connect() as connection, connection.begin():
        history = SchemaHistory(SqlHistoryStore(connection, "t"))
        with pytest.raises(SchemaHistoryError, match=r"create\(engine\)"):
            history.latest()
    assert not sqlalchemy.inspect(engine).has_table(HISTORY_TABLE.name)


def test_many_make_the_table_at_once(engine: sqlalchemy.Engine) -> None:
    barrier = Barrier(8)
    failures: list[BaseException] = []

    def create() -> None:
        barrier.wait()
        try:
            SqlHistoryStore.create(engine)
        except BaseException as error:
            failures.append(error)

    threads = [Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert SqlHistoryStore(engine, "t").read() == []


def test_of_two_callers_transactions_the_one_that_commits_later_has_lost(engine: sqlalchemy.Engine) -> None:
    first = SchemaHistory(SqlHistoryStore(engine, "t")).record(BASE, transaction_id="t0", instant=1, based_on=None)
    started = Event()
    outcome: list[BaseException] = []

    def second() -> None:
        try:
            with engine.begin() as connection:
                history = SchemaHistory(SqlHistoryStore(connection, "t"))
                history.latest()
                started.set()
                add(history, first, "theirs", "t2", 2)
        except (SchemaConflictError, sqlalchemy.exc.OperationalError) as error:
            outcome.append(error)

    other = Thread(target=second)
    with engine.begin() as connection:
        add(SchemaHistory(SqlHistoryStore(connection, "t")), first, "ours", "t1", 2)
        other.start()
        started.wait(10)
    other.join()
    assert len(outcome) == 1
    latest = SchemaHistory(SqlHistoryStore(engine, "t")).latest()
    assert latest is not None and to_arrow(latest).names == ["a", "b", "ours"]


def test_a_schema_of_any_size_and_a_name_of_any_length_fit(engine: sqlalchemy.Engine) -> None:
    wide = assign_ids(pa.schema([pa.field(f"column_{i}_\u00e4\U0001f600", pa.int32()) for i in range(3000)]))
    name = "catalog." + "n" * 2000
    SchemaHistory(SqlHistoryStore(engine, name)).record(wide, transaction_id="t" * 400, instant=1, based_on=None)
    assert SchemaHistory(SqlHistoryStore(engine, name)).latest() == wide


def test_tables_of_one_database_do_not_meet_even_where_their_names_differ_in_case_only(
    engine: sqlalchemy.Engine,
) -> None:
    add(SchemaHistory(SqlHistoryStore(engine, "one")), BASE, "c", "t1", 1)
    for other in ("two", "ONE", "one "):
        assert SchemaHistory(SqlHistoryStore(engine, other)).latest() is None


def test_an_entry_of_a_newer_version_or_no_entry_is_named() -> None:
    with pytest.raises(NewerDocumentError, match="Upgrade"):
        Record.from_json('{"format": 99}')
    mode = '"number": 0, "transaction_id": "", "instant": 0, "highest_field_id": 0, "on_cast_failure": "hope"'
    for text in ("", "[]", "{}", '{"format": 1, "schema": {}}', f'{{"format": 1, "schema": null, {mode}}}'):
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
    assert "theirs" in to_arrow(latest).names
    assert "ours" not in to_arrow(latest).names
