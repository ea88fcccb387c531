"""What all Hive participants share: the staged version, its owner stamp, the write, and the way back.

A recipe is a subclass. Its document holds::

    catalog, path, purpose, transaction_id, ordinal      who and what
    metastore                                            over which one: it is judged nowhere else
    recipe                                               which subclass
    definition                                           of the table after the publish, secrets taken out
    home                                                 where stock Spark would have put the files
    version                                              where the files are staged
    before                                               the table as it was at the offer; None: there was none
    effect                                               create, replace or insert, as the metastore will see it
    inherit                                              a directory whose files belong to the new version too
    overwrite                                            scope of an INSERT OVERWRITE
    base, first                                          version of the one that this builds on, of the first
    replaces                                             whether rows that were there end with the publish
    appends                                              whether it rests on nothing but the table's layout
    append                                               how it is to be published, as an option says
    adopts                                               version of an earlier append, whose rows this one publishes
    alone                                                whether this publish is all that its transaction does
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from twophase.catalog import TwoPhaseCatalogTable
from twophase.catalogs.files import Files, data_files, join, parent, same
from twophase.catalogs.hive import layout, linking
from twophase.catalogs.hive.definitions import (
    FILE_PROVIDERS,
    is_redacted,
    redacted,
    same_layout,
    to_table,
    with_secrets,
)
from twophase.catalogs.hive.identity import STORE
from twophase.catalogs.hive.metastore import EXTERNAL, MANAGED, HivePartition, HiveTable, Metastore
from twophase.catalogs.hive.partitions import Key, by_key
from twophase.catalogs.hive.writing import save, written_as_files
from twophase.catalogs.rows import aligned
from twophase.errors import CatalogError, ConfigurationError, TransactionAborted, WriteConflictError
from twophase.failpoints import step
from twophase.model import Level, ObjectPath, Outcome, OverwriteScope, Purpose, TableDefinition
from twophase.reading import ReadSource
from twophase.redaction import logger

if TYPE_CHECKING:
    from twophase.catalogs.hive.catalog import HiveCatalog

_log = logger("twophase")

CREATE, REPLACE, INSERT = "create", "replace", "insert"


class HiveParticipant(TwoPhaseCatalogTable):
    """One staged version of a Hive table.

    Parameters
    ----------
    catalog : HiveCatalog
    document : mapping
    definition : TableDefinition, optional
        The live definition with its secrets; without it the one of the document, where they are missing.
    """

    #: Name of the recipe: part of the document and of every failpoint.
    recipe: ClassVar[str]
    #: Whether the version comes with Hadoop's ``_SUCCESS`` to a place that somebody may look at for it.
    keeps_mark: ClassVar[bool] = False

    #: Whether the publish points a table that is there at the version. A server that carries it out late, after a
    #: recovery has rolled a dead driver's statement back, would make the table one without files; not every server
    #: knows the fence, and none has one for partitions.
    changes_table: ClassVar[bool] = False
    #: Whether the publish is a call that names the stamp which it expects.
    fences: ClassVar[bool] = False

    _live: TableDefinition | None = None
    #: The hidden tables that this object has made; None where another process may have made more.
    _made: set[str] | None = None
    _told = False
    #: Whether the publish was called for, and not answered; None where another process may have called.
    _called: bool | None = None

    def __init__(
        self, catalog: HiveCatalog, document: Mapping[str, Any], definition: TableDefinition | None = None
    ) -> None:
        super().__init__(catalog, document)
        self._live = definition

    # -- facts ---------------------------------------------------------------------------------------------------

    @property
    def hive(self) -> HiveCatalog:
        """The live catalog."""
        from twophase.catalogs.hive.catalog import HiveCatalog

        catalog = self.catalog
        assert isinstance(catalog, HiveCatalog)
        return catalog

    @property
    def metastore(self) -> Metastore:
        return self.hive.metastore

    @property
    def files(self) -> Files:
        return self.hive.files

    @property
    def database(self) -> str:
        return self.path.database

    @property
    def home(self) -> str:
        """Where stock Spark would have put the files."""
        return str(self.document["home"])

    @property
    def version(self) -> str:
        """Directory of the staged files."""
        return str(self.document["version"])

    @property
    def empty(self) -> str:
        """A directory without rows beside the version, for partitions that must exist but hold nothing."""
        return layout.empty_beside(self.version)

    def written_past_us(self) -> list[str]:
        """Files that sessions without twophase wrote to partitions that were to hold nothing, by their names."""
        return self.files_in(self.empty)

    def files_in(self, directory: str) -> list[str]:
        """Files with rows below a directory, by their names there."""
        return [entry.name for entry in data_files(self.files.list(directory))]

    @property
    def effect(self) -> str:
        """``create``, ``replace`` or ``insert``, as the metastore will see it."""
        return str(self.document["effect"])

    @property
    def before(self) -> Mapping[str, Any] | None:
        """The table as it was at the offer."""
        found: Mapping[str, Any] | None = self.document["before"]
        return found

    @property
    def definition(self) -> TableDefinition:
        """The table after the publish.

        Raises
        ------
        CatalogError
            It needs secrets that only the statement's own process had, and no hidden table of ours in the metastore.
        """
        if self._live is not None:
            return self._live
        stored = self._with_secrets(self.stored_definition)
        if is_redacted(stored):
            raise CatalogError(
                f"The options of {self.path} hold secrets, which are never written down: they ended with the process.",
                path=self.path,
                transaction_id=self.transaction_id,
                hint="Run the statement again.",
            )
        return stored

    def _with_secrets(self, stored: TableDefinition) -> TableDefinition:
        if not is_redacted(stored):
            return stored
        found = self.metastore.get_table(self.database, self.hidden("table"))
        if found is None or found.stamp != self.transaction_id:
            return stored
        return with_secrets(stored, self.hive.definition_of(found))

    @property
    def stored_definition(self) -> TableDefinition:
        """The table after the publish, without secrets."""
        return TableDefinition.from_document(self.document["definition"])

    @property
    def scope(self) -> OverwriteScope | None:
        """Which rows an INSERT OVERWRITE replaces; None for everything else."""
        found = self.document.get("overwrite")
        return None if found is None else OverwriteScope.from_document(found)

    @property
    def defines(self) -> bool:
        """Whether the publish gives the table a new definition, which has no statistics yet."""
        return self.effect != INSERT

    @property
    def shares_appends(self) -> bool:
        return False  # Its publish points at a version that holds the old files, too: another append would be lost.

    def hidden(self, role: str) -> str:
        """Name of one of this participant's hidden tables."""
        return layout.hidden_name(role, self.transaction_id, int(self.document["ordinal"]))

    def step(self, name: str) -> Any:
        """The failpoint of one step of this recipe."""
        return step(f"hive.{self.recipe}.{name}")

    def target(self, *, name: str | None = None, kind: str = MANAGED, location: str | None = None) -> HiveTable:
        """The metastore's table of the definition, carrying our stamp."""
        path = ObjectPath.of(self.database, name or self.path.name)
        return to_table(path, self.definition, kind=kind, location=location or self.version).with_stamp(
            self.transaction_id
        )

    def current(self) -> HiveTable | None:
        """The table as the metastore has it now."""
        return self.metastore.get_table(self.database, self.path.name)

    def set_level(self, level: Level, reason: str | None = None) -> None:
        """Say what the publish guarantees; for the user, in words, where it is below 3."""
        self.document["level"] = int(level)
        self.document["level_reason"] = reason

    def say_whether_undone(self, can_undo: bool) -> None:
        """Say whether the publish can be undone; where nothing is said, it can."""
        self.document["can_undo"] = can_undo

    # -- staging -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        with self.step("stage"):
            try:
                if not self.files.exists(self.version):
                    self._made = set()
                    self._called = False
                layout.write_stamp(self.files, self.version, self.stamp_facts())
            except OSError as error:
                raise CatalogError(
                    f"{self.path} was not written: its staging directory {self.version} cannot be made ({error}).",
                    path=self.path,
                    transaction_id=self.transaction_id,
                    hint="Make the directory that holds it, with the right to write there, or name another place.",
                ) from error

    def stamp_facts(self) -> dict[str, Any]:
        """What the owner stamp says."""
        facts = {key: self.document[key] for key in ("transaction_id", "ordinal", "path", "catalog", STORE)}
        return {**facts, "purpose": self.purpose.value}

    def write(self, df: Any) -> None:
        rows = aligned(df, self.definition.schema.names)
        with self.step("write"):
            if written_as_files(self.definition):
                self.files.make_ready(self.version, rows.sparkSession.conf)
                save(rows, self.definition, self.version, marked=self.keeps_mark)
            else:
                self._insert_hidden(rows)

    def _insert_hidden(self, rows: Any) -> None:
        """Bucketed tables and SerDes: Spark's own insert into a hidden table over the staging directory."""
        writer = self.hive.environment.table_writer
        if writer is None or not self.metastore.read_by_session:
            raise ConfigurationError(
                f"{self.path} is bucketed or a SerDe table: only the session's metastore can write its files.",
                path=self.path,
            )
        name = self.hidden("write")
        with self.step("hidden_table"):
            self.make_hidden(name, self.target(name=name, kind=EXTERNAL))
        writer.insert(rows, self.database, name)
        with self.step("drop_hidden"):
            self.metastore.forget_table(self.database, name)

    def make_hidden(self, name: str, table: HiveTable) -> None:
        """Create a hidden table; one of an earlier try of ours is made anew."""
        self.forget_hidden(name)
        self._create_hidden(name, table)

    def _create_hidden(self, name: str, table: HiveTable) -> None:
        if self._made is not None:
            self._made.add(name)
        self.metastore.create_table(table)

    def forget_hidden(self, *names: str) -> None:
        """Drop the metadata of hidden tables of ours. Idempotent."""
        for name in names:
            if self._made is not None and name not in self._made:
                continue
            found = self.metastore.get_table(self.database, name)
            if found is not None and found.stamp == self.transaction_id:
                self.metastore.forget_table(self.database, name)

    # -- preparing -----------------------------------------------------------------------------------------------

    def inherit(self) -> None:
        """Give the version the files that the statement keeps: more names for the same files, no copy."""
        source = self.document.get("inherit")
        if source is None or self.document.get("inherited"):
            return
        columns = tuple(self.stored_definition.partition_columns)
        with self.step("link"):
            keep = (
                linking.keep_all if self.scope is None else linking.outside(self.scope, columns, self.new_keys(columns))
            )
            self.document["inherit_mark"] = self.files.fingerprint(source)
            linking.link_tree(self.files, source, self.version, keep, self.transaction_id)
        self.document["inherited"] = True

    def new_keys(self, columns: tuple[str, ...]) -> dict[tuple[str, ...], str]:
        """Partitions that the staged rows fell into: key to directory name inside the version."""
        return layout.partition_directories(self.files.list(self.version), columns)

    def within_reach(self, table: HiveTable, new: Collection[Key]) -> dict[Key, HivePartition]:
        """The partitions that the statement may change, as the metastore has them now.

        Parameters
        ----------
        table : HiveTable
        new : collection of tuple
            Those that get new rows. No other one is asked for unless the statement may empty it: there may be many.
        """
        scope, columns = self.scope, table.partition_columns
        if self.purpose is Purpose.INSERT_INTO or (scope is not None and scope.dynamic):
            return self.registered(table, new)
        if self.purpose is not Purpose.INSERT_OVERWRITE or scope is None or not scope.static_partition:
            return by_key(table, self.metastore.list_partitions(table))
        found = by_key(table, self.metastore.partitions_within(table, linking.static_values(scope, columns)))
        return {**found, **self.registered(table, [key for key in new if key not in found])}

    @property
    def named_partition(self) -> Key | None:
        """The partition that an INSERT OVERWRITE names in full: it is replaced even by no rows."""
        columns = tuple(self.stored_definition.partition_columns)
        given = {} if self.scope is None else linking.static_values(self.scope, columns)
        return tuple(given[column] for column in columns) if columns and len(given) == len(columns) else None

    def written_partitions(self, based: Collection[Key] = ()) -> frozenset[str] | None:
        """The partitions that the publish changes, by their names; None where they are not known from the rows alone.

        Parameters
        ----------
        based : collection of tuple
            Those that an earlier statement of the transaction wrote.
        """
        columns, scope = tuple(self.stored_definition.partition_columns), self.scope
        if not columns or self.effect != INSERT or self.before is None or not self.before["tracked"]:
            return None
        named = self.named_partition
        if self.purpose is Purpose.INSERT_OVERWRITE and named is None and (scope is None or not scope.dynamic):
            return None
        keys = {*self.new_keys(columns), *based, *(() if named is None else (named,))}
        return frozenset(layout.partition_name(key, columns) for key in keys)

    def registered(self, table: HiveTable, keys: Collection[Key]) -> dict[Key, HivePartition]:
        """Some partitions as the metastore has them now, without those that it has not."""
        return by_key(table, self.metastore.get_partitions(table, keys)) if keys else {}

    def check_inherited(self) -> None:
        """Refuse when files came to or went from the directory whose files were taken over."""
        marks = self.document.get("inherit_mark")
        if marks is not None and not linking.is_marked(self.files, self.document["inherit"], marks):
            raise self.conflict("files were written to it meanwhile, past the metastore")

    def replaced(self, now: HiveTable) -> Iterator[str]:
        """The directories of the rows that end with the publish."""
        if now.partitioned:
            yield from (part.location for part in self.metastore.list_partitions(now))
        else:
            yield str(now.location)

    def check_replaced(self, directories: Iterable[str]) -> None:
        """Refuse where files came to or went from what this replaces: its query may have read the table without them.

        The stamp was written before the rows, on the filesystem whose clock tells the time of each change; of several
        statements of one transaction that of the first, for the others build on what that found.
        """
        if not self.document.get("replaces", self.purpose is not Purpose.INSERT_INTO):
            return
        first = str(self.document.get("first") or self.version)
        began = self.files.change_mark(join(first, layout.STAMP_FILE))
        if began is None or began < 0:
            return  # No filesystem that tells: the partitions need not be listed for it.
        for directory in directories:
            changed = self.files.last_change(directory)
            if changed is not None and changed > began:
                raise self.conflict(f"files were written to {directory} meanwhile, past the metastore")

    def check_unchanged(self) -> HiveTable:
        """The table now, which must be what it was at the offer.

        Raises
        ------
        WriteConflictError
            Somebody else changed or dropped it.
        """
        now, before = self.current(), self.before
        assert before is not None
        if now is None:
            raise self.conflict("it was dropped meanwhile")
        if self.document.get("appends"):
            self._check_still_ours(now)
        elif not self.is_unmoved(now) or now.stamp != before["stamp"]:
            raise self.conflict("another writer published it meanwhile")
        if not same_layout(self._redacted(self.hive.definition_of(now)), self._redacted(self.before_definition)):
            raise self.conflict("its columns or options were changed meanwhile")
        return now

    def _check_still_ours(self, now: HiveTable) -> None:
        """Rows come on top of whatever others published meanwhile, unless that is at a place of the user's."""
        moved = not self.is_unmoved(now)
        if now.kind != MANAGED or (moved and not self.hive.places(self.path).is_tables(str(now.location))):
            raise self.conflict("it was given a LOCATION meanwhile")

    def is_unmoved(self, now: HiveTable) -> bool:
        """Whether the table's rows are where they were at the offer, as far as its directory tells."""
        return self.before is not None and same(now.location, self.before["location"])

    def _redacted(self, definition: TableDefinition) -> TableDefinition:
        # Both sides are: the document may come from a session that took other names for secrets.
        return redacted(definition, self.hive.conf)

    @property
    def before_definition(self) -> TableDefinition:
        """Definition of the table as it was, without secrets."""
        assert self.before is not None
        return TableDefinition.from_document(self.before["definition"])

    def refuse_own_formats(self, table: HiveTable, partitions: Mapping[Key, HivePartition]) -> None:
        """Refuse rows in the table's format where the old ones are read in another: one of the two would be misread.

        Raises
        ------
        CatalogError
            A partition has a SerDe, or settings of one, that the table has not.
        """
        for key, partition in partitions.items():
            if self.metastore.has_own_format(table, partition):
                raise CatalogError(
                    f"{self.path} was not written: its partition {'/'.join(key)} has a SerDe or SERDEPROPERTIES of its "
                    "own, and Spark writes in those of the table.",
                    path=self.path,
                    transaction_id=self.transaction_id,
                    hint="Overwrite the partition, or give it the table's SERDEPROPERTIES.",
                )

    def conflict(self, why: str) -> WriteConflictError:
        """The error of a lost race."""
        return WriteConflictError(
            f"{self.path} was not written: {why}.",
            path=self.path,
            transaction_id=self.transaction_id,
            hint="Run the statement again: it will see the new state.",
        )

    def check_staged(self) -> None:
        """Refuse to publish what an abort or ``clean`` has removed: a table without its files helps nobody.

        Raises
        ------
        TransactionAborted
            The staged version is gone.
        """
        if not self.is_staged():
            raise TransactionAborted(
                f"What was staged for {self.path} is gone: the statement was rolled back meanwhile.",
                path=self.path,
                transaction_id=self.transaction_id,
            )

    def is_staged(self) -> bool:
        """Whether the staged version is there, ours, and not kept only for a call that comes late."""
        if not layout.owned_by(self.files, self.version, self.transaction_id):
            return False
        return self.metastore.ends_with_driver or not layout.is_withdrawn(self.files, self.version)

    def persist(self) -> None:
        self.files.persist(self.version, self.empty, below=parent(self.home))

    # -- after the decision --------------------------------------------------------------------------------------

    def is_ours(self, table: HiveTable | None) -> bool:
        """Whether the table is what this very participant publishes."""
        return table is not None and same(table.location, self.version)

    def outcome(self) -> Outcome:
        try:
            published = self.is_ours(self.current()) or self._was_published()
        except Exception:  # an unreachable store is no answer; the coordinator keeps everything
            return Outcome.UNKNOWN
        return Outcome.PUBLISHED if published else Outcome.NOT_PUBLISHED

    def _was_published(self) -> bool:
        """Published, and since then replaced by another writer or marked by us."""
        marks = (layout.RETIRED_FILE, layout.PUBLISHED_FILE)
        return any(self.files.exists(join(self.version, mark)) for mark in marks)

    def abort(self) -> None:
        # What came late before this abort, or an abort that died, may not have been carried through yet.
        if self.came_late() or (self.metastore.ends_with_driver and self.was_published()):
            return
        late = self.may_be_published_late()
        if late and self.changes_table:
            with self.step("withdraw"):
                self.withdraw()
        if late and self.fences and self.before is not None and self.before["stamp"] is not None:
            with self.step("fence"):
                self.metastore.fence_table(self.database, self.path.name, self.before["stamp"])
            if self.came_late():
                return
        self.undo()
        if self.came_late() or (late and self.changes_table):
            return
        with self.step("remove_staging"):
            self.remove_staging()

    def came_late(self) -> bool:
        """Whether the call of a driver that was rolled back has arrived: the table is what it published.

        Asked after each thing that lets a later call find nothing, and before files go or move.
        """
        if self.metastore.ends_with_driver or not self.was_published():
            return False
        self.finish()
        if self._called is not False:
            _log.warning(
                "%s was published by a call of transaction %s that the metastore carried out late: its rows are there, "
                "whatever is recorded of the transaction.",
                self.path,
                self.transaction_id,
            )
        return True

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        """A call that publishes. One that was answered, even by a refusal, is not under way; an earlier one may be."""
        before, self._called = self._called, True
        try:
            yield
        except TransactionAborted:
            self._called = before
            raise
        self._called = before

    def may_be_published_late(self) -> bool:
        """Whether a metastore server may still be about to publish this, for a driver that no longer waits for it."""
        if self.metastore.ends_with_driver:
            return False
        # What prepare() found is on the timeline since the decision, and nothing is published before that.
        return "level" in self.document if self._called is None else self._called

    def withdraw(self) -> None:
        """Keep the files for as long as those of a replaced version: whatever the server does, the table has rows."""
        for directory in (self.version, self.empty):
            if layout.owned_by(self.files, directory, self.transaction_id):
                layout.withdraw(self.files, directory, self.transaction_id)

    def was_published(self) -> bool:
        """Whether the files belong to the table.

        Raises
        ------
        CatalogError
            It cannot be learned.
        """
        outcome = self.outcome()
        if outcome is Outcome.UNKNOWN:
            raise CatalogError(
                f"The metastore of {self.hive.name} does not say if {self.path} was published: nothing was removed.",
                path=self.path,
                transaction_id=self.transaction_id,
                left_behind=[self.version],
            )
        return outcome is Outcome.PUBLISHED

    def undo(self) -> None:
        """Take back what the recipe did beside staging files; before the files go. Idempotent."""
        with self.step("undo"):
            self.forget_hidden(*map(self.hidden, layout.HELPERS))

    def restore_kind(self) -> None:
        """A managed table that was made external on its way aside is managed again."""
        now, before = self.current(), self.before
        if now is None or before is None or self.is_ours(now):
            return
        if before["kind"] == MANAGED and now.kind == EXTERNAL and now.stamp == before["stamp"]:
            self.metastore.make_managed(self.database, self.path.name)

    def remove_staging(self) -> None:
        """Remove the version and what belongs to it, each only with our own stamp."""
        if layout.owned_by(self.files, self.version, self.transaction_id):
            self.files.remove_tree(self.version)
        else:
            self.hive.remove_half_made(self.version)
        if not self.remove_empty():
            self.hive.remove_half_made(self.empty)
        self.hive.remove_if_unused(self.version)

    def finish(self) -> None:
        with self.step("retire"):
            self.retire()
        with self.step("drop_hidden"):
            self.forget_hidden(*map(self.hidden, layout.HELPERS))
        if self.effect != INSERT or not self._told:
            self.metastore.changed(self.database, self.path.name, written=True, fresh=self.defines)

    def retire(self) -> None:
        """Mark what was replaced: only what bears a mark is ever removed."""
        before = self.before
        if before is not None and not same(before["location"], self.version):
            self.retire_table(before["location"])

    def retire_table(self, location: str) -> None:
        """Mark a replaced table's directory; one that a SET LOCATION named is the user's and stays as it is."""
        if self._may_end(location) and self.hive.places(self.path).is_tables(location):
            layout.retire(self.files, location, self.transaction_id)

    def _may_end(self, location: str) -> bool:
        """Whether what lies at a replaced place is not the user's own: a managed table's, or a version of ours.

        Through HiveServer2 each table with a LOCATION is EXTERNAL, also where twophase has made the place.
        """
        assert self.before is not None
        if self.before["kind"] == MANAGED:
            return True
        stamp = layout.stamp_above(self.files, location)
        return stamp is not None and stamp.get("path") == self.path.to_document()

    def retire_partitions(self, replaced: Mapping[Key, str]) -> None:
        """Mark replaced partitions; one at a LOCATION of the user's stays as it is."""
        assert self.before is not None
        columns = tuple(self.before_definition.partition_columns)
        places, root = self.hive.places(self.path), str(self.before["location"])
        for key, location in replaced.items():
            if self._may_end(location) and places.is_partitions(location, key, columns, root):
                layout.retire(self.files, location, self.transaction_id)

    def remove_empty(self) -> bool:
        """Remove the directory that stood for no rows, where it is ours; rows that are there now belong to others."""
        if not layout.owned_by(self.files, self.empty, self.transaction_id):
            return False
        if self.written_past_us():
            layout.mark_published(self.files, self.empty, self.transaction_id)  # It goes as a replaced version does.
        else:
            self.files.remove_tree(self.empty)
        return True

    def mark_published(self) -> None:
        """Say beside the files that they were published, where nothing in the metastore would tell it for good."""
        if self.files.exists(self.version) and layout.read_published(self.files, self.version) is None:
            with self.step("mark"):
                layout.mark_published(self.files, self.version, self.transaction_id)

    def tell(self) -> None:
        """Make the session see the new state."""
        self._told = True
        before = self.before
        if before is not None and before["tracked"] and self.stored_definition.partition_columns:
            self.files.touch(str(before["location"]))  # See HiveCatalog.table_version.
        self.metastore.changed(self.database, self.path.name, written=self.effect == INSERT)

    def left_behind(self) -> list[str]:
        return [directory for directory in (self.version, self.empty) if self.files.exists(directory)]

    # -- reading inside the transaction --------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        definition = self.definition
        if definition.provider in FILE_PROVIDERS and definition.bucketing is None:
            return ReadSource("files", provider=definition.provider, location=self.version, definition=definition)
        return self.overlay({})

    def overlay(self, partitions: Mapping[tuple[str, ...], str], location: str | None = None) -> ReadSource | None:
        """A hidden table over the staged state, for Spark's session catalog to read."""
        if not self.metastore.read_by_session:
            return None
        name = self.hidden("read")
        if self.metastore.get_table(self.database, name) is None:
            with self.step("hidden_table"):
                table = self.target(name=name, kind=EXTERNAL, location=location)
                self._create_hidden(name, table)
                found = partitions or self._staged_partitions(table)
                self.metastore.add_partitions(table, self.hive.partitions_of(table, found))
        return ReadSource("session_table", name=ObjectPath.of(self.database, name))

    def _staged_partitions(self, table: HiveTable) -> dict[tuple[str, ...], str]:
        names = self.new_keys(table.partition_columns) if table.partitioned else {}
        return {key: join(self.version, name) for key, name in names.items()}
