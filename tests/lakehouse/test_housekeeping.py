"""What ``twophase clean`` may remove: what nobody needs any more, of ours, and nothing else."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile

from tests.lakehouse.places import NAME, Lake, ordered
from tests.lakehouse.statements import ROWS, SCHEMA, table
from tests.unwritable import unwritable
from twophase.catalog import TableChange
from twophase.catalogs.files import Files
from twophase.catalogs.lakehouse import LakehouseCatalog, manifests, reachable
from twophase.catalogs.lakehouse.layout import remove_file
from twophase.catalogs.lakehouse.participant import LakehouseParticipant
from twophase.cli import commands
from twophase.errors import CatalogError, TransactionAborted
from twophase.model import Isolation, ObjectPath, Outcome, OverwriteScope, Purpose, TableDefinition
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import Cleaned, clean
from twophase.transactions.coordinator import Coordinator
from twophase.transactions.transaction import Transaction

INSERT, OVERWRITE = Purpose.INSERT_INTO, Purpose.INSERT_OVERWRITE


@pytest.fixture
def catalog(lake: Lake) -> Iterator[LakehouseCatalog]:
    """One for which every retention has ended."""
    made = lake.catalog()
    made.environment.retention = -1.0
    yield made
    made.close()


@dataclass
class Job:
    """Transactions on a timeline, and ``twophase clean``."""

    catalog: LakehouseCatalog
    coordinator: Coordinator

    def stage(
        self, path: ObjectPath, purpose: Purpose = Purpose.CREATE_TABLE_AS, rows: Any = ROWS, **facts: Any
    ) -> tuple[Transaction, LakehouseParticipant]:
        """Up to the decision."""
        transaction = self.coordinator.begin()
        scope = OverwriteScope() if purpose is OVERWRITE else None
        definition = TableDefinition(SCHEMA, **facts)
        found = transaction.stage(self.catalog, path, definition, purpose=purpose, overwrite=scope)
        assert isinstance(found, LakehouseParticipant)
        transaction.begin_participant(found)
        transaction.write(found, rows if isinstance(rows, pa.Table) else table(rows))
        transaction.prepare_participant(found)
        return transaction, found

    def run(self, *statement: Any, **facts: Any) -> LakehouseParticipant:
        """A whole statement; it is given as to :meth:`stage`."""
        transaction, found = self.stage(*statement, **facts)
        transaction.commit()
        return found

    def clean(self) -> list[str]:
        """What the command removes, by its kind; what it removed is gone when it runs again."""
        done = self.cleaned()
        assert [one for one in done if one.failed] == []
        assert [one for one in self.cleaned() if one.removed or one.failed] == []
        return sorted(one.leftover.kind for one in done if one.removed)

    def cleaned(self) -> Sequence[Cleaned]:
        return clean(self.coordinator, [self.catalog])


@pytest.fixture
def job(catalog: LakehouseCatalog, tmp_path: Path) -> Iterator[Job]:
    coordinator = Coordinator(Timeline(f"sqlite:///{tmp_path / 'line.db'}"), {NAME: catalog}.__getitem__, name="job")
    yield Job(catalog, coordinator)
    coordinator.close()


def test_old_snapshots_go_with_the_files_that_only_they_needed(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    job.run(path, INSERT, [(3, "three")])
    job.run(path, OVERWRITE, [(4, "four")])
    job.run(path, INSERT, [(5, "five")])
    before = len(lake.files())
    assert "version" in job.clean()
    assert len(lake.load(path).metadata.snapshots) == 1
    assert ordered(lake.rows(path)) == [(4, "four"), (5, "five")]
    assert len([file for file in lake.files() if file.endswith(".parquet")]) == 2
    assert len(lake.files()) < before


def test_the_snapshots_that_an_open_transaction_may_read_stay(
    job: Job, path: ObjectPath, catalog: LakehouseCatalog
) -> None:
    job.run(path)
    block = job.coordinator.begin(Isolation.SNAPSHOT)
    block.note_read(catalog, path, catalog.table_version(path))
    job.run(path, OVERWRITE)
    assert "version" not in job.clean()
    source, _ = block.read_source(catalog, path)
    assert source.files is not None and source.files.plan([]).locations
    block.commit()
    assert "version" in job.clean()


def test_nothing_goes_before_its_retention_ends(job: Job, path: ObjectPath, catalog: LakehouseCatalog) -> None:
    job.run(path)
    job.run(path, OVERWRITE)
    catalog.environment.retention = 3600.0
    assert catalog.leftovers() == []
    catalog.drop_table(path)
    assert catalog.leftovers() == []


@pytest.mark.promise("clean", "what a tag or a branch of an Iceberg table names stays")
def test_what_a_tag_or_a_branch_names_stays(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    with lake.iceberg() as other:
        kept = other.load_table(tuple(path.to_document()))
        kept.manage_snapshots().create_tag(kept.current_snapshot().snapshot_id, "kept").commit()  # type: ignore[union-attr]
    job.run(path, OVERWRITE, [(9, "nine")])
    job.clean()
    kept = lake.load(path)
    tagged = kept.scan(snapshot_id=kept.metadata.refs["kept"].snapshot_id).to_arrow()
    assert ordered([tuple(row.values()) for row in tagged.to_pylist()]) == ROWS
    assert len(kept.metadata.snapshots) == 2


@pytest.mark.promise("clean", "the time of an expired snapshot is not read as an older snapshot that a tag keeps")
def test_the_time_of_an_expired_snapshot_is_not_read_as_an_older_one_that_is_kept(
    job: Job, lake: Lake, path: ObjectPath
) -> None:
    job.run(path)
    with lake.iceberg() as other:
        table = other.load_table(tuple(path.to_document()))
        table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "kept").commit()
    job.run(path, INSERT, [(3, "three")])
    job.run(path, INSERT, [(4, "four")])
    _, second, third = lake.load(path).metadata.snapshot_log
    job.clean()
    with pytest.raises(CatalogError, match="no state of that time"):
        job.catalog.read_source_as_of(path, timestamp=second.timestamp_ms * 1000)
    job.catalog.read_source_as_of(path, timestamp=third.timestamp_ms * 1000)
    job.catalog.read_source_as_of(path, version="kept")


def test_snapshots_of_other_engines_are_left_alone(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    with lake.iceberg() as other:
        theirs = other.load_table(tuple(path.to_document()))
        theirs.append(theirs.scan().to_arrow())
        theirs.append(theirs.scan().to_arrow())
    job.clean()
    assert len(lake.load(path).metadata.snapshots) == 2
    assert len(lake.rows(path)) == 8


@pytest.mark.promise("clean", "files of a table dropped without PURGE stay for a catalog that has registered it")
def test_files_of_a_table_that_was_dropped_without_purge_stay_for_whoever_has_registered_it(
    job: Job, lake: Lake, path: ObjectPath, tmp_path: Path
) -> None:
    """The usual migration: registered in the new catalog, then dropped in the old one."""
    job.run(path)
    pointer = lake.metadata_location(path)
    with SqlCatalog("new", uri=f"sqlite:///{tmp_path / 'new.db'}") as new:
        new.create_namespace("moved")
        new.register_table(("moved", "daily"), pointer)
        job.catalog.drop_table(path)
        job.clean()
        (kept,) = [one for one in job.cleaned() if one.leftover.location.endswith("#dropped")]
        assert "another catalog may have registered it" in str(kept.reason)
        assert len(new.load_table(("moved", "daily")).scan().to_arrow()) == len(ROWS)


def test_a_dropped_table_that_is_registered_again_is_none(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    location = lake.metadata_location(path)
    job.catalog.drop_table(path)
    with lake.iceberg() as other:
        other.register_table((path.database, "back"), location)
    job.clean()
    assert [one for one in job.cleaned() if one.leftover.kind == "version"] == []
    assert ordered(lake.rows(ObjectPath.of(path.database, "back"))) == ROWS
    job.catalog.drop_table(ObjectPath.of(path.database, "back"), purge=True)
    assert [one for one in job.cleaned() if one.leftover.kind == "version"] == []
    assert lake.files() == set()


# -- the files of a table that was dropped without PURGE, where the user says that they shall go -----------------------


@pytest.fixture
def purge(job: Job, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """``twophase clean --purge-dropped``: "removed", or what it says instead."""
    handle = SimpleNamespace(coordinator=job.coordinator, catalogs={NAME: job.catalog})
    monkeypatch.setattr(commands.Context, "session", lambda _, **__: handle)
    monkeypatch.setattr(commands.Context, "close", lambda context: context.out.close())

    def run(table: str) -> str:
        job.catalog.store._metadata.clear()  # As in a process of its own.
        manifests._lists.clear()
        done = CliRunner().invoke(commands.main, ["clean", "--output", "json", "--purge-dropped", table])
        document = json.loads(done.stdout)
        if "error" in document:
            assert done.exit_code == 1
            return f"{document['error']['message']} {document['error']['hint']}"
        found = [one for one in document["leftovers"] if one["location"].endswith("#dropped")]
        (one,) = [one for one in found if one["removed"] or one["failed"]]
        assert (done.exit_code, one["failed"]) == ((0, False) if one["removed"] else (1, True))
        return one["reason"] or "removed"

    return run


@pytest.mark.promise("clean", "`clean --purge-dropped` removes the files of a dropped table where the user names it")
def test_files_of_a_dropped_table_go_where_the_user_names_it(
    job: Job, lake: Lake, path: ObjectPath, purge: Callable[[str], str]
) -> None:
    other = ObjectPath.of(path.database, "other")
    for each in (path, other):
        job.run(each)
        job.run(each, INSERT, [(3, "three")])
        job.catalog.drop_table(each)
    assert "lake.shop.other" in purge("lake.shop.nothing")
    assert purge("lake.shop.daily") == "removed"
    assert "lake.shop.other" in purge("lake.shop.daily")
    left = lake.files()
    assert left
    assert all(file.startswith("shop/other-") for file in left)
    assert purge("lake.shop.other") == "removed"
    assert lake.files() == set()


def _is_registered_elsewhere(job: Job, lake: Lake, path: ObjectPath) -> None:
    """In this database, under another name of the Iceberg catalog."""
    with SqlCatalog("new", uri=lake.uri) as new:
        new.create_namespace_if_not_exists("moved")
        new.register_table(("moved", path.name), _pointer(job, path))


def _was_gone_on_with(job: Job, lake: Lake, path: ObjectPath) -> None:
    """In a catalog that nobody sees from here."""
    with SqlCatalog("far", uri=f"sqlite:///{lake.warehouse.parent}/far.db") as far:
        far.create_namespace("moved")
        far.register_table(("moved", path.name), _pointer(job, path)).append(table(ROWS))


def _lent_a_file(job: Job, lake: Lake, path: ObjectPath) -> None:
    """To another table, under another name of its directory."""
    (lake.warehouse.parent / "alias").symlink_to(lake.warehouse)
    file = next(file for file in sorted(lake.files()) if file.endswith(".parquet"))
    foreign_table(lake, ObjectPath.of(path.database, "borrower"), lake.warehouse.parent / "borrower")
    with lake.iceberg() as other:
        other.load_table((path.database, "borrower")).add_files([f"file://{lake.warehouse.parent}/alias/{file}"])


def _became_another_table(job: Job, lake: Lake, path: ObjectPath) -> None:
    file = Path(_pointer(job, path).removeprefix("file://"))
    document = json.loads(file.read_text())
    file.write_text(json.dumps(document | {"table-uuid": "00000000-0000-0000-0000-000000000001"}))


def _lost_a_neighbour(job: Job, lake: Lake, path: ObjectPath) -> None:
    """Of a table that cannot be read nobody knows what it needs."""
    neighbour = ObjectPath.of(path.database, "neighbour")
    job.run(neighbour)
    Path(lake.metadata_location(neighbour).removeprefix("file://")).rename(lake.warehouse.parent / "away")


def _pointer(job: Job, path: ObjectPath) -> str:
    (dropped,) = [dropped for dropped in job.catalog.store.dropped() if dropped.path == path]
    assert dropped.pointer is not None
    return dropped.pointer


@pytest.mark.promise("clean", "`clean --purge-dropped` keeps files where anything shows another use of them")
@pytest.mark.parametrize(
    ("happened", "told"),
    [
        (_is_registered_elsewhere, "new.moved.daily needs"),
        (_was_gone_on_with, "another catalog may have registered it"),
        (_lent_a_file, "lake.shop.borrower needs"),
        (_became_another_table, "is of another table now"),
        (_lost_a_neighbour, "neighbour needs cannot be determined"),
    ],
)
def test_files_of_a_dropped_table_stay_where_anything_shows_another_use(
    lake: Lake, path: ObjectPath, job: Job, happened: Callable[..., None], told: str, purge: Callable[[str], str]
) -> None:
    job.run(path)
    job.catalog.drop_table(path)
    happened(job, lake, path)
    before = lake.files()
    assert told in purge("lake.shop.daily")
    assert lake.files() == before
    if happened is _lost_a_neighbour:
        job.catalog.drop_table(ObjectPath.of(path.database, "neighbour"))


def test_a_purge_of_a_dropped_table_that_was_killed_is_carried_on(
    job: Job, lake: Lake, path: ObjectPath, purge: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies again and again, each time a file later."""
    job.run(path, properties={"write.metadata.previous-versions-max": "1"})
    for number in range(3):
        job.run(path, INSERT, [(number, "more")])
    job.catalog.drop_table(path)
    told, times = "", 0
    while told != "removed":
        monkeypatch.setattr(reachable, "remove_file", _dying_after(1))
        told, times = purge("lake.shop.daily"), times + 1
    assert times > 10
    assert lake.files() == set()
    assert job.catalog.store.dropped() == []


