"""Bad names, values, servers and rights: a clear error, before any job where it can be known, and no secret."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa

from tests import servers
from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, open_jdbc, ordered
from tests.jdbc.statements import ROWS, SCHEMA, offer, run, stage, table, transaction_id
from tests.project.source import ROOT
from tests.servers import free_port
from twophase.catalogs.jdbc import JdbcCatalog, publishing
from twophase.catalogs.jdbc.options import read
from twophase.errors import CatalogError, ConfigurationError, WriteConflictError
from twophase.model import ObjectPath, Outcome, Purpose, WriteContext

SECRET = "s3cr3t-of-the-shop"


def url_of(place: Place, **changes: Any) -> str:
    return sa.engine.make_url(place.url).set(**changes).render_as_string(hide_password=False)


MOMENTS = pa.schema([("at", pa.timestamp("us", tz="UTC"))])


# -- names and values --------------------------------------------------------------------------------------------------

NAMES = [
    "a\"b`c'd",
    "x; DROP TABLE daily; --",
    ":param %s %(x)s {0}",
    "表 ä 😀"[:3],
    "Ünï",
    "a.b.c",
    "q?",
    "back\\slash",
]


@pytest.mark.parametrize("name", NAMES)
def test_odd_names_of_tables_and_columns_are_only_names(
    place: Place, catalog: JdbcCatalog, database: str, name: str
) -> None:
    path, schema = ObjectPath.of(database, name), pa.schema([(name, pa.int64()), ("id", pa.string())])
    run(catalog, path, rows=[(1, "a")], schema=schema, comment=name, properties={name: name})
    run(catalog, path, Purpose.INSERT_INTO, [(2, "b")], schema)
    run(catalog, path, Purpose.CREATE_OR_REPLACE_TABLE_AS, [(3, "c")], schema)
    run(catalog, path, Purpose.INSERT_INTO, [(4, "d")], schema)
    assert ordered(place.rows(path)) == [(3, "c"), (4, "d")]
    reader = catalog.read_source(path).reader
    assert reader is not None
    batches = [batch for part in reader.plan([name], []) for batch in part()]
    assert sorted(pa.Table.from_batches(batches)[name].to_pylist()) == [3, 4]
    assert catalog.list_tables(database) == [name]
    catalog.drop_table(path)


@pytest.mark.parametrize("place", ["sqlite"], indirect=True)
@pytest.mark.parametrize("names", [["rowid"], ["_rowid_", "ROWID"], ["rowid", "_rowid_", "oid"]], ids=",".join)
def test_columns_with_the_names_of_sqlites_row_numbers_are_only_columns(place: Place, names: list[str]) -> None:
    """Neither text nor NULL says which rows are read together, and none is left out."""
    path = ObjectPath.of("main", "numbered")
    values = [None, "z", *range(398)]
    columns = ", ".join(names)
    place.execute(f"CREATE TABLE {place.name(path)} (id INTEGER, {', '.join(f'{name} TEXT' for name in names)})")
    for number, value in enumerate(values):
        shown = ", ".join("NULL" if value is None else f"'{value}'" for _ in names)
        place.execute(f"INSERT INTO {place.name(path)} (id, {columns}) VALUES ({number}, {shown})")
    catalog = place.catalog(read_partition_rows="100")
    reader = catalog.read_source(path).reader
    assert reader is not None
    parts = reader.plan(["id", names[0]], [])
    assert len(parts) == (1 if len(names) == 3 else 4)
    found = [row for part in parts for batch in part() for row in batch.to_pylist()]
    catalog.close()
    assert sorted(row["id"] for row in found) == list(range(400))
    assert {row[names[0]] for row in found} == {None if value is None else str(value) for value in values}


VALUES = [
    "'; DROP TABLE daily; --",
    "\\'",
    "\\",
    "''",
    '"',
    "%s",
    ":x",
    "\t\n\r",
    "\\N",
    "\\.",
    "NULL",
    "",
    " ",
    "😀表",
]


def test_values_that_try_to_be_sql_are_only_values(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> None:
    rows = list(enumerate([*VALUES, None]))
    run(catalog, path, rows=rows)
    run(catalog, path, Purpose.INSERT_INTO, rows)
    assert ordered(place.rows(path)) == ordered(rows * 2)


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
@pytest.mark.parametrize("year", [1969, 2039])
def test_a_moment_that_a_timestamp_of_mariadb_does_not_hold_is_told_with_the_type_that_does(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, year: int
) -> None:
    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS, MOMENTS)
    participant.begin()
    with pytest.raises(CatalogError, match=r"column_types to DATETIME\(6\)"):
        participant.write(table([(datetime(year, 1, 1, tzinfo=UTC),)], MOMENTS))
    participant.abort()


def test_a_name_over_the_limit_is_refused_and_never_cut(place: Place, catalog: JdbcCatalog, database: str) -> None:
    longest = catalog.store.database.longest_name
    run(catalog, ObjectPath.of(database, "n" * longest))
    for name, schema in (("n" * (longest + 1), SCHEMA), ("t", pa.schema([("c" * (longest + 1), pa.int64())]))):
        with pytest.raises(CatalogError, match=f"holds {longest}"):
            offer(catalog, ObjectPath.of(database, name), Purpose.CREATE_TABLE_AS, schema)
    if place.kind == "postgresql":
        with pytest.raises(CatalogError, match="64 long"):
            offer(catalog, ObjectPath.of(database, "ä" * 32), Purpose.CREATE_TABLE_AS)


def test_names_that_share_their_beginning_do_not_collide(place: Place, catalog: JdbcCatalog, database: str) -> None:
    paths = [ObjectPath.of(database, "n" * 60 + end) for end in ("a", "b")]
    staged = [stage(catalog, path, rows=[(number, "x")]) for number, path in enumerate(paths)]
    for participant in staged:
        participant.commit()
        participant.finish()
    assert [place.rows(path) for path in paths] == [[(0, "x")], [(1, "x")]]


def test_staging_lives_under_the_prefix_and_in_the_schema_of_the_users_choice(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = make_place("postgresql", request, tmp_path)
    catalog = place.catalog(staging_schema="yard", staging_prefix="mine_")
    catalog.create_database("yard", ignore_if_exists=True)
    path = ObjectPath.of("public", "from_the_yard")
    participant = stage(catalog, path)
    staged = participant.left_behind()
    assert staged and all(name.startswith("yard.mine_") for name in staged)
    assert catalog.list_tables("yard") == []
    participant.commit()
    participant.finish()
    assert ordered(place.rows(path)) == ROWS
    run(catalog, path, Purpose.REPLACE_TABLE_AS, [(3, "three")])
    assert place.rows(path) == [(3, "three")]
    catalog.drop_table(path)
    catalog.drop_database("yard", cascade=True)
    catalog.close()


# -- rights and servers ------------------------------------------------------------------------------------------------


def test_a_role_without_create_is_told_before_any_job(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = make_place("postgresql", request, tmp_path)
    place.execute("DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
    place.execute("CREATE SCHEMA closed; GRANT USAGE ON SCHEMA closed TO guest")
    catalog = open_jdbc(**place.options(url=url_of(place, username="guest", password=SECRET)))
    participant = offer(catalog, ObjectPath.of("closed", "t"), Purpose.CREATE_TABLE_AS)
    with pytest.raises(CatalogError, match=r"permission denied.*needs CREATE on the schema") as caught:
        participant.begin()
    assert SECRET not in str(caught.value) + repr(catalog)
    assert place.hidden("closed") == []
    catalog.close()
    place.execute("DROP SCHEMA closed CASCADE")


@pytest.fixture
def guest(place: Place, database: str) -> Iterator[str]:
    """The URL of a role that has no rights yet, and may log in."""
    if place.kind == "mariadb":
        place.execute("DROP USER IF EXISTS guest@'%'")
        place.execute(f"CREATE USER guest@'%' IDENTIFIED BY '{SECRET}'")
        yield url_of(place, username="guest", password=SECRET, database=database)
        place.execute("DROP USER guest@'%'")
    else:
        place.execute("DO $$ BEGIN CREATE ROLE guest LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$")
        yield url_of(place, username="guest", password=SECRET)
        place.execute("DROP OWNED BY guest")


SERVERS = pytest.mark.parametrize("place", ["postgresql", "mariadb"], indirect=True)


@SERVERS
def test_a_role_without_rights_on_the_record_of_publishes_is_told_which(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, guest: str
) -> None:
    """Another role has made it, by the first write in the schema."""
    run(catalog, path)
    grants = {
        "postgresql": f"USAGE, CREATE ON SCHEMA {path.database} TO guest",
        "mariadb": f"CREATE, DROP ON {path.database}.* TO guest@'%'",
    }
    place.execute(f"GRANT {grants[place.kind]}")
    guests = open_jdbc(**place.options(url=guest))
    participant = offer(guests, ObjectPath.of(path.database, "other"), Purpose.CREATE_TABLE_AS)
    with pytest.raises(CatalogError, match=r"denied.*_published.*other.*GRANT SELECT.* TO guest") as caught:
        participant.begin()
    assert f"ON {path.database}.__twophase_published TO" in str(caught.value)
    assert place.hidden(path.database) == []
    guests.close()


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_a_role_that_could_not_drop_what_is_staged_stages_nothing(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, guest: str
) -> None:
    """Else its transaction could be neither published nor rolled back, and would hold the table for good."""
    run(catalog, path)
    place.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER ON {path.database}.* TO guest@'%'")
    guests = open_jdbc(**place.options(url=guest))
    for purpose in (Purpose.INSERT_INTO, Purpose.CREATE_OR_REPLACE_TABLE_AS):
        with pytest.raises(CatalogError, match=r"DROP command denied.*daily.*The role needs"):
            offer(guests, path, purpose).begin()
    assert place.hidden(path.database) == []
    guests.close()


@SERVERS
def test_a_reader_who_may_not_see_the_record_of_publishes_is_told_so_in_a_block(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, guest: str
) -> None:
    """Not even that it is there, in MariaDB: a publish would not be noticed. Other reads are in one piece."""
    place.execute(f"CREATE TABLE {place.name(path)} (id BIGINT PRIMARY KEY, name TEXT)")
    run(catalog, path, Purpose.INSERT_INTO, [(i, "x" * 100) for i in range(500)])
    place.execute(f"ANALYZE {'TABLE' if place.kind == 'mariadb' else ''} {place.name(path)}")
    role = "guest@'%'" if place.kind == "mariadb" else "guest"
    if place.kind == "postgresql":
        place.execute(f"GRANT USAGE ON SCHEMA {path.database} TO guest")
    place.execute(f"GRANT SELECT ON {path.database}.daily TO {role}")
    guests = open_jdbc(**place.options(url=guest, read_partition_rows="100"))
    assert len(parts_of(guests, path)) == 1
    with pytest.raises(CatalogError, match=r"denied.*_published.*GRANT SELECT"):
        guests.table_version(path)
    place.execute(f"GRANT SELECT ON {path.database}.__twophase_published TO {role}")
    assert len(parts_of(guests, path)) > 1
    assert guests.table_version(path) is not None
    guests.close()


def parts_of(catalog: JdbcCatalog, path: ObjectPath) -> Sequence[Any]:
    """The parts in which a table is read."""
    reader = catalog.read_source(path).reader
    assert reader is not None
    return reader.plan(["id"], [])


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_a_table_that_another_role_owns_is_neither_replaced_renamed_nor_dropped_by_a_transaction(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, guest: str
) -> None:
    """The role is told before any job, and how it can be let."""
    run(catalog, path)
    place.execute(f"GRANT USAGE, CREATE ON SCHEMA {path.database} TO guest")
    place.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {path.database} TO guest")
    guests = open_jdbc(**place.options(url=guest))
    context = WriteContext(transaction_id())
    arriving = guests.two_phase_rename_table(path, ObjectPath.of(path.database, "weekly"), context=context)
    assert arriving is not None
    for participant in (
        offer(guests, path, Purpose.CREATE_OR_REPLACE_TABLE_AS),
        guests.two_phase_drop_table(path, context=context),
        guests.two_phase_leave_table(path, arriving, context=context),
    ):
        assert participant is not None
        with pytest.raises(CatalogError, match=r"daily belongs to twophase: guest may not.*GRANT twophase TO guest"):
            participant.begin()
    assert place.hidden(path.database) == []
    run(guests, path, Purpose.INSERT_INTO, [(3, "three")])
    run(guests, path, Purpose.INSERT_OVERWRITE, [(4, "four")])
    place.execute(f"ALTER SCHEMA {path.database} OWNER TO guest")
    run(guests, path, Purpose.CREATE_OR_REPLACE_TABLE_AS)  # Its owner may drop each table of a schema.
    assert ordered(place.rows(path)) == ROWS
    place.execute(f"ALTER SCHEMA {path.database} OWNER TO twophase")
    guests.close()


@SERVERS
@pytest.mark.parametrize("right", ["INSERT", "DELETE", "ALTER"])
def test_a_role_without_a_right_that_the_publish_takes_is_told_before_any_job(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, guest: str, right: str
) -> None:
    run(catalog, path)
    if place.kind == "postgresql":
        place.execute(f"GRANT USAGE, CREATE ON SCHEMA {path.database} TO guest")
        place.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {path.database} TO guest")
        if right != "ALTER":  # The owner alone may do that.
            place.execute(f"REVOKE {right} ON {path.database}.daily FROM guest")
    else:
        rights = [r for r in ("SELECT", "INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER") if r != right]
        place.execute(f"GRANT {', '.join(rights)} ON {path.database}.* TO guest@'%'")
        place.execute(f"GRANT INSERT, DELETE ON {path.database}.__twophase_published TO guest@'%'")
    guests = open_jdbc(**place.options(url=guest))
    purpose = Purpose.CREATE_OR_REPLACE_TABLE_AS if right == "ALTER" else Purpose.INSERT_OVERWRITE
    with pytest.raises(CatalogError, match=r"belongs to|no right to|command denied"):
        offer(guests, path, purpose).begin()
    assert place.hidden(path.database) == []
    guests.close()


@pytest.mark.parametrize("place", ["postgresql"], indirect=True)
def test_an_error_of_a_publish_names_the_table_that_it_is_about(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, guest: str
) -> None:
    run(catalog, path)
    place.execute(f"GRANT USAGE, CREATE ON SCHEMA {path.database} TO guest")
    place.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {path.database} TO guest")
    guests = open_jdbc(**place.options(url=guest))
    new = stage(guests, ObjectPath.of(path.database, "new"))
    place.execute(f"ALTER TABLE {path.database}.daily OWNER TO guest")
    replaced = stage(guests, path, Purpose.CREATE_OR_REPLACE_TABLE_AS)
    place.execute(f"ALTER TABLE {path.database}.daily OWNER TO twophase")
    place.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {path.database} TO guest")
    with pytest.raises(CatalogError, match=r"must be owner of table daily") as caught:
        publishing.publish(guests.store, [new, replaced])
    assert caught.value.path == str(path)
    for participant in (new, replaced):
        participant.abort()
    guests.close()


def test_a_wrong_password_host_or_port_is_told_with_what_to_check(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    maria, postgres = (make_place(kind, request, tmp_path) for kind in ("mariadb", "postgresql"))
    wrong = {
        "password": url_of(maria, password=SECRET),
        "host name": url_of(postgres, host="no-such-host.invalid", password=SECRET),
        "port": url_of(postgres, port=free_port(), password=SECRET),
        "database": url_of(maria, database="no_such_database"),
    }
    for what, url in wrong.items():
        catalog = open_jdbc(url=url, connect_timeout="3")
        with pytest.raises(CatalogError, match=f"Check.*{what}") as caught:
            catalog.list_databases()
        assert SECRET not in str(caught.value) + "".join(catalog.check())
        catalog.close()


def test_a_server_that_wants_tls_is_told_so(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    place = make_place("mariadb", request, tmp_path)
    engine = sa.create_engine(place.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as held:  # A new connection could not undo it.
        held.exec_driver_sql("SET GLOBAL require_secure_transport = ON")
        catalog = open_jdbc(url=f"{url_of(place, query={})}?ssl_disabled=true")
        try:
            with pytest.raises(CatalogError, match="wants TLS"):
                catalog.list_databases()
        finally:
            held.exec_driver_sql("SET GLOBAL require_secure_transport = OFF")
    engine.dispose()
    catalog.close()


def test_postgresql_tells_a_wrong_password_and_that_it_wants_tls(tmp_path: Path) -> None:
    """A server whose pg_hba.conf admits passwords only, and then TLS only."""
    with servers.postgresql() as server:
        place = Place("postgresql", server.url)
        place.execute(f"CREATE ROLE guest LOGIN PASSWORD '{SECRET}'")
        rules = server.directory / "data" / "pg_hba.conf"
        engine = sa.create_engine(place.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as held:
            for rule, wrong, told in (
                ("host all all all scram-sha-256", f"not-{SECRET}", "Check the options user and password"),
                ("hostssl all all all trust", SECRET, "The server wants TLS"),
            ):
                rules.write_text(f"{rule}\n")
                held.exec_driver_sql("SELECT pg_reload_conf()")
                catalog = open_jdbc(url=url_of(place, username="guest", password=wrong))
                with pytest.raises(CatalogError, match=told) as caught:
                    while True:  # The server reads its rules when it comes to it.
                        catalog.close()
                        catalog.list_databases()
                assert SECRET not in str(caught.value)
                catalog.close()
        engine.dispose()


def test_a_full_disk_leaves_the_old_table(tmp_path: Path) -> None:
    """The file of a SQLite database may not grow: as with a full disk or a quota."""
    place = Place("sqlite", f"sqlite:///{tmp_path / 'shop.db'}")
    catalog, path = place.catalog(), ObjectPath.of("main", "daily")
    run(catalog, path)
    catalog.close()
    script = f"""
