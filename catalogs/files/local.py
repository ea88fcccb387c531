"""The file systems of this machine: hard links, atomic renames, change marks, and syncs for a power cut."""

from __future__ import annotations

import os
import posixpath
import shutil
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from pyarrow import fs

from twophase.catalogs import fsync
from twophase.catalogs.files.arrow import ArrowStore
from twophase.catalogs.files.entries import Entry
from twophase.catalogs.files.kinds import LOCAL_DISK
from twophase.catalogs.files.parts import is_part, part_of


class LocalStore(ArrowStore):
    """All file systems that are mounted on this machine.

    Parameters
    ----------
    durable : bool
        Whether files must survive a power cut.
    """

    def __init__(self, *, durable: bool) -> None:
        super().__init__(fs.LocalFileSystem(), LOCAL_DISK)
        self._durable = durable
        self._synced = fsync.SyncedDirectories()

    # -- looking -------------------------------------------------------------------------------------------------

    def list(self, path: str, *, recursive: bool, links: bool) -> list[Entry]:
        if links:
            return super().list(path, recursive=recursive, links=links)
        return list(_without_links(path, recursive))

    def each(self, path: str) -> Iterator[Entry]:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(path) as found:
            for entry in found:
                yield Entry(entry.name, not entry.is_dir(), 0)

    def count_directories(self, path: str) -> int:
        """Number of directories directly in a directory; cheap if the file system counts them itself."""
        with suppress(FileNotFoundError):
            links = os.stat(path).st_nlink
            if links >= 2:  # Its name and its ".", then the ".." of each directory in it.
                return links - 2
        return super().count_directories(path)

    def change_mark(self, path: str) -> int | None:
        try:
            return os.stat(path).st_mtime_ns
        except FileNotFoundError:
            return -1

    def number(self, path: str) -> int | None:
        try:
            return os.stat(path).st_ino or None
        except FileNotFoundError:
            return None

    def placed(self, path: str) -> int | None:
        try:
            found = os.stat(path)
        except FileNotFoundError:
            return -1
        return max(found.st_mtime_ns, found.st_ctime_ns)

    def changes(self, path: str) -> Iterator[tuple[str, int, int]]:
        above = len(os.path.join(path, ""))
        for directory, names, files in os.walk(path):
            for name in (*names, *files):
                with suppress(FileNotFoundError):
                    facts = os.lstat(found := os.path.join(directory, name))
                    yield found[above:], 0 if name in names else facts.st_size, facts.st_mtime_ns

    def owner(self, path: str) -> int | None:
        try:
            return os.lstat(path).st_uid
        except FileNotFoundError:
            return None

    def reaches(self, path: str, new_path: str) -> bool:
        return _device(path) == _device(new_path)

    def links(self, path: str, new_path: str) -> bool:
        return _device(path) == _device(new_path)

    # -- changing ------------------------------------------------------------------------------------------------

    def touch(self, path: str) -> None:
        with suppress(OSError):
            os.utime(path)

    def write(self, path: str, data: bytes, *, waits: bool = True) -> None:
        part = part_of(path)
        try:
            super().write(part, data)
            if waits and self._durable:
                fsync.sync([part])  # Otherwise a power cut may keep the name and lose the content.
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise

    def remove_parts(self, path: str) -> None:
        for entry in list(self.each(path)):
            if entry.is_file and is_part(entry.name):
                with suppress(FileNotFoundError):
                    self.remove_file(f"{path.rstrip('/')}/{entry.name}")

    def rename(self, path: str, new_path: str) -> None:
        os.rename(path, new_path)

    def link(self, path: str, new_path: str) -> None:
        try:
            os.link(path, new_path)
        except FileExistsError:
            if not os.path.samefile(path, new_path):
                raise

    def remove_files(self, path: str, names: Collection[str]) -> None:
        if os.path.islink(path):
            return
        for root, _, files, directory in os.fwalk(path):
            below = posixpath.relpath(root, path)
            for name in files:
                if (name if below == "." else f"{below}/{name}") in names:
                    with suppress(FileNotFoundError):
                        os.unlink(name, dir_fd=directory)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with ``shutil.rmtree``, which follows no link, not even one created while it runs."""
        while True:
            try:
                shutil.rmtree(path)
                return
            except FileNotFoundError:  # Another process removes it, too, or a task that is ending removes something.
                if not os.path.lexists(path):
                    return

    def remove_if_empty(self, path: str) -> bool:
        try:
            os.rmdir(path)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    # -- durability ------------------------------------------------------------------------------------------------

    def persist(self, paths: Iterable[str], above: str | None, written: Collection[str]) -> None:
        if self._durable:
            local = tuple(paths)
            within = (name for path in local for name in fsync.tree(path) if posixpath.basename(name) not in written)
            # Of a place that is not below it, such as a LOCATION of the user's, any directory may be new.
            tops = [above if above is None or _is_above(above, path) else _mount_of(path) for path in local]
            self._synced.sync(chain.from_iterable(map(_leading_to, local, tops)), within)

    def persist_names(self, paths: Iterable[str], above: str | None) -> None:
        if self._durable:
            self._synced.sync((name for path in paths for name in _leading_to(path, above)), ())


def _device(path: str) -> int:
    """The device of a path, or of the nearest directory above it that exists."""
    while path and not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path or "/").st_dev


def _without_links(top: str, recursive: bool) -> Iterator[Entry]:
    """Everything below a local directory; a symbolic link is listed as a file."""
    try:
        found = os.scandir(top)
    except (FileNotFoundError, NotADirectoryError):
        return
    with found:
        for entry in found:
            is_directory = entry.is_dir(follow_symlinks=False)
            size = 0 if is_directory else entry.stat(follow_symlinks=False).st_size
            yield Entry(entry.name, not is_directory, size)
            if is_directory and recursive:
                for below in _without_links(entry.path, recursive):
                    yield replace(below, name=f"{entry.name}/{below.name}")


def _leading_to(path: str, above: str | None) -> list[str]:
    """The directories above a path, up to and including ``above``; only its parent if there is no such directory."""
    found = [posixpath.dirname(path)]
    if above is None or not _is_above(above, path):
        return found
    while found[-1] != above.rstrip("/") and found[-1] != "/":
        found.append(posixpath.dirname(found[-1]))
    return found


def _mount_of(path: str) -> str:
    """The directory above a path at which its file system is mounted."""
    while not os.path.ismount(path):
        path = posixpath.dirname(path)
    return path


def _is_above(above: str, path: str) -> bool:
    return path.startswith(above.rstrip("/") + "/")
