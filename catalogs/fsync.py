"""Write files through to the disk of this machine, so that they survive a power cut.

Some files are synced one by one. Many are written through with the whole file system they are on, in one call: a
journal is then committed once and not for each of them. That call also writes what others have not written yet, so it
is kept for those who have many files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import islice

#: From so many files and directories on, one ``syncfs`` is faster: 200 small files took 4 ms by it, 40 one by one.
MANY = 32
_THREADS = 4
#: What some file systems (CIFS, FUSE) answer to the sync of a directory: they know none, and need none.
_NO_SUCH_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES, errno.EPERM, errno.EISDIR)


def sync(paths: Iterable[str]) -> None:
    """Make files and directories of this machine durable.

    Parameters
    ----------
    paths : iterable of str
        A directory stands for its own entries, not for what is in them; what does not exist is passed over.

    Raises
    ------
    OSError
        The disk did not take them: none of them counts as written.
    """
    every = iter(dict.fromkeys(paths))
    first = list(islice(every, MANY + 1))
    if len(first) <= MANY:
        for path in first:
            _sync_one(path)
    elif _sync_file_systems is not None:
        _sync_file_systems([*first, *every])
    else:
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(_sync_one, [*first, *every]))


def tree(path: str) -> Iterator[str]:
    """A directory or file, and all below it; symbolic links are not followed."""
    yield path
    for directory, directories, files in os.walk(path):
        yield from (os.path.join(directory, name) for name in [*files, *directories])


def _sync_one(path: str) -> None:
    try:
        number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno == errno.ELOOP or os.path.isdir(path):
            return  # A symbolic link has no content, and a directory that we may not even list is none of ours.
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
    except (ImportError, AttributeError):  # only macOS has it, where fsync does not reach the disk
        os.fsync(number)


def _find_syncfs() -> ctypes.CDLL | None:
    """The C library, where it has a ``syncfs`` that reports errors: that of Linux since 5.8."""
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
    """One ``syncfs`` for each file system that one of the paths is on."""
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
