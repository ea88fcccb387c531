"""Choose the publisher from the staged rows, for INSERT INTO and for INSERT OVERWRITE of the partitions of its rows.

The number of files, and where they go, is known only when the job of the statement has ended. Then one of these is
chosen:

======================  ==============================================  ==========================================
staged files            how they are published                          what it costs
======================  ==============================================  ==========================================
one file                one rename into the table's (or partition's)    constant
                        directory (on an object store one copy)
several files           one rename of a directory with all of them,     constant
                        for ``append = directory``
several files           a new version: links to the existing files,     grows with the existing files
                        and a switch of the pointer
several files, if many  one rename after the other, with a manifest     constant; level ``REVERSIBLE``
exist, or no links can  to undo them
be made, nor a
directory be renamed
======================  ==============================================  ==========================================
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from twophase.catalogs.files import data_entries, data_files, refuse_untried
from twophase.catalogs.hive import flattening, hard_links
from twophase.catalogs.hive.definitions import FILE_PROVIDERS, is_recursive
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.publish.publisher import Publisher
from twophase.catalogs.hive.staging import Staging
from twophase.catalogs.hive.state import ByRowsState, MoveState, OwnState, PointerState, PublisherName
from twophase.catalogs.hive.tables import HivePartition, HiveTable
from twophase.catalogs.hive.target import Target
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath, Purpose

#: How an append may be published: see the table above. By default the number of files decides.
APPENDS = ("directory", "links", "files")
#: Maximum number of files to hard-link: one or two hundred milliseconds, and as many directory entries.
LINKED_FILES = 2000

_Choice = tuple[PublisherName, OwnState]
_LINKS: _Choice = (PublisherName.LINK_FILES, PointerState())
_PARTITIONS: _Choice = (PublisherName.SWITCH_PARTITIONS, OwnState())
_APPENDS: _Choice = (PublisherName.APPEND_FILES, MoveState())


class Undecided(Publisher):
    """Publisher of a write whose rows are not staged yet: it can only be rolled back."""

    @property
    def renames_files(self) -> bool:
        # Of new and of overwritten partitions, which are published where they are staged, the choice does.
        return not self.files.kind(self.state.version).hard_links

    def prepare(self) -> None:
        raise AssertionError("A write is prepared by the publisher that its rows have chosen.")

    def publish(self) -> None:
        raise AssertionError("A write is published by the publisher that its rows have chosen.")


class Choice:
    """The choice of a publisher for a write whose rows are staged."""

    def __init__(self, write: TableWrite) -> None:
        self._write = write
        self._files = write.files
        self._staging = Staging(write)
        self._target = Target(write)

    def make(self) -> None:
        """Choose the publisher, and store it in the write's state."""
        self._adopt()
        self._become(_APPENDS if self._is_one_rename() else self._of_table(self._table()))

    def _table(self) -> HiveTable:
        """The table, whose format and directory decide; ``prepare`` compares it with the current one."""
        return self._write.planned or self._target.check_unchanged()

    def without_links(self) -> None:
        """Choose again without links: a file has the maximum number of links, or the filesystem supports none."""
        self._refuse_to_build()
        hard_links.take_links_out(self._files, self._write.state.version)
        own = self._write.state.own
        flattens = isinstance(own, PointerState) and own.flattens
        self._become((PublisherName.APPEND_FILES, MoveState(gathered=flattens)))

    def _become(self, choice: _Choice) -> None:
        publisher, own = choice
        self._write.update(publisher=publisher, own=own)

    def _adopt(self) -> None:
        """Take over the rows that an earlier statement of the transaction has appended, to publish them together."""
        write, base = self._write, self._write.state.of(ByRowsState).adopts
        if base is None:
            return
        with write.step("link"):
            own = set(hard_links.own_rows(self._files, base))
            hard_links.link_tree(self._files, base, write.state.version, own.__contains__, write.state.transaction_id)

    def _is_one_rename(self) -> bool:
        """Whether the staged rows are published in one step, whatever has changed in the table: prepare checks it."""
        state = self._write.state
        return state.appends and not state.brings and self._mode != "links" and self._staging.files()[0] <= 1

    def _of_table(self, table: HiveTable) -> _Choice:
        if table.partitioned:
            return self._of_partitions(table)
        if self._goes_by_directory(table) and not self._carries_columns(table):
            return self._by_directory(str(table.location))
        return _LINKS if self._links([str(table.location)]) else _APPENDS

    def _carries_columns(self, table: HiveTable) -> bool:
        """Whether new columns come in the same metastore call as their rows: it needs a version to point at."""
        return self._write.state.brings and self._links([str(table.location)])

    def _by_directory(self, location: str) -> _Choice:
        version = self._write.state.version
        if flattening.is_due(self._files, location) and self._files.can_link(location, version):
            return PublisherName.LINK_FILES, PointerState(flattens=True)
        return PublisherName.APPEND_FILES, MoveState(gathered=True)

    def _of_partitions(self, table: HiveTable) -> _Choice:
        write, columns, root = self._write, table.partition_columns, str(table.location)
        new = self._staging.partitions(columns)
        there = self._within_reach(table, new)
        refuse_untried(write.path, *(part.location for part in there.values()), environment=write.store.environment)
        paths = write.paths
        if not all(paths.is_partitions(part.location, key, columns, root) for key, part in there.items()):
            self._refuse_to_build()
            return PublisherName.MOVE_FILES, MoveState()  # To the user's own location.
        if write.state.purpose is not Purpose.INSERT_INTO:
            return _PARTITIONS
        if self._is_alone_in_its_partition(new, there):
            return _APPENDS
        linked = self._links([part.location for part in there.values()])
        if not linked:
            self._refuse_to_build()
        return _PARTITIONS if linked else _APPENDS

    def _within_reach(self, table: HiveTable, new: Collection[Key]) -> dict[Key, HivePartition]:
        try:
            return self._target.within_reach(table, new)
        except Exception:  # No partition of the table as planned can be looked up in one that was made anew.
            self._target.check_unchanged()
            raise

    def _is_alone_in_its_partition(self, new: Mapping[Key, str], there: Mapping[Key, HivePartition]) -> bool:
        """Whether one file goes to one existing partition, and nothing in this transaction builds on it."""
        alone = self._write.state.autocommit and self._mode != "links"
        return alone and len(there) == len(new) == 1 and self._staging.files()[0] == 1

    @property
    def _mode(self) -> str | None:
        return self._write.state.of(ByRowsState).mode

    def _goes_by_directory(self, table: HiveTable) -> bool:
        recursive = is_recursive(table.options)
        if self._mode not in ("directory", None) or (self._mode is None and not recursive):
            return False
        if not self._files.kind(str(table.location)).atomic_rename_directory:
            return False
        if table.partition_columns or table.provider not in FILE_PROVIDERS or table.bucketing is not None:
            return False
        return recursive or self._is_flat(str(table.location))

    def _is_flat(self, location: str) -> bool:
        """Whether no subdirectory holds rows, which Spark would start to read."""
        return not any("/" in entry.name for entry in data_entries(self._files.list(location)))

    def _links(self, kept: list[str]) -> bool:
        """Whether the kept files are to be hard-linked into the new version."""
        if self._mode == "files" or not all(self._files.can_link(place, self._write.state.version) for place in kept):
            return False
        return sum(len(data_files(self._files.list(place))) for place in kept) <= LINKED_FILES

    def _refuse_to_build(self) -> None:
        if self._write.state.base_version is not None:
            raise cannot_build(self._write.path)


def cannot_build(path: ObjectPath) -> AtomicityNotSupportedError:
    """Return the error for a second statement on a table whose files stay where they are."""
    return AtomicityNotSupportedError(
        f"{path} was already written in this transaction, and its files stay at one location: a second statement "
        "cannot build on the first.",
        path=path,
        hint="Commit the first statement before, or write both with one UNION ALL.",
    )
