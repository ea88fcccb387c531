"""An Iceberg REST catalog: a change is one request that the server refuses where the table has changed."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table.update import SetLocationUpdate

from tests.lakehouse.places import RestLake, open_lakehouse, ordered
from tests.lakehouse.rest_server import TOKEN, rest_catalog
from tests.lakehouse.statements import ROWS, SCHEMA, drop_renamed, drop_twice, run, stage
from twophase import failpoints
from twophase.catalog import TableChange
from twophase.catalogs.lakehouse import LakehouseCatalog, store_rest
from twophase.errors import CatalogError, WriteConflictError
from twophase.model import ObjectPath, Outcome, Purpose, Transform

CREATE, INSERT, OVERWRITE = Purpose.CREATE_TABLE_AS, Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE
REPLACE = Purpose.REPLACE_TABLE_AS


@pytest.fixture
def lake(rest: str, tmp_path: Path) -> RestLake:
    return RestLake(rest, tmp_path / "warehouse")


def test_writers_side_by_side_lose_no_rows(catalog: LakehouseCatalog, lake: RestLake, path: ObjectPath) -> None:
    run(catalog, path, rows=[])
    writers = [stage(catalog, path, INSERT, [(number, "row")]) for number in range(6)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda writer: writer.commit(), writers))
    for writer in writers:
        writer.finish()
    assert ordered(lake.rows(path)) == [(number, "row") for number in range(6)]
    assert lake.orphans() == set()


def test_the_server_is_told_that_the_snapshots_of_a_replaced_table_begin_anew(
    catalog: LakehouseCatalog, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Iceberg's Java library tells it: a snapshot without a parent cannot follow another one."""
    sent: list[str] = []
    iceberg = catalog.store.catalog
    commit = iceberg.commit_table

    def listened(table: Any, requirements: Any, updates: Any) -> Any:
        sent[:] = [type(update).__name__ for update in updates]
        return commit(table, requirements, updates)

    monkeypatch.setattr(iceberg, "commit_table", listened)
    run(catalog, path)
    run(catalog, path, REPLACE)
    assert sent.index("RemoveSnapshotRefUpdate") < sent.index("AddSnapshotUpdate") < sent.index("SetSnapshotRefUpdate")
    run(catalog, path, INSERT)
    assert sent == ["AddSnapshotUpdate", "SetSnapshotRefUpdate"]


@pytest.mark.parametrize("purpose", [REPLACE, OVERWRITE])
def test_rows_that_came_meanwhile_are_a_conflict(
    catalog: LakehouseCatalog, lake: RestLake, path: ObjectPath, purpose: Purpose
) -> None:
    run(catalog, path)
    participant = stage(catalog, path, purpose, [(9, "nine")])
    other = lake.catalog()
    failpoints.arm("lakehouse.swap", lambda _: (failpoints.disarm(), run(other, path, INSERT, [(8, "fast")])))
    with pytest.raises(WriteConflictError):
        participant.commit()
    assert participant.outcome() is Outcome.NOT_PUBLISHED
    participant.abort()
    assert ordered(lake.rows(path)) == ordered([*ROWS, (8, "fast")])
    other.close()


def test_a_whole_definition_reaches_the_server(catalog: LakehouseCatalog, lake: RestLake, path: ObjectPath) -> None:
    run(catalog, path, properties={"kept": "1", "sort-order": "id"})
    schema = pa.schema([("id", pa.int64()), ("part", pa.string())])
    partitioning = (Transform("truncate", ("part",), (1,)),)
    facts = {"properties": {"sort-order": "part DESC"}, "partitioning": partitioning}
    run(catalog, path, REPLACE, [(1, "xy"), (2, "zz")], schema=schema, **facts)
    catalog.alter_table(path, [TableChange("rename_column", ("id",), {"name": "number"})])
    catalog.alter_table(path, [TableChange("remove_property", (), {"key": "kept"})])
    found = lake.load(path)
    assert ordered(lake.rows(path)) == [(1, "xy"), (2, "zz")]
    assert [field.name for field in found.schema().fields] == ["number", "part"]
    assert [str(field.transform) for field in found.spec().fields] == ["truncate[1]"]
    assert catalog.load_table(path).properties["sort-order"] == "part DESC NULLS LAST"
    assert "kept" not in found.properties
    assert len(found.metadata.snapshots) == 2
    assert found.metadata.current_snapshot().parent_snapshot_id is None


