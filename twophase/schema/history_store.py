"""The entries of a table's schema history, and the interface of their stores."""

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
    """The outcome of the transaction that wrote a version."""

    COMMITTED = "committed"
    #: Rolled back, or abandoned: the version is a leftover.
    FAILED = "failed"
    #: Not decided yet.
    PENDING = "pending"


@dataclass(frozen=True)
class Record:
    """One entry of the store.

    Parameters
    ----------
    number : int
        The version's schema id, which is unique.
    transaction_id : str
        The transaction that wrote it; empty for the baseline of a table that had no history.
    instant : int
        Its instant on the catalog's own increasing scale (milliseconds, sequence numbers).
    schema : Schema or None
        None: the version of a failed transaction was removed; the entry only prevents the reuse of its ids.
    highest_field_id : int
    on_cast_failure : str
        Handling of values in older files that do not fit a type of this version: ``error`` or ``null``. It was chosen
        by the transaction that changed the type, so that readers need not know it.
    """

    number: int
    transaction_id: str
    instant: int
    schema: Schema | None
    highest_field_id: int
    on_cast_failure: str = "error"

    def to_json(self) -> str:
        """Return the entry as a JSON document."""
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
        """Read an entry from a document.

        Parameters
        ----------
        text : str or bytes
            Result of ``to_json``.

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
    """A store for the entries of one table. Each call is atomic; :class:`SchemaHistory` has the rules."""

    @abstractmethod
    def read(self) -> list[Record]:
        """Return all entries, ordered by number."""

    @abstractmethod
    def insert(self, record: Record) -> bool:
        """Add an entry; return False, without any effect, if its number is taken. Durable once it returns.

        Parameters
        ----------
        record : Record
            The entry; its ``number`` must be free.
        """

    @abstractmethod
    def replace(self, record: Record) -> None:
        """Replace the entry with the same number and transaction; nothing happens if there is none.

        Parameters
        ----------
        record : Record
            The new entry; ``number`` and ``transaction_id`` identify the old one.
        """

    @abstractmethod
    def delete(self, record: Record) -> None:
        """Remove the entry with the same number and transaction; nothing happens if there is none.

        Parameters
        ----------
        record : Record
            Its ``number`` and ``transaction_id`` identify the entry.
        """

    def remove_unfinished(self, failed: Callable[[str], bool], older_than: float) -> None:
        """Remove leftovers of a writer that crashed in :meth:`insert`; a transactional store has none.

        Parameters
        ----------
        failed : callable
            Transaction id -> whether it has failed; then its files are leftovers, however recent.
        older_than : float
            Seconds since the epoch; unless the transaction is known to have failed, newer files may be in use.
        """


def always_committed(_transaction_id: str) -> Fate:
    """Outcome function for stores whose entries are written in the transaction to which they belong."""
    return Fate.COMMITTED
