"""Databases that are known by their dialects only: each works at the level that its DDL allows, and says so."""

from __future__ import annotations

import datetime
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import twophase
from tests.jdbc.conftest import make_place
from tests.jdbc.places import Place, ordered
from tests.jdbc.statements import ROWS, SCHEMA, offer, read, run, stage, table
from tests.jdbc.test_altering import add, comment, drop, rename, retype
from tests.jdbc.test_defaults import insert
from twophase.catalog.reading import Filter
from twophase.catalogs.jdbc import JdbcCatalog
from twophase.catalogs.jdbc.generic import Abilities, Generic
from twophase.catalogs.jdbc.loading import Loader
from twophase.errors import AtomicityNotSupportedError, CatalogError, ConfigurationError
from twophase.model import Level, ObjectPath, Outcome, Purpose, TableDefinition
from twophase.schema.errors import SchemaError
from twophase.timeline.timeline import Timeline
from twophase.transactions.coordinator import Coordinator

REPLACE = Purpose.CREATE_OR_REPLACE_TABLE_AS
WIDER = pa.schema([*SCHEMA, pa.field("half", pa.float64())])
WIDER_ROWS = [(1, "one", 0.5), (2, None, None)]


#: Databases that undo DDL with its transaction, and one that commits it.
TRANSACTIONAL = pytest.mark.parametrize("place", ["duckdb", "plain-postgresql"], indirect=True)
COMMITTING = pytest.mark.parametrize("place", ["plain-mariadb"], indirect=True)


