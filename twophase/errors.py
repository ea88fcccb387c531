"""The errors that twophase raises.

::

    TwoPhaseError
    ├── CatalogError                        a catalog refused or failed
    │   ├── TableAlreadyExistsError
    │   ├── TableNotExistError
    │   ├── DatabaseAlreadyExistsError
    │   ├── DatabaseNotExistError
    │   ├── InvalidNameError                the store holds no name with such characters
    │   ├── MissingLocationError            an external table without a place
    │   └── AtomicityNotSupportedError      the catalog has no two-phase write for this statement
    ├── ConfigurationError                  a wrong option, catalog kind or Spark version
    ├── TransactionAborted                  rolled back: nothing happened, run it again
    │   ├── WriteConflictError              another writer changed or holds the target
    │   │   └── ConcurrentSchemaEvolutionError
    │   └── LeaseLostError                  another process took this transaction over
    ├── TransactionInDoubt                  the outcome is not known, or is a half: do not retry blindly
    └── TimelineError                       the timeline cannot be read or written

Every error keeps its facts as attributes (``path``, ``transaction_id``, ``left_behind``, ``hint``), survives
pickling, and says what happened, to which table, in which transaction, what is left, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TwoPhaseError(Exception):
    """Base of all errors of twophase.

    Parameters
    ----------
    message : str
        What happened, in one sentence.
    path : str, optional
        The table or database it happened to, as the user would write it.
    transaction_id : str, optional
        The transaction it happened in.
    left_behind : iterable of str, optional
        What remains in the stores: paths, tables.
    hint : str, optional
        What to do next: a command to run, an option to set.
    """

    def __init__(
        self,
        message: str,
        *,
        path: object = None,
        transaction_id: str | None = None,
        left_behind: Iterable[str] = (),
        hint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.path = None if path is None else str(path)
        self.transaction_id = transaction_id
        self.left_behind = tuple(left_behind)
        self.hint = hint

    def __str__(self) -> str:
        facts = [self.message]
        if self.path and self.path not in self.message:
            facts.append(f"Table: {self.path}.")
        if self.transaction_id and self.transaction_id not in self.message:
            facts.append(f"Transaction: {self.transaction_id}.")
        if self.left_behind:
            facts.append("Left behind: " + ", ".join(self.left_behind) + ".")
        if self.hint:
            facts.append(self.hint)
        return " ".join(facts)

    def concerns(self, path: object, transaction_id: str | None = None) -> None:
        """Fill in what whoever raised this did not know.

        Parameters
        ----------
        path : object
            The table or database, as the user would write it; a path that is told already stays.
        transaction_id : str, optional
            The transaction; one that is told already stays.
        """
        self.path = self.path or str(path)
        self.transaction_id = self.transaction_id or transaction_id

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own pickling passes only ``args`` and would lose the keyword facts.
        return (_rebuild, (type(self), dict(self.__dict__)))


def _rebuild(kind: type[TwoPhaseError], facts: dict[str, Any]) -> TwoPhaseError:
    error = kind.__new__(kind)
    Exception.__init__(error, facts.get("message", ""))
    error.__dict__.update(facts)
    return error


class CatalogError(TwoPhaseError):
    """A catalog refused the request, or its store failed."""


class TableAlreadyExistsError(CatalogError):
    """The table to create exists already."""


class TableNotExistError(CatalogError):
    """The table to replace, write or alter does not exist."""


class DatabaseAlreadyExistsError(CatalogError):
    """The database to create exists already."""


class DatabaseNotExistError(CatalogError):
    """The database of the table does not exist."""


class InvalidNameError(CatalogError):
    """The store holds no table or database of such a name.

    Parameters
    ----------
    message : str
    name : str
        The part of the table's or database's name that is not valid.
    **facts
        As for every error.
    """

    def __init__(self, message: str, *, name: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.name = name


class MissingLocationError(CatalogError):
    """An external table is to be made, and the statement does not say where."""


class AtomicityNotSupportedError(CatalogError):
    """The statement cannot be made atomic, and ``spark.twophase.atomicity`` is ``required``."""


class ConfigurationError(TwoPhaseError):
    """A configuration value is wrong; nothing was started."""


class TransactionAborted(TwoPhaseError):
    """The transaction was rolled back: nothing happened, and it may be run again."""


class WriteConflictError(TransactionAborted):
    """Another writer changed the target, or holds its reservation."""


class ConcurrentSchemaEvolutionError(WriteConflictError):
    """Two writers changed the schema of one table in ways that do not combine (Hudi RFC-82)."""


class LeaseLostError(TransactionAborted):
    """Another process recovered this transaction while this one was not heard of (it is fenced off)."""


class TransactionInDoubt(TwoPhaseError):
    """It could not be learned whether the transaction was published, or it is in part and that cannot be undone.

    Nothing was cleaned up; the message says what is known of each table.

    It is deliberately not a :class:`TransactionAborted`: a caller must not retry it blindly.
    """


class TimelineError(TwoPhaseError):
    """The timeline cannot be opened, read or written."""
