"""Renames of an INSERT in place: taken back or carried on where a store copies; only where the table's files are."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.crash.frames import ArrowFrame
from tests.hive.place import PATH, Place
from twophase.catalogs.files import Files, StorageKind
from twophase.catalogs.files.kinds import OBJECT_STORE, UNKNOWN, kind_of
from twophase.catalogs.files.local import LocalStore
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.catalog import HiveCatalog
from twophase.catalogs.hive.storage import levels_on
from twophase.catalogs.hive.tables import EXTERNAL, HiveTable
from twophase.errors import CatalogError
from twophase.model import Level, Outcome, Purpose, TableDefinition, Transform, WriteContext

OLD = pa.table({"id": [1, 2], "k": ["a", "b"]})
NEW = pa.table({"id": [3, 4], "k": ["a", "c"]})
BEFORE, AFTER = [(1, "a"), (2, "b")], [(3, "a"), (4, "c")]


class Killed(BaseException):
    """The process ends here: no handler of a catalog's own goes on."""


class CopyingStore(LocalStore):
    """A store that renames by copying, and that can be stopped before it removes what it has copied."""

    def __init__(self, kind: StorageKind) -> None:
        super().__init__(durable=True)
        self.kind = kind
        self.copies: int | None = None

    def rename(self, path: str, new_path: str) -> None:
        shutil.copyfile(path, new_path)
        if self.copies is not None:
            self.copies -= 1
            if self.copies == 0:
                raise Killed
        os.remove(path)


class CopyingFiles(Files):
    """The files of that store."""

    def __init__(self, kind: StorageKind = OBJECT_STORE) -> None:
        super().__init__()
        self._local = self.store = CopyingStore(kind)

    def kind(self, location: str) -> StorageKind:
        return self.store.kind


class Insert:
    """An INSERT into an EXTERNAL table that holds two rows, up to the decision."""

    def __init__(self, directory: Path, purpose: Purpose, files: Files, rows: pa.Table = NEW) -> None:
        self.place = Place(directory)
        self.home = directory / "e"
        self.home.mkdir()
        store = self.place.metastore()
        store.create_database("default", {}, ignore_if_exists=True)
        facts: dict[str, Any] = {"partition_columns": ("k",), "provider": "parquet", "location": f"file:{self.home}"}
        store.create_table(HiveTable("default", "t", EXTERNAL, OLD.schema, **facts))
        first = self._staged(self.place.catalog(), Purpose.INSERT_INTO, OLD, "first-1")
        first.commit()
        first.finish()
        self.catalog = self.place.catalog()
        self.catalog.store.files = files
        self.participant = self._staged(self.catalog, purpose, rows, "second-1")

    def _staged(self, catalog: HiveCatalog, purpose: Purpose, rows: pa.Table, transaction: str) -> Any:
        definition = TableDefinition(rows.schema, provider="parquet", partitioning=(Transform.identity("k"),))
        context = WriteContext(transaction, 0)
        found: Any = catalog.two_phase_create_table(PATH, definition, purpose=purpose, context=context)
        found.begin()
        found.write(ArrowFrame(rows))
        found.prepare()
        return found

    def reborn(self) -> Any:
        return self.catalog.restore(json.loads(json.dumps(self.participant.document)))

    def rows(self) -> list[Any]:
        return sorted(self.place.rows() or [])

    @property
    def version(self) -> Path:
        return Path(self.participant.version.removeprefix("file:"))


# -- stores that rename by copying ------------------------------------------------------------------------------------


@pytest.mark.promise(
    "killed-driver",
    "a rename that was stopped between copy and removal, as on object stores, is undone or completed",
)
@pytest.mark.parametrize("how", ["back", "forward"])
@pytest.mark.parametrize(
    ("purpose", "after", "cut"),
    [
        *((Purpose.INSERT_INTO, sorted([*BEFORE, *AFTER]), cut) for cut in (1, 2)),
        *((Purpose.INSERT_OVERWRITE, AFTER, cut) for cut in (1, 3, 4)),
    ],
)
def test_a_rename_that_was_stopped_between_copy_and_removal_is_taken_back_or_carried_on(
    tmp_path: Path, purpose: Purpose, after: list[Any], cut: int, how: str
) -> None:
    files = CopyingFiles()
    insert = Insert(tmp_path, purpose, files)
    files.store.copies = cut
    with pytest.raises(Killed):
        insert.participant.commit()
    files.store.copies = None
    survivor = insert.reborn()
    assert survivor.outcome() is Outcome.NOT_PUBLISHED
    if how == "back":
        survivor.abort()
        assert (insert.rows(), insert.version.exists()) == (BEFORE, False)
        return
    survivor.commit()
    survivor.finish()
    assert insert.rows() == after


@pytest.mark.parametrize("done", [0, 1])
def test_rows_that_something_has_removed_before_they_were_renamed_in_are_missed(tmp_path: Path, done: int) -> None:
    insert = Insert(tmp_path, Purpose.INSERT_INTO, files := CopyingFiles())
    staged = sorted(insert.version.rglob("*.parquet"))
    if done:
        files.store.copies = 1
        with pytest.raises(Killed):
            insert.participant.commit()
        files.store.copies = None
    staged[-1].unlink()
    with pytest.raises(CatalogError, match="1 of 2 staged files of it is gone") as caught:
        insert.reborn().commit()
    assert str(insert.version) in str(caught.value)
    insert.reborn().abort()
    assert (insert.rows(), insert.version.exists()) == (BEFORE, False)


