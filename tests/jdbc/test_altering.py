"""``ALTER TABLE``: what the rules of schema evolution allow, each database does, in one step; else nothing changes."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.jdbc.places import Place
from tests.jdbc.statements import run
from twophase.catalog import TableChange
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import CatalogError, ConfigurationError
from twophase.model import ObjectPath, Purpose, Transform
from twophase.schema.errors import SchemaError

SCHEMA = pa.schema(
    [
        pa.field("id", pa.int32()),
        pa.field("name", pa.string(), True, {"comment": "who"}),
        pa.field("ratio", pa.float32()),
        pa.field("price", pa.decimal128(5, 2)),
        pa.field("missing", pa.string()),
    ]
)
ROWS = [(1, "one", 1.1, None, None), (2, "two", None, None, None)]


def field(name: str, kind: pa.DataType, default: str | None = None, **facts: Any) -> dict[str, Any]:
    """The argument ``field`` as Spark's layer makes it."""
    metadata = None if default is None else _spark_field(name, default)
    return {"field": pa.schema([pa.field(name, kind, facts.pop("nullable", True), metadata)]), **facts}


def _spark_field(name: str, default: str) -> dict[str, str]:
    return {"SPARK:field": f'{{"name": "{name}", "type": "other", "metadata": {{"CURRENT_DEFAULT": "{default}"}}}}'}


def add(name: str, kind: pa.DataType = pa.int32(), **facts: Any) -> TableChange:  # noqa: B008
    return TableChange("add_column", (name,), field(name, kind, **facts))


def retype(name: str, kind: pa.DataType) -> TableChange:
    return TableChange("update_column_type", (name,), field(name, kind))


def drop(name: str) -> TableChange:
    return TableChange("drop_column", (name,))


def rename(name: str, new: str) -> TableChange:
    return TableChange("rename_column", (name,), {"name": new})


def null(name: str, nullable: bool) -> TableChange:
    return TableChange("update_column_nullability", (name,), {"nullable": nullable})


def comment(name: str, text: str | None) -> TableChange:
    return TableChange("update_column_comment", (name,), {"comment": text})


def shape(catalog: JdbcCatalog, path: ObjectPath) -> list[tuple[str, str, bool, str | None]]:
    """Names, types, NULL and comments of the columns."""
    return [
        (f.name, str(f.type), f.nullable, ((f.metadata or {}).get(b"comment") or b"").decode() or None)
        for f in catalog.load_table(path).schema
    ]


@pytest.fixture
def table(catalog: JdbcCatalog, path: ObjectPath) -> ObjectPath:
    """A table of two rows."""
    run(catalog, path, Purpose.CREATE_TABLE_AS, ROWS, SCHEMA)
    return path


@pytest.mark.promise("evolution", "in a database: the rules of all stores, by its own `ALTER TABLE`, in one step")
def test_a_table_changes_in_every_way_and_keeps_its_rows(catalog: JdbcCatalog, table: ObjectPath, place: Place) -> None:
    catalog.alter_table(table, [rename("name", "label"), comment("label", "it's \\ so"), retype("id", pa.int64())])
    catalog.alter_table(table, [retype("ratio", pa.float64()), retype("price", pa.decimal128(20, 2)), drop("missing")])
    catalog.alter_table(table, [add("more", pa.string()), add("missing", pa.int32(), default="7"), null("id", False)])
    assert shape(catalog, table) == [
        ("id", "int64", False, None),
        ("label", "string", True, "it's \\ so"),
        ("ratio", "double", True, None),
        ("price", "decimal128(20, 2)", True, None),
        ("more", "string", True, None),
        ("missing", "int32", True, None),
    ]
    found = sorted(place.rows(table))
    assert [tuple(row[:2]) + tuple(row[4:]) for row in found] == [(1, "one", None, 7), (2, "two", None, 7)]
    assert found[0][2] == pytest.approx(1.1, rel=1e-6)
    catalog.alter_table(table, [null("id", True), comment("label", None)])
    assert shape(catalog, table)[:2] == [("id", "int64", True, None), ("label", "string", True, None)]


