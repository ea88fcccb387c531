"""Where MariaDB and MySQL go ways of their own, the catalog does the same on both."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest
import sqlalchemy as sa
from pymysql import _auth

from tests import servers
from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, Row, open_jdbc, ordered
from tests.jdbc.statements import SCHEMA, offer, read, run, table
from twophase.catalog import TableChange
from twophase.catalog.reading import Filter
from twophase.catalogs.jdbc import JdbcCatalog, errors
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose

REPLACE = Purpose.CREATE_OR_REPLACE_TABLE_AS


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place("mariadb", request, tmp_path)


@pytest.fixture
def name(place: Place, path: ObjectPath) -> str:
    return place.name(path)


@pytest.fixture
def lower_case() -> Iterator[Place]:
    """A server that writes all names in lower case, as on Windows and in some clouds."""
    with servers.mariadb("--lower-case-table-names=1") as server:
        yield Place("mariadb", server.url)


def test_a_read_that_is_ended_early_leaves_the_rest_unread(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    run(catalog, path, rows=[(number, "x" * 1000) for number in range(40_000)])
    sent = "SELECT variable_value FROM {}.global_status WHERE variable_name = 'Bytes_sent'"
    schema = "information_schema" if "MariaDB" in place.execute("SELECT version()")[0][0] else "performance_schema"
    before = int(place.execute(sent.format(schema))[0][0])
    reader = place.catalog(batch_rows="100").read_source(path).reader
    assert reader is not None
    batches = iter(reader.plan(["name"], [])[0]())
    assert next(batches).num_rows == 100
    batches.close()  # type: ignore[attr-defined]
    assert int(place.execute(sent.format(schema))[0][0]) - before < 20_000_000


@pytest.mark.promise("defaults", "a column with a computed default on MariaDB and MySQL gets the rows' own values")
def test_a_column_with_a_computed_default_gets_the_rows_values(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(
        f"CREATE TABLE {name} (id bigint DEFAULT (1 + 1), name varchar(40) DEFAULT (concat('it''s', 'x')), "
        "seen datetime(6) DEFAULT current_timestamp(6), twice bigint AS (id * 2) STORED)"
    )
    schema = pa.schema([*SCHEMA, pa.field("seen", pa.timestamp("us")), pa.field("twice", pa.int64())])
    run(catalog, path, Purpose.INSERT_INTO, [(1, "one", 0, 0), (None, None, None, None)], schema)
    shown = f"SELECT id, name, CAST(seen AS CHAR), twice FROM {name}"
    assert ordered(place.execute(shown)) == ordered([(1, "one", "1970-01-01 00:00:00.000000", 2), (None,) * 4])


def test_defaults_are_there_after_a_replace_and_after_a_comment(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    columns = {
        "id": ("bigint DEFAULT (40 + 2)", 42),
        "name": ("longtext DEFAULT (concat('it''s \\\\', '\"x'))", "it's \\\"x"),
        "code": ("varchar(20) DEFAULT 'it''s \\\\ x'", "it's \\ x"),
        "bytes": ("varbinary(20) DEFAULT 'abc'", b"abc"),
        "bits": ("bit(3) DEFAULT b'101'", b"\x05"),
        "day": ("date DEFAULT '2024-02-29'", date(2024, 2, 29)),
        "plain": ("bigint", None),
        "seen": ("timestamp(6) NULL DEFAULT current_timestamp(6) ON UPDATE current_timestamp(6)", 1),
    }
    body = ", ".join(f"{column} {kind}" for column, (kind, _) in columns.items())
    place.execute(f"CREATE TABLE {name} ({body})")
    with catalog.store.begin(path.database) as connection:
        for column in columns:
            catalog.store.database.set_column_comment(connection, path, column, f"the {column}")
    made = {column: value for column, (_, value) in columns.items()}
    assert _by_default(place, name) == tuple(made.values())
    replaced = run(catalog, path, REPLACE, [(None,) * len(columns)], catalog.load_table(path).schema)
    # They are texts and bytes of any length now, which have no default of that kind.
    gone = ("bits", "bytes", "code")
    told = [f"default of column {column} (column {column} is gone or has another type)" for column in gone]
    assert sorted(replaced.document["lost"]) == told
    assert _by_default(place, name) == tuple((made | dict.fromkeys(gone)).values())


def _by_default(place: Place, name: str) -> Row:
    """A row of defaults alone, in whose last column an UPDATE wrote the time by itself."""
    place.execute(f"DELETE FROM {name}")
    place.execute(f"INSERT INTO {name} (seen) VALUES ('2001-01-01')")
    place.execute(f"UPDATE {name} SET plain = 1")
    place.execute(f"UPDATE {name} SET plain = NULL")
    names = "id, name, code, bytes, bits, day, plain, seen > '2020-01-01'"
    (row,) = place.execute(f"SELECT {names} FROM {name}")
    return row


@pytest.mark.promise("preserved", "a replace on MariaDB and MySQL keeps checks and partitions")
def test_checks_and_partitions_are_there_after_a_replace(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(
        f"CREATE TABLE {name} (id bigint, name longtext, CONSTRAINT positive CHECK (id > 0), CHECK (id < 1000)) "
        "PARTITION BY HASH (id) PARTITIONS 3"
    )
    lost = run(catalog, path, REPLACE).document["lost"]
    # MySQL has the name of a constraint once in a database.
    ours = "MariaDB" in place.execute("SELECT version()")[0][0]
    assert [what.split(" (")[0] for what in lost] == ([] if ours else ["name of constraint `positive`"])
    for bad in (0, 1000):
        with pytest.raises(Exception, match=r"(?i)constraint"):
            place.execute(f"INSERT INTO {name} VALUES ({bad}, 'x')")
    parts = "SELECT count(*) FROM information_schema.PARTITIONS WHERE TABLE_SCHEMA = '{}' AND TABLE_NAME = '{}'"
    assert place.execute(parts.format(path.database, path.name)) == [(3,)]
    assert run(catalog, path, REPLACE).document["lost"] == []


@pytest.mark.parametrize("known", ["by its kind", "by its dialect only"])
def test_a_document_is_found_by_its_text(
    request: pytest.FixtureRequest, tmp_path: Path, catalog: JdbcCatalog, path: ObjectPath, known: str
) -> None:
    place = make_place("mariadb", request, tmp_path)
    name = place.name(path)
    place.execute(f"CREATE TABLE {name} (id bigint, name json)")
    run(catalog, path, Purpose.INSERT_INTO, [(1, '{"a": 1}'), (2, "[]")])
    looks = (place if known == "by its kind" else make_place("plain-mariadb", request, tmp_path)).catalog()
    assert {"id": 1, "name": '{"a": 1}'} in read(looks, path, Filter("=", "name", ('{"a": 1}',)))
    looks.close()


def test_what_is_no_document_is_refused(place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str) -> None:
    place.execute(f"CREATE TABLE {name} (id bigint, name json)")
    run(catalog, path, Purpose.INSERT_INTO, [(1, '{"a": 1}'), (2, "[]")])
    broken = offer(catalog, path, Purpose.INSERT_INTO)
    broken.begin()
    with contextlib.suppress(CatalogError):  # MySQL knows it at once, MariaDB by the constraint of the table.
        broken.write(table([(3, '{"a": ')]))
        broken.prepare()
        broken.commit()
    broken.abort()
    assert len(place.rows(path)) == 2


def test_geometries_are_read_and_written_as_bytes(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(f"CREATE TABLE {name} (id bigint, shape geometry)")
    place.execute(f"INSERT INTO {name} VALUES (1, ST_GeomFromText('POINT(1 2)'))")
    (row,) = read(catalog, path)
    run(catalog, path, Purpose.INSERT_INTO, [(2, row["shape"])], catalog.load_table(path).schema)
    assert place.execute(f"SELECT ST_AsText(shape) FROM {name}") == [("POINT(1 2)",)] * 2


def test_a_name_that_the_server_would_write_in_lower_case_is_refused_before_any_work(lower_case: Place) -> None:
    catalog, path = lower_case.catalog(), ObjectPath.of("twophase", "daily")
    run(catalog, path)
    for other in ("Daily", "New"):
        with pytest.raises(CatalogError, match=rf"lower_case_table_names.*Write {other.lower()}"):
            run(catalog, ObjectPath.of("twophase", other), REPLACE)
    with pytest.raises(CatalogError, match=r"lower_case_table_names.*Write shop"):
        catalog.create_database("Shop")
    run(catalog, path, REPLACE, [(3, "three")])
    assert lower_case.rows(path) == [(3, "three")]
    assert lower_case.hidden("twophase") == []
    catalog.close()


def test_what_the_driver_lacks_for_a_password_without_tls_is_reported(
    catalog: JdbcCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_auth, "_have_cryptography", False)
    with pytest.raises(CatalogError, match="over TLS only"), errors.speaking(catalog.store.settings):
        _auth.sha2_rsa_encrypt(b"secret", b"salt", b"")


def test_a_server_that_takes_no_writes_is_reported_before_any_job(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    place.execute("CREATE USER IF NOT EXISTS writer@'%' IDENTIFIED BY 'writer'")
    place.execute(f"GRANT ALL ON {place.quote(path.database)}.* TO writer@'%'")
    url = sa.engine.make_url(place.url).set(username="writer", password="writer", database=path.database)
    other = open_jdbc(url=url.render_as_string(hide_password=False))
    participant = offer(other, path, Purpose.CREATE_TABLE_AS)
    place.execute("SET GLOBAL read_only = ON")
    try:
        with pytest.raises(CatalogError, match=r"takes no writes.*replica"):
            participant.begin()
    finally:
        place.execute("SET GLOBAL read_only = OFF")
        place.execute("DROP USER writer@'%'")
    other.close()


def test_grants_are_there_after_a_replace(place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str) -> None:
    run(catalog, path)
    place.execute("CREATE USER IF NOT EXISTS reader@'%' IDENTIFIED BY 'reader'")
    place.execute(f"GRANT SELECT (id), UPDATE (id) ON {name} TO reader@'%'")
    run(catalog, path, REPLACE, [(3, "three")])
    url = sa.engine.make_url(place.url).set(username="reader", password="reader", database=path.database)
    reader = Place(place.kind, url.render_as_string(hide_password=False))
    reader.execute(f"UPDATE {name} SET id = 4")
    assert reader.execute(f"SELECT id FROM {name}") == [(4,)]
    with pytest.raises(Exception, match=r"denied"):
        reader.execute(f"SELECT name FROM {name}")
    place.execute("DROP USER reader@'%'")


def test_the_doctor_reports_a_server_that_may_forget_what_it_committed(place: Place, catalog: JdbcCatalog) -> None:
    for setting, told in ((2, [True]), (1, [])):
        place.execute(f"SET GLOBAL innodb_flush_log_at_trx_commit = {setting}")
        assert ["innodb_flush_log_at_trx_commit" in problem for problem in catalog.check()] == told


def test_a_server_that_is_gone_without_a_word_is_noticed_and_a_slow_statement_is_waited_for(
    catalog: JdbcCatalog, path: ObjectPath
) -> None:
    with catalog.store.engine(path.database).connect() as connection:
        connected = connection.connection.dbapi_connection._sock  # type: ignore[union-attr]
        assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert connected.gettimeout() is None
        assert connection.scalar(sa.text("SELECT sleep(1.1)")) == 0


def test_a_server_that_says_nothing_is_given_up() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as silent:
        url = f"mysql+pymysql://user@127.0.0.1:{silent.getsockname()[1]}/shop"
        catalog = open_jdbc(url=url, connect_timeout="1")
        with pytest.raises(CatalogError, match=r"timed out|Lost connection"):
            catalog.list_databases()
        catalog.close()


@pytest.mark.promise("preserved", "on MariaDB and MySQL what a replace cannot keep of columns and storage is named")
def test_a_replace_keeps_or_names_what_columns_and_the_table_have_of_their_own(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(
        f"CREATE TABLE {name} (id bigint NOT NULL AUTO_INCREMENT COMMENT 'its number', price int CHECK (price > 0), "
        "doc longtext COLLATE utf8mb4_bin CHECK (json_valid(doc)), twice int GENERATED ALWAYS AS (price * 2) STORED, "
        "hidden int DEFAULT 5 INVISIBLE COMMENT 'GENERATED', PRIMARY KEY (id)) "
        "ENGINE=InnoDB AUTO_INCREMENT=1000 ROW_FORMAT=COMPRESSED KEY_BLOCK_SIZE=8 CHARACTER SET utf8mb4"
    )
    (before,) = [sql for _, sql in place.execute(f"SHOW CREATE TABLE {name}")]
    schema = catalog.load_table(path).schema
    lost = run(catalog, path, REPLACE, [(7, 1, "{}", 3, 4)], schema).document["lost"]
    assert [text.split(" (")[0] for text in lost] == ["generated column twice"]
    (after,) = [sql for _, sql in place.execute(f"SHOW CREATE TABLE {name}")]
    assert after == before.replace(" GENERATED ALWAYS AS (`price` * 2) STORED", " DEFAULT NULL")
    place.execute(f"INSERT INTO {name} (price) VALUES (8)")
    assert place.execute(f"SELECT id, hidden FROM {name} WHERE price = 8") == [(1000, 5)]
    lost = run(catalog, path, REPLACE, [(7, 0, "{}", 3, 4)], schema).document["lost"]
    assert [text.split(" (")[0] for text in lost] == ["check of column price"]


@pytest.mark.promise("preserved", "a column of MariaDB and MySQL that is altered keeps all else that it is")
def test_a_column_that_is_altered_keeps_all_else_that_it_is(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(
        f"CREATE TABLE {name} (id bigint, code varchar(9) COLLATE utf8mb4_bin INVISIBLE, price int CHECK (price > 0), "
        "twice int GENERATED ALWAYS AS (id * 2) STORED, half text GENERATED ALWAYS AS (concat(id, '''')) VIRTUAL) "
        "CHARACTER SET utf8mb4"
    )
    ((_, before),) = place.execute(f"SHOW CREATE TABLE {name}")
    for text in ("seen", ""):
        said = [
            TableChange("update_column_comment", (c,), {"comment": text}) for c in ("code", "price", "twice", "half")
        ]
        catalog.alter_table(path, said)
    catalog.alter_table(path, [TableChange("move_column", (c,), {"position": "first"}) for c in ("half", "price")])
    catalog.alter_table(path, [TableChange("rename_column", ("price",), {"name": "cost"})])
    said = [TableChange("rename_column", ("cost",), {"name": "fee"})]
    catalog.alter_table(path, [*said, TableChange("update_column_comment", ("fee",), {"comment": "due"})])
    ((_, after),) = place.execute(f"SHOW CREATE TABLE {name}")
    after = after.replace("`fee`", "`price`").replace(" COMMENT 'due'", "")
    assert sorted(line.strip(",") for line in after.splitlines()) == sorted(
        line.strip(",") for line in before.splitlines()
    )


def test_a_replace_names_the_engine_that_goes_and_nothing_of_a_plain_table(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(f"CREATE TABLE {name} (id bigint NOT NULL, name varchar(9)) ENGINE=MyISAM")
    lost = run(catalog, path, REPLACE, [(1, "one")]).document["lost"]
    assert [text.split(" (")[0] for text in lost] == ["ENGINE"]
    place.execute(
        f"CREATE OR REPLACE TABLE {name} (id bigint NOT NULL COMMENT 'CHECK (', name longtext, KEY k (name(5)))"
    )
    for _ in range(2):
        assert run(catalog, path, REPLACE, [(1, "one")]).document["lost"] == []


@pytest.mark.promise("preserved", "a table of MariaDB with system versioning keeps its history, or is not replaced")
def test_a_table_with_system_versioning_keeps_its_history_or_is_not_replaced(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, name: str
) -> None:
    place.execute(f"CREATE TABLE {name} (id bigint, name longtext) WITH SYSTEM VERSIONING")
    place.execute(f"INSERT INTO {name} VALUES (1, 'one')")
    run(catalog, path, REPLACE, [(2, "two")])
    past = place.execute(f"SELECT id, name FROM {name} FOR SYSTEM_TIME ALL")
    assert ordered(past) == [(1, "one"), (2, "two")]
    with pytest.raises(CatalogError, match="its history would be lost"):
        offer(catalog, path, REPLACE, pa.schema([SCHEMA.field("id")]))
