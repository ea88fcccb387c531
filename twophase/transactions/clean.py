"""Removal of leftovers of dead transactions, and of superseded versions past their retention."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from twophase.catalog import Catalog, Leftover, SupportsCleaning
from twophase.errors import TimelineError
from twophase.protocol.states import TransactionState
from twophase.redaction import logger
from twophase.timeline.records import describe_error
from twophase.timeline.savepoints import SavepointRecord
from twophase.timeline.timeline import Timeline
from twophase.transactions import named_savepoints
from twophase.transactions.coordinator import Coordinator

__all__ = ["Cleaned", "clean"]

_log = logger("twophase")

#: Why a leftover of a committed transaction is kept: a listing without a use of it does not prove that it is unused.
UNMARKED = (
    "its transaction was committed, and no mark says that it was replaced since: its table was dropped by a session "
    "without twophase, or is not to be seen from here"
)
#: Kind of a leftover that is a superseded state of a table.
VERSION = "version"
#: Kind of what is kept for a savepoint, and of a catalog whose leftovers cannot be listed.
SAVEPOINT, CATALOG = "savepoint", "catalog"
#: Maximum difference in seconds between the clocks of the timeline and of those who supersede states.
_SKEW = 300.0
#: States of a dead transaction that may have been published.
_DECIDED = (TransactionState.COMMITTING, TransactionState.COMPLETED, TransactionState.IN_DOUBT)


@dataclass(frozen=True)
class Cleaned:
    """A leftover that was found in a store, and whether it was removed.

    Attributes
    ----------
    catalog : str
    leftover : Leftover
    removed : bool
    reason : str or None
        Why it was kept.
    failed : bool
        Whether its removal failed.
    """

    catalog: str
    leftover: Leftover
    removed: bool
    reason: str | None = None
    failed: bool = False

    def to_document(self) -> dict[str, Any]:
        """Convert it to a document for JSON output."""
        leftover = self.leftover
        return {
            "catalog": self.catalog,
            "kind": leftover.kind,
            "location": leftover.location,
            "size": leftover.size,
            "transaction_id": leftover.transaction_id,
            "since": leftover.since,
            "removed": self.removed,
            "reason": self.reason,
            "failed": self.failed,
        }


def clean(
    coordinator: Coordinator, catalogs: Iterable[Catalog], dry_run: bool = False, purge_dropped: Collection[str] = ()
) -> list[Cleaned]:
    """List and remove leftovers that are no longer needed; only those with the stamp of a transaction that has ended.

    Dead transactions are recovered first, including those of other coordinators. Transactions that are unknown to this
    timeline may be alive on another one: their leftovers are listed and kept.

    Parameters
    ----------
    coordinator : Coordinator
    catalogs : iterable of Catalog
        The catalogs to clean.
    dry_run : bool
        Only list; nothing is recovered either.
    purge_dropped : collection of str
        Dropped tables, as named in their leftovers, whose files are removed as well.

    Returns
    -------
    list of Cleaned
        In the order of the catalogs; errors are reported in it, not raised. One of a store that cannot list its
        leftovers is reported as a leftover of the kind ``catalog``.

    Raises
    ------
    TimelineError
        The timeline cannot be read: nothing was removed, because the live transactions are unknown.
    """
    timeline = coordinator.timeline
    known = {catalog.name: catalog for catalog in catalogs}
    if not dry_run:
        _remove_leftovers(coordinator)
    done = _clean_savepoints(timeline, known, dry_run)
    cleaning = [catalog for catalog in known.values() if isinstance(catalog, SupportsCleaning)]
    done += [one for catalog in cleaning for one in _try_one(timeline, catalog, dry_run, purge_dropped)]
    if not dry_run:
        coordinator.prune()
    return done


def _remove_leftovers(coordinator: Coordinator) -> None:
    """Retry the removal of what transactions could not remove at their end, by means of their participants."""
    coordinator.recover(own_only=False)
    for record in coordinator.timeline.transactions(left_behind=True):
        if not record.is_open:
            coordinator.recover(transaction_id=record.id)


def _clean_savepoints(timeline: Timeline, catalogs: Mapping[str, Catalog], dry_run: bool) -> list[Cleaned]:
    """Remove savepoints whose time is over, and what is left of dropped and of unfinished ones."""
    return [
        _clean_savepoint(timeline, record, why, catalogs, dry_run)
        for record, why in named_savepoints.savepoints_over(timeline)
    ]


def _clean_savepoint(
    timeline: Timeline, record: SavepointRecord, why: str, catalogs: Mapping[str, Catalog], dry_run: bool
) -> Cleaned:
    names = ", ".join(table.name for table in record.tables)
    found = Leftover(SAVEPOINT, f"savepoint {record.name} of {names}: {why}", -1, record.transaction_id, 0.0)
    catalog = record.tables[0].catalog if record.tables else ""
    missing = sorted({table.catalog for table in record.tables} - catalogs.keys())
    if missing:
        return Cleaned(catalog, found, removed=False, reason=f"this session has no catalog {missing[0]}")
    if dry_run:
        return Cleaned(catalog, found, removed=False)
    problem = named_savepoints.try_to_remove(timeline, record, catalogs.__getitem__)
    return Cleaned(catalog, found, removed=problem is None, reason=problem, failed=problem is not None)


def _try_one(
    timeline: Timeline, catalog: SupportsCleaning, dry_run: bool, purge_dropped: Collection[str]
) -> list[Cleaned]:
    """Clean one catalog; an error of its store does not prevent the others from being cleaned."""
    try:
        return _clean_one(timeline, catalog, dry_run, purge_dropped)
    except TimelineError:
        raise
    except Exception as error:
        _log.warning("Could not clean catalog %s: %s", catalog.name, error)
        found = Leftover(CATALOG, f"catalog {catalog.name}", -1, "", 0.0)
        why = f"not everything was looked at: {describe_error(error)}"
        return [Cleaned(catalog.name, found, removed=False, reason=why, failed=True)]


def _clean_one(
    timeline: Timeline, catalog: SupportsCleaning, dry_run: bool, purge_dropped: Collection[str]
) -> list[Cleaned]:
    retention = catalog.environment.retention
    now = timeline.now()
    living = frozenset(r.id for r in timeline.transactions(open_only=True) if not r.is_dead(now))
    found = [
        replace(leftover, kept=None) if leftover.dropped in purge_dropped else leftover
        for leftover in catalog.leftovers(live_transactions=living)
    ]
    keeping = _keeping(timeline, catalog)
    # After the store was listed: a transaction that began in between is then on the timeline, and its files are kept.
    needed = timeline.needed_since()
    reasons = [
        leftover.kept
        or keeping.get(leftover.uuid or leftover.dropped or "")
        or _why_needed(leftover, needed)
        or _why_kept(timeline, leftover, retention, dry_run)
        for leftover in found
    ]
    removable = [] if dry_run else [leftover for leftover, reason in zip(found, reasons, strict=True) if reason is None]
    errors = iter(catalog.remove_leftovers(removable))
    return [
        _removed(catalog, leftover, next(errors))
        if reason is None and not dry_run
        else Cleaned(catalog.name, leftover, removed=False, reason=reason)
        for leftover, reason in zip(found, reasons, strict=True)
    ]


def _keeping(timeline: Timeline, catalog: Catalog) -> dict[str, str]:
    """Why the files of dropped tables are kept for savepoints, by the identity of the table.

    Where it has none, by its name: it may have been renamed before it was dropped, and catalogs have several names.
    """
    found = {}
    for record in timeline.savepoints():
        why = f"savepoint {record.name} needs it; run: twophase drop-savepoint {shlex.quote(record.name)}"
        for table in record.tables:
            if (uuid := table.document.get("uuid")) is not None:
                found[str(uuid)] = why
            if table.catalog == catalog.name:
                found[f"{table.catalog}.{catalog.canonical(table.path)}"] = why
    return found


def _removed(catalog: Catalog, leftover: Leftover, error: Exception | None) -> Cleaned:
    if error is None:
        return Cleaned(catalog.name, leftover, removed=True)
    _log.warning("Could not remove %s: %s", leftover.location, error)
    return Cleaned(catalog.name, leftover, removed=False, reason=describe_error(error), failed=True)


def _why_needed(leftover: Leftover, needed: float | None) -> str | None:
    """Why a superseded state is kept for the snapshots of open transactions, whatever the retention."""
    if leftover.kind != VERSION or leftover.dropped is not None or needed is None or leftover.since < needed - _SKEW:
        return None
    return "the snapshot of an open transaction may need it"


def _why_kept(timeline: Timeline, leftover: Leftover, retention: float, dry_run: bool) -> str | None:
    if leftover.dropped is not None:
        return None  # It does not depend on a transaction.
    record = timeline.transaction(leftover.transaction_id)
    if record is None and (ended := timeline.how_ended(leftover.transaction_id)) is not None:
        # It ended long ago: its row has been pruned.
        return UNMARKED if leftover.unmarked and ended is TransactionState.COMPLETED else None
    if record is None:
        return "its transaction is not on this timeline; it may be alive on another one"
    if record.is_open:
        if not record.is_dead(timeline.now()):
            return f"its transaction is {record.state.name}"
        if dry_run and record.state not in _DECIDED:
            return None  # Recovery rolls it back.
        return f"its transaction is dead and {record.state.name}; run: twophase recover {record.id}"
    # Files that were once published may have readers, and may be in use where this session cannot see it.
    committed = record.state is TransactionState.COMPLETED
    if committed and leftover.unmarked:
        return UNMARKED
    if committed and leftover.holds_rows and (record.finished or 0.0) + retention > timeline.now():
        return "its transaction was committed, and its retention has not ended"
    return None
