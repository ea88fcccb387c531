"""Optional interfaces of a catalog, like the ``Supports...`` mix-ins of Spark's connectors; found by ``isinstance``.

Each extends :class:`~twophase.catalog.base.Catalog`, as Spark's ``StagingTableCatalog`` extends ``TableCatalog``:
``class MyCatalog(SupportsDelete, SupportsGroupPublish)``. An operation that a catalog does not implement is refused.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from twophase.catalog.base import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import Deletion, Filter, ReadSource
from twophase.catalog.schema_versions import SchemaVersion
from twophase.catalog.services import Leftover, Rewrite, TableChange
from twophase.catalog.snapshots import Change, OpenSnapshot
from twophase.errors import AtomicityNotSupportedError, CatalogError
from twophase.model import ObjectPath, TableDefinition, WriteContext

if TYPE_CHECKING:
    import sqlalchemy as sa

_Interface = TypeVar("_Interface")


def required(catalog: Catalog, interface: type[_Interface], problem: str, path: object) -> _Interface:
    """Return the catalog, typed as an optional interface, or raise if it does not implement it.

    Parameters
    ----------
    catalog : Catalog
    interface : type
        An interface of this module.
    problem : str
        The limitation of a catalog without it, as a verb and its object: ``cannot rename tables``.
    path : object
        The requested table or database.

    Raises
    ------
    AtomicityNotSupportedError
        The catalog does not implement the interface.
    """
    if isinstance(catalog, interface):
        return catalog
    raise AtomicityNotSupportedError(f"Catalog {catalog.name} {problem}.", path=path)


def interfaces() -> list[type[Catalog]]:
    """Return all optional interfaces."""
    return [found for name, found in globals().items() if name.startswith("Supports")]


class SupportsAlterDatabase(Catalog):
    """A catalog whose databases can be altered."""

    @abstractmethod
    def alter_database(self, database: str, changes: Mapping[str, str | None]) -> None:
        """Atomically set properties of a database (including ``comment``), and remove those that are None.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        changes : mapping of str to str or None
            New values by name; None removes a property. Other properties are left unchanged.

        Raises
        ------
        DatabaseNotExistError
            It does not exist.
        CatalogError
            The catalog does not support the change; nothing was changed.
        """


class SupportsRename(Catalog):
    """A catalog that can rename its tables."""

    @abstractmethod
    def rename_table(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """Rename a table within the catalog.

        Parameters
        ----------
        path : ObjectPath
            The table.
        new_path : ObjectPath
            Its new name; it may be in another database if the store supports that.

        Raises
        ------
        TableNotExistError
            ``path`` does not exist.
        TableAlreadyExistsError
            ``new_path`` already exists.
        AtomicityNotSupportedError
            The capability ``rename_table`` is not declared.
        """


class SupportsEvolution(Catalog):
    """A catalog of session tables whose columns can change in ways that Spark itself refuses."""

    @abstractmethod
    def evolves(self, path: ObjectPath, *, only_if_evolved: bool) -> bool:
        """Return whether :meth:`SupportsAlter.alter_table` changes the columns of a table instead of Spark.

        Parameters
        ----------
        path : ObjectPath
            It need not exist.
        only_if_evolved : bool
            Whether that is so only for a table with field ids, or with names that its files have for other columns.
        """


class SupportsAlter(Catalog):
    """A catalog that supports ``ALTER TABLE``."""

    @abstractmethod
    def alter_table(self, path: ObjectPath, changes: Iterable[TableChange]) -> None:
        """Apply changes to a table atomically.

        Parameters
        ----------
        path : ObjectPath
        changes : iterable of TableChange
            In the order in which to apply them.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            The catalog does not support one of the changes; none was applied.
        """


class SupportsRewrite(SupportsAlter):
    """A catalog in which some changes of ``ALTER TABLE`` are a replacement of the table by its own rows."""

    @abstractmethod
    def plan_rewrite(self, path: ObjectPath, changes: Sequence[TableChange]) -> Rewrite | None:
        """Return the replacement that makes the changes; nothing is changed yet.

        Parameters
        ----------
        path : ObjectPath
        changes : sequence of TableChange
            As in :meth:`SupportsAlter.alter_table`: all of them are made, or none.

        Returns
        -------
        Rewrite or None
            None if :meth:`SupportsAlter.alter_table` makes the changes, or refuses them.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            A change is not possible, even so.
        """


class SupportsTimeTravel(Catalog):
    """A catalog that can read earlier states of its tables."""

    @abstractmethod
    def read_source_as_of(
        self, path: ObjectPath, *, version: str | None = None, timestamp: int | None = None
    ) -> ReadSource:
        """Return the source from which Spark reads an earlier state of the table.

        Parameters
        ----------
        path : ObjectPath
        version : str, optional
            The value of ``VERSION AS OF``: a snapshot, or the name of one.
        timestamp : int, optional
            The value of ``TIMESTAMP AS OF``, in microseconds since the epoch.

        Returns
        -------
        ReadSource
            As for :meth:`read_source`.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            The table never had such a state, or it is no longer available.
        """


class SupportsSnapshots(Catalog):
    """A catalog that can read the state that a table had when a transaction began (Hudi RFC-73)."""

    #: Whether :meth:`read_source` is of the state when Spark runs the query, and not when it is called: a transaction
    #: with a snapshot then reads all tables by :meth:`read_source_before`.
    reads_when_executed: ClassVar[bool] = False

    @abstractmethod
    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        """Return the source of a table's state without the changes of some transactions.

        Parameters
        ----------
        path : ObjectPath
        changes : sequence of Change
            The changes that the state must not contain, in the order of their commit numbers, and last those that may
            not have been published yet. It must contain all others that twophase has published. It may be empty: then
            a writer outside twophase has changed the table since it was read as ``version``; or, without a version,
            the present state is read and must not change.
        version : Any, optional
            The version in which the transaction has read the table before, from :attr:`ReadSource.version
            <twophase.ReadSource.version>` or :meth:`Catalog.table_version`: the result must be the same state.

        Returns
        -------
        ReadSource
            Not affected by later changes; its ``version`` is that of the state.

        Raises
        ------
        TableNotExistError
            One of the changes has created the table.
        SnapshotTooOldError
            There is no such state, or it is no longer available.
        """

    def still_has_files(self, version: Any) -> bool:
        """Return whether the files of a version of a table are all there, and no others; False if that is unknown.

        The metastore is not called: no transaction has changed the table since, and the host will read these files.

        Parameters
        ----------
        version : Any
            From :meth:`Catalog.table_version`.
        """
        return False

    def is_as_left(self, path: ObjectPath, change: Change) -> bool:
        """Return whether a table is as a published change has left it; False if that is unknown.

        Asked before a transaction is undone: what a writer outside twophase has committed since would be lost, and so
        would a definition that was changed since. Not asked of a table that is not there.

        Parameters
        ----------
        path : ObjectPath
        change : Change
            The last one of the table on the timeline. The state that :meth:`read_source_before` returns for an append
            may contain what others have added since: then the answer is True if what it has added is still there.
        """
        return False

    def lists_when_executed(self, path: ObjectPath) -> bool:
        """Return whether Spark lists the files of a ``session_table`` only when it runs a query, and not before.

        A transaction with a snapshot then compares the table's state after the files were listed.

        Parameters
        ----------
        path : ObjectPath
        """
        return False


class SupportsOpenSnapshots(SupportsSnapshots):
    """A catalog whose store can keep a snapshot of all its tables for as long as a transaction runs."""

    @abstractmethod
    def open_snapshot(self) -> OpenSnapshot | None:
        """Open a snapshot of the present state of all tables.

        Called after the transaction's own snapshot is determined: it contains at least what that contains, and
        :meth:`OpenSnapshot.read_source_before` refuses a table in which it contains more.

        Returns
        -------
        OpenSnapshot or None
            To be closed by the caller; None if the store cannot keep one, or does not respond.
        """


class SupportsReadOptions(Catalog):
    """A catalog that supports read options."""

    #: Read options without an effect here, in lower case: they only tune the speed of a read, not its result.
    idle_read_options: ClassVar[frozenset[str]] = frozenset()

    def read_source_with(self, path: ObjectPath, options: Mapping[str, str]) -> ReadSource:
        """Return the source of a read with options; Spark itself does not apply them here.

        Parameters
        ----------
        path : ObjectPath
        options : mapping of str to str
            The options of ``spark.read.option(...).table(...)`` or ``SELECT ... FROM t WITH (...)``, without the idle
            ones; at least one.

        Returns
        -------
        ReadSource
            With the same schema as :meth:`read_source`.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            An option is not supported: no option is silently ignored.
        """
        raise CatalogError(f"There is no option {next(iter(options))} for a read of {path}.", path=path)


class SupportsSchemaHistory(Catalog):
    """A catalog that knows the earlier schemas of its tables."""

    @abstractmethod
    def schema_versions(self, path: ObjectPath) -> list[SchemaVersion]:
        """Return the versions of a table's schema, the oldest first; each with what is known of it.

        Parameters
        ----------
        path : ObjectPath

        Raises
        ------
        TableNotExistError
            It does not exist.
        """


#: Option of one insert whose rows may bring columns and wider types; a catalog gets it with the rows' definition.
MERGE_SCHEMA = "mergeSchema"


class SupportsSchemaOnWrite(Catalog):
    """A catalog with tables whose schema can evolve with the rows of an insert.

    Where a single insert says so, its definition has the option :data:`MERGE_SCHEMA`: its columns are then matched by
    name, whatever :meth:`accepts_any_schema` says of the table.
    """

    @abstractmethod
    def accepts_any_schema(self, definition: TableDefinition) -> bool:
        """Return whether a table accepts rows with additional columns; columns are then matched by name.

        Parameters
        ----------
        definition : TableDefinition
            The table's definition, from :meth:`load_table`.
        """


def accepts_any_schema(catalog: Catalog, definition: TableDefinition) -> bool:
    """Return whether a table accepts rows with additional columns; see :class:`SupportsSchemaOnWrite`."""
    return isinstance(catalog, SupportsSchemaOnWrite) and catalog.accepts_any_schema(definition)


class SupportsColumnDefaults(Catalog):
    """A catalog that supports column defaults."""

    @abstractmethod
    def column_defaults(self, path: ObjectPath, staged: TwoPhaseCatalogTable | None = None) -> Mapping[str, str | None]:
        """Return the values for columns that an insert omits, or sets to ``DEFAULT``.

        Parameters
        ----------
        path : ObjectPath
        staged : TwoPhaseCatalogTable, optional
            The participant of the same transaction for this table, if any.

        Returns
        -------
        mapping of str to str or None
            For each column, a constant in Spark's SQL; None if the store computes the default during the publish. The
            rows then have an additional column, :data:`~twophase.model.WAITING`, with the names of the columns that
            are still to be computed. For a column without an entry Spark uses NULL, if the column is nullable.
        """


class SupportsDelete(Catalog):
    """A catalog that can delete rows, like Spark's ``SupportsRowLevelOperations``."""

    @abstractmethod
    def plan_delete(self, path: ObjectPath, conditions: Sequence[Filter | None]) -> Deletion:
        """List the files that a ``DELETE FROM ... WHERE`` has to replace; nothing is changed.

        Parameters
        ----------
        path : ObjectPath
        conditions : sequence of Filter or None
            A row is deleted if it matches all of them; None for a condition that only Spark can evaluate.

        Returns
        -------
        Deletion
            The files to rewrite, and the table version that they belong to.

        Raises
        ------
        TableNotExistError
            It does not exist.
        CatalogError
            The table does not support deletes.
        """


