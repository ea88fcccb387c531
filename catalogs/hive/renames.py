"""Renames of files that a manifest lists, made and taken back by whoever recovers: only where the table's files are.

A manifest is read from a directory that others may write to, and a store that renames by copying can be cut between the
copy and the removal. So each path is looked at before anything moves, and of two equal files one is left.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Sequence

from twophase.catalogs.files import Files, Root, join
from twophase.catalogs.hive.layout import MANIFEST_FILE
from twophase.errors import CatalogError

Renames = Sequence[tuple[str, str]]
_CHUNK = 1 << 20


def check(
    files: Files, version: str, places: Iterable[str], into: Renames, aside: Renames, directories: Iterable[str] = ()
) -> None:
    """Refuse a manifest with a path that is neither in its own version nor where the table's files are.

    What another user wrote must not lead elsewhere by a symbolic link either.

    Parameters
    ----------
    files : Files
    version : str
        The directory that holds the manifest, and what was staged.
    places : iterable of str
        The directories of the table and of its partitions, as the metastore has them; taken as far as needed.
    into, aside : sequence of (str, str)
        Renames from the version to the table, and from the table to the version.
    directories : iterable of str
        Of new partitions.

    Raises
    ------
    CatalogError
        Nothing was moved.
    """
    holds = Root.holds if is_own(files, version) else Root.really_holds
    staged = Root(version)
    inside = [*(source for source, _ in into), *(target for _, target in aside)]
    outside = [*(target for _, target in into), *(source for source, _ in aside), *directories]
    strange = [path for path in inside if not holds(staged, path)] or _elsewhere(outside, places, holds)
    if strange:
        raise CatalogError(
            f"The manifest in {version} names {strange[0]}, which is neither there nor where the table's files are: "
            "nothing was moved.",
            hint="Somebody else wrote the manifest, or the table was moved since: look at both.",
        )


def _elsewhere(paths: list[str], places: Iterable[str], holds: Callable[[Root, str], bool]) -> list[str]:
    left = list(paths)
    for place in places:
        if not left:
            break
        root = Root(place)
        left = [path for path in left if not holds(root, path)]
    return left


def is_own(files: Files, version: str) -> bool:
    """Whether this very user wrote the manifest of a version: then it needs no table to bear it out."""
    owner = files.owner(join(version, MANIFEST_FILE))
    return owner is None or owner == os.geteuid()


def make(files: Files, source: str, target: str) -> None:
    """Make one rename, or what is left to do of it. Idempotent."""
    if not files.exists(source):
        return
    if is_cut(files, source, target):
        files.remove_file(source)
    else:
        files.move(source, target)


def take_back(files: Files, source: str, target: str) -> None:
    """Take one rename back, or what was made of it. Idempotent; what somebody else has put there stays."""
    if not files.exists(target):
        return
    if not files.exists(source):
        files.move(target, source)
    elif is_cut(files, source, target):
        files.remove_file(target)


def is_cut(files: Files, source: str, target: str) -> bool:
    """Whether both names hold one file: a store that renames by copying was stopped before it removed the other one.

    On a local file system a rename is one step, and what is at the target is somebody else's.
    """
    if files.is_local(source):
        return False
    sizes = [files.file_size(place) for place in (source, target)]
    return sizes[0] is not None and sizes[0] == sizes[1] and _equal(files, source, target)


def _equal(files: Files, one: str, other: str) -> bool:
    return _digest(files, one) == _digest(files, other)


def _digest(files: Files, location: str) -> bytes:
    filesystem, path = files.resolve(location)
    found = hashlib.sha256()
    with filesystem.open_input_stream(path) as stream:
        while data := stream.read(_CHUNK):
            found.update(data)
    return found.digest()


__all__ = ["check", "is_cut", "is_own", "make", "take_back"]
