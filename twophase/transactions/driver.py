"""The driver that performs the protocol's actions, for live transactions as well as for recovery."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import singledispatchmethod
from typing import Any, TypeGuard, TypeVar

from twophase.catalog import Catalog, SupportsGroupPublish, SupportsRecordedPublish, TwoPhaseCatalogTable
from twophase.errors import CatalogError, TimelineError, TransactionAborted, TwoPhaseError
from twophase.failpoints import Failpoint, step
from twophase.model import Level, ObjectPath, Outcome, Purpose, TableDefinition
from twophase.protocol import actions, machine
from twophase.protocol.actions import Plan, Reply, Unit, Verdict
from twophase.protocol.states import ParticipantState, TransactionState
from twophase.redaction import logger
from twophase.timeline.commit_order import Check, Decided
from twophase.timeline.owners import Lease
from twophase.timeline.records import Account, ParticipantRecord, name_error
from twophase.timeline.reservations import Mode, Reservation
from twophase.timeline.timeline import Timeline
from twophase.transactions.conflicts import Claim
from twophase.transactions.plugin_checks import document_text, grouping

_log = logger("twophase")
_T = TypeVar("_T")

PREPARE = Failpoint("core.prepare")
PERSIST = Failpoint("core.persist")
PUBLISH = Failpoint("core.publish")
OUTCOME = Failpoint("core.outcome")
COMPENSATE = Failpoint("core.compensate")
ABORT = Failpoint("core.abort")
FINISH = Failpoint("core.finish")

SEVERAL_PUBLISHES = "several publishes, one after the other"
_WITH_LEVEL = (ParticipantState.PREPARED, ParticipantState.PUBLISHED)
#: The end state of the participants to which an operator's decision does not apply.
_OTHERWISE = {
    TransactionState.COMPLETED: ParticipantState.ABORTED,
    TransactionState.ROLLED_BACK: ParticipantState.PUBLISHED,
}


@dataclass
class Enlisted:
    """A participant and its state in a transaction.

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
        Whether all its rows are staged. Only the live transaction knows and needs it: on recovery, an undecided
        transaction is rolled back, and in a decided one everything was written.
    is_read : bool
        Whether a later statement of the transaction has read it.
    failure : str, optional
        The error of its ``begin`` or ``write``, after which it can never be completely written.
    is_discarded : bool
        Whether its statement was rolled back alone, inside the transaction.
    is_kept : bool
        Whether its table, with what others had published, is read as it was after its statement.
    replaces_rows : bool
        Whether its statement replaces all rows of the table, whatever they are.
    definition : TableDefinition, optional
        The definition of the whole table after its statement.
    """

    ordinal: int
    catalog: Catalog
    participant: TwoPhaseCatalogTable
    state: ParticipantState = ParticipantState.STAGED
    supersedes: Enlisted | None = None
    was: ParticipantState = ParticipantState.STAGED
    written: bool = False
    is_read: bool = False
    failure: str | None = None
    is_discarded: bool = False
    is_kept: bool = False
    replaces_rows: bool = False
    definition: TableDefinition | None = None
    saved: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Catalog and table, as a user writes them."""
        return f"{self.catalog.name}.{self.participant.path}"

    @property
    def target(self) -> ObjectPath:
        """The canonical name of the table, which is reserved."""
        return self.catalog.canonical(self.participant.path)

    @property
    def only_appends(self) -> bool:
        """Whether this statement and those that it builds on only add rows to an existing table."""
        earlier = self.supersedes is None or self.supersedes.only_appends
        return earlier and self.participant.purpose is Purpose.INSERT_INTO

    @property
    def redefines(self) -> bool:
        """Whether this statement or one that it builds on creates or replaces the table, rather than only its rows."""
        earlier = self.supersedes is not None and self.supersedes.redefines
        return earlier or self.participant.purpose.redefines

    @property
    def alters(self) -> bool:
        """Whether this statement or one that it builds on alters the table."""
        earlier = self.supersedes is not None and self.supersedes.alters
        return earlier or self.participant.purpose.alters

    @property
    def drops(self) -> bool:
        """Whether this statement or one that it builds on takes the table away: what has its name later is another."""
        earlier = self.supersedes is not None and self.supersedes.drops
        return earlier or self.participant.purpose is Purpose.DROP_TABLE

    @property
    def rests_on_rows(self) -> bool:
        """Whether its rows are the whole table only together with published ones."""
        return not (self.redefines or self.replaces_rows)

    def reservation(self) -> Reservation:
        """The reservation that its publish needs, including that of the earlier statements on which it builds."""
        own = Reservation.of(self.participant)
        return own if self.supersedes is None else own.joined(self.supersedes.reservation())

    def claim(self) -> Claim:
        """The claim to the table for its publish."""
        return Claim(self.catalog.name, self.target, self.name, self.reservation())

    def to_record(self) -> ParticipantRecord:
        """Convert it to its record on the timeline."""
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

    def decided(self) -> Decided:
        """Describe the change that its publish makes."""
        before, schema = self.participant.replaced_state(), self.participant.schema_change()
        reservation = self.reservation()
        if self.drops:
            reservation = replace(reservation, mode=Mode.DROP)
        return Decided(self.catalog.name, self.target, reservation, before, schema)

    def to_member(self) -> actions.Member:
        """Convert it to a member for the protocol."""
        catalog = self.catalog
        return actions.Member(
            ordinal=self.ordinal,
            catalog=self.catalog.name,
            path=tuple(self.target.to_document()),
            state=self.state,
            group=catalog.group_key(self.participant) if isinstance(catalog, SupportsGroupPublish) else None,
            can_undo=self.participant.can_undo,
            staging_is_seen=self.participant.staging_is_seen,
            drop_is_seen=self.participant.drop_is_seen,
        )

    def changed(self) -> bool:
        """Return whether the document differs from the one on the timeline, and mark it as saved."""
        text = document_text(self.catalog, self.participant)
        changed, self.saved = text != self.saved, text
        return changed


