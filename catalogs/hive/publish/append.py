"""Append files: rename new files into the current directory of the table or of its partition.

One rename, of one file or of one directory with all files, is the whole publish: its cost does not depend on the size
of the table, any number of writers may append concurrently, and no new version of the table is made.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Mapping
from typing import Any

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import base_name, data_files, is_hidden, join, normal, same
from twophase.catalogs.hive import hard_links, layout
from twophase.catalogs.hive.definitions import RECURSIVE, is_recursive
from twophase.catalogs.hive.flattening import flat_name
from twophase.catalogs.hive.hard_links import CannotLinkError
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.publish.move import MoveFiles, Moves
from twophase.catalogs.hive.staging import written_as_files
from twophase.catalogs.hive.state import MoveState
from twophase.catalogs.hive.tables import HivePartition, HiveTable
from twophase.errors import WriteConflictError


class AppendFiles(MoveFiles):
    """INSERT INTO a managed table; the rows go to the table's location at the time of the publish."""

    #: Whether old and new files are linked in one directory, for a read inside the transaction.
    _is_shown = False
    #: An unpartitioned table as ``prepare`` has found it, until the first attempt to publish.
    _prepared: HiveTable | None = None

    @property
    def _own(self) -> MoveState:
        return self.state.of(MoveState)

    def prepare(self) -> None:
        table = self.target.check_unchanged()
        if self._read() is None or not self._is_for(table):
            self.plan(table)
        self._prepared = None if table.partitioned else table
        self.write.reach(*self.reached())

    def current(self) -> HiveTable | None:
        # What others have changed since is found after the renames, as what they change just before them: see move.
        prepared, self._prepared = self._prepared, None
        return prepared or super().current()

    @property
    def _places(self) -> list[str]:
        """The directories that the rows were planned to be renamed into."""
        return [place for _, place in self._own.goes_to if place]

    def _is_for(self, table: HiveTable) -> bool:
        """Whether the planned directories are still those of the table or of the partitions."""
        then = self._own.goes_to
        keys = [tuple(key) for key, _ in then] if table.partitioned else []
        now = _goes_to(table, keys, self.target.registered(table, keys))
        return all(same(one, other) or one == other for (_, one), (_, other) in zip(then, now, strict=True))

    @property
    def _gathered(self) -> str | None:
        """The directory of all rows, whose single rename publishes them; None if each file is renamed."""
        if not self._own.gathered:
            return None
        return join(self.state.version, layout.version_name(self.state.transaction_id, self.state.ordinal))

    def planned(self, table: HiveTable, new: dict[Key, str], listed: dict[Key, HivePartition]) -> Moves:
        self.write.update_own(goes_to=_goes_to(table, sorted(new), listed))
        rows = self._gathered
        if rows is None:
            return super().planned(table, new, listed)
        self.check_reachable([str(table.location)])
        with self.write.step("gather"):
            self._gather(rows)
        if not is_recursive(table.options):
            # Before the directory is moved in: readers would not look into it. Until then there is none to read.
            with self.write.step("look_below"):
                self.metastore.set_option(self.write.database, self.write.path.name, RECURSIVE, "true")
        return Moves([], [(rows, join(str(table.location), base_name(rows)))], [], [], [])

    def _gather(self, rows: str) -> None:
        version = self.state.version
        self.files.make_directory(rows)
        for entry in self.files.list(version, recursive=False):
            if entry.is_file and not is_hidden(entry.name):
                self.files.move(join(version, entry.name), join(rows, entry.name))

    def roots(self, table: HiveTable) -> Iterator[str]:
        yield str(table.location)
        # Before the metastore is called. Files moved to a location that the table has left since are taken back, too.
        paths = self.write.paths
        yield from (place for place in self._places if layout.version_above(place) or paths.is_tables(place))
        yield from super().roots(table)

    def move(self, table: HiveTable) -> HiveTable:
        if not self._is_for(table):
            raise self.write.conflict("another writer published it meanwhile")
        super().move(table)
        if table.partitioned:
            return table
        if table.stamp is not None and not self.metastore.ends_with_driver:
            # Refuses a writer with another timeline that read the table before the rename and replaces it now.
            with self.write.step("fence"):
                self.metastore.fence_table(self.write.database, self.write.path.name, table.stamp)
        now = self.write.current()
        try:
            if not self._is_for(self.target.require_unchanged(now)):
                raise self.write.conflict("another writer published it meanwhile")
        except WriteConflictError:
            # A writer outside the timeline has dropped the table, or pointed it elsewhere: no reader sees these rows.
            self.undo()
            if now is None:
                self.files.remove_if_empty(str(table.location))  # The rename has made it again.
            raise
        assert now is not None
        return now

    def undo(self) -> None:
        super().undo()
        for place in self._places:
            if self._is_recreated(place):
                self.files.remove_if_empty(place)

    def _is_recreated(self, place: str) -> bool:
        """Whether a version was dropped with its stamp, and a rename has created its directory again."""
        return layout.version_above(place) is not None and self.write.paths.version_of(place) is None

    def _all_there(self, table: HiveTable | None) -> bool:
        """Whether the renames were made, and the table has the rows.

        A driver looks once more after them, as a writer with another timeline, or with none, may have changed the
        table just before: recovery finds what that would have found. Or such a writer has found the rows, and has
        linked their files into a version of its own.
        """
        if table is None or not super()._all_there(table) or not self.target.is_partitioned_alike(table):
            return False
        moved, is_as_planned = self._moved(table), self._is_as_planned(table)
        return all(self._is_read(target, moved, is_as_planned) for target in self.existing_moves.data_files)

    def _can_be_undone(self, table: HiveTable) -> bool:
        """Whether the rows are where they were renamed to: a later version of the table has links to their files."""
        return super()._can_be_undone(table) and all(same(now, then) for then, now in self._moved(table).items())

    def _moved(self, table: HiveTable) -> Mapping[str, str | None]:
        """The directories that the rows were renamed into, each with that which the table has in its place now."""
        adds = dict(self.existing_moves.adds)
        then = {tuple(key): str(place or adds[tuple(key)]) for key, place in self._own.goes_to}
        now: Mapping[Key, str] = {(): str(table.location)}
        if table.partitioned:
            now = self.target.locations(table, list(then))
        return {normal(place): now.get(key) for key, place in then.items()}

    def _is_as_planned(self, table: HiveTable) -> bool:
        try:
            self.target.require_unchanged(table)
        except WriteConflictError:
            return False
        return True

    def _is_read(self, target: str, moved: Mapping[str, str | None], is_as_planned: bool) -> bool:
        """Whether the table has a file, or the directory of all.

        Parameters
        ----------
        target : str
            Where it was renamed to.
        moved : mapping of str to str or None
            Directories of the table then, each with its present one.
        is_as_planned : bool
            Whether the table is the one that the rename was planned for.
        """
        then = next(iter(moved)) if len(moved) == 1 else normal(posixpath.dirname(target))
        now, name = moved[then], normal(target).removeprefix(then + "/")
        if now is None or same(now, then):
            return now is not None and is_as_planned
        if self.files.exists(join(now, name)):
            return True
        rows = data_files(self.files.list(target)) if self._own.gathered else []
        return bool(rows) and all(self.files.exists(join(now, flat_name(f"{name}/{row.name}"))) for row in rows)

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        place, table = join(self.state.version, "_read"), self.write.current()
        if table is None or table.partitioned or self.state.listed or not self._shown(str(table.location), place):
            return None
        definition = self.write.definition
        if written_as_files(definition):
            return ReadSource("files", provider=definition.provider, location=place, definition=definition)
        return self.staging.overlay({}, place)

    def _shown(self, there: str, place: str) -> bool:
        """Hard-link the existing and the new files into one directory; return False if links are not possible.

        Done only once: files that others publish later would mix with those already read.
        """
        if self._is_shown:
            return True
        with self.write.step("read"):
            try:
                for source in (there, self._gathered or self.state.version):
                    hard_links.link_tree(self.files, source, place, hard_links.keep_all, self.state.transaction_id)
            except CannotLinkError:
                return False
        self._is_shown = True
        return True


def _goes_to(table: HiveTable, keys: list[Key], there: Mapping[Key, HivePartition]) -> list[list[Any]]:
    """Each partition, or the whole table, with its current directory."""
    if not table.partitioned:
        return [[[], str(table.location)]]
    return [[list(key), there[key].location if key in there else None] for key in keys]
