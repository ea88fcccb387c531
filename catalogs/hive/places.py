"""Whose a directory is: a table's own, which a replace may retire, or one that the user chose with a LOCATION."""

from __future__ import annotations

from collections.abc import Callable

from twophase.catalogs.files import Files, is_below, normal
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.partitions import Key


class Places:
    """Tells own directories of one table from the user's.

    Parameters
    ----------
    files : Files
    home : callable
        The table's default location, asked for at most once.
    """

    def __init__(self, files: Files, home: Callable[[], str]) -> None:
        self._files = files
        self._ask_home = home
        self._home: str | None = None
        self._stamped: dict[str, bool] = {}

    def is_tables(self, location: str) -> bool:
        """Whether the table lies where Spark or twophase put it, and not where a SET LOCATION did."""
        return self._version(location) is not None or is_below(location, self._default())

    def is_partitions(self, location: str, key: Key, columns: tuple[str, ...], root: str) -> bool:
        """Whether a partition lies where its name says, below the table or in a version of ours."""
        if self._is_named(location, root, key, columns):
            return True
        version = self._version(location)
        if version is not None:
            # The directory without rows stands for any partition.
            return normal(location) == version or self._is_named(location, version, key, columns)
        return self._is_named(location, self._default(), key, columns)

    def _is_named(self, location: str, root: str, key: Key, columns: tuple[str, ...]) -> bool:
        top = normal(root) + "/"
        if not normal(location).startswith(top):
            return False
        values = layout.partition_values(normal(location).removeprefix(top), columns)
        return values is not None and layout.partition_key(values, columns) == key

    def _version(self, location: str) -> str | None:
        """The version directory that holds a location, where it carries our stamp."""
        head, found, tail = normal(location).partition(f"/{layout.ROOT}/")
        parts = tail.split("/")
        if not found or len(parts) < 2:
            return None
        version = f"{head}/{layout.ROOT}/{parts[0]}/{parts[1]}"
        if version not in self._stamped:
            self._stamped[version] = layout.read_stamp(self._files, version) is not None
        return version if self._stamped[version] else None

    def _default(self) -> str:
        if self._home is None:
            self._home = self._ask_home()
        return self._home
