"""The observers of a coordinator: they are notified of what becomes of its transactions, and change nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.model import ObjectPath, Purpose
from twophase.protocol.states import TransactionState
from twophase.redaction import logger
from twophase.timeline.records import first_line
from twophase.timeline.timeline import Timeline

_log = logger("twophase")


#: A table that was read, and its version; None if that is unknown.
TableRead = tuple[Catalog, ObjectPath, Any]


@dataclass(frozen=True)
class Cause:
    """Why a transaction has not been published.

    Attributes
    ----------
    kind : str
        The class of the error.
    text : str
        Its first line, without anything that looks like a secret.
    """

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Cause:
        """Describe an error, without keeping it: its traceback keeps the transaction."""
        return cls(type(error).__name__, first_line(error))


@dataclass(frozen=True)
class Ended:
    """The end of a transaction, or that it is in doubt.

    Attributes
    ----------
    transaction_id : str
    state : TransactionState
        ``COMPLETED``, ``ROLLED_BACK`` or ``IN_DOUBT``.
    seconds : float
        How long it has lasted.
    timeline : Timeline
        Where it is recorded.
    title : str or None
        What its first statement does, and to which table, as in :meth:`Observer.began`; None if it has only read.
    written : tuple of (Catalog, TwoPhaseCatalogTable)
        What it has published, or would have.
    read : tuple of (Catalog, ObjectPath, Any)
        The tables that it has read, in which versions (None if unknown); as far as the process that ends it knows.
    cause : Cause or None
        Why it was not published; None if it was, or if a rollback was requested without an error.
    by_recovery : bool
        Whether it was ended for a process that is dead.
    """

    transaction_id: str
    state: TransactionState
    seconds: float
    timeline: Timeline
    title: str | None = None
    written: tuple[tuple[Catalog, TwoPhaseCatalogTable], ...] = ()
    read: tuple[TableRead, ...] = ()
    cause: Cause | None = None
    by_recovery: bool = False


def title_of(purpose: Purpose, name: str) -> str:
    """Return the title of a transaction, from its first statement and the table that it writes."""
    return f"{purpose.value}.{name}"


class Observer:
    """Observer of a coordinator; each method does nothing unless a subclass overrides it.

    The methods are called on the threads of the transactions, and must be quick. Their errors are logged.
    """

    #: Whether it wants to know what statements outside of blocks read, which costs a look at their plans.
    wants_reads: bool = False

    def opened(self, timeline: Timeline) -> None:
        """Called when a coordinator begins to use a timeline."""

    def closed(self, timeline: Timeline) -> None:
        """Called when it no longer does."""

    def began(self, transaction_id: str, title: str) -> None:
        """Called when the first statement of a transaction that writes is recorded, before it writes."""

    def ended(self, end: Ended) -> None:
        """Called when a transaction has ended, or its outcome is in doubt: once by its own process, and by a recovery
        if that changes its state, or ends what was left open.
        """

    def conflicted(self, error: BaseException) -> None:
        """Called when a statement or a commit was refused because of another transaction or writer."""

    def waited(self, seconds: float, error: BaseException | None) -> None:
        """Called after a wait for other transactions, which was in vain if there is an error."""


class Observers(Observer):
    """Notifies several observers; the error of one neither reaches the transaction nor the others."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        self.wants_reads = any(observer.wants_reads for observer in self._observers)

    def opened(self, timeline: Timeline) -> None:
        self._notify("opened", timeline)

    def closed(self, timeline: Timeline) -> None:
        self._notify("closed", timeline)

    def began(self, transaction_id: str, title: str) -> None:
        self._notify("began", transaction_id, title)

    def ended(self, end: Ended) -> None:
        self._notify("ended", end)

    def conflicted(self, error: BaseException) -> None:
        self._notify("conflicted", error)

    def waited(self, seconds: float, error: BaseException | None) -> None:
        self._notify("waited", seconds, error)

    def _notify(self, event: str, *arguments: Any) -> None:
        for observer in self._observers:
            try:
                getattr(observer, event)(*arguments)
            except Exception as error:
                _log.warning("%s failed in %s: %s", type(observer).__name__, event, error, exc_info=error)
