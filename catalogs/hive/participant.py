"""The Hive catalog's participant: one write of one table inside a transaction.

It stages the rows (:mod:`~twophase.catalogs.hive.staging`) and leaves the rest to the publisher that was chosen when
the write was planned (:mod:`~twophase.catalogs.hive.planning`, :mod:`~twophase.catalogs.hive.publish`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import ReadSource
from twophase.catalog.schema_versions import SchemaChange
from twophase.catalogs.hive import replaced
from twophase.catalogs.hive.definitions import fingerprint
from twophase.catalogs.hive.hard_links import CannotLinkError
from twophase.catalogs.hive.publish import Publisher, publisher_of
from twophase.catalogs.hive.publish.by_rows import Choice
from twophase.catalogs.hive.publish.new_columns import NewColumns
from twophase.catalogs.hive.schema import changes
from twophase.catalogs.hive.state import ALTER, CREATE, REPLACE, PublisherName, WriteState
from twophase.catalogs.hive.store import OverHive
from twophase.catalogs.hive.tables import HiveTable
from twophase.catalogs.hive.write import TableWrite
from twophase.model import Level, Outcome, TableDefinition


class HiveParticipant(TwoPhaseCatalogTable):
    """One staged version of a Hive table.

    Parameters
    ----------
    catalog : HiveCatalog
    document : mapping
        Document of a :class:`~twophase.catalogs.hive.state.WriteState`, in the current format or an earlier one.
    definition : TableDefinition, optional
        The live definition, including secrets; by default the document's, from which they were removed.
    table : HiveTable, optional
        The table as it was when the write was planned, if this process has just done so.
    options : mapping of str to str, optional
        As of :class:`~twophase.catalogs.hive.write.TableWrite`.
    """

    _write: TableWrite | None = None
    _publisher: Publisher | None = None
    #: The choice that this object made from the staged rows.
    _choice: Choice | None = None

    def __init__(
        self,
        catalog: Catalog,
        document: Mapping[str, Any],
        definition: TableDefinition | None = None,
        table: HiveTable | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(catalog, document)
        self._definition = definition
        self._planned = table
        self._options = options
        self._write = self._open()  # Refuses a document of a newer version immediately.

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        super().__setstate__(state)
        self._definition = self._planned = self._options = None

    def bind(self, catalog: Catalog) -> TwoPhaseCatalogTable:
        self._write = self._publisher = self._choice = None
        return super().bind(catalog)

    @property
    def table_write(self) -> TableWrite:
        """The write of this participant."""
        if self._write is None:
            self._write = self._open()
        return self._write

    def _open(self) -> TableWrite:
        catalog = self.catalog
        assert isinstance(catalog, OverHive)
        state = WriteState.from_document(self.document)
        return TableWrite(catalog.store, state, self._definition, self._planned, self._options)

    @property
    def publisher(self) -> Publisher:
        """The publisher of the write; it may be undecided until the rows are staged."""
        if self._publisher is None:
            self._publisher = publisher_of(self.table_write)
        return self._publisher

    @property
    def version(self) -> str:
        """Directory of the staged files."""
        return self.table_write.state.version

    def _decided(self) -> Publisher:
        """The publisher, chosen from the staged rows if it was still undecided."""
        if self.table_write.state.publisher is PublisherName.BY_ROWS:
            self._choice = Choice(self.table_write)
            self._choice.make()
            self._changed()
            self._publisher = None
        return self.publisher

    def _changed(self) -> None:
        self.document = self.table_write.state.to_document()

    # -- before the decision -------------------------------------------------------------------------------------

    def begin(self) -> None:
        try:
            self.publisher.begin()
        finally:
            self._changed()

    def write(self, df: Any) -> None:
        fits = self.table_write.state.fits
        if fits is not None:
            df = df.selectExpr(*fits)
        publisher = self.publisher
        publisher.staging.write(df, marked=publisher.keeps_mark, is_renamed=publisher.renames_files)
        self._changed()

    def prepare(self) -> None:
        try:
            self._prepare()
        finally:
            self._changed()

    def _prepare(self) -> None:
        if self.table_write.state.brings:
            NewColumns(self.table_write).join()
        publisher = self._decided()
        try:
            publisher.prepare()
        except CannotLinkError:
            if self._choice is None:
                raise
            self._choice.without_links()
            self._publisher = None
            self.publisher.prepare()
        if self.publisher.notes_files:
            self.publisher.staging.note_files()
        self._note_level()

    def _note_level(self) -> None:
        write = self.table_write
        if self._adds_columns and write.state.level is Level.ATOMIC:
            write.reach(
                Level.REVERSIBLE,
                f"The new columns of {write.path} come in a metastore call of their own, just before their rows.",
            )

    @property
    def _adds_columns(self) -> bool:
        """Whether new columns come in a metastore call before that of the rows."""
        return self.table_write.state.brings and not self.publisher.carries_columns

    def persist(self) -> None:
        self.publisher.staging.persist()

    @property
    def shares_appends(self) -> bool:
        return self._decided().shares_appends and not self._adds_columns

    def reservation_scope(self) -> frozenset[str] | None:
        return None if self._adds_columns else self._decided().reservation_scope()

    def replaced_state(self) -> Any:
        found, state = self._decided().replaced_state(), self.table_write.state
        defines = state.effect in (CREATE, REPLACE, ALTER) or state.brings
        if found is None:
            former = state.before.definition if defines and state.before else None
            return None if self.purpose.drops else replaced.unknown(former)
        document = replaced.to_document(found, self.table_write.files, self.version)
        if not self.purpose.drops and not isinstance(found, replaced.Added | replaced.Defined):
            document[replaced.LEFT] = replaced.content_of(self.table_write.files, self.version)
        if defines:
            document[replaced.LEFT_DEFINITION] = fingerprint(state.definition)
        return document

    def schema_change(self) -> SchemaChange | None:
        return changes.schema_change(self.table_write.metastore, self.table_write.state)

    # -- after the decision --------------------------------------------------------------------------------------

    def commit(self) -> None:
        publisher = self._decided()
        if self._adds_columns and publisher.outcome() is not Outcome.PUBLISHED:
            NewColumns(self.table_write).add()
        publisher.publish()

    def outcome(self) -> Outcome:
        return self.publisher.outcome()

    def finish(self) -> None:
        self._decided().finish()
        if self._adds_columns:
            NewColumns(self.table_write).finish()

    def compensate(self) -> bool:
        publisher = self._decided()
        publisher.refuse_changed()
        return publisher.compensate()

    def abort(self) -> None:
        roll_back(self.publisher)

    # -- reading -------------------------------------------------------------------------------------------------

    def read_source(self) -> ReadSource | None:
        return self._decided().read_source()

    def left_behind(self) -> list[str]:
        return self.publisher.leftovers()


def roll_back(publisher: Publisher) -> None:
    """Remove the staged files of a write, unless a delayed call has published them or may still do so."""
    write, store = publisher.write, publisher.metastore
    if not publisher.stages:
        return
    # A delayed call that arrived before this abort, or an abort that crashed, may not have been completed yet.
    if publisher.has_arrived() or (store.ends_with_driver and publisher.was_published()):
        return
    decided = write.state.level is not None
    late = not store.ends_with_driver and write.calls.may_be_under_way(decided=decided)
    if late and publisher.changes_table:
        with write.step("quarantine"):
            publisher.staging.quarantine()
    if late and publisher.fences:
        publisher.fence()
        if publisher.has_arrived():
            return
    publisher.undo()
    if write.state.brings and not publisher.carries_columns:
        NewColumns(write).take_back(late=late)  # After the rows.
    if publisher.has_arrived() or (late and publisher.changes_table):
        return
    with write.step("remove_staging"):
        publisher.staging.remove()
