"""Protocols that are wrong in one place each: the explorer must find every one of them, by the invariant it breaks."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.core.schedule_model import Finder, Lease, Model, Row, World, Write
from tests.core.schedule_programs import Job
from tests.core.schedules import Bounds
from twophase.errors import TimelineError
from twophase.model import Outcome
from twophase.protocol import actions, machine
from twophase.protocol.actions import Action, Member, Plan, Unit, Verdict
from twophase.protocol.states import TransactionState

#: A table of two that are written in one transaction, each in a store of its own.
K, L = Write("k", "one"), Write("l", "two")


@dataclass(frozen=True)
class Mutant:
    """One fault of the protocol.

    Parameters
    ----------
    found_by : str
        The invariant that it breaks.
    transactions : sequence of sequence of Write
        What it needs to break it.
    bounds : Bounds
    functions : mapping
        Functions of :mod:`twophase.protocol.machine`, in place of its own.
    model : type of Model
    job : type of Job
    """

    found_by: str
    transactions: Sequence[Sequence[Write]] = ((K, L), (L,))
    bounds: Bounds = field(default_factory=Bounds)
    functions: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    model: type[Model] = Model
    job: type[Job] = Job


# -- the decision -----------------------------------------------------------------------------------------------------


def _commit_that_decides_late(plan: Plan) -> machine.Protocol:
    first = plan.units[0]
    yield actions.Fence()
    yield actions.Publish(first)
    yield actions.Record(TransactionState.COMMITTING)
    return (yield from machine._publish_rest(plan, [first], certainly_alone=True))


def _commit_that_forgets_the_decision(plan: Plan) -> machine.Protocol:
    """What it could not record is taken for not recorded."""
    try:
        yield actions.Record(TransactionState.COMMITTING)
    except TimelineError as problem:
        return (yield from machine._remove_staged(plan, problem, recorded=False))
    return (yield from machine._publish_rest(plan, [], certainly_alone=True))


def _publish_without_a_fence(
    unit: Unit, *, attempts: int
) -> Generator[Action, Any, tuple[Outcome, BaseException | None]]:
    reply = yield actions.Publish(unit)
    if reply.error is None:
        return Outcome.PUBLISHED, None
    return (yield from machine._ask(unit)), reply.error


# -- outcomes ---------------------------------------------------------------------------------------------------------


def _ask_that_takes_unknown_for_no(unit: Unit) -> Generator[Action, Any, Outcome]:
    outcome = yield actions.AskOutcome(unit)
    return Outcome.PUBLISHED if outcome is Outcome.PUBLISHED else Outcome.NOT_PUBLISHED


def _publish_that_believes_the_error(
    unit: Unit, *, attempts: int
) -> Generator[Action, Any, tuple[Outcome, BaseException | None]]:
    yield actions.Fence()
    reply = yield actions.Publish(unit)
    return Outcome.PUBLISHED if reply.error is None else Outcome.NOT_PUBLISHED, reply.error


class AbortsThoughCommitThrew(Job):
    """As Spark does."""

    def carry_on(self) -> Generator[Action, Any, TransactionState]:
        return (yield from self.give_up(RuntimeError()))


def _publish_rest_that_completes_early(
    plan: Plan, published: Sequence[Unit], *, certainly_alone: bool
) -> machine.Protocol:
    for unit in plan.units[:-1]:
        yield from machine._publish(unit, attempts=1)
    yield actions.Record(TransactionState.COMPLETED)
    yield from machine._publish(plan.units[-1], attempts=1)
    return (yield from machine._clean_up(plan))


def _complete_without_a_record(plan: Plan) -> machine.Protocol:
    return (yield from machine._clean_up(plan))


# -- undoing ----------------------------------------------------------------------------------------------------------


def _roll_back_that_removes_first(plan: Plan, error: BaseException | None, tried: Any = ()) -> machine.Protocol:
    for ordinal in plan.ordinals:
        yield actions.Abort(ordinal)
    yield actions.Record(TransactionState.ROLLED_BACK, error)
    return (yield from machine._remove_staged(plan, error))


def _refused_that_undoes_nothing(
    plan: Plan, published: list[Unit], unit: Unit, error: BaseException | None, certainly_alone: bool
) -> machine.Protocol:
    return (yield from machine._roll_decided_back(plan, error))


def _undo_while_another_may_publish(
    published: Sequence[Unit], allowed: bool
) -> Generator[Action, Any, machine._Undoing]:
    undone = []
    for unit in reversed(published):
        outcome, _ = yield from machine._compensated(unit)
        if outcome is not Outcome.NOT_PUBLISHED:
            return machine._Undoing([u for u in published if u not in undone], undone)
        undone.append(unit)
    return machine._Undoing((), undone)


class UndoesWithoutALook(Model):
    """The table gets the version back that it had before, whatever it is now."""

    def may_undo(self, world: World, transaction: int, ordinal: int) -> bool:
        return True


# -- recovery ---------------------------------------------------------------------------------------------------------


class TakesOverWithoutAFence(Model):
    """The one that was silent still bears a number that counts."""

    def take_over(self, world: World, slot: int, transaction: int, position: int, *, silent: bool) -> World:
        after = super().take_over(world, slot, transaction, position, silent=silent)
        others = (*world.processes[:slot], after.processes[slot], *world.processes[slot + 1 :])
        return after._replace(processes=others)


class UndoesForWhatIsNotRecorded(Job):
    """It goes by a refusal that the timeline did not take."""

    def noting(self, steps: machine.Protocol) -> machine.Protocol:
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                action = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            self.note(action)
            answer = error = None
            try:
                answer = yield action
            except (Exception, KeyboardInterrupt) as raised:
                error = raised


class TakesOverWhatWasTakenUpAgain(Model):
    """Its lease had been given up when it was read, but the owner went on."""

    def is_unchanged(self, row: Row, finder: Finder) -> bool:
        return row.state is finder.state and (finder.lease is not Lease.RAN_OUT or row.lease is finder.lease)


class CarriesOnWithoutALease(Job):
    """It was interrupted when it had just given its lease up."""

    def carry_on(self) -> Generator[Action, Any, TransactionState]:
        steps = super().carry_on()
        next(steps)  # It does not renew.
        action = steps.send(None)
        while True:
            try:
                answer = yield action
            except (Exception, KeyboardInterrupt) as error:
                given = partial(steps.throw, error)
            else:
                given = partial(steps.send, answer)
            try:
                action = given()
            except StopIteration as end:
                return end.value


def _resolve_that_takes_silence_for_death(plan: Plan, certainly_dead: bool) -> machine.Protocol:
    return (yield from _RESOLVE(plan, True))


_RESOLVE = machine._resolve


def _resolve_that_rolls_back(plan: Plan, certainly_dead: bool) -> machine.Protocol:
    return (yield from machine._roll_decided_back(plan, None))


def _resolve_that_completes(plan: Plan, certainly_dead: bool) -> machine.Protocol:
    return (yield from machine._complete(plan))


def _leave_in_doubt_for_good(plan: Plan, *_: Any) -> machine.Protocol:
    """It ends as rolled back on the timeline: no recovery asks again."""
    yield actions.Record(TransactionState.ROLLED_BACK)
    yield actions.Finalize()
    return Verdict(TransactionState.IN_DOUBT)


# -- reservations -----------------------------------------------------------------------------------------------------


def _in_the_order_of_statements(members: Iterable[Member]) -> list[int]:
    return [member.ordinal for member in members]


def _prepare_that_reserves_nothing(members: Iterable[Member]) -> machine.Step:
    for member in members:
        yield actions.Prepare(member.ordinal)


def _prepare_that_reserves_late(members: Iterable[Member]) -> machine.Step:
    going = list(members)
    for member in going:
        yield actions.Prepare(member.ordinal)
    for member in going:
        yield actions.Reserve(member.ordinal)


class KeepsItsReservations(Model):
    """What has ended holds on."""

    def _finalize(self, world: World, slot: int, action: actions.Finalize) -> tuple[World, Any]:
        after, answer = super()._finalize(world, slot, action)
        return after._replace(reserved=world.reserved), answer


def _remove_staged_that_always_ends(
    plan: Plan, error: BaseException | None, *, recorded: bool = True, **_: Any
) -> machine.Protocol:
    """Also where a store refuses to undo what a publish has shown."""
    removed = yield from machine._remove([actions.Abort(ordinal) for ordinal in plan.ordinals], ())
    if recorded:
        yield from machine._close(removed.left, removed.problems)
    return Verdict(TransactionState.ROLLED_BACK, error, tuple(removed.left), problems=tuple(removed.problems))


def _remove_nothing(plan: Plan, error: BaseException | None, *, recorded: bool = True, **_: Any) -> machine.Protocol:
    if recorded:
        yield actions.Finalize()
    return Verdict(TransactionState.ROLLED_BACK, error)


TWO_AND_TWO = ((K, L), (L, K))
ONE_AND_ONE = ((K,), (K,))
BOTH_FIXED = ((replace(K, can_undo=False), replace(L, can_undo=False)), (L,))

MUTANTS = {
    "decides after the first publish": Mutant("decision", functions={"commit": _commit_that_decides_late}),
    "takes a lost reply to the decision for none": Mutant(
        "outcome first", functions={"commit": _commit_that_forgets_the_decision}
    ),
    "publishes without a look at its lease": Mutant("fence", functions={"_publish": _publish_without_a_fence}),
    "takes UNKNOWN for not published": Mutant(
        "nothing", ONE_AND_ONE, Bounds(2), functions={"_ask": _ask_that_takes_unknown_for_no}
    ),
    "believes the error of a publish": Mutant(
        "nothing", ONE_AND_ONE, functions={"_publish": _publish_that_believes_the_error}
    ),
    "aborts though commit threw": Mutant("kept", job=AbortsThoughCommitThrew),
    "completes before the last publish": Mutant(
        "whole", functions={"_publish_rest": _publish_rest_that_completes_early}
    ),
    "cleans up before it records the end": Mutant("outcome first", functions={"_complete": _complete_without_a_record}),
    "removes before it records the rollback": Mutant(
        "outcome first", functions={"_roll_decided_back": _roll_back_that_removes_first}
    ),
    "rolls back without undoing": Mutant("nothing", functions={"_refused": _refused_that_undoes_nothing}),
    "undoes while a silent owner may publish": Mutant(
        "nothing", bounds=Bounds(1, 1), functions={"_undo": _undo_while_another_may_publish}
    ),
    "undoes without a look at the pointer": Mutant("rows", bounds=Bounds(0, 0, 2), model=UndoesWithoutALook),
    "takes over without fencing off": Mutant("kept", ONE_AND_ONE, model=TakesOverWithoutAFence),
    "wounds without fencing off": Mutant(
        "kept", ONE_AND_ONE, Bounds(0, 1, 0, wounds=True), model=TakesOverWithoutAFence
    ),
    "carries on without a lease": Mutant("nothing", ((K, L),), Bounds(2), job=CarriesOnWithoutALease),
    "takes over what was taken up again": Mutant("nothing", ((K, L),), Bounds(2), model=TakesOverWhatWasTakenUpAgain),
    "undoes for what is not recorded": Mutant("whole", ((K, L),), Bounds(3), job=UndoesForWhatIsNotRecorded),
    "takes silence for death": Mutant(
        "nothing", ONE_AND_ONE, functions={"_resolve": _resolve_that_takes_silence_for_death}
    ),
    "rolls back what was decided and is half published": Mutant(
        "nothing", functions={"_resolve": _resolve_that_rolls_back}
    ),
    "completes what was decided without publishing it": Mutant(
        "whole", functions={"_resolve": _resolve_that_completes}
    ),
    "ends what is in doubt": Mutant(
        "nothing", BOTH_FIXED, Bounds(0), functions={"_leave_in_doubt": _leave_in_doubt_for_good}
    ),
    "reserves in the order of its statements": Mutant(
        "progress", TWO_AND_TWO, Bounds(0, 0, 0), functions={"reservation_order": _in_the_order_of_statements}
    ),
    "reserves nothing": Mutant("reserved", functions={"prepare": _prepare_that_reserves_nothing}),
    "prepares before it has reserved": Mutant(
        "reserved", ONE_AND_ONE, functions={"prepare": _prepare_that_reserves_late}
    ),
    "keeps its reservations": Mutant("released", ONE_AND_ONE, model=KeepsItsReservations),
    "ends though a part is not undone": Mutant(
        "nothing", ONE_AND_ONE, Bounds(2), functions={"_remove_staged": _remove_staged_that_always_ends}
    ),
    "removes nothing after a rollback": Mutant("released", ONE_AND_ONE, functions={"_remove_staged": _remove_nothing}),
}