@pytest.fixture(params=["duckdb", "plain-postgresql", "plain-mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    return make_place(request.param, request, tmp_path)


def levels_of_each_statement(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> list[Level]:
    """Of a create, an insert, an overwrite, and of replaces with the same columns and with others."""
    done = [
        run(catalog, path),
        run(catalog, path, Purpose.INSERT_INTO, [(3, "three")]),
        run(catalog, path, Purpose.INSERT_OVERWRITE, [(4, "four")]),
        run(catalog, path, REPLACE, ROWS),
        run(catalog, path, REPLACE, WIDER_ROWS, WIDER),
    ]
    assert ordered(place.rows(path)) == ordered(WIDER_ROWS)
    reasons = [participant.level_reason for participant in done]
    assert [bool(reason) for reason in reasons] == [participant.level is Level.REVERSIBLE for participant in done]
    return [participant.level for participant in done]


def test_columns_are_altered_by_the_rules_of_all_stores_or_refused_by_name(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    run(catalog, path)
    catalog.alter_table(path, [rename("name", "label")])
    catalog.alter_table(path, [comment("label", "who")])
    catalog.alter_table(path, [add("more", default="7")])
    both = [add("last"), drop("label")]
    if place.kind == "plain-mariadb":
        with pytest.raises(CatalogError, match="several changes"):
            catalog.alter_table(path, both)
    else:
        catalog.alter_table(path, both)
        catalog.alter_table(path, [rename("last", "label")])
    assert catalog.load_table(path).schema.names[:2] == ["id", "label" if place.kind == "plain-mariadb" else "more"]
    assert sorted(row[0] for row in place.rows(path)) == [1, 2]
    before = catalog.load_table(path).schema
    with pytest.raises(SchemaError):
        catalog.alter_table(path, [retype("id", pa.int16())])
    for change in (retype("more", pa.int64()), add("first", position="first")):
        with pytest.raises(CatalogError, match="cannot"):
            catalog.alter_table(path, [change])
    assert catalog.load_table(path).schema == before


@pytest.mark.promise("transactional-ddl", "each statement: atomic")
@TRANSACTIONAL
def test_where_a_transaction_undoes_ddl_each_statement_is_atomic(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    assert levels_of_each_statement(place, catalog, path) == [Level.ATOMIC] * 5


@pytest.mark.promise("committing-ddl", "inserts, replaces with the same columns: atomic; else reversible")
@COMMITTING
def test_where_ddl_commits_what_needs_several_steps_is_reversible(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    one_step, steps = Level.ATOMIC, Level.REVERSIBLE
    assert levels_of_each_statement(place, catalog, path) == [steps, one_step, one_step, one_step, steps]


def level_of_two_creates(catalog: JdbcCatalog, path: ObjectPath, directory: Path) -> Level:
    """Of one transaction, which is rolled back."""
    coordinator = Coordinator(Timeline(f"sqlite:///{directory / 'timeline.db'}"), lambda _: catalog, name="two")
    transaction = coordinator.begin()
    for target in (path, ObjectPath.of(path.database, "other")):
        participant = transaction.stage(catalog, target, TableDefinition(SCHEMA), purpose=Purpose.CREATE_TABLE_AS)
        assert participant is not None
        transaction.begin_participant(participant)
        transaction.write(participant, table(ROWS))
        transaction.prepare_participant(participant)
    level = transaction.level
    transaction.abort()
    coordinator.close()
    return level


@pytest.mark.promise("transactional-ddl", "several tables of one schema: atomic")
@TRANSACTIONAL
def test_where_a_transaction_undoes_ddl_several_tables_are_atomic(
    catalog: JdbcCatalog, path: ObjectPath, tmp_path: Path
) -> None:
    assert level_of_two_creates(catalog, path, tmp_path) is Level.ATOMIC


@pytest.mark.promise("committing-ddl", "several tables: best effort (note f)")
@COMMITTING
def test_where_ddl_commits_several_tables_are_best_effort(
    catalog: JdbcCatalog, path: ObjectPath, tmp_path: Path
) -> None:
    assert level_of_two_creates(catalog, path, tmp_path) is Level.BEST_EFFORT


@pytest.mark.promise(
    "transactional-ddl", "several tables of one schema, published in one step, by a recovery too", detail=True
)
def test_a_recovery_publishes_in_one_step_what_the_dead_driver_would_have(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    """Tables of one schema go together where a transaction undoes DDL; a new process has tried nothing yet."""
    targets = [path, ObjectPath.of(path.database, "other")]
    staged = [stage(catalog, target) for target in targets]
    heir = place.catalog()
    members = [heir.restore(participant.document) for participant in staged]
    assert heir.capabilities.group_publish
    keys = {heir.group_key(member) for member in members}
    assert keys == {catalog.group_key(participant) for participant in staged}
    if place.kind == "plain-mariadb":
        assert keys == {None}
        for participant in staged:
            participant.abort()
    else:
        assert len(keys) == 1 and keys != {None}
        heir.publish_group(members)
        assert [ordered(place.rows(target)) for target in targets] == [ordered(ROWS)] * 2
        for member in members:
            member.finish()
    heir.close()


def test_a_second_attempt_and_one_that_failed_change_nothing(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    def breaks() -> Iterator[pa.RecordBatch]:
        yield from table(ROWS).to_batches()
        raise RuntimeError("the user's own")

    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS)
    participant.begin()
    task = Loader(catalog.store.settings, participant._load_target())
    with pytest.raises(RuntimeError, match="the user's own"):
        task(0, breaks())
    assert [task(0, table(ROWS).to_batches()), task(0, table(ROWS).to_batches())] == [2, 2]
    participant.prepare()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    participant.commit()
    participant.finish()
    assert ordered(place.rows(path)) == ordered(ROWS)


@pytest.mark.parametrize("place", ["plain-postgresql"], indirect=True)
def test_no_transaction_is_open_while_a_partition_is_computed(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    """Nobody waits for a lock of a task that waits for its rows."""
    open_ones = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'"
    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS)
    participant.begin()
    seen: list[int] = []

    def computed() -> Iterator[pa.RecordBatch]:
        for batch in table(ROWS).to_batches(max_chunksize=1):
            yield batch
            seen.append(place.execute(open_ones)[0][0])

    assert Loader(catalog.store.settings, participant._load_target())(0, computed()) == len(ROWS)
    assert seen == [0] * len(ROWS)
    participant.abort()


@pytest.mark.parametrize(
    ("abilities", "told"), [(Abilities(), "do not refuse a second row"), (Abilities(keys=True), "rename a table")]
)
def test_where_nothing_can_be_promised_nothing_is_begun(
    place: Place, catalog: JdbcCatalog, path: ObjectPath, abilities: Abilities, told: str
) -> None:
    assert isinstance(catalog.store.database, Generic)
    catalog.store.database.abilities = abilities
    with pytest.raises(AtomicityNotSupportedError, match=told):
        offer(catalog, path, Purpose.CREATE_TABLE_AS)
    catalog.store.database.abilities = None


def test_a_ledger_that_never_got_its_stamp_goes_with_its_transaction(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    """Where DDL commits, a driver can die between the two."""
    participant = offer(catalog, path, Purpose.CREATE_TABLE_AS)
    ledger = participant.place.ledger
    if place.kind == "plain-mariadb":
        columns = "part integer NOT NULL PRIMARY KEY, row_count bigint NOT NULL, stamp varchar(2000)"
        place.execute(f"CREATE TABLE {place.name(ObjectPath.of(ledger.database, ledger.name))} ({columns})")
        assert participant.left_behind() != []
    participant.abort()
    assert participant.left_behind() == []


def test_a_table_of_a_trial_that_a_crash_has_interrupted_goes_with_a_later_one(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    """Nothing else goes: not one that may run, and none that only looks like it."""
    old, young = (f"__twophase_try_{int(time.time()) - age:08x}abcd" for age in (7200, 0))
    kept = {young: "part", "__twophase_try_20240101": "part", f"{old[:-4]}ffff": "id"}
    for name, column in {old: "part", **kept}.items():
        place.execute(
            f"CREATE TABLE {place.name(ObjectPath.of(path.database, name))} ({column} integer)", path.database
        )
    assert isinstance(catalog.store.database, Generic)
    catalog.store.database.abilities = None
    run(catalog, path)
    assert {name for name in place.hidden(path.database) if "_try_" in name} == set(kept)
    for name in kept:
        place.execute(f"DROP TABLE {place.name(ObjectPath.of(path.database, name))}", path.database)


def test_what_a_replace_loses_is_named(place: Place, catalog: JdbcCatalog, path: ObjectPath) -> None:
    place.execute(f"CREATE TABLE {place.name(path)} (id BIGINT PRIMARY KEY, k INT DEFAULT 7)")
    replaced = run(catalog, path, REPLACE, WIDER_ROWS, WIDER)
    lost = " ".join(replaced.document["lost"])
    assert "default" in lost and "key" in lost


def test_the_database_gives_the_values_of_columns_that_an_insert_leaves_out(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    kind = "VIRTUAL" if place.kind == "duckdb" else "STORED"
    place.execute(
        f"CREATE TABLE {place.name(path)} (id BIGINT, n INT DEFAULT 7, made TIMESTAMP NULL DEFAULT CURRENT_TIMESTAMP, "
        f"more INT DEFAULT NULL, twice INT GENERATED ALWAYS AS (n * 2) {kind})"
    )
    assert catalog.column_defaults(path) == {"n": "CAST('7' AS INT)", "made": None}
    moment = datetime.datetime(2026, 1, 1)
    insert(
        catalog, path, (1, 7, None, None, None, '["made"]'), (2, 8, moment, None, None, None), (3, 9, None, *[None] * 3)
    )
    rows = sorted(place.rows(path))
    assert [(row[0], row[1], *row[3:]) for row in rows] == [(1, 7, None, 14), (2, 8, None, 16), (3, 9, None, 18)]
    assert rows[0][2] > moment and (rows[1][2], rows[2][2]) == (moment, None)


@pytest.mark.parametrize("place", ["duckdb"], indirect=True)
def test_what_is_read_as_text_is_in_the_databases_own_form_and_can_be_written_back(
    place: Place, catalog: JdbcCatalog, path: ObjectPath
) -> None:
    place.execute(
        f"CREATE TABLE {place.name(path)} AS SELECT [1.5::DECIMAL(10,2)] AS prices, {{'a': 'x', 'b': NULL}} AS facts, "
        "INTERVAL '1 month 2 days' AS span, '12:00:00.5'::TIME AS noon, uuid() AS id, "
        "170141183460469231731::HUGEINT AS n, 2::DECIMAL(10,2) AS price"
    )
    before, schema = place.rows(path), catalog.load_table(path).schema
    (row,) = read(catalog, path)
    assert (row["prices"], row["facts"], row["span"]) == ("[1.50]", "{'a': x, 'b': NULL}", "1 month 2 days")
    run(catalog, path, Purpose.INSERT_OVERWRITE, [tuple(row.values())], schema)
    assert place.rows(path) == before


@TRANSACTIONAL
def test_a_condition_on_a_moment_finds_it_in_any_time_zone_of_the_session(place: Place, path: ObjectPath) -> None:
    zone = {"duckdb": "?timezone=", "plain-postgresql": "?options=-ctimezone%3D"}[place.kind]
    moment = datetime.datetime(2026, 1, 1, 12, tzinfo=datetime.UTC)
    schema = pa.schema([("at", pa.timestamp("us", "UTC"))])
    catalog = place.catalog(url=f"{place.url}{zone}America/New_York")
    run(catalog, path, rows=[(moment,)], schema=schema)
    for operator in ("=", "<=", ">="):
        assert read(catalog, path, Filter(operator, "at", (moment,))) == [{"at": moment}], operator
    catalog.close()


def test_a_dialect_that_is_not_installed_is_reported() -> None:
    with pytest.raises(ConfigurationError, match="no SQLAlchemy dialect is installed for the database 'nosuch'"):
        twophase.catalogs.jdbc.JdbcCatalog("shop", {"url": "nosuch://h/d"}, twophase.Environment())


def test_spark_writes_to_duckdb_and_reads_it_on_the_executors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB is open to one process at a time: tasks wait for each other."""
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    builder: Any = SparkSession.builder.master("local[2]").appName("others")
    conf = {
        "spark.ui.enabled": "false",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        "spark.sql.catalog.duck": "twophase.jdbc",
        "spark.sql.catalog.duck.url": f"duckdb:///{tmp_path / 'shop.duckdb'}",
    }
    for key, value in conf.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    try:
        twophase.attach(spark)
        rows = "id, CAST(id AS STRING) AS name, CAST(id AS DECIMAL(12, 2)) AS price, timestamp_seconds(id) AS at"
        spark.sql(f"CREATE TABLE duck.main.daily AS SELECT {rows} FROM range(0, 1000, 1, 4)")
        spark.sql("INSERT INTO duck.main.daily SELECT -1, NULL, NULL, NULL")
        spark.sql(
            "CREATE OR REPLACE TABLE duck.main.sums AS SELECT count(name) AS n, max(at) AS at FROM duck.main.daily"
        )
        found = spark.table("duck.main.sums").collect()
        assert [(row.n, row.at) for row in found] == [(1000, datetime.datetime(1970, 1, 1, 0, 16, 39))]
        assert spark.table("duck.main.daily").where("id >= 990").count() == 10
    finally:
        spark.stop()
