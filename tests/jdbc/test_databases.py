"""DROP DATABASE takes nothing that nobody named."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.jdbc.places import Place
from tests.jdbc.statements import run, stage
from twophase.catalog import Environment
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose

CREATE = Purpose.CREATE_TABLE_AS

#: What belongs to a database and is no table: how it is made, and by which words its refusal names it.
OTHERS = {
    "sqlite": {"view": ("CREATE VIEW seen AS SELECT 1 AS id", "seen")},
    "postgresql": {
        "type": ("CREATE TYPE {}.mood AS ENUM ('sad', 'ok')", "mood"),
        "function": ("CREATE FUNCTION {}.one() RETURNS int LANGUAGE sql AS 'SELECT 1'", "one"),
        "sequence": ("CREATE SEQUENCE {}.numbers", "numbers"),
    },
    "mariadb": {
        "routine": ("CREATE PROCEDURE {}.one() SELECT 1", "one"),
        "event": ("CREATE EVENT {}.daily ON SCHEDULE EVERY 1 DAY DO SELECT 1", "daily"),
        "view": ("CREATE VIEW {}.seen AS SELECT 1 AS id", "seen"),
    },
}


@pytest.fixture
def database(catalog: JdbcCatalog) -> Iterator[str]:
    name = f"shop_{uuid.uuid4().hex[:10]}"
    catalog.create_database(name)
    yield name
    catalog.drop_database(name, ignore_if_not_exists=True, cascade=True)


@pytest.mark.promise("preserved", "`DROP DATABASE` without `CASCADE` removes a database only where it is empty")
def test_without_cascade_a_database_goes_only_where_nothing_is_in_it(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    run(catalog, ObjectPath.of(database, "daily"))
    catalog.drop_table(ObjectPath.of(database, "daily"))
    for create, name in OTHERS[place.kind].values():
        place.execute(create.format(place.quote(database)), database)
        with pytest.raises(CatalogError, match=rf"Database {database} .*\b{name}\b"):
            catalog.drop_database(database)
        assert catalog.database_exists(database)
        kind = create.split()[1]
        owner = "" if place.kind == "sqlite" else f"{place.quote(database)}."
        place.execute(f"DROP {kind} {owner}{name}", database)
    catalog.drop_database(database)
    assert not catalog.database_exists(database)


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_what_depends_on_a_database_elsewhere_keeps_it(place: Place, catalog: JdbcCatalog, database: str) -> None:
    people = ObjectPath.of("public", f"people_{database}")
    place.execute(f"CREATE TYPE {database}.mood AS ENUM ('sad', 'ok')")
    place.execute(f"CREATE TABLE {place.name(people)} AS SELECT 'ok'::{database}.mood AS m")
    with pytest.raises(CatalogError, match="mood"):
        catalog.drop_database(database)
    assert place.rows(people) == [("ok",)]
    place.execute(f"DROP TABLE {place.name(people)}")


class _Known(Environment):
    """A host that knows which transactions have ended."""

    def __init__(self, **ended: bool) -> None:
        self._ended = ended

    def has_ended(self, transaction_id: str) -> bool | None:
        return self._ended.get(transaction_id)


def test_staged_rows_go_with_a_database_only_where_their_transaction_has_ended(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    staged: Any = stage(catalog, ObjectPath.of(database, "daily"), CREATE)
    for ended in (None, False):
        known = {} if ended is None else {staged.transaction_id: ended}
        other = JdbcCatalog("shop", place.options(), _Known(**known))
        with pytest.raises(CatalogError, match=staged.transaction_id):
            other.drop_database(database)
        assert len(staged.left_behind()) == 2
        other.close()
    other = JdbcCatalog("shop", place.options(), _Known(**{staged.transaction_id: True}))
    other.drop_database(database)
    assert not other.database_exists(database)
    other.close()


def test_what_an_open_transaction_has_published_keeps_its_database(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    done = run(catalog, ObjectPath.of(database, "daily"))
    catalog.drop_table(done.path)
    other = JdbcCatalog("shop", place.options(), _Known(**{done.transaction_id: False}))
    with pytest.raises(CatalogError, match=done.transaction_id):
        other.drop_database(database)
    other.close()