#: What to do where a store has failed, unless something else is said.
_RUN_AGAIN = "The statement has changed nothing: run it again once the store answers."


class Driver:
    """The driver, which performs actions on the stores and on the timeline.

    Parameters
    ----------
    timeline : Timeline
    lease : Lease
    enlisted : iterable of Enlisted
    reserve : callable, optional
        Reserves tables for the transaction, in their order; recovery reserves nothing.
    checks : callable, optional
        Returns what must not have changed when the transaction is decided.
    """

    def __init__(
        self,
        timeline: Timeline,
        lease: Lease,
        enlisted: Iterable[Enlisted],
        *,
        reserve: Callable[[Sequence[Claim]], None] | None = None,
        checks: Callable[[], Iterable[Check]] = tuple,
    ) -> None:
        self._timeline = timeline
        self._lease = lease
        self._enlisted = {member.ordinal: member for member in enlisted}
        self._checks = checks
        self._reserve = reserve
        #: A KeyboardInterrupt or SystemExit that arrived during a step that had to be completed first.
        self.interrupt: BaseException | None = None

    def plan(self) -> Plan:
        """The plan: what is published, in the fixed order."""
        return actions.arrange(member.to_member() for member in self._enlisted.values())

    def names(self, units: Iterable[Unit]) -> tuple[str, ...]:
        """The names of the tables of some units, for messages."""
        return tuple(self._enlisted[ordinal].name for unit in units for ordinal in unit.ordinals)

    def account(self, verdict: Verdict) -> Account:
        """The outcome of each table, by name, if the verdict's state does not apply to all of them."""
        return Account(
            published=self.names(verdict.published),
            undone=self.names(verdict.undone),
            not_published=self.names(verdict.not_published),
            unknown=self.names(verdict.unknown),
            in_part=self.names(verdict.in_part),
            unfinished=self.names(verdict.unfinished),
        )

    def level(self) -> Level:
        """The level of the entire transaction: the lowest of its participants; several publishes are not atomic."""
        plan = self.plan()
        levels = [self._enlisted[ordinal].participant.level for unit in plan.units for ordinal in unit.ordinals]
        return min([*levels, plan.level])

    def level_reasons(self) -> list[str]:
        """The reasons why the level is below ``ATOMIC``, one sentence each."""
        plan = self.plan()
        going = [self._enlisted[ordinal] for unit in plan.units for ordinal in unit.ordinals]
        reasons = [f"{m.name}: {m.participant.level_reason}" for m in going if m.participant.level_reason]
        if plan.level is Level.BEST_EFFORT:
            fixed = ", ".join(self.names(plan.fixed))
            return [
                *reasons,
                f"{SEVERAL_PUBLISHES}, of which these cannot be undone if a later one is refused: {fixed}",
            ]
        return reasons if len(plan.units) < 2 else [*reasons, SEVERAL_PUBLISHES]

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self, steps: machine.Step | machine.Protocol) -> Any:
        """Run a protocol to its end and return its verdict; errors that it does not handle are raised."""
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
            except BaseException as raised:  # The protocol decides what an error, or an interrupt, means.
                error = raised

    def reserve(self, claims: Iterable[Claim]) -> None:
        """Reserve several tables in one step, in the order in which all transactions do it.

        Raises
        ------
        WriteConflictError
            Another transaction holds one of them.
        """
        assert self._reserve is not None
        joined: dict[tuple[str, ObjectPath], Claim] = {}
        for claim in claims:
            before = joined.get(claim.key)
            both = claim.wanted if before is None else before.wanted.joined(claim.wanted)
            joined[claim.key] = replace(claim, wanted=both)
        self._reserve([joined[key] for key in sorted(joined, key=Claim.order)])

    @singledispatchmethod
    def perform(self, action: actions.Action) -> Any:
        """Perform one action and return its reply."""
        raise TypeError(f"no way to perform {action!r}")

    @perform.register
    def _(self, action: actions.Record) -> None:
        if action.state is TransactionState.COMMITTING:
            self._decide()
        else:
            left = self._staged() if action.state is TransactionState.IN_DOUBT else action.left_behind
            ordinals = [ordinal for unit in action.exceptions for ordinal in unit.ordinals]
            exceptions = [self._end_exception(ordinal, action.state) for ordinal in ordinals]
            self._timeline.record(self._lease, action.state, error=action.error, left_behind=left, prepared=exceptions)

    @perform.register
    def _(self, action: actions.Finalize) -> None:
        self._timeline.finish(self._lease, action.left_behind)

    @perform.register
    def _(self, action: actions.Suspend) -> None:
        unfinished = (self._enlisted[ordinal] for ordinal in action.unfinished)
        self._timeline.suspend(self._lease, [(member.catalog.name, member.target) for member in unfinished])

    @perform.register
    def _(self, action: actions.MarkRefused) -> None:
        for ordinal in action.unit.ordinals:
            self._timeline.save_participant(self._lease, ordinal, state=ParticipantState.REFUSED)
            # Only after it was recorded: nothing may be undone because of a refusal that only this process knows.
            self._enlisted[ordinal].state = ParticipantState.REFUSED

    @perform.register
    def _(self, action: actions.Fence) -> None:
        self._fence()

    @perform.register
    def _(self, action: actions.Reserve) -> None:
        assert self._reserve is not None
        member = self._enlisted[action.ordinal]
        with concerning(member.participant.path, self._lease.transaction_id):
            self._reserve([member.claim()])

    @perform.register
    def _(self, action: actions.Prepare) -> None:
        member = self._enlisted[action.ordinal]
        with concerning(member.participant.path, self._lease.transaction_id), step(PREPARE):
            member.participant.prepare()
        # Recovery relies on this value: its catalogs may have other options.
        member.participant.document.setdefault("can_undo", member.participant.can_undo)
        document_text(member.catalog, member.participant)  # Raises the participant's error, not the timeline's.
        # If a recovery removed the staged data before ``prepare`` had finished, this process must remove the rest.
        self._fence()
        # Recorded with the decision: until then, recovery aborts it as if ``prepare`` had been interrupted at its end.
        member.state = ParticipantState.PREPARED

    @perform.register
    def _(self, action: actions.Persist) -> None:
        for ordinal in action.ordinals:
            participant = self._enlisted[ordinal].participant
            with concerning(participant.path, self._lease.transaction_id), step(PERSIST):
                participant.persist()

    @perform.register
    def _(self, action: actions.Publish) -> Reply:
        members = self._members(action.unit)
        reply = self._guarded(PUBLISH, lambda: self._publish(members))
        for member in members:
            self.save_if_changed(member, quietly=True)
        return reply

    @perform.register
    def _(self, action: actions.AskOutcome) -> Outcome:
        try:
            with step(OUTCOME):
                return self._outcome(self._members(action.unit))
        except Exception as error:
            _log.warning("Could not learn the outcome of %s: %s", ", ".join(self.names([action.unit])), error)
            return Outcome.UNKNOWN
        except BaseException as interrupt:
            self.interrupt = interrupt
            return Outcome.UNKNOWN

    @perform.register
    def _(self, action: actions.Compensate) -> Reply:
        members = self._members(action.unit)
        done: list[bool] = []
        reply = self._guarded(COMPENSATE, lambda: done.append(self._compensate(members)))
        return Reply(reply.error, undone=reply.error is None and all(done))

    @perform.register
    def _(self, action: actions.Abort) -> Reply:
        member = self._enlisted[action.ordinal]
        return self._with_leftovers(member, self._guarded(ABORT, member.participant.abort))

    @perform.register
    def _(self, action: actions.Cleanup) -> Reply:
        member = self._enlisted[action.ordinal]
        return self._with_leftovers(member, self._guarded(FINISH, member.participant.finish))

    @perform.register
    def _(self, action: actions.Wait) -> None:
        time.sleep(0.1 * 2**action.attempt)

    def _with_leftovers(self, member: Enlisted, reply: Reply) -> Reply:
        if reply.error is None:
            return reply
        return Reply(reply.error, left_behind=left_behind(member) or (f"staging of {member.name}",))

    def _staged(self) -> tuple[str, ...]:
        """The staged data in the stores while the outcome is unknown."""
        taking_part = (member for member in self._enlisted.values() if member.state.takes_part)
        return tuple(place for member in taking_part for place in left_behind(member))

    def _fence(self) -> None:
        if not self._lease.surely_held():
            self._timeline.renew(self._lease)

    def _decide(self) -> None:
        members = self._enlisted.values()
        prepared = [member.to_record() for member in members]
        self._timeline.record(
            self._lease,
            TransactionState.COMMITTING,
            level=self.level(),
            prepared=prepared,
            changes=[self._decided(member) for member in members if member.state.takes_part],
            checks=self._checks(),
        )
        for member in members:
            member.changed()

    def _decided(self, member: Enlisted) -> Decided:
        with concerning(member.participant.path, self._lease.transaction_id):
            return member.decided()

    def _publish(self, members: list[Enlisted]) -> None:
        catalog, participants = members[0].catalog, [member.participant for member in members]
        if self._records_itself(catalog):
            catalog.publish_with_record(participants, self._timeline.completing(self._lease))
        elif len(members) == 1:
            participants[0].commit()
        else:
            grouping(catalog).publish_group(participants)

    def _records_itself(self, catalog: Catalog) -> TypeGuard[SupportsRecordedPublish]:
        """Return whether the transaction has one publish, which also records its end on a timeline in its database."""
        return (
            isinstance(catalog, SupportsRecordedPublish)
            and self._timeline.is_in(catalog.publish_database)
            and len(self.plan().units) == 1
        )

    def _outcome(self, members: list[Enlisted]) -> Outcome:
        if len(members) == 1:
            return members[0].participant.outcome()
        return grouping(members[0].catalog).group_outcome([member.participant for member in members])

    def _compensate(self, members: list[Enlisted]) -> bool:
        if len(members) == 1:
            return members[0].participant.compensate()
        return grouping(members[0].catalog).compensate_group([member.participant for member in members])

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _end_exception(self, ordinal: int, state: TransactionState) -> ParticipantRecord:
        member = self._enlisted[ordinal]
        member.state = _OTHERWISE[state]
        return member.to_record()

    def save_if_changed(self, member: Enlisted, *, quietly: bool = False) -> None:
        """Update a participant's document on the timeline."""
        if not member.changed():
            return
        try:
            self._timeline.save_participant(self._lease, member.ordinal, document=member.participant.document)
        except (TimelineError, TransactionAborted):
            if not quietly:
                raise

    def _members(self, unit: Unit) -> list[Enlisted]:
        return [self._enlisted[ordinal] for ordinal in unit.ordinals]

    def _guarded(self, point: Failpoint, effect: Callable[[], object]) -> Reply:
        """Run an effect; errors become part of the reply. An interrupt is deferred, to prevent a partial publish."""
        try:
            with step(point):
                effect()
        except Exception as error:
            return Reply(error)
        except BaseException as interrupt:
            self.interrupt = interrupt
            return Reply(interrupt)
        return Reply()


@contextmanager
def concerning(path: object, transaction_id: str | None = None, *, hint: str = _RUN_AGAIN) -> Iterator[None]:
    """Add the table to a store's error that does not name it; one of its files, or of the network, names none."""
    try:
        yield
    except TwoPhaseError as error:
        error.concerns(path, transaction_id)
        raise
    except OSError as error:
        raise CatalogError(
            f"The store of {path} has failed: {name_error(error)}",
            path=path,
            transaction_id=transaction_id,
            hint=hint,
        ) from error


def left_behind(member: Enlisted) -> tuple[str, ...]:
    """The leftovers of a participant; in general words if its store cannot list them."""
    try:
        return tuple(member.participant.left_behind())
    except Exception:
        return (f"staging of {member.name}",)
