"""DROP DATABASE takes nothing that nobody named."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from tests.jdbc.places import Place
from tests.jdbc.statements import run, stage, transaction_id
from twophase.catalog import Environment
from twophase.catalog.staged_databases import plan_create, plan_drop
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Outcome, Purpose, WriteContext

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


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_objects_of_every_kind_keep_a_database_in_a_transaction(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    place.execute(f"CREATE TABLE {database}.with_a_key (id SERIAL PRIMARY KEY, name TEXT)")
    place.execute(f"CREATE STATISTICS {database}.both_columns ON id, name FROM {database}.with_a_key")
    assert catalog.contents_of(database) == ["with_a_key"]  # All else goes with the table.
    place.execute(f"DROP TABLE {database}.with_a_key")
    for create in (
        "OPERATOR {}.=== (FUNCTION = int4eq, LEFTARG = int, RIGHTARG = int)",
        'COLLATION {}.plain FROM "C"',
        "TEXT SEARCH CONFIGURATION {}.words (PARSER = pg_catalog.default)",
        "DOMAIN {}.small AS int",
    ):
        place.execute(f"CREATE {create.format(database)}")
    found = " ".join(catalog.contents_of(database))
    assert not [name for name in ("===", "plain", "words", "small") if name not in found]
    with pytest.raises(CatalogError, match="not empty"):
        plan_drop(catalog, database, (), WriteContext(transaction_id()))


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.promise("ddl-in-blocks", "a comment that another program gives to a schema meanwhile leaves none behind")
def test_a_comment_of_another_program_leaves_no_database_behind(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    said = f"COMMENT ON SCHEMA {database} IS 'theirs'"
    dropped = plan_drop(catalog, database, (), WriteContext(transaction_id()))
    for step in (dropped.begin, dropped.prepare, dropped.persist, dropped.commit):
        step()
    place.execute(said)
    catalog.restore(dropped.document).finish()
    assert not catalog.database_exists(database)
    for ends in ("abort", "commit"):
        created = plan_create(catalog, database, {}, WriteContext(transaction_id()))
        created.begin()
        place.execute(said)
        created.prepare()
        getattr(created, ends)()
        assert catalog.database_exists(database) == (ends == "commit")
    assert created.outcome() is Outcome.PUBLISHED
    assert catalog.load_database(database)["comment"] == "theirs"


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.promise("ddl-in-blocks", "a database that was left to others is theirs, however often its end is repeated")
def test_a_database_that_was_left_to_others_stays_theirs(place: Place, catalog: JdbcCatalog, database: str) -> None:
    made = f"{database}_made"
    created = plan_create(catalog, made, {}, WriteContext(transaction_id()))
    created.begin()
    dropped = plan_drop(catalog, database, (), WriteContext(transaction_id()))
    for step in (dropped.begin, dropped.prepare, dropped.persist, dropped.commit):
        step()
    for name, participant, end in ((made, created, "abort"), (database, dropped, "finish")):
        document = json.loads(json.dumps(participant.document))
        place.execute(f"CREATE TABLE {name}.theirs (id INT)")
        getattr(participant, end)()
        place.execute(f"DROP TABLE {name}.theirs")
        restored = catalog.restore(document)
        assert restored.left_behind() == []
        getattr(restored, end)()
        assert catalog.database_exists(name)
    catalog.drop_database(made)


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.promise("ddl-in-blocks", "a published database stays published where another program sets its comment")
def test_a_published_database_is_known_under_the_comment_of_another_program(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    made = f"{database}_made"
    created = plan_create(catalog, made, {}, WriteContext(transaction_id()))
    for step in (created.begin, created.prepare, created.persist, created.commit):
        step()
    place.execute(f"COMMENT ON SCHEMA {made} IS 'theirs'")
    restored = catalog.restore(json.loads(json.dumps(created.document)))
    assert (restored.outcome(), restored.left_behind()) == (Outcome.PUBLISHED, [])
    restored.abort()
    assert catalog.database_exists(made)
    assert restored.compensate() and restored.outcome() is Outcome.NOT_PUBLISHED
    restored.abort()
    assert not catalog.database_exists(made)


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_what_belongs_to_a_table_elsewhere_keeps_a_database(place: Place, catalog: JdbcCatalog, database: str) -> None:
    elsewhere = f"public.counted_{database}"
    place.execute(f"CREATE TABLE {elsewhere} (a INT, b INT)")
    place.execute(f"CREATE TYPE {database}.few AS RANGE (subtype = int)")
    place.execute(f"CREATE STATISTICS {database}.both_columns ON a, b FROM {elsewhere}")
    place.execute(f"DROP TYPE {database}.few")
    with pytest.raises(CatalogError, match=r"not empty: it holds statistics object .*both_columns"):
        plan_drop(catalog, database, (), WriteContext(transaction_id()))
    place.execute(f"DROP TABLE {elsewhere}")
    assert catalog.contents_of(database) == []


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
@pytest.mark.promise("ddl-in-blocks", "a database whose routines or events the role may not see is refused")
def test_a_database_that_the_role_does_not_see_wholly_is_refused(
    place: Place, catalog: JdbcCatalog, database: str
) -> None:
    place.execute(f"CREATE USER {database}@'%' IDENTIFIED BY 'short'")
    place.execute(f"GRANT SELECT ON twophase.* TO {database}@'%'")
    place.execute(f"GRANT CREATE, DROP, SELECT, ALTER ON `{database}%`.* TO {database}@'%'")
    place.execute(f"CREATE PROCEDURE {database}.theirs() SELECT 1")
    url = sa.engine.make_url(place.url).set(username=database, password="short")
    role = Place("mariadb", url.update_query_dict({"ssl_disabled": "true"}).render_as_string(hide_password=False))
    theirs, context = role.catalog(), WriteContext(transaction_id())
    for refused in (
        lambda: plan_drop(theirs, database, (), context),
        lambda: plan_create(theirs, f"{database}_made", {}, context),
        lambda: theirs.drop_database(database),
    ):
        with pytest.raises(CatalogError, match="may not see whether others have routines or events"):
            refused()
    assert place.execute(f"SELECT ROUTINE_NAME FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = '{database}'")
    place.execute(f"GRANT EXECUTE, EVENT ON `{database}%`.* TO {database}@'%'")
    with pytest.raises(CatalogError, match="not empty: it holds procedure theirs"):
        plan_drop(theirs, database, (), context)
    theirs.close()
    place.execute(f"DROP USER {database}@'%'")


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
