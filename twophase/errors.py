"""The errors that twophase raises.

::

    TwoPhaseError
    ├── CatalogError                        a catalog refused or failed
    │   ├── TableAlreadyExistsError
    │   ├── TableNotExistError
    │   ├── DatabaseAlreadyExistsError
    │   ├── DatabaseNotExistError
    │   ├── InvalidNameError                the store does not support such characters in a name
    │   ├── MissingLocationError            an external table without a location
    │   └── AtomicityNotSupportedError      the catalog does not support a two-phase write for this statement
    ├── ConfigurationError                  a wrong option, catalog kind or Spark version
    ├── TransactionStatementError           a BEGIN, COMMIT, SAVEPOINT, ... that is wrong, or wrong where it is
    ├── TransactionAborted                  rolled back: nothing happened, run it again
    │   ├── WriteConflictError              another writer changed or holds the target
    │   │   ├── ConcurrentSchemaEvolutionError
    │   │   └── SnapshotTooOldError     the state that the transaction reads is no longer available
    │   ├── WoundedError                another transaction needed a table of this one (wound-wait)
    │   └── LeaseLostError                  another process took this transaction over
    ├── TransactionInDoubt                  the outcome is unknown, or a partial publish: do not retry blindly
    └── TimelineError                       the timeline cannot be read or written

Every error has its details as attributes (``path``, ``transaction_id``, ``left_behind``, ``hint``), survives
pickling, and says what happened, to which table, in which transaction, what the leftovers are, and what to do next.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Self


class TwoPhaseError(Exception):
    """The base class of all errors of twophase.

    Parameters
    ----------
    message : str
        What happened, in one sentence.
    path : str, optional
        The affected table or database, as the user would write it.
    transaction_id : str, optional
        The affected transaction.
    left_behind : iterable of str, optional
        Leftovers in the stores: paths, tables.
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
        """Fill in the details that were unknown where the error was raised.

        Parameters
        ----------
        path : object
            The table or database, as the user would write it; a path that is already set is not changed.
        transaction_id : str, optional
            The transaction; one that is already set is not changed.
        """
        self.path = self.path or str(path)
        self.transaction_id = self.transaction_id or transaction_id

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own pickling passes only ``args`` and would lose the keyword arguments.
        return (_rebuild, (type(self), dict(self.__dict__)))


def _rebuild(kind: type[TwoPhaseError], facts: dict[str, Any]) -> TwoPhaseError:
    error = kind.__new__(kind)
    Exception.__init__(error, facts.get("message", ""))
    error.__dict__.update(facts)
    return error


class CatalogError(TwoPhaseError):
    """A catalog refused the request, or its store failed."""


class _Existence(CatalogError):
    """The base of errors about a table or database that exists, or does not."""

    _sentence: ClassVar[str]

    @classmethod
    def of(cls, path: object, catalog: str) -> Self:
        """Return the error for a table or database of a catalog.

        Parameters
        ----------
        path : object
            The table or database, as the user would write it.
        catalog : str
            The name of the catalog.
        """
        return cls(cls._sentence.format(path, catalog), path=path)


class TableAlreadyExistsError(_Existence):
    """The table to create already exists."""

    _sentence = "Table {} already exists in catalog {}."


class TableNotExistError(_Existence):
    """The table to replace, write or alter does not exist."""

    _sentence = "Table {} does not exist in catalog {}."


class VersionNotExistError(CatalogError):
    """The table has no such version, branch or tag."""


class DatabaseAlreadyExistsError(_Existence):
    """The database to create already exists."""

    _sentence = "Database {} already exists in catalog {}."


class DatabaseNotExistError(_Existence):
    """The database of the table does not exist."""

    _sentence = "Database {} does not exist in catalog {}."


class InvalidNameError(CatalogError):
    """The store does not support the name of a table or database.

    Parameters
    ----------
    message : str
    name : str
        The part of the table's or database's name that is not valid.
    **facts
        As for all errors.
    """

    def __init__(self, message: str, *, name: str, **facts: Any) -> None:
        super().__init__(message, **facts)
        self.name = name


class MissingLocationError(CatalogError):
    """The statement creates an external table, but does not specify a location."""


class AtomicityNotSupportedError(CatalogError):
    """The statement cannot be made atomic, and ``spark.twophase.atomicity`` is ``required``."""


class ConfigurationError(TwoPhaseError):
    """A configuration value is invalid; nothing was started."""


class TransactionStatementError(TwoPhaseError):
    """A statement about transactions is misspelled, or is not possible where it was issued; nothing was changed."""


class TransactionAborted(TwoPhaseError):
    """The transaction was rolled back: nothing happened, and it may be run again."""


class WriteConflictError(TransactionAborted):
    """Another writer changed the target, or holds its reservation."""


class ConcurrentSchemaEvolutionError(WriteConflictError):
    """Two writers made incompatible changes to the schema of one table (Hudi RFC-82)."""


class SnapshotTooOldError(WriteConflictError):
    """A table has changed since the transaction began, and its earlier state can no longer be read."""


class WoundedError(TransactionAborted):
    """Another transaction needed a table that this one had reserved, and has rolled it back (wound-wait)."""


class LeaseLostError(TransactionAborted):
    """Another process recovered this transaction while this process did not renew its lease (it is fenced off)."""


class TransactionInDoubt(TwoPhaseError):
    """It is unknown whether the transaction was published, or it was partially published and that cannot be undone.

    Nothing was cleaned up; the message reports the known state of each table.

    It is deliberately not a :class:`TransactionAborted`: a caller must not retry it blindly.
    """


class TimelineError(TwoPhaseError):
    """The timeline cannot be opened, read or written."""