def test_rolling_back_may_be_stopped_too(tmp_path: Path) -> None:
    files = CopyingFiles()
    insert = Insert(tmp_path, Purpose.INSERT_OVERWRITE, files)
    files.store.copies = 3
    with pytest.raises(Killed):
        insert.participant.commit()
    files.store.copies = 2
    with pytest.raises(Killed):
        insert.reborn().abort()
    files.store.copies = None
    insert.reborn().abort()
    assert (insert.rows(), insert.version.exists()) == (BEFORE, False)


@pytest.mark.parametrize("files", [Files(), CopyingFiles()], ids=["local", "copying"])
def test_what_another_writer_has_put_at_a_target_stays(tmp_path: Path, files: Files) -> None:
    insert = Insert(tmp_path, Purpose.INSERT_INTO, files)
    source, target = insert.participant.publisher.moves.into[0]
    taken = Path(target.removeprefix("file:"))
    if isinstance(files, CopyingFiles):  # of one size, and not what was staged
        taken.write_bytes(b"x" * Path(source.removeprefix("file:")).stat().st_size)
    else:
        shutil.copyfile(source.removeprefix("file:"), taken)
    with pytest.raises(CatalogError, match="already exists"):
        insert.participant.commit()
    insert.reborn().abort()
    assert taken.exists()


@pytest.mark.promise("external-tables", "on S3 and Google's storage an insert of one file is one copy: atomic")
@pytest.mark.parametrize("death", ["before", "after"])
def test_an_insert_of_one_file_is_published_with_the_copy_of_the_file(tmp_path: Path, death: str) -> None:
    files = CopyingFiles(kind_of("s3a", {}))
    insert = Insert(tmp_path, Purpose.INSERT_INTO, files, NEW[:1])
    assert insert.participant.level is Level.ATOMIC
    if death == "after":
        files.store.copies = 1
        with pytest.raises(Killed):
            insert.participant.commit()
        files.store.copies = None
    survivor = insert.reborn()
    assert survivor.outcome() is (Outcome.PUBLISHED if death == "after" else Outcome.NOT_PUBLISHED)
    for _ in range(2):
        survivor.commit()
        survivor.finish()
    assert (insert.rows(), insert.version.exists()) == ([*BEFORE, AFTER[0]], False)


def test_where_a_copy_may_be_seen_in_part_an_insert_of_one_file_is_reversible(tmp_path: Path) -> None:
    kind = kind_of("abfss", {})
    insert = Insert(tmp_path, Purpose.INSERT_INTO, CopyingFiles(kind), NEW[:1])
    assert (kind, insert.participant.level) == (UNKNOWN, Level.REVERSIBLE)
    assert "appends of one file reversible" in levels_on(kind)


# -- a manifest is believed where the table is -------------------------------------------------------------------------


@pytest.mark.promise("identity", "a manifest that leads elsewhere moves nothing")
@pytest.mark.parametrize("what", ["source", "target", "aside", "adds", "dots", "link", "back"])
def test_a_manifest_that_leads_elsewhere_moves_nothing(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("mine")
    insert = Insert(tmp_path, Purpose.INSERT_OVERWRITE, Files())
    manifest = insert.version / layout.MANIFEST_FILE
    facts = json.loads(manifest.read_text())
    staged, home = f"file:{insert.version}", f"file:{insert.home}"
    (insert.version / "inner").symlink_to(secret)
    lists = {
        "source": ("into", [f"file:{secret}/key", f"{home}/k=a/stolen"]),
        "target": ("into", [f"{staged}/planted", f"file:{secret}/planted"]),
        "aside": ("aside", [f"file:{secret}/key", f"{staged}/_aside/stolen"]),
        "adds": ("adds", [["z"], f"file:{secret}"]),
        "dots": ("into", [f"{staged}/../../../../secret/key", f"{home}/k=a/stolen"]),
        "back": ("into", [f"{staged}/stolen", f"file:{secret}/key"]),
        "link": ("into", [f"{staged}/inner/key", f"{home}/k=a/stolen"]),
    }
    name, entry = lists[what]
    manifest.write_text(json.dumps({**facts, name: [*facts[name], entry]}))
    if what == "link":  # One's own files may be links.
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CatalogError, match="neither there nor where the table's files are"):
        insert.reborn().commit()
    refused = pytest.raises(CatalogError, match="neither there nor") if what in ("adds", "back") else nullcontext()
    with refused:  # What was not begun need not be taken back.
        insert.reborn().abort()
    assert [entry.name for entry in secret.iterdir()] == ["key"]
    assert insert.rows() == BEFORE


def test_what_was_not_begun_is_rolled_back_wherever_the_table_is_now(tmp_path: Path) -> None:
    insert = Insert(tmp_path, Purpose.INSERT_OVERWRITE, Files())
    store = insert.place.metastore()
    table = store.get_table("default", "t")
    assert table is not None
    store.alter_table(replace(table, location=f"file:{tmp_path}/elsewhere"))
    insert.reborn().abort()
    assert not insert.version.exists()


def test_files_of_a_dropped_table_go_back_by_the_word_of_the_user_who_moved_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = Insert(tmp_path, Purpose.INSERT_OVERWRITE, Files())
    insert.participant.commit()
    (insert.version / layout.PUBLISHED_FILE).unlink()
    insert.place.metastore().drop_table("default", "t")
    held = sorted(str(path) for path in insert.home.rglob("*.parquet"))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CatalogError, match="another user's transaction"):
        insert.reborn().abort()
    assert sorted(str(path) for path in insert.home.rglob("*.parquet")) == held
    monkeypatch.undo()
    insert.reborn().abort()
    assert sorted(str(path) for path in insert.home.rglob("*.parquet")) != held
