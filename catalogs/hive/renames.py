"""Make and undo the renames of a manifest, during publish and recovery, only inside the table's directories.

A manifest is read from a directory that others may be able to write to, and a store that renames by copying can be
interrupted between copy and removal. Therefore each path is checked before any file is moved, and one of two equal
files is removed, by :meth:`twophase.catalogs.files.Files.place`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from twophase.catalogs.files import Files, Root, join
from twophase.catalogs.hive.layout import MANIFEST_FILE
from twophase.errors import CatalogError

Renames = Sequence[tuple[str, str]]


def check(
    files: Files, version: str, places: Iterable[str], into: Renames, backups: Renames, directories: Iterable[str] = ()
) -> None:
    """Refuse a manifest with a path outside its own version, the table's directories and those of new partitions.

    If another user wrote the manifest, symbolic links must not lead outside either.

    Parameters
    ----------
    files : Files
    version : str
        The directory of the manifest and the staged files.
    places : iterable of str
        The directories of the table and of its partitions in the metastore; consumed only as far as needed.
    into, backups : sequence of (str, str)
        Renames from the version to the table, and from the table to the version.
    directories : iterable of str

    Raises
    ------
    CatalogError
        The manifest was refused; nothing was moved.
    """
    holds = Root.holds if is_own(files, version) else Root.really_holds
    staged = Root(version)
    inside = [*(source for source, _ in into), *(target for _, target in backups)]
    outside = [*(target for _, target in into), *(source for source, _ in backups), *directories]
    foreign = [path for path in inside if not holds(staged, path)] or _elsewhere(outside, places, holds)
    if foreign:
        raise _foreign(version, foreign[0])


def _foreign(version: str, path: str) -> CatalogError:
    return CatalogError(
        f"The manifest in {version} names {path}, which is neither there nor where the table's files are: "
        "nothing was moved.",
        hint="Another user wrote the manifest, or the table was moved since: look at both.",
    )


def _elsewhere(paths: list[str], places: Iterable[str], holds: Callable[[Root, str], bool]) -> list[str]:
    left = list(paths)
    for place in places:
        root = Root(place)
        left = [path for path in left if not holds(root, path)]
        if not left:  # Before the next place is loaded.
            break
    return left


def is_own(files: Files, version: str) -> bool:
    """Whether this user wrote the manifest of a version: then it is trusted without a table to compare."""
    owner = files.owner(join(version, MANIFEST_FILE))
    return owner is None or owner == os.geteuid()


def pending(files: Files, pairs: Renames) -> list[tuple[str, str]]:
    """The renames that were not made, or not to their end."""
    there = set(files.existing(source for source, _ in pairs))
    return [pair for pair in pairs if pair[0] in there]


def begun(files: Files, pairs: Renames) -> list[tuple[str, str]]:
    """The renames that were made, completely or in part; or another writer's file is at the target."""
    there = set(files.existing(target for _, target in pairs))
    return [pair for pair in pairs if pair[1] in there]


def take_back(files: Files, source: str, target: str) -> None:
    """Undo one rename, even an interrupted one. Idempotent; files of another writer are kept."""
    with suppress(CatalogError):  # Both are there, and differ: the target is another writer's.
        files.place(target, source)
