"""Superseded marks on replaced directories: only marked files are ever removed, once their readers have finished."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from twophase.catalogs.files import is_below, same
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.tables import MANAGED, HivePartition, partition_key
from twophase.catalogs.hive.write import TableWrite


class Superseded:
    """The directories that one write has replaced. A directory that the user chose with a LOCATION is left as it is.

    Parameters
    ----------
    write : TableWrite
        A write to an existing table.
    """

    def __init__(self, write: TableWrite) -> None:
        self._write = write

    def mark_table(self) -> None:
        """Mark the replaced table's directory, unless the new files are in it."""
        before = self._write.state.before
        if before is not None and not same(before.location, self._write.state.version):
            self._mark_root(before.location)

    def _mark_root(self, location: str) -> None:
        if self._may_end(location) and self._write.paths.is_tables(location):
            self._mark(location)

    def mark_partitions(self, replaced: Mapping[Key, str], *, is_all: bool = False) -> None:
        """Mark replaced partitions.

        Parameters
        ----------
        replaced : mapping of tuple to str
            From key to directory.
        is_all : bool
            Whether these are all partitions of a table that has left its directory: a version that holds some of them
            is marked as a whole, once.
        """
        for place in self._marked_for(replaced, is_all=is_all):
            if self._may_end(place):
                self._mark(place)

    def _marked_for(self, replaced: Mapping[Key, str], *, is_all: bool) -> list[str]:
        """The directories that are marked for some partitions."""
        before, paths = self._write.state.old, self._write.paths
        columns = tuple(before.definition.partition_columns)
        places = [
            location
            for key, location in replaced.items()
            if paths.is_partitions(location, key, columns, before.location)
        ]
        return sorted({paths.version_of(place) or place for place in places}) if is_all else places

    def mark_outside(self, partitions: Iterable[HivePartition], root: str, columns: tuple[str, ...]) -> None:
        """Mark replaced partitions outside a root, which the mark of that root does not cover."""
        outside = [part for part in partitions if not is_below(part.location, root)]
        self.mark_partitions({partition_key(p.values, columns): p.location for p in outside}, is_all=True)

    def unmark(self, location: str) -> None:
        """Remove the mark of a directory that is in use again."""
        layout.clear_superseded(self._write.files, location, self._write.state.transaction_id)

    def unmark_partitions(self, replaced: Mapping[Key, str]) -> None:
        """Same as :meth:`unmark`, for partitions marked by themselves or with the version that holds them."""
        for is_all in (True, False):
            for place in self._marked_for(replaced, is_all=is_all):
                self.unmark(place)

    def _mark(self, location: str) -> None:
        layout.supersede(self._write.files, location, self._write.state.transaction_id)

    def _may_end(self, location: str) -> bool:
        """Whether a replaced location may be removed, because it is a managed table's or a version of ours.

        Through HiveServer2 every table with a LOCATION is EXTERNAL, even if twophase chose the location.
        """
        if self._write.state.old.kind == MANAGED:
            return True
        stamp = layout.stamp_above(self._write.files, location)
        return stamp is not None and stamp.get("path") == self._write.path.to_document()
