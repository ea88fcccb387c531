"""Optional interfaces of a catalog that can read more of a table than its current rows as they are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from twophase.catalog.base import Catalog
from twophase.catalog.reading import ReadSource
from twophase.catalog.snapshots import Change, OpenSnapshot
from twophase.errors import CatalogError
from twophase.model import ObjectPath, Purpose


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

    def state_before(self, path: ObjectPath, purpose: Purpose) -> Any:
        """Return what :meth:`read_source_before` needs to read the present state after a change without a transaction.

        No other transaction publishes to the table until the change is made.

        Parameters
        ----------
        path : ObjectPath
        purpose : Purpose
            ``ALTER_TABLE``, ``DROP_TABLE``, or ``CREATE_TABLE_AS``: it does not exist yet.

        Returns
        -------
        Any
            A small plain JSON value without secrets. None if that state cannot be read any more: then
            :meth:`read_source_before` refuses a change without one.
        """
        return None

    def still_has_files(self, version: Any) -> bool:
        """Return whether the files of a version of a table are all there, and no others; False if that is unknown.

        The metastore is not called: no transaction has changed the table since, and the host will read these files.

        Parameters
        ----------
        version : Any
            From :meth:`Catalog.table_version`.
        """
        return False

    def is_as_left(self, path: ObjectPath, change: Change, later: Sequence[Change] = ()) -> bool:
        """Return whether a table is as a published change has left it; False if that is unknown.

        Asked before a transaction is undone: what a writer outside twophase has committed since would be lost, and so
        would a definition that was changed since. Not asked of a table that is not there.

        Parameters
        ----------
        path : ObjectPath
        change : Change
            The last one of the table on the timeline, but for the later ones. The state that
            :meth:`read_source_before` returns for an append may contain what others have added since: then
            the answer is True if what it has added is still there.
        later : sequence of Change
            Later changes: of the table as it was before them is asked.
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
