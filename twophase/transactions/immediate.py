"""Changes of tables that take effect immediately, outside any transaction, and have a commit number all the same.

Around such a statement there are two short writes to the timeline: it is announced, and then settled. A block whose
snapshot is older reads the state before it, where the catalog still has that, or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog, SchemaChange, SupportsSnapshots
from twophase.errors import LeaseLostError, TwoPhaseError
from twophase.model import ObjectPath, Purpose
from twophase.redaction import logger
from twophase.timeline.immediate import Immediate
from twophase.timeline.owners import Lease
from twophase.transactions.coordinator import Coordinator

_log = logger("twophase")


@dataclass(frozen=True)
class Before:
    """The state of a table before a change.

    Attributes
    ----------
    exists : bool
    document : Any
        What the catalog needs to read it after the change; None if there is nothing.
    """

    exists: bool
    document: Any = None


@dataclass(frozen=True)
class TableChange:
    """A change of one table.

    Attributes
    ----------
    catalog : Catalog
    path : ObjectPath
    purpose : Purpose
        ``ALTER_TABLE``, ``DROP_TABLE``, ``CREATE_TABLE_AS``, or ``INSERT_OVERWRITE`` for a change of rows.
    schema : callable
        Called after the change: what it has changed of the columns; None if that is not recorded.
    known : Before or None
        The state of the table before the change, if the caller has looked.
    """

    catalog: Catalog
    path: ObjectPath
    purpose: Purpose
    schema: Callable[[], SchemaChange | None] = lambda: None
    known: Before | None = None

    @property
    def target(self) -> ObjectPath:
        """The canonical name of the table."""
        return self.catalog.canonical(self.path)

    def before(self) -> Before:
        """Return the state of the table before the change."""
        return self.now() if self.known is None else self.known

    def now(self) -> Before:
        """Return the state of the table now."""
        exists = self.catalog.table_exists(self.path)
        if not isinstance(self.catalog, SupportsSnapshots) or exists == self.purpose.creates:
            return Before(exists)
        return Before(exists, self.catalog.state_before(self.path, self.purpose))

    def is_undone(self, before: Before) -> bool:
        """Return whether a change that failed has left the table as it was; False if that is unknown."""
        if self.purpose is not Purpose.ALTER_TABLE or before.document is not None:
            return self.now() == before
        found = self.schema()
        return found is not None and found.after == found.before


class Announced:
    """Changes that are about to be made.

    Parameters
    ----------
    coordinator : Coordinator
    changes : sequence of TableChange
    since : int, optional
        The last commit number before the caller has looked at the tables; None if it has not.

    Raises
    ------
    TimelineError
        They cannot be recorded; nothing was changed.
    """

    def __init__(self, coordinator: Coordinator, changes: Sequence[TableChange], since: int | None = None) -> None:
        self._coordinator = coordinator
        self._changes = changes
        if since is None:
            since = coordinator.timeline.last_number()
        self._before = [change.before() for change in changes]
        found = [
            Immediate(change.catalog.name, change.target, change.purpose, before.document)
            for change, before in zip(changes, self._before, strict=True)
        ]
        self._lease = coordinator.announce(found, since)

    def settle(self) -> None:
        """Record that the changes are made. If that fails, recovery does it."""
        with self._ending() as lease:
            schemas = [(c.catalog.name, c.target, found) for c in self._changes if (found := _schema(c)) is not None]
            self._coordinator.timeline.settle(lease, schemas)

    def failed(self) -> None:
        """Forget the changes if nothing was changed; otherwise, or if that is unknown, they count."""
        if self._is_undone():
            self.revoke()
        else:
            self.settle()

    def revoke(self) -> None:
        """Forget the changes: no table was changed."""
        with self._ending() as lease:
            self._coordinator.timeline.revoke(lease)

    def _is_undone(self) -> bool:
        try:
            return all(change.is_undone(b) for change, b in zip(self._changes, self._before, strict=True))
        except Exception as error:
            _log.debug("It is unknown whether a statement that failed has changed anything: %s", error)
            return False

    @contextmanager
    def _ending(self) -> Iterator[Lease]:
        try:
            yield self._lease
        except LeaseLostError:
            pass  # A recovery has given them their number.
        except TwoPhaseError as error:
            names = ", ".join(f"{change.catalog.name}.{change.path}" for change in self._changes)
            _log.warning("%s changed, and the timeline does not say so before a recovery: %s", names, error)
        finally:
            self._coordinator.ended(self._lease.transaction_id)


def _schema(change: TableChange) -> SchemaChange | None:
    try:
        return change.schema()
    except Exception as error:  # The statement's own outcome counts.
        _log.warning("%s was changed, and the timeline has no record of its columns: %s", change.path, error)
        return None


@contextmanager
def changing(coordinator: Coordinator, *changes: TableChange) -> Iterator[None]:
    """Make changes that take effect immediately, and give them a commit number.

    Raises
    ------
    TimelineError
        They cannot be recorded; nothing was changed.
    """
    if not changes:
        yield
        return
    announced = Announced(coordinator, changes)
    try:
        yield
    except BaseException:
        announced.failed()
        raise
    announced.settle()
