"""ALTER TABLE as a statement of a transaction where it commits by itself: an altered copy takes the table's name."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from tests.jdbc.places import Place
from tests.jdbc.statements import transaction_id
from tests.jdbc.test_altering import add, drop, null, rename, retype, shape
from twophase.catalog import TableChange
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import AtomicityNotSupportedError, CatalogError, WriteConflictError
from twophase.model import ObjectPath, TableDefinition, WriteContext
from twophase.schema.errors import SchemaError

pytestmark = pytest.mark.parametrize("place", ["mariadb"], indirect=True)

#: A table with all that belongs to one, and rows; its name follows.
CREATE = """
(id INT UNSIGNED NOT NULL AUTO_INCREMENT, name VARCHAR(40) COLLATE utf8mb4_bin DEFAULT 'x''y' COMMENT 'who',
 price DECIMAL(9, 2) CHECK (price >= 0), twice DECIMAL(10, 2) GENERATED ALWAYS AS (price * 2) STORED, old INT,
 changed TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
 PRIMARY KEY (id), KEY by_name (name), FULLTEXT KEY words (name)) ROW_FORMAT = DYNAMIC COMMENT 'of a user'
"""


@pytest.fixture
def table(place: Place, path: ObjectPath) -> ObjectPath:
    place.execute(f"CREATE TABLE {place.name(path)} {CREATE}")
    place.execute(f"INSERT INTO {place.name(path)} (name, price, old) VALUES ('a', 1, NULL), ('b', 2, 7)")
    place.execute(f"INSERT INTO {place.name(path)} (id, name) VALUES (40, 'c')")
    place.execute(f"DELETE FROM {place.name(path)} WHERE id = 40")
    return path


def staged(catalog: JdbcCatalog, path: ObjectPath, *changes: TableChange) -> Any:
    participant = catalog.two_phase_alter_table(path, changes, context=WriteContext(transaction_id()))
    assert participant is not None
    try:
        for step in (participant.begin, participant.prepare, participant.persist):
            step()
    except BaseException:
        participant.abort()
        raise
    return participant


def defined(place: Place, path: ObjectPath) -> list[str]:
    ((_, text),) = place.execute(f"SHOW CREATE TABLE {place.name(path)}")
    return [line.strip().removesuffix(",") for line in text.splitlines()]


@pytest.mark.promise(
    "ddl-in-blocks", "a table of MariaDB that a block alters keeps all that belongs to it", detail=True
)
def test_an_altered_copy_has_all_that_the_table_has(catalog: JdbcCatalog, table: ObjectPath, place: Place) -> None:
    before, rows = defined(place, table), sorted(place.rows(table))
    done = staged(catalog, table, add("more", pa.int32()), rename("name", "label"), drop("old"))
    assert defined(place, table) == before and sorted(place.rows(table)) == rows
    done.commit()
    done.finish()
    after = defined(place, table)
    changed = {line for line in before if "`name`" in line or "`old`" in line}
    assert set(before) - set(after) == changed
    assert [line for line in after if "words" in line] == ["FULLTEXT KEY `words` (`label`)"]
    assert "AUTO_INCREMENT=41" in after[-1] and "of a user" in after[-1]
    assert sorted(place.rows(table)) == [(i, n, p, t, c, None) for i, n, p, t, _, c in rows]
    assert ("label", "string", True, "who") in shape(catalog, table)


@pytest.mark.promise("ddl-in-blocks", "what a copy of a table would not have is named, before anything is changed")
def test_what_a_copy_would_lose_is_refused(catalog: JdbcCatalog, table: ObjectPath, place: Place) -> None:
    for number, (make, why) in enumerate(
        (
            ("CREATE TABLE {t} (id INT, other INT UNSIGNED, FOREIGN KEY (other) REFERENCES {old} (id))", "foreign key"),
            ("CREATE TABLE {t} (id INT) WITH SYSTEM VERSIONING", "its history"),
            ("CREATE TABLE {t} (id INT) ENGINE = MyISAM", "MyISAM"),
            ("CREATE TRIGGER {d}.fires BEFORE INSERT ON {old} FOR EACH ROW SET NEW.old = 1", "trigger fires"),
        )
    ):
        path = table if "TRIGGER" in make else ObjectPath.of(table.database, f"t{number}")
        place.execute(make.format(t=place.name(path), old=place.name(table), d=table.database))
        with pytest.raises(AtomicityNotSupportedError, match=why):
            staged(catalog, path, add("more"))


def test_a_foreign_key_of_a_table_of_the_same_name_in_another_database_is_not_lost(
    catalog: JdbcCatalog, table: ObjectPath, place: Place
) -> None:
    other = ObjectPath.of("twophase", table.name)
    old = f"{place.name(table)} (id)"
    place.execute(f"CREATE TABLE {place.name(other)} (id INT, old INT UNSIGNED, FOREIGN KEY (old) REFERENCES {old})")
    try:
        with pytest.raises(AtomicityNotSupportedError, match="foreign key"):
            staged(catalog, table, add("more"))
    finally:
        place.execute(f"DROP TABLE {place.name(other)}")


def test_a_document_holds_no_secret_of_the_tables_comment(catalog: JdbcCatalog, path: ObjectPath) -> None:
    secret = TableDefinition(pa.schema([("id", pa.int32())]), properties={"api.password": "hunter2"})
    catalog.create_table(path, secret)
    done = staged(catalog, path, add("more"))
    assert "hunter2" not in json.dumps(done.document)
    done.commit()
    done.finish()
    assert catalog.load_table(path).properties["api.password"] == "hunter2"


def test_what_the_rows_do_not_allow_is_refused_by_the_statement(
    catalog: JdbcCatalog, table: ObjectPath, place: Place
) -> None:
    place.execute(f"ALTER TABLE {place.name(table)} ADD CONSTRAINT even CHECK (twice >= 0)")
    for change in (null("old", False), retype("price", pa.decimal128(5, 4)), drop("id"), drop("twice"), drop("none")):
        before = defined(place, table)
        with pytest.raises((CatalogError, SchemaError), match=f"{table.name}|{change.path[0]}") as refused:
            staged(catalog, table, add("more"), change)
        assert "__twophase" not in str(refused.value)
        assert defined(place, table) == before and place.hidden(table.database) == []


@pytest.mark.parametrize(
    "theirs",
    [
        "INSERT INTO {t} (name) VALUES ('theirs')",
        "UPDATE {t} SET name = 'theirs' WHERE id = 1",
        "ALTER TABLE {t} ADD COLUMN theirs INT",
        "ALTER TABLE {t} ADD INDEX theirs (price)",
        "ALTER TABLE {t} COMMENT = 'theirs'",
        "CREATE TRIGGER {d}.theirs BEFORE INSERT ON {t} FOR EACH ROW SET NEW.old = 1",
    ],
)
@pytest.mark.promise("ddl-in-blocks", "what other programs have changed in MariaDB before the publish is a conflict")
def test_what_another_program_changes_meanwhile_is_a_conflict(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, theirs: str
) -> None:
    done = staged(catalog, table, add("more"))
    place.execute(theirs.format(t=place.name(table), d=table.database))
    there = defined(place, table), sorted(place.rows(table), key=repr)
    with pytest.raises(WriteConflictError):
        done.commit()
    done.abort()
    assert (defined(place, table), sorted(place.rows(table), key=repr)) == there
    assert place.hidden(table.database) == []
