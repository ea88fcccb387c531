"""Snapshots of transactions: the changes that they do not contain, and those that a store keeps open."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from twophase.catalog.reading import ReadSource
    from twophase.model import ObjectPath


@dataclass(frozen=True)
class Change:
    """A change of a table that another transaction has published since a snapshot, or is publishing.

    Attributes
    ----------
    transaction_id : str
        The transaction that made it: the owner stamp in the store.
    number : int or None
        Its commit number; None if it has decided to publish, but may not have done so yet.
    appends : bool
        Whether it only adds rows.
    scope : frozenset of str or None
        The keys of the partitions that it changes; None for the whole table.
    before : Any
        From :meth:`TwoPhaseCatalogTable.replaced_state() <twophase.TwoPhaseCatalogTable.replaced_state>` or, of a
        change without a transaction, from ``SupportsSnapshots.state_before()``; None if there is nothing.
    alters : bool
        Whether it is an ``ALTER TABLE`` without a transaction: rows that were staged before can follow it.
    drops : bool
        Whether it drops the table, or gives it another name.
    """

    transaction_id: str
    number: int | None
    appends: bool = False
    scope: frozenset[str] | None = None
    before: Any = None
    alters: bool = False
    drops: bool = False


class OpenSnapshot(ABC):
    """A snapshot of all tables of a store, which the store keeps until it is closed."""

    @abstractmethod
    def read_source_before(self, path: ObjectPath, changes: Sequence[Change], version: Any = None) -> ReadSource:
        """Return the source of a table's state in this snapshot.

        As :meth:`SupportsSnapshots.read_source_before <twophase.catalog.SupportsSnapshots.read_source_before>`, but
        changes after the snapshot was opened are not read, and are no reason to refuse it.

        Parameters
        ----------
        path : ObjectPath
        changes : sequence of Change
            The changes that the state must not contain.
        version : Any, optional
            The version in which the transaction has read the table before.

        Raises
        ------
        TableNotExistError
            The table did not exist.
        SnapshotTooOldError
            The snapshot contains one of the changes, or the state of the table is no longer available.
        """

    @abstractmethod
    def close(self) -> None:
        """Let the store forget the snapshot; sources that were read from it are refused from now on. Idempotent."""
