"""The table that a write changes: its current state, compared with its state when the write was planned."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from twophase.catalogs.files import data_files, is_below, join, same
from twophase.catalogs.hive import hard_links, layout
from twophase.catalogs.hive.definitions import fingerprint, redacted, same_layout, to_definition
from twophase.catalogs.hive.partition_plan import Key, by_key
from twophase.catalogs.hive.replaced import Directory, Partitions, Replaced, content_of, contents_below
from twophase.catalogs.hive.schema import conflicts
from twophase.catalogs.hive.stamps import BROUGHT
from twophase.catalogs.hive.state import INSERT
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, HivePartition, HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.errors import CatalogError
from twophase.model import Purpose, TableDefinition


class Target:
    """The table that a write changes; refuses to write if others have changed it.

    Parameters
    ----------
    write : TableWrite
    new_roots : bool
        Whether another insert may have given a partitioned table a new directory of its own.
    """

    def __init__(self, write: TableWrite, *, new_roots: bool = False) -> None:
        self._write = write
        self._new_roots = new_roots
        self._checked: HiveTable | None = None

    # -- the table -----------------------------------------------------------------------------------------------

    def check_unchanged(self) -> HiveTable:
        """Load the table, which must be unchanged.

        Raises
        ------
        WriteConflictError
            Another writer changed or dropped it.
        CatalogError
            The files to which rows are to be added are gone.
        """
        now = self.require_unchanged(self._write.current())
        if self._write.state.purpose is Purpose.INSERT_INTO and not now.partitioned:
            self._require_version(str(now.location))
        return now

    def _require_version(self, location: str) -> None:
        """Refuse to add rows to a version whose directory is gone: its file system is not mounted, say.

        Rows would be written into a new directory, which is hidden when the old one comes back.
        """
        files = self._write.files
        if layout.version_above(location) is None or not files.is_local(location) or files.exists(location):
            return
        raise CatalogError(
            f"{self._write.path} was not written: its directory {location} is gone.",
            path=self._write.path,
            transaction_id=self._write.state.transaction_id,
            hint="Is its file system mounted? If its rows are lost, write it anew with INSERT OVERWRITE.",
        )

    def require_unchanged(self, now: HiveTable | None) -> HiveTable:
        """Check that the table, as just loaded, is unchanged, and return it.

        Raises
        ------
        WriteConflictError
            As for :meth:`check_unchanged`.
        """
        write, before = self._write, self._write.state.old
        if now is None:
            raise write.conflict("it was dropped meanwhile")
        if write.state.appends:
            self._check_still_own(now)
        elif not self.is_unmoved(now) or now.stamp != before.stamp:
            raise write.conflict("another writer published it meanwhile")
        is_brought = write.state.brings and now.properties.get(BROUGHT) == write.state.transaction_id
        expected = write.state.definition if is_brought else before.definition
        found, expected = self._redacted(to_definition(now)), self._redacted(expected)
        if not same_layout(found, expected):
            self._check_follows(now, expected, found)
        if write.state.brings and not is_brought:
            self._require_schema(now)
        if write.state.alters:
            self._require_definition(now)
        self._checked = now
        return now

    def _check_follows(self, now: HiveTable, expected: TableDefinition, found: TableDefinition) -> None:
        """Allow rows for a table that an ALTER TABLE has changed since, if their files can follow (RFC-82)."""
        state = self._write.state
        # Without a stamp nothing distinguishes a table that was altered from another one of its name.
        evolved = self.is_unmoved(now) and now.stamp is not None and now.stamp == state.old.stamp
        if not evolved or state.effect != INSERT or state.brings:
            raise self._write.conflict("its columns or options were changed meanwhile")
        conflicts.check_follows(self._write, expected, found)

    def _require_schema(self, now: HiveTable) -> None:
        """Refuse other defaults, and other columns that the table has had: a new schema rests on them."""
        if not now.schema.equals(self._write.state.old.definition.schema, check_metadata=True):
            raise self._write.conflict("its columns were changed meanwhile")

    def _require_definition(self, now: HiveTable) -> None:
        """Refuse any change of a definition that the write puts back, with changes of its own."""
        self._require_schema(now)
        found, expected = self._redacted(to_definition(now)), self._redacted(self._write.state.old.definition)
        if fingerprint(found) != fingerprint(expected):
            raise self._write.conflict("its properties or its comment were changed meanwhile")

    def _check_still_own(self, now: HiveTable) -> None:
        """Allow an append to what others have published meanwhile, unless the user has set a LOCATION."""
        moved = not self.is_unmoved(now)
        if now.kind != MANAGED or (moved and not self._write.paths.is_tables(str(now.location))):
            raise self._write.conflict("it was given a LOCATION meanwhile")

    def is_unmoved(self, now: HiveTable) -> bool:
        """Whether the table's rows are at their old location, as far as its directory shows."""
        before = self._write.state.before
        if before is not None and same(now.location, before.location):
            return True
        # Its rows are in its partitions.
        return self._new_roots and self._write.state.effect == INSERT and layout.is_root(str(now.location))

    def _redacted(self, definition: TableDefinition) -> TableDefinition:
        # Applied to both sides: the session that wrote the document may have redacted other names.
        return redacted(definition, self._write.store.conf)

    def restore_kind(self, is_published: Callable[[HiveTable], bool]) -> None:
        """Make a table managed again that was made external for a backup.

        Parameters
        ----------
        is_published : callable
            Whether a table is in the state that the write publishes.
        """
        write, now, before = self._write, self._write.current(), self._write.state.before
        if now is None or before is None or is_published(now):
            return
        is_the_old_one = self.is_unmoved(now) and now.stamp == before.stamp
        if is_the_old_one and before.kind == MANAGED and now.kind == EXTERNAL:
            write.metastore.make_managed(write.database, write.path.name)

    # -- files ---------------------------------------------------------------------------------------------------

    def check_inherited(self) -> None:
        """Refuse if files were added to or removed from the directory whose files were linked."""
        state = self._write.state
        if state.inherit_mark is None:
            return
        if not hard_links.is_marked(self._write.files, str(state.inherit), state.inherit_mark):
            raise self._write.conflict("files were written to it meanwhile, past the metastore")

    def replaced(self, now: HiveTable) -> Iterator[str]:
        """Directories of the rows that the publish replaces."""
        if now.partitioned:
            yield from (part.location for part in self._write.metastore.list_partitions(now))
        else:
            yield str(now.location)

    def check_replaced(self, directories: Iterable[str]) -> None:
        """Refuse if files were added to or removed from the replaced directories: the query may not have seen that.

        Changes are compared with the time of the owner stamp, which was written before the rows, by the clock of the
        same filesystem. For several statements of one transaction the first one's stamp counts, as the others build on
        what that statement read.
        """
        files = self._write.files
        if not self._write.state.replaces:
            return
        began = files.change_mark(self._first_stamp)
        if began is None or began < 0:
            return  # The filesystem does not support it; do not list the partitions in vain.
        self._check_in_its_place(began)
        for directory in directories:
            if layout.is_emptied_by(directory, self._write.state.transaction_id):
                is_changed = any(data_files(files.list(directory)))  # It is younger than the stamp.
            else:
                is_changed = (files.last_change(directory) or began) > began
            if is_changed:
                raise self._write.conflict(f"files were written to {directory} meanwhile, past the metastore")

    @property
    def _first_stamp(self) -> str:
        state = self._write.state
        return join(state.first_version or state.version, layout.STAMP_FILE)

    def was_restored(self) -> None:
        """Exclude restored files from the check for other writers' changes, in case this write is still published."""
        self._write.files.touch(self._first_stamp)

    def _check_in_its_place(self, began: int) -> None:
        """Refuse if another directory was renamed to the table's location: its files may all be older than this write.

        As some file systems change inode numbers at times, the directory must have changed as well.
        """
        files, before = self._write.files, self._write.state.before
        if before is None or before.number is None or files.number(before.location) in (None, before.number):
            return
        if (files.placed(before.location) or 0) > began:
            raise self._write.conflict(
                f"another directory took the place of {before.location} meanwhile, past the metastore"
            )

    # -- the replaced state --------------------------------------------------------------------------------------

    @property
    def directory(self) -> str:
        """The table's directory when it was last checked."""
        return self._write.state.old.location if self._checked is None else str(self._checked.location)

    def replaced_state(self, *, defines: bool) -> Replaced:
        """Return the state of the whole table, which the publish replaces.

        Parameters
        ----------
        defines : bool
            Whether the publish changes the table's definition.
        """
        now, old = self._checked, self._write.state.old
        definition = old.definition if defines else None
        if now is None or not now.partitioned:
            found = content_of(self._write.files, old.location)
            return Directory(old.location, old.stamp, found, definition)
        listed = by_key(now, self._write.metastore.list_partitions(now))
        held = self.held_by({key: part.location for key, part in listed.items()}, is_all=True)
        return Partitions(self.directory, old.stamp, held, True, definition)

    def held_by(self, places: Mapping[Key, str | None], *, is_all: bool) -> dict[Key, tuple[str, str] | None]:
        """Return the directory of each partition, with a hash of its files; None where there is none.

        Parameters
        ----------
        places : mapping of tuple to str or None
        is_all : bool
            Whether these are all partitions of the table: if the store lists cheaply, the directories above them are
            listed instead of each.
        """
        files, listed = self._write.files, dict[str, Callable[[str], str]]()

        def content_at(place: str) -> str:
            above = self._above(place) if is_all and files.kind(place).cheap_listing else None
            if above is None:
                return content_of(files, place, recursive=False)
            if above not in listed:
                listed[above] = contents_below(files, above)
            return listed[above](place)

        return {key: None if place is None else (place, content_at(place)) for key, place in places.items()}

    def _above(self, place: str) -> str | None:
        """The version, or the table's directory, that holds a partition; None for one elsewhere."""
        version = layout.version_above(place)
        return self.directory if version is None and is_below(place, self.directory) else version

    # -- partitions ----------------------------------------------------------------------------------------------

    def is_partitioned_alike(self, table: HiveTable) -> bool:
        """Whether a table has the partition columns of the write; one that was made anew may have others."""
        then, now = self._write.state.partition_columns, table.partition_columns
        return [column.lower() for column in then] == [column.lower() for column in now]

    def registered(self, table: HiveTable, keys: Collection[Key]) -> dict[Key, HivePartition]:
        """Load those of the given partitions that exist in the metastore now: none of a table partitioned otherwise."""
        if not keys or not self.is_partitioned_alike(table):
            return {}
        return by_key(table, self._write.metastore.get_partitions(table, keys))

    def locations(self, table: HiveTable, keys: Collection[Key]) -> dict[Key, str]:
        """Current locations in the metastore of the given partitions."""
        return {key: part.location for key, part in self.registered(table, keys).items()}

    def within_reach(self, table: HiveTable, new: Collection[Key]) -> dict[Key, HivePartition]:
        """Load the existing partitions that the statement may change.

        Parameters
        ----------
        table : HiveTable
        new : collection of tuple
            Partitions that get new rows. Others are loaded only if the statement may empty them: there may be many.
        """
        state, store, columns = self._write.state, self._write.metastore, table.partition_columns
        scope = state.overwrite
        if state.purpose is Purpose.INSERT_INTO or (scope is not None and scope.dynamic):
            return self.registered(table, new)
        if state.purpose is not Purpose.INSERT_OVERWRITE or scope is None or not scope.static_partition:
            return by_key(table, store.list_partitions(table))
        found = by_key(table, store.partitions_within(table, hard_links.static_values(scope, columns)))
        return {**found, **self.registered(table, [key for key in new if key not in found])}

    def require_new(self, listed: Mapping[Key, HivePartition]) -> None:
        """Refuse to replace a partition of IF NOT EXISTS that another writer has added since the statement looked.

        Parameters
        ----------
        listed : mapping
            The partitions in the metastore, without those that the transaction itself has changed before.
        """
        scope, key = self._write.state.overwrite, self.named_partition
        if scope is None or not scope.if_not_exists or key is None or key not in listed:
            return
        if not layout.is_emptied_by(listed[key].location, self._write.state.transaction_id):
            raise self._write.conflict(f"another writer has added its partition {'/'.join(key)} meanwhile")

    @property
    def named_partition(self) -> Key | None:
        """The partition that an INSERT OVERWRITE specifies fully, which is replaced even without new rows."""
        state = self._write.state
        columns, scope = state.partition_columns, state.overwrite
        given = {} if scope is None else hard_links.static_values(scope, columns)
        return tuple(given[column] for column in columns) if columns and len(given) == len(columns) else None

    def written_partitions(self, written: Callable[[], Collection[Key]]) -> frozenset[str] | None:
        """Names of the partitions that the publish changes; None if the rows alone do not determine them.

        Parameters
        ----------
        written : callable
            Returns the partitions of the staged rows.
        """
        state, scope = self._write.state, self._write.state.overwrite
        if not state.partition_columns or state.effect != INSERT or state.before is None or not state.before.tracked:
            return None
        named = self.named_partition
        if state.purpose is Purpose.INSERT_OVERWRITE and named is None and (scope is None or not scope.dynamic):
            return None
        keys = {*written(), *(() if named is None else (named,))}
        return frozenset(layout.partition_name(key, state.partition_columns) for key in keys)

    def refuse_own_formats(self, table: HiveTable, partitions: Mapping[Key, HivePartition]) -> None:
        """Refuse to add rows in the table's format to a partition of another format: one of the two would be misread.

        Raises
        ------
        CatalogError
            A partition has a SerDe, or SerDe settings, that differ from the table's.
        """
        for key, partition in partitions.items():
            if self._write.metastore.has_own_format(table, partition):
                raise CatalogError(
                    f"{self._write.path} was not written: its partition {'/'.join(key)} has a SerDe or SERDEPROPERTIES "
                    "of its own, and Spark writes in those of the table.",
                    path=self._write.path,
                    transaction_id=self._write.state.transaction_id,
                    hint="Overwrite the partition, or give it the table's SERDEPROPERTIES.",
                )
