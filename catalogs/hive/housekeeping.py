"""What dead transactions left, versions past retention, and the place of a dropped table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from twophase.catalog import Residue
from twophase.catalogs.files import base_name, is_below, join, normal, parent
from twophase.catalogs.hive import identity, layout
from twophase.catalogs.hive.metastore import MANAGED, VIEW, HiveTable
from twophase.errors import CatalogError
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.hive.catalog import HiveCatalog

STAGING, VERSION, METADATA = "staging", "version", "metadata"
#: How often a database is looked at whose tables come and go meanwhile.
LOOKS = 3

_Found = TypeVar("_Found")


class Housekeeping:
    """Finds and removes only what carries our stamp and what no table refers to."""

    def __init__(self, catalog: HiveCatalog) -> None:
        self._catalog = catalog

    # -- finding -------------------------------------------------------------------------------------------------

    def residues(self, live: frozenset[str]) -> list[Residue]:
        """Residues of all databases, the hidden tables included."""
        return list(self._in_each_database(lambda database: self._residues_of(database, live)))

    def _in_each_database(self, look: Callable[[str], Iterable[_Found]]) -> Iterator[_Found]:
        """What a look at each database finds; one that somebody drops meanwhile holds nothing any more."""
        for database in self._catalog.list_databases():
            for looks in range(LOOKS):
                try:
                    found = list(look(database))
                    break
                except Exception:
                    if database not in self._catalog.list_databases():
                        found = []
                        break
                    # A table that is dropped or renamed under a look: the next one finds it gone, or by its new name.
                    if looks == LOOKS - 1:
                        raise
            yield from found

    def _residues_of(self, database: str, live: frozenset[str]) -> Iterator[Residue]:
        # Directories first: one that is published meanwhile is then seen as referred to.
        directories = list(self._directories(database))
        tables = self._tables(database)
        hidden = self._hidden_tables(tables, live)
        # They go first, and then hold nothing any more.
        going = {residue.location for residue in hidden}
        used = self._references([t for t in tables if f"{t.database}.{t.name}" not in going])
        yield from hidden
        yield from (residue for d in directories if (residue := self._judge(d, used, live)) is not None)

    def strangers(self) -> list[str]:
        """A sentence for each other metastore that has tables in the directories of our databases."""
        found = {}
        for directory in self._in_each_database(self._directories):
            stamp = layout.read_stamp(self._catalog.files, directory)
            if stamp is not None and self._is_strange(stamp):
                found[str(stamp[identity.STORE])] = directory
        ours = self._catalog.metastore.identity
        return [str(identity.refusal(directory, theirs, ours)) for theirs, directory in sorted(found.items())]

    def _is_strange(self, stamp: dict[str, Any]) -> bool:
        """Whether a catalog of this name made it, over another metastore."""
        ours = stamp.get("catalog") == self._catalog.name
        return ours and identity.is_other(stamp.get(identity.STORE), self._catalog.metastore.identity)

    def _tables(self, database: str) -> list[HiveTable]:
        store = self._catalog.metastore
        found = (store.get_table(database, name) for name in store.list_tables(database))
        return [table for table in found if table is not None and table.kind != VIEW]

    def _directories(self, database: str) -> Iterator[str]:
        """Version directories, and directories of tables (and of partitions) that were pointed away."""
        files = self._catalog.files
        tables = self._tables(database)
        home = self._catalog.database_location(database)
        beside = {parent(str(table.location)) for table in tables if table.location}
        roots = {normal(join(place, layout.ROOT)) for place in (*beside, home)}
        for root in sorted(roots):
            for table in files.list(root, recursive=False):
                if not table.is_file:
                    yield from self._below(join(root, table.name))
        for entry in files.list(home, recursive=False):
            if not entry.is_file and entry.name != layout.ROOT:
                yield from self._marked(join(home, entry.name))

    def _below(self, table_root: str) -> Iterator[str]:
        for version in self._catalog.files.list(table_root, recursive=False):
            if not version.is_file:
                yield join(table_root, version.name)
                yield from (d for d in self._marked(join(table_root, version.name)) if base_name(d) != version.name)

    def _marked(self, directory: str) -> Iterator[str]:
        """Directories that carry a retired mark, from here down."""
        for entry in self._catalog.files.list(directory):
            if entry.is_file and entry.base == layout.RETIRED_FILE:
                yield join(directory, entry.name).rpartition("/")[0]

    def _references(self, tables: list[HiveTable]) -> set[str]:
        """Locations that tables and their partitions refer to."""
        used = {normal(str(table.location)) for table in tables if table.location}
        for table in tables:
            if table.partitioned:
                used |= {normal(part.location) for part in self._catalog.metastore.list_partitions(table)}
        return used

    def _judge(self, directory: str, used: set[str], live: frozenset[str]) -> Residue | None:
        stamp = layout.read_stamp(self._catalog.files, directory)
        if stamp is not None and self._is_strange(stamp):
            return self._strange(directory, stamp)
        retired = layout.read_retired(self._catalog.files, directory)
        if retired is not None:
            return self._judge_retired(directory, retired, used)
        if stamp is None:
            return self._judge_late(directory, used, live)
        if stamp["transaction_id"] in live:
            return None
        if stamp.get("catalog") != self._catalog.name or _in_use(directory, used):
            return None
        size = self._catalog.files.size(directory)
        if (published := layout.read_published(self._catalog.files, directory)) is not None:
            unneeded = self._last_part_unneeded(directory, published.since)
            if unneeded + self._catalog.environment.retention > time.time():
                return None
            return Residue(VERSION, directory, size, published.transaction_id, unneeded)
        withdrawn = layout.withdrawn_since(self._catalog.files, directory)
        if withdrawn is not None:
            unneeded = self._last_part_unneeded(directory, withdrawn)
            if unneeded + self._catalog.environment.retention > time.time():
                return None
        # Whether a create was published, only the metastore tells.
        since = float(stamp.get("created", 0))
        return Residue(STAGING, directory, size, str(stamp["transaction_id"]), since, holds_rows=True)

    def _judge_late(self, directory: str, used: set[str], live: frozenset[str]) -> Residue | None:
        transaction_id = layout.late_writer(self._catalog.files, directory)
        if transaction_id is None or transaction_id in live or _in_use(directory, used):
            return None
        return Residue(STAGING, directory, self._catalog.files.size(directory), transaction_id, 0.0)

    def _strange(self, directory: str, stamp: dict[str, Any]) -> Residue:
        """Listed, and kept: whether a table of the other metastore needs it cannot be seen from here."""
        why = f"it belongs to {identity.in_words(str(stamp[identity.STORE]))}"
        since = float(stamp.get("created", 0))
        return Residue(STAGING, directory, 0, str(stamp["transaction_id"]), since, kept=why)

    def _last_part_unneeded(self, directory: str, since: float) -> float:
        """When the last part of a version came to be unneeded, where the version itself did at ``since``."""
        parts = (layout.read_retired(self._catalog.files, part) for part in self._marked(directory))
        return max([since, *(part.since for part in parts if part is not None)])

    def _judge_retired(self, directory: str, retired: layout.Retired, used: set[str]) -> Residue | None:
        if normal(directory) in used or retired.since + self._catalog.environment.retention > time.time():
            return None
        size = self._catalog.files.size(directory)
        return Residue(VERSION, directory, size, retired.transaction_id, retired.since)

    def _hidden_tables(self, tables: list[HiveTable], live: frozenset[str]) -> list[Residue]:
        # A table that was set aside is the user's old table, with the stamp of whoever published that: only the
        # transaction that set it aside knows whether it must come back.
        ours = (t for t in tables if t.name.startswith(layout.HIDDEN_PREFIX) and not layout.is_aside(t.name))
        hidden = [table for table in ours if table.stamp and table.stamp not in live]
        return [Residue(METADATA, f"{t.database}.{t.name}", 0, str(t.stamp), 0.0) for t in hidden]

    # -- removing ------------------------------------------------------------------------------------------------

    def remove(self, residue: Residue) -> None:
        """Remove one residue, after looking once more whether it still is one."""
        if residue.kind == METADATA:
            self._remove_hidden(residue)
            return
        files = self._catalog.files
        if not files.exists(residue.location):
            return
        if _in_use(residue.location, self._all_references()):
            raise CatalogError(f"{residue.location} is in use by a table: it was not removed.")
        if layout.read_retired(files, residue.location) is not None:
            layout.remove_retired(files, residue.location)
        elif self._is_still(residue):
            files.remove_tree(residue.location)
        self._catalog.remove_if_unused(residue.location)

    def _is_still(self, residue: Residue) -> bool:
        """Whether a directory without a retired mark is what the residue says."""
        files, directory = self._catalog.files, residue.location
        stamp = layout.read_stamp(files, directory)
        if stamp is None:
            return layout.late_writer(files, directory) == residue.transaction_id
        published = layout.read_published(files, directory)
        return residue.transaction_id in (stamp["transaction_id"], published.transaction_id if published else None)

    def _all_references(self) -> set[str]:
        return set(self._in_each_database(lambda database: self._references(self._tables(database))))

    def _remove_hidden(self, residue: Residue) -> None:
        database, _, name = residue.location.partition(".")
        table = self._catalog.metastore.get_table(database, name)
        if layout.is_aside(name):
            return
        if table is not None and table.stamp == residue.transaction_id and name.startswith(layout.HIDDEN_PREFIX):
            self._catalog.metastore.forget_table(database, name)

    # -- a dropped table -----------------------------------------------------------------------------------------

    def table_dropped(self, path: ObjectPath) -> None:
        """Give the default location of a dropped table free, and remove its replaced versions."""
        if self._catalog.find(path) is not None or not self._catalog.database_exists(path.database):
            return
        files = self._catalog.files
        home = self._catalog.default_location(path)
        used = self._references(self._tables(path.database))
        for directory in sorted(set(self._marked(home)), key=lambda d: -d.count("/")):
            if not _in_use(directory, used):
                layout.remove_retired(files, directory)
        if files.exists(home) and not _in_use(home, used):
            self._remove_husk(home)
        root = join(layout.tables_root(self._catalog.database_location(path.database)), path.name)
        for directory in list(self._below(root)):
            self._remove_dropped(directory, used)
        if files.exists(root):
            files.remove_if_empty(root)

    # -- partitions by their directories -----------------------------------------------------------------------------

    def partitions_sought(self, path: ObjectPath) -> None:
        """Remove what replaced partitions left below a table's directory; readers of it lose it, as in stock Spark."""
        table = self._catalog.find(path)
        if table is None or table.kind != MANAGED or not table.partitioned:
            return
        used = self._references([table])
        for directory in list(self._marked(str(table.location))):
            if not _in_use(directory, used):
                layout.remove_retired(self._catalog.files, directory)

    # -- a renamed table -----------------------------------------------------------------------------------------

    def table_renamed(self, path: ObjectPath) -> None:
        """Point Spark back at the files of a table that stock Spark has renamed without them."""
        lost = self._lost(path.database, path.name)
        table = self._catalog.find(path)
        if lost is not None and table is not None:
            self._catalog.metastore.alter_table(replace(table, location=lost))
            self._catalog.metastore.changed(path.database, path.name)

    def lost_tables(self) -> list[str]:
        """Sentences about tables that Spark reads at a wrong place, with the statement that cures each."""
        return list(self._in_each_database(self._lost_tables_of))

    def _lost_tables_of(self, database: str) -> Iterator[str]:
        for name in self._catalog.list_tables(database):
            if (lost := self._lost(database, name)) is not None:
                yield (
                    f"Spark looks for the files of {database}.{name} where they are not; a rename by a session "
                    f"without twophase did that. Run: ALTER TABLE {database}.{name} SET LOCATION '{lost}'"
                )

    def _lost(self, database: str, name: str) -> str | None:
        """Where a version of ours is that Hive knows and Spark does not."""
        table = self._catalog.metastore.get_table(database, name)
        if table is None or table.kind == VIEW or table.stamp is None:
            return None
        lost = self._catalog.metastore.lost_location(database, name)
        # By its place, not by its stamp: a TRUNCATE or an overwrite of stock Spark's removes that with all other files.
        return lost if lost is not None and layout.is_version_place(lost) else None

    def _remove_dropped(self, directory: str, used: set[str]) -> None:
        """Remove a version of a dropped table that was published once; what somebody is staging now stays."""
        files = self._catalog.files
        if _in_use(directory, used):
            return
        if layout.read_retired(files, directory) is not None:
            layout.remove_retired(files, directory)
        elif layout.read_stamp(files, directory) is not None and layout.read_published(files, directory) is not None:
            files.remove_tree(directory)

    def _remove_husk(self, home: str) -> None:
        """A directory of a pointed-away table that holds only marks of Spark's own jobs, if anything."""
        files = self._catalog.files
        entries = [entry for entry in files.list(home) if entry.is_file]
        if all(entry.base in ("_SUCCESS", "._SUCCESS.crc") for entry in entries):
            for entry in entries:
                files.remove_file(join(home, entry.name))
            for directory in sorted((e.name for e in files.list(home) if not e.is_file), key=lambda n: -n.count("/")):
                files.remove_if_empty(join(home, directory))
            files.remove_if_empty(home)


def _in_use(directory: str, used: set[str]) -> bool:
    """Whether a table or partition refers to the directory or to something in it."""
    return normal(directory) in used or any(is_below(location, directory) for location in used)
