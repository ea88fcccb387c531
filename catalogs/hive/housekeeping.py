"""Leftovers of dead transactions, versions past their retention, and the location of a dropped table."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from twophase.catalog import Leftover
from twophase.catalog.spark_columns import declared_type, spark_field
from twophase.catalogs.files import Entry, Files, base_name, data_entries, is_below, join, parent
from twophase.catalogs.hive import identity, layout
from twophase.catalogs.hive.references import LazyReferences, References, distinct
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import MANAGED, PLACEHOLDER, VIEW, HiveTable, Located
from twophase.errors import CatalogError, DatabaseNotExistError
from twophase.model import ObjectPath
from twophase.timeline.records import first_line

STAGING, VERSION, METADATA = "staging", "version", "metadata"
#: Reason to keep a version with live partitions to which no visible table refers.
UNMARKED = "not all of it was replaced: its table was dropped, or is not to be seen from here"
#: Maximum number of attempts to list a database whose tables are created and dropped meanwhile.
LOOKS = 3

#: By type of a partition column, texts that are in directory names as in statements.
_PLAIN = {
    **dict.fromkeys(("byte", "short", "integer", "long"), "0|-?[1-9][0-9]*"),
    "string": "(?s:.+)",
    "date": "[0-9]{4}-[0-9]{2}-[0-9]{2}",
}

_Found = TypeVar("_Found")


class Housekeeping:
    """Finder and remover of leftovers: only those that carry our stamp and that no table refers to."""

    def __init__(self, store: HiveStore) -> None:
        self._store = store

    # -- finding -------------------------------------------------------------------------------------------------

    def leftovers(self, live: frozenset[str]) -> list[Leftover]:
        """Find the leftovers of all databases; hidden tables come first, and their references no longer count."""
        # Directories first: if one is published meanwhile, its table's reference is seen afterwards.
        directories = distinct(self._in_each_database(self._directories))
        tables = list(self._in_each_database(self._tables))
        hidden = self._hidden_tables(tables, live)
        going = frozenset(leftover.location for leftover in hidden)
        staying = (table for table in tables if _name(table) not in going)
        used = LazyReferences((t.location for t in staying if t.location), lambda: self._all_references(going))
        found = (self._try_to_judge(directory, used, live) for directory in directories)
        return [*hidden, *(leftover for leftover in found if leftover is not None)]

    def _in_each_database(self, look: Callable[[str], Iterable[_Found]]) -> Iterator[_Found]:
        """Collect the results of ``look`` for each database; one that is dropped meanwhile has none."""
        for database in self._store.metastore.list_databases():
            for looks in range(LOOKS):
                try:
                    found = list(look(database))
                    break
                except Exception:
                    if database not in self._store.metastore.list_databases():
                        found = []
                        break
                    # A table was dropped or renamed meanwhile: the next attempt sees that.
                    if looks == LOOKS - 1:
                        raise
            yield from found

    def foreign_metastores(self) -> list[str]:
        """Report each other metastore that has tables in the directories of our databases, in a sentence."""
        found = {}
        for directory in distinct(self._in_each_database(self._directories)):
            stamp = layout.read_stamp(self._store.files, directory)
            if stamp is not None and self._is_foreign(stamp):
                found[str(stamp[identity.STORE])] = directory
        ours = self._store.metastore.identity
        return [str(identity.refusal(directory, theirs, ours)) for theirs, directory in sorted(found.items())]

    def _is_foreign(self, stamp: dict[str, Any]) -> bool:
        """Whether a catalog of this name wrote the stamp, over another metastore."""
        ours = stamp.get("catalog") == self._store.name
        return ours and identity.is_other(stamp.get(identity.STORE), self._store.metastore.identity)

    def _tables(self, database: str) -> list[Located]:
        return [table for table in self._store.metastore.located_tables(database) if table.kind != VIEW]

    def _directories(self, database: str) -> Iterator[str]:
        """Version directories, and superseded directories of tables and partitions."""
        files = self._store.files
        home = self._store.database_location(database)
        beside = sorted({parent(str(table.location)) for table in self._tables(database) if table.location})
        for root in distinct(join(place, layout.ROOT) for place in (home, *beside)):
            for table in _subdirectories(files, root):
                if base_name(table) != layout.SAVEPOINTS:  # The timeline knows what these are needed for.
                    yield from self._below(table)
        for table in _subdirectories(files, home):
            if base_name(table) != layout.ROOT:
                yield from self._marked(table)

    def _below(self, table_root: str) -> Iterator[str]:
        for version in _subdirectories(self._store.files, table_root):
            yield version
            yield from (directory for directory in self._marked(version) if directory != version)

    def _marked(self, directory: str) -> Iterator[str]:
        """Directories with a superseded mark: this one and those below it."""
        return _marked(directory, self._store.files.list(directory, links=False))

    def _places(self, database: str) -> Iterator[tuple[Located, list[str]]]:
        """Each table, with its location and those of its partitions."""
        for table in self._tables(database):
            parts = self._store.metastore.partition_locations(table) if table.partition_columns else []
            yield table, [*([table.location] if table.location else []), *parts]

    def _try_to_judge(self, directory: str, used: LazyReferences, live: frozenset[str]) -> Leftover | None:
        """Same as :meth:`_judge`; one that cannot be read is kept, and does not prevent the removal of the others."""
        try:
            return self._judge(directory, used, live)
        except OSError as error:
            transaction_id, _, _ = base_name(directory).rpartition("-")
            return Leftover(STAGING, directory, -1, transaction_id, 0.0, kept=f"it cannot be read: {first_line(error)}")

    def _judge(self, directory: str, used: LazyReferences, live: frozenset[str]) -> Leftover | None:
        """Return the leftover that a directory is, according to its marks; None if it is not one.

        Its own marks are checked first, as partitions are loaded only for a directory that could be removed.
        """
        files = self._store.files
        stamp = layout.read_stamp(files, directory)
        if stamp is not None and self._is_foreign(stamp):
            return self._foreign(directory, stamp)
        if used.a_table_holds(directory):
            return None
        mark = layout.read_superseded(files, directory)
        if mark is not None:
            return None if self._has_retention(mark.since) else self._judge_superseded(directory, mark, used)
        if stamp is None:
            return self._judge_late(directory, live, used)
        if stamp["transaction_id"] in live or stamp.get("catalog") != self._store.name or used.hold(directory):
            return None
        published = layout.read_published(files, directory)
        return (
            self._judge_staged(directory, stamp) if published is None else self._judge_published(directory, published)
        )

    def _judge_staged(self, directory: str, stamp: dict[str, Any]) -> Leftover | None:
        quarantined = layout.quarantined_since(self._store.files, directory)
        if quarantined is not None and self._has_retention(self._last_part_unneeded(directory, quarantined)):
            return None
        # Only the metastore knows if a create was published, and it may not show this user all its tables.
        size, since = self._store.files.size(directory), float(stamp.get("created", 0))
        return Leftover(STAGING, directory, size, str(stamp["transaction_id"]), since, holds_rows=True, unmarked=True)

    def _judge_published(self, directory: str, published: layout.Published) -> Leftover | None:
        """Judge a published version whose partitions were replaced one by one, perhaps not all of them."""
        unneeded = self._last_part_unneeded(directory, published.since)
        if self._has_retention(unneeded):
            return None
        kept = None if layout.is_spent(self._store.files, directory) else UNMARKED
        size = self._store.files.size(directory)
        return Leftover(VERSION, directory, size, published.transaction_id, unneeded, kept=kept)

    def _has_retention(self, since: float) -> bool:
        return since + self._store.environment.retention > time.time()

    def _judge_late(self, directory: str, live: frozenset[str], used: LazyReferences) -> Leftover | None:
        transaction_id = layout.late_writer(self._store.files, directory)
        if transaction_id is None or transaction_id in live or used.hold(directory):
            return None
        size, is_empty = self._store.files.size(directory), self._store.files.is_empty(directory)
        # Without an entry it is what is left of a removal, or it holds nothing that a table could lose.
        return Leftover(STAGING, directory, size, transaction_id, 0.0, unmarked=not is_empty)

    def _foreign(self, directory: str, stamp: dict[str, Any]) -> Leftover:
        """Return a leftover that is listed but kept, as a table of the other metastore may need it."""
        why = f"it belongs to {identity.in_words(str(stamp[identity.STORE]))}"
        since = float(stamp.get("created", 0))
        return Leftover(STAGING, directory, 0, str(stamp["transaction_id"]), since, kept=why)

    def _last_part_unneeded(self, directory: str, since: float) -> float:
        """Time when the last part of a version became unneeded, given ``since`` for the version itself."""
        parts = (layout.read_superseded(self._store.files, part) for part in self._marked(directory))
        return max([since, *(part.since for part in parts if part is not None)])

    def _judge_superseded(self, directory: str, mark: layout.SupersededMark, used: LazyReferences) -> Leftover | None:
        if used.hold(directory):
            return None
        files = self._store.files
        kept = None if layout.is_trusted(files, directory, layout.SUPERSEDED_FILE) else layout.UNTRUSTED
        return Leftover(VERSION, directory, files.size(directory), mark.transaction_id, mark.since, kept=kept)

    def _hidden_tables(self, tables: list[Located], live: frozenset[str]) -> list[Leftover]:
        # A backup is the user's old table, with the stamp of the transaction that published that table: only the
        # transaction that made the backup knows if it must be restored.
        ours = (t for t in tables if t.name.startswith(layout.HIDDEN_PREFIX) and self._is_unneeded(t))
        hidden = [table for table in ours if table.stamp and table.stamp not in live]
        return [Leftover(METADATA, _name(t), 0, str(t.stamp), 0.0) for t in hidden]

    def _is_unneeded(self, hidden: Located) -> bool:
        """Whether a hidden table of a dead transaction is of no use any more."""
        if not layout.is_backup(hidden.name):
            return True
        return hidden.location is not None and self._is_old_fence(hidden.database, hidden.name, hidden.location)

    def _is_old_fence(self, database: str, name: str, location: str) -> bool:
        """Whether a table only keeps its name from a delayed call that can no longer come."""
        since = layout.quarantined_since(self._store.files, location)
        if since is None or self._has_retention(since):
            return False
        found = self._store.metastore.get_table(database, name)
        return found is not None and PLACEHOLDER in found.properties

    # -- removing ------------------------------------------------------------------------------------------------

    def remove(self, leftovers: Iterable[Leftover]) -> Iterator[Exception | None]:
        """Remove leftovers, after checking each again; yield the error, or None, for each in turn."""
        used: References | None = None
        for leftover in leftovers:
            try:
                if leftover.kind == METADATA:
                    self._remove_hidden(leftover)
                else:
                    used = self._all_references() if used is None else used
                    self._remove_directory(leftover, used)
            except Exception as error:
                yield error
            else:
                yield None

    def _remove_directory(self, leftover: Leftover, used: References) -> None:
        files, directory = self._store.files, leftover.location
        if not files.exists(directory):
            return
        if used.hold(directory):
            raise CatalogError(f"{directory} is in use by a table: it was not removed.")
        if layout.read_superseded(files, directory) is None and self._is_still(leftover):
            if layout.read_published(files, directory) is not None:
                # Else, if this process is killed, nothing would say any more that the rest of it is of no use.
                layout.supersede(files, directory, leftover.transaction_id)
            elif not files.remove_if_empty(directory) and leftover.unmarked:
                files.remove_tree(directory, layout.REMOVED_LAST)
        layout.remove_superseded(files, directory)
        self._store.remove_if_unused(directory)

    def _is_still(self, leftover: Leftover) -> bool:
        """Whether a directory without a superseded mark is still the leftover that was found."""
        files, directory = self._store.files, leftover.location
        stamp = layout.read_stamp(files, directory)
        if stamp is None:
            return layout.late_writer(files, directory) == leftover.transaction_id
        published = layout.read_published(files, directory)
        if published is not None:
            return published.transaction_id == leftover.transaction_id and layout.is_spent(files, directory)
        return bool(stamp["transaction_id"] == leftover.transaction_id)

    def _all_references(self, but: frozenset[str] = frozenset()) -> References:
        """Load the references of all tables and partitions, except those of some tables."""
        found = self._in_each_database(self._places)
        return References(place for table, places in found if _name(table) not in but for place in places)

    def _remove_hidden(self, leftover: Leftover) -> None:
        database, _, name = leftover.location.partition(".")
        table = self._store.metastore.get_table(database, name)
        if table is None or (layout.is_backup(name) and PLACEHOLDER not in table.properties):
            return
        if table.stamp == leftover.transaction_id and name.startswith(layout.HIDDEN_PREFIX):
            self._store.metastore.forget_table(database, name)

    # -- a dropped table -----------------------------------------------------------------------------------------

    def free_default_location(self, path: ObjectPath) -> None:
        """Free the default location of a name that its table has left. Replaced versions are left to ``clean``.

        Other tables are checked only if rows are left, over which another writer may have created a table.
        """
        files = self._store.files
        try:
            home = self._store.default_location(path)
        except DatabaseNotExistError:
            return
        entries = files.list(home, links=False)
        root = join(layout.tables_root(parent(home)), path.name)
        marked = sorted(set(_marked(home, entries)), key=lambda directory: -directory.count("/"))
        # Looked up only if there is anything to remove, and after the listing, which then is of no newer table.
        if not (marked or files.exists(root)) or self._store.find(path) is not None:
            return
        used = self._all_references() if marked and any(data_entries(entries)) else None
        for directory in marked:
            if used is None or not used.hold(directory):
                layout.remove_superseded(files, directory)
        if marked and (used is None or not used.hold(home)):
            self._remove_empty_root(home)
        if files.exists(root):
            files.remove_if_empty(root)

    def leave_to_clean(self, table: HiveTable) -> None:
        """Mark the version of a dropped table if the metastore has not removed it, as for EXTERNAL tables.

        The version's own stamp decides, as the table's may have been copied with a definition.
        """
        files, location = self._store.files, str(table.location)
        if not layout.is_in_version(location):
            return
        stamp = layout.stamp_above(files, location)
        if stamp is None or stamp.get("catalog") != self._store.name or self._is_foreign(stamp):
            return
        if stamp.get("path") == ObjectPath.of(table.database, table.name).to_document():
            layout.supersede(files, location, str(stamp["transaction_id"]))

    # -- partition discovery -------------------------------------------------------------------------------------

    def partitions_sought(self, path: ObjectPath, partitions: Sequence[Mapping[str, str | None]] | None = None) -> None:
        """Remove replaced partitions below a table's directory; readers in flight lose them, as in stock Spark."""
        table = self._store.find(path)
        if table is None or table.kind != MANAGED or not table.partitioned:
            return
        files = self._store.files
        entries = {place: files.list(place, links=False) for place in _sought(table, partitions)}
        marked = [directory for place, found in entries.items() for directory in _marked(place, found)]
        if not marked:
            return
        used = References([str(table.location), *self._store.metastore.partition_locations(Located.of(table))])
        left = [directory for directory in marked if not used.hold(directory)]
        rows = [join(place, entry.name) for place, found in entries.items() for entry in data_entries(found)]
        if any(is_below(row, directory) for row in rows for directory in left):
            used = self._all_references()  # Another writer may have created a table over them.
        for directory in left:
            if not used.hold(directory):
                layout.remove_superseded(files, directory)

    # -- a renamed table -----------------------------------------------------------------------------------------

    def table_renamed(self, path: ObjectPath) -> None:
        """Fix the location of a table that stock Spark has renamed without its files."""
        lost = self._lost(path.database, path.name)
        table = self._store.find(path)
        if lost is not None and table is not None:
            self._store.metastore.alter_table(replace(table, location=lost))
            self._store.metastore.changed(path.database, path.name)

    def lost_tables(self) -> list[str]:
        """Report tables that Spark reads at a wrong location, each with the statement that fixes it."""
        return list(self._in_each_database(self._lost_tables_of))

    def _lost_tables_of(self, database: str) -> Iterator[str]:
        for name in self._store.list_tables(database):
            if (lost := self._lost(database, name)) is not None:
                yield (
                    f"Spark looks for the files of {database}.{name} where they are not; a rename by a session "
                    f"without twophase did that. Run: ALTER TABLE {database}.{name} SET LOCATION '{lost}'"
                )

    def _lost(self, database: str, name: str) -> str | None:
        """Location of a version of ours that Hive has for a table and Spark does not; None if there is none."""
        table = self._store.metastore.get_table(database, name)
        if table is None or table.kind == VIEW or table.stamp is None:
            return None
        lost = self._store.metastore.lost_location(database, name)
        # Detected by its path, not by its stamp: stock Spark's TRUNCATE or overwrite removes the stamp with all files.
        return lost if lost is not None and layout.is_version_place(lost) else None

    def _remove_empty_root(self, home: str) -> None:
        """Remove a table's old directory if it is empty, or holds only the success markers of Spark jobs."""
        files = self._store.files
        entries = [entry for entry in files.list(home) if entry.is_file]
        if all(entry.base in ("_SUCCESS", "._SUCCESS.crc") for entry in entries):
            for entry in entries:
                files.remove_file(join(home, entry.name))
            for directory in sorted((e.name for e in files.list(home) if not e.is_file), key=lambda n: -n.count("/")):
                files.remove_if_empty(join(home, directory))
            files.remove_if_empty(home)


