"""Syncing files to the disk of this machine, so that they survive a power cut.

A few files are synced at the same time, so that they share the commits of the journal. Many are synced with one call
for their whole file system. That call also writes other programs' unwritten data, so it is only used for many files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice

#: Above this number of files and directories ``syncfs`` is used: 200 small files took 4 ms with it, 40 one by one.
MANY = 32
#: Six small files took 1.3 ms at the same time, 7 ms one by one.
_THREADS = 6
#: Seconds after which a further change of a directory is certain to show in its times, however coarse they are.
SETTLED = 2.0
#: Directories of which a process remembers that they need not be synced; of more, all are forgotten.
MOST_SYNCED = 10_000
#: Errors with which some file systems (CIFS, FUSE) refuse to sync a directory: they do not support it or need it.
_NO_SUCH_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)


def sync(paths: Iterable[str]) -> None:
    """Make files and directories of this machine durable.

    Parameters
    ----------
    paths : iterable of str
        Of a directory, only its own entries, not their content; paths that do not exist are skipped.

    Raises
    ------
    OSError
        The disk did not write them: none of them is certain to be durable.
    """
    every = iter(dict.fromkeys(paths))
    first = list(islice(every, MANY + 1))
    if len(first) > MANY and _sync_file_systems is not None:
        _sync_file_systems([*first, *every])
    elif len(first) > 1:
        _sync_together([*first, *every])
    else:
        for path in first:
            _sync_one(path)


class SyncedDirectories:
    """Directories that need not be synced again: what is in them has not changed since they were."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}

    def sync(self, directories: Iterable[str], paths: Iterable[str]) -> None:
        """Make files and directories durable; leave out those of the first that have not changed since the last time.

        Parameters
        ----------
        directories : iterable of str
        paths : iterable of str
            Always synced.

        Raises
        ------
        OSError
            As :func:`sync`.
        """
        now = {path: _state_of(path) for path in directories}
        changed = {path: state for path, state in now.items() if state is None or state != self._states.get(path)}
        at = time.time()
        sync(chain(map(os.path.realpath, changed), paths))  # Of a link to a directory, that directory is meant.
        if len(self._states) > MOST_SYNCED:
            self._states = {}
        self._states |= {path: state for path, state in changed.items() if state is not None and state.is_settled(at)}


@dataclass(frozen=True)
class _State:
    """A directory, and when its entries last changed."""

    device: int
    inode: int
    modified: int
    changed: int

    def is_settled(self, now: float) -> bool:
        """Whether a later change has another time."""
        return max(self.modified, self.changed) / 1e9 < now - SETTLED


def _state_of(path: str) -> _State | None:
    with suppress(OSError):
        found = os.stat(path)
        return _State(found.st_dev, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)
    return None


def tree(path: str) -> Iterator[str]:
    """A directory or file, and everything below it; symbolic links are not followed."""
    yield path
    for directory, directories, files in os.walk(path):
        yield from (os.path.join(directory, name) for name in [*files, *directories])


def _sync_together(paths: list[str]) -> None:
    try:
        running = [_threads().submit(_sync_one, path) for path in paths]
    except RuntimeError:  # No thread can be started, as at the end of the interpreter.
        for path in paths:
            _sync_one(path)
    else:
        for one in running:
            one.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, "twophase-fsync")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # Its threads stay with the parent.


def _sync_one(path: str) -> None:
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ELOOP or os.path.isdir(path):
            return  # A symbolic link has no content, and a directory that we may not even list is not ours.
        raise
    try:
        _full_sync(number)
    except OSError as error:
        if error.errno not in _NO_SUCH_SYNC or not os.path.isdir(path):
            raise
    finally:
        os.close(number)


def _full_sync(number: int) -> None:
    try:
        import fcntl

        fcntl.fcntl(number, fcntl.F_FULLFSYNC)  # type: ignore[attr-defined,unused-ignore]
    except (ImportError, AttributeError):  # only macOS has it, whose fsync does not reach the disk
        os.fsync(number)


def _find_syncfs() -> ctypes.CDLL | None:
    """The C library, if its ``syncfs`` reports errors, as on Linux since 5.8."""
    if platform.system() != "Linux" or not _at_least(platform.release(), (5, 8)):
        return None
    with suppress(OSError):
        library = ctypes.CDLL(None, use_errno=True)
        if hasattr(library, "syncfs"):
            return library
    return None


def _at_least(release: str, wanted: tuple[int, int]) -> bool:
    numbers = release.split(".")[:2]
    return len(numbers) == 2 and all(n.isdigit() for n in numbers) and tuple(map(int, numbers)) >= wanted


_library = _find_syncfs()


def _with_file_systems(paths: list[str]) -> None:
    """Call ``syncfs`` once for each file system of the paths."""
    assert _library is not None
    places: dict[int, str] = {}
    for path in paths:
        with suppress(FileNotFoundError):
            places.setdefault(os.lstat(path).st_dev, path if os.path.isdir(path) else os.path.dirname(path))
    for directory in places.values():
        number = os.open(directory, os.O_RDONLY)
        try:
            if _library.syncfs(number) != 0:
                failed = ctypes.get_errno()
                raise OSError(failed, os.strerror(failed), directory)
        finally:
            os.close(number)


_sync_file_systems = None if _library is None else _with_file_systems
