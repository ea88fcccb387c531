"""Tables that other programs have made in SQLite, where any column holds values of any type."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place
from twophase.catalog.reading import Filter
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.model import ObjectPath


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
