"""What other programs' statements commit that wait for a table when a RENAME TABLE of MariaDB takes it away."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.jdbc.places import Place, fetch
from tests.jdbc.statements import ROWS, run, stage, transaction_id
from tests.jdbc.test_altering import add
from twophase.catalogs.jdbc import JdbcCatalog, publishing, table_locks
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.errors import CatalogError, WriteConflictError
from twophase.model import ObjectPath, Purpose, WriteContext

pytestmark = pytest.mark.parametrize("place", ["mariadb"], indirect=True)

INSERT = "INSERT INTO {t} (id, name) VALUES (777, 'theirs')"
REPLACE = Purpose.CREATE_OR_REPLACE_TABLE_AS


def staged(catalog: JdbcCatalog, path: ObjectPath, how: str) -> Any:
    if how in ("replace", "overwrite"):
        return stage(catalog, path, REPLACE if how == "replace" else Purpose.INSERT_OVERWRITE)
    context = WriteContext(transaction_id())
    if how == "alter":
        participant = catalog.two_phase_alter_table(path, [add("more")], context=context)
    else:
        participant = catalog.two_phase_drop_table(path, context=context)
    assert participant is not None
    for step in (participant.begin, participant.prepare, participant.persist):
        step()
    return participant


def renamed(catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath) -> list[Any]:
    """The participants of both names, prepared."""
    transaction = transaction_id()
    arriving = catalog.two_phase_rename_table(path, new, context=WriteContext(transaction))
    assert arriving is not None
    members = [arriving, catalog.two_phase_leave_table(path, arriving, context=WriteContext(transaction, 1))]
    for member in members:
        for step in (member.begin, member.prepare, member.persist):
            step()
    return members


def waits(place: Place, statement: str) -> bool:
    sql = "SELECT INFO FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for %' OR STATE = 'User lock'"
    return any(statement in str(found) for (found,) in place.execute(sql))


class Others:
    """Statements of another program, each on a thread and connection of its own."""

    def __init__(self, place: Place) -> None:
        self.place, self.told, self._threads = place, list[BaseException | None](), list[threading.Thread]()

    def begin(self, call: Callable[[], object], shown: str) -> None:
        """Call this, and return when its statement waits."""
        thread = threading.Thread(target=self._tell, args=(call,), daemon=True)
        thread.start()
        self._threads.append(thread)
        while not waits(self.place, shown):
            assert thread.is_alive(), self.told

    def execute(self, sql: str) -> None:
        """Begin a statement."""
        self.begin(lambda: self.place.execute(sql), sql)

    def end(self) -> None:
        """Wait for the end of all."""
        for thread in self._threads:
            thread.join()

    def _tell(self, call: Callable[[], object]) -> None:
        try:
            call()
            self.told.append(None)
        except BaseException as error:
            self.told.append(error)


@pytest.fixture
def others(place: Place) -> Iterator[Others]:
    made = Others(place)
    yield made
    made.end()


@contextlib.contextmanager
def before(owner: Any, name: str, call: Callable[[], None]) -> Iterator[None]:
    """Call something once, before the publish calls this."""
    with pytest.MonkeyPatch.context() as patch:
        own = getattr(owner, name)

        def first(*args: Any, **kwargs: Any) -> Any:
            patch.undo()
            call()
            return own(*args, **kwargs)

        patch.setattr(owner, name, first)
        yield


def two(catalog: JdbcCatalog, path: ObjectPath) -> list[ObjectPath]:
    paths = [path, ObjectPath.of(path.database, f"{path.name}_2")]
    for one in paths:
        run(catalog, one)
    return paths


@pytest.mark.promise("external-writers", "what waits for one of several replaced tables of MariaDB is not lost")
@pytest.mark.parametrize(("how", "most"), [("replace", 32), ("alter", 32), ("drop", 32), ("replace", 1)])
def test_a_row_that_waits_for_one_of_several_tables_is_not_lost_with_it(
    place: Place,
    catalog: JdbcCatalog,
    path: ObjectPath,
    others: Others,
    how: str,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(table_locks, "MOST", most)
    paths = two(catalog, path)
    members = [staged(catalog, one, how) for one in paths]
    sql = INSERT.format(t=place.name(paths[1]))
    with before(MySQL, "rename_all", lambda: others.execute(sql)):
        publishing.publish(catalog.store, members)
    others.end()
    for member in members:
        member.finish()
    if how == "drop":
        assert "doesn't exist" in str(others.told[0])
    else:
        assert others.told == [None] and (777, "theirs") in [row[:2] for row in place.rows(paths[1])]


def test_a_row_that_waits_while_rows_are_compared_is_not_dropped_in_silence(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others
) -> None:
    """It is a conflict, or comes after the table is gone."""
    paths = many(catalog, path, 2)
    members = [staged(catalog, one, "drop") for one in paths]
    outcome = "dropped"
    with before(table_locks.TableLocks, "take_alone", lambda: others.execute(INSERT.format(t=place.name(paths[-1])))):
        try:
            publishing.publish(catalog.store, members)
        except WriteConflictError:
            outcome = "conflict"
    others.end()
    for member in members:
        member.finish() if outcome == "dropped" else member.abort()
    assert (others.told == [None]) == (outcome == "conflict"), others.told


def many(catalog: JdbcCatalog, path: ObjectPath, number: int) -> list[ObjectPath]:
    paths = [ObjectPath.of(path.database, f"daily_{i}") for i in range(number)]
    for one in paths:
        run(catalog, one)
    return paths


@pytest.mark.promise("external-writers", "of any number of replaced tables of MariaDB, what waits for one is not lost")
def test_rows_that_wait_for_any_of_many_tables_are_not_lost_with_it(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_locks, "MOST", 1)  # Of seven tables one is locked alone before, then three and three.
    paths = many(catalog, path, 7)
    members = [staged(catalog, one, "replace") for one in paths]

    def insert() -> None:
        for one in paths:
            others.execute(INSERT.format(t=place.name(one)))

    with before(MySQL, "rename_all", insert):
        publishing.publish(catalog.store, members)
    others.end()
    for member in members:
        member.finish()
    assert others.told == [None] * len(paths)
    assert [one.name for one in paths if (777, "theirs") not in [row[:2] for row in place.rows(one)]] == []


def test_a_row_is_not_lost_when_a_reader_keeps_one_of_many_tables_until_the_rename_waits_for_it(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_locks, "MOST", 1)
    paths = many(catalog, path, 7)
    members = [staged(catalog, one, "replace") for one in paths]
    engine = sa.create_engine(place.url)
    reader = engine.connect()
    read, own = ObjectPath.of(path.database, paths[2].name), table_locks.TableLocks._hand_over

    def hand_over(locks: Any, holder: Any, tables: Any) -> None:
        own(locks, holder, tables)
        if read in tables:
            while not locks.is_awaited(read):  # The lock of its own still waits; the RENAME goes first.
                pass
            reader.close()

    def meanwhile() -> None:
        fetch(reader, f"SELECT * FROM {read.database}.{read.name}")
        for one in (paths[2], paths[5]):
            others.execute(INSERT.format(t=place.name(one)))

    monkeypatch.setattr(table_locks.TableLocks, "_hand_over", hand_over)
    with before(MySQL, "rename_all", meanwhile):
        publishing.publish(catalog.store, members)
    others.end()
    engine.dispose()
    for member in members:
        member.finish()
    assert others.told == [None, None]
    assert all((777, "theirs") in [row[:2] for row in place.rows(one)] for one in (paths[2], paths[5]))


def test_tables_that_are_dropped_together_do_not_wait_for_each_others_triggers(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    first, second = two(catalog, path)
    for one, other in ((first, second), (second, first)):
        copies = f"INSERT INTO {place.name(other)} VALUES (OLD.id, OLD.name)"
        name = f"{one.database}.{one.name}_copies"
        place.execute(f"CREATE TRIGGER {name} BEFORE DELETE ON {place.name(one)} FOR EACH ROW {copies}")
    members = [staged(catalog, one, "drop") for one in (first, second)]
    publishing.publish(catalog.store, members)
    for member in members:
        member.finish()
    assert not place.has(first) and not place.has(second)


@pytest.mark.promise("external-writers", "no row is lost while a RENAME of MariaDB waits for a staging table")
def test_a_row_that_waits_while_another_reads_the_staging_table_is_not_lost(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others
) -> None:
    run(catalog, path)
    member = staged(catalog, path, "alter")
    engine = sa.create_engine(place.url)
    reader = engine.connect()
    fetch(reader, f"SELECT * FROM {path.database}.{member.place.staging.name}")

    def meanwhile() -> None:
        others.execute(INSERT.format(t=place.name(path)))
        ender.start()

    def end_reading() -> None:
        while not waits(place, "RENAME TABLE"):
            pass
        reader.close()

    ender = threading.Thread(target=end_reading, daemon=True)
    with before(MySQL, "rename_all", meanwhile):
        member.commit()
    others.end()
    member.finish()
    engine.dispose()
    assert others.told == [None] and (777, "theirs") in [row[:2] for row in place.rows(path)]


@pytest.mark.promise(
    "external-writers", "an ALTER TABLE or CREATE TRIGGER that waits for a table of MariaDB is not lost"
)
@pytest.mark.parametrize(
    ("how", "sql"),
    [
        ("replace", "ALTER TABLE {t} ADD COLUMN theirs INT"),
        ("alter", "ALTER TABLE {t} ADD INDEX theirs (id)"),
        ("alter", "CREATE TRIGGER {d}.theirs BEFORE INSERT ON {t} FOR EACH ROW SET NEW.id = 1"),
        ("replace", "TRUNCATE TABLE {t}"),
    ],
    ids=lambda value: value.split()[0],
)
def test_a_change_of_the_table_that_waits_while_rows_are_compared_is_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others, how: str, sql: str
) -> None:
    run(catalog, path)
    member = staged(catalog, path, how)
    theirs = sql.format(t=place.name(path), d=path.database)
    with (
        before(table_locks.TableLocks, "take_alone", lambda: others.execute(theirs)),
        pytest.raises(WriteConflictError),
    ):
        member.commit()
    others.end()
    member.abort()
    assert others.told == [None]
    if "TRUNCATE" in sql:
        assert place.rows(path) == []
    else:
        assert "theirs" in place.execute(f"SHOW CREATE TABLE {place.name(path)}")[0][1] + str(
            place.execute(f"SHOW TRIGGERS FROM {path.database}")
        )


@pytest.mark.parametrize("how", ["replace", "alter"])
def test_a_change_of_the_table_that_waits_for_the_publish_itself_comes_after_it(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others, how: str
) -> None:
    run(catalog, path)
    member = staged(catalog, path, how)
    with before(MySQL, "rename_all", lambda: others.execute(f"ALTER TABLE {place.name(path)} ADD COLUMN theirs INT")):
        member.commit()
    others.end()
    member.finish()
    assert others.told == [None] and "theirs" in catalog.load_table(path).schema.names


def test_a_table_that_another_waits_to_empty_at_the_last_look_is_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others
) -> None:
    run(catalog, path)
    member = staged(catalog, path, "replace")
    with (
        before(publishing, "_check_alone", lambda: others.execute(f"TRUNCATE TABLE {place.name(path)}")),
        pytest.raises(WriteConflictError, match=r"waits|published it"),
    ):
        member.commit()
    others.end()
    member.abort()
    assert others.told == [None] and place.rows(path) == []


@pytest.mark.promise(
    "external-writers", "what others swap in for a table of MariaDB while its publish waits for another is not lost"
)
@pytest.mark.parametrize("how", ["rename", "drop"])
def test_a_table_that_takes_the_name_while_the_rename_waits_for_readers_of_another_is_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others, how: str
) -> None:
    path, replaced = two(catalog, path)
    theirs, aside = (ObjectPath.of(path.database, name) for name in ("theirs", "aside"))
    place.execute(f"CREATE TABLE {place.name(theirs)} AS SELECT 777 AS id, 'theirs' AS name")
    first = renamed(catalog, path, aside) if how == "rename" else [staged(catalog, path, how)]
    members = [*first, staged(catalog, replaced, "replace")]
    engine = sa.create_engine(place.url)
    reader = engine.connect()
    fetch(reader, f"SELECT * FROM {place.name(path)}")
    others.begin(lambda: publishing.publish(catalog.store, members), "RENAME TABLE")
    old, new = place.name(replaced), place.name(theirs)
    place.execute(f"RENAME TABLE {old} TO {path.database}.old, {new} TO {old}")
    reader.close()
    others.end()
    engine.dispose()
    for member in members:
        member.abort()
    assert [isinstance(error, WriteConflictError) for error in others.told] == [True]
    assert place.rows(replaced) == [(777, "theirs")] and place.rows(path) == ROWS


@pytest.mark.promise("external-writers", "of two applications that replace a table of MariaDB at once, one is told")
@pytest.mark.parametrize(
    ("how", "then", "external_writes"),
    [("replace", "replace", "ignore"), ("replace", "overwrite", "ignore"), ("alter", "replace", "conflict")],
)
def test_of_two_that_rename_the_same_table_at_once_one_is_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others, how: str, then: str, external_writes: str
) -> None:
    run(catalog, path)
    with contextlib.closing(place.catalog(external_writes=external_writes)) as another:
        first, second = staged(catalog, path, how), staged(another, path, then)
        with before(MySQL, "rename_all", lambda: others.begin(second.commit, "GET_LOCK")):
            first.commit()
        others.end()
        first.finish()
        assert [isinstance(error, WriteConflictError) for error in others.told] == [True]
        second.abort()
    assert len(place.rows(path)) == len(ROWS)


def test_a_row_that_waits_for_a_table_of_an_engine_without_transactions_is_not_lost(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others
) -> None:
    place.execute(f"CREATE TABLE {place.name(path)} (id bigint, name longtext) ENGINE=MyISAM")
    member = staged(catalog, path, "replace")
    with before(table_locks.TableLocks, "take_alone", lambda: others.execute(INSERT.format(t=place.name(path)))):
        try:  # In MariaDB the row comes before the publish, in MySQL after it.
            member.commit()
        except WriteConflictError:
            member.abort()
        else:
            member.finish()
    others.end()
    assert others.told == [None] and (777, "theirs") in place.rows(path)


@contextlib.contextmanager
def few_connections(place: Place, path: ObjectPath, number: int) -> Iterator[JdbcCatalog]:
    """A catalog of a role that may have so many connections at once."""
    role = f"few_{path.database}"
    place.execute(f"CREATE USER {role}@'%' IDENTIFIED BY 'few' WITH MAX_USER_CONNECTIONS {number}")
    place.execute(f"GRANT ALL ON {path.database}.* TO {role}@'%'")
    url = sa.engine.make_url(place.url).set(username=role, password="few", database=path.database)
    theirs = Place(place.kind, url.render_as_string(hide_password=False))
    with contextlib.closing(theirs.catalog()) as few:
        yield few
    place.execute(f"DROP USER {role}@'%'")


@pytest.mark.parametrize("allowed", [5, 4])
def test_a_role_with_fewer_connections_than_tables_replaces_them_together_or_not_at_all(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, allowed: int
) -> None:
    paths = many(catalog, path, 4)
    with few_connections(place, path, allowed) as few:
        members = [stage(few, one, REPLACE, [(9, "nine")]) for one in paths]
        if allowed == 5:
            publishing.publish(few.store, members)
        else:
            with pytest.raises(CatalogError, match=r"4 tables .* takes 5 connections, and the server grants 4"):
                publishing.publish(few.store, members)
        for member in members:
            member.finish() if allowed == 5 else member.abort()
    assert [place.rows(one) for one in paths] == [[(9, "nine")] if allowed == 5 else ROWS] * len(paths)


def test_a_publish_that_cannot_see_who_waits_keeps_nobody_from_the_table(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(catalog, path)
    member = staged(catalog, path, "replace")
    began = time.monotonic()
    with monkeypatch.context() as patch, pytest.raises(CatalogError):
        patch.setattr(table_locks, "_WAITING", "SELECT a, b FROM nowhere")
        member.commit()
    assert time.monotonic() - began < int(place.options()["lock_timeout"])
    member.abort()
    assert place.rows(path) == ROWS


def test_the_server_gives_up_the_locks_of_a_machine_that_is_lost(
    place: Place, path: ObjectPath, catalog: JdbcCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(catalog, path)
    monkeypatch.setattr(table_locks, "IDLE", 0)
    with contextlib.closing(place.catalog(lock_timeout="1")) as lost:
        database, table = lost.store.database, path
        assert isinstance(database, MySQL)
        with table_locks.held(database, lost.store.engine(path.database), {table: table_locks.WRITE}, "here"):
            place.execute(INSERT.format(t=place.name(path)))
    assert (777, "theirs") in place.rows(path)


@pytest.mark.promise("external-writers", "a publish whose locks of a table of MariaDB were lost meanwhile is refused")
@pytest.mark.parametrize(("how", "number"), [("replace", 0), ("replace", 2), ("drop", 0)])
def test_a_publish_whose_locks_the_server_has_given_up_is_refused(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, how: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does so for a connection that has done nothing for long, as while the rows of large tables are compared."""
    monkeypatch.setattr(table_locks, "MOST", 1)
    paths = many(catalog, path, 4)
    members = [staged(catalog, one, how) for one in paths]
    take = table_locks.TableLocks.take_alone

    def take_alone(locks: Any) -> None:
        connection = locks.connection_of(members[number].path)
        place.execute(f"KILL {connection.connection.driver_connection.thread_id()}")
        place.execute(INSERT.format(t=place.name(paths[number])))
        take(locks)

    monkeypatch.setattr(table_locks.TableLocks, "take_alone", take_alone)
    with pytest.raises(CatalogError):
        publishing.publish(catalog.store, members)
    for member in members:
        member.abort()
    assert (777, "theirs") in [row[:2] for row in place.rows(paths[number])]


def test_a_row_that_waits_for_one_of_many_tables_without_transactions_is_not_lost(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, others: Others, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_locks, "MOST", 1)
    paths = [ObjectPath.of(path.database, f"daily_{i}") for i in range(7)]
    for one in paths:
        place.execute(f"CREATE TABLE {place.name(one)} (id bigint, name longtext) ENGINE=MyISAM")
    members = [staged(catalog, one, "replace") for one in paths]
    with before(MySQL, "rename_all", lambda: [others.execute(INSERT.format(t=place.name(one))) for one in paths]):
        try:
            publishing.publish(catalog.store, members)
        except WriteConflictError:
            for member in members:
                member.abort()
        else:
            for member in members:
                member.finish()
    others.end()
    assert others.told == [None] * len(paths)
    assert [one.name for one in paths if (777, "theirs") not in [row[:2] for row in place.rows(one)]] == []
