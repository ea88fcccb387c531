"""Reads of a table as it was before some transactions: exactly that state, or a refusal."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.lakehouse.conftest import make_lake
from tests.lakehouse.foreign import delete_positions
from tests.lakehouse.places import Lake, ordered
from tests.lakehouse.statements import ROWS, SCHEMA, run, stage, table
from twophase.catalog import ReadSource, TableChange
from twophase.catalog.reading import Filter
from twophase.catalog.snapshots import Change
from twophase.catalogs.lakehouse import LakehouseCatalog
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.errors import CatalogError, SnapshotTooOldError, TableNotExistError
from twophase.model import ObjectPath, OverwriteScope, Purpose, TableDefinition, Transform

CREATE, INSERT, OVERWRITE = Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
REPLACE = Purpose.REPLACE_TABLE_AS
OTHER = pa.schema([("name", pa.string()), ("share", pa.float64())])


@pytest.fixture(autouse=True)
def is_read_alike() -> None:
    """That all readers read these tables alike, others have tested."""


in_each_catalog = pytest.mark.parametrize("lake", ["sqlite", "postgresql", "hive_metastore", "rest"], indirect=True)


@pytest.fixture
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return make_lake(getattr(request, "param", "sqlite"), request, tmp_path)


@pytest.fixture
def path(catalog: LakehouseCatalog) -> ObjectPath:
    """A table that does not exist yet, in a database of its own."""
    database = f"lake_{uuid.uuid4().hex[:12]}"
    catalog.create_database(database)
    return ObjectPath.of(database, "daily")


def change(participant: LakehouseParticipant, number: int | None = 1) -> Change:
    """What the timeline records of a publish; of one that is pending, without a number."""
    appends = participant.purpose is INSERT
    scope = None if appends else participant.reservation_scope()
    return Change(participant.transaction_id, number, appends, scope, participant.document["test_before"])


def staged(*statement: Any, **facts: Any) -> LakehouseParticipant:
    """A statement up to its decision, with which the state that it replaces is recorded."""
    participant = stage(*statement, **facts)
    participant.document["test_before"] = participant.replaced_state()
    return participant


def publish(participant: LakehouseParticipant) -> LakehouseParticipant:
    participant.commit()
    participant.finish()
    return participant


def done(*statement: Any, **facts: Any) -> LakehouseParticipant:
    return publish(staged(*statement, **facts))


def rows(source: ReadSource) -> list[Any]:
    """The rows of a source, as Spark reads them: by the ids of the fields."""
    assert source.files is not None and source.definition is not None
    assert source.version == source.files.version
    scan = source.files.plan([])
    assert scan.schema.names == source.definition.schema.names
    found: list[Any] = []
    for location in scan.locations:
        file = pq.read_table(location.removeprefix("file://"))
        columns = {_id(field): file[field.name].to_pylist() for field in file.schema}
        nothing = [None] * file.num_rows
        found += zip(*(columns.get(_id(field), nothing) for field in scan.schema), strict=True)
    return ordered(found)


def _id(field: pa.Field) -> bytes:
    return bytes(field.metadata[b"PARQUET:field_id"])


def before(catalog: LakehouseCatalog, path: ObjectPath, *changes: Change, version: Any = None) -> ReadSource:
    return catalog.read_source_before(path, changes, version)


def too_old(catalog: LakehouseCatalog, path: ObjectPath, *changes: Change, version: Any = None) -> str:
    with pytest.raises(SnapshotTooOldError) as caught:
        before(catalog, path, *changes, version=version)
    assert f"{catalog.name}.{path}" in str(caught.value) and "again" in str(caught.value)
    return str(caught.value)


@in_each_catalog
def test_the_state_before_each_kind_of_change(catalog: LakehouseCatalog, lake: Lake, path: ObjectPath) -> None:
    run(catalog, path, partitioning=(Transform.identity("name"),), properties={"kept": "1"})
    versions = [catalog.table_version(path)]
    expected: list[Sequence[Any]] = [ROWS]
    made = []
    statements: list[tuple[Any, ...]] = [
        (INSERT, [(3, "three")]),
        (OVERWRITE, [(4, "four")]),
        (REPLACE, [("five", 0.5)], OTHER),
        (INSERT, [("six", 0.6)], OTHER),
    ]
    for number, (purpose, new, *schema) in enumerate(statements):
        made.append(change(done(catalog, path, purpose, new, *schema), number))
        expected.append(ordered([*expected[-1], *new]) if purpose is INSERT else new)
        versions.append(catalog.table_version(path))
    other = lake.catalog()
    pinned = [before(other, path, *made[number:]) for number in range(len(made) + 1)]
    by_version = [before(other, path, *made[number:], version=version) for number, version in enumerate(versions)]
    done(catalog, path, OVERWRITE, [], OTHER)
    for source, named, version, wanted in zip(pinned, by_version, versions, expected, strict=True):
        assert (rows(source), rows(named)) == (wanted, wanted)
        assert source.version == named.version == version
        assert source.definition == named.definition
    then, now = pinned[0].definition, pinned[-1].definition
    assert then is not None and now is not None
    assert (then.schema.names, then.partitioning) == (SCHEMA.names, (Transform.identity("name"),))
    assert (now.schema.names, now.partitioning) == (OTHER.names, ())
    other.close()


@in_each_catalog
def test_a_change_that_may_be_published_at_any_moment_is_not_read(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    run(catalog, path)
    pending = staged(catalog, path, OVERWRITE, [(3, "three")])
    not_yet = before(catalog, path, change(pending, None))
    publish(pending)
    published = before(catalog, path, change(pending, None))
    assert rows(not_yet) == rows(published) == ROWS
    assert not_yet.version == published.version
    assert pending.compensate()
    undone = before(catalog, path, change(pending, None))
    assert (rows(undone), undone.version) == (ROWS, not_yet.version)


@in_each_catalog
def test_before_the_change_that_created_it_there_is_no_table(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    pending = staged(catalog, path)
    for publishing in (lambda: None, lambda: publish(pending)):
        publishing()
        with pytest.raises(TableNotExistError):
            before(catalog, path, change(pending, None))
    created = change(pending, 1)
    inserted = change(done(catalog, path, INSERT), 2)
    with pytest.raises(TableNotExistError):
        before(catalog, path, created, inserted)
    assert rows(before(catalog, path, inserted)) == ROWS
    version = catalog.table_version(path)
    catalog.drop_table(path)
    with pytest.raises(TableNotExistError):
        before(catalog, path, created)
    too_old(catalog, path, inserted)
    too_old(catalog, path, version=version)


def test_a_table_that_is_made_empty_by_ddl_is_empty_before_its_first_rows(
    catalog: LakehouseCatalog, path: ObjectPath
) -> None:
    catalog.create_table(path, TableDefinition(SCHEMA))
    first = change(done(catalog, path, INSERT))
    found = before(catalog, path, first)
    assert rows(found) == []
    assert rows(before(catalog, path, first, version=found.version)) == []


@pytest.mark.parametrize("merged", [False, True])
def test_of_appends_in_another_order_than_that_of_their_numbers_the_files_are_distinguished(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, merged: bool
) -> None:
    run(catalog, path, properties={"commit.manifest.min-count-to-merge": "2"} if merged else {})
    late, early, third = (staged(catalog, path, INSERT, [(number, "x")]) for number in (3, 4, 5))
    for participant in (late, early, third):  # Published in this order, though the second completes first.
        publish(participant)
    unwanted = [change(late, 2), change(third, None)]
    found = before(catalog, path, *unwanted)
    assert rows(found) == [*ROWS, (4, "x")]
    assert rows(before(catalog, path, change(early, 1), *unwanted)) == ROWS
    done(catalog, path, REPLACE, [("y", 0.5)], OTHER)
    assert rows(before(catalog, path, *unwanted, version=found.version)) == [*ROWS, (4, "x")]


@pytest.mark.parametrize("statement", ["overwrite", "other engine", "columns"])
def test_a_state_that_a_table_never_had_is_refused_if_files_cannot_be_left_out(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, statement: str
) -> None:
    run(catalog, path, partitioning=(Transform.identity("name"),))
    scope = OverwriteScope({"name": "one"})
    if statement == "overwrite":
        late, early = staged(catalog, path, INSERT, [(3, "x")]), staged(catalog, path, OVERWRITE, [], overwrite=scope)
    else:
        late, early = (staged(catalog, path, INSERT, [(number, "x")]) for number in (3, 4))
    publish(late)
    if statement == "other engine":
        lake.load(path).overwrite(table([(9, "x")]))
        early.abort()
        early = staged(catalog, path, INSERT, [(4, "x")])
    if statement == "columns":
        add = TableChange("add_column", ("more",), {"field": pa.schema([("more", pa.int32())])})
        catalog.alter_table(path, [add])
    publish(early)
    assert early.transaction_id in too_old(catalog, path, change(late, 2))
    assert rows(before(catalog, path, change(early, 1), change(late, 2))) == ROWS


def test_definitions_are_as_they_were_then(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    run(catalog, path)
    version = catalog.table_version(path)
    add = TableChange("add_column", ("more",), {"field": pa.schema([("more", pa.int32())])})
    catalog.alter_table(path, [add])
    wider = pa.schema([*SCHEMA, ("more", pa.int32())])
    inserted = change(done(catalog, path, INSERT, [(3, "three", 3)], wider))
    catalog.alter_table(path, [TableChange("rename_column", ("more",), {"name": "most"})])
    catalog.alter_table(path, [TableChange("drop_column", ("name",))])
    assert rows(before(catalog, path, inserted)) == [(*row, None) for row in ROWS]
    assert rows(before(catalog, path, inserted, version=version)) == ROWS
    assert rows(before(catalog, path, version=version)) == ROWS


def test_what_other_engines_did_after_a_change_is_not_read(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath
) -> None:
    run(catalog, path)
    version = catalog.table_version(path)
    lake.load(path).append(table([(3, "three")]))
    assert rows(before(catalog, path, version=version)) == ROWS
    inserted = change(done(catalog, path, INSERT, [(4, "four")]))
    lake.load(path).append(table([(5, "five")]))
    assert rows(before(catalog, path, inserted)) == [*ROWS, (3, "three")]
    found = lake.load(path)
    old = int(version.split("/")[1])
    found.manage_snapshots().set_current_snapshot(snapshot_id=old).commit()
    assert rows(before(catalog, path, inserted)) == [*ROWS, (3, "three")]


def test_an_expired_state_is_refused(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    run(catalog, path)
    version = catalog.table_version(path)
    source = before(catalog, path, version=version)
    changes = [change(done(catalog, path, OVERWRITE, [(number, "x")]), number) for number in (3, 4)]
    catalog.environment.retention = -1.0
    assert rows(source) == ROWS
    assert set(catalog.remove_leftovers([found for found in catalog.leftovers() if found.kind == "version"])) == {None}
    assert "expired" in too_old(catalog, path, *changes)
    assert "expired" in too_old(catalog, path, *changes, version=version)
    assert "expired" in too_old(catalog, path, changes[1])


def test_where_the_history_has_a_gap_the_recorded_state_is_read_if_it_is_exact(
    lake: Lake, catalog: LakehouseCatalog, path: ObjectPath
) -> None:
    run(catalog, path)
    version = catalog.table_version(path)
    inserted = change(done(catalog, path, INSERT, [(3, "three")]), 1)
    overwritten = change(done(catalog, path, OVERWRITE, [(4, "four")]), 2)
    gap = lake.metadata_location(path)
    more = change(done(catalog, path, INSERT, [(5, "five")]), 3)
    os.unlink(gap.removeprefix("file://"))
    other = lake.catalog()
    assert rows(before(other, path, overwritten, more)) == [*ROWS, (3, "three")]
    assert "no longer" in too_old(other, path, inserted, overwritten, more)
    # The snapshot itself is there; so it can be read where its version is known.
    assert rows(before(other, path, inserted, overwritten, more, version=version)) == ROWS
    done(catalog, path, REPLACE)
    assert "replaced" in too_old(other, path, inserted, overwritten, more, version=version)
    other.close()


def test_a_delete_is_planned_on_one_state_of_the_table(
    catalog: LakehouseCatalog, lake: Lake, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine deletes a row between the looks, before the last one."""
    run(catalog, path)
    looks, pointer = 0, catalog.store.pointer

    def looking(at: ObjectPath) -> str | None:
        nonlocal looks
        looks -= 1
        if looks == 0:
            with lake.iceberg() as engine:
                delete_positions(engine.load_table(tuple(path.to_document())), [0])
        return pointer(at)

    monkeypatch.setattr(catalog.store, "pointer", looking)
    catalog.plan_delete(path, [Filter("=", "id", (1,))])
    looks = -looks
    with pytest.raises(CatalogError, match="another engine has deleted some"):
        catalog.plan_delete(path, [Filter("=", "id", (1,))])
