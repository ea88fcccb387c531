"""Tables that other programs have made in SQLite, where any column holds values of any type."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place
from tests.jdbc.statements import run, stage
from twophase.catalog import TableChange
from twophase.catalog.reading import Filter
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place("sqlite", request, tmp_path)


@pytest.fixture
def catalog(place: Place) -> Iterator[JdbcCatalog]:
    made = place.catalog()
    yield made
    made.close()


@pytest.mark.parametrize("made", ["TABLE", "VIEW"])
def test_a_condition_finds_a_text_in_a_column_that_was_declared_without_a_type(
    place: Place, catalog: JdbcCatalog, made: str
) -> None:
    place.execute("CREATE TABLE numbers (x INT, name TEXT)")
    place.execute("INSERT INTO numbers VALUES (1, 'one'), (2, 'two')")
    place.execute(f"CREATE {made} more AS SELECT x + 1 AS n, name FROM numbers")
    reader = catalog.read_source(ObjectPath.of("main", "more")).reader
    assert reader is not None
    assert not reader.accepts(Filter("=", "n", ("2",))), "Spark must compare the texts itself: to SQLite 2 is no '2'."
    assert reader.accepts(Filter("=", "name", ("one",)))


KEPT = ["abc", '{"a": 1}', "7", "", None, "9f0c2b6e-8a52-4a0e-9d5d-0e3c1e6f1a77", "x" * 70_000]


@pytest.mark.parametrize("declared", ["STRING", "JSON"])
def test_texts_are_kept_in_a_column_of_any_declared_type_or_refused(
    place: Place, catalog: JdbcCatalog, declared: str
) -> None:
    """Such a column makes numbers of texts where it can."""
    path = ObjectPath.of("main", "codes")
    place.execute(f"CREATE TABLE codes (code {declared})")
    schema = pa.schema([("code", pa.string())])
    run(catalog, path, Purpose.INSERT_INTO, [(text,) for text in KEPT], schema)
    for changed in ("007", "1e5", "0123456789012345678901", " 7"):
        with pytest.raises(CatalogError, match=f"'code' was declared {declared}: SQLite would store") as refused:
            stage(catalog, path, Purpose.INSERT_INTO, [("abc",), (changed,)], schema)
        assert "Declare it TEXT" in str(refused.value)
    assert [None if code is None else str(code) for (code,) in place.rows(path)] == KEPT


def test_decimals_are_kept_in_a_column_of_any_declared_type_or_refused(place: Place, catalog: JdbcCatalog) -> None:
    """A declared DECIMAL holds some fifteen digits; those beyond would become others."""
    path = ObjectPath.of("main", "sums")
    place.execute("CREATE TABLE sums (amount DECIMAL(20,2))")
    schema, kept = (
        catalog.load_table(path).schema,
        [Decimal("-9999999999999.99"), Decimal("0.10"), None, Decimal("7E17")],
    )
    run(catalog, path, Purpose.INSERT_INTO, [(amount,) for amount in kept], schema)
    with pytest.raises(CatalogError, match=r"'amount' was declared DECIMAL\(20,2\).*123456789012345678\.91") as refused:
        stage(catalog, path, Purpose.INSERT_INTO, [(Decimal("123456789012345678.91"),)], schema)
    assert "Declare it DECIMALTEXT(20,2)" in str(refused.value)
    reader = catalog.read_source(path).reader
    assert reader is not None
    stored = [row["amount"] for part in reader.plan(["amount"], []) for batch in part() for row in batch.to_pylist()]
    assert stored == kept


#: Of what is no index: how it is declared, and what it is called.
DEFINED = {
    "(id INTEGER NOT NULL, name TEXT, PRIMARY KEY (id))": "primary key",
    "(id INTEGER NOT NULL PRIMARY KEY, name TEXT)": "primary key",
    "(id INTEGER CONSTRAINT pk PRIMARY KEY, name TEXT)": "primary key",
    "(id INTEGER PRIMARY KEY, name TEXT) WITHOUT ROWID": "WITHOUT ROWID",
    "(id INTEGER, name TEXT) STRICT": "STRICT",
    "(id INTEGER, name TEXT GENERATED ALWAYS AS ('x' || id))": "generated column name",
}


@pytest.mark.promise("preserved", "a primary key or generated column of SQLite that a replace loses is named")
@pytest.mark.parametrize("declared", DEFINED)
def test_what_only_a_definition_says_is_named_by_a_replace_and_keeps_a_table_from_being_made_anew(
    place: Place, catalog: JdbcCatalog, declared: str
) -> None:
    path = ObjectPath.of("main", "defined")
    place.execute(f"CREATE TABLE defined {declared}")
    with pytest.raises(CatalogError, match=f"made anew, without its .*{DEFINED[declared]}"):
        catalog.alter_table(path, [TableChange("move_column", ("name",), {"position": "first"})])
    lost = run(catalog, path, Purpose.CREATE_OR_REPLACE_TABLE_AS).document["lost"]
    assert any(text.startswith(f"{DEFINED[declared]} (") for text in lost)


def test_a_table_without_anything_of_the_kind_is_replaced_and_made_anew_without_a_word(
    place: Place, catalog: JdbcCatalog
) -> None:
    path = ObjectPath.of("main", "plain")
    place.execute("CREATE TABLE plain (id INTEGER NOT NULL, strict TEXT DEFAULT ('a'), \"PRIMARY KEY\" DECIMAL(9,2))")
    catalog.alter_table(path, [TableChange("move_column", ("strict",), {"position": "first"})])
    assert catalog.load_table(path).schema.names == ["strict", "id", "PRIMARY KEY"]
    schema = pa.schema([("strict", pa.string())])
    assert run(catalog, path, Purpose.CREATE_OR_REPLACE_TABLE_AS, [("a",)], schema).document["lost"] == []
