"""The owner of a directory: the table, whose directory a replace supersedes, or the user, who gave a LOCATION."""

from __future__ import annotations

from collections.abc import Callable

from twophase.catalogs.files import Files, is_below, normal
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.tables import partition_key


class TablePaths:
    """Paths of one table, which distinguish its own directories from the user's.

    Parameters
    ----------
    files : Files
    default_location : callable
        Returns the table's default location; called at most once.
    """

    def __init__(self, files: Files, default_location: Callable[[], str]) -> None:
        self._files = files
        self._ask_default = default_location
        self._found_default: str | None = None
        self._stamped: dict[str, bool] = {}

    def is_tables(self, location: str) -> bool:
        """Whether Spark or twophase chose a table's location, and not a SET LOCATION.

        A version has a stamp until stock Spark empties the table, by a TRUNCATE or an overwrite: it removes all files.
        """
        is_version = layout.is_version_place(location) or self.version_of(location) is not None
        return is_version or is_below(location, self._default())

    def is_partitions(self, location: str, key: Key, columns: tuple[str, ...], root: str) -> bool:
        """Whether a partition's location follows from its name, below the table or in a version of ours."""
        if self._is_named(location, root, key, columns):
            return True
        version = self.version_of(location)
        if version is not None:
            # The empty directory may serve any partition.
            return normal(location) == version or self._is_named(location, version, key, columns)
        return self._is_named(location, self._default(), key, columns)

    def _is_named(self, location: str, root: str, key: Key, columns: tuple[str, ...]) -> bool:
        top = normal(root) + "/"
        if not normal(location).startswith(top):
            return False
        values = layout.partition_values(normal(location).removeprefix(top), columns)
        return values is not None and partition_key(values, columns) == key

    def version_of(self, location: str) -> str | None:
        """The version directory that contains a location, if it carries our stamp; otherwise None."""
        version = layout.version_above(location)
        if version is None:
            return None
        if version not in self._stamped:
            self._stamped[version] = layout.read_stamp(self._files, version) is not None
        return version if self._stamped[version] else None

    def _default(self) -> str:
        if self._found_default is None:
            self._found_default = self._ask_default()
        return self._found_default