@pytest.mark.promise("evolution", "in a database: a column's DEFAULT is set and dropped, and old rows stay as they are")
def test_a_default_is_set_and_dropped(catalog: JdbcCatalog, table: ObjectPath, place: Place) -> None:
    def default(name: str, sql: str | None) -> TableChange:
        return TableChange("update_column_default", (name,), {"default": sql})

    def insert(number: int) -> tuple[Any, ...]:
        place.execute(f"INSERT INTO {place.name(table)} (id) VALUES ({number})", table.database)
        (found,) = [row[1:] for row in place.rows(table) if row[0] == number]
        return tuple(found)

    catalog.alter_table(table, [drop("ratio"), drop("price"), add("n", default="5")])
    changes = [default("name", "'it-is'"), default("n", "6"), default("missing", "NULL"), null("n", False)]
    catalog.alter_table(table, changes)
    assert insert(3) == ("it-is", None, 6)
    catalog.alter_table(table, [default("name", None), default("n", "-7"), rename("missing", "rest")])
    assert insert(4) == (None, None, -7)
    assert sorted(place.rows(table))[:2] == [(1, "one", None, 5), (2, "two", None, 5)]
    before = shape(catalog, table)
    for change in (default("n", "1 + 1"), default("n", "'x'"), default("nowhere", "1")):
        with pytest.raises((CatalogError, SchemaError)):
            catalog.alter_table(table, [default("name", "'lost'"), change])
    assert (shape(catalog, table), insert(5)) == (before, (None, None, -7))
    catalog.alter_table(table, [default("n", None)])
    with pytest.raises(Exception, match=r"(?i)default|null"):
        insert(6)


def test_columns_take_their_place_where_the_database_can(catalog: JdbcCatalog, table: ObjectPath, place: Place) -> None:
    changes = [
        add("front", position="first"),
        add("behind", position="after:id"),
        TableChange("move_column", ("missing",), {"position": "after:front"}),
    ]
    if place.kind == "postgresql":
        with pytest.raises(CatalogError, match=r"PostgreSQL cannot move a column of .*a new column comes last"):
            catalog.alter_table(table, changes)
        return
    catalog.alter_table(table, changes)
    assert [name for name, *_ in shape(catalog, table)] == "front missing id behind name ratio price".split()
    assert shape(catalog, table)[4] == ("name", "string", True, "who")
    assert sorted(row[2:5] for row in place.rows(table)) == [(1, None, "one"), (2, None, "two")]


@pytest.mark.parametrize(
    "change",
    [
        retype("id", pa.int16()),
        retype("id", pa.string()),
        retype("ratio", pa.int32()),
        retype("price", pa.decimal128(9, 4)),
        retype("name", pa.int32()),
        rename("name", "ID"),
        rename("nowhere", "somewhere"),
        add("NAME"),
        add("more", nullable=False),
        drop("nowhere"),
        null("missing", False),
        TableChange("move_column", ("id",), {"position": "after:id"}),
    ],
    ids=lambda change: f"{change.kind} {change.path[0]}",
)
def test_what_the_rules_refuse_changes_nothing_in_any_database(
    catalog: JdbcCatalog, table: ObjectPath, change: TableChange
) -> None:
    before = shape(catalog, table)
    with pytest.raises(SchemaError):
        catalog.alter_table(table, [add("first_of_all"), change])
    assert shape(catalog, table) == before


def test_a_database_has_no_partition_fields(catalog: JdbcCatalog, table: ObjectPath) -> None:
    change = TableChange("add_partition_field", (), {"new": Transform.identity("id"), "name": None})
    with pytest.raises(CatalogError, match="only an Iceberg table has partition fields"):
        catalog.alter_table(table, [change])


def test_columns_of_the_key_and_the_last_column_stay(catalog: JdbcCatalog, path: ObjectPath, place: Place) -> None:
    place.execute(f"CREATE TABLE {place.name(path)} (id INT NOT NULL PRIMARY KEY, n INT)", path.database)
    for change in (drop("id"), rename("id", "key"), null("id", True)):
        with pytest.raises(SchemaError):
            catalog.alter_table(path, [change])
    other = ObjectPath(path.namespace, "single")
    place.execute(f"CREATE TABLE {place.name(other)} (id INT)", path.database)
    with pytest.raises(SchemaError):
        catalog.alter_table(other, [drop("id")])


