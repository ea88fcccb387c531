"""The one that performs the protocol's actions, for a live transaction and for a recovery alike."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import singledispatchmethod
from typing import Any, TypeVar

from twophase import actions, protocol
from twophase.actions import Plan, Reply, Unit, Verdict
from twophase.catalog import Catalog, TwoPhaseCatalogTable
from twophase.errors import TimelineError, TransactionAborted, TwoPhaseError
from twophase.failpoints import declare, step
from twophase.liveness import Lease
from twophase.model import Level, ObjectPath, Outcome
from twophase.records import Account, ParticipantRecord
from twophase.redaction import logger
from twophase.reservations import Holder, Patience, Reservation
from twophase.states import ParticipantState, TransactionState
from twophase.timeline import Timeline

_log = logger("twophase")
_T = TypeVar("_T")

declare(
    "core.prepare",
    "core.persist",
    "core.publish",
    "core.outcome",
    "core.compensate",
    "core.abort",
    "core.finish",
)

SEVERAL_PUBLISHES = "several publishes, one after the other"
_WITH_LEVEL = (ParticipantState.PREPARED, ParticipantState.PUBLISHED)
#: How those end that an operator's decision does not fit.
_OTHERWISE = {
    TransactionState.COMPLETED: ParticipantState.ABORTED,
    TransactionState.ROLLED_BACK: ParticipantState.PUBLISHED,
}


@dataclass
class Enlisted:
    """A participant inside its transaction.

    Parameters
    ----------
    ordinal : int
    catalog : Catalog
    participant : TwoPhaseCatalogTable
    state : ParticipantState
    supersedes : Enlisted, optional
        The earlier participant of the same table.
    was : ParticipantState
        Its state before another one superseded it.
    written : bool
        Whether all its rows are staged. Only the live transaction knows and needs it: an undecided one that is
        recovered is rolled back, and of a decided one all was written.
    failure : str, optional
        Why it never will be written: what its ``begin`` or ``write`` raised.
    """

    ordinal: int
    catalog: Catalog
    participant: TwoPhaseCatalogTable
    state: ParticipantState = ParticipantState.STAGED
    supersedes: Enlisted | None = None
    was: ParticipantState = ParticipantState.STAGED
    written: bool = False
    failure: str | None = None
    saved: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Catalog and table, as a user writes it."""
        return f"{self.catalog.name}.{self.participant.path}"

    @property
    def target(self) -> ObjectPath:
        """The table in its one spelling: what is reserved."""
        return self.catalog.canonical(self.participant.path)

    def reservation(self) -> Reservation:
        """What its publish needs of the table: also for the earlier statements that it has taken in."""
        own = Reservation.of(self.participant)
        return own if self.supersedes is None else own.joined(self.supersedes.reservation())

    def to_record(self) -> ParticipantRecord:
        """What the timeline keeps of it."""
        participant = self.participant
        return ParticipantRecord(
            ordinal=self.ordinal,
            catalog=self.catalog.name,
            path=self.target,
            purpose=participant.purpose,
            state=self.state,
            level=participant.level if self.state in _WITH_LEVEL else None,
            document=participant.document,
        )

    def to_member(self) -> actions.Member:
        """What the protocol knows of it."""
        grouping = self.catalog.capabilities.group_publish
        return actions.Member(
            ordinal=self.ordinal,
            catalog=self.catalog.name,
            path=tuple(self.target.to_document()),
            state=self.state,
            group=self.catalog.group_key(self.participant) if grouping else None,
            can_undo=self.participant.can_undo,
        )

    def changed(self) -> bool:
        """Whether the document differs from what the timeline has; remembers it as saved."""
        text = json.dumps(self.participant.document, sort_keys=True)
        changed, self.saved = text != self.saved, text
        return changed


