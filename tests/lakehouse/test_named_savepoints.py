"""Named savepoints of Iceberg tables: a tag keeps the snapshot, and a restore publishes its manifests again."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import IntegerType

from tests.crash.remote_files import local
from tests.lakehouse.conftest import make_lake
from tests.lakehouse.places import Lake
from tests.lakehouse.statements import ROWS, SCHEMA, run, table
from tests.savepoints import Savepoints
from twophase import failpoints
from twophase.catalog import ReadSource, TableChange
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.kept import KeptTables
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    TableNotExistError,
    WriteConflictError,
)
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform
from twophase.timeline.timeline import Timeline
from twophase.transactions.named_savepoints import source_of_version
from twophase.transactions.undoing import Undo, plan_undo

REPLACE, INSERT = Purpose.REPLACE_TABLE_AS, Purpose.INSERT_INTO
OTHER = pa.schema([("name", pa.string()), ("share", pa.float64())])

in_each_catalog = pytest.mark.parametrize("lake", ["sqlite", "postgresql", "hive_metastore", "rest"], indirect=True)


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return make_lake(getattr(request, "param", "sqlite"), request, tmp_path)


@pytest.fixture
def path(catalog: LakehouseCatalog) -> ObjectPath:
    database = f"lake_{uuid.uuid4().hex[:12]}"
    catalog.create_database(database)
    return ObjectPath.of(database, "daily")


def kept_rows(source: ReadSource) -> pa.Table:
    """The rows that a savepoint keeps, read by PyArrow."""
    assert source.files is not None and source.definition is not None
    found = [pq.read_table(local(place)) for place in source.files.plan([]).locations]
    names = source.definition.schema.names
    return pa.concat_tables(found).select(names) if found else source.definition.schema.empty_table()


@pytest.fixture
def savepoints(catalog: LakehouseCatalog, tmp_path: Path) -> Iterator[Savepoints]:
    catalog.environment.retention = 0.0
    yield Savepoints(Timeline(f"sqlite:///{tmp_path / 'timeline.db'}"), catalog, kept_rows)
    failpoints.disarm()


def committed(savepoints: Savepoints, *statement: Any, **facts: Any) -> None:
    """A statement whose transaction the timeline does not need to know."""
    run(savepoints.catalog, *statement, **facts)


@in_each_catalog
@pytest.mark.promise("restore", "a restore gives rows, schema, partitioning and properties of Iceberg tables back")
def test_a_restore_gives_rows_schema_partitioning_and_properties_back(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path, partitioning=(Transform("bucket", ("id",), (4,)),), properties={"owner": "me"})
    before = lake.load(path)
    savepoints.create("before", path)
    committed(savepoints, path, INSERT, [(3, "three")])
    changes = [TableChange("rename_column", ("name",), {"name": "title"})]
    savepoints.catalog.alter_table(path, changes)
    committed(savepoints, path, REPLACE, [("x", 0.5)], OTHER, properties={"owner": "you", "more": "1"})
    savepoints.restore()
    after = lake.load(path)
    assert sorted(lake.rows(path)) == sorted(ROWS)
    assert after.schema().as_struct() == before.schema().as_struct()
    assert (after.spec(), after.metadata.table_uuid) == (before.spec(), before.metadata.table_uuid)
    assert {key: after.properties.get(key) for key in ("owner", "more")} == {"owner": "me", "more": None}
    totals = ("total-records", "total-data-files", "total-files-size")
    summaries = [table.current_snapshot().summary for table in (before, after)]
    assert [summaries[0][name] for name in totals] == [summaries[1][name] for name in totals]
    committed(savepoints, path, INSERT, [(4, "four")])
    assert sorted(lake.rows(path)) == sorted([*ROWS, (4, "four")])


def test_all_tables_of_a_savepoint_are_reserved_in_one_step(savepoints: Savepoints, path: ObjectPath) -> None:
    for number in range(5):
        committed(savepoints, ObjectPath(path.namespace, f"t{number}"))
    failpoints.arm("core.reserve", lambda _: None)
    record = savepoints.create("before", databases=[path.database])
    assert len(record.tables) == 5
    assert failpoints.reached()["core.reserve"] == 1


def test_no_file_is_written_or_copied_by_either(savepoints: Savepoints, lake: Lake, path: ObjectPath) -> None:
    committed(savepoints, path)
    before = set(lake.warehouse.rglob("*.parquet"))
    savepoints.create("before", path)
    savepoints.restore()
    assert set(lake.warehouse.rglob("*.parquet")) == before


def test_no_limit_of_the_table_for_the_age_of_its_refs_removes_the_tag(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path, properties={"history.expire.max-ref-age-ms": "1"})
    (kept,) = savepoints.create("before", path).tables
    assert lake.load(path).metadata.refs[kept.document["tag"]].max_ref_age_ms == 2**63 - 1


def test_rows_that_were_deleted_come_back(savepoints: Savepoints, lake: Lake, path: ObjectPath) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)
    committed(savepoints, path, Purpose.INSERT_OVERWRITE, [], overwrite=OverwriteScope())
    assert lake.rows(path) == []
    savepoints.restore()
    assert sorted(lake.rows(path)) == sorted(ROWS)


@pytest.mark.promise("restore", "clean keeps what a savepoint needs, and removes it after its drop")
def test_clean_keeps_what_a_savepoint_needs_and_removes_it_after_its_drop(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    tx = write(savepoints, path, Purpose.CREATE_TABLE_AS)
    savepoints.create("before", path)
    write(savepoints, path, REPLACE)
    write(savepoints, path, REPLACE)
    savepoints.clean()
    kept = [snapshot.summary["twophase.transaction-id"] for snapshot in lake.load(path).snapshots()]
    assert tx in kept
    savepoints.restore()
    savepoints.clean()
    assert sorted(lake.rows(path)) == sorted(ROWS)
    write(savepoints, path, REPLACE)
    savepoints.drop()
    assert list(lake.load(path).refs()) == ["main"]
    savepoints.clean()
    assert len(lake.load(path).snapshots()) == 1
    assert len(list(lake.warehouse.rglob("*.parquet"))) == 1


def write(savepoints: Savepoints, path: ObjectPath, purpose: Purpose) -> str:
    """A transaction that the timeline knows."""
    tx = savepoints.coordinator.begin()
    participant = tx.stage(savepoints.catalog, path, TableDefinition(SCHEMA), purpose=purpose)
    assert participant is not None
    tx.begin_participant(participant)
    tx.write(participant, table(ROWS))
    tx.commit()
    return tx.id


@in_each_catalog
def test_a_table_dropped_since_comes_back_and_its_files_stay_until_then(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)
    with pytest.raises(CatalogError, match="a savepoint keeps a state of it"):
        savepoints.catalog.drop_table(path, purge=True)
    savepoints.catalog.drop_table(path)
    name = f"lake.{path}"
    found = savepoints.clean(purge_dropped=[name])
    assert [cleaned.removed for cleaned in found if cleaned.leftover.dropped == name] == [False]
    savepoints.restore()
    assert sorted(lake.rows(path)) == sorted(ROWS)
    savepoints.drop()
    with pytest.raises(TableNotExistError):
        savepoints.catalog.load_table(ObjectPath.of(path.database, "other"))


@pytest.mark.promise("restore", "clean keeps what a savepoint needs of a dropped table, also of one that was renamed")
def test_a_table_renamed_and_dropped_since_comes_back_and_its_files_stay_until_then(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)
    new = ObjectPath.of(path.database, "renamed")
    savepoints.catalog.rename_table(path, new)
    savepoints.catalog.drop_table(new)
    committed(savepoints, new, Purpose.CREATE_TABLE_AS, [("x", 0.5)], OTHER)
    savepoints.catalog.drop_table(new)
    found = savepoints.clean(purge_dropped=[f"lake.{new}"])
    (why,) = [cleaned.reason for cleaned in found if cleaned.leftover.dropped and not cleaned.removed]
    assert why == "savepoint before needs it; run: twophase drop-savepoint before"
    assert len([cleaned for cleaned in found if cleaned.leftover.dropped]) == 2  # The other table of the name is gone.
    savepoints.restore()
    assert sorted(lake.rows(path)) == sorted(ROWS)
    savepoints.drop()
    assert [done.removed for done in savepoints.clean(purge_dropped=[f"lake.{new}"]) if done.leftover.dropped] == [True]


def test_files_of_a_dropped_table_that_are_gone_are_noticed(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)
    savepoints.catalog.drop_table(path)
    for manifest in lake.warehouse.rglob("*-m*.avro"):
        manifest.unlink()
    with pytest.raises(CatalogError, match="is no longer there: the tag"):
        savepoints.restore()


def test_a_table_made_anew_since_is_replaced_by_the_kept_one(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)
    savepoints.catalog.drop_table(path)
    committed(savepoints, path, Purpose.CREATE_TABLE_AS, [("x", 0.5)], OTHER)
    savepoints.restore()
    assert sorted(lake.rows(path)) == sorted(ROWS)


def test_a_renamed_table_is_found_by_a_restore_and_by_a_drop(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)
    new = ObjectPath.of(path.database, "renamed")
    savepoints.catalog.rename_table(path, new)
    savepoints.restore()
    assert sorted(lake.rows(path)) == sorted(lake.rows(new)) == sorted(ROWS)
    savepoints.drop()
    assert [list(lake.load(table).refs()) for table in (path, new)] == [["main"], ["main"]]


def test_a_table_without_rows_is_kept_as_well(savepoints: Savepoints, lake: Lake, path: ObjectPath) -> None:
    savepoints.catalog.create_table(path, TableDefinition(SCHEMA))
    savepoints.create("before", path)
    committed(savepoints, path, INSERT)
    savepoints.restore()
    assert lake.rows(path) == []
    savepoints.drop()


def test_tables_made_since_in_its_database_are_dropped(savepoints: Savepoints, lake: Lake, path: ObjectPath) -> None:
    committed(savepoints, path)
    savepoints.create("before", databases=[path.database])
    new = ObjectPath.of(path.database, "new")
    committed(savepoints, new)
    savepoints.restore(keep_new=True)
    assert savepoints.catalog.table_exists(new)
    savepoints.restore()
    assert savepoints.catalog.list_tables(path.database) == [path.name]
    assert sorted(lake.rows(path)) == sorted(ROWS)


def tagged(lake: Lake, path: ObjectPath, name: str) -> None:
    """What another program does to a table outside twophase."""
    with lake.iceberg() as iceberg:
        loaded = iceberg.load_table(tuple(path.to_document()))
        current = loaded.current_snapshot()
        assert current is not None
        loaded.manage_snapshots().create_tag(current.snapshot_id, name).commit()


@pytest.mark.promise("restore", "a savepoint never changes what VERSION AS OF reads by the name of a tag or branch")
def test_a_savepoint_never_hides_a_tag_or_branch_of_its_table(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    committed(savepoints, path)
    tagged(lake, path, "release")
    for name in ("release", "main"):
        with pytest.raises(ConfigurationError, match=f"can be named {name}: the table has a branch or tag of this"):
            savepoints.create(name, path)
    assert (savepoints.timeline.savepoints(), set(lake.load(path).refs())) == ([], {"main", "release"})
    savepoints.create("before", path)
    committed(savepoints, path, INSERT, [(3, "three")])
    assert as_of(savepoints, path, "before") == sorted(ROWS)
    tagged(lake, path, "before")
    assert as_of(savepoints, path, "before") == sorted([*ROWS, (3, "three")])
    with pytest.raises(CatalogError, match="has no snapshot, branch or tag 'never'"):
        as_of(savepoints, path, "never")
    savepoints.catalog.drop_table(path)
    assert as_of(savepoints, path, "before") == sorted(ROWS)


def test_an_expired_savepoint_of_another_table_hides_no_tag(
    savepoints: Savepoints, lake: Lake, path: ObjectPath
) -> None:
    other = ObjectPath.of(path.database, "other")
    committed(savepoints, path)
    committed(savepoints, other, Purpose.CREATE_TABLE_AS, [("x", 0.5)], OTHER)
    savepoints.create("release", other, keep_seconds=0.001)
    with pytest.raises(CatalogError, match="has no snapshot, branch or tag 'release'"):
        as_of(savepoints, path, "release")
    tagged(lake, path, "release")
    assert as_of(savepoints, path, "release") == sorted(ROWS)
    with pytest.raises(ConfigurationError, match="Savepoint release has expired"):
        as_of(savepoints, other, "release")


def test_a_tag_that_cannot_be_read_is_an_error_and_not_the_savepoint(
    savepoints: Savepoints, lake: Lake, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)

    def failing(*_: object, **__: object) -> Any:
        raise CatalogError("The Iceberg catalog failed.")

    monkeypatch.setattr(savepoints.catalog, "read_source_as_of", failing)
    with pytest.raises(CatalogError, match="catalog failed"):
        as_of(savepoints, path, "before")


def as_of(savepoints: Savepoints, path: ObjectPath, version: str) -> list[tuple[Any, ...]]:
    source = source_of_version(savepoints.timeline, savepoints.catalog, path, version)
    return sorted(tuple(row.values()) for row in kept_rows(source).to_pylist())


@pytest.mark.parametrize("action", ["error", "error_after"])
def test_a_failed_creation_leaves_no_tag(savepoints: Savepoints, lake: Lake, path: ObjectPath, action: str) -> None:
    committed(savepoints, path)
    failpoints.arm("lakehouse.tag", action)
    with pytest.raises(failpoints.FailpointError):
        savepoints.create("before", path)
    failpoints.disarm()
    assert list(lake.load(path).refs()) == ["main"]
    assert savepoints.timeline.savepoints() == []


@pytest.mark.parametrize("action", ["error", "error_after"])
def test_a_drop_that_fails_is_completed_by_clean(
    savepoints: Savepoints, lake: Lake, path: ObjectPath, action: str
) -> None:
    committed(savepoints, path)
    savepoints.create("before", path)
    failpoints.arm("lakehouse.untag", action)
    with pytest.raises(failpoints.FailpointError):
        savepoints.drop()
    failpoints.disarm()
    savepoints.clean()
    assert list(lake.load(path).refs()) == ["main"]
    assert savepoints.timeline.savepoints() == []


def test_a_writer_outside_twophase_is_noticed(savepoints: Savepoints, lake: Lake, path: ObjectPath) -> None:
    committed(savepoints, path)

    def interfere(_: str) -> None:
        with lake.iceberg() as iceberg:
            iceberg.load_table(tuple(path.to_document())).append(pa.table({"id": [9], "name": ["nine"]}))

    failpoints.arm("lakehouse.tag", interfere)
    with pytest.raises(WriteConflictError, match="changed outside twophase"):
        savepoints.create("before", path)
    failpoints.disarm()
    assert list(lake.load(path).refs()) == ["main"]


def test_a_tag_that_another_engine_removed_is_noticed(savepoints: Savepoints, lake: Lake, path: ObjectPath) -> None:
    tx = write(savepoints, path, Purpose.CREATE_TABLE_AS)
    record = savepoints.create("before", path)
    with lake.iceberg() as iceberg:
        loaded = iceberg.load_table(tuple(path.to_document()))
        loaded.manage_snapshots().remove_tag(record.tables[0].document["tag"]).commit()
    write(savepoints, path, REPLACE)
    savepoints.clean()
    assert tx not in [snapshot.summary["twophase.transaction-id"] for snapshot in lake.load(path).snapshots()]
    with pytest.raises(CatalogError, match="is no longer there: the tag"):
        savepoints.restore()
    savepoints.drop()


@pytest.mark.promise("restore", "no secret among the properties of an Iceberg table is written to the timeline")
def test_a_table_with_a_secret_among_its_properties_is_refused(
    savepoints: Savepoints, path: ObjectPath, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(savepoints, path, properties={"owner": "me", "connector.api.token": "hunter2secret"})
    with pytest.raises(
        AtomicityNotSupportedError, match=r"hold secrets, .* connector\.api\.token\. Nothing was changed"
    ) as refused:
        savepoints.create("before", path)
    assert "hunter2secret" not in str(refused.value)
    savepoints.catalog.alter_table(path, [TableChange("remove_property", (), {"key": "connector.api.token"})])
    check = KeptTables.plan

    def overtaken(kept: KeptTables, *facts: Any) -> Any:
        document = check(kept, *facts)
        savepoints.catalog.alter_table(path, [TableChange("set_property", (), {"key": "a.secret", "value": "hunter2"})])
        return document

    monkeypatch.setattr(KeptTables, "plan", overtaken)
    with pytest.raises(AtomicityNotSupportedError, match=r"a\.secret"):
        savepoints.create("before", path)
    assert savepoints.timeline.savepoints() == []
    assert b"hunter2" not in (tmp_path / "timeline.db").read_bytes()


# -- undo --------------------------------------------------------------------------------------------------------------


@pytest.mark.promise("restore", "an undo is refused where a table's definition was changed since, which it would lose")
@pytest.mark.promise("restore", "an undo is refused where a table was renamed or dropped since")
@pytest.mark.parametrize("purpose", [Purpose.CREATE_TABLE_AS, REPLACE, INSERT])
def test_what_was_changed_since_is_not_lost_by_an_undo(
    savepoints: Savepoints, lake: Lake, path: ObjectPath, purpose: Purpose
) -> None:
    if purpose is not Purpose.CREATE_TABLE_AS:
        write(savepoints, path, Purpose.CREATE_TABLE_AS)
    changed = write(savepoints, path, purpose)

    def plan() -> Undo:
        return plan_undo(savepoints.timeline, savepoints.resolve, changed, lambda *_: None)

    plan()
    savepoints.create("since", path)
    plan()  # A tag is no change.
    lake.load(path).transaction().set_properties(important="yes").commit_transaction()
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        plan()
    lake.load(path).transaction().remove_properties("important").commit_transaction()
    plan()
    lake.load(path).update_schema().add_column("more", IntegerType()).commit()
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        plan()
    savepoints.catalog.rename_table(path, ObjectPath.of(path.database, "another"))
    with pytest.raises(ConfigurationError, match="no longer as it has left it"):
        plan()
