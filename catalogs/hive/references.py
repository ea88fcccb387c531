"""The directories that the tables of a metastore refer to."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from twophase.catalogs.files import normal
from twophase.catalogs.hive import layout
from twophase.catalogs.location_identity import Identities, Key


class References:
    """Locations of tables and partitions, compared with directories by identity, not by spelling."""

    def __init__(self, locations: Iterable[str]) -> None:
        self._identities = Identities()
        self._covered: set[Key] = set()
        self._tails: set[tuple[str, ...]] = set()
        for location in locations:
            self._covered |= self._identities.chain(normal(location))
            tail = layout.tail_of(location) or ()
            self._tails.update(tail[:length] for length in range(2, len(tail) + 1))

    def hold(self, directory: str) -> bool:
        """Whether a table or partition refers to the directory, or to a path inside it."""
        if layout.tail_of(directory) in self._tails:
            return True
        return self._identities.key(normal(directory)) in self._covered


class LazyReferences:
    """References of tables; and those of partitions, which are loaded only when needed, as that reads every table.

    Parameters
    ----------
    tables : iterable of str
        Locations of tables.
    all_places : callable
        Loads the locations of tables and partitions.
    """

    def __init__(self, tables: Iterable[str], all_places: Callable[[], References]) -> None:
        self._tables = References(tables)
        self._all_places = functools.cache(all_places)

    def a_table_holds(self, directory: str) -> bool:
        """Whether a table itself refers to the directory, or to a path inside it; a partition still may."""
        return self._tables.hold(directory)

    def hold(self, directory: str) -> bool:
        """Whether a table or a partition refers to the directory, or to a path inside it."""
        return self.a_table_holds(directory) or self._all_places().hold(directory)


def distinct(directories: Iterable[str]) -> list[str]:
    """Remove directories that are another spelling of an earlier one."""
    identities = Identities()
    found = {identities.key(normal(directory)): directory for directory in reversed(list(directories))}
    return sorted(found.values())


__all__ = ["LazyReferences", "References", "distinct"]
