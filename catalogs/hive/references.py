"""Which directories the tables of a metastore refer to."""

from __future__ import annotations

from collections.abc import Iterable

from twophase.catalogs.files import normal
from twophase.catalogs.hive import layout
from twophase.catalogs.location_identity import Identities, Key


class References:
    """Locations of tables and partitions, compared with directories by what they are and not by how they are spelled.

    Parameters
    ----------
    locations : iterable of str
    """

    def __init__(self, locations: Iterable[str]) -> None:
        self._identities = Identities()
        self._covered: set[Key] = set()
        self._tails: set[tuple[str, ...]] = set()
        for location in locations:
            self._covered |= self._identities.chain(normal(location))
            tail = layout.tail_of(location) or ()
            self._tails.update(tail[:length] for length in range(2, len(tail) + 1))

    def hold(self, directory: str) -> bool:
        """Whether a table or partition refers to the directory, or to something in it."""
        if layout.tail_of(directory) in self._tails:
            return True
        return self._identities.key(normal(directory)) in self._covered


def distinct(directories: Iterable[str]) -> list[str]:
    """Directories without those that another one of them is, by another spelling; the first one stays."""
    identities = Identities()
    found = {identities.key(normal(directory)): directory for directory in reversed(list(directories))}
    return sorted(found.values())


__all__ = ["References", "distinct"]
