"""Looking for what dead transactions left does not disturb the living ones."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from tests.jdbc.places import Place, ordered
from tests.jdbc.statements import ROWS, run, stage
from twophase.catalog import Environment
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.model import ObjectPath, Outcome, Purpose


def test_a_look_at_several_stamps_does_not_hold_up_a_publish_of_several_tables(
    place: Place, catalog: JdbcCatalog, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publish drops the ledgers, one after the other: who held the lock of one while waiting for another would
    wait for it, and be waited for."""
    staged = [stage(catalog, ObjectPath.of(database, name)) for name in ("one", "two")]
    cleaner = place.catalog()
    read, looked = cleaner.store.stamp, []

    def publish_in_between(connection: sa.Connection, table: ObjectPath) -> dict[str, Any] | None:
        looked.append(table.name)
        if len(looked) == 2:
            catalog.publish_group(list(staged))
        return read(connection, table)

    monkeypatch.setattr(cleaner.store, "stamp", publish_in_between)
    found = [leftover.location for leftover in cleaner.leftovers() if database in leftover.location]
    assert len(looked) >= 2 and len(found) <= 2
    for participant in staged:
        assert participant.outcome() is Outcome.PUBLISHED
        participant.finish()
        assert ordered(place.rows(participant.path)) == ROWS
    cleaner.close()


@pytest.mark.parametrize("place", ["postgresql", "mariadb"], indirect=True)
def test_a_ledger_that_is_gone_for_a_moment_does_not_end_the_look(
    place: Place, catalog: JdbcCatalog, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others drop and make tables of ours, and whole databases, while we look."""
    participant = stage(catalog, ObjectPath.of(database, "one"))
    read, looked = catalog.store.stamp, []

    def gone_at_first(connection: sa.Connection, table: ObjectPath) -> dict[str, Any] | None:
        looked.append(table.name)
        if len(looked) > 1:
            return read(connection, table)
        connection.exec_driver_sql("SELECT * FROM what_is_gone")
        return None

    monkeypatch.setattr(catalog.store, "stamp", gone_at_first)
    found = [leftover.location for leftover in catalog.leftovers() if database in leftover.location]
    assert len(found) == 1 and looked[0] == looked[1]
    participant.abort()


def test_a_database_that_is_dropped_since_it_was_listed_does_not_end_the_look(
    catalog: JdbcCatalog, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    participant = stage(catalog, ObjectPath.of(database, "one"))
    gone = f"{database}_gone"
    read, begin = catalog.store.database.list_relations, catalog.store.begin
    looked = set()

    def opened(home: str, **options: Any) -> Any:
        looked.add(home)
        return begin(home, **options)

    def refused(connection: sa.Connection, home: str) -> dict[str, str]:
        if home == gone:  # As MariaDB does where the database goes while its tables are listed.
            connection.exec_driver_sql("SELECT * FROM what_is_gone")
        return read(connection, home)

    monkeypatch.setattr(catalog.store, "list_databases", lambda: [gone, database])
    monkeypatch.setattr(catalog.store, "begin", opened)
    monkeypatch.setattr(catalog.store.database, "list_relations", refused)
    assert len(catalog.leftovers()) == 1
    assert looked == {gone, database}
    assert not catalog.database_exists(gone), "A look made it."
    participant.abort()


def test_what_is_staged_by_the_living_is_not_listed_and_what_the_dead_left_goes(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    living, dead = (stage(catalog, ObjectPath.of(database, name), Purpose.CREATE_TABLE_AS) for name in ("one", "two"))
    others = place.catalog()
    found = others.leftovers(live_transactions=frozenset({living.transaction_id}))
    mine = [leftover for leftover in found if leftover.location.startswith(f"{database}.")]
    assert [leftover.transaction_id for leftover in mine] == [dead.transaction_id]
    for leftover in (*mine, *mine):  # Twice: it may be repeated.
        others.remove_leftover(leftover)
    assert dead.left_behind() == [] and len(living.left_behind()) == 2
    living.commit()
    living.finish()
    assert ordered(place.rows(living.path)) == ROWS
    others.close()


@pytest.mark.promise("cost", "a statement asks a database for its own tables, never for all")
@pytest.mark.parametrize("purpose", [Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE, Purpose.REPLACE_TABLE_AS])
def test_a_statement_asks_for_its_own_tables_and_never_for_all(
    catalog: JdbcCatalog, path: ObjectPath, purpose: Purpose, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a schema of ten thousand tables a list of them would be most of its time."""
    run(catalog, path)

    def never(*_: object) -> dict[str, str]:
        raise AssertionError("All tables were listed.")

    monkeypatch.setattr(catalog.store.database, "list_relations", never)
    assert run(catalog, path, purpose).outcome() is Outcome.PUBLISHED
    assert catalog.read_source(path).reader is not None


class _Ended(Environment):
    """A host that knows that all transactions have ended, and keeps nothing."""

    retention = -3600.0

    def has_ended(self, transaction_id: str) -> bool | None:
        return True


def test_rows_about_what_was_published_do_not_pile_up(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> None:
    run(catalog, path)
    others = JdbcCatalog("shop", place.options(), _Ended())
    for _ in range(4):
        run(others, path, Purpose.INSERT_INTO)
    published = place.name(ObjectPath.of(path.database, "__twophase_published"))
    rows = place.execute(f"SELECT participant FROM {published} WHERE participant NOT LIKE '#%'", path.database)
    assert rows == []
    version = catalog.store.version
    with catalog.store.begin(path.database) as connection:
        before = version(connection, path.database, path)
    run(others, path, Purpose.INSERT_INTO)
    with catalog.store.begin(path.database) as connection:
        assert version(connection, path.database, path) > before > 0
    others.close()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_publish_does_not_read_the_rows_about_all_others(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    run(catalog, path)
    others = JdbcCatalog("shop", place.options(), _Ended())
    plans: list[str] = []

    @sa.event.listens_for(others.store.engine(path.database), "before_cursor_execute")
    def _(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "__twophase_published" in statement and "WHERE" in statement:
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", parameters)
            plans.extend(row[3] for row in cursor.fetchall())

    run(others, path, Purpose.INSERT_INTO)
    assert [plan for plan in plans if not plan.startswith("SEARCH")] == []
    assert any("INDEX __twophase_published_target " in plan for plan in plans), plans
    others.close()
