"""Optional interfaces of a catalog that removes leftovers, learns of changes by others, and reports its storage."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from twophase.catalog.base import Catalog
from twophase.catalog.services import Leftover
from twophase.model import ObjectPath


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


class SupportsStorageReport(Catalog):
    """A catalog whose tables are files: what their file systems guarantee may matter."""

    @abstractmethod
    def storage(self) -> list[str]:
        """Describe each file system of the catalog in one line: its guarantees, and the levels that follow.

        Called by ``twophase doctor``.
        """


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

        What its former name has left at the default location is removed, as after a drop: the name is free.

        Parameters
        ----------
        path : ObjectPath
            Its former name.
        new_path : ObjectPath
            Its present name.
        """

    @abstractmethod
    def partitions_sought(self, path: ObjectPath, partitions: Sequence[Mapping[str, str | None]] | None = None) -> None:
        """Remove superseded files from a table's directory before the host searches it for partitions. Idempotent.

        Called before the host runs ``ADD PARTITION``, ``MSCK REPAIR TABLE``, ``RECOVER PARTITIONS``, ``LOAD DATA`` or a
        rename of a partition, bypassing the catalog.

        Parameters
        ----------
        path : ObjectPath
        partitions : sequence of mapping, optional
            The only partitions that may be found: for each column the text that the statement has, which need not be
            that of the directory's name. By default, all.

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
