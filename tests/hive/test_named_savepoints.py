"""Named savepoints of session tables: what they keep, what takes it away, and the way back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.remote_files import local
from tests.hive.place import PATH, Place
from tests.savepoints import Savepoints
from twophase import failpoints
from twophase.catalogs.hive.tables import EXTERNAL, HiveTable
from twophase.errors import (
    AtomicityNotSupportedError,
    CatalogError,
    ConfigurationError,
    TimelineError,
    WriteConflictError,
)
from twophase.model import ObjectPath, Purpose
from twophase.timeline.listings import savepoint_rows
from twophase.timeline.savepoints import SavepointRecord, SavepointState

OTHER = ObjectPath.of("default", "u")
MORE = pa.table({"id": [7, 8, 9]})
DAY_ROWS = [(1, "a"), (2, "b"), (3, "b")]
DAYS = pa.table({"id": [1, 2, 3], "day": ["a", "b", "b"]})
REPLACE, CREATE = Purpose.CREATE_OR_REPLACE_TABLE_AS, Purpose.CREATE_TABLE_AS


class Bench(Savepoints):
    """One place with what users do about savepoints."""

    def __init__(self, directory: Path) -> None:
        self.place = Place(directory)
        super().__init__(self.place.timeline, self.place.catalog())

    def create(self, name: str = "before", *tables: ObjectPath, **facts: Any) -> SavepointRecord:
        return super().create(name, *tables, databases=() if tables else ("default",), **facts)

    def write(self, rows: pa.Table, path: ObjectPath = PATH, purpose: Purpose = REPLACE, **facts: Any) -> None:
        self.place.write(rows=rows, path=path, purpose=purpose, **facts).commit()

    def rows(self, table: str = "t") -> list[tuple[Any, ...]]:
        return sorted(self.place.rows(table=table), key=str)

    def kept_files(self) -> list[Path]:
        top = self.place.directory / "warehouse" / ".twophase" / ".savepoints"
        return sorted(file for file in top.rglob("*") if file.is_file())

    def table_files(self) -> list[Path]:
        return sorted(self.place.database.rglob("*.parquet"))


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    found = Bench(tmp_path)
    found.write(pa.table({"id": [1, 2]}), purpose=CREATE)
    yield found
    failpoints.disarm()


@pytest.mark.promise("restore", "a restore gives rows, schema and partitioning of session tables back")
def test_a_restore_gives_rows_and_schema_back_and_leaves_nothing(bench: Bench) -> None:
    bench.write(DAYS, OTHER, CREATE, by=["day"])
    bench.create()
    bench.write(pa.table({"id": ["x"], "more": [1.5]}))
    bench.write(pa.table({"id": [4], "part": [0]}), OTHER, by=["part"])
    bench.restore()
    assert bench.rows() == [(1,), (2,)]
    assert bench.rows("u") == DAY_ROWS
    definition = bench.catalog.load_table(OTHER)
    assert definition.partition_columns == ("day",)
    bench.clean()
    assert bench.rows("u") == DAY_ROWS
    bench.drop()
    assert bench.kept_files() == []
    assert bench.rows() == [(1,), (2,)]


@pytest.mark.promise("restore", "partitions that share a directory have each their rows after a restore", detail=True)
def test_partitions_that_share_a_directory_are_each_restored_with_its_rows(bench: Bench) -> None:
    bench.write(DAYS, OTHER, CREATE, by=["day"])
    metastore = bench.place.metastore()
    table = metastore.get_table("default", "u")
    assert table is not None
    one, other = metastore.list_partitions(table)
    metastore.alter_partitions(table, [replace(one, location=other.location)])
    before = bench.rows("u")
    assert before == [(2, "a"), (2, "b"), (3, "a"), (3, "b")]
    bench.create()
    bench.write(DAYS, OTHER, by=["day"])
    bench.restore()
    assert bench.rows("u") == before


def test_it_keeps_links_and_copies_no_byte(bench: Bench) -> None:
    before = {os.stat(file).st_ino for file in bench.table_files()}
    bench.create()
    kept = [file for file in bench.kept_files() if file.suffix == ".parquet"]
    assert {os.stat(file).st_ino for file in kept} == before


@pytest.mark.promise("restore", "what a savepoint keeps survives a drop of the table, and clean")
def test_what_a_savepoint_keeps_survives_a_drop_of_the_table_and_clean(bench: Bench) -> None:
    bench.create()
    bench.catalog.drop_table(PATH)
    assert bench.table_files() == []
    bench.clean()
    bench.restore()
    assert bench.rows() == [(1,), (2,)]


def test_several_restores_in_turn_are_each_what_was_kept(bench: Bench) -> None:
    bench.create("one")
    bench.write(MORE)
    bench.create("two")
    bench.write(pa.table({"id": [0]}), purpose=Purpose.INSERT_INTO)
    for name, ids in (("one", [1, 2]), ("two", [7, 8, 9]), ("one", [1, 2])):
        bench.restore(name)
        bench.clean()
        assert [number for (number,) in bench.rows()] == ids


def test_only_some_of_its_tables_are_restored_if_asked(bench: Bench) -> None:
    bench.write(MORE, OTHER, CREATE)
    bench.create()
    bench.write(MORE)
    bench.write(pa.table({"id": [0]}), OTHER)
    bench.restore(tables=[(bench.catalog, OTHER)])
    assert (len(bench.rows()), len(bench.rows("u"))) == (3, 3)
    with pytest.raises(ConfigurationError, match=r"does not contain hive\.default\.v"):
        bench.restore(tables=[(bench.catalog, ObjectPath.of("default", "v"))])
    with pytest.raises(ConfigurationError, match=r"does not contain database hive\.other"):
        bench.restore(databases=[(bench.catalog, "other")])


def test_tables_made_since_stay_if_asked(bench: Bench) -> None:
    bench.create()
    bench.write(MORE, OTHER, CREATE)
    bench.write(MORE)
    bench.restore(keep_new=True)
    assert (len(bench.rows()), len(bench.rows("u"))) == (2, 3)


def test_tables_made_since_are_dropped(bench: Bench) -> None:
    bench.create()
    bench.write(MORE, OTHER, CREATE)
    bench.write(MORE)
    bench.restore()
    assert bench.catalog.list_tables("default") == ["t"]
    assert len(bench.rows()) == 2
    bench.clean()
    assert len(bench.table_files()) == 1


@pytest.mark.parametrize("rows", [DAYS, DAYS.slice(0, 0)], ids=["rows", "no rows"])
@pytest.mark.promise("restore", "a restore beside the removal of its savepoint is whole, or refused")
def test_a_restore_beside_the_removal_of_its_savepoint_is_refused(bench: Bench, rows: pa.Table) -> None:
    bench.write(rows, by=["day"])
    bench.create()
    bench.write(MORE)
    failpoints.arm("hive.pointer.link", lambda _: bench.drop(), nth=1)
    with pytest.raises(CatalogError, match=r"not, or not all, in|was dropped, or removed by clean, while"):
        bench.restore()
    assert (bench.rows(), bench.kept_files()) == ([(7,), (8,), (9,)], [])
    bench.clean()
    assert bench.timeline.transactions(open_only=True) == []


def test_a_read_beside_the_removal_of_a_savepoint_is_of_its_files(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    (table,) = bench.create().tables

    def dropped_meanwhile(*_: Any) -> str:
        bench.drop()
        return "parquet"

    monkeypatch.setattr("twophase.catalogs.hive.kept.read_format", dropped_meanwhile)
    source = bench.catalog.read_kept(table.document)
    assert bench.kept_files() == []
    assert source.listed is not None and len(source.listed.files) == 1  # Their absence is an error, not no rows.


# -- refused -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "facts", "problem"),
    [
        ("before", {}, "There is a savepoint before already"),
        ("", {}, "is no name of a savepoint"),
        ("a\nb", {}, "is no name of a savepoint"),
        ("x" * 256, {}, "is no name of a savepoint"),
        ("42", {}, "cannot be named 42"),
        ("other", {"keep_seconds": 0.0}, "longer than 0 seconds"),
        ("other", {"keep_seconds": float("inf")}, "longer than inf seconds"),
        ("other", {"keep_seconds": 4e6 * 86400}, "into the year 9999"),
    ],
)
def test_bad_input_changes_nothing(bench: Bench, name: str, facts: dict[str, Any], problem: str) -> None:
    bench.create()
    before = bench.kept_files()
    with pytest.raises(ConfigurationError, match=problem):
        bench.create(name, **facts)
    assert (bench.kept_files(), len(bench.timeline.savepoints())) == (before, 1)
    assert bench.timeline.transactions(open_only=True) == []


def test_a_savepoint_that_an_older_version_keeps_beyond_all_calendars_is_listed(bench: Bench) -> None:
    record = SavepointRecord("sp1", "far", "tx-1", keep_seconds=4e6 * 86400)
    bench.timeline.add_savepoint(record)
    ((name, _, _, expires, *_),) = savepoint_rows(bench.timeline.savepoints())
    assert (name, expires.year) == ("far", 9999)


def test_a_name_that_is_no_savepoint_is_answered_with_those_that_there_are(bench: Bench) -> None:
    with pytest.raises(ConfigurationError, match=r"There is no savepoint never; nothing was changed\. There is none"):
        bench.restore("never")
    bench.create()
    for use in (bench.restore, bench.drop):
        with pytest.raises(ConfigurationError, match=r"There is no savepoint never; nothing was changed\. These"):
            use("never")


def test_a_table_that_could_never_be_restored_is_refused_by_name(bench: Bench) -> None:
    options = {"url": "jdbc:derby:memory:x", "dbtable": "APP.Y"}
    place = str(bench.place.database / "y-__PLACEHOLDER__")
    made = HiveTable("default", "y", EXTERNAL, MORE.schema, provider="jdbc", location=place, options=options)
    bench.catalog.metastore.create_table(made)
    with pytest.raises(AtomicityNotSupportedError, match=r"can keep hive\.default\.y: a table of format jdbc"):
        bench.create()
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])
    bench.create("before", PATH)


def test_a_missing_table_or_database_is_refused_and_nothing_is_kept(bench: Bench) -> None:
    with pytest.raises(CatalogError, match="does not exist"):
        bench.create("x", PATH, OTHER)
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])
    assert bench.timeline.locks() == []


def test_files_that_cannot_be_linked_are_refused_by_name_and_copied_if_asked(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(bench.catalog.files), "can_link", lambda *_: False)
    with pytest.raises(AtomicityNotSupportedError, match=r"No savepoint can keep hive\.default\.t without copying"):
        bench.create()
    assert bench.kept_files() == []

    def refuse(*_: Any) -> None:
        raise OSError(18, "another device")

    with monkeypatch.context() as patch:
        patch.setattr(type(bench.catalog.files), "link", refuse)
        bench.create(copies=True)
    bench.write(MORE)
    bench.restore()
    assert len(bench.rows()) == 2


@pytest.mark.promise("restore", "nobody publishes to the tables of a savepoint while it is created")
def test_no_writer_publishes_to_its_tables_while_it_is_created(bench: Bench) -> None:
    seen = []

    def write(_: str) -> None:
        with pytest.raises(WriteConflictError):
            bench.write(MORE, purpose=Purpose.INSERT_INTO)
        seen.append(True)

    failpoints.arm("core.keep", write)
    bench.create()
    failpoints.disarm()
    assert seen
    bench.write(MORE, purpose=Purpose.INSERT_INTO)
    bench.restore()
    assert len(bench.rows()) == 2


def test_a_writer_outside_twophase_is_noticed(bench: Bench) -> None:
    (file,) = bench.table_files()

    def interfere(_: str) -> None:
        (file.parent / "stranger.parquet").write_bytes(file.read_bytes())

    failpoints.arm("hive.mark_kept", interfere)
    with pytest.raises(WriteConflictError, match="changed outside twophase"):
        bench.create()
    failpoints.disarm()
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])


@pytest.mark.promise("restore", "a savepoint of several tables keeps them as of one moment, or is refused", detail=True)
def test_a_writer_outside_twophase_that_changes_a_table_after_it_is_kept_is_noticed(bench: Bench) -> None:
    bench.write(MORE, OTHER, CREATE)

    def interfere(_: str) -> None:
        (file,) = [file for file in bench.table_files() if "t" in file.parts]
        (file.parent / "stranger.parquet").write_bytes(file.read_bytes())

    failpoints.arm("core.keep", interfere, nth=2)
    with pytest.raises(WriteConflictError, match="changed outside twophase"):
        bench.create()
    failpoints.disarm()
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])


# -- expiry, crashes, and clean ----------------------------------------------------------------------------------------


def test_its_time_over_it_is_refused_listed_and_removed_by_clean(bench: Bench) -> None:
    bench.create("short", keep_seconds=0.001)
    bench.create("long", keep_seconds=3600.0)
    with pytest.raises(ConfigurationError, match="Savepoint short has expired"):
        bench.restore("short")
    kept = bench.kept_files()
    (found,) = bench.clean(dry_run=True)
    assert (found.removed, found.leftover.kind) == (False, "savepoint")
    assert "savepoint short of hive.default.t: its time is over" in found.leftover.location
    assert bench.kept_files() == kept
    (found,) = bench.clean()
    assert found.removed
    assert [record.name for record in bench.timeline.savepoints()] == ["long"]
    assert len(bench.kept_files()) == len(kept) // 2
    bench.restore("long")


POINTS = ["core.record_savepoint", "core.keep", "hive.keep_files", "hive.mark_kept"]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("action", ["error", "error_after"])
@pytest.mark.promise("restore", "a savepoint whose creation fails leaves nothing")
def test_a_failed_creation_leaves_nothing(bench: Bench, point: str, action: str) -> None:
    failpoints.arm(point, action, nth=1)
    with pytest.raises((failpoints.FailpointError, TimelineError)):
        bench.create()
    failpoints.disarm()
    bench.clean()
    assert (bench.kept_files(), bench.timeline.savepoints(), bench.timeline.locks()) == ([], [], [])
    bench.create()
    bench.restore()


def test_a_creation_that_dies_is_refused_and_removed_by_clean(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("twophase.transactions.named_savepoints.remove_savepoint", lambda *_: None)
    failpoints.arm("hive.mark_kept", "error")
    with pytest.raises((failpoints.FailpointError, TimelineError)):
        bench.create()
    failpoints.disarm()
    monkeypatch.undo()
    (record,) = bench.timeline.savepoints()
    assert (record.state, bool(bench.kept_files())) == (SavepointState.CREATING, True)
    with pytest.raises(ConfigurationError, match="Savepoint before is not complete"):
        bench.restore()
    bench.clean()
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])


def test_a_creation_that_dies_while_its_first_stamp_is_written_is_removed_by_clean(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.write(MORE, OTHER, CREATE)
    unlink = os.unlink
    with monkeypatch.context() as patch:
        patch.setattr("twophase.transactions.named_savepoints.remove_savepoint", lambda *_: None)
        # Its process was killed: what it has written of the stamp stays.
        patch.setattr(os, "unlink", lambda path, **facts: None if ".part" in str(path) else unlink(path, **facts))
        patch.setattr("os.replace", full_disk)
        with pytest.raises(CatalogError, match=r"The store of default\.t has failed: .*No space left"):
            bench.create()
    (part,) = bench.kept_files()
    assert part.suffix == ".part"
    strange = part.with_name("strange")
    strange.touch()
    (found,) = [cleaned for cleaned in bench.clean() if cleaned.leftover.kind == "savepoint"]
    assert (found.removed, bench.kept_files()) == (False, [strange])
    strange.unlink()
    bench.clean()
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])
    bench.create()


@pytest.mark.promise("restore", "a savepoint that meets a full disk leaves nothing")
def test_a_savepoint_that_meets_a_full_disk_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full_disk)
        with pytest.raises(CatalogError, match=r"The store of default\.t has failed: .*No space left"):
            bench.create()
    assert (bench.kept_files(), bench.timeline.savepoints(), bench.timeline.locks()) == ([], [], [])
    bench.create()


def full_disk(_: object, target: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", str(target))


def test_what_cannot_be_removed_of_one_table_does_not_keep_the_others(bench: Bench) -> None:
    bench.write(MORE, OTHER, CREATE)
    bench.create()
    failpoints.arm("hive.forget_files", "error", nth=1)
    with pytest.raises(failpoints.FailpointError):
        bench.drop()
    failpoints.disarm()
    assert {file.parent.name for file in bench.kept_files()} == {"t"}
    bench.clean()
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])


def test_a_drop_that_dies_when_only_directories_are_left_is_completed_by_clean(bench: Bench) -> None:
    bench.write(DAYS, OTHER, CREATE, by=["day"])
    (kept,) = bench.create("before", OTHER).tables
    failpoints.arm("hive.forget_files", "error", nth=1)
    with pytest.raises(failpoints.FailpointError):
        bench.drop()
    failpoints.disarm()
    for file in bench.kept_files():
        file.unlink()
    assert local(kept.document["directory"]).joinpath("day=a").is_dir()
    assert [cleaned.reason for cleaned in bench.clean()] == [None]
    assert not local(kept.document["directory"]).exists() and bench.timeline.savepoints() == []


@pytest.mark.parametrize("point", ["core.record_savepoint", "core.forget_kept", "hive.forget_files"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_drop_that_dies_is_completed_by_clean(bench: Bench, point: str, number: int) -> None:
    bench.write(MORE, OTHER, CREATE)
    bench.create()
    failpoints.arm(point, "error_after", nth=number)
    with pytest.raises((failpoints.FailpointError, TimelineError)):
        bench.drop()
    failpoints.disarm()
    for record in bench.timeline.savepoints():
        assert record.state is SavepointState.DROPPING
        with pytest.raises(ConfigurationError, match="is being dropped"):
            bench.restore()
    bench.clean()
    assert (bench.kept_files(), bench.timeline.savepoints()) == ([], [])
    assert (len(bench.rows()), len(bench.rows("u"))) == (2, 3)


@pytest.mark.promise("restore", "a file that a program has rewritten in place is refused, with as many bytes as well")
def test_a_file_that_was_rewritten_in_place_is_refused(bench: Bench) -> None:
    (kept,) = bench.create().tables
    (file,) = bench.table_files()
    written = file.stat()
    file.write_bytes(file.read_bytes())
    os.utime(file, ns=(written.st_atime_ns, written.st_mtime_ns + 1_000_000))
    for use in (bench.restore, lambda: bench.catalog.read_kept(kept.document)):
        with pytest.raises(CatalogError, match="was changed in place"):
            use()
    bench.drop()
    assert (bench.kept_files(), bench.rows()) == ([], [(1,), (2,)])


def test_what_is_missing_of_a_kept_table_is_noticed(bench: Bench) -> None:
    record = bench.create()
    (file,) = [file for file in bench.kept_files() if file.suffix == ".parquet"]
    file.unlink()
    with pytest.raises(CatalogError, match="not, or not all, in"):
        bench.restore()
    assert bench.rows() == [(1,), (2,)]
    directory = local(str(record.tables[0].document["directory"]))
    (directory / "_twophase_savepoint.json").unlink()
    (directory / "strange").touch()
    with pytest.raises(CatalogError, match="was kept: it does not say"):
        bench.drop()
    assert (directory / "strange").exists()