import resource
from tests.jdbc.places import open_jdbc
from tests.jdbc.statements import offer, table
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose
catalog = open_jdbc(**{place.options()!r})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
participant = offer(catalog, ObjectPath.of("main", "daily"), Purpose.REPLACE_TABLE_AS)
participant.begin()
try:
    participant.write(table([(i, "x" * 100) for i in range(10_000)]))
except CatalogError as error:
    print("told:", error)
participant.abort()
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert "told:" in done.stdout, done.stdout + done.stderr
    assert ordered(place.rows(path)) == ROWS
    assert place.hidden("main") == []


@pytest.mark.promise("failed-statement", "a full disk of a database server leaves the old table and nothing else")
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_full_disk_of_a_server_leaves_the_old_table(kind: str) -> None:
    """PostgreSQL may write no file of more than 20 MB, and MariaDB's only tablespace may not grow beyond that."""
    limit = "--innodb-data-file-path=ibdata1:12M:autoextend:max:20M"
    starts = {
        "postgresql": lambda: servers.postgresql(longest_file=20_000_000),
        "mariadb": lambda: servers.mariadb(limit),
    }
    with starts[kind]() as server:
        place = Place(kind, server.url)
        catalog, path = place.catalog(), ObjectPath.of("public" if kind == "postgresql" else "twophase", "daily")
        run(catalog, path)
        if kind == "mariadb":
            place.execute("SET GLOBAL innodb_file_per_table = OFF")
        participant = offer(catalog, path, Purpose.REPLACE_TABLE_AS)
        participant.begin()
        with pytest.raises(CatalogError, match="Make room on the database's disk"):
            participant.write(table([(i, "x" * 1000) for i in range(50_000)]))
        participant.abort()
        assert ordered(place.rows(path)) == ROWS
        assert place.hidden(path.database) == []
        catalog.close()


