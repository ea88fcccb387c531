"""The operations that the recipes need of one file system, whatever serves it."""

from __future__ import annotations

import errno
import hashlib
import posixpath
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator
from typing import BinaryIO

from twophase.catalogs.files.entries import Entry
from twophase.catalogs.files.kinds import StorageKind

_CHUNK = 1 << 20


class FileStore(ABC):
    """One file system.

    Its paths are absolute and as :meth:`twophase.catalogs.files.Files.find` returns them. Everything after the first
    two groups of methods has a default for file systems that offer no more than these.
    """

    def __init__(self, kind: StorageKind) -> None:
        self.kind = kind

    # -- reading -------------------------------------------------------------------------------------------------

    @abstractmethod
    def status(self, path: str) -> Entry | None:
        """A file or directory itself, by its path; None if it does not exist."""

    @abstractmethod
    def list(self, path: str, *, recursive: bool, links: bool) -> list[Entry]:
        """Everything below a directory, unsorted; empty if it does not exist.

        Parameters
        ----------
        path : str
        recursive : bool
        links : bool
            Whether symbolic links are followed; if not, a link is listed as a file.
        """

    @abstractmethod
    def read(self, path: str) -> bytes | None:
        """The content of a small file; None if it does not exist."""

    @abstractmethod
    def open(self, path: str) -> BinaryIO:
        """Open a file for reading."""

    # -- changing ------------------------------------------------------------------------------------------------

    @abstractmethod
    def write(self, path: str, data: bytes, *, waits: bool = True) -> None:
        """Write a small file so that readers see it whole or not at all; an existing one is replaced.

        Parameters
        ----------
        path : str
        data : bytes
        waits : bool
            Whether to wait until it survives a power cut; otherwise it does so once :meth:`persist` has synced it.
        """

    @abstractmethod
    def put(self, path: str, content: BinaryIO) -> None:
        """Write a file from a stream."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Create a directory and those above it. Idempotent."""

    @abstractmethod
    def rename(self, path: str, new_path: str) -> None:
        """Rename a file or directory; nothing exists at the new path."""

    def place(self, path: str, new_path: str) -> None:
        """Rename a file, or complete a rename by copying that was stopped; no effect if the file does not exist.

        Raises
        ------
        FileExistsError
            Another file is at the new path.
        """
        if self.status(path) is None:
            return
        if self.status(new_path) is None:
            self.make_directory(posixpath.dirname(new_path))
            self.rename(path, new_path)
        elif self.are_copies(path, new_path):
            self.remove_file(path)
        else:
            raise FileExistsError(new_path)

    def are_copies(self, path: str, new_path: str) -> bool:
        """Whether a rename by copying was stopped before it removed the old file.

        Where a rename is one step, two files are of two writers, whatever is in them.
        """
        if self.kind.atomic_rename_file:
            return False
        one, other = self.status(path), self.status(new_path)
        return one is not None and other is not None and one.size == other.size and self.equal(path, new_path)

    @abstractmethod
    def remove_file(self, path: str) -> None:
        """Remove a file. Idempotent, or raises :class:`FileNotFoundError`."""

    @abstractmethod
    def remove_files(self, path: str, names: Collection[str]) -> None:
        """Remove files of a directory by name, but only those that really are in it. Idempotent."""

    def remove_listed(self, path: str, names: Collection[str]) -> None:
        """Same as :meth:`remove_files`, for names that :meth:`list` has just returned."""
        self.remove_files(path, names)

    @abstractmethod
    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it. Idempotent, or raises :class:`FileNotFoundError`."""

    @abstractmethod
    def remove_if_empty(self, path: str) -> bool:
        """Remove a directory without entries; return whether it is gone."""

    @abstractmethod
    def copy(self, path: str, new_path: str) -> None:
        """Copy a file."""

    def link(self, path: str, new_path: str) -> None:
        """Make a hard link to a file. Idempotent: no effect if the new path already is that file."""
        raise OSError(errno.ENOTSUP, f"{path} cannot be linked: its file system has no hard links")

    # -- facts that not every file system has ----------------------------------------------------------------------

    def reaches(self, path: str, new_path: str) -> bool:
        """Whether a rename can go from one path to the other."""
        return True

    def links(self, path: str, new_path: str) -> bool:
        """Whether a hard link can go from one path to the other."""
        return False

    def equal(self, path: str, other: str) -> bool:
        """Whether two files have the same content."""
        return self._digest(path) == self._digest(other)

    def _digest(self, path: str) -> bytes:
        found = hashlib.sha256()
        with self.open(path) as stream:
            while data := stream.read(_CHUNK):
                found.update(data)
        return found.digest()

    def existing(self, paths: Iterable[str]) -> Iterator[str]:
        """Those of some files and directories that exist."""
        return (path for path in paths if self.status(path) is not None)

    def each(self, path: str) -> Iterator[Entry]:
        """Each entry directly in a directory, unsorted, perhaps without sizes; none if it does not exist."""
        return iter(self.list(path, recursive=False, links=True))

    def count_directories(self, path: str) -> int:
        """Number of directories directly in a directory."""
        return sum(not entry.is_file for entry in self.each(path))

    def change_mark(self, path: str) -> int | None:
        """See :meth:`twophase.catalogs.files.Files.change_mark`."""
        return None

    def placed(self, path: str) -> int | None:
        """See :meth:`twophase.catalogs.files.Files.placed`."""
        return None

    def changes(self, path: str) -> Iterator[tuple[str, int, int]]:
        """Name, bytes and change time of everything below a directory that has a change mark; 0 bytes for directories.

        Never called for a file system without change marks.
        """
        return iter(())

    def number(self, path: str) -> int | None:
        """See :meth:`twophase.catalogs.files.Files.number`."""
        return None

    def owner(self, path: str) -> int | None:
        """See :meth:`twophase.catalogs.files.Files.owner`."""
        return None

    def touch(self, path: str) -> None:
        """Change a directory's change mark, if it has one and we may."""

    def remove_parts(self, path: str) -> None:
        """Remove what :meth:`write` has left directly in a directory of ours when its process was killed."""

    # -- durability ------------------------------------------------------------------------------------------------

    def persist(self, paths: Iterable[str], above: str | None, written: Collection[str]) -> None:
        """Make files and directories, with everything in them, survive a power cut; by default they do already.

        Parameters
        ----------
        paths : iterable of str
        above : str or None
            The nearest directory above them that already existed; None for the parent directory of each.
        written : collection of str
            Names of files for which :meth:`write` has waited: what is in them is durable already.
        """

    def persist_names(self, paths: Iterable[str], above: str | None) -> None:
        """Make renames, creations and removals at these paths survive a power cut; by default they do already."""