class Driver:
    """Performs actions on the stores and on the timeline.

    Parameters
    ----------
    timeline : Timeline
    lease : Lease
    enlisted : iterable of Enlisted
    patience : Patience, optional
        Waits for those that hold reservations; None: nobody is waited for.
    """

    def __init__(
        self,
        timeline: Timeline,
        lease: Lease,
        enlisted: Iterable[Enlisted],
        *,
        patience: Patience | None = None,
    ) -> None:
        self._timeline = timeline
        self._lease = lease
        self._enlisted = {member.ordinal: member for member in enlisted}
        self._patience = patience or Patience(lambda _: Holder(), 0.0)
        #: A KeyboardInterrupt or SystemExit that came while something was to be carried through first.
        self.interrupt: BaseException | None = None

    def plan(self) -> Plan:
        """What is published, in the fixed order."""
        return actions.arrange(member.to_member() for member in self._enlisted.values())

    def names(self, units: Iterable[Unit]) -> tuple[str, ...]:
        """The tables of some units, for people."""
        return tuple(self._enlisted[ordinal].name for unit in units for ordinal in unit.ordinals)

    def account(self, verdict: Verdict) -> Account:
        """How the tables are, by their names, where the verdict's state does not say it of all."""
        kinds = (verdict.published, verdict.undone, verdict.missing, verdict.doubtful)
        return Account(*(self.names(units) for units in kinds))

    def level(self) -> Level:
        """What the whole transaction guarantees: the least of its participants; several publishes are not one step."""
        plan = self.plan()
        levels = [self._enlisted[ordinal].participant.level for unit in plan.units for ordinal in unit.ordinals]
        return min([*levels, plan.level])

    def level_reasons(self) -> list[str]:
        """Why the level is below 3: a sentence for each cause."""
        plan = self.plan()
        going = [self._enlisted[ordinal] for unit in plan.units for ordinal in unit.ordinals]
        reasons = [f"{m.name}: {m.participant.level_reason}" for m in going if m.participant.level_reason]
        if plan.level is Level.NONE:
            fixed = ", ".join(self.names(plan.fixed))
            return [
                *reasons,
                f"{SEVERAL_PUBLISHES}, of which these cannot be undone if a later one is refused: {fixed}",
            ]
        return reasons if len(plan.units) < 2 else [*reasons, SEVERAL_PUBLISHES]

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, steps: protocol.Step | protocol.Protocol) -> Any:
        """Run a protocol to its end and return its verdict; what it does not handle comes out."""
        reply: Any = None
        error: BaseException | None = None
        while True:
            try:
                action = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value
            reply = error = None
            try:
                reply = self.perform(action)
            except BaseException as raised:  # The protocol decides what an error means, an interrupt too.
                error = raised

    @singledispatchmethod
    def perform(self, action: actions.Action) -> Any:
        """Perform one action and return its answer."""
        raise TypeError(f"no way to perform {action!r}")

    @perform.register
    def _(self, action: actions.Record) -> None:
        if action.state is TransactionState.COMMITTING:
            self._decide()
        else:
            left = self._staged() if action.state is TransactionState.IN_DOUBT else action.left_behind
            apart = [self._end_apart(ordinal, action.state) for unit in action.apart for ordinal in unit.ordinals]
            self._timeline.record(self._lease, action.state, error=action.error, left_behind=left, prepared=apart)

    @perform.register
    def _(self, action: actions.Close) -> None:
        self._timeline.finish(self._lease, action.left_behind)

    @perform.register
    def _(self, action: actions.MarkRefused) -> None:
        for ordinal in action.unit.ordinals:
            self._enlisted[ordinal].state = ParticipantState.REFUSED
            self._timeline.save_participant(self._lease, ordinal, state=ParticipantState.REFUSED)

    @perform.register
    def _(self, action: actions.Fence) -> None:
        self._fence()

    @perform.register
    def _(self, action: actions.Reserve) -> None:
        member, mine = self._enlisted[action.ordinal], self._lease.transaction_id
        with concerning(member.participant.path, mine):
            wanted = member.reservation()
            while holder := self._timeline.reserve(self._lease, member.catalog.name, member.target, wanted):
                self._patience.wait(member.name, holder, mine)

    @perform.register
    def _(self, action: actions.Prepare) -> None:
        member = self._enlisted[action.ordinal]
        with concerning(member.participant.path, self._lease.transaction_id), step("core.prepare"):
            member.participant.prepare()
        # A recovery goes by what is said here: its catalogs may have other options.
        member.participant.document.setdefault("can_undo", member.participant.can_undo)
        json.dumps(member.participant.document)  # What is no JSON is the participant's error, not the timeline's.
        # A recovery may have been through before the last of what was just made; then it is ours to remove.
        self._fence()
        # Recorded with the decision: until then a recovery undoes it as one whose preparing was cut off at its end.
        member.state = ParticipantState.PREPARED

    @perform.register
    def _(self, action: actions.Persist) -> None:
        for ordinal in action.ordinals:
            with step("core.persist"):
                self._enlisted[ordinal].participant.persist()

    @perform.register
    def _(self, action: actions.Publish) -> Reply:
        members = self._members(action.unit)
        reply = self._guarded("core.publish", lambda: self._publish(members))
        for member in members:
            self.save_if_changed(member, quietly=True)
        return reply

    @perform.register
    def _(self, action: actions.AskOutcome) -> Outcome:
        try:
            with step("core.outcome"):
                answers = {member.participant.outcome() for member in self._members(action.unit)}
        except Exception as error:
            _log.warning("Could not learn the outcome of %s: %s", ", ".join(self.names([action.unit])), error)
            return Outcome.UNKNOWN
        except BaseException as interrupt:
            self.interrupt = interrupt
            return Outcome.UNKNOWN
        # Members of one group are published in one step: different answers are no answer.
        return answers.pop() if len(answers) == 1 else Outcome.UNKNOWN

    @perform.register
    def _(self, action: actions.Compensate) -> Reply:
        members = self._members(action.unit)
        done: list[bool] = []
        reply = self._guarded("core.compensate", lambda: done.append(self._compensate(members)))
        return Reply(reply.error, undone=reply.error is None and all(done))

    @perform.register
    def _(self, action: actions.Abort) -> Reply:
        member = self._enlisted[action.ordinal]
        reply = self._guarded("core.abort", member.participant.abort)
        if reply.error is None:
            return reply
        return Reply(reply.error, left_behind=left_behind(member) or (f"staging of {member.name}",))

    @perform.register
    def _(self, action: actions.Tidy) -> Reply:
        member = self._enlisted[action.ordinal]
        reply = self._guarded("core.finish", member.participant.finish)
        if reply.error is None:
            return reply
        return Reply(reply.error, left_behind=left_behind(member) or (f"staging of {member.name}",))

    @perform.register
    def _(self, action: actions.Wait) -> None:
        time.sleep(0.1 * 2**action.attempt)

    def _staged(self) -> tuple[str, ...]:
        """What lies in the stores while the outcome is not known."""
        taking_part = (member for member in self._enlisted.values() if member.state.takes_part)
        return tuple(place for member in taking_part for place in left_behind(member))

    def _fence(self) -> None:
        if not self._lease.surely_held():
            self._timeline.renew(self._lease)

    def _decide(self) -> None:
        members = self._enlisted.values()
        prepared = [member.to_record() for member in members]
        self._timeline.record(self._lease, TransactionState.COMMITTING, level=self.level(), prepared=prepared)
        for member in members:
            member.changed()

    def _publish(self, members: list[Enlisted]) -> None:
        catalog, participants = members[0].catalog, [member.participant for member in members]
        if self._timeline.is_in(catalog.publish_database) and len(self.plan().units) == 1:
            catalog.publish_with_record(participants, self._timeline.completing(self._lease))
        elif len(members) == 1:
            participants[0].commit()
        else:
            catalog.publish_group(participants)

    def _compensate(self, members: list[Enlisted]) -> bool:
        if len(members) == 1:
            return members[0].participant.compensate()
        return members[0].catalog.compensate_group([member.participant for member in members])

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _end_apart(self, ordinal: int, state: TransactionState) -> ParticipantRecord:
        member = self._enlisted[ordinal]
        member.state = _OTHERWISE[state]
        return member.to_record()

    def save_if_changed(self, member: Enlisted, *, quietly: bool = False) -> None:
        """Bring a participant's document on the timeline up to date."""
        if not member.changed():
            return
        try:
            self._timeline.save_participant(self._lease, member.ordinal, document=member.participant.document)
        except (TimelineError, TransactionAborted):
            if not quietly:
                raise

    def _members(self, unit: Unit) -> list[Enlisted]:
        return [self._enlisted[ordinal] for ordinal in unit.ordinals]

    def _guarded(self, name: str, effect: Callable[[], object]) -> Reply:
        """Errors become part of the answer. An interrupt is kept for later: half a publish helps nobody."""
        try:
            with step(name):
                effect()
        except Exception as error:
            return Reply(error)
        except BaseException as interrupt:
            self.interrupt = interrupt
            return Reply(interrupt)
        return Reply()


@contextmanager
def concerning(path: ObjectPath, transaction_id: str | None = None) -> Iterator[None]:
    """What fails in a store that knows no tables is told with the table all the same."""
    try:
        yield
    except TwoPhaseError as error:
        error.concerns(path, transaction_id)
        raise


def left_behind(member: Enlisted) -> tuple[str, ...]:
    """What remains of a participant; said in general where its store cannot tell."""
    try:
        return tuple(member.participant.left_behind())
    except Exception:
        return (f"staging of {member.name}",)
