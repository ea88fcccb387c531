"""A file system through the Spark session's own Hadoop client, with its configuration and credentials."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import BinaryIO, Protocol

from twophase.catalogs.files.entries import Entry
from twophase.catalogs.files.interface import FileStore
from twophase.catalogs.files.kinds import StorageKind
from twophase.catalogs.files.parts import is_part, part_of


class HadoopFiles(Protocol):
    """The file systems of a session; each method is one call, whatever the number of files.

    Every method takes locations, and raises :class:`OSError` if the file system refuses, and
    :class:`FileNotFoundError` if it is for want of the file.
    """

    def settings(
        self, names: Sequence[str], *, secret: bool = False, providers: str | None = None
    ) -> Sequence[str | None]:
        """Values of settings, None for those that are not set.

        Secret: also those in a credential provider, of which those at the given paths are asked first.
        """

    def status(self, location: str) -> tuple[bool, int, int] | None:
        """Whether it is a file, its bytes, and when it was written, in milliseconds; None if it does not exist."""

    def list(self, location: str, *, recursive: bool, flat: bool) -> Sequence[tuple[str, bool, int, int]]:
        """Name, and facts as from :meth:`status`; flat: without looking into each directory."""

    def existing(self, location: str, names: Sequence[str]) -> Sequence[str]:
        """Those of some names that are in a directory: by a listing, if that is shorter than to look at each."""

    def read(self, location: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""

    def open(self, location: str) -> BinaryIO:
        """Open a file for reading."""

    def put(self, location: str, content: BinaryIO) -> None:
        """Write a file from a stream; an existing one is replaced."""

    def write(self, location: str, data: bytes, part: str | None) -> None:
        """Write a small file, through another one that is renamed over it if its path is given."""

    def make_directory(self, location: str) -> None:
        """Create a directory and those above it."""

    def rename(self, location: str, target: str) -> None:
        """Rename a file or directory, but not onto an existing one."""

    def place(self, location: str, target: str, *, copies: bool) -> None:
        """Rename a file, as :meth:`~twophase.catalogs.files.interface.FileStore.place`; copies: a rename copies it."""

    def copy(self, location: str, target: str) -> None:
        """Copy a file."""

    def equal(self, location: str, other: str) -> bool:
        """Whether two files have the same content."""

    def remove_one(self, location: str) -> bool:
        """Remove a file or an empty directory; return whether it is gone."""

    def remove_files(self, location: str, names: Sequence[str]) -> None:
        """Remove files of a directory; those that do not exist are skipped."""

    def remove_tree(self, location: str) -> None:
        """Remove a directory with everything in it."""


class HadoopStore(FileStore):
    """One file system of a session."""

    def __init__(self, files: HadoopFiles, kind: StorageKind) -> None:
        super().__init__(kind)
        self._files = files

    # -- reading -------------------------------------------------------------------------------------------------

    def status(self, path: str) -> Entry | None:
        found = self._files.status(path)
        return None if found is None else Entry(posixpath.basename(path.rstrip("/")), *found)

    def list(self, path: str, *, recursive: bool, links: bool) -> list[Entry]:
        found = self._files.list(path, recursive=recursive, flat=self.kind.cheap_listing)
        return [Entry(*facts) for facts in found]

    def read(self, path: str) -> bytes | None:
        return self._files.read(path)

    def open(self, path: str) -> BinaryIO:
        return self._files.open(path)

    def equal(self, path: str, other: str) -> bool:
        return self._files.equal(path, other)

    def existing(self, paths: Iterable[str]) -> Iterator[str]:
        by_directory: dict[str, list[str]] = {}
        for path in paths:
            by_directory.setdefault(posixpath.dirname(path), []).append(path)
        for directory, wanted in by_directory.items():
            if len(wanted) == 1:
                yield from super().existing(wanted)
            else:
                there = self._files.existing(directory, [posixpath.basename(path) for path in wanted])
                yield from (f"{directory}/{name}" for name in there)

    # -- changing ------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes, *, waits: bool = True) -> None:
        # An object appears as a whole when it is complete; elsewhere a reader would see the beginning of a document.
        self._files.write(path, data, part_of(path) if self.kind.atomic_rename_file else None)

    def remove_parts(self, path: str) -> None:
        if self.kind.atomic_rename_file:
            self._files.remove_files(path, [e.name for e in self.each(path) if e.is_file and is_part(e.name)])

    def put(self, path: str, content: BinaryIO) -> None:
        self._files.put(path, content)

    def make_directory(self, path: str) -> None:
        self._files.make_directory(path)

    def rename(self, path: str, new_path: str) -> None:
        self._files.rename(path, new_path)

    def place(self, path: str, new_path: str) -> None:
        self._files.place(path, new_path, copies=not self.kind.atomic_rename_file)

    def copy(self, path: str, new_path: str) -> None:
        self._files.copy(path, new_path)

    def remove_file(self, path: str) -> None:
        self._files.remove_one(path)

    def remove_files(self, path: str, names: Collection[str]) -> None:
        there = {entry.name for entry in self.list(path, recursive=True, links=False) if entry.is_file}
        self.remove_listed(path, there & set(names))

    def remove_listed(self, path: str, names: Collection[str]) -> None:
        if names:
            self._files.remove_files(path, sorted(names))

    def remove_tree(self, path: str) -> None:
        self._files.remove_tree(path)

    def remove_if_empty(self, path: str) -> bool:
        try:
            return self._files.remove_one(path)
        except OSError:
            if self.list(path, recursive=False, links=False):
                return False
            raise
