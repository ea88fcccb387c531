"""Recovery of dead transactions; concurrent recoveries are safe, and a killed one can be repeated."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.catalog import Catalog
from twophase.errors import ConfigurationError, LeaseLostError, TimelineError
from twophase.protocol import machine
from twophase.protocol.actions import Plan, Verdict
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.redaction import logger
from twophase.timeline import owners
from twophase.timeline.heartbeat import Heartbeat
from twophase.timeline.owners import Lease, this_process
from twophase.timeline.records import LONGEST_SLEEP, Account, TransactionRecord, describe_error
from twophase.timeline.timeline import Timeline
from twophase.timeline.waits import Wound
from twophase.transactions.driver import Driver, Enlisted
from twophase.transactions.observer import Cause, Ended, Observer, title_of

_log = logger("twophase")

#: The kind of the cause, where there was no error: the process that ran it has ended before it.
PROCESS_GONE = "process_gone"
_GONE = "its process ended before it was decided"


@dataclass(frozen=True)
class Recovered:
    """The result of recovering one transaction.

    Attributes
    ----------
    transaction_id : str
    found : TransactionState
        Its state before.
    state : TransactionState
        Its state now.
    left_behind : tuple of str
        Leftovers that could not be removed.
    account : Account
        The outcome of each table, if the state does not apply to all of them.
    note : str or None
        Why nothing was done, or what failed.
    is_open : bool
        Whether something is left to do although the outcome is known, as a part that readers still see.
    """

    transaction_id: str
    found: TransactionState
    state: TransactionState
    left_behind: tuple[str, ...] = ()
    account: Account = field(default_factory=Account)
    note: str | None = None
    is_open: bool = False

    def __str__(self) -> str:
        """Describe it, including the next command if there is one."""
        words = [f"transaction {self.transaction_id} was {self.found.name} and is {self.state.name}"]
        words += [self.note.rstrip(".")] if self.note else []
        words += self.account.words()
        words += [f"left behind: {', '.join(self.left_behind)}"] if self.left_behind else []
        if not self.is_resolved:
            words.append(f"see twophase show {self.transaction_id}, and run twophase recover {self.transaction_id}")
            words += self.account.advice()
        elif self.left_behind:
            words.append("remove it with twophase clean")
        return "; ".join(words) + "."

    @property
    def unknown(self) -> tuple[str, ...]:
        """The tables whose outcome is unknown."""
        return self.account.unknown

    @property
    def is_resolved(self) -> bool:
        """Whether the outcome is now known, and nothing has to be done for it."""
        return self.state.is_final and not self.is_open

    def to_document(self) -> dict[str, Any]:
        """Convert it to a document for JSON output."""
        return {
            "id": self.transaction_id,
            "found": self.found.value,
            "state": self.state.value,
            "left_behind": list(self.left_behind),
            "unknown": list(self.unknown),
            "published": list(self.account.published),
            "undone": list(self.account.undone),
            "not_published": list(self.account.not_published),
            "in_part": list(self.account.in_part),
            "unfinished": list(self.account.unfinished),
            "note": self.note,
            "is_open": self.is_open,
        }


class Recovery:
    """The recovery of the transactions of one timeline.

    Parameters
    ----------
    timeline : Timeline
    resolve : callable
        Maps a catalog's name to the catalog.
    heartbeat : Heartbeat
    lease_seconds : float
    observer : Observer
    """

    def __init__(
        self,
        timeline: Timeline,
        resolve: Callable[[str], Catalog],
        heartbeat: Heartbeat,
        lease_seconds: float,
        observer: Observer,
    ) -> None:
        self._timeline = timeline
        self._resolve = resolve
        self._heartbeat = heartbeat
        self._lease_seconds = lease_seconds
        self._observer = observer

    def all_dead(self, coordinator: str | None) -> list[Recovered]:
        """Recover all dead transactions, the oldest first; if a coordinator is given, only its own."""
        records = self._timeline.transactions(open_only=True, coordinator=coordinator)
        return [self._attempt(record) for record in reversed(records) if self.is_dead(record)]

    def is_dead(self, record: TransactionRecord) -> bool:
        """Return whether an open transaction may be taken over; shorten its lease if it would last forever."""
        now = self._timeline.now()
        if record.outlasts_itself(now):
            self._timeline.shorten_lease(record)
        return record.is_dead(now)

    def decided_elsewhere(self, coordinator: str) -> list[Recovered]:
        """Complete decided transactions of other coordinators' dead processes, if all their catalogs are available."""
        records = self._timeline.transactions(open_only=True)
        now = self._timeline.now() if records else 0.0
        dead = [r for r in reversed(records) if r.coordinator != coordinator and r.is_certainly_dead(now)]
        return [self._attempt(r) for r in dead if not r.state.is_undecided and self._is_at_home(r)]

    def _is_at_home(self, record: TransactionRecord) -> bool:
        try:
            self._restore(record)
        except Exception as error:  # A catalog is not available, or it is a different one of that name.
            _log.debug("Transaction %s cannot be recovered here: %s", record.id, error)
            return False
        return True

    def one(self, transaction_id: str, assumed: TransactionState | None = None) -> Recovered:
        """Recover one transaction of any coordinator; a finished one with leftovers is cleaned up again.

        Raises
        ------
        ConfigurationError
            It is unknown to the timeline, or its outcome need not be assumed.
        """
        record = self._timeline.transaction(transaction_id)
        state = self._timeline.how_ended(transaction_id) if record is None else record.state
        if assumed is not None and state is not None and state.is_final and assumed is not state:
            raise _nothing_to_assume(transaction_id, state)
        if record is None and state is not None:
            return Recovered(transaction_id, state, state, note="It ended long ago; nothing is left to do.")
        if record is None:
            raise ConfigurationError(
                f"There is no transaction {transaction_id} on the timeline {self._timeline.display_url}.",
                hint="List them with: twophase timeline",
            )
        if not record.is_open and not record.left_behind:
            return _untouched(record, "It has ended; nothing is left to do.")
        if not self.is_dead(record):
            return _untouched(record, f"It is alive, in {record.owner}: it was left alone.")
        if assumed is not None and not _may_assume(record):
            raise _nothing_to_assume(transaction_id, record.state)
        return self._attempt(record, assumed)

    def wound(self, record: TransactionRecord, wound: Wound) -> bool:
        """Roll back a live transaction, and return whether it was still undecided and could be ended from here."""
        if not record.state.is_undecided or not self._is_at_home(record):
            return False
        lease = self._timeline.take_over(record, this_process(), self._lease_seconds, wound)
        if lease is None:
            return False
        try:
            self._carry_out(record, lease, certainly_dead=False)
        except Exception as error:  # It can no longer be published: whoever meets it next rolls it back.
            _log.warning("Could not roll transaction %s back, which was wounded: %s", record.id, error)
        return True

    def _attempt(self, record: TransactionRecord, assumed: TransactionState | None = None) -> Recovered:
        """Recover one transaction; its errors do not prevent the recovery of other ones."""
        try:
            return self._recover(record, assumed)
        except LeaseLostError:
            after = self._timeline.transaction(record.id) or record
            return replace(_untouched(after, "Another process has taken it over meanwhile."), found=record.state)
        except Exception as error:
            _log.warning("Could not recover transaction %s: %s", record.id, error)
            return _untouched(record, describe_error(error) or "")

    def _recover(self, record: TransactionRecord, assumed: TransactionState | None) -> Recovered:
        certainly_dead = record.is_certainly_dead(self._timeline.now())
        # Before it is taken over: if a catalog is not configured here, nothing is changed.
        members = self._restore(record)
        lease = self._timeline.take_over(record, this_process(), self._lease_seconds)
        if lease is None:
            return _untouched(record, "Another process is recovering it.")
        recovered = self._carry_out(record, lease, assumed, certainly_dead=certainly_dead)
        # One that was wounded is reported by its own process.
        if record.is_open and _is_news(record, recovered):
            self._observer.ended(_end(self._timeline, record, members, recovered))
        return recovered

    def _carry_out(
        self,
        record: TransactionRecord,
        lease: Lease,
        assumed: TransactionState | None = None,
        *,
        certainly_dead: bool,
    ) -> Recovered:
        with self._working(lease):
            taken = self._timeline.transaction(record.id)
            assert taken is not None
            members = self._restore(taken)
            driver = Driver(self._timeline, lease, members)
            plan = replace(driver.plan(), may_undo=not self._is_stale(taken, members))
            steps = machine.recover(record.state, plan, certainly_dead=certainly_dead, has_ended=not record.is_open)
            verdict = driver.run(machine.assume(plan, record.state, assumed) if assumed is not None else steps)
        if driver.interrupt is not None:
            raise driver.interrupt
        return self._report(record, driver, verdict, plan)

    def _is_stale(self, record: TransactionRecord, members: list[Enlisted]) -> bool:
        """Return whether it was decided so long ago that a store may have cleaned up the evidence of a publish.

        This is also assumed if the timeline has no time of the decision, because it is older than the decision.
        """
        if record.decided is None:
            return True
        kept = min((member.catalog.environment.retention for member in members), default=LONGEST_SLEEP)
        return self._timeline.now() - record.decided > max(kept, LONGEST_SLEEP)

    def _restore(self, record: TransactionRecord) -> list[Enlisted]:
        """Restore the relevant participants, with the catalogs of this session."""
        members = []
        for found in record.participants:
            if found.document is None or found.state is ParticipantState.DISCARDED:
                continue
            catalog = self._resolve(found.catalog)
            members.append(Enlisted(found.ordinal, catalog, catalog.restore(found.document), found.state))
        return members

    @contextmanager
    def _working(self, lease: Lease) -> Iterator[None]:
        owners.hold(lease.transaction_id)
        self._heartbeat.add(lease)
        try:
            yield
        finally:
            self._heartbeat.remove(lease.transaction_id)
            owners.release(lease.transaction_id)
            with suppress(LeaseLostError, TimelineError):  # It is finished, or its lease will expire.
                self._timeline.give_up(lease)

    def _report(self, record: TransactionRecord, driver: Driver, verdict: Verdict, plan: Plan) -> Recovered:
        others = (problem for problem in verdict.problems if problem is not verdict.error)
        problems = [text for problem in others if (text := describe_error(problem))]
        if verdict.error is not None:
            problems.insert(0, describe_error(verdict.error) or "")
        if verdict.state is TransactionState.IN_DOUBT and verdict.published and not plan.may_undo:
            problems.append(
                "it was decided longer ago than replaced versions are kept, so nothing of it is undone; where it had "
                "ended well, and its timeline was restored from a backup since, say so with: "
                f"twophase recover {record.id} --assume committed"
            )
        return Recovered(
            transaction_id=record.id,
            found=record.state,
            state=verdict.state,
            left_behind=verdict.left_behind,
            account=driver.account(verdict),
            note="; ".join(problems) or None,
        )