class SupportsGroupPublish(Catalog):
    """A catalog that can publish several participants in one step."""

    @abstractmethod
    def group_key(self, participant: TwoPhaseCatalogTable) -> str | None:
        """Return the group of a participant: one :meth:`publish_group` publishes all participants with the same key.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            A participant of this catalog.

        Returns
        -------
        str or None
            None if it is published on its own.
        """

    @abstractmethod
    def publish_group(self, participants: list[TwoPhaseCatalogTable]) -> None:
        """Publish several participants in one step; the same contract as :meth:`TwoPhaseCatalogTable.commit`.

        Parameters
        ----------
        participants : list of TwoPhaseCatalogTable
            All have the same :meth:`group_key`; a retry includes those that have already been published.

        Raises
        ------
        TransactionAborted
            A definite refusal: none was published.
        Exception
            Any other failure; the coordinator then checks the :meth:`~TwoPhaseCatalogTable.outcome` of each.
        """

    def compensate_group(self, participants: list[TwoPhaseCatalogTable]) -> bool:
        """Undo one :meth:`publish_group` in one step; the same contract as :meth:`TwoPhaseCatalogTable.compensate`.

        Parameters
        ----------
        participants : list of TwoPhaseCatalogTable
            All participants that were published in that step.

        Returns
        -------
        bool
            True if all tables are restored to their previous state; False if nothing was undone.

        Raises
        ------
        Exception
            It is unknown whether it was undone; the coordinator then checks the
            :meth:`~TwoPhaseCatalogTable.outcome` of each.
        """
        return False


