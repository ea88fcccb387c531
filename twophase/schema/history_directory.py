"""A schema history in a directory: one file ``schema-N`` a version, as Flink Table Store (Paimon) lays it out."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from twophase.failpoints import declare, step
from twophase.schema.history_store import HistoryStore, Record

declare("schema.history.write", "schema.history.link")

_FILE = re.compile(r"schema-(\d+)")


class DirectoryHistoryStore(HistoryStore):
    """Entries as files of a local or mounted POSIX file system.

    An entry is written beside its place and linked into it, which fails where the number is taken: of two writers one
    wins, and nobody sees half a file. What is not linked yet bears its transaction in its name, so that a cleaner can
    tell a dead writer's file from one at work.

    Parameters
    ----------
    table_directory : str or Path
        The table's directory; the files lie in ``schema`` below it.
    """

    def __init__(self, table_directory: str | Path) -> None:
        self.directory = Path(table_directory) / "schema"

    def read(self) -> list[Record]:
        if not self.directory.is_dir():
            return []
        records = []
        for path in self.directory.iterdir():
            if not _FILE.fullmatch(path.name):
                continue
            try:
                records.append(Record.from_json(path.read_bytes()))
            except FileNotFoundError:
                # A cleaner removed it between the listing and now: it is not part of the history any more.
                continue
        return sorted(records, key=lambda record: record.number)

    def insert(self, record: Record) -> bool:
        target = self._path(record)
        if target.exists():
            return False
        staged = self._stage(record)
        try:
            with step("schema.history.link"):
                os.link(staged, target)
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        _sync(self.directory)
        return True

    def replace(self, record: Record) -> None:
        # The number belongs to this transaction until the entry is deleted, so nothing else can stand there.
        if self._owns(record):
            os.replace(self._stage(record), self._path(record))
            _sync(self.directory)

    def delete(self, record: Record) -> None:
        if self._owns(record):
            self._path(record).unlink(missing_ok=True)
            _sync(self.directory)

    def remove_unfinished(self, failed: Callable[[str], bool], older_than: float) -> None:
        for path in self.directory.glob(".schema-*"):
            transaction_id = unquote(path.name.split(".")[-2]) if path.name.count(".") > 2 else ""
            try:
                if (transaction_id and failed(transaction_id)) or path.stat().st_mtime < older_than:
                    path.unlink()
            except FileNotFoundError:
                # Its writer has linked it, or another cleaner was here.
                continue

    def _owns(self, record: Record) -> bool:
        try:
            present = Record.from_json(self._path(record).read_bytes())
        except FileNotFoundError:
            return False
        return present.transaction_id == record.transaction_id

    def _path(self, record: Record) -> Path:
        return self.directory / f"schema-{record.number}"

    def _stage(self, record: Record) -> Path:
        _make_directory(self.directory)
        # Dots part the name; a transaction too long for a file's name is told by the file's age alone.
        owner = quote(record.transaction_id, safe="").replace(".", "%2E")
        name = f".schema-{record.number}.{owner if len(owner) < 150 else ''}.{uuid.uuid4().hex}"
        staged = self.directory / name
        with step("schema.history.write"), open(staged, "xb") as file:
            file.write(record.to_json().encode())
            file.flush()
            os.fsync(file.fileno())
        return staged


def _make_directory(directory: Path) -> None:
    """Make a directory and those above it, so that they are still there after a loss of power."""
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    _sync(directory.parent)


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
