"""The service-provider interface: :class:`Catalog`, and :class:`TwoPhaseCatalogTable`, its participants.

The shape is that of Flink's FLIP-305 (``Catalog.twoPhaseCreateTable`` and ``TwoPhaseCatalogTable``); the
*purpose* comes from the version that Flink shipped later, the rest from the needs of Spark's staged tables. This
module depends on no store, no Spark and no JVM: a plugin author needs nothing else (except :mod:`twophase.testing`).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from twophase.catalog.metadata import CatalogMetadata
from twophase.catalog.reading import ReadSource
from twophase.catalog.schema_versions import SchemaChange
from twophase.errors import CatalogError
from twophase.model import (
    Level,
    ObjectPath,
    Outcome,
    Purpose,
    TableDefinition,
    WriteContext,
)


class Catalog(CatalogMetadata):
    """A store of tables, like FLIP-305's ``Catalog``: databases, tables, and the two-phase write.

    Parameters
    ----------
    name : str
        The name under which it is registered in the session (``spark.sql.catalog.<name>``).
    options : mapping of str to str
        The options below that name, without the prefix. They may contain secrets: never log, pickle or store them.
    environment : Environment
        Services of the host.

    Attributes
    ----------
    known_options : mapping of str to str
        The supported options, with one line of help each. A session rejects any other option, and suggests the closest
        match, before it creates the catalog: the constructor need not check this.
    """

    @abstractmethod
    def two_phase_create_table(
        self,
        path: ObjectPath,
        definition: TableDefinition,
        *,
        purpose: Purpose,
        ignore_if_exists: bool = False,
        is_streaming_mode: bool = False,
        context: WriteContext | None = None,
    ) -> TwoPhaseCatalogTable | None:
        """Create the participant of one statement. Nothing is staged yet, and nothing is changed in the store.

        Parameters
        ----------
        path : ObjectPath
            The target.
        definition : TableDefinition
            Schema and properties of the new table or, for an insert, of the rows.
        purpose : Purpose
            The effect of the statement.
        ignore_if_exists : bool
            For the CREATE purposes: an existing table is not an error (the caller checks ``table_exists`` first).
        is_streaming_mode : bool
            True for an unbounded query; Hive then returns None, as in FLIP-305.
        context : WriteContext, optional
            Transaction id, ordinal and overwrite scope; if None, one is generated for stand-alone use.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if the catalog does not support a two-phase write for this statement. The statement is then refused;
            under ``spark.twophase.atomicity=preferred`` stock Spark runs it if it can, which excludes ``name.db.t``:
            such a table can only be written through this catalog.

        Raises
        ------
        TableAlreadyExistsError
            For CREATE_TABLE_AS if the table exists.
        TableNotExistError
            For REPLACE_TABLE_AS and the inserts if the table does not exist.
        DatabaseNotExistError
            The database does not exist.
        CatalogError
            Invalid input: the store does not support a name, a type or a partition column.
        """

    @abstractmethod
    def restore(self, document: Mapping[str, Any]) -> TwoPhaseCatalogTable:
        """Restore a participant, equal to the original one, from its document on the timeline.

        Parameters
        ----------
        document : mapping
            The participant's :attr:`TwoPhaseCatalogTable.document`, after a JSON round trip.

        Returns
        -------
        TwoPhaseCatalogTable
            Bound to this catalog; the store was neither queried nor changed.

        Raises
        ------
        CatalogError
            The document was written by a newer version, or belongs to a different store.
        """


class TwoPhaseCatalogTable(ABC):
    """One participant: a table (or the rows of an insert) that is staged, then committed or aborted.

    The entire state is in :attr:`document`, a plain JSON document without connections or secrets. It is written to the
    timeline before :meth:`begin`, and whenever a method has changed it, so that a new process can continue:
    ``catalog.restore(document)`` returns an equal participant. The changes of :meth:`prepare` are written together with
    the decision: an :meth:`abort` before the decision, or after a crash during :meth:`prepare`, gets the document from
    before :meth:`prepare`. Pickling preserves only the document; :meth:`bind` attaches an unpickled participant to its
    catalog again.

    Order of calls: ``begin`` → ``write`` → ``prepare`` → ``persist`` → ``commit`` → ``finish``, or ``abort`` at any
    point before something was published. All methods except ``write`` are idempotent: recovery may repeat them, may
    itself be killed halfway, and may run concurrently in two processes.

    Parameters
    ----------
    catalog : Catalog
        The live catalog that it belongs to; never part of its state.
    document : mapping
        Its state; at least ``path``, ``purpose`` and ``transaction_id``. It is copied.

    Notes
    -----
    Modelled on ``TwoPhaseCatalogTable{beginTransaction, commit, abort}`` of FLIP-305.
    """

    def __init__(self, catalog: Catalog, document: Mapping[str, Any]) -> None:
        self._catalog: Catalog | None = catalog
        self.document: dict[str, Any] = copy.deepcopy(dict(document))

    # -- identity ------------------------------------------------------------------------------------------------

    @property
    def catalog(self) -> Catalog:
        """The live catalog that this participant belongs to.

        Raises
        ------
        CatalogError
            The participant was unpickled and not yet bound.
        """
        if self._catalog is None:
            raise CatalogError(
                f"The participant for {self.path} is not bound to a catalog: call bind(catalog) first.", path=self.path
            )
        return self._catalog

    @property
    def path(self) -> ObjectPath:
        """The table that this participant writes."""
        return ObjectPath.from_document(self.document["path"])

    @property
    def purpose(self) -> Purpose:
        """The effect of the statement on the table."""
        return Purpose(self.document["purpose"])

    @property
    def transaction_id(self) -> str:
        """The id of the transaction: the owner stamp of everything that is staged or published."""
        return str(self.document["transaction_id"])

    def bind(self, catalog: Catalog) -> TwoPhaseCatalogTable:
        """Attach an unpickled participant to a catalog, and return it.

        Parameters
        ----------
        catalog : Catalog
            A catalog over the same store as the one that created it.
        """
        self._catalog = catalog
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {"document": copy.deepcopy(self.document)}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self._catalog = None
        self.document = copy.deepcopy(dict(state["document"]))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.purpose.name} {self.path} of {self.transaction_id}>"

    # -- the contract --------------------------------------------------------------------------------------------

    @abstractmethod
    def begin(self) -> None:
        """Create the staging area. Called by the coordinator after the document is on the timeline; idempotent.

        Raises
        ------
        CatalogError
            The staging area cannot be created, or the target is not free (``TableAlreadyExistsError``, a foreign
            directory). It must not have any leftovers.
        """

    @abstractmethod
    def write(self, df: Any) -> None:
        """Write the rows of ``df`` to the staging area, with Spark's executors. Called once, on the statement's thread.

        Parameters
        ----------
        df : pyspark.sql.DataFrame
            The query's rows; the columns are in the order of the definition. Never collect it on the driver.

        Raises
        ------
        Exception
            The user's own Spark error, unchanged.
        """

    @abstractmethod
    def prepare(self) -> None:
        """Validate everything that can be validated before the decision: ``commit`` is then expected to succeed.

        Called by the coordinator at the end of the transaction, when the table is reserved. In a block of several
        statements it is also called, without a reservation, as soon as the query has finished: later statements can
        then read or build on its result, and failures are reported early. Idempotent; a second call must validate
        again, because other writers may have published in the meantime. An append is then added to their changes; any
        other write is refused if its target has changed. It sets :attr:`level`.

        Raises
        ------
        WriteConflictError
            The target has changed since the write was planned (:meth:`Catalog.two_phase_create_table
            <twophase.Catalog.two_phase_create_table>`); ``TableAlreadyExistsError`` if it did not exist then.
        CatalogError
            Any other reason for which the publish would fail. The transaction is rolled back.
        """

    def persist(self) -> None:
        """Make the staged data survive a power failure.

        Called after all participants are prepared, immediately before the decision is recorded. Does nothing by
        default: data that a database has committed is already durable. A file-based store syncs the files, and the
        directories that lead to them, unless :attr:`Environment.fsync <twophase.catalog.Environment.fsync>` is False.
        The changes of :meth:`commit` must be durable when it returns.

        Raises
        ------
        Exception
            The data could not be synced: the transaction is rolled back.
        """

    @abstractmethod
    def commit(self) -> None:
        """Publish. Called by the coordinator only after the decision is durable, and again by recovery; idempotent.

        After any exception the outcome is **unknown** until :meth:`outcome` has been called: an implementation must
        never clean up in here. If this transaction has already published the target, that is a success.

        Raises
        ------
        TransactionAborted
            A definite refusal; :meth:`outcome` then returns ``NOT_PUBLISHED``.
        Exception
            Any other failure; the coordinator calls :meth:`outcome`.
        """

    @abstractmethod
    def outcome(self) -> Outcome:
        """Look up in the store whether this participant was published, by the transaction's owner stamp.

        Called by the coordinator after each :meth:`commit` that raised (a few times while the result is ``UNKNOWN``),
        and by recovery before it decides; at any time, even long after the publish. It changes nothing.

        Returns
        -------
        Outcome
            ``PUBLISHED``, ``NOT_PUBLISHED`` or ``UNKNOWN``. If the store cannot be reached, it returns ``UNKNOWN``
            instead of raising; if it raises nevertheless, that counts as ``UNKNOWN``. As long as the outcome is
            unknown, nothing is published, removed or rolled back: the transaction is in doubt.
        """

    @abstractmethod
    def abort(self) -> None:
        """Remove the staged data of this participant, and nothing else. Idempotent.

        Called when the participant was not published (the coordinator has made sure of it). Spark calls its own abort
        even after a commit that raised: an implementation must not remove anything that a published table refers to.
        As long as it raises, recovery calls it again, in another process.

        Raises
        ------
        Exception
            Something could not be removed, or must not be while the store does not respond. The outcome stays the same:
            the leftovers (:meth:`left_behind`) are recorded on the timeline and reported to the user, and
            ``twophase clean`` removes them later.
        """

    def finish(self) -> None:
        """Clean up after the publish (mark superseded versions for retention, drop helper objects). Idempotent.

        A failure in here does not change the outcome; the leftovers are recorded on the timeline.
        """

    def compensate(self) -> bool:
        """Undo a publish, if the published pointer has not changed since; used when a later participant is refused.

        Called by the coordinator and by recovery, again if it was interrupted; idempotent.

        Returns
        -------
        bool
            True if the table is restored to its previous state; False if that is impossible, or in doubt, as when rows
            of other writers would be lost. If recovery cannot undo the other participants, it calls :meth:`commit`
            again, which publishes completely or refuses.

        Raises
        ------
        Exception
            It is unknown whether it was undone, or it was not, for a reason to be reported: the coordinator calls
            :meth:`outcome`, and unless that returns ``NOT_PUBLISHED``, the transaction is in doubt.
        """
        return False

    # -- what is reserved ----------------------------------------------------------------------------------------

    @property
    def shares_appends(self) -> bool:
        """Return whether other appends may be published between the last ``prepare`` and ``commit``.

        By default, True for an INSERT INTO. A catalog returns False if an append in between would break its publish or
        cause a refusal; then no other writer publishes to the table in the meantime.
        """
        return self.purpose is Purpose.INSERT_INTO

    def reservation_scope(self) -> frozenset[str] | None:
        """Return the partitions that the publish changes: writes with disjoint scopes need not wait for each other.

        Called after all rows are written, before the ``prepare`` at the end of the transaction.

        Returns
        -------
        frozenset of str or None
            Strings that identify the partitions of this table, the same in all processes; None for the whole table.
        """
        return None

    def replaced_state(self) -> Any:
        """Return what the catalog needs later to read the table's state from before this publish.

        Called once everything is reserved and prepared; recorded with the decision, and passed to
        :meth:`SupportsSnapshots.read_source_before <twophase.catalog.SupportsSnapshots.read_source_before>` as
        :attr:`Change.before <twophase.catalog.Change.before>`.

        Returns
        -------
        Any
            A small JSON document without secrets; None, the default, if nothing is needed.
        """
        return None

    def schema_change(self) -> SchemaChange | None:
        """Return what the publish changes of the table's columns, for the history of its schema.

        Called once everything is reserved and prepared. No change is made of a schema that is as it was, so nothing
        need be compared here; but a write that only changes rows must not spend time on it.

        Returns
        -------
        SchemaChange or None
            None, the default, if the publish changes rows only, or if the history is kept by the store itself.
        """
        return None

    @property
    def can_undo(self) -> bool:
        """Return whether :meth:`compensate` can undo the publish as long as no other writer changes the table.

        Valid after :meth:`prepare`. Participants that cannot be undone are published last. The default is taken from
        the document or, failing that, from the catalog's capability.
        """
        return bool(self.document.get("can_undo", self.catalog.capabilities.compensate))

    @property
    def staging_is_seen(self) -> bool:
        """Whether readers see what is staged: a transaction that is rolled back is open until :meth:`abort` is done."""
        return False

    @property
    def drop_is_seen(self) -> bool:
        """Whether readers see what is dropped until :meth:`finish` is done: the transaction is open until then."""
        return False

    @property
    def level(self) -> Level:
        """The atomicity level of this participant's publish (valid after :meth:`prepare`)."""
        return Level(self.document.get("level", Level.ATOMIC))

    @property
    def level_reason(self) -> str | None:
        """The reason why the level is below ``ATOMIC``, in words for the user; None if it is ``ATOMIC``."""
        return self.document.get("level_reason")

    def read_source(self) -> ReadSource | None:
        """The source from which a later statement of the same transaction reads the staged rows; None if it cannot."""
        return None

    def left_behind(self) -> list[str]:
        """The paths and tables that would remain if the process crashed now, for error messages."""
        return []