def _end(timeline: Timeline, record: TransactionRecord, members: Iterable[Enlisted], recovered: Recovered) -> Ended:
    is_published, first = recovered.state is TransactionState.COMPLETED, record.participants[:1]
    otherwise = {*recovered.account.not_published, *recovered.account.undone} if is_published else set()
    going = (member for member in members if member.state.takes_part and member.name not in otherwise)
    return Ended(
        transaction_id=record.id,
        state=recovered.state,
        seconds=max(time.time() - record.created, 0.0),
        timeline=timeline,
        title=title_of(first[0].purpose, first[0].name) if first else None,
        written=tuple((member.catalog, member.participant) for member in going),
        cause=None if is_published else Cause(PROCESS_GONE, recovered.note or _GONE),
        by_recovery=True,
    )


def _is_news(record: TransactionRecord, recovered: Recovered) -> bool:
    """Whether it has ended by this, or is in doubt and was not before; whoever has suspended it has reported that."""
    was_reported = record.state.is_final and record.lease_until == 0
    return recovered.is_resolved or (recovered.state is not record.state and not was_reported)


def _may_assume(record: TransactionRecord) -> bool:
    """Whether an operator may end it; what is left to remove of one whose outcome is known can only be given up."""
    return record.is_open and not record.state.is_undecided


def _nothing_to_assume(transaction_id: str, state: TransactionState) -> ConfigurationError:
    return ConfigurationError(
        f"Transaction {transaction_id} is {state.name}: there is nothing to assume.",
        hint=f"Run: twophase recover {transaction_id}",
    )


def _untouched(record: TransactionRecord, note: str) -> Recovered:
    return Recovered(record.id, record.state, record.state, record.left_behind, note=note, is_open=record.is_open)
