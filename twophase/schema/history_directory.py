"""A schema history in a directory: one file ``schema-N`` a version, as Flink Table Store (Paimon) lays it out."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

from twophase.failpoints import declare, step
from twophase.schema.history import HistoryStore, Record

declare("schema.history.write", "schema.history.link")

_FILE = re.compile(r"schema-(\d+)")


class DirectoryHistoryStore(HistoryStore):
    """Entries as files of a local or mounted POSIX file system.

    An entry is written beside its place and linked into it, which fails where the number is taken: of two writers one
    wins, and
    nobody sees half a file.

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
        self._sync_directory()
        return True

    def replace(self, record: Record) -> None:
        # The number belongs to this transaction until the entry is deleted, so nothing else can stand there.
        if self._owns(record):
            os.replace(self._stage(record), self._path(record))
            self._sync_directory()

    def delete(self, record: Record) -> None:
        if self._owns(record):
            self._path(record).unlink(missing_ok=True)

    def remove_stale_files(self, older_than: float) -> int:
        """Remove what writers left that were killed while they wrote.

        Parameters
        ----------
        older_than : float
            Seconds since the epoch; younger files may belong to a writer at work.

        Returns
        -------
        int
            How many were removed.
        """
        removed = 0
        for path in self.directory.glob(".schema-*"):
            if path.stat().st_mtime < older_than:
                path.unlink(missing_ok=True)
                removed += 1
        return removed

    def _owns(self, record: Record) -> bool:
        try:
            present = Record.from_json(self._path(record).read_bytes())
        except FileNotFoundError:
            return False
        return present.transaction_id == record.transaction_id

    def _path(self, record: Record) -> Path:
        return self.directory / f"schema-{record.number}"

    def _stage(self, record: Record) -> Path:
        self.directory.mkdir(parents=True, exist_ok=True)
        staged = self.directory / f".schema-{record.number}.{uuid.uuid4().hex}"
        with step("schema.history.write"), open(staged, "xb") as file:
            file.write(record.to_json().encode())
            file.flush()
            os.fsync(file.fileno())
        return staged

    def _sync_directory(self) -> None:
        handle = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
