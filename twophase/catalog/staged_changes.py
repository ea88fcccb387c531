"""Optional interfaces of a catalog that stages more than rows, or publishes several participants in one step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from twophase.catalog.base import Catalog, TwoPhaseCatalogTable
from twophase.catalog.reading import Deletion, Filter
from twophase.catalog.schema_changes import SupportsAlterDatabase
from twophase.catalog.services import TableChange
from twophase.model import ObjectPath, Outcome, WriteContext

if TYPE_CHECKING:
    import sqlalchemy as sa


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

    def group_outcome(self, participants: list[TwoPhaseCatalogTable]) -> Outcome:
        """Return whether a group was published; the same contract as :meth:`TwoPhaseCatalogTable.outcome`.

        Parameters
        ----------
        participants : list of TwoPhaseCatalogTable
            All participants of the group.

        Returns
        -------
        Outcome
            By default that of each; contradictory ones mean that it is unknown, as there is one step for all.
        """
        outcomes = {participant.outcome() for participant in participants}
        return outcomes.pop() if len(outcomes) == 1 else Outcome.UNKNOWN

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


class SupportsStagedRename(Catalog):
    """A catalog in which ``ALTER TABLE ... RENAME TO`` can be a statement of a transaction."""

    @abstractmethod
    def two_phase_rename_table(
        self, path: ObjectPath, new_path: ObjectPath, *, context: WriteContext
    ) -> TwoPhaseCatalogTable | None:
        """Create the participant that gives a table its new name. Nothing is staged or changed in the store yet.

        Its path is the new one, its purpose ``CREATE_TABLE_AS``; nothing is written. Later statements of the
        transaction read the table by it. :meth:`two_phase_leave_table` makes that of the former name, which follows.

        Parameters
        ----------
        path, new_path : ObjectPath
        context : WriteContext
            Its base is what the transaction has staged by the new name, its former what it has by the other one.

        Returns
        -------
        TwoPhaseCatalogTable or None
            None if this store cannot rename the table as part of a transaction.

        Raises
        ------
        TableNotExistError
            There is no table of the former name.
        TableAlreadyExistsError
            There is one of the new name.
        AtomicityNotSupportedError
            The transaction has written one of the two before, and the store cannot rename it then.
        CatalogError
            It cannot be renamed.
        """

    @abstractmethod
    def two_phase_leave_table(
        self, path: ObjectPath, arriving: TwoPhaseCatalogTable, *, context: WriteContext
    ) -> TwoPhaseCatalogTable:
        """Create the participant of the former name of a table, whose purpose is ``DROP_TABLE``.

        Parameters
        ----------
        path : ObjectPath
        arriving : TwoPhaseCatalogTable
            That of the new name.
        context : WriteContext

        Raises
        ------
        AtomicityNotSupportedError
            The transaction has written the table before.
        """

    def is_renamed(self, participant: TwoPhaseCatalogTable) -> bool:
        """Return whether the table of a participant only gets its name by it, so that it can get a further one.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            A participant of this catalog.
        """
        return False

    def rests_on_rename(self, participant: TwoPhaseCatalogTable) -> bool:
        """Return whether its transaction renames a table to this name or away from it: rows resolve no conflict then.

        Parameters
        ----------
        participant : TwoPhaseCatalogTable
            A participant of this catalog.
        """
        return self.is_renamed(participant)


class SupportsStagedDatabases(SupportsAlterDatabase):
    """A catalog in which ``CREATE DATABASE`` and ``DROP DATABASE`` can be statements of a transaction.

    Its databases have properties, which say whose they are. :mod:`twophase.catalog.staged_databases` has the
    participants: the catalog's ``restore`` returns those of their documents, and its group publishes leave them out.
    """

    def unstaged_database_reason(self, database: str) -> str | None:
        """Return why this store can neither create nor drop a database in a transaction; None if it can.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        """
        return None

    def database_identity(self, database: str) -> str | None:
        """Return what a database has as long as it exists, whatever its properties; None if that is nothing.

        A store in which other programs can overwrite the properties of a database has it: by it a database is known
        as that of the transaction, of which the properties do not tell any more.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        """
        return None

    def database_facts(self) -> dict[str, Any]:
        """Return what the participant's document says about the store, beside what each of them says."""
        return {}

    def refuse_new_database(self, database: str, properties: Mapping[str, str]) -> None:
        """Refuse a database that a rollback could not remove again; called before anything is created.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        properties : mapping of str to str

        Raises
        ------
        CatalogError
        """

    def contents_of(self, database: str) -> list[str]:
        """Return what keeps an existing database from being dropped: its tables, views and functions.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        """
        return self.list_tables(database)

    def remove_staged_database(self, database: str, transaction_id: str) -> None:
        """Drop an empty database for its transaction, which has not ended yet. Idempotent.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        transaction_id : str
            The transaction that drops it, or takes back that it has created it.
        """
        self.drop_database(database, ignore_if_not_exists=True)

    def files_of(self, database: str, transaction_id: str) -> list[str]:
        """Return the files that would be lost with a database without tables; empty if none can be.

        Parameters
        ----------
        database : str
            Its name, unquoted.
        transaction_id : str
            The transaction that has created it, whose own files do not count.
        """
        return []
