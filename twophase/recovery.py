"""Carrying dead transactions to their end; two at once are safe, and it may be killed and repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from twophase import liveness, protocol
from twophase.actions import Plan, Verdict
from twophase.catalog import Catalog
from twophase.driver import Driver, Enlisted
from twophase.errors import ConfigurationError, LeaseLostError, TimelineError
from twophase.heartbeat import Heartbeat
from twophase.liveness import Lease, this_process
from twophase.records import LONGEST_SLEEP, Account, TransactionRecord, describe_error
from twophase.redaction import logger
from twophase.states import ParticipantState, TransactionState
from twophase.timeline import Timeline

_log = logger("twophase")


@dataclass(frozen=True)
class Recovered:
    """What became of one transaction that recovery looked at.

    Attributes
    ----------
    transaction_id : str
    found : TransactionState
        Its state before.
    state : TransactionState
        Its state now.
    left_behind : tuple of str
        What could not be removed.
    account : Account
        How the tables are, where the state does not say it of all of them.
    note : str or None
        Why nothing was done, or what went wrong.
    """

    transaction_id: str
    found: TransactionState
    state: TransactionState
    left_behind: tuple[str, ...] = ()
    account: Account = field(default_factory=Account)
    note: str | None = None

    def __str__(self) -> str:
        """In words, with the next command where there is one."""
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
    def doubtful(self) -> tuple[str, ...]:
        """Tables whose outcome is not known."""
        return self.account.doubtful

    @property
    def is_resolved(self) -> bool:
        """Whether the outcome is known now."""
        return self.state.is_final

    def to_document(self) -> dict[str, Any]:
        """For JSON output."""
        return {
            "id": self.transaction_id,
            "found": self.found.value,
            "state": self.state.value,
            "left_behind": list(self.left_behind),
            "doubtful": list(self.doubtful),
            "published": list(self.account.published),
            "undone": list(self.account.undone),
            "not_published": list(self.account.missing),
            "note": self.note,
        }


class Recovery:
    """Recovers transactions of one timeline.

    Parameters
    ----------
    timeline : Timeline
    resolve : callable
        From a catalog's name to the catalog.
    heartbeat : Heartbeat
    lease_seconds : float
    """

    def __init__(
        self, timeline: Timeline, resolve: Callable[[str], Catalog], heartbeat: Heartbeat, lease_seconds: float
    ) -> None:
        self._timeline = timeline
        self._resolve = resolve
        self._heartbeat = heartbeat
        self._lease_seconds = lease_seconds

    def all_dead(self, coordinator: str | None) -> list[Recovered]:
        """Recover every dead transaction, the oldest first; of one coordinator only, where one is given."""
        records = self._timeline.transactions(open_only=True, coordinator=coordinator)
        return [self._attempt(record) for record in reversed(records) if self.is_dead(record)]

    def is_dead(self, record: TransactionRecord) -> bool:
        """Whether an open transaction may be taken over; a lease that lasts for ever is made one that ends."""
        now = self._timeline.now()
        if record.outlasts_itself(now):
            self._timeline.shorten_lease(record)
        return record.is_dead(now)

    def decided_elsewhere(self, coordinator: str) -> list[Recovered]:
        """Carry on what dead processes of other coordinators had decided, where all that it takes is here."""
        records = self._timeline.transactions(open_only=True)
        now = self._timeline.now() if records else 0.0
        dead = [r for r in reversed(records) if r.coordinator != coordinator and r.is_certainly_dead(now)]
        return [self._attempt(r) for r in dead if not r.state.is_undecided and self._is_at_home(r)]

    def _is_at_home(self, record: TransactionRecord) -> bool:
        try:
            self._restore(record)
        except Exception as error:  # A catalog that is not here, or another one of that name.
            _log.debug("Transaction %s cannot be recovered here: %s", record.id, error)
            return False
        return True

    def one(self, transaction_id: str, assumed: TransactionState | None = None) -> Recovered:
        """Recover one transaction, whosever it is; a finished one that left something behind is cleaned up again.

        Raises
        ------
        ConfigurationError
            The timeline does not know it, or there is nothing to assume.
        """
        record = self._timeline.transaction(transaction_id)
        if record is None and (end := self._timeline.how_ended(transaction_id)) is not None:
            return Recovered(transaction_id, end, end, note="It ended long ago; nothing is left to do.")
        if record is None:
            raise ConfigurationError(
                f"There is no transaction {transaction_id} on the timeline {self._timeline.display_url}.",
                hint="List them with: twophase timeline",
            )
        if not record.is_open and not record.left_behind:
            return _untouched(record, "It has ended; nothing is left to do.")
        if not self.is_dead(record):
            return _untouched(record, f"It is alive, in {record.owner}: it was left alone.")
        if assumed is not None and record.state not in (TransactionState.COMMITTING, TransactionState.IN_DOUBT):
            raise ConfigurationError(
                f"Transaction {transaction_id} is {record.state.name}: there is nothing to assume.",
                hint=f"Run: twophase recover {transaction_id}",
            )
        return self._attempt(record, assumed)

    def _attempt(self, record: TransactionRecord, assumed: TransactionState | None = None) -> Recovered:
        """Errors of one transaction do not keep the others from being recovered."""
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
        self._restore(record)  # Before it is taken over: a catalog that is not configured here leaves all as it is.
        lease = self._timeline.take_over(record, this_process(), self._lease_seconds)
        if lease is None:
            return _untouched(record, "Another process is recovering it.")
        with self._working(lease):
            taken = self._timeline.transaction(record.id)
            assert taken is not None
            members = self._restore(taken)
            driver = Driver(self._timeline, lease, members)
            plan = replace(driver.plan(), may_undo=not self._is_stale(taken, members))
            steps = protocol.recover(record.state, plan, certainly_dead=certainly_dead)
            verdict = driver.run(protocol.assume(plan, assumed) if assumed is not None else steps)
        if driver.interrupt is not None:
            raise driver.interrupt
        return self._report(record, driver, verdict, plan)

    def _is_stale(self, record: TransactionRecord, members: list[Enlisted]) -> bool:
        """Whether it was decided so long ago that a store may have cleaned away what would show a publish."""
        kept = min((member.catalog.environment.retention for member in members), default=LONGEST_SLEEP)
        decided = self._timeline.now() if record.decided is None else record.decided
        return self._timeline.now() - decided > max(kept, LONGEST_SLEEP)

    def _restore(self, record: TransactionRecord) -> list[Enlisted]:
        """The participants that still matter, over the catalogs of this session."""
        members = []
        for found in record.participants:
            if found.document is None or found.state is ParticipantState.DISCARDED:
                continue
            catalog = self._resolve(found.catalog)
            members.append(Enlisted(found.ordinal, catalog, catalog.restore(found.document), found.state))
        return members

    @contextmanager
    def _working(self, lease: Lease) -> Iterator[None]:
        liveness.hold(lease.transaction_id)
        self._heartbeat.add(lease)
        try:
            yield
        finally:
            self._heartbeat.remove(lease.transaction_id)
            liveness.release(lease.transaction_id)
            with suppress(LeaseLostError, TimelineError):  # It is finished, or its lease will run out.
                self._timeline.give_up(lease)

    def _report(self, record: TransactionRecord, driver: Driver, verdict: Verdict, plan: Plan) -> Recovered:
        problems = [text for problem in verdict.problems if (text := describe_error(problem))]
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


def _untouched(record: TransactionRecord, note: str) -> Recovered:
    return Recovered(record.id, record.state, record.state, record.left_behind, note=note)