def _dying_after(count: int) -> Callable[..., None]:
    left = iter(range(count))

    def dying(files: Files, file: str) -> None:
        if not files.exists(file):
            return
        if next(left, None) is None:
            raise OSError("killed")
        remove_file(files, file)

    return dying


# -- DROP TABLE ... PURGE ----------------------------------------------------------------------------------------------


def foreign_table(lake: Lake, path: ObjectPath, location: Path, **properties: str) -> None:
    """A table of another engine, which may be anywhere."""
    rows = table(ROWS)
    with lake.iceberg() as other:
        made = other.create_table(
            tuple(path.to_document()), rows.schema, location=f"file://{location}", properties=properties
        )
        made.append(rows)


@pytest.mark.promise("clean", "`DROP TABLE ... PURGE` removes the table's own files and nothing else")
def test_a_purge_removes_the_tables_own_files_and_nothing_else_in_its_directory(
    job: Job, lake: Lake, path: ObjectPath, tmp_path: Path
) -> None:
    shared, inner = tmp_path / "shared", ObjectPath.of(path.database, "inner")
    foreign_table(lake, path, shared)
    foreign_table(lake, inner, shared / "inner")
    (shared / "other").mkdir()
    (shared / "other" / "letter.txt").write_text("of somebody else")
    (shared / "data" / "notes.txt").write_text("of somebody else")
    for number in range(3):
        job.run(path, INSERT, [(number, "more")])
    job.run(path, OVERWRITE, [(4, "four")])
    job.catalog.drop_table(path, purge=True)
    left = {str(file.relative_to(shared)) for file in shared.rglob("*") if file.is_file()}
    assert {name for name in left if not name.startswith("inner/")} == {"other/letter.txt", "data/notes.txt"}
    assert not (shared / "metadata").exists()
    assert ordered(lake.rows(inner)) == ROWS