class SupportsStagedDrop(Catalog):
    """A catalog in which ``DROP TABLE`` can be a statement of a transaction."""

    @abstractmethod
    def two_phase_drop_table(
        self, path: ObjectPath, *, purge: bool = False, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        """Create the participant that drops a table. Nothing is staged yet, and nothing is changed in the store.

        Its purpose is ``DROP_TABLE``; it is a participant like all others, but nothing is written: ``commit`` takes the
        table away, ``compensate`` gives it back, and only ``finish`` removes files, of a managed table alone. A table
        that others have changed since the participant was created is not dropped: that is a conflict, as for an
        overwrite.

        A later statement of the transaction may create the table: its base is then the document of the drop, which is
        not published. To it the table does not exist; but its publish replaces the table that the drop has seen, and is
        refused if that has changed since.

        Parameters
        ----------
        path : ObjectPath
        purge : bool
            As in :meth:`Catalog.drop_table`.
        context : WriteContext, optional
            As in :meth:`Catalog.two_phase_create_table`. With a base the transaction has written the table before, and
            what that has staged is not published. If it has created the table, there is nothing to drop: then the
            publish leaves nothing but its record.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if this store cannot drop a table as part of a transaction.

        Raises
        ------
        TableNotExistError
            It does not exist, and the transaction has not written it.
        CatalogError
            It cannot be dropped: it is a view, or something depends on it.
        """


class SupportsStagedAlter(Catalog):
    """A catalog in which ``ALTER TABLE`` can be a statement of a transaction."""

    @abstractmethod
    def two_phase_alter_table(
        self, path: ObjectPath, changes: Sequence[TableChange], *, context: WriteContext | None = None
    ) -> TwoPhaseCatalogTable | None:
        """Create the participant that changes a table's definition. Nothing is staged or changed in the store yet.

        Its purpose is ``ALTER_TABLE``; it is a participant like all others, but nothing is written. Later statements of
        the transaction build on its document: they read and write the table as it will be.

        Parameters
        ----------
        path : ObjectPath
        changes : sequence of TableChange
            As in :meth:`SupportsAlter.alter_table`: all of them are made, or none.
        context : WriteContext, optional
            As in :meth:`Catalog.two_phase_create_table`. With a base the transaction has written the table before.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if this store cannot change this table as part of a transaction.

        Raises
        ------
        TableNotExistError
            It does not exist, and the transaction has not created it.
        CatalogError, SchemaError
            A change is not possible.
        """


class SupportsSavepoints(Catalog):
    """A catalog that can keep states of its tables under a named savepoint, and give them back.

    What is kept is described by a document: a small plain JSON object, stored on the timeline. It is planned and
    recorded before anything is kept, so that :meth:`forget_kept` finds whatever a crash has left.
    """

    def tables_to_keep(self, database: str) -> list[ObjectPath]:
        """Return the tables of a database that a savepoint of it contains: all of them, but no views.

        Parameters
        ----------
        database : str
            Its name, unquoted.

        Raises
        ------
        DatabaseNotExistError
            It does not exist.
        """
        return [ObjectPath.of(*database.split("."), name) for name in self.list_tables(database)]

    @abstractmethod
    def plan_kept(self, path: ObjectPath, savepoint: str, name: str, *, copies: bool = False) -> Mapping[str, Any]:
        """Return the document of the present state of a table. Nothing is kept yet, and nothing is changed.

        Parameters
        ----------
        path : ObjectPath
        savepoint : str
            The savepoint's id, by which what is kept for it is recognized as its own. Letters, digits and underscores.
        name : str
            The savepoint's name, which may be any text.
        copies : bool
            Whether rows may be copied if the store cannot keep them otherwise.

        Returns
        -------
        mapping
            Without secrets.

        Raises
        ------
        TableNotExistError
            It does not exist.
        AtomicityNotSupportedError
            The store cannot keep it; or it can only by a copy, which was not asked for.
        """

    @abstractmethod
    def keep(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        """Keep the present state of a table, whatever is written to it, altered, or removed from now on. Idempotent.

        No transaction publishes to the table meanwhile.

        Parameters
        ----------
        document : mapping
            From :meth:`plan_kept`.

        Returns
        -------
        mapping
            The document from now on.

        Raises
        ------
        CatalogError
            It cannot be kept; :meth:`forget_kept` removes what there is of it.
        """

    @abstractmethod
    def forget_kept(self, document: Mapping[str, Any]) -> None:
        """Remove what is kept, also if only a part was or nothing. Idempotent; the table itself is not changed.

        Parameters
        ----------
        document : mapping
            From :meth:`plan_kept` or :meth:`keep`.

        Raises
        ------
        CatalogError
            It cannot be removed now.
        """

    @abstractmethod
    def kept_definition(self, document: Mapping[str, Any]) -> TableDefinition:
        """Return the definition that the kept table had.

        Parameters
        ----------
        document : mapping
            From :meth:`keep`.

        Raises
        ------
        CatalogError
            What was kept is no longer there.
        """

    @abstractmethod
    def read_kept(self, document: Mapping[str, Any]) -> ReadSource:
        """Return the source of the kept rows.

        Parameters
        ----------
        document : mapping
            From :meth:`keep`.

        Raises
        ------
        CatalogError
            What was kept is no longer there, or Spark cannot read it without its table.
        """

    def write_kept(self, participant: TwoPhaseCatalogTable, document: Mapping[str, Any]) -> bool:
        """Stage the kept rows for a participant that replaces or creates the table, instead of its ``write``.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            Begun, of this catalog, with the definition from :meth:`kept_definition`.
        document : mapping
            From :meth:`keep`.

        Returns
        -------
        bool
            False if the rows must be read by :meth:`read_kept` and written; then nothing was staged.

        Raises
        ------
        CatalogError
            What was kept is no longer there.
        """
        return False


class SupportsRecordedPublish(Catalog):
    """A catalog that can publish and record the publish on a timeline in one transaction of the same database."""

    @property
    @abstractmethod
    def publish_database(self) -> sa.URL | None:
        """The SQL database in which a publish is one transaction; None if there is none.

        If the timeline is in the same database, :meth:`publish_with_record` writes its row in that transaction.
        """

    @abstractmethod
    def publish_with_record(
        self, participants: list[TwoPhaseCatalogTable], record: Callable[[sa.Connection], None]
    ) -> None:
        """Publish participants, and record that, in one transaction of :attr:`publish_database`.

        The same contract as :meth:`TwoPhaseCatalogTable.commit`. A participant that has already been published needs no
        record.

        Parameters
        ----------
        participants : list of TwoPhaseCatalogTable
            All participants that the transaction publishes.
        record : callable
            Called with the connection, inside the transaction that publishes; if it raises, that transaction is rolled
            back.

        Notes
        -----
        A writer that has lost its lease is fenced off by the publish itself, not only before it.
        """


class SupportsCleaning(Catalog):
    """A catalog in which dead transactions may have leftovers, or that retains superseded versions."""

    @abstractmethod
    def leftovers(self, *, live_transactions: frozenset[str] = frozenset()) -> list[Leftover]:
        """List leftovers of dead transactions and superseded versions past retention, if they are stamped by twophase.

        Called by ``twophase clean`` and by its ``--dry-run``; changes nothing.

        Parameters
        ----------
        live_transactions : frozenset of str
            Transactions whose files must not be touched.

        Returns
        -------
        list of Leftover
            Each with its size, its transaction and, if it must be kept, the reason.
        """

    @abstractmethod
    def remove_leftover(self, leftover: Leftover) -> None:
        """Remove one of :meth:`leftovers`, after checking its stamp again. Idempotent.

        Parameters
        ----------
        leftover : Leftover
            As returned by :meth:`leftovers` in this process.

        Raises
        ------
        CatalogError
            It could not be removed, or has changed; nothing else was touched.
        """

    def remove_leftovers(self, leftovers: Sequence[Leftover]) -> list[Exception | None]:
        """Remove several of :meth:`leftovers`; by default, each by :meth:`remove_leftover`.

        Override it if finding out what is still in use is slow: it can then be done once for all of them.

        Parameters
        ----------
        leftovers : sequence of Leftover

        Returns
        -------
        list of Exception or None
            For each leftover, in order, why it could not be removed; None if it was removed.
        """
        return [self._why_left(leftover) for leftover in leftovers]

    def _why_left(self, leftover: Leftover) -> Exception | None:
        try:
            self.remove_leftover(leftover)
        except Exception as error:
            return error
        return None


class SupportsExternalChanges(Catalog):
    """A catalog over tables that the host also changes directly: those of the session catalog."""

    @abstractmethod
    def table_dropped(self, path: ObjectPath) -> None:
        """Free the location of a table that the host has dropped, bypassing the catalog. Idempotent.

        Parameters
        ----------
        path : ObjectPath
            Its former name.
        """

    @abstractmethod
    def table_renamed(self, path: ObjectPath, new_path: ObjectPath) -> None:
        """Make sure that a table finds its files after the host has renamed it, bypassing the catalog. Idempotent.

        Parameters
        ----------
        path : ObjectPath
            Its former name.
        new_path : ObjectPath
            Its present name.
        """

    @abstractmethod
    def partitions_sought(self, path: ObjectPath) -> None:
        """Remove superseded files from a table's directory before the host searches it for partitions. Idempotent.

        Called before the host runs ``ADD PARTITION``, ``MSCK REPAIR TABLE``, ``RECOVER PARTITIONS`` or a rename of a
        partition, bypassing the catalog.

        Parameters
        ----------
        path : ObjectPath

        Raises
        ------
        CatalogError
            They cannot be removed; the host's statement is not run.
        """

    @abstractmethod
    def moves_files(self, path: ObjectPath) -> bool:
        """Return whether a write moves the table's files to another location, which breaks readers of the old path.

        Parameters
        ----------
        path : ObjectPath
        """

    @abstractmethod
    def has_moved_files(self, path: ObjectPath) -> bool:
        """Return whether earlier writes have already moved files of this table to another location.

        Parameters
        ----------
        path : ObjectPath
        """