def _sought(table: HiveTable, partitions: Sequence[Mapping[str, str | None]] | None) -> list[str]:
    """Directories of the partitions that a statement names; the table's own if any of these is not known beforehand."""
    home, keys = str(table.location), [_plain_key(table, values) for values in partitions or ()]
    known = [layout.partition_name(key, table.partition_columns) for key in keys if key is not None]
    return [join(home, name) for name in known] if known and len(known) == len(keys) else [home]


def _plain_key(table: HiveTable, values: Mapping[str, str | None]) -> tuple[str, ...] | None:
    """Key of a partition that a statement names; None if its directory may have another name.

    Spark converts a text to the type of its column first: the partition of ``'01'`` is ``k=1``. And a metastore, which
    knows no capitals, makes some of the directories itself.
    """
    texts, key = {column.lower(): text or "" for column, text in values.items()}, []
    for column in table.partition_columns:
        kind, text = declared_type(spark_field(table.schema.field(column))), texts.get(column, "")
        if not re.fullmatch(_PLAIN.get(kind, "(?!)"), text):
            return None
        key.append(text)
    return tuple(key)


def _marked(directory: str, entries: Iterable[Entry]) -> Iterator[str]:
    """Those of a directory and the ones below it that have a superseded mark among some entries."""
    for entry in entries:
        if entry.is_file and entry.base == layout.SUPERSEDED_FILE:
            yield join(directory, entry.name).rpartition("/")[0]


def _name(table: Located) -> str:
    """Name of a table, as in a leftover."""
    return f"{table.database}.{table.name}"


def _subdirectories(files: Files, directory: str) -> list[str]:
    """Subdirectories of a directory, without symbolic links."""
    entries = files.list(directory, recursive=False, links=False)
    return [join(directory, entry.name) for entry in entries if not entry.is_file]