def test_a_purge_leaves_files_that_the_table_only_borrows(
    job: Job, lake: Lake, path: ObjectPath, tmp_path: Path
) -> None:
    """Files of another directory that were added, or that a symbolic link leads to."""
    foreign_table(lake, path, tmp_path / "own")
    lent, linked = tmp_path / "lent" / "rows.parquet", tmp_path / "own" / "data" / "link"
    lent.parent.mkdir()
    linked.symlink_to(lent.parent)
    pq.write_table(table(ROWS), lent)
    pq.write_table(table(ROWS), lent.parent / "more.parquet")
    with lake.iceberg() as other:
        other.load_table(tuple(path.to_document())).add_files([f"file://{lent}", f"file://{linked}/more.parquet"])
    job.catalog.drop_table(path, purge=True)
    assert sorted(file.name for file in lent.parent.iterdir()) == ["more.parquet", "rows.parquet"]
    assert [file.name for file in (tmp_path / "own").rglob("*") if not file.is_dir()] == []


def test_a_purge_removes_metadata_files_that_the_last_one_no_longer_names(
    job: Job, lake: Lake, path: ObjectPath
) -> None:
    job.run(path, properties={"write.metadata.previous-versions-max": "1"})
    for number in range(4):
        job.run(path, INSERT, [(number, f"round {number}")])
    job.catalog.drop_table(path, purge=True)
    assert lake.files() == set()