#: A database, and how another writer holds a table, or the file: a reader is enough for the servers.
HELD = {
    "postgresql": ("public", "LOCK TABLE public.held IN ACCESS SHARE MODE"),
    "mariadb": ("twophase", "SELECT * FROM twophase.held"),
    "sqlite": ("main", "BEGIN IMMEDIATE"),
}


@pytest.mark.promise(
    "failed-statement",
    "a table locked by others is reported after `lock_timeout`, and keeps its rows",
)
@pytest.mark.parametrize("kind", HELD)
def test_a_table_that_others_hold_is_reported_after_the_lock_timeout(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    place, (database, holds) = make_place(kind, request, tmp_path), HELD[kind]
    catalog, path = place.catalog(lock_timeout="1"), ObjectPath.of(database, "held")
    run(catalog, path)
    participant = stage(catalog, path, Purpose.REPLACE_TABLE_AS, [(3, "three")])
    engine = sa.create_engine(place.url)
    with engine.connect() as holder:
        holder.exec_driver_sql(holds)
        with pytest.raises(CatalogError, match=r"([Ll]ock timeout|[Ll]ock wait|locked).*raise the option lock_timeout"):
            participant.commit()
    engine.dispose()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    assert ordered(place.rows(path)) == ROWS
    participant.abort()
    assert participant.left_behind() == []
    catalog.drop_table(path)
    catalog.close()


@pytest.fixture
def limited(place: Place) -> Iterator[None]:
    """A server that ends each statement of a second; MySQL has no such limit."""
    limit = "/*M!100100 , max_statement_time = {} */"
    place.execute("SET GLOBAL net_read_timeout = 30 " + limit.format(1))
    yield
    place.execute("SET GLOBAL net_read_timeout = 30 " + limit.format(0))


@pytest.mark.parametrize("place", ["mariadb"], indirect=True)
def test_a_limit_of_the_server_ends_no_statement_of_a_load_or_a_publish(limited: None, catalog: JdbcCatalog) -> None:
    with catalog.store.begin("twophase") as connection:
        assert connection.exec_driver_sql("SELECT SLEEP(1.2)").scalar_one() == 0


def test_a_server_that_is_gone_without_a_word_is_given_up_unless_the_url_says_how_long(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    place = make_place("postgresql", request, tmp_path)
    catalog = open_jdbc(**place.options(url=f"{place.url}?keepalives_count=7"))
    with catalog.store.engine("public").connect() as connection:
        given = connection.connection.dbapi_connection.info.get_parameters()  # type: ignore[union-attr]
    assert {name: given[name] for name in ("keepalives_interval", "keepalives_count", "tcp_user_timeout")} == {
        "keepalives_interval": "10",
        "keepalives_count": "7",
        "tcp_user_timeout": "600000",
    }
    catalog.close()


@pytest.mark.promise(
    "power-cut", "a publish to PostgreSQL or SQLite is durable, whatever the role is set to and the default is"
)
@pytest.mark.parametrize(
    ("kind", "database", "settings", "ask", "durable"),
    [
        # 3 is EXTRA: the directory of the removed journal is synced, too. The default is at most FULL, 2.
        pytest.param("sqlite", "main", "", "PRAGMA synchronous", 3, id="sqlite"),
        pytest.param(
            *("postgresql", "public", "?options=-csynchronous_commit%3Doff", "SHOW synchronous_commit", "on"),
            id="postgresql",
        ),
        # Others wait for its locks, also if this machine is lost.
        pytest.param("postgresql", "public", "", "SHOW idle_in_transaction_session_timeout", "10min", id="is-lost"),
    ],
)
def test_a_publish_is_durable_whatever_the_role_and_the_default_are_set_to(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    database: str,
    settings: str,
    ask: str,
    durable: object,
) -> None:
    place = make_place(kind, request, tmp_path)
    catalog = open_jdbc(**place.options(url=f"{place.url}{settings}"))
    record, found = catalog.store.record_published, []

    def look(connection: sa.Connection, *facts: Any) -> None:
        found.append(connection.exec_driver_sql(ask).scalar_one())
        record(connection, *facts)

    monkeypatch.setattr(catalog.store, "record_published", look)
    path = ObjectPath.of(database, "durable")
    run(catalog, path)
    assert found == [durable]
    catalog.drop_table(path)
    catalog.close()


@pytest.mark.parametrize("name", ["ctid", "xmin", "tableoid"])
def test_a_column_that_each_table_has_already_is_refused_before_anything_is_staged(
    request: pytest.FixtureRequest, tmp_path: Path, name: str
) -> None:
    place = make_place("postgresql", request, tmp_path)
    catalog = place.catalog()
    with pytest.raises(CatalogError, match=f"'{name}': each table of PostgreSQL has one of its own"):
        offer(catalog, ObjectPath.of("public", "odd"), Purpose.CREATE_TABLE_AS, pa.schema([(name, pa.int64())]))
    catalog.close()


def test_a_swap_by_another_writer_within_the_same_second_is_a_conflict(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """MariaDB tells when a table was made in whole seconds: two tables of one second are told apart, too."""
    place = make_place("mariadb", request, tmp_path)
    catalog, path = place.catalog(), ObjectPath.of("twophase", "swapped")
    made = "SELECT CREATE_TIME FROM information_schema.TABLES WHERE TABLE_NAME IN ('swapped', 'impostor')"
    times = set()
    while len(times) != 1:
        for name in ("swapped", "impostor"):
            place.execute(f"DROP TABLE IF EXISTS twophase.{name}")
            place.execute(f"CREATE TABLE twophase.{name} (id BIGINT NULL, name LONGTEXT NULL)")
        times = set(place.execute(made))
    participant = stage(catalog, path, Purpose.INSERT_OVERWRITE)
    place.execute("RENAME TABLE twophase.swapped TO twophase.gone, twophase.impostor TO twophase.swapped")
    with pytest.raises(WriteConflictError, match="another writer published it"):
        participant.commit()
    participant.abort()
    for name in ("swapped", "gone"):
        place.execute(f"DROP TABLE twophase.{name}")
    catalog.close()


def test_a_role_that_sees_no_numbers_of_tables_writes_all_the_same(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """MariaDB shows them to holders of PROCESS; a role without CREATE is told before any job."""
    place = make_place("mariadb", request, tmp_path)
    place.execute("CREATE DATABASE IF NOT EXISTS open_to_guests")
    place.execute("DROP USER IF EXISTS guest@'%'")
    place.execute(f"CREATE USER guest@'%' IDENTIFIED BY '{SECRET}'")
    place.execute("GRANT ALL ON open_to_guests.* TO guest@'%'")
    place.execute("GRANT SELECT, INSERT ON twophase.* TO guest@'%'")
    url = url_of(place, username="guest", password=SECRET, database="open_to_guests")
    catalog = open_jdbc(**place.options(url=url))
    path = ObjectPath.of("open_to_guests", "daily")
    run(catalog, path)
    run(catalog, path, Purpose.CREATE_OR_REPLACE_TABLE_AS, [(3, "three")])
    assert place.rows(path) == [(3, "three")]
    with pytest.raises(CatalogError, match=r"command denied.*needs CREATE on the schema") as caught:
        offer(catalog, ObjectPath.of("twophase", "t"), Purpose.CREATE_TABLE_AS).begin()
    assert SECRET not in str(caught.value) + repr(catalog)
    catalog.close()
    place.execute("DROP DATABASE open_to_guests")
    place.execute("DROP USER guest@'%'")


# -- options -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "the option url is missing"),
        ({"url": "postgresql://h/d", "pasword": "x"}, "Did you mean password"),
        ({"url": "postgressql://h/d"}, "Did you mean postgresql"),
        ({"url": f"no url {SECRET}"}, "cannot be read"),
        ({"url": "sqlite://"}, "in memory"),
        ({"url": "postgresql+psycopg2://h/d"}, "not through 'psycopg2'"),
        ({"url": "postgresql://h/d", "batch_rows": "many"}, "whole number"),
        ({"url": "postgresql://h/d", "password": SECRET, "password_env": "HOME"}, "given twice"),
        ({"url": "postgresql://h/d", "password_env": "NO_SUCH_VARIABLE"}, "is not set"),
        ({"url": "postgresql://h/d", "password_file": "/no/such/file"}, "cannot be read"),
        ({"url": "sqlite:////f.db", "staging_schema": "s"}, "staging_prefix"),
        ({"url": "sqlite:////f.db", "staging_prefix": "a b"}, "lower-case"),
        ({"url": "sqlite:////f.db", "column_types": "a INT; DROP TABLE t"}, "cannot be read"),
    ],
)
def test_a_wrong_option_is_told_with_the_right_one(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told) as caught:
        read("shop", options)
    assert SECRET not in str(caught.value)


def test_a_password_comes_from_the_environment_or_a_file_and_is_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text(SECRET + "\n")
    monkeypatch.setenv("SHOP_PASSWORD", SECRET)
    for option in ({"password_env": "SHOP_PASSWORD"}, {"password_file": str(tmp_path / "password")}):
        settings = read("shop", {"url": "postgresql://h/d?sslpassword=hush", "user": "me", **option})
        assert settings.parsed.password == SECRET
        assert not [word for word in (SECRET, "hush") if word in repr(settings) + settings.display_url]
