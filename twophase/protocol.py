"""The protocol: what to record, whom to publish, what to do after a fault. No I/O in here.

Each function is a generator. It yields *actions* and is sent their results, so that a test can step it, fail any
step, interleave two of it and replay it; the same generators run a live commit and a recovery. The one that performs
actions (:mod:`twophase.driver`) keeps this contract:

- ``Publish``, ``Compensate``, ``Abort`` and ``Tidy`` are answered with a :class:`Reply`, an error inside it;
- ``AskOutcome`` is answered with an :class:`~twophase.model.Outcome`;
- ``Record``, ``Reserve``, ``Prepare``, ``Fence``, ``MarkRefused`` and ``Close`` are answered with None or throw:
  :class:`~twophase.errors.TimelineError` when it is not known whether the record is durable,
  :class:`~twophase.errors.LeaseLostError` when another process has taken the transaction over.

The rules
---------
- *Presumed abort*: before ``COMMITTING`` is durable nothing is published, and recovery rolls back.
- With **one** publish in all, that publish is the decision: a transaction found in ``COMMITTING`` is completed when the
  store says that it was published, and rolled back when not, so that a killed statement can be run again at once.
- With **several**, ``COMMITTING`` binds: recovery rolls forward. A refusal while nothing is published rolls back; a
  later one compensates what was published, the last one first. What cannot be undone is published last
  (:func:`~twophase.actions.arrange`), so one of that kind does no harm. Where one stands in the way of undoing,
  nothing more is undone, and the transaction is ``IN_DOUBT``; a recovery tries to undo, and then to publish the rest.
- What was decided longer ago than replaced versions are kept is not undone (``Plan.may_undo``): after the timeline was
  restored from a backup, what looks unpublished may have been published, replaced and cleaned since.
- ``IN_DOUBT`` touches nothing; a later recovery asks again.
- The outcome is recorded before anything is removed, so that nobody publishes what another removes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from twophase.actions import (
    Abort,
    Action,
    AskOutcome,
    Close,
    Compensate,
    Fence,
    MarkRefused,
    Member,
    Persist,
    Plan,
    Prepare,
    Publish,
    Record,
    Reserve,
    Tidy,
    Unit,
    Verdict,
    Wait,
    reservation_order,
)
from twophase.errors import LeaseLostError, TimelineError, TransactionAborted
from twophase.model import Outcome
from twophase.states import TransactionState

#: How often a publish that must go through is tried, and how often a store that cannot be reached is asked.
ATTEMPTS = 3

Protocol = Generator[Action, Any, Verdict]
Step = Generator[Action, Any, None]


# -- live -------------------------------------------------------------------------------------------------------------


def look(ordinal: int) -> Step:
    """Prepare one participant of a transaction that goes on. Nothing is reserved: it tells what is true now."""
    yield Prepare(ordinal)


def prepare(members: Iterable[Member]) -> Step:
    """Prepare all that will be published. Reserved first, so that what ``prepare()`` finds stays true until then.

    All reserve in one order: nobody waits for one who waits for him, so that one of them always gets through.
    """
    going = list(members)
    for ordinal in reservation_order(going):
        yield Reserve(ordinal)
    for member in going:
        yield Prepare(member.ordinal)


def commit(plan: Plan) -> Protocol:
    """Decide and publish; every participant is prepared."""
    try:
        yield Persist(tuple(ordinal for unit in plan.units for ordinal in unit.ordinals))
    except Exception as problem:
        return (yield from rollback(plan, problem))
    try:
        yield Record(TransactionState.COMMITTING)
    except TimelineError as problem:
        return (yield from _withdraw_decision(plan, problem))
    # ------------------------------------------ the decision is durable ------------------------------------------
    return (yield from _publish_rest(plan, [], certainly_alone=True))


def rollback(plan: Plan, error: BaseException | None = None) -> Protocol:
    """Give an undecided transaction up."""
    try:
        yield Record(TransactionState.ROLLED_BACK, error)
    except (TimelineError, LeaseLostError) as problem:
        # Nobody can have decided to commit: recovery does the same as we, so removing is safe without the record.
        verdict = yield from _remove_staged(plan, error, recorded=False)
        return replace(verdict, problems=(problem, *verdict.problems))
    return (yield from _remove_staged(plan, error))


def _withdraw_decision(plan: Plan, problem: BaseException) -> Protocol:
    """It is not known whether the decision is durable. Nothing may be removed before its withdrawal is."""
    try:
        yield Record(TransactionState.ROLLED_BACK, problem)
    except TimelineError as second:
        return Verdict(TransactionState.IN_DOUBT, problem, doubtful=plan.units, problems=(second,))
    return (yield from _remove_staged(plan, problem))


# -- recovery ---------------------------------------------------------------------------------------------------------


def recover(state: TransactionState, plan: Plan, *, certainly_dead: bool) -> Protocol:
    """Carry a transaction that was taken over to its end.

    Parameters
    ----------
    state : TransactionState
        As found on the timeline.
    plan : Plan
    certainly_dead : bool
        Nobody works on it any more. False when only its lease ran out: its owner may wake up in the middle of the
        publish, so a decided transaction is then rolled forward (two that publish do no harm) and never back.
    """
    if state.is_undecided:
        return (yield from rollback(plan))
    if state is TransactionState.ROLLED_BACK:
        return (yield from _remove_staged(plan, None))
    if state is TransactionState.COMPLETED:
        return (yield from _tidy_up(plan))
    return (yield from _resolve(plan, certainly_dead))


def _resolve(plan: Plan, certainly_dead: bool) -> Protocol:
    published, doubtful = [], []
    for unit in plan.units:
        outcome = yield from _ask(unit)
        if outcome is Outcome.UNKNOWN:
            doubtful.append(unit)
        elif outcome is Outcome.PUBLISHED:
            published.append(unit)
    if doubtful:
        return (yield from _leave_in_doubt(plan, None, published, doubtful))
    if plan.refused:
        return (yield from _undo_or_finish(plan, published, certainly_dead))
    if len(plan.units) == 1 and not published and certainly_dead:
        return (yield from _roll_decided_back(plan, None))
    return (yield from _publish_rest(plan, published, certainly_alone=certainly_dead))


def _undo_or_finish(plan: Plan, published: Sequence[Unit], certainly_dead: bool) -> Protocol:
    """The decision was made, so what cannot be undone may as well be completed, once nothing is in its way any more."""
    undoing = yield from _undo(published, certainly_dead and plan.may_undo)
    if not undoing.standing and not undoing.doubtful:
        return (yield from _roll_decided_back(plan, None))
    if undoing.doubtful or not certainly_dead:
        return (yield from _leave_in_doubt(plan, None, undoing.standing, undoing.doubtful, undoing.undone))
    rest = [unit for unit in plan.units if unit not in plan.refused]
    # First what was refused: while that stays so, nothing else is seen to come and go.
    return (yield from _finish(plan, [*plan.refused, *rest], undoing.standing, undoing.undone))


def _finish(plan: Plan, ordered: Sequence[Unit], published: Sequence[Unit], undone: Sequence[Unit]) -> Protocol:
    done, gone = list(published), list(undone)
    for unit in ordered:
        if unit in done:
            continue
        outcome, error = yield from _publish(unit, attempts=ATTEMPTS)
        if outcome is not Outcome.PUBLISHED:
            doubtful = [unit] if outcome is Outcome.UNKNOWN else []
            return (yield from _leave_in_doubt(plan, error, done, doubtful, gone))
        done.append(unit)
        gone = [other for other in gone if other != unit]
    return (yield from _complete(plan))


def assume(plan: Plan, state: TransactionState) -> Protocol:
    """End a transaction in doubt as an operator says; what the stores do know stays true.

    Parameters
    ----------
    plan : Plan
    state : TransactionState
        ``COMPLETED`` or ``ROLLED_BACK``: the answer wherever a store has none.
    """
    if state is TransactionState.COMPLETED:
        return (yield from _assume_committed(plan))
    return (yield from _assume_rolled_back(plan))


def _assume_committed(plan: Plan) -> Protocol:
    refusal: BaseException | None = None
    missing: list[Unit] = []
    doubtful: list[Unit] = []
    for unit in plan.units:
        outcome = yield from _ask(unit)
        if outcome is Outcome.NOT_PUBLISHED:
            outcome, error = yield from _publish(unit, attempts=1)
            refusal = error if outcome is Outcome.NOT_PUBLISHED else refusal
        if outcome is Outcome.UNKNOWN:
            doubtful.append(unit)
        elif outcome is Outcome.NOT_PUBLISHED:
            missing.append(unit)
    yield Record(TransactionState.COMPLETED, refusal, apart=tuple(missing))
    given_up = tuple(ordinal for unit in missing for ordinal in unit.ordinals)
    verdict = yield from _tidy_up(replace(plan, units=_all_but(plan, missing), spare=(*plan.spare, *given_up)))
    done = _all_but(plan, [*missing, *doubtful]) if missing or doubtful else ()
    return replace(verdict, error=refusal, published=done, missing=tuple(missing), doubtful=tuple(doubtful))


def _assume_rolled_back(plan: Plan) -> Protocol:
    standing: list[Unit] = []
    doubtful: list[Unit] = []
    for unit in reversed(plan.units):
        outcome = yield from _ask(unit)
        if outcome is Outcome.PUBLISHED:
            outcome = yield from _compensated(unit)
        if outcome is Outcome.UNKNOWN:
            doubtful.append(unit)
        elif outcome is Outcome.PUBLISHED:
            standing.append(unit)
    yield Record(TransactionState.ROLLED_BACK, apart=tuple(standing))
    # What may still be published keeps its files, whatever the operator says.
    kept = replace(plan, units=_all_but(plan, [*standing, *doubtful]))
    verdict = yield from _remove_staged(kept, None)
    gone = kept.units if standing or doubtful else ()
    return replace(verdict, published=tuple(standing), missing=gone, doubtful=tuple(doubtful))


def _all_but(plan: Plan, others: Sequence[Unit]) -> tuple[Unit, ...]:
    return tuple(unit for unit in plan.units if unit not in others)


# -- publishing -------------------------------------------------------------------------------------------------------


def _publish_rest(plan: Plan, published: Sequence[Unit], *, certainly_alone: bool) -> Protocol:
    done = list(published)
    for unit in plan.units:
        if unit in done:
            continue
        outcome, error = yield from _publish(unit, attempts=ATTEMPTS if done else 1)
        if outcome is Outcome.UNKNOWN:
            return (yield from _leave_in_doubt(plan, error, done, [unit]))
        if outcome is Outcome.NOT_PUBLISHED:
            return (yield from _refused(plan, done, unit, error, certainly_alone))
        done.append(unit)
    return (yield from _complete(plan))


def _publish(unit: Unit, *, attempts: int) -> Generator[Action, Any, tuple[Outcome, BaseException | None]]:
    """Publish one unit. Whatever an error says, the store is asked what happened."""
    attempt = 1
    while True:
        yield Fence()
        reply = yield Publish(unit)
        if reply.error is None:
            return Outcome.PUBLISHED, None
        outcome = yield from _ask(unit)
        refused = isinstance(reply.error, TransactionAborted)
        if outcome is not Outcome.NOT_PUBLISHED or refused or attempt >= attempts:
            return outcome, reply.error
        yield Wait(attempt)
        attempt += 1


def _ask(unit: Unit) -> Generator[Action, Any, Outcome]:
    for attempt in range(1, ATTEMPTS + 1):
        outcome: Outcome = yield AskOutcome(unit)
        if outcome is not Outcome.UNKNOWN:
            return outcome
        if attempt < ATTEMPTS:
            yield Wait(attempt)
    return Outcome.UNKNOWN


def _refused(
    plan: Plan, published: list[Unit], unit: Unit, error: BaseException | None, certainly_alone: bool
) -> Protocol:
    if not published:
        if certainly_alone or isinstance(error, TransactionAborted):
            return (yield from _roll_decided_back(plan, error))
        # The silent owner may still be publishing: try again at the next recovery.
        return (yield from _leave_in_doubt(plan, error, (), [unit]))
    yield MarkRefused(unit)
    undoing = yield from _undo(published, certainly_alone and plan.may_undo)
    if undoing.standing or undoing.doubtful:
        return (yield from _leave_in_doubt(plan, error, undoing.standing, undoing.doubtful, undoing.undone))
    return (yield from _roll_decided_back(plan, error))


@dataclass(frozen=True)
class _Undoing:
    """How far it came: what still stands, what is gone, and of what that is not known."""

    standing: Sequence[Unit]
    undone: Sequence[Unit] = ()
    doubtful: Sequence[Unit] = ()


def _undo(published: Sequence[Unit], allowed: bool) -> Generator[Action, Any, _Undoing]:
    """Undo the last one first; where one stands, those before it stay: it can be all again, and never none."""
    if not allowed:
        # The silent owner may publish again what is undone here: the next recovery does it. Or it was decided so long
        # ago that what is missing may have been published, replaced and cleaned since: an operator decides.
        return _Undoing(published)
    undone: list[Unit] = []
    for place in reversed(range(len(published))):
        outcome = yield from _compensated(published[place])
        if outcome is Outcome.UNKNOWN:
            return _Undoing(published[:place], undone, [published[place]])
        if outcome is Outcome.PUBLISHED:
            return _Undoing(published[: place + 1], undone)
        undone.append(published[place])
    return _Undoing((), undone)


def _compensated(unit: Unit) -> Generator[Action, Any, Outcome]:
    reply = yield Compensate(unit)
    if reply.undone:
        return Outcome.NOT_PUBLISHED
    # The undoing itself may have lost only its reply.
    return Outcome.PUBLISHED if reply.error is None else (yield from _ask(unit))


# -- endings ----------------------------------------------------------------------------------------------------------


def _complete(plan: Plan) -> Protocol:
    try:
        yield Record(TransactionState.COMPLETED)
    except TimelineError as problem:
        # All is published, and a recovery will find just that. One that has taken over meanwhile may have decided
        # otherwise, for it saw less than what is published now: where the lease is lost, its record is asked for.
        return Verdict(TransactionState.COMPLETED, problems=(problem,))
    return (yield from _tidy_up(plan))


def _tidy_up(plan: Plan) -> Protocol:
    left: list[str] = []
    problems: list[BaseException] = []
    tidying: list[Action] = [Tidy(ordinal) for unit in plan.units for ordinal in unit.ordinals]
    for action in [*tidying, *(Abort(ordinal) for ordinal in sorted(plan.spare, reverse=True))]:
        yield from _collect(action, left, problems)
    yield from _close(left, problems)
    return Verdict(TransactionState.COMPLETED, None, tuple(left), problems=tuple(problems))


def _roll_decided_back(plan: Plan, error: BaseException | None) -> Protocol:
    try:
        yield Record(TransactionState.ROLLED_BACK, error)
    except TimelineError as problem:
        # The decision stands until its withdrawal is durable; recovery asks the stores again.
        return Verdict(TransactionState.IN_DOUBT, error, doubtful=plan.units, problems=(problem,))
    return (yield from _remove_staged(plan, error))


def _remove_staged(plan: Plan, error: BaseException | None, *, recorded: bool = True) -> Protocol:
    left: list[str] = []
    problems: list[BaseException] = []
    for ordinal in plan.ordinals:
        yield from _collect(Abort(ordinal), left, problems)
    if recorded:
        yield from _close(left, problems)
    return Verdict(TransactionState.ROLLED_BACK, error, tuple(left), problems=tuple(problems))


def _leave_in_doubt(
    plan: Plan,
    error: BaseException | None,
    published: Sequence[Unit],
    doubtful: Sequence[Unit] = (),
    undone: Sequence[Unit] = (),
) -> Protocol:
    problems: tuple[BaseException, ...] = ()
    try:
        yield Record(TransactionState.IN_DOUBT, error)
    except TimelineError as problem:
        problems = (problem,)  # It stays COMMITTING there, which recovery treats alike.
    return Verdict(
        TransactionState.IN_DOUBT,
        error,
        doubtful=tuple(doubtful),
        published=tuple(published),
        undone=tuple(undone),
        missing=_all_but(plan, [*published, *undone, *doubtful]),
        problems=problems,
    )


def _collect(action: Action, left: list[str], problems: list[BaseException]) -> Step:
    """An error while cleaning up changes no outcome: it is remembered."""
    reply = yield action
    if reply.error is not None:
        problems.append(reply.error)
        left.extend(reply.left_behind)


def _close(left: Sequence[str], problems: list[BaseException]) -> Step:
    try:
        yield Close(tuple(left))
    except (TimelineError, LeaseLostError) as problem:
        problems.append(problem)
