"""A new version that keeps old files: hard links, so that nothing is copied and no reader is disturbed."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping

from twophase.catalogs.files import Entry, Files, data_entries, join
from twophase.catalogs.hive.layout import partition_key, partition_values
from twophase.model import OverwriteScope

#: Whether a file with this relative name belongs to the new version.
Keep = Callable[[str], bool]


def keep_all(name: str) -> bool:
    """INSERT INTO: every old file stays."""
    return True


def outside(scope: OverwriteScope, columns: tuple[str, ...], new: Mapping[tuple[str, ...], str]) -> Keep:
    """INSERT OVERWRITE: files of partitions that the statement does not replace."""

    def keep(name: str) -> bool:
        values = partition_values(posixpath.dirname(name), columns)
        if values is None:
            return False
        key = partition_key(values, columns)
        return not in_scope(scope, key, columns, replaced=key in new)

    return keep


def in_scope(scope: OverwriteScope, key: tuple[str, ...], columns: tuple[str, ...], *, replaced: bool) -> bool:
    """Whether an INSERT OVERWRITE replaces this partition; ``replaced``: new rows fell into it."""
    from twophase.catalogs.hive.metastore import NULL_PARTITION

    values = dict(zip((column.lower() for column in columns), key, strict=True))
    for column, value in scope.static_partition.items():
        if values.get(column.lower()) != (NULL_PARTITION if value is None or value == "" else value):
            return False
    return replaced or not scope.dynamic


def link_tree(files: Files, source: str, target: str, keep: Keep, transaction_id: str) -> None:
    """Link the data files of one directory tree into another. Idempotent."""
    entries = [entry for entry in data_entries(files.list(source)) if keep(entry.name)]
    for directory in sorted({posixpath.dirname(entry.name) for entry in entries}):
        files.make_directory(join(target, directory) if directory else target)
    for entry in entries:
        _link(files, source, target, entry, transaction_id)


def _link(files: Files, source: str, target: str, entry: Entry, transaction_id: str) -> None:
    try:
        files.link(join(source, entry.name), join(target, entry.name))
    except FileExistsError:
        # Another file has the name (Hive's own writers use 000000_0): any other name will do.
        directory, name = posixpath.split(entry.name)
        files.link(join(source, entry.name), join(target, directory, f"{transaction_id}-{name}").replace("//", "/"))


def marks(files: Files, directory: str) -> dict[str, int | None]:
    """Change marks of a directory and its partition directories: they differ once a file came or went."""
    found: dict[str, int | None] = {"": files.change_mark(directory)}
    for entry in files.list(directory):
        if not entry.is_file:
            found[entry.name] = files.change_mark(join(directory, entry.name))
    return found