def test_wider_types_keep_their_values_where_the_catalog_allows_them(place: Place, path: ObjectPath) -> None:
    catalog = place.catalog(promotion="wide")
    schema = pa.schema(
        [("id", pa.int32()), ("short", pa.decimal128(5, 2)), ("long", pa.decimal128(20, 2)), ("small", pa.int16())]
    )
    run(catalog, path, Purpose.CREATE_TABLE_AS, [], schema)
    place.execute(f"INSERT INTO {place.name(path)} VALUES (7, 1.5, '2.25', 3)", path.database)
    catalog.alter_table(
        path,
        [
            retype("id", pa.decimal128(20, 1)),
            retype("short", pa.decimal128(20, 4)),
            retype("long", pa.decimal128(30, 3)),
            retype("small", pa.int32()),
        ],
    )
    assert [[str(value) for value in row] for row in place.rows(path)] == [["7.0", "1.5000", "2.250", "3"]]
    catalog.close()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_a_wider_decimal_of_sqlite_keeps_each_value_and_null(place: Place, path: ObjectPath) -> None:
    """Also those of the smallest and largest numbers, and of rows that another program has written its way."""
    catalog = place.catalog(promotion="wide")
    schema = pa.schema([("short", pa.decimal128(15, 2)), ("long", pa.decimal128(20, 10)), ("n", pa.int64())])
    given = [(Decimal("9999999999999.97"), Decimal("0.0000001"), 7), (None, None, None)]
    run(catalog, path, Purpose.CREATE_TABLE_AS, given, schema)
    assert place.execute("SELECT long FROM daily", path.database) == [("0.0000001000",), (None,)]
    place.execute("INSERT INTO daily VALUES (2, '2', -3), (2.5, '-1.000E-7', 4)", path.database)
    wider = [("short", pa.decimal128(20, 4)), ("long", pa.decimal128(24, 12)), ("n", pa.decimal128(21, 1))]
    catalog.alter_table(path, [retype(name, kind) for name, kind in wider])
    assert place.rows(path) == [
        ("9999999999999.9700", "0.000000100000", "7.0"),
        (None, None, None),
        ("2.0000", "2.000000000000", "-3.0"),
        ("2.5000", "-0.000000100000", "4.0"),
    ]
    catalog.close()


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_the_policy_of_a_table_goes_before_that_of_the_catalog(catalog: JdbcCatalog, path: ObjectPath) -> None:
    def choose(name: str, value: str) -> None:
        catalog.alter_table(path, [TableChange("set_property", (), {"key": f"twophase.{name}", "value": value})])

    run(catalog, path, Purpose.CREATE_TABLE_AS, [(1, 2)], pa.schema([("id", pa.int16()), ("n", pa.int16())]))
    with pytest.raises(SchemaError):
        catalog.alter_table(path, [retype("id", pa.int32())])
    choose("promotion", "wide")
    catalog.alter_table(path, [retype("id", pa.int32())])
    for name, value in (("promotion", "hudi"), ("on_cast_failure", "null")):
        choose(name, value)
        with pytest.raises(ConfigurationError, match=f"twophase.{name}"):
            catalog.alter_table(path, [retype("n", pa.int32())])
        catalog.alter_table(path, [TableChange("remove_property", (), {"key": f"twophase.{name}"})])
    with pytest.raises(SchemaError):
        catalog.alter_table(path, [retype("n", pa.int32())])
    assert [str(one.type) for one in catalog.load_table(path).schema] == ["int32", "int16"]


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
def test_sqlite_makes_a_table_anew_with_its_indexes_and_defaults_or_refuses(
    catalog: JdbcCatalog, path: ObjectPath, place: Place
) -> None:
    def kept(kind: str) -> list[Any]:
        return place.execute(f"SELECT name FROM sqlite_master WHERE type = '{kind}'", path.database)

    place.execute('CREATE TABLE daily (id INT, n INT DEFAULT 5, "check" TEXT)', path.database)
    place.execute("CREATE INDEX by_n ON daily (n)", path.database)
    place.execute("CREATE VIEW few AS SELECT id FROM daily", path.database)
    place.execute("INSERT INTO daily (id) VALUES (1)", path.database)
    catalog.alter_table(path, [TableChange("set_comment", (), {"comment": "by day"})])
    catalog.alter_table(path, [retype("id", pa.int64()), add("m", position="first")])
    place.execute("INSERT INTO daily (id) VALUES (3000000000)", path.database)
    assert place.rows(path) == [(None, 1, 5, None), (None, 3_000_000_000, 5, None)]
    assert (("by_n",) in kept("index"), kept("view")) == (True, [("few",)])
    assert catalog.load_table(path).comment == "by day"
    for number, clause in enumerate(
        ("n INT CHECK (n > 0)", "n INTEGER PRIMARY KEY", "n INT UNIQUE", "n INT) STRICT --")
    ):
        other = ObjectPath(path.namespace, f"t{number}")
        place.execute(
            f"CREATE TABLE t{number} (id INT, {clause}\n)"
            if "--" not in clause
            else f"CREATE TABLE t{number} (id INT, {clause}",
            path.database,
        )
        with pytest.raises(CatalogError, match=r"SQLite cannot .*; nothing was changed"):
            catalog.alter_table(other, [retype("id", pa.int64())])
        catalog.alter_table(other, [rename("id", "key")])  # What SQLite does itself is left to it.
