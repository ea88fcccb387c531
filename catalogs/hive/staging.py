"""Staging: where the rows of a write are stored, counted and kept until they are published or removed.

Spark's executors write the rows of a CREATE TABLE AS SELECT, or of any other write, to a new directory, the *version*,
that no table refers to. An owner stamp in the directory names its transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from twophase.catalog.reading import ReadSource
from twophase.catalogs.files import UNMARKED, Entry, data_entries, data_files, join, parent
from twophase.catalogs.hive import hard_links, layout
from twophase.catalogs.hive.definitions import FILE_PROVIDERS, is_redacted
from twophase.catalogs.hive.partition_plan import Key
from twophase.catalogs.hive.store import partitions_of
from twophase.catalogs.hive.tables import EXTERNAL, HivePartition, HiveTable, partition_key
from twophase.catalogs.hive.write import TableWrite
from twophase.catalogs.rows import aligned
from twophase.errors import CatalogError, ConfigurationError
from twophase.model import ObjectPath, TableDefinition
from twophase.transactions import failures

#: Maximum number of files that an error names.
_NAMED = 10


class Staging:
    """The staged version of one write, and the empty directory beside it."""

    def __init__(self, write: TableWrite) -> None:
        self._write = write
        self._files = write.files

    @property
    def version(self) -> str:
        """Directory of the staged files."""
        return self._write.state.version

    @property
    def empty(self) -> str:
        """The empty directory beside the version, for partitions that must exist without rows."""
        return self._write.state.empty

    # -- writing -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the version's directory, with its owner stamp. Idempotent."""
        with self._write.step("stage"):
            try:
                if not self._files.exists(self.version):
                    self._write.hidden.start()
                    self._write.calls.start()
                self.stamp(self.version)
            except OSError as error:
                raise CatalogError(
                    f"{self._write.path} was not written: its staging directory {self.version} cannot be made "
                    f"({error}).",
                    path=self._write.path,
                    transaction_id=self._write.state.transaction_id,
                    hint="Make the directory that holds it, with the right to write there, or name another place.",
                ) from error

    def stamp(self, directory: str) -> None:
        """Create a directory of this write, with its owner stamp. Idempotent."""
        layout.write_stamp(self._files, directory, self._write.state.stamp_facts())

    def write(self, df: Any, *, marked: bool, is_renamed: bool = False) -> None:
        """Write the rows to the version, with Spark's executors.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
        marked : bool
            Whether Hadoop's ``_SUCCESS`` file is written as well, for readers that look for it.
        is_renamed : bool
            Whether the publish renames each file: see :attr:`Publisher.renames_files
            <twophase.catalogs.hive.publish.publisher.Publisher.renames_files>`.
        """
        definition = self._write.written
        rows = aligned(df, definition.schema.names)
        with self._write.step("write"):
            if written_as_files(definition):
                self._files.make_ready(self.version, rows.sparkSession.conf)
                if definition.provider == "parquet":
                    rows = self._write.metastore.rows_for(rows, definition.schema)
                if not (is_renamed and self._write_by_list(rows, definition)):
                    _save(rows, definition, self.version, marked=marked)
            else:
                self._insert_hidden(rows)

    def _write_by_list(self, rows: Any, definition: TableDefinition) -> bool:
        """Write the rows without a committer's renames, where each is a copy; return whether that was possible.

        An attempt of a task that is still running, or was lost, may write files at any time: a list names the others.
        """
        write, writer = self._write, self._write.store.environment.file_writer
        if writer is None or not self._files.kind(self.version).atomic_copy_file:
            return False
        place = join(self.version, layout.TASK_FILES)
        partitions = definition.partition_columns
        found = writer.write(rows, definition.provider, place, partition_columns=partitions, options=definition.options)
        if found is None:
            return False
        self._files.write_json(join(self.version, layout.WRITTEN_FILE), found, waits=False)
        write.listed = [Entry(name, True, size) for name, size in found]
        write.update(listed=True)
        return True

    def _insert_hidden(self, rows: Any) -> None:
        """Bucketed tables and SerDes: Spark's own insert into a hidden table over the version."""
        write = self._write
        writer = write.store.environment.table_writer
        if writer is None or not write.metastore.read_by_session:
            raise ConfigurationError(
                f"{write.path} is bucketed or a SerDe table: only the session's metastore can write its files.",
                path=write.path,
            )
        name = write.hidden.name("write")
        with write.step("hidden_table"):
            write.hidden.make("write", write.table(name=name, kind=EXTERNAL, definition=write.written))
        writer.insert(rows, write.database, name)
        with write.step("drop_hidden"):
            write.metastore.forget_table(write.database, name)

    def inherit(self) -> None:
        """Hard-link the files that the statement keeps into the version; nothing is copied."""
        state = self._write.state
        if state.inherit is None or state.inherited:
            return
        columns = state.partition_columns
        with self._write.step("link"):
            keep = (
                hard_links.keep_all
                if state.overwrite is None
                else hard_links.outside(state.overwrite, columns, self.partitions(columns))
            )
            self._write.update(inherit_mark=self._files.fingerprint(state.inherit))
            hard_links.link_tree(self._files, state.inherit, self.version, keep, state.transaction_id)
        self._write.update(inherited=True)

    def register(self, location: str | None = None) -> None:
        """Create a hidden table over the version, or over its new location; then add all its partitions in one call."""
        write = self._write
        table = write.table(name=write.hidden.name("table"), kind=EXTERNAL, location=location)
        write.hidden.make("table", table)
        if table.partitioned:
            write.metastore.add_partitions(table, self.counted_partitions(table, location))

    def persist(self) -> None:
        """Make the staged files survive a power failure."""
        root = parent(self._write.state.default_location)
        self._files.persist(self.version, self.empty, below=root, documents=[layout.STAMP_FILE])

    # -- what is staged ------------------------------------------------------------------------------------------

    @property
    def rows_at(self) -> str:
        """The directory of :meth:`rows`."""
        return join(self.version, layout.TASK_FILES) if self._write.state.listed else self.version

    def rows(self) -> list[Entry]:
        """The files that the statement has staged, and what is beside them."""
        if not self._write.state.listed:
            return self._files.list(self.version)
        if self._write.listed is None:
            found = self._files.read_json(join(self.version, layout.WRITTEN_FILE))
            self.require(found is not None)
            self._write.listed = [Entry(str(name), True, int(size)) for name, size in found or ()]
        return self._write.listed

    def place_listed(self) -> None:
        """Rename the directories of the listed files, if there is a list, to where a committer would have put them.

        Other files in these directories are renamed as well, and removed there, where no attempt of a task writes.
        """
        if not self._write.state.listed:
            return
        rows = {entry.name for entry in self.rows()}
        with self._write.step("place"):
            for directory in sorted({name.partition("/")[0] for name in rows}):
                self._files.place(join(self.rows_at, directory), join(self.version, directory))
            placed = {entry.name for entry in data_entries(self._files.list(self.version))}
            self.require(rows <= placed)
            if placed > rows:
                self._files.remove_files(self.version, placed - rows)
            self._files.remove_tree(self.rows_at)
        self._write.listed = None
        self._write.update(listed=False)

    def partitions(self, columns: tuple[str, ...]) -> dict[Key, str]:
        """Partitions of the staged rows: key to directory name inside :attr:`rows_at`.

        Raises
        ------
        CatalogError
            There are rows in another directory, which no reader would find.
        """
        entries = self.rows()
        found = layout.partition_directories(entries, columns)
        if lost := layout.outside_partitions(entries, found.values()):
            raise CatalogError(
                f"{self._write.path} was not written: its directory {lost} is no partition of its own, and readers "
                "would not find the rows in it.",
                path=self._write.path,
                transaction_id=self._write.state.transaction_id,
                hint=f"Rename the partition columns ({', '.join(columns)}) in a new table, and write to that.",
            )
        return found

    def partition_files(self) -> dict[str, tuple[int, int]]:
        """Directory names of :meth:`partitions`: to the number of staged data files in each, and their bytes."""
        return layout.partition_files(self.rows())

    def partition_locations(self, table: HiveTable, root: str | None = None) -> dict[Key, str]:
        """Same as :meth:`partitions`, with full locations; empty if the metastore does not list partitions."""
        found = self.counted_partitions(table, root)
        return {partition_key(part.values, table.partition_columns): part.location for part in found}

    def counted_partitions(self, table: HiveTable, root: str | None = None) -> list[HivePartition]:
        """Same as :meth:`partition_locations`, with what the metastore would otherwise list the files of each for."""
        if not table.partitioned:
            return []
        root = root or self.version
        entries = self._files.list(root)
        names = layout.partition_directories(entries, table.partition_columns)
        held = layout.partition_files(entries)
        places = {key: join(root, name) for key, name in names.items()}
        return partitions_of(table, places, {key: held.get(name) for key, name in names.items()})

    def files(self) -> list[int]:
        """Number of data files, and their total size in bytes."""
        rows = data_files(self.rows())
        return [len(rows), sum(entry.size for entry in rows)]

    def is_owned(self) -> bool:
        """Whether the version exists, is ours, and is not kept merely for a delayed call."""
        if not layout.owned_by(self._files, self.version, self._write.state.transaction_id):
            return False
        return self._write.metastore.ends_with_driver or layout.quarantined_since(self._files, self.version) is None

    def require(self, is_there: bool) -> None:
        """Refuse to publish a version that an abort or ``clean`` has removed: the table would have no files.

        Raises
        ------
        TransactionAborted
            The staged version is gone.
        """
        if not is_there:
            raise failures.staging_gone(self._write.path, self._write.state.transaction_id)

    def files_in(self, directory: str) -> list[str]:
        """Relative names of the data files below a directory."""
        return [entry.name for entry in data_files(self._files.list(directory))]

    def written_by_others(self) -> list[str]:
        """Names of data files that writers outside twophase put into partitions that should be empty."""
        return self.files_in(self.empty)

    def note_files(self) -> None:
        """Record the names of all files to be published, by which those of other writers are known afterwards."""
        self._files.write_json(join(self.version, layout.STAGED_FILE), self.files_in(self.version), waits=False)

    def added_by_others(self, directory: str) -> list[str]:
        """Files that other writers have added to a directory where the version is, or is published."""
        noted = self._noted(directory)
        return [] if noted is None else self._within(directory, set(self.files_in(directory)) - noted)

    def changed_by_others(self, directory: str) -> list[str]:
        """Same as :meth:`added_by_others`, with the files that they have removed, and those in emptied partitions."""
        noted = self._noted(directory)
        if noted is None:
            return []
        changed = self._within(directory, noted.symmetric_difference(self.files_in(directory)))
        return [*changed, *self._within(self.empty, self.written_by_others())]

    def _noted(self, directory: str) -> set[str] | None:
        """Files of :meth:`note_files`; None if only renames publish, or if an earlier version of twophase staged it."""
        noted: Any = self._files.read_json(join(directory, layout.STAGED_FILE))
        return set(map(str, noted)) if isinstance(noted, list) else None

    def _within(self, directory: str, names: Iterable[str]) -> list[str]:
        return [join(directory, name) for name in sorted(names)]

    def changed(self, files: list[str], result: str) -> CatalogError:
        """Return the error for files of other writers among those of this write.

        Parameters
        ----------
        files : list of str
            Their paths.
        result : str
            What was not done, in half a sentence.
        """
        state = self._write.state
        more = f" and {len(files) - _NAMED} more" if len(files) > _NAMED else ""
        return CatalogError(
            f"{state.path} was changed outside twophase after transaction {state.transaction_id} had published it, so "
            f"{result}. Files that were added or removed: {', '.join(files[:_NAMED])}{more}.",
            path=state.path,
            transaction_id=state.transaction_id,
            left_behind=[self.version],
            hint=f"Look at the table and at these files, then run: twophase recover {state.transaction_id} . What is "
            "staged stays for the retention; then twophase clean removes it.",
        )

    def leftovers(self) -> list[str]:
        """Directories that would remain if the process crashed now."""
        return [directory for directory in (self.version, self.empty) if self._files.exists(directory)]

    # -- the end -------------------------------------------------------------------------------------------------

    def mark_published(self, *, waits: bool = True) -> None:
        """Record beside the files that they were published, as the metastore may not record it permanently.

        Parameters
        ----------
        waits : bool
            Whether the mark must survive a power cut: not if the files themselves show it until the end is recorded.
        """
        if self._files.exists(self.version) and layout.read_published(self._files, self.version) is None:
            with self._write.step("mark"):
                layout.mark_published(self._files, self.version, self._write.state.transaction_id, waits=waits)

    def quarantine(self) -> None:
        """Keep the files as long as those of a replaced version: a delayed call may still point the table at them."""
        for directory in (self.version, self.empty):
            if layout.owned_by(self._files, directory, self._write.state.transaction_id):
                layout.quarantine(self._files, directory, self._write.state.transaction_id)

    def remove(self) -> None:
        """Remove the version and its empty directory, each only if it carries our stamp."""
        store = self._write.store
        if layout.owned_by(self._files, self.version, self._write.state.transaction_id):
            if added := self.added_by_others(self.version):
                # They came between the look of a compensation and its call.
                self.quarantine()
                raise self.changed(added, "its staged files were not removed")
            self._files.remove_tree(self.version, layout.REMOVED_LAST)
        else:
            store.remove_half_made(self.version)
        if not self.remove_empty():
            store.remove_half_made(self.empty)
        store.remove_if_unused(self.version)

    def remove_empty(self) -> bool:
        """Remove the empty directory if it is ours; rows that others wrote to it are kept."""
        if not layout.owned_by(self._files, self.empty, self._write.state.transaction_id):
            return False
        if self.written_by_others():
            # It is removed after the retention, like a replaced version.
            layout.mark_published(self._files, self.empty, self._write.state.transaction_id)
        else:
            self._files.remove_tree(self.empty, layout.REMOVED_LAST)
        return True

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        """The staged rows, for a later statement of the transaction."""
        definition = self._write.definition
        if written_as_files(definition):
            return ReadSource("files", provider=definition.provider, location=self.version, definition=definition)
        return self.overlay({})

    def read_partitions(self) -> ReadSource | None:
        """Same as :meth:`read_source`, for a new table: Spark types partition values correctly only through a table."""
        stored = self._write.state.definition
        is_plain = not stored.partition_columns and not is_redacted(stored)
        return self.read_source() if is_plain or not self._write.metastore.read_by_session else self.overlay({})

    def overlay(self, partitions: Mapping[Key, str], location: str | None = None) -> ReadSource | None:
        """Create a hidden table over the staged state, which Spark reads through its session catalog."""
        write = self._write
        if not write.metastore.read_by_session:
            return None
        name = write.hidden.name("read")
        if write.hidden.find("read") is None:
            with write.step("hidden_table"):
                table = write.table(name=name, kind=EXTERNAL, location=location)
                write.hidden.create("read", table)
                found = partitions_of(table, partitions) if partitions else self.counted_partitions(table)
                write.metastore.add_partitions(table, found)
        is_by_name = write.state.brings or write.state.fits is not None
        definition = write.definition if is_by_name else None  # Otherwise the statement knows it.
        return ReadSource("session_table", name=ObjectPath.of(write.database, name), definition=definition)


def written_as_files(definition: TableDefinition) -> bool:
    """Whether ``DataFrameWriter.save`` can write the table; bucketed tables and SerDes need Spark's own insert."""
    return definition.provider in FILE_PROVIDERS and definition.bucketing is None


def _save(df: Any, definition: TableDefinition, location: str, *, marked: bool) -> None:
    """Append the rows to a directory as files of the definition's format."""
    options = {**({} if marked else UNMARKED), **definition.options}
    writer = df.write.format(definition.provider).options(**options).mode("append")
    if definition.partition_columns:
        writer = writer.partitionBy(*definition.partition_columns)
    writer.save(location)
