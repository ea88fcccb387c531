"""Removing what dead transactions left behind, and replaced versions past their retention."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from twophase.catalog import Catalog, Residue
from twophase.coordinator import Coordinator
from twophase.records import describe_error
from twophase.redaction import logger
from twophase.states import TransactionState
from twophase.timeline import Timeline

__all__ = ["Cleaned", "clean"]

_log = logger("twophase")

#: Why what a committed transaction made is kept: a listing without its user is no evidence that it has none.
UNMARKED = (
    "its transaction was committed, and no mark says that it was replaced since: its table was dropped by a session "
    "without twophase, or is not to be seen from here"
)
#: States of a dead transaction that may have been published.
_DECIDED = (TransactionState.COMMITTING, TransactionState.COMPLETED, TransactionState.IN_DOUBT)


@dataclass(frozen=True)
class Cleaned:
    """Something that was found in a store, and what was done with it.

    Attributes
    ----------
    catalog : str
    residue : Residue
    removed : bool
    reason : str or None
        Why it was kept.
    failed : bool
        Whether it was to be removed, and could not be.
    """

    catalog: str
    residue: Residue
    removed: bool
    reason: str | None = None
    failed: bool = False

    def to_document(self) -> dict[str, Any]:
        """For JSON output."""
        residue = self.residue
        return {
            "catalog": self.catalog,
            "kind": residue.kind,
            "location": residue.location,
            "size": residue.size,
            "transaction_id": residue.transaction_id,
            "since": residue.since,
            "removed": self.removed,
            "reason": self.reason,
            "failed": self.failed,
        }


def clean(coordinator: Coordinator, catalogs: Iterable[Catalog], dry_run: bool = False) -> list[Cleaned]:
    """List and remove what nobody needs any more; only what carries the stamp of a transaction that has ended.

    Dead transactions are recovered first, whosever they are. Transactions that this timeline does not know may be alive
    on another one: what they made is listed and kept.

    Parameters
    ----------
    coordinator : Coordinator
    catalogs : iterable of Catalog
        Where to look.
    dry_run : bool
        Only list; nothing is recovered either.

    Returns
    -------
    list of Cleaned
        In the order of the catalogs; errors stand in it and are not raised.

    Raises
    ------
    TimelineError
        The timeline cannot be read: nothing was removed, as nobody knows what is alive.
    """
    timeline = coordinator.timeline
    if not dry_run:
        _remove_leftovers(coordinator)
    done = [one for catalog in catalogs for one in _clean_one(timeline, catalog, dry_run)]
    if not dry_run:
        coordinator.prune()
    return done


def _remove_leftovers(coordinator: Coordinator) -> None:
    """What a transaction could not remove at its end is tried again, by the participants themselves."""
    coordinator.recover(own_only=False)
    for record in coordinator.timeline.transactions(left_behind=True):
        if not record.is_open:
            coordinator.recover(transaction_id=record.id)


def _clean_one(timeline: Timeline, catalog: Catalog, dry_run: bool) -> list[Cleaned]:
    retention = catalog.environment.retention
    now = timeline.now()
    living = frozenset(r.id for r in timeline.transactions(open_only=True) if not r.is_dead(now))
    found = catalog.residues(live_transactions=living)
    # Asked after the store was: a transaction that began in between is on the timeline, and kept.
    reasons = [residue.kept or _why_kept(timeline, residue, retention, dry_run) for residue in found]
    removable = [] if dry_run else [residue for residue, reason in zip(found, reasons, strict=True) if reason is None]
    errors = iter(catalog.remove_residues(removable))
    return [
        _removed(catalog, residue, next(errors))
        if reason is None and not dry_run
        else Cleaned(catalog.name, residue, removed=False, reason=reason)
        for residue, reason in zip(found, reasons, strict=True)
    ]


def _removed(catalog: Catalog, residue: Residue, error: Exception | None) -> Cleaned:
    if error is None:
        return Cleaned(catalog.name, residue, removed=True)
    _log.warning("Could not remove %s: %s", residue.location, error)
    return Cleaned(catalog.name, residue, removed=False, reason=describe_error(error), failed=True)


def _why_kept(timeline: Timeline, residue: Residue, retention: float, dry_run: bool) -> str | None:
    record = timeline.transaction(residue.transaction_id)
    if record is None and (ended := timeline.how_ended(residue.transaction_id)) is not None:
        # Long ago: its row is pruned.
        return UNMARKED if residue.unmarked and ended is TransactionState.COMPLETED else None
    if record is None:
        return "its transaction is not on this timeline; it may be alive on another one"
    if record.is_open:
        if not record.is_dead(timeline.now()):
            return f"its transaction is {record.state.name}"
        if dry_run and record.state not in _DECIDED:
            return None  # Recovery rolls it back.
        return f"its transaction is dead and {record.state.name}; run: twophase recover {record.id}"
    # What was published once may have readers, and may be in use where this session cannot look.
    committed = record.state is TransactionState.COMPLETED
    if committed and residue.unmarked:
        return UNMARKED
    if committed and residue.holds_rows and (record.finished or 0.0) + retention > timeline.now():
        return "its transaction was committed, and its retention has not ended"
    return None
