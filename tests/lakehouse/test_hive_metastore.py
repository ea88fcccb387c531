"""An Iceberg catalog in a Hive Metastore: a table changes in one call, and the tables tell who was published."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hive_metastore import ThriftHiveMetastore
from hive_metastore.ttypes import MetaException

import twophase
from tests.lakehouse.locks import Locks, locking_metastore
from tests.lakehouse.places import MetastoreLake, ordered
from tests.lakehouse.readers import Readers
from tests.lakehouse.shop import DATABASE, Shop
from tests.lakehouse.statements import ROWS, SCHEMA, drop_renamed, drop_twice, offer, run, stage
from tests.levels import Levels
from tests.servers import Server
from twophase import failpoints
from twophase.catalog import TableChange, staged_databases
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.errors import CatalogError, InvalidNameError, WriteConflictError
from twophase.model import Level, ObjectPath, Outcome, Purpose, TableDefinition, WriteContext

CREATE, INSERT, OVERWRITE = Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
REPLACE = Purpose.REPLACE_TABLE_AS


@pytest.fixture
def lake(hive_metastore: Server, tmp_path: Path) -> MetastoreLake:
    return MetastoreLake(hive_metastore.url, tmp_path / "warehouse")


@pytest.fixture
def path(catalog: LakehouseCatalog) -> ObjectPath:
    """A table that does not exist yet, in a database of its own."""
    database = f"lake_{uuid.uuid4().hex[:12]}"
    catalog.create_database(database)
    return ObjectPath.of(database, "daily")


def lost(catalog: LakehouseCatalog, path: ObjectPath, purpose: Purpose, rows: Any = ROWS) -> LakehouseParticipant:
    """A statement that is published, whose driver dies before it hears so."""
    participant = stage(catalog, path, purpose, rows)
    participant.commit()
    return participant


def again(lake: MetastoreLake, participant: LakehouseParticipant) -> LakehouseParticipant:
    """The same, as a recovery in a fresh process has it."""
    restored = lake.catalog().restore(participant.document)
    assert isinstance(restored, LakehouseParticipant)
    return restored


def assert_kept(lake: MetastoreLake, participant: LakehouseParticipant) -> None:
    """A recovery learns that it was published, and takes nothing away."""
    before = {file for file in lake.files() if not file.startswith(".twophase")}
    recovered = again(lake, participant)
    assert recovered.outcome() is Outcome.PUBLISHED
    recovered.abort()
    assert {file for file in lake.files() if not file.startswith(".twophase")} == before


# -- who was published -------------------------------------------------------------------------------------------------


def test_a_table_that_was_renamed_since_is_still_known(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    created = lost(catalog, path, CREATE)
    renamed = ObjectPath.of(path.database, "weekly")
    catalog.rename_table(path, renamed)
    assert_kept(lake, created)
    assert ordered(lake.rows(renamed)) == ROWS


def test_a_table_that_was_dropped_since_was_published(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    created = lost(catalog, path, CREATE)
    catalog.drop_table(path)
    assert_kept(lake, created)


def test_of_two_who_drop_a_table_one_does_and_where_its_files_lie_is_known(
    catalog: LakehouseCatalog, path: ObjectPath
) -> None:
    drop_twice(catalog, path)


def test_a_drop_that_meets_a_renamed_table_leaves_it_alone(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    drop_renamed(catalog, path)


def test_files_are_kept_when_all_but_the_manifests_forgot_who_made_them(
    hive_metastore: Server, catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    run(catalog, path)
    key, value = "write.metadata.previous-versions-max", "1"
    catalog.alter_table(path, [TableChange("set_property", (), {"key": key, "value": value})])
    appended = lost(catalog, path, INSERT, [(3, "three")])
    # PyIceberg's own writers take locks.
    with locking_metastore(hive_metastore.url) as (uri, _), MetastoreLake(uri, lake.warehouse).iceberg() as other:
        table = other.load_table(tuple(path.to_document()))
        table.append(pa.table({"id": [4], "name": ["four"]}, schema=SCHEMA))
        table.maintenance.expire_snapshots().by_id(appended.snapshot_id).commit()
    assert appended.snapshot_id not in {s.snapshot_id for s in lake.load(path).metadata.snapshots}
    assert_kept(lake, appended)
    assert ordered(lake.rows(path)) == ordered([*ROWS, (3, "three"), (4, "four")])


@pytest.mark.not_read_by("any", "a file of its metadata is overwritten")
@pytest.mark.parametrize("harmed", ["metadata", "manifest list"])
def test_a_table_that_cannot_be_read_does_not_stop_the_tidying_of_others(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath, harmed: str
) -> None:
    other = ObjectPath.of(path.database, "other")
    run(catalog, other)
    run(catalog, path)
    dead = {target: stage(catalog, target, INSERT) for target in (path, other)}
    run(catalog, path, INSERT)
    table = lake.load(path)
    file = table.metadata_location if harmed == "metadata" else table.current_snapshot().manifest_list
    Path(str(file).removeprefix("file://")).write_bytes(b"{}")
    fresh = lake.catalog()
    (leftover,) = fresh.leftovers()
    assert leftover.transaction_id == dead[other].transaction_id
    fresh.remove_leftover(leftover)
    assert fresh.restore(dead[path].document).outcome() is Outcome.UNKNOWN
    fresh.close()


def test_what_the_metastore_refuses_is_raised_in_its_words(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    participant = stage(catalog, path)
    other = lake.catalog()
    other.drop_database(path.database)
    other.close()
    with pytest.raises(CatalogError, match=path.database):
        participant.commit()


def test_of_two_who_create_a_table_the_second_is_told(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    first, second = (stage(catalog, path, rows=[(number, "row")]) for number in range(2))
    failpoints.arm("lakehouse.swap", lambda _: (failpoints.disarm(), second.commit()))
    with pytest.raises(WriteConflictError):
        first.commit()
    assert first.outcome() is Outcome.NOT_PUBLISHED


def test_the_outcome_of_a_lost_reply_is_true(catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath) -> None:
    run(catalog, path)
    participant = stage(catalog, path, INSERT, [(3, "three")])
    failpoints.arm("lakehouse.swap", "lost_reply")
    with pytest.raises(ConnectionError):
        participant.commit()
    failpoints.disarm()
    assert_kept(lake, participant)
    assert len(lake.rows(path)) == 3


# -- one after the other -----------------------------------------------------------------------------------------------


@pytest.mark.promise("iceberg-other", "a publish that a later one's refusal undoes leaves nothing")
@pytest.mark.parametrize("purpose", [CREATE, REPLACE, INSERT, OVERWRITE])
def test_a_publish_is_undone_with_everything_that_it_brought(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath, purpose: Purpose
) -> None:
    if purpose is not CREATE:
        run(catalog, path)
    before = {file for file in lake.files() if not file.startswith(".twophase")}
    participant = lost(catalog, path, purpose, [(9, "nine")])
    assert participant.compensate()
    participant.abort()
    assert {file for file in lake.files() if not file.startswith(".twophase")} == before
    assert catalog.table_exists(path) == (purpose is not CREATE)


def test_writers_side_by_side_lose_no_rows(catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath) -> None:
    run(catalog, path, rows=[])
    writers = [stage(lake.catalog(), path, INSERT, [(number, "row")]) for number in range(6)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda writer: writer.commit(), writers))
    assert ordered(lake.rows(path)) == [(number, "row") for number in range(6)]
    assert lake.orphans() == {f".twophase/staged/{w.name.replace('/', '-')}.json" for w in writers}


def test_the_metastore_itself_refuses_what_rests_on_an_old_pointer(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    run(catalog, path)
    store: Any = catalog.store
    old = lake.metadata_location(path)
    with store.catalog._client as client:
        table = client.get_table(path.database, path.name)
        run(catalog, path, INSERT, [(3, "three")])
        with pytest.raises(MetaException, match="modified"):
            store._alter_if_unchanged(client, path, table, old)
    assert len(lake.rows(path)) == 3


# -- locks -------------------------------------------------------------------------------------------------------------


def test_with_locks_each_change_holds_the_tables_lock(
    hive_metastore: Server, lake: MetastoreLake, path: ObjectPath
) -> None:
    with locking_metastore(hive_metastore.url) as (uri, locks):
        catalog = MetastoreLake(uri, lake.warehouse).catalog(hive_locks="true")
        run(catalog, path)
        run(catalog, path, INSERT, [(3, "three")])
        assert set(locks.given) == {(path.database, path.name)}
        assert len(locks.given) == 2
        assert_waits_for_the_lock(catalog, locks, path)
        assert locks.held == 0
    assert len(lake.rows(path)) == 4


def assert_waits_for_the_lock(catalog: LakehouseCatalog, locks: Locks, path: ObjectPath) -> None:
    """While another writer holds the lock nothing is published."""
    store: Any = catalog.store
    held = locks.lock(store.catalog._create_lock_request(path.database, path.name))
    participant = stage(catalog, path, INSERT, [(4, "four")])
    asked = len(locks.given)
    with ThreadPoolExecutor(1) as pool:
        publish = pool.submit(participant.commit)
        while len(locks.given) == asked:
            assert not publish.done()
        assert participant.outcome() is Outcome.NOT_PUBLISHED
        locks.unlock(held)
        publish.result()
    assert participant.outcome() is Outcome.PUBLISHED


def test_a_metastore_without_locks_is_reported_in_words(lake: MetastoreLake, path: ObjectPath) -> None:
    catalog = lake.catalog(hive_locks="true")
    participant = stage(catalog, path)
    with pytest.raises(CatalogError, match="hive_locks"):
        participant.commit()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    participant.abort()
    assert not catalog.table_exists(path)
    assert lake.orphans() == set()


# -- what a metastore cannot hold --------------------------------------------------------------------------------------


def test_a_table_of_hives_own_is_distinguished(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    run(catalog, path)
    with lake.iceberg() as other, other._client as client:
        table = client.get_table(path.database, path.name)
        table.tableName, table.parameters = "plain", {"EXTERNAL": "TRUE"}
        client.create_table(table)
    plain = ObjectPath.of(path.database, "plain")
    assert catalog.list_tables(path.database) == ["daily"]
    for attempt in (lambda: offer(catalog, plain, CREATE), lambda: catalog.load_table(plain)):
        with pytest.raises(CatalogError, match="no Iceberg table"):
            attempt()
    with pytest.raises(CatalogError, match="plain is no Iceberg table"):
        catalog.drop_database(path.database, cascade=True)
    with pytest.raises(CatalogError, match="not empty: it holds plain"):
        staged_databases.plan_drop(catalog, path.database, ["daily"], WriteContext.alone(catalog.name))
    assert ordered(lake.rows(path)) == ROWS


def test_a_database_that_is_rolled_back_stays_with_a_table_of_hives_own(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    made = staged_databases.plan_create(catalog, f"{path.database}_made", {}, WriteContext.alone(catalog.name))
    made.begin()
    run(catalog, path)
    with lake.iceberg() as other, other._client as client:
        table = client.get_table(path.database, path.name)
        table.dbName, table.tableName, table.parameters = made.name, "plain", {"EXTERNAL": "TRUE"}
        client.create_table(table)
    made.abort()
    assert made.left_behind() == []
    with lake.iceberg() as other, other._client as client:
        assert client.get_all_tables(made.name) == ["plain"]


@pytest.mark.parametrize("name", ["a b", "a-b", "ä", "x" * 200])
def test_a_name_that_a_metastore_cannot_hold_is_refused(catalog: LakehouseCatalog, path: ObjectPath, name: str) -> None:
    with pytest.raises((InvalidNameError, CatalogError), match="name"):
        offer(catalog, ObjectPath.of(path.database, name), CREATE)


def test_a_column_changes_to_a_type_that_the_metastore_would_refuse(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    run(catalog, path)
    other = pa.schema([("id", pa.string()), ("name", pa.int64())])
    run(catalog, path, REPLACE, [("one", 1)], schema=other)
    assert lake.rows(path) == [("one", 1)]
    assert catalog.load_table(path).schema.names == ["id", "name"]


def test_properties_of_others_stay_in_the_metastore(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath
) -> None:
    catalog.create_table(path, TableDefinition(SCHEMA, properties={"ours": "1", "gone": "1"}))
    with lake.iceberg() as other, other._client as client:
        table = client.get_table(path.database, path.name)
        table.parameters["theirs"] = "1"
        client.alter_table(path.database, path.name, table)
    catalog.alter_table(path, [TableChange("remove_property", (), {"key": "gone"})])
    with lake.iceberg() as other, other._client as client:
        found = client.get_table(path.database, path.name).parameters
    assert (found["ours"], found["theirs"]) == ("1", "1")
    assert "gone" not in found


# -- Spark -------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("iceberg-other", "each statement on one table: atomic (note i)")
@pytest.mark.promise("iceberg-other", "several tables, published one after the other: reversible")
def test_statements_through_spark(catalog: LakehouseCatalog, lake: MetastoreLake, readers: Readers) -> None:
    catalog.create_database(DATABASE)
    with readers.attached(lake) as spark:
        shop, levels = Shop(spark, lake), Levels(spark)
        shop.sql("CREATE TABLE @t USING iceberg PARTITIONED BY (bucket(2, id)) AS SELECT 1L AS id, 'a' AS name")
        shop.sql("INSERT INTO @t VALUES (2, 'b')")
        shop.sql("ALTER TABLE @t RENAME COLUMN name TO title")
        shop.sql("ALTER TABLE @t ADD COLUMN price INT")
        shop.sql("INSERT INTO @t VALUES (3, 'c', 30)")
        shop.sql("DELETE FROM @t WHERE id = 2")
        assert (shop.rows("t"), levels()) == ([(1, "a", None), (3, "c", 30)], {Level.ATOMIC})
        with twophase.transaction(spark) as tx:
            shop.sql("CREATE TABLE @u AS SELECT * FROM @t")
            shop.sql("INSERT OVERWRITE @t SELECT 9L, 'z', 90")
        assert (tx.level, len(tx.level_reasons)) == (Level.REVERSIBLE, 1)
        shop.sql("ALTER TABLE @u RENAME TO statements.v")
        assert [row.tableName for row in shop.sql("SHOW TABLES IN lake.statements").collect()] == ["t", "v"]
        assert (shop.rows("t"), len(shop.rows("v"))) == ([(9, "z", 90)], 2)
        shop.sql("DROP TABLE @v")
        shop.sql("DROP DATABASE lake.statements CASCADE")
    assert lake.tables() == []


def test_a_database_that_is_dropped_while_tables_are_listed_stops_nothing(
    catalog: LakehouseCatalog, lake: MetastoreLake, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(catalog, path)
    doomed = ObjectPath.of(f"{path.database}_2", "t")
    other = lake.catalog()
    other.create_database(doomed.database)
    run(other, doomed)
    listed: list[str] = []
    plain = ThriftHiveMetastore.Client.get_all_tables

    def drop_after(client: Any, database: str) -> list[str]:
        found: list[str] = plain(client, database)
        if database == doomed.database and not listed:
            listed.extend(found)
            other.drop_table(doomed)
            other.drop_database(doomed.database)
        return found

    monkeypatch.setattr(ThriftHiveMetastore.Client, "get_all_tables", drop_after)
    assert path in catalog.store.paths()
    assert listed == ["t"]