@pytest.mark.promise("iceberg-other", "a lost reply of a REST catalog is reported truthfully, and a publish is undone")
@pytest.mark.parametrize("purpose", [CREATE, REPLACE, INSERT, OVERWRITE])
def test_the_outcome_of_a_lost_reply_is_true_and_a_publish_is_undone(
    catalog: LakehouseCatalog, lake: RestLake, path: ObjectPath, purpose: Purpose
) -> None:
    if purpose is not CREATE:
        run(catalog, path)
    participant = stage(catalog, path, purpose, [(9, "nine")])
    failpoints.arm("lakehouse.swap", "lost_reply")
    with pytest.raises(ConnectionError):
        participant.commit()
    failpoints.disarm()
    recovered = lake.catalog().restore(participant.document)
    assert recovered.outcome() is Outcome.PUBLISHED
    assert (9, "nine") in lake.rows(path)
    assert recovered.compensate()
    recovered.abort()
    assert (lake.table(path) is None) == (purpose is CREATE)
    assert not any(participant.document["key"] in file for file in lake.files() if file.endswith(".parquet"))
    if purpose is not CREATE:
        assert ordered(lake.rows(path)) == ROWS


def test_a_created_table_that_another_engine_has_changed_since_is_not_undone(
    catalog: LakehouseCatalog, lake: RestLake, path: ObjectPath
) -> None:
    participant = stage(catalog, path)
    participant.commit()
    lake.load(path).manage_snapshots().create_branch(participant.snapshot_id, "theirs").commit()
    assert not participant.compensate()
    participant.finish()
    assert "theirs" in lake.load(path).refs()


@pytest.mark.promise("clean", "rows of a table with its metadata outside its location, or moved or renamed since, stay")
@pytest.mark.parametrize("since", ["nothing", "moved", "renamed"])
def test_files_of_a_table_stay_whose_metadata_is_outside_its_location(
    catalog: LakehouseCatalog, lake: RestLake, path: ObjectPath, since: str, tmp_path: Path
) -> None:
    """The driver dies after the publish; another engine has changed the table since."""
    run(catalog, path, properties={"write.metadata.path": f"file://{tmp_path}/elsewhere"})
    participant = stage(catalog, path, INSERT, [(9, "nine")])
    participant.commit()
    with lake.iceberg() as other:
        if since == "moved":
            update = SetLocationUpdate(location=f"file://{tmp_path}/new")
            other.commit_table(other.load_table(tuple(path.to_document())), (), (update,))
        if since == "renamed":
            other.rename_table(tuple(path.to_document()), (path.database, "another"))
            path = ObjectPath.of(path.database, "another")
    fresh = lake.catalog()
    recovered = fresh.restore(participant.document)
    assert recovered.outcome() is Outcome.PUBLISHED
    recovered.abort()
    assert fresh.leftovers() == []
    assert ordered(lake.rows(path)) == ordered([*ROWS, (9, "nine")])
    fresh.close()


@pytest.mark.promise("clean", "rows that only a tag or a branch of another engine needs stay after a crash, too")
def test_files_stay_that_only_a_tag_of_another_engine_needs(
    catalog: LakehouseCatalog, lake: RestLake, path: ObjectPath
) -> None:
    """The driver dies after the publish; the snapshot that says so is expired since."""
    run(catalog, path)
    key, value = "write.metadata.previous-versions-max", "1"
    catalog.alter_table(path, [TableChange("set_property", (), {"key": key, "value": value})])
    participant = stage(catalog, path, INSERT, [(9, "nine")])
    participant.commit()
    table = lake.load(path)
    table.append(pa.table({"id": [8], "name": ["eight"]}, schema=SCHEMA))
    table.manage_snapshots().create_tag(tagged := table.current_snapshot().snapshot_id, "kept").commit()
    table.delete()
    table.maintenance.expire_snapshots().by_id(participant.snapshot_id).commit()
    recovered = lake.catalog().restore(participant.document)
    assert recovered.outcome() is Outcome.PUBLISHED
    recovered.abort()
    found = lake.load(path).scan(snapshot_id=tagged).to_arrow().to_pylist()
    assert ordered([tuple(row.values()) for row in found]) == ordered([*ROWS, (8, "eight"), (9, "nine")])


