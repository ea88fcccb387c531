"""RFC-82's rows by two writers, each with connections of its own: the right rows, or a conflict, never wrong ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests import strict_schemas
from tests.jdbc.places import Place
from tests.jdbc.statements import ROWS, run, stage
from tests.jdbc.test_altering import add, drop, rename, retype
from tests.jdbc.test_waiting_statements import renamed, staged
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.catalogs.jdbc.participant import JdbcParticipant
from twophase.errors import (
    AtomicityNotSupportedError,
    ConcurrentSchemaEvolutionError,
    ConfigurationError,
    TwoPhaseError,
)
from twophase.model import ObjectPath, Purpose
from twophase.schema.errors import SchemaError

CREATE, INSERT, REPLACE = Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO, Purpose.REPLACE_TABLE_AS
OVERWRITE = Purpose.INSERT_OVERWRITE
SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string())])
WIDER = pa.schema([*SCHEMA, pa.field("more", pa.int32())])
OTHER = pa.schema([*SCHEMA, pa.field("more", pa.string())])
NEW = [(7, "slow")]


@pytest.fixture
def other(place: Place) -> Iterator[JdbcCatalog]:
    """The second writer."""
    made = place.catalog()
    yield made
    made.close()


@pytest.fixture
def table(catalog: JdbcCatalog, path: ObjectPath) -> ObjectPath:
    run(catalog, path, CREATE, ROWS, SCHEMA)
    return path


def columns(catalog: JdbcCatalog, path: ObjectPath) -> list[str]:
    return list(catalog.load_table(path).schema.names)


def lose(slow: JdbcParticipant, error: type[TwoPhaseError] = ConcurrentSchemaEvolutionError) -> None:
    with pytest.raises(error):
        slow.commit()
    slow.abort()


def win(slow: JdbcParticipant) -> None:
    slow.commit()
    slow.finish()


def test_rfc_82_row_1_no_table_at_all_gets_the_writers_schema(catalog: JdbcCatalog, path: ObjectPath) -> None:
    run(catalog, path, CREATE, [(1, "x", 1)], WIDER)
    assert columns(catalog, path) == WIDER.names


@pytest.mark.parametrize("schema", [SCHEMA, WIDER], ids=["row 2, the same schema", "row 3, another schema"])
def test_rfc_82_rows_2_and_3_of_two_that_create_a_table_one_wins(
    catalog: JdbcCatalog, path: ObjectPath, place: Place, other: JdbcCatalog, schema: pa.Schema
) -> None:
    slow = stage(catalog, path, CREATE, NEW, SCHEMA)
    rows = [(1, "fast", 2)[: len(schema)]]
    run(other, path, CREATE, rows, schema)
    lose(slow, TwoPhaseError)
    assert (columns(catalog, path), place.rows(path)) == (schema.names, rows)


def test_rfc_82_row_4_nobody_changes_the_schema(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    slow = stage(catalog, table, INSERT, NEW, SCHEMA)
    run(other, table, INSERT, [(8, "fast")], SCHEMA)
    win(slow)
    assert sorted(place.rows(table)) == [*ROWS, (7, "slow"), (8, "fast")]


def test_rfc_82_row_5_the_writer_alone_changes_the_schema(
    catalog: JdbcCatalog, table: ObjectPath, place: Place
) -> None:
    win(stage(catalog, table, REPLACE, [(7, "slow", 70)], WIDER))
    assert place.rows(table) == [(7, "slow", 70)]


@pytest.mark.promise("evolution", "in a database: rows staged before another added a column are right, or a conflict")
def test_rfc_82_row_6_the_table_alone_got_a_column_and_keeps_it(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    slow = stage(catalog, table, INSERT, NEW, SCHEMA)
    other.alter_table(table, [add("more"), add("size", default="5")])
    win(slow)
    assert columns(catalog, table) == ["id", "name", "more", "size"]
    assert sorted(place.rows(table)) == [(*row, None, 5) for row in (*ROWS, *NEW)]


@pytest.mark.parametrize(
    ("changes", "names", "new"),
    [
        ([rename("name", "label")], ["id", "label"], (7, "slow")),
        ([rename("id", "x"), rename("name", "id"), rename("x", "name")], ["name", "id"], (7, "slow")),
        ([drop("name")], ["id"], (7,)),
        ([retype("id", pa.int64())], ["id", "name"], (7, "slow")),
    ],
    ids=["renamed", "swapped", "dropped", "widened"],
)
def test_rfc_82_row_6_the_table_alone_changed_and_the_rows_are_right_or_a_conflict(
    catalog: JdbcCatalog,
    table: ObjectPath,
    place: Place,
    other: JdbcCatalog,
    changes: list[Any],
    names: list[str],
    new: tuple[Any, ...],
) -> None:
    slow = stage(catalog, table, INSERT, NEW, SCHEMA)
    for change in changes:
        other.alter_table(table, [change])
    assert columns(other, table) == names
    before = sorted(place.rows(table))
    if place.kind == "postgresql":  # It numbers its columns.
        win(slow)
        assert sorted(place.rows(table)) == sorted([*before, new])
        return
    lose(slow)
    assert sorted(place.rows(table)) == before


def test_a_column_that_was_dropped_and_added_again_is_detected_by_its_number_where_the_database_has_one(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    slow = stage(catalog, table, INSERT, NEW, SCHEMA)
    other.alter_table(table, [drop("name")])
    other.alter_table(table, [add("name", pa.string())])
    win(slow)
    # Elsewhere names and types are as they were, and nothing tells that the column is another one.
    new = (7, None) if place.kind == "postgresql" else NEW[0]
    assert sorted(place.rows(table)) == [*((number, None) for number, _ in ROWS), new]


BRINGING: dict[str, Any] = {"options": {"mergeSchema": "true"}}
transactional = pytest.mark.parametrize("place", ["postgresql", "sqlite"], indirect=True)


@pytest.mark.promise("evolution", "in PostgreSQL and SQLite a write brings its columns, in one step with its rows")
@transactional
def test_rfc_82_row_5_the_rows_bring_a_column_in_any_order(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    brought = pa.schema([("more", pa.int32()), ("id", pa.int16())])
    slow = stage(catalog, table, INSERT, [(70, 7)], brought, **BRINGING)
    assert columns(other, table) == SCHEMA.names
    run(other, table, INSERT, [(8, "fast")], SCHEMA)
    win(slow)
    assert columns(catalog, table) == WIDER.names
    assert sorted(place.rows(table)) == [*((*row, None) for row in ROWS), (7, None, 70), (8, "fast", None)]
    win(stage(catalog, table, OVERWRITE, [(9, "all", 1, "x")], pa.schema([*WIDER, ("last", pa.string())]), **BRINGING))
    assert place.rows(table) == [(9, "all", 1, "x")]
    with pytest.raises(SchemaError):
        stage(catalog, table, INSERT, [("no number",)], pa.schema([("id", pa.string())]), **BRINGING)


@transactional
def test_rfc_82_row_7_both_brought_the_same_column(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    slow = stage(catalog, table, INSERT, [(7, "slow", 70)], WIDER, **BRINGING)
    run(other, table, INSERT, [(8, "fast", 80)], WIDER, **BRINGING)
    win(slow)
    assert columns(catalog, table) == WIDER.names
    assert sorted(place.rows(table)) == [*((*row, None) for row in ROWS), (7, "slow", 70), (8, "fast", 80)]


@transactional
def test_rfc_82_row_8_both_brought_different_columns_is_a_conflict(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    combining = place.catalog(schema_conflicts="rebase")
    slow = stage(catalog, table, INSERT, [(7, "slow", 70)], WIDER, **BRINGING)
    third = stage(
        combining, table, INSERT, [(9, 1)], pa.schema([("id", pa.int32()), ("third", pa.int32())]), **BRINGING
    )
    run(other, table, INSERT, [(8, "fast", "x")], OTHER, **BRINGING)
    lose(slow)
    assert sorted(place.rows(table)) == [*((*row, None) for row in ROWS), (8, "fast", "x")]
    win(third)
    assert columns(catalog, table) == [*OTHER.names, "third"]
    assert (9, None, None, 1) in place.rows(table)
    combining.close()


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_where_ddl_is_a_commit_no_row_brings_a_column(catalog: JdbcCatalog, table: ObjectPath) -> None:
    with pytest.raises(AtomicityNotSupportedError, match="one step"):
        stage(catalog, table, INSERT, [(7, "slow", 70)], WIDER, **BRINGING)


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_rfc_82_row_6_an_overwrite_of_a_changed_table_has_the_right_rows(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    slow = stage(catalog, table, OVERWRITE, NEW, SCHEMA)
    other.alter_table(table, [rename("name", "label")])
    other.alter_table(table, [add("name", pa.string())])
    win(slow)
    assert place.rows(table) == [(7, "slow", None)]


def test_rfc_82_row_8_a_replace_by_other_columns_than_the_table_got_is_a_conflict(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, other: JdbcCatalog
) -> None:
    slow = stage(catalog, table, REPLACE, [(7, "slow", "x")], OTHER)
    other.alter_table(table, [add("more")])
    lose(slow)
    assert columns(catalog, table) == WIDER.names
    assert sorted(place.rows(table)) == [(*row, None) for row in ROWS]


def test_what_does_not_hold_every_staged_value_is_a_conflict(
    catalog: JdbcCatalog, table: ObjectPath, place: Place
) -> None:
    slow = stage(catalog, table, INSERT, NEW, SCHEMA)
    needed = "more INT NOT NULL" + (" CHECK (more > 0)" if place.kind == "postgresql" else " DEFAULT 0")
    place.execute(f"DELETE FROM {place.name(table)}", table.database)
    place.execute(f"ALTER TABLE {place.name(table)} ADD COLUMN {needed}", table.database)
    if place.kind == "postgresql":
        with pytest.raises(ConcurrentSchemaEvolutionError, match="more needs a value"):
            slow.commit()
        place.execute(f"ALTER TABLE {place.name(table)} DROP COLUMN more, ALTER COLUMN id TYPE smallint")
        with pytest.raises(ConcurrentSchemaEvolutionError, match="the type of id is smallint now, and was integer"):
            slow.commit()
        slow.abort()
        return
    win(slow)
    assert place.rows(table) == [(7, "slow", 0)]


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
@pytest.mark.parametrize("effect", ["drop", "rename", "replace"])
def test_a_table_whose_column_others_made_anew_is_neither_dropped_renamed_nor_replaced(
    catalog: JdbcCatalog, table: ObjectPath, place: Place, effect: str
) -> None:
    if effect == "rename":
        arriving, slow = renamed(catalog, table, ObjectPath.of(table.database, "elsewhere"))
        arriving.abort()
    else:
        slow = staged(catalog, table, effect)
    place.execute(f"ALTER TABLE {place.name(table)} DROP COLUMN name", table.database)
    place.execute(f"ALTER TABLE {place.name(table)} ADD COLUMN name TEXT", table.database)
    lose(slow)
    assert place.rows(table) == [(number, None) for number, _ in ROWS]


def test_the_strategy_may_be_a_class_of_the_users(place: Place, path: ObjectPath, other: JdbcCatalog) -> None:
    strict = place.catalog(schema_conflicts=strict_schemas.NAME)
    run(strict, path, CREATE, ROWS, SCHEMA)
    slow = stage(strict, path, INSERT, NEW, SCHEMA)
    other.alter_table(path, [add("more")])
    with pytest.raises(ConcurrentSchemaEvolutionError, match="says the user"):
        slow.commit()
    slow.abort()
    strict.close()


@pytest.mark.parametrize(
    ("name", "said"),
    [("rfc82", "rfc-82"), ("nowhere:X", "imported"), (f"{__name__}:columns", "no SchemaConflictResolutionStrategy")],
)
@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_an_unknown_strategy_is_refused_when_the_catalog_is_opened(place: Place, name: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        place.catalog(schema_conflicts=name)