@pytest.mark.promise("clean", "where `gc.enabled` is false nothing is removed")
def test_where_garbage_is_not_collected_nothing_is(job: Job, lake: Lake, path: ObjectPath) -> None:
    wanted = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "1"}
    job.run(path, properties={"gc.enabled": "false", **wanted})
    for number in range(3):
        job.run(path, OVERWRITE, [(number, f"round {number}")])
    before = lake.files()
    assert job.clean() == ["metadata"] * 4
    with pytest.raises(CatalogError, match=r"gc\.enabled"):
        job.catalog.drop_table(path, purge=True)
    assert lake.files() == before
    assert lake.rows(path) == [(2, "round 2")]
    job.catalog.drop_table(path)
    assert lake.files() == before


# -- what was published, and what was not ------------------------------------------------------------------------------


def test_what_was_published_long_ago_is_still_known_by_its_snapshot(job: Job, lake: Lake, path: ObjectPath) -> None:
    done = job.run(path)
    assert job.clean() == ["metadata"]
    assert done.outcome() is Outcome.PUBLISHED
    done.abort()
    assert ordered(lake.rows(path)) == ROWS


def test_what_clean_has_removed_is_never_published(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    transaction, zombie = job.stage(path, INSERT, [(9, "zombie")])
    job.coordinator.ended(transaction.id)
    job.clean()
    with pytest.raises(TransactionAborted, match="gone"):
        zombie.commit()
    assert zombie.outcome() is not Outcome.PUBLISHED
    assert ordered(lake.rows(path)) == ROWS
    assert lake.orphans() == set()


@pytest.mark.parametrize("change", [{"key": "../../precious"}, {"key": ""}, {"location": "/elsewhere/../precious"}])
def test_a_record_leads_to_no_files_but_its_participants_own(
    job: Job, lake: Lake, path: ObjectPath, change: dict[str, str]
) -> None:
    job.run(path)
    _, staged = job.stage(path, INSERT, [(9, "nine")])
    (record,) = job.catalog.store.records(("staged",), time.time() + 1)
    job.catalog.store.forget(staged.name)
    job.catalog.store.record_staged(staged.name, record.target, record.document | change, record.since)
    precious = lake.files()
    (leftover,) = [one for one in job.catalog.leftovers() if one.kind == "staging"]
    with pytest.raises(CatalogError, match="cannot have made"):
        job.catalog.remove_leftover(leftover)
    assert lake.files() == precious
    job.catalog.store.forget(staged.name)
    job.catalog.store.record_staged(staged.name, record.target, record.document, record.since)


def test_the_doctor_reports_a_table_whose_metadata_is_gone(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    assert job.catalog.check() == []
    Path(lake.metadata_location(path).removeprefix("file://")).unlink()
    fresh = lake.catalog()
    (told,) = fresh.check()
    assert "missing" in told
    assert str(path) in told
    fresh.drop_table(path)
    assert not fresh.table_exists(path)
    fresh.close()


def test_the_doctor_reports_a_warehouse_that_cannot_be_written(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    before = lake.files()
    with unwritable():
        (told,) = job.catalog.check()
    assert f"{lake.warehouse} cannot be written: File too large" in told
    assert job.catalog.check() == []
    assert lake.files() == before


def test_an_expired_snapshot_does_not_take_rows_that_are_still_needed(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path)
    for number in range(5):
        job.run(path, INSERT, [(number, f"round {number}")])
    job.clean()
    assert len(lake.rows(path)) == 7


def test_manifests_of_many_appends_are_merged_and_snapshots_expire_all_the_same(
    job: Job, lake: Lake, path: ObjectPath
) -> None:
    job.run(path, properties={"commit.manifest.min-count-to-merge": "4"})
    most = 0
    for number in range(9):
        job.run(path, INSERT, [(number, f"round {number}")])
        most = max(most, manifests_of(lake, path))
    assert most < 4
    assert len(lake.rows(path)) == 11
    assert lake.orphans() == set()
    job.clean()
    assert len(lake.rows(path)) == 11
    assert len(lake.load(path).metadata.snapshots) == 1
    job.run(path, OVERWRITE, [(4, "four")])
    assert lake.rows(path) == [(4, "four")]


def test_manifests_stay_apart_where_the_table_wants_that(job: Job, lake: Lake, path: ObjectPath) -> None:
    wanted = {"commit.manifest-merge.enabled": "false", "commit.manifest.min-count-to-merge": "2"}
    job.run(path, properties=wanted)
    for number in range(3):
        job.run(path, INSERT, [(number, f"round {number}")])
    assert manifests_of(lake, path) == 4


def test_many_snapshots_expire_in_one_commit_that_reads_each_file_once(
    job: Job, lake: Lake, path: ObjectPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(path, properties={"commit.manifest-merge.enabled": "false"})
    for number in range(8):
        job.run(path, INSERT, [(number, f"round {number}")])
    before = {file for file in lake.files() if file.endswith(".metadata.json")}
    manifests._lists.clear()  # As in a process of its own.
    opened: Counter[str] = Counter()
    plain = PyArrowFile.open

    def counting(file: PyArrowFile, *arguments: Any, **named: Any) -> Any:
        opened[file.location.rpartition("/")[2]] += 1
        return plain(file, *arguments, **named)

    monkeypatch.setattr(PyArrowFile, "open", counting)
    done = job.cleaned()
    assert [one.removed for one in done if one.leftover.kind == "version"] == [True] * 8
    manifests_read = {file: times for file, times in opened.items() if file.endswith(".avro")}
    assert manifests_read and set(manifests_read.values()) == {1}
    after = {file for file in lake.files() if file.endswith(".metadata.json")}
    assert len(after - before) == 1


def manifests_of(lake: Lake, path: ObjectPath) -> int:
    found = lake.load(path)
    return len(found.current_snapshot().manifests(found.io))


def test_old_metadata_files_go_where_the_table_wants_that(job: Job, lake: Lake, path: ObjectPath) -> None:
    wanted = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "2"}
    job.run(path, properties=wanted)
    for number in range(3):
        job.run(path, INSERT, [(number, f"round {number}")])
    job.catalog.alter_table(path, [TableChange("set_property", (), {"key": "a", "value": "1"})])
    _, dead = job.stage(path, INSERT, [(9, "nine")])
    dead.commit()
    lake.catalog().restore(dead.document).finish()
    kept = {file for file in lake.files() if file.endswith(".metadata.json")}
    assert len(kept) == 3
    assert kept <= lake.reachable()
    assert len(lake.rows(path)) == 6


def test_old_metadata_files_stay_where_nobody_asked(job: Job, lake: Lake, path: ObjectPath) -> None:
    job.run(path, properties={"write.metadata.previous-versions-max": "1"})
    for number in range(3):
        job.run(path, INSERT, [(number, f"round {number}")])
    assert len([file for file in lake.files() if file.endswith(".metadata.json")]) == 4
