"""What dead transactions left, versions past retention, and the place of a dropped table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from twophase.catalog import Residue
from twophase.catalogs.files import Files, base_name, data_entries, join, parent
from twophase.catalogs.hive import identity, layout
from twophase.catalogs.hive.metastore import MANAGED, VIEW, HiveTable, Located
from twophase.catalogs.hive.references import References, distinct
from twophase.errors import CatalogError
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.hive.catalog import HiveCatalog

STAGING, VERSION, METADATA = "staging", "version", "metadata"
#: Why a version with live partitions is kept although no table is seen to refer to it.
UNMARKED = "not all of it was replaced: its table was dropped, or is not to be seen from here"
#: How often a database is looked at whose tables come and go meanwhile.
LOOKS = 3

_Found = TypeVar("_Found")


class Housekeeping:
    """Finds and removes only what carries our stamp and what no table refers to."""

    def __init__(self, catalog: HiveCatalog) -> None:
        self._catalog = catalog

    # -- finding -------------------------------------------------------------------------------------------------

    def residues(self, live: frozenset[str]) -> list[Residue]:
        """Residues of all databases, the hidden tables included; these come first, and then hold nothing any more."""
        # Directories first: one that is published meanwhile is then seen as referred to.
        directories = distinct(self._in_each_database(self._directories))
        tables = list(self._in_each_database(self._places))
        hidden = self._hidden_tables([table for table, _ in tables], live)
        going = {residue.location for residue in hidden}
        used = _references((table, places) for table, places in tables if f"{table.database}.{table.name}" not in going)
        found = (self._judge(directory, used, live) for directory in directories)
        return [*hidden, *(residue for residue in found if residue is not None)]

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

    def strangers(self) -> list[str]:
        """A sentence for each other metastore that has tables in the directories of our databases."""
        found = {}
        for directory in distinct(self._in_each_database(self._directories)):
            stamp = layout.read_stamp(self._catalog.files, directory)
            if stamp is not None and self._is_strange(stamp):
                found[str(stamp[identity.STORE])] = directory
        ours = self._catalog.metastore.identity
        return [str(identity.refusal(directory, theirs, ours)) for theirs, directory in sorted(found.items())]

    def _is_strange(self, stamp: dict[str, Any]) -> bool:
        """Whether a catalog of this name made it, over another metastore."""
        ours = stamp.get("catalog") == self._catalog.name
        return ours and identity.is_other(stamp.get(identity.STORE), self._catalog.metastore.identity)

    def _tables(self, database: str) -> list[Located]:
        return [table for table in self._catalog.metastore.located_tables(database) if table.kind != VIEW]

    def _directories(self, database: str) -> Iterator[str]:
        """Version directories, and directories of tables (and of partitions) that were pointed away."""
        files = self._catalog.files
        home = self._catalog.database_location(database)
        beside = sorted({parent(str(table.location)) for table in self._tables(database) if table.location})
        for root in distinct(join(place, layout.ROOT) for place in (home, *beside)):
            for table in _subdirectories(files, root):
                yield from self._below(table)
        for table in _subdirectories(files, home):
            if base_name(table) != layout.ROOT:
                yield from self._marked(table)

    def _below(self, table_root: str) -> Iterator[str]:
        for version in _subdirectories(self._catalog.files, table_root):
            yield version
            yield from (directory for directory in self._marked(version) if directory != version)

    def _marked(self, directory: str) -> Iterator[str]:
        """Directories that carry a retired mark, from here down."""
        for entry in self._catalog.files.list(directory, links=False):
            if entry.is_file and entry.base == layout.RETIRED_FILE:
                yield join(directory, entry.name).rpartition("/")[0]

    def _places(self, database: str) -> Iterator[tuple[Located, list[str]]]:
        """Each table, with the locations that it and its partitions refer to."""
        for table in self._tables(database):
            parts = self._catalog.metastore.partition_locations(table) if table.partition_columns else []
            yield table, [*([table.location] if table.location else []), *parts]

    def _judge(self, directory: str, used: References, live: frozenset[str]) -> Residue | None:
        """What a directory is that no table is seen to refer to, by the marks in it."""
        files = self._catalog.files
        stamp = layout.read_stamp(files, directory)
        if stamp is not None and self._is_strange(stamp):
            return self._strange(directory, stamp)
        if used.hold(directory):
            return None
        retired = layout.read_retired(files, directory)
        if retired is not None:
            return self._judge_retired(directory, retired)
        if stamp is None:
            return self._judge_late(directory, live)
        if stamp["transaction_id"] in live or stamp.get("catalog") != self._catalog.name:
            return None
        published = layout.read_published(files, directory)
        return self._judge_staged(directory, stamp) if published is None else self._judge_published(directory, stamp)

    def _judge_staged(self, directory: str, stamp: dict[str, Any]) -> Residue | None:
        withdrawn = layout.withdrawn_since(self._catalog.files, directory)
        if withdrawn is not None and self._has_retention(self._last_part_unneeded(directory, withdrawn)):
            return None
        # Whether a create was published, only the metastore tells, and it may not tell this user of all its tables.
        size, since = self._catalog.files.size(directory), float(stamp.get("created", 0))
        return Residue(STAGING, directory, size, str(stamp["transaction_id"]), since, holds_rows=True, unmarked=True)

    def _judge_published(self, directory: str, stamp: dict[str, Any]) -> Residue | None:
        """A version whose partitions were replaced one by one, perhaps not all of them."""
        published = layout.read_published(self._catalog.files, directory)
        assert published is not None
        unneeded = self._last_part_unneeded(directory, published.since)
        if self._has_retention(unneeded):
            return None
        kept = None if layout.is_spent(self._catalog.files, directory) else UNMARKED
        size = self._catalog.files.size(directory)
        return Residue(VERSION, directory, size, published.transaction_id, unneeded, kept=kept)

    def _has_retention(self, since: float) -> bool:
        return since + self._catalog.environment.retention > time.time()

    def _judge_late(self, directory: str, live: frozenset[str]) -> Residue | None:
        transaction_id = layout.late_writer(self._catalog.files, directory)
        if transaction_id is None or transaction_id in live:
            return None
        size = self._catalog.files.size(directory)
        return Residue(STAGING, directory, size, transaction_id, 0.0, unmarked=True)

    def _strange(self, directory: str, stamp: dict[str, Any]) -> Residue:
        """Listed, and kept: whether a table of the other metastore needs it cannot be seen from here."""
        why = f"it belongs to {identity.in_words(str(stamp[identity.STORE]))}"
        since = float(stamp.get("created", 0))
        return Residue(STAGING, directory, 0, str(stamp["transaction_id"]), since, kept=why)

    def _last_part_unneeded(self, directory: str, since: float) -> float:
        """When the last part of a version came to be unneeded, where the version itself did at ``since``."""
        parts = (layout.read_retired(self._catalog.files, part) for part in self._marked(directory))
        return max([since, *(part.since for part in parts if part is not None)])

    def _judge_retired(self, directory: str, retired: layout.Retired) -> Residue | None:
        if self._has_retention(retired.since):
            return None
        files = self._catalog.files
        kept = None if layout.is_trusted(files, directory, layout.RETIRED_FILE) else layout.UNTRUSTED
        return Residue(VERSION, directory, files.size(directory), retired.transaction_id, retired.since, kept=kept)

    def _hidden_tables(self, tables: list[Located], live: frozenset[str]) -> list[Residue]:
        # A table that was set aside is the user's old table, with the stamp of whoever published that: only the
        # transaction that set it aside knows whether it must come back.
        ours = (t for t in tables if t.name.startswith(layout.HIDDEN_PREFIX) and not layout.is_aside(t.name))
        hidden = [table for table in ours if table.stamp and table.stamp not in live]
        return [Residue(METADATA, f"{t.database}.{t.name}", 0, str(t.stamp), 0.0) for t in hidden]

    # -- removing ------------------------------------------------------------------------------------------------

    def remove(self, residues: Iterable[Residue]) -> Iterator[Exception | None]:
        """Remove residues, after looking once more whether they still are that; why one was not, for each in turn."""
        used: References | None = None
        for residue in residues:
            try:
                if residue.kind == METADATA:
                    self._remove_hidden(residue)
                else:
                    used = self._all_references() if used is None else used
                    self._remove_directory(residue, used)
            except Exception as error:
                yield error
            else:
                yield None

    def _remove_directory(self, residue: Residue, used: References) -> None:
        files, directory = self._catalog.files, residue.location
        if not files.exists(directory):
            return
        if used.hold(directory):
            raise CatalogError(f"{directory} is in use by a table: it was not removed.")
        if layout.read_retired(files, directory) is not None:
            layout.remove_retired(files, directory)
        elif self._is_still(residue):
            files.remove_tree(directory)
        self._catalog.remove_if_unused(directory)

    def _is_still(self, residue: Residue) -> bool:
        """Whether a directory without a retired mark is what the residue says."""
        files, directory = self._catalog.files, residue.location
        stamp = layout.read_stamp(files, directory)
        if stamp is None:
            return layout.late_writer(files, directory) == residue.transaction_id
        published = layout.read_published(files, directory)
        if published is not None:
            return published.transaction_id == residue.transaction_id and layout.is_spent(files, directory)
        return bool(stamp["transaction_id"] == residue.transaction_id)

    def _all_references(self) -> References:
        return _references(self._in_each_database(self._places))

    def _remove_hidden(self, residue: Residue) -> None:
        database, _, name = residue.location.partition(".")
        table = self._catalog.metastore.get_table(database, name)
        if layout.is_aside(name):
            return
        if table is not None and table.stamp == residue.transaction_id and name.startswith(layout.HIDDEN_PREFIX):
            self._catalog.metastore.forget_table(database, name)

    # -- a dropped table -----------------------------------------------------------------------------------------

    def table_dropped(self, path: ObjectPath) -> None:
        """Give the default location of a dropped table free. Its replaced versions are left to ``clean``.

        Other tables are looked at only where rows are left that somebody may have made a table of.
        """
        if self._catalog.find(path) is not None or not self._catalog.database_exists(path.database):
            return
        files, home = self._catalog.files, self._catalog.default_location(path)
        entries = files.list(home, links=False)
        marked = sorted(set(self._marked(home)), key=lambda directory: -directory.count("/"))
        used = self._all_references() if marked and any(data_entries(entries)) else None
        for directory in marked:
            if used is None or not used.hold(directory):
                layout.remove_retired(files, directory)
        if marked and (used is None or not used.hold(home)):
            self._remove_husk(home)
        root = join(layout.tables_root(parent(home)), path.name)
        if files.exists(root):
            files.remove_if_empty(root)

    def leave_to_clean(self, table: HiveTable) -> None:
        """Mark the version of a dropped table that its metastore has not removed: those of EXTERNAL ones it keeps.

        By the version's own stamp: that of the table may be copied with its definition.
        """
        files, location = self._catalog.files, str(table.location)
        if not layout.is_in_version(location):
            return
        stamp = layout.stamp_above(files, location)
        if stamp is None or stamp.get("catalog") != self._catalog.name or self._is_strange(stamp):
            return
        if stamp.get("path") == ObjectPath.of(table.database, table.name).to_document():
            layout.retire(files, location, str(stamp["transaction_id"]))

    # -- partitions by their directories -----------------------------------------------------------------------------

    def partitions_sought(self, path: ObjectPath) -> None:
        """Remove what replaced partitions left below a table's directory; readers of it lose it, as in stock Spark."""
        table = self._catalog.find(path)
        if table is None or table.kind != MANAGED or not table.partitioned:
            return
        parts = self._catalog.metastore.partition_locations(Located.of(table))
        used = References([str(table.location), *parts])
        for directory in list(self._marked(str(table.location))):
            if not used.hold(directory):
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


def _references(tables: Iterable[tuple[Located, list[str]]]) -> References:
    return References(place for _, places in tables for place in places)


def _subdirectories(files: Files, directory: str) -> list[str]:
    """Directories in a directory; what a symbolic link leads to is none."""
    entries = files.list(directory, recursive=False, links=False)
    return [join(directory, entry.name) for entry in entries if not entry.is_file]
