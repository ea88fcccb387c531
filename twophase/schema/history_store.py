"""The entries of a table's schema history, and the interface of the places where they lie."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from twophase.schema.document import FORMAT, from_document, to_document
from twophase.schema.errors import NewerDocumentError, SchemaDocumentError
from twophase.schema.promotion import CAST_FAILURES
from twophase.schema.schema import Schema


class Fate(Enum):
    """What became of the transaction that wrote a version."""

    COMMITTED = "committed"
    #: Rolled back, or never heard of again: the version is residue.
    FAILED = "failed"
    #: Not decided yet.
    PENDING = "pending"


@dataclass(frozen=True)
class Record:
    """One entry of the store.

    Parameters
    ----------
    number : int
        The version's schema id; no two entries have the same.
    transaction_id : str
        Who wrote it; empty for the baseline of a table that had no history.
    instant : int
        When, on the catalog's own rising scale (milliseconds, sequence numbers).
    schema : Schema or None
        None: the residue of a failed transaction was removed; the entry keeps only its ids from being used again.
    highest_field_id : int
    on_cast_failure : str
        What a value of an older file becomes that a type of this version cannot hold: ``error`` or ``null``. The
        transaction that changed the type chose it, and readers must not have to know.
    """

    number: int
    transaction_id: str
    instant: int
    schema: Schema | None
    highest_field_id: int
    on_cast_failure: str = "error"

    def to_json(self) -> str:
        """The entry as a document."""
        document = {
            "format": FORMAT,
            "number": self.number,
            "transaction_id": self.transaction_id,
            "instant": self.instant,
            "highest_field_id": self.highest_field_id,
            "on_cast_failure": self.on_cast_failure,
            "schema": None if self.schema is None else to_document(self.schema),
        }
        return json.dumps(document, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """The entry of a document.

        Parameters
        ----------
        text : str or bytes
            What ``to_json`` gave.

        Raises
        ------
        SchemaDocumentError, NewerDocumentError
        """
        try:
            document = json.loads(text)
            if document["format"] > FORMAT:
                raise NewerDocumentError(
                    f"The history's entry has the format {document['format']}; this version reads up to {FORMAT}.",
                    hint="Upgrade twophase.",
                )
            schema = None if document["schema"] is None else from_document(document["schema"])
            mode = document.get("on_cast_failure", "error")
            if mode not in CAST_FAILURES:
                raise ValueError(f"on_cast_failure is {mode!r}")
            facts = (document["number"], document["transaction_id"], document["instant"])
            return cls(*facts, schema, document["highest_field_id"], mode)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise SchemaDocumentError(
                f"The history's entry cannot be read: {error!r}.", allowed=("an entry that Record.to_json wrote",)
            ) from error


class HistoryStore(ABC):
    """Where the entries of one table lie. Three calls, each atomic; :class:`SchemaHistory` has the rules."""

    @abstractmethod
    def read(self) -> list[Record]:
        """All entries, in the order of their numbers."""

    @abstractmethod
    def insert(self, record: Record) -> bool:
        """Add an entry; False, and nothing happens, where its number is taken. Durable once it returns.

        Parameters
        ----------
        record : Record
            The entry; its ``number`` must be free.
        """

    @abstractmethod
    def replace(self, record: Record) -> None:
        """Put an entry in the place of the one with its number and transaction; nothing happens if there is none.

        Parameters
        ----------
        record : Record
            What it becomes; ``number`` and ``transaction_id`` tell which.
        """

    @abstractmethod
    def delete(self, record: Record) -> None:
        """Remove the entry of that number and transaction; nothing happens if there is none.

        Parameters
        ----------
        record : Record
            Its ``number`` and ``transaction_id`` name the entry.
        """

    def remove_unfinished(self, failed: Callable[[str], bool], older_than: float) -> None:
        """Remove what a writer left that was killed inside :meth:`insert`; a store with transactions has nothing.

        Parameters
        ----------
        failed : callable
            Transaction id -> whether it failed: then it is not at work any more, however young its traces are.
        older_than : float
            Seconds since the epoch; where no transaction is known to have failed, younger traces may be of one at work.
        """


def always_committed(_transaction_id: str) -> Fate:
    """For stores whose entries are written in the very transaction that they belong to."""
    return Fate.COMMITTED
