"""RENAME as a statement of a transaction of MariaDB: made in the one RENAME TABLE that publishes it."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place
from tests.jdbc.statements import ROWS, run, stage, transaction_id
from tests.jdbc.test_waiting_statements import INSERT, REPLACE, before, renamed
from twophase.catalogs.jdbc import JdbcCatalog, publishing, table_locks
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.errors import AtomicityNotSupportedError, CatalogError, TableAlreadyExistsError, WriteConflictError
from twophase.model import ObjectPath, Outcome, Purpose, WriteContext

pytestmark = pytest.mark.parametrize("place", ["mariadb"], indirect=True)


@pytest.fixture
def new(path: ObjectPath) -> ObjectPath:
    return ObjectPath.of(path.database, "weekly")


def publish(catalog: JdbcCatalog, members: list[Any]) -> None:
    publishing.publish(catalog.store, members)
    for member in members:
        member.finish()


def undo(members: list[Any]) -> None:
    for member in members:
        member.abort()


@pytest.mark.promise("ddl-in-blocks", "on MariaDB a rename is one step with what else a block creates and replaces")
def test_a_rename_is_published_with_what_else_the_block_creates_replaces_and_drops(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath
) -> None:
    made, replaced, dropped = (ObjectPath.of(path.database, name) for name in ("made", "replaced", "dropped"))
    for one in (path, replaced, dropped):
        run(catalog, one)
    drop = catalog.two_phase_drop_table(dropped, context=WriteContext(transaction_id()))
    assert drop is not None
    for step in (drop.begin, drop.prepare, drop.persist):
        step()
    others = [stage(catalog, made, Purpose.CREATE_TABLE_AS), stage(catalog, replaced, REPLACE, [(9, "nine")])]
    members = [*others, *renamed(catalog, path, new), drop]
    assert len({catalog.group_key(member) for member in members}) == 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MySQL, "rename_all", lambda *_: (_ for _ in ()).throw(OSError("the server is gone")))
        with pytest.raises(CatalogError, match="the server is gone"):
            publishing.publish(catalog.store, members)
    assert {member.outcome() for member in members} == {Outcome.NOT_PUBLISHED}
    assert place.rows(path) == ROWS and not place.has(new) and not place.has(made)
    publishing.publish(catalog.store, members)
    assert {member.outcome() for member in members} == {Outcome.PUBLISHED}
    assert place.rows(new) == place.rows(made) == ROWS and place.rows(replaced) == [(9, "nine")]
    assert not place.has(path) and not place.has(dropped)
    publish(catalog, members)  # A recovery repeats it.
    assert place.rows(new) == ROWS and not place.has(path)


@pytest.mark.promise("external-writers", "rows that others write to a table while MariaDB renames it go along")
@pytest.mark.parametrize("beside", [(), ("replaced",)], ids=["alone", "with a replace"])
def test_rows_that_others_write_before_the_rename_go_along(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath, beside: tuple[str, ...]
) -> None:
    others = [ObjectPath.of(path.database, name) for name in beside]
    for one in (path, *others):
        run(catalog, one)
    members = [*renamed(catalog, path, new), *(stage(catalog, one, REPLACE) for one in others)]
    with before(MySQL, "rename_all", lambda: place.execute(INSERT.format(t=place.name(path)))):
        publish(catalog, members)
    assert sorted(place.rows(new)) == sorted([*ROWS, (777, "theirs")]) and not place.has(path)


def test_a_table_that_another_application_has_published_to_or_replaced_is_not_renamed(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath
) -> None:
    run(catalog, path)
    for purpose in (Purpose.INSERT_INTO, REPLACE):
        members = renamed(catalog, path, new)
        with contextlib.closing(place.catalog()) as another:
            run(another, path, purpose, [(7, "seven")])
        with pytest.raises(WriteConflictError):
            publishing.publish(catalog.store, members)
        undo(members)
    assert place.rows(path) == [(7, "seven")] and not place.has(new)


def test_what_is_published_to_it_while_rows_of_other_tables_are_compared_is_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath
) -> None:
    other = ObjectPath.of(path.database, "replaced")
    for one in (path, other):
        run(catalog, one)
    members = [*renamed(catalog, path, new), stage(catalog, other, REPLACE)]
    with (
        contextlib.closing(place.catalog()) as another,
        before(publishing, "_check_alone", lambda: run(another, path, Purpose.INSERT_INTO, [(7, "seven")])),
        pytest.raises(WriteConflictError),
    ):
        publishing.publish(catalog.store, members)
    undo(members)
    assert sorted(place.rows(path)) == [*ROWS, (7, "seven")] and not place.has(new)


def test_a_table_that_is_dropped_at_the_last_moment_or_a_name_that_is_taken_is_an_error_and_changes_nothing(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath
) -> None:
    other = ObjectPath.of(path.database, "made")
    run(catalog, path)
    for sql in (f"CREATE TABLE {place.name(new)} (theirs INT)", f"DROP TABLE {place.name(path)}"):
        members = [*renamed(catalog, path, new), stage(catalog, other, Purpose.CREATE_TABLE_AS)]
        with before(MySQL, "rename_all", lambda sql=sql: place.execute(sql)), pytest.raises(CatalogError):
            publishing.publish(catalog.store, members)
        undo(members)
        assert not place.has(other)
        if place.has(path):
            with pytest.raises(TableAlreadyExistsError):
                catalog.two_phase_rename_table(path, new, context=WriteContext(transaction_id()))
            place.execute(f"DROP TABLE {place.name(new)}")
    assert not place.has(path) and not place.has(new)


@pytest.mark.promise("ddl-in-blocks", "on MariaDB a renamed table keeps its triggers, keys and those that refer to it")
def test_a_renamed_table_keeps_its_triggers_and_foreign_keys(
    place: Place, catalog: JdbcCatalog, database: str, new: ObjectPath
) -> None:
    path, parent, child = (ObjectPath.of(database, name) for name in ("daily", "parent", "child"))
    name = place.name
    place.execute(f"CREATE TABLE {name(parent)} (id INT PRIMARY KEY)")
    place.execute(
        f"CREATE TABLE {name(path)} (id INT PRIMARY KEY CHECK (id > 0), more INT, "
        f"FOREIGN KEY (id) REFERENCES {name(parent)} (id))"
    )
    place.execute(f"CREATE TABLE {name(child)} (id INT, FOREIGN KEY (id) REFERENCES {name(path)} (id))")
    place.execute(f"CREATE TRIGGER {database}.more BEFORE INSERT ON {name(path)} FOR EACH ROW SET NEW.more = 5")
    place.execute(f"INSERT INTO {name(parent)} VALUES (1), (2)")
    place.execute(f"INSERT INTO {name(path)} (id) VALUES (1)")
    publish(catalog, renamed(catalog, path, new))
    place.execute(f"INSERT INTO {name(new)} (id) VALUES (2)")
    place.execute(f"INSERT INTO {name(child)} VALUES (2)")
    for sql in (f"INSERT INTO {name(child)} VALUES (3)", f"INSERT INTO {name(new)} (id) VALUES (3)"):
        with pytest.raises(Exception, match="foreign key constraint fails"):
            place.execute(sql)
    assert place.rows(new) == [(1, 5), (2, 5)] and not place.has(path)
    # So that the new name is free of all: another table takes the former one, and both live.
    run(catalog, path)
    assert place.rows(path) == ROWS


def test_a_name_of_the_greatest_length_is_taken_or_refused_by_the_server(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    path, longest = ObjectPath.of(database, "a"), ObjectPath.of(database, "n" * 64)
    name = place.name
    place.execute(f"CREATE TABLE {name(path)} (id INT PRIMARY KEY CHECK (id > 0), up INT REFERENCES a (id))")
    members = renamed(catalog, path, longest)
    try:
        publish(catalog, members)
    except CatalogError as error:  # MySQL generates names from that of the table, and refuses what is longer.
        assert "_ibfk_1' is too long" in str(error)
        undo(members)
        assert not place.has(longest)
    else:
        publish(catalog, renamed(catalog, longest, path))
    assert place.rows(path) == []
    with pytest.raises(CatalogError):
        renamed(catalog, path, ObjectPath.of(database, "n" * 65))


def test_a_database_that_is_known_by_its_dialect_only_renames_nothing_in_a_block(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    run(catalog, path)
    with contextlib.closing(make_place("plain-mariadb", request, tmp_path).catalog()) as plain:
        assert plain.two_phase_rename_table(path, new, context=WriteContext(transaction_id())) is None
    assert place.rows(path) == ROWS


# -- a drop by the new name --------------------------------------------------------------------------------------------


def dropped_by_new_name(
    catalog: JdbcCatalog, path: ObjectPath, aside: ObjectPath, built: ObjectPath | None = None
) -> list[Any]:
    """The participants of a table that is renamed, and dropped by that name; another one gets its former name."""
    transaction = transaction_id()
    made: list[Any] = []

    def staged(participant: Any) -> Any:
        assert participant is not None
        made.append(participant)
        try:
            for step in (participant.begin, participant.prepare, participant.persist):
                step()
        except CatalogError:
            undo(made)
            raise
        return participant

    def context(base: Any = None) -> WriteContext:
        return WriteContext(transaction, len(made), base=None if base is None else base.document)

    away = staged(catalog.two_phase_rename_table(path, aside, context=context()))
    left = staged(catalog.two_phase_leave_table(path, away, context=context()))
    superseded = [away]
    if built is not None:
        arriving = staged(catalog.two_phase_rename_table(built, path, context=context(left)))
        staged(catalog.two_phase_leave_table(built, arriving, context=context()))
        superseded.append(left)
    staged(catalog.two_phase_drop_table(aside, context=context(away)))
    undo(superseded)
    return [participant for participant in made if participant not in superseded]


@pytest.mark.promise("ddl-in-blocks", "on MariaDB a table is dropped by a name that only the block knows, in one step")
def test_a_renamed_table_is_dropped_in_the_step_that_gives_its_name_to_another_one(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath
) -> None:
    built = ObjectPath.of(path.database, "built")
    run(catalog, path)
    run(catalog, built, rows=[(9, "nine")])
    for other in (built, None):
        members = dropped_by_new_name(catalog, path, new, other)
        assert len({catalog.group_key(member) for member in members}) == 1
        before_it = place.rows(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MySQL, "rename_all", lambda *_: (_ for _ in ()).throw(OSError("the server is gone")))
            with pytest.raises(CatalogError, match="the server is gone"):
                publishing.publish(catalog.store, members)
        assert {member.outcome() for member in members} == {Outcome.NOT_PUBLISHED} and place.rows(path) == before_it
        for _ in range(2):  # A recovery repeats it.
            publish(catalog, members)
        assert {member.outcome() for member in members} == {Outcome.PUBLISHED}
        assert not place.has(new) and not place.has(built)
        assert place.has(path) == (other is not None)
    tables = {str(name) for (name,) in place.execute(f"SHOW TABLES FROM {path.database}")}
    assert not {name for name in tables if "_o_" in name or "_l_" in name}


@pytest.mark.parametrize("late", [False, True], ids=["before the publish", "before its last look"])
def test_rows_that_others_write_to_a_table_are_not_dropped_by_its_new_name(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath, late: bool
) -> None:
    run(catalog, path)
    members = dropped_by_new_name(catalog, path, new)

    def insert() -> None:
        place.execute(INSERT.format(t=place.name(path)))

    with before(table_locks, "held", insert) if late else contextlib.nullcontext():
        if not late:
            insert()
        with pytest.raises(WriteConflictError):
            publishing.publish(catalog.store, members)
    undo(members)
    assert sorted(place.rows(path)) == sorted([*ROWS, (777, "theirs")])


def test_a_table_that_others_refer_to_is_not_dropped_by_its_new_name(
    place: Place, catalog: JdbcCatalog, database: str, new: ObjectPath
) -> None:
    path, child = ObjectPath.of(database, "parents"), ObjectPath.of(database, "child")
    place.execute(f"CREATE TABLE {place.name(path)} (id INT PRIMARY KEY)")
    place.execute(f"CREATE TABLE {place.name(child)} (id INT, FOREIGN KEY (id) REFERENCES {place.name(path)} (id))")
    with pytest.raises(CatalogError, match=r"foreign key .* of child refers to it"):
        dropped_by_new_name(catalog, path, new)
    place.execute(f"DROP TABLE {place.name(child)}")


def test_two_tables_are_not_dropped_by_the_same_name(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, new: ObjectPath
) -> None:
    for one in (path, new):
        run(catalog, one)
    drop = catalog.two_phase_drop_table(new, context=WriteContext("test-two"))
    assert drop is not None
    arriving = catalog.two_phase_rename_table(path, new, context=WriteContext("test-two", 1, base=drop.document))
    assert arriving is not None
    with pytest.raises(AtomicityNotSupportedError, match="has renamed a table"):
        catalog.two_phase_drop_table(new, context=WriteContext("test-two", 2, base=arriving.document))
