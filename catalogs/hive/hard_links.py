"""Keep old files in a new version by hard links, so that nothing is copied and no reader is affected."""

from __future__ import annotations

import errno
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from twophase.catalogs.files import Files, data_entries, join
from twophase.catalogs.hive.flattening import flat_name
from twophase.catalogs.hive.layout import OWN_FILE, STAGED_FILE, partition_values
from twophase.catalogs.hive.tables import NULL_PARTITION, partition_key
from twophase.errors import CatalogError
from twophase.model import OverwriteScope

#: Whether a file with this relative name belongs to the new version.
Keep = Callable[[str], bool]


def keep_all(name: str) -> bool:
    """INSERT INTO: keep every old file."""
    return True


def outside(scope: OverwriteScope, columns: tuple[str, ...], new: Mapping[tuple[str, ...], str]) -> Keep:
    """INSERT OVERWRITE: keep the files of partitions that the statement does not replace."""

    def keep(name: str) -> bool:
        values = partition_values(posixpath.dirname(name), columns)
        if values is None:
            return False
        key = partition_key(values, columns)
        return not in_scope(scope, key, columns, replaced=key in new)

    return keep


def static_values(scope: OverwriteScope, columns: tuple[str, ...]) -> dict[str, str]:
    """Values of the static partition columns of a statement, by the table's names of these columns."""
    given = {column.lower(): value for column, value in scope.static_partition.items()}
    return {column: given[column.lower()] or NULL_PARTITION for column in columns if column.lower() in given}


def in_scope(scope: OverwriteScope, key: tuple[str, ...], columns: tuple[str, ...], *, replaced: bool) -> bool:
    """Whether an INSERT OVERWRITE replaces this partition; ``replaced``: new rows fell into it."""
    values = dict(zip((column.lower() for column in columns), key, strict=True))
    for column, value in scope.static_partition.items():
        if values.get(column.lower()) != (NULL_PARTITION if value is None or value == "" else value):
            return False
    return replaced or not scope.dynamic


class CannotLinkError(CatalogError):
    """A file cannot be linked: the filesystem does not support it, or the file has the maximum number of links."""


#: Errors of a filesystem that supports no links, not this one, or no more of this file.
_NO_LINK = frozenset(
    (errno.EMLINK, errno.EPERM, errno.EACCES, errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
)


def own_rows(files: Files, version: str) -> list[str]:
    """Names of the files of a version that its own statement wrote, without those linked from its base."""
    noted: Any = files.read_json(join(version, OWN_FILE))
    if isinstance(noted, list):
        return [str(name) for name in noted]
    return [entry.name for entry in data_entries(files.list(version))]


def note_own_rows(files: Files, version: str) -> None:
    """Record which files are the statement's own, before other files are linked beside them."""
    files.write_json(join(version, OWN_FILE), own_rows(files, version), waits=False)


def take_links_out(files: Files, version: str) -> None:
    """Remove from a version all files that its own statement did not write."""
    own = set(own_rows(files, version))
    files.remove_file(join(version, STAGED_FILE))
    for entry in data_entries(files.list(version)):
        if entry.name not in own:
            files.remove_file(join(version, entry.name))


def link_flat(files: Files, source: str, target: str, transaction_id: str) -> None:
    """Link the data files of a directory tree into one directory, by unique names. Idempotent.

    Raises
    ------
    CannotLinkError
        Not all of them could be linked.
    """
    files.make_directory(target)
    names = [entry.name for entry in data_entries(files.list(source))]
    _link_named(files, source, target, ((name, flat_name(name)) for name in names), transaction_id)


def link_tree(files: Files, source: str, target: str, keep: Keep, transaction_id: str) -> None:
    """Link the data files of one directory tree into another. Idempotent.

    Raises
    ------
    CannotLinkError
        Not all of them could be linked.
    """
    names = [entry.name for entry in data_entries(files.list(source)) if keep(entry.name)]
    for directory in sorted(set(map(posixpath.dirname, names))):
        files.make_directory(join(target, directory) if directory else target)
    _link_named(files, source, target, zip(names, names, strict=True), transaction_id)


def link_as(files: Files, source: str, target: str) -> None:
    """Link one file to a path that no other file has. Idempotent.

    Raises
    ------
    CannotLinkError
        It could not be linked.
    """
    with _linking(source, target):
        files.link(source, target)


def link_names(files: Files, source: str, target: str, names: Iterable[tuple[str, str]]) -> None:
    """Link files of one directory into another one, by names that no other files have. Idempotent.

    Raises
    ------
    CannotLinkError
        Not all of them could be linked.
    """
    link = files.linking(source, target)
    with _linking(f"A file of {source}", f"in {target}"):
        for name, new_name in names:
            link(name, new_name)


@contextmanager
def _linking(source: str, target: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        raise CannotLinkError(
            f"{source} gets no other name {target}: {error}.",
            hint="Is there an older version of the table to remove? Run: twophase clean",
        ) from error


def _link_named(files: Files, source: str, target: str, names: Iterable[tuple[str, str]], transaction_id: str) -> None:
    link = files.linking(source, target)
    with _linking(f"A file of {source}", f"in {target}"):
        for name, new_name in names:
            try:
                link(name, new_name)
            except FileExistsError:
                # Another file has this name (Hive's own writers use 000000_0): any other name is fine.
                directory, last = posixpath.split(new_name)
                link(name, posixpath.join(directory, f"{transaction_id}-{last}"))


def is_marked(files: Files, directory: str, mark: Any) -> bool:
    """Whether a directory still matches a fingerprint taken earlier."""
    if isinstance(mark, dict):  # Older versions of twophase recorded only change marks.
        mark = mark[""]
    return (files.change_mark(directory) if isinstance(mark, int) else files.fingerprint(directory)) == mark