def test_a_server_that_is_gone_is_an_unknown_outcome_and_shows_no_token(tmp_path: Path) -> None:
    with rest_catalog(tmp_path / "rest") as uri:
        lake = RestLake(uri, tmp_path / "warehouse")
        catalog = lake.catalog()
        catalog.create_database("shop")
        participant = stage(catalog, ObjectPath.of("shop", "t"))
    assert participant.outcome() is Outcome.UNKNOWN
    with pytest.raises(CatalogError) as caught:
        participant.abort()
    assert participant.place.data in caught.value.left_behind
    told = f"{caught.value} {catalog!r} {catalog.check()} {catalog.store.settings!r}"
    assert TOKEN not in told
    catalog.close()


def test_a_wrong_token_is_reported_in_words(lake: RestLake, monkeypatch: pytest.MonkeyPatch) -> None:
    options = lake.options()
    monkeypatch.setenv("TWOPHASE_TEST_TOKEN", "another")
    catalog = open_lakehouse(**options)
    with pytest.raises(CatalogError, match="token_env") as caught:
        catalog.list_databases()
    assert "another" not in str(caught.value)
    catalog.close()


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RestLake]:
    """A damaged table would be in the way of tests that share a server."""
    with rest_catalog(tmp_path) as url:
        yield RestLake(url, tmp_path / "warehouse")


def test_a_table_that_the_server_cannot_show_stops_nothing_but_itself(
    own_server: RestLake, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = own_server.catalog()
    catalog.create_database("db")
    harmed, other = ObjectPath.of("db", "harmed"), ObjectPath.of("db", "other")
    for path in (harmed, other):
        run(catalog, path)
    dead = {path: stage(catalog, path, INSERT) for path in (harmed, other)}
    Path(own_server.metadata_location(harmed).removeprefix("file://")).write_text("{}")
    for call in (catalog.load_table, catalog.table_exists, catalog.read_source):
        with pytest.raises(CatalogError, match=r"does not show db\.harmed"):
            call(harmed)
    assert catalog.list_tables("db") == ["harmed", "other"]
    (told,) = catalog.check()
    assert "does not show db.harmed" in told
    (leftover,) = catalog.leftovers()
    assert leftover.transaction_id == dead[other].transaction_id
    catalog.remove_leftover(leftover)
    catalog.drop_table(harmed)
    assert "its files stay" in caplog.text
    assert catalog.list_tables("db") == ["other"]
    # What was staged for it can go now.
    (leftover,) = catalog.leftovers()
    assert leftover.transaction_id == dead[harmed].transaction_id
    catalog.remove_leftover(leftover)
    catalog.drop_database("db", cascade=True)
    catalog.close()


def test_a_database_that_is_dropped_since_it_was_listed_does_not_end_the_look(
    catalog: LakehouseCatalog, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(catalog, path)
    participant = stage(catalog, path, INSERT)
    rest = catalog.store.catalog
    monkeypatch.setattr(rest, "list_namespaces", lambda: [("gone",), (path.database,)])
    assert path in catalog.store.all_tables()
    assert participant.transaction_id in {leftover.transaction_id for leftover in catalog.leftovers()}
    participant.abort()


def test_of_two_who_drop_a_table_one_does_and_where_its_files_lie_is_known(
    catalog: LakehouseCatalog, path: ObjectPath
) -> None:
    drop_twice(catalog, path)


def test_a_drop_that_meets_a_renamed_table_leaves_it_alone(catalog: LakehouseCatalog, path: ObjectPath) -> None:
    drop_renamed(catalog, path)


def test_a_server_that_says_nothing_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_rest, "ANSWER_SECONDS", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        catalog = open_lakehouse(**RestLake(f"http://127.0.0.1:{silent.getsockname()[1]}", tmp_path).options())
        with pytest.raises(CatalogError, match="timed out"):
            catalog.list_databases()
        catalog.close()


def test_a_server_that_is_gone_without_a_word_is_noticed(catalog: LakehouseCatalog) -> None:
    iceberg = catalog.store.catalog
    connection = iceberg._session.get_adapter(iceberg.uri).poolmanager.connection_from_url(iceberg.uri)._new_conn()
    connection.connect()
    with closing(connection):
        assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
