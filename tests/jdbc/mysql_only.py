"""What MySQL has and MariaDB has not. No part of the other tests: ``make test-mysql`` runs it, and all that MariaDB
passes, on a MySQL server.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests import servers
from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, open_jdbc, ordered
from tests.jdbc.statements import ROWS, SCHEMA, offer, run
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose

REPLACE = Purpose.CREATE_OR_REPLACE_TABLE_AS


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place("mariadb", request, tmp_path)


@pytest.fixture
def keyed() -> Iterator[Place]:
    """A server that wants a key in each table, and gives one that nobody sees to those without."""
    with servers.mariadb("--sql-require-primary-key=ON", "--sql-generate-invisible-primary-key=ON") as server:
        yield Place("mariadb", server.url)


def test_it_is_mysql(place: Place) -> None:
    ((version,),) = place.execute("SELECT version()")
    assert "MariaDB" not in version
    assert int(version.split(".")[0]) >= 8


def test_a_key_that_nobody_sees_is_no_column_and_gives_way_to_the_tables_own(keyed: Place) -> None:
    catalog, path = keyed.catalog(), ObjectPath.of("twophase", "daily")
    run(catalog, path)
    assert catalog.load_table(path).schema.names == SCHEMA.names
    run(catalog, path, Purpose.INSERT_INTO, [(3, "three")])
    reader = catalog.read_source(path).reader
    assert reader is not None
    found = [tuple(row.values()) for part in reader.plan(SCHEMA.names, []) for b in part() for row in b.to_pylist()]
    assert ordered(found) == [*ROWS, (3, "three")]
    assert run(catalog, path, REPLACE).document["lost"] == []
    assert run(catalog, path, Purpose.INSERT_OVERWRITE).document.get("lost", []) == []
    keyed.execute("ALTER TABLE daily DROP PRIMARY KEY, DROP COLUMN my_row_id, ADD PRIMARY KEY (id)")
    assert run(catalog, path, REPLACE).document["lost"] == []
    keys = "SELECT COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_NAME = 'daily' AND INDEX_NAME = 'PRIMARY'"
    assert keyed.execute(keys) == [("id",)]
    assert ordered(keyed.rows(path)) == ROWS
    assert keyed.hidden("twophase") == []
    catalog.close()


def test_a_server_that_wants_keys_and_makes_none_is_told_before_any_job(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    place.execute("SET GLOBAL sql_require_primary_key = ON")
    participant = offer(place.catalog(), path, Purpose.CREATE_TABLE_AS)
    try:
        with pytest.raises(CatalogError, match="SET PERSIST sql_generate_invisible_primary_key = ON"):
            participant.begin()
    finally:
        place.execute("SET GLOBAL sql_require_primary_key = OFF")
        participant.abort()
    participant.catalog.close()


def test_a_password_without_tls_is_told_what_it_lacks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    # The server remembers nobody's password any more, and asks for it.
    place.execute("FLUSH PRIVILEGES")
    url = sa.engine.make_url(place.url).update_query_dict({"ssl_disabled": "true"})
    catalog = open_jdbc(url=url.render_as_string(hide_password=False))
    with pytest.raises(CatalogError, match="over TLS only") as caught:
        catalog.list_databases()
    assert not re.search(":twophase@", str(caught.value))
    catalog.close()


def test_vectors_are_read_as_bytes(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> None:
    name = place.name(path)
    place.execute(f"CREATE TABLE {name} (id bigint, v vector(2))")
    place.execute(f"INSERT INTO {name} VALUES (1, string_to_vector('[1,2]'))")
    reader = catalog.read_source(path).reader
    assert reader is not None
    (row,) = [row for part in reader.plan(["v"], []) for batch in part() for row in batch.to_pylist()]
    assert row["v"] == pa.array([1.0, 2.0], pa.float32()).buffers()[1].to_pybytes()
    run(catalog, path, Purpose.INSERT_INTO, [(2, row["v"])], catalog.load_table(path).schema)
    assert place.execute(f"SELECT count(DISTINCT vector_to_string(v)) FROM {name}") == [(1,)]
