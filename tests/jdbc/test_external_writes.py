"""Rows that another program commits while a statement runs that replaces them are a conflict, and never lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import sqlalchemy as sa

from tests.jdbc.places import Place, fetch, ordered
from tests.jdbc.statements import ROWS, run, stage, transaction_id
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import WriteConflictError
from twophase.model import ObjectPath, Purpose, WriteContext

REPLACING = (Purpose.INSERT_OVERWRITE, Purpose.CREATE_OR_REPLACE_TABLE_AS)

#: A change, and what the table holds after it.
CHANGES = {
    "a row more": ("INSERT INTO {} VALUES (3, 'three')", [*ROWS, (3, "three")]),
    "a row less": ("DELETE FROM {} WHERE id = 2", ROWS[:1]),
    "another value": ("UPDATE {} SET name = 'ten' WHERE id = 1", [(1, "ten"), *ROWS[1:]]),
}


def test_what_another_transaction_publishes_between_the_two_names_of_a_rename_is_a_conflict(
    catalog: JdbcCatalog, path: ObjectPath
) -> None:
    run(catalog, path)
    context = WriteContext(transaction_id())
    arriving = catalog.two_phase_rename_table(path, ObjectPath.of(path.database, "weekly"), context=context)
    assert arriving is not None
    run(catalog, path, Purpose.INSERT_INTO, [(3, "three")])
    leaving = catalog.two_phase_leave_table(path, arriving, context=replace(context, ordinal=1))
    for participant in (arriving, leaving):
        participant.begin()
    arriving.prepare()
    with pytest.raises(WriteConflictError, match="another writer published it"):
        leaving.prepare()
    for participant in (arriving, leaving):
        participant.abort()


@pytest.mark.promise(
    "external-writers",
    "what another program commits to a database table during an overwrite or replace is a conflict",
)
@pytest.mark.parametrize("purpose", REPLACING, ids=lambda purpose: purpose.value)
@pytest.mark.parametrize("change", CHANGES)
def test_what_another_program_commits_meanwhile_is_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, purpose: Purpose, change: str
) -> None:
    run(catalog, path)
    sql, expected = CHANGES[change]
    replaced = stage(catalog, path, purpose)
    place.execute(sql.format(place.name(path)), path.database)
    with pytest.raises(WriteConflictError, match="another program changed its rows"):
        replaced.commit()
    replaced.abort()
    assert ordered(place.rows(path)) == ordered(expected)
    run(catalog, path, purpose, [(9, "nine")])
    assert place.rows(path) == [(9, "nine")]


def test_values_that_another_program_exchanges_between_rows_are_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    """Of these the sum of CRC32 is the same before and after: it is linear, and values are moved about."""
    run(catalog, path, rows=[(3878, "a"), (3879, "b")])
    replaced = stage(catalog, path, Purpose.INSERT_OVERWRITE)
    place.execute(f"UPDATE {place.name(path)} SET name = CASE name WHEN 'a' THEN 'b' ELSE 'a' END", path.database)
    with pytest.raises(WriteConflictError, match="another program changed its rows"):
        replaced.commit()
    replaced.abort()
    assert ordered(place.rows(path)) == [(3878, "b"), (3879, "a")]


@pytest.mark.promise("external-writers", "what another program had begun to write before the publish is a conflict")
@pytest.mark.parametrize("place", ["postgresql", "mariadb"], indirect=True)
@pytest.mark.parametrize("purpose", REPLACING, ids=lambda purpose: purpose.value)
def test_what_another_program_had_begun_to_write_before_the_publish_is_a_conflict(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, purpose: Purpose
) -> None:
    run(catalog, path)
    replaced = stage(catalog, path, purpose)
    told: list[BaseException] = []
    engine = sa.create_engine(place.url)
    with engine.connect() as other, other.begin():
        fetch(other, f"INSERT INTO {place.name(path)} VALUES (3, 'three')")
        publisher = threading.Thread(target=_keeping_error, args=(replaced.commit, told))
        publisher.start()
        _wait_for_a_waiter(place)
    publisher.join()
    engine.dispose()
    assert [type(error) for error in told] == [WriteConflictError]
    replaced.abort()
    assert ordered(place.rows(path)) == ordered([*ROWS, (3, "three")])


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_a_default_isolation_level_of_the_role_hides_nothing_that_is_committed_during_a_wait(
    place: Place, path: ObjectPath, level: str
) -> None:
    place.execute(f"ALTER ROLE twophase SET default_transaction_isolation = '{level}'")
    try:
        catalog = place.catalog()
        test_what_another_program_had_begun_to_write_before_the_publish_is_a_conflict(
            place, catalog, path, Purpose.INSERT_OVERWRITE
        )
        catalog.close()
    finally:
        place.execute("ALTER ROLE twophase RESET default_transaction_isolation")


def test_another_programs_appends_are_no_conflict_for_an_append_nor_where_they_are_to_be_ignored(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    run(catalog, path)
    careless = place.catalog(external_writes="ignore")
    appended, overwritten = stage(catalog, path, Purpose.INSERT_INTO), stage(careless, path, Purpose.INSERT_OVERWRITE)
    place.execute(f"INSERT INTO {place.name(path)} VALUES (3, 'three')", path.database)
    appended.commit()
    appended.finish()
    assert len(place.rows(path)) == 5
    overwritten.abort()
    careless.close()


def test_a_tables_version_changes_with_whoever_writes_it(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> None:
    assert catalog.table_version(path) is None
    run(catalog, path)
    versions = [catalog.table_version(path)]
    assert catalog.table_version(path) == versions[0]
    stage(catalog, path, Purpose.INSERT_INTO).abort()
    assert catalog.table_version(path) == versions[0]
    run(catalog, path, Purpose.INSERT_INTO)
    versions.append(catalog.table_version(path))
    for sql, _ in CHANGES.values():
        place.execute(sql.format(place.name(path)), path.database)
        versions.append(catalog.table_version(path))
    assert all(version not in versions[:number] for number, version in enumerate(versions))


def test_of_a_large_table_at_least_what_twophase_publishes_changes_its_version(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("twophase.catalogs.jdbc.database.SMALL", 1)
    run(catalog, path)
    before = catalog.table_version(path)
    assert catalog.table_version(path) == before is not None
    run(catalog, path, Purpose.INSERT_INTO)
    assert catalog.table_version(path) != before


def _keeping_error(call: Callable[[], None], told: list[BaseException]) -> None:
    try:
        call()
    except BaseException as error:
        told.append(error)


def _wait_for_a_waiter(place: Place) -> None:
    waits = {
        "postgresql": "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'",
        "mariadb": (
            "SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table metadata lock' "
            "OR STATE = 'Sending data' OR STATE = 'executing'"
        ),
    }
    while not place.execute(waits[place.kind]):
        pass


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_a_role_that_may_hold_no_tables_is_told_of_what_was_committed_all_the_same(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    run(catalog, path)
    place.execute("DROP USER IF EXISTS holder@'%'")
    place.execute("CREATE USER holder@'%' IDENTIFIED BY 'no secret'")
    rights = "SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX"
    place.execute(f"GRANT {rights} ON {path.database}.* TO holder@'%'")
    url = sa.engine.make_url(place.url).set(username="holder", password="no secret", database=path.database)
    holder = Place(place.kind, url.render_as_string(hide_password=False)).catalog()
    replaced = stage(holder, path, Purpose.REPLACE_TABLE_AS)
    place.execute(f"INSERT INTO {place.name(path)} VALUES (3, 'three')")
    with pytest.raises(WriteConflictError, match="another program"):
        replaced.commit()
    replaced.abort()
    assert len(place.rows(path)) == 3
    run(holder, path, Purpose.REPLACE_TABLE_AS, [(9, "nine")])
    assert place.rows(path) == [(9, "nine")]
    holder.close()
    place.execute("DROP USER holder@'%'")
