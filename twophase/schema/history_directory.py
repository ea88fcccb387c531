"""A schema history in a directory: one file ``schema-N`` per version, as in Flink Table Store (Paimon)."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote, unquote

from twophase.failpoints import Failpoint, step
from twophase.schema.history_store import HistoryStore, Record

WRITE = Failpoint("schema.history.write")
LINK = Failpoint("schema.history.link")

_FILE = re.compile(r"schema-(\d+)")


class DirectoryHistoryStore(HistoryStore):
    """A store of entries as files in a local or mounted POSIX file system.

    An entry is written to a temporary file and then hard-linked to its final name, which fails if the number is taken:
    one of two concurrent writers wins, and no reader sees a partial file. The name of a temporary file contains its
    transaction, so that a cleaner can distinguish a dead writer's file from one in use.

    Parameters
    ----------
    table_directory : str or Path
        The table's directory; the files are in its subdirectory ``schema``.
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
                # A cleaner removed it after the listing: it is no longer part of the history.
                continue
        return sorted(records, key=lambda record: record.number)

    def insert(self, record: Record) -> bool:
        target = self._path(record)
        if target.exists():
            return False
        staged = self._stage(record)
        try:
            with step(LINK):
                os.link(staged, target)
        except FileExistsError:
            return False
        finally:
            staged.unlink(missing_ok=True)
        _sync(self.directory)
        return True

    def replace(self, record: Record) -> None:
        # The number belongs to this transaction until the entry is deleted, so no other entry can have it.
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
                # Its writer has linked it, or another cleaner has removed it.
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
        # Dots separate the parts of the name. If the transaction id is too long, only the file's age marks a leftover.
        owner = quote(record.transaction_id, safe="").replace(".", "%2E")
        name = f".schema-{record.number}.{owner if len(owner) < 150 else ''}.{uuid.uuid4().hex}"
        staged = self.directory / name
        with step(WRITE), open(staged, "xb") as file:
            file.write(record.to_json().encode())
            file.flush()
            os.fsync(file.fileno())
        return staged


def _make_directory(directory: Path) -> None:
    """Create a directory and its parents durably, so that they survive a power loss."""
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
