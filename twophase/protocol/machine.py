"""The protocol: what to record, which units to publish, what to do after a fault. No I/O in here.

Each function is a generator. It yields *actions* and is sent their results, so that a test can step through it, fail
any step, interleave two instances and replay it; the same generators run a live commit and a recovery. The performer of
the actions (:mod:`twophase.transactions.driver`) fulfils this contract:

- the reply to ``Publish``, ``Compensate``, ``Abort`` and ``Cleanup`` is a :class:`Reply`, which contains any error;
- the reply to ``AskOutcome`` is an :class:`~twophase.model.Outcome`;
- the reply to ``Record``, ``Reserve``, ``Prepare``, ``Fence``, ``MarkRefused`` and ``Finalize`` is None, or they raise:
  :class:`~twophase.errors.TimelineError` if it is unknown whether the record is durable,
  :class:`~twophase.errors.LeaseLostError` if another process has taken the transaction over.

The rules
---------
- *Presumed abort*: before ``COMMITTING`` is durable nothing is published, and recovery rolls back.
- With **a single** publish, that publish is the decision: a transaction found in ``COMMITTING`` is completed if the
  store reports that it was published, and rolled back if not, so that a killed statement can be retried immediately.
- With **several**, ``COMMITTING`` is binding: recovery rolls forward. A refusal while nothing is published rolls back;
  a later one undoes the publishes so far, the last one first. Units that cannot be undone are published last
  (:func:`~twophase.protocol.actions.arrange`), so a single one does no harm. If one of them prevents the undo, nothing
  more is undone, and the transaction is ``IN_DOUBT``; recovery tries to undo, and then to publish the rest.
- If the decision is older than the retention of superseded versions, nothing is undone (``Plan.may_undo``): if the
  timeline was restored from a backup, a unit that looks unpublished may have been published, superseded and cleaned up
  since.
- A refusal is durable before anything is undone because of it. Once all units are published, the transaction is
  complete, regardless of earlier refusals: nothing is undone any more.
- A publish that failed may be visible in part, whatever its store says of the outcome. While its store refuses to undo
  that, the transaction stays open, as if its process had died there: a recovery tries again.
- A dropped database goes only when the tables in it are gone, after the outcome is recorded (``Plan.seen_dropped``); a
  created one is there before the publish (``Plan.seen_staged``). While a store refuses to remove what readers see, the
  transaction stays open, too, and keeps the tables of that reserved; its other tables are released.
- ``IN_DOUBT`` changes nothing; a later recovery queries the stores again.
- The outcome is recorded before anything is removed, so that no process publishes files that another one removes.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from twophase.errors import LeaseLostError, TimelineError, TransactionAborted, WriteConflictError
from twophase.model import Outcome
from twophase.protocol.actions import (
    Abort,
    Action,
    AskOutcome,
    Cleanup,
    Compensate,
    Fence,
    Finalize,
    MarkRefused,
    Member,
    Persist,
    Plan,
    Prepare,
    Publish,
    Record,
    Reply,
    Reserve,
    Suspend,
    Unit,
    Verdict,
    Wait,
    reservation_order,
)
from twophase.protocol.states import TransactionState

#: Maximum attempts for a publish that must succeed, and for a query of a store that cannot be reached.
ATTEMPTS = 3

Protocol = Generator[Action, Any, Verdict]
Step = Generator[Action, Any, None]


# -- live -------------------------------------------------------------------------------------------------------------


def prepare_alone(ordinal: int) -> Step:
    """Prepare one participant of a continuing transaction. Nothing is reserved: it checks the current state only."""
    yield Prepare(ordinal)


def prepare(members: Iterable[Member]) -> Step:
    """Prepare all participants that will be published, after reserving them, so that the result stays valid until then.

    All transactions reserve in the same order, which prevents deadlocks: one of them always proceeds.
    """
    going = list(members)
    for ordinal in reservation_order(going):
        yield Reserve(ordinal)
    for member in going:
        yield Prepare(member.ordinal)


def commit(plan: Plan) -> Protocol:
    """Decide and publish, after all participants are prepared."""
    try:
        yield Persist(tuple(ordinal for unit in plan.units for ordinal in unit.ordinals))
    except Exception as problem:
        return (yield from rollback(plan, problem))
    try:
        yield Record(TransactionState.COMMITTING)
    except (TimelineError, WriteConflictError) as problem:
        # A conflict also comes where the reply to a first attempt was lost: the decision may be durable, too.
        return (yield from _roll_decided_back(plan, problem))
    # ------------------------------------------ the decision is durable ------------------------------------------
    return (yield from _publish_rest(plan, [], certainly_alone=True))


def rollback(plan: Plan, error: BaseException | None = None) -> Protocol:
    """Roll back an undecided transaction."""
    try:
        yield Record(TransactionState.ROLLED_BACK, error)
    except (TimelineError, LeaseLostError) as problem:
        # No process can have decided to commit, and recovery rolls back too: removal is safe without the record.
        verdict = yield from _remove_staged(plan.ending_anyway(), error, recorded=False)
        return replace(verdict, problems=(problem, *verdict.problems))
    return (yield from _remove_staged(plan, error))


# -- recovery ---------------------------------------------------------------------------------------------------------


def recover(state: TransactionState, plan: Plan, *, certainly_dead: bool, has_ended: bool = False) -> Protocol:
    """Complete or roll back a transaction that was taken over.

    Parameters
    ----------
    state : TransactionState
        As found on the timeline.
    plan : Plan
    certainly_dead : bool
        No process works on it any more. False if only its lease expired: its owner may resume in the middle of the
        publish, so a decided transaction is then rolled forward (a concurrent publish does no harm) and never back.
    has_ended : bool
        It has ended, and only its leftovers are to be removed.
    """
    if state.is_undecided:
        return (yield from _give_up(plan))
    plan = plan.ending_anyway() if has_ended else plan
    if state is TransactionState.ROLLED_BACK:
        return (yield from _remove_staged(plan, None, tried=() if has_ended else plan.ordinals))
    if state is TransactionState.COMPLETED:
        return (yield from _clean_up(plan))
    return (yield from _resolve(plan, certainly_dead))


def _give_up(plan: Plan) -> Protocol:
    """Roll back an undecided transaction, unless something is published. That proves a decision which is missing on the
    timeline because it was restored from a backup: then nothing more is published, and nothing is undone.
    """
    published = []
    for unit in plan.units:
        # One by one: if one member of a unit is published, the whole unit is, whatever happened to the others since.
        for ordinal in unit.ordinals:
            if unit not in published and (yield AskOutcome(replace(unit, ordinals=(ordinal,)))) is Outcome.PUBLISHED:
                published.append(unit)
    if not published:
        return (yield from rollback(plan))
    if rest := _all_but(plan, published):
        return (yield from _leave_in_doubt(plan, None, published, rest))
    return (yield from _complete(plan))


def _resolve(plan: Plan, certainly_dead: bool) -> Protocol:
    published, unknown = [], []
    for unit in plan.units:
        outcome = yield from _ask(unit)
        if outcome is Outcome.UNKNOWN:
            unknown.append(unit)
        elif outcome is Outcome.PUBLISHED:
            published.append(unit)
    if unknown:
        return (yield from _leave_in_doubt(plan, None, published, unknown))
    if plan.refused and _all_but(plan, published):
        return (yield from _undo_or_finish(plan, published, certainly_dead))
    # If all units are published, it is complete, regardless of refusals: success may already have been reported.
    if len(plan.units) == 1 and not published and certainly_dead:
        return (yield from _roll_decided_back(plan, None, plan.ordinals))
    return (yield from _publish_rest(plan, published, certainly_alone=certainly_dead))


def _undo_or_finish(plan: Plan, published: Sequence[Unit], certainly_dead: bool) -> Protocol:
    """Undo the publishes; if that fails, complete the transaction, once nothing prevents it: the decision was made."""
    undoing = yield from _undo(published, certainly_dead and plan.may_undo)
    if not undoing.published and not undoing.unknown:
        return (yield from _roll_decided_back(plan, None, plan.ordinals))
    if undoing.unknown or not certainly_dead:
        return (
            yield from _leave_in_doubt(plan, None, undoing.published, undoing.unknown, undoing.undone, undoing.problems)
        )
    rest = [unit for unit in plan.units if unit not in plan.refused]
    # Refused units first: if they are refused again, no other table appears and disappears in the meantime.
    return (yield from _finish(plan, [*plan.refused, *rest], undoing))


def _finish(plan: Plan, ordered: Sequence[Unit], undoing: _Undoing) -> Protocol:
    done, gone = list(undoing.published), list(undoing.undone)
    for unit in ordered:
        if unit in done:
            continue
        outcome, error = yield from _publish(unit, attempts=ATTEMPTS)
        if outcome is not Outcome.PUBLISHED:
            unknown = [unit] if outcome is Outcome.UNKNOWN else []
            return (yield from _leave_in_doubt(plan, error, done, unknown, gone, undoing.problems))
        done.append(unit)
        gone = [other for other in gone if other != unit]
    return (yield from _complete(plan))


def assume(plan: Plan, found: TransactionState, state: TransactionState) -> Protocol:
    """End a transaction in doubt as decided by an operator; outcomes reported by the stores take precedence.

    Parameters
    ----------
    plan : Plan
    found : TransactionState
        As found on the timeline.
    state : TransactionState
        ``COMPLETED`` or ``ROLLED_BACK``: the outcome if the store reports none.
    """
    plan = plan.ending_anyway()  # Although a part may still be visible.
    if found is TransactionState.ROLLED_BACK:
        return (yield from _remove_staged(plan, None))
    if found is TransactionState.COMPLETED:
        return (yield from _clean_up(plan))
    if state is TransactionState.COMPLETED:
        return (yield from _assume_committed(plan))
    return (yield from _assume_rolled_back(plan))


def _assume_committed(plan: Plan) -> Protocol:
    refusal: BaseException | None = None
    not_published: list[Unit] = []
    unknown: list[Unit] = []
    for unit in plan.units:
        outcome = yield from _ask(unit)
        if outcome is Outcome.NOT_PUBLISHED:
            outcome, error = yield from _publish(unit, attempts=1)
            refusal = error if outcome is Outcome.NOT_PUBLISHED else refusal
        if outcome is Outcome.UNKNOWN:
            unknown.append(unit)
        elif outcome is Outcome.NOT_PUBLISHED:
            not_published.append(unit)
    yield Record(TransactionState.COMPLETED, refusal, exceptions=tuple(not_published))
    given_up = tuple(ordinal for unit in not_published for ordinal in unit.ordinals)
    verdict = yield from _clean_up(
        replace(plan, units=_all_but(plan, not_published), superseded=(*plan.superseded, *given_up))
    )
    done = _all_but(plan, [*not_published, *unknown]) if not_published or unknown else ()
    return replace(verdict, error=refusal, published=done, not_published=tuple(not_published), unknown=tuple(unknown))


def _assume_rolled_back(plan: Plan) -> Protocol:
    published: list[Unit] = []
    unknown: list[Unit] = []
    problems: list[BaseException] = []
    for unit in reversed(plan.units):
        outcome = yield from _ask(unit)
        if outcome is Outcome.PUBLISHED:
            outcome, stopped = yield from _compensated(unit)
            problems.extend(stopped)
        if outcome is Outcome.UNKNOWN:
            unknown.append(unit)
        elif outcome is Outcome.PUBLISHED:
            published.append(unit)
    yield Record(TransactionState.ROLLED_BACK, exceptions=tuple(published))
    # Units that may still be published keep their files, whatever the operator decided.
    kept = replace(plan, units=_all_but(plan, [*published, *unknown]))
    verdict = yield from _remove_staged(kept, None)
    gone = kept.units if published or unknown else ()
    return replace(
        verdict,
        published=tuple(published),
        not_published=gone,
        unknown=tuple(unknown),
        problems=(*problems, *verdict.problems),
    )


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
    """Publish one unit. After any error, the store is queried for the outcome."""
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
            return (yield from _roll_decided_back(plan, error, unit.ordinals))
        # The owner whose lease expired may still be publishing: try again at the next recovery.
        return (yield from _leave_in_doubt(plan, error, (), [unit]))
    yield MarkRefused(unit)
    undoing = yield from _undo(published, certainly_alone and plan.may_undo)
    if undoing.published or undoing.unknown:
        return (
            yield from _leave_in_doubt(
                plan, error, undoing.published, undoing.unknown, undoing.undone, undoing.problems
            )
        )
    tried = [ordinal for refused in (*plan.refused, unit) for ordinal in refused.ordinals]
    return (yield from _roll_decided_back(plan, error, tried))


@dataclass(frozen=True)
class _Undoing:
    """The progress of an undo: what is still published, what is rolled back, what is unknown, and what stopped it."""

    published: Sequence[Unit]
    undone: Sequence[Unit] = ()
    unknown: Sequence[Unit] = ()
    problems: tuple[BaseException, ...] = ()


def _undo(published: Sequence[Unit], allowed: bool) -> Generator[Action, Any, _Undoing]:
    """Undo the last one first; if one cannot be undone, the earlier ones stay published, and it can be completed."""
    if not allowed:
        # The owner whose lease expired may publish it again: the next recovery undoes it. Or the decision is so old
        # that an unpublished unit may have been published, superseded and cleaned up since: an operator decides.
        return _Undoing(published)
    undone: list[Unit] = []
    for place in reversed(range(len(published))):
        outcome, problems = yield from _compensated(published[place])
        if outcome is Outcome.UNKNOWN:
            return _Undoing(published[:place], undone, [published[place]], problems)
        if outcome is Outcome.PUBLISHED:
            return _Undoing(published[: place + 1], undone, (), problems)
        undone.append(published[place])
    return _Undoing((), undone)


def _compensated(unit: Unit) -> Generator[Action, Any, tuple[Outcome, tuple[BaseException, ...]]]:
    reply = yield Compensate(unit)
    if reply.undone:
        return Outcome.NOT_PUBLISHED, ()
    if reply.error is None:
        return Outcome.PUBLISHED, ()
    # Perhaps only the reply to the undo was lost.
    return (yield from _ask(unit)), (reply.error,)


# -- endings ----------------------------------------------------------------------------------------------------------


def _complete(plan: Plan) -> Protocol:
    try:
        yield Record(TransactionState.COMPLETED)
    except TimelineError as problem:
        # All units are published, and recovery will find the same. A recovery that has taken over in the meantime may
        # have seen fewer of them and decided otherwise: if the lease is lost, its record is looked up.
        if plan.seen_dropped:
            return _unfinished(plan, problem, plan.seen_dropped, _Removed())
        return Verdict(TransactionState.COMPLETED, problems=(problem,))
    return (yield from _clean_up(plan))


def _clean_up(plan: Plan) -> Protocol:
    first, last = (
        [Cleanup(ordinal) for unit in plan.units if unit.can_undo == can_undo for ordinal in unit.ordinals]
        for can_undo in (True, False)
    )
    # What cannot be undone comes last here, too: a database is dropped when nothing of the transaction is in it.
    steps: list[Abort | Cleanup] = [
        *first,
        *(Abort(ordinal) for ordinal in sorted(plan.superseded, reverse=True)),
        *last,
    ]
    insisting = plan.seen_dropped | plan.seen_staged.intersection(plan.superseded)
    removed = yield from _remove(steps, insisting)
    if refused := removed.failed.keys() & insisting:
        yield from _suspend(refused, removed.problems)
        return _unfinished(plan, removed.failed[min(refused)], refused, removed)
    yield from _close(removed.left, removed.problems)
    return Verdict(TransactionState.COMPLETED, None, tuple(removed.left), problems=tuple(removed.problems))


def _roll_decided_back(plan: Plan, error: BaseException | None, tried: Collection[int] = ()) -> Protocol:
    """Withdraw a decision that may be durable; nothing may be removed before the withdrawal is durable.

    The publish of some participants was tried: see :func:`_remove_staged`.
    """
    try:
        yield Record(TransactionState.ROLLED_BACK, error)
    except TimelineError as problem:
        # The decision is valid until its withdrawal is durable; recovery queries the stores again.
        return Verdict(TransactionState.IN_DOUBT, error, unknown=plan.units, problems=(problem,))
    return (yield from _remove_staged(plan, error, tried=tried))


def _remove_staged(
    plan: Plan, error: BaseException | None, *, tried: Collection[int] = (), recorded: bool = True
) -> Protocol:
    """Remove what was staged, and what readers see of it: the publish of some participants was tried.

    The transaction stays open while a store refuses the latter: readers may see some of its rows.
    """
    tried = {*tried, *plan.seen_staged}
    removed = yield from _remove([Abort(ordinal) for ordinal in plan.ordinals], tried)
    if shown := removed.failed.keys() & tried:
        yield from _suspend(shown, removed.problems)
        return Verdict(
            TransactionState.IN_DOUBT,
            error,
            tuple(removed.left),
            not_published=_all_without(plan, shown),
            in_part=_alone(shown),
            problems=tuple(removed.problems),
        )
    if recorded:
        yield from _close(removed.left, removed.problems)
    return Verdict(TransactionState.ROLLED_BACK, error, tuple(removed.left), problems=tuple(removed.problems))


@dataclass
class _Removed:
    """The leftovers of some removals, their errors, and those by the ordinal of their participant."""

    left: list[str] = field(default_factory=list)
    problems: list[BaseException] = field(default_factory=list)
    failed: dict[int, BaseException] = field(default_factory=dict)


def _remove(steps: Iterable[Abort | Cleanup], insisting: Collection[int]) -> Generator[Action, Any, _Removed]:
    """Perform removals, those of some participants with several attempts; errors do not change the outcome."""
    removed = _Removed()
    for step in steps:
        reply = yield from _try(step, ATTEMPTS if step.ordinal in insisting else 1)
        if reply.error is not None:
            removed.problems.append(reply.error)
            removed.left.extend(reply.left_behind)
            removed.failed[step.ordinal] = reply.error
    return removed


def _try(step: Abort | Cleanup, attempts: int) -> Generator[Action, Any, Reply]:
    for attempt in range(1, attempts):
        reply: Reply = yield step
        if reply.error is None:
            return reply
        yield Wait(attempt)
    return (yield step)


def _unfinished(plan: Plan, error: BaseException, refused: Collection[int], removed: _Removed) -> Verdict:
    return Verdict(
        TransactionState.IN_DOUBT,
        error,
        tuple(removed.left),
        published=_all_without(plan, refused),
        unfinished=_alone(refused),
        problems=tuple(removed.problems),
    )


def _alone(ordinals: Collection[int]) -> tuple[Unit, ...]:
    return tuple(Unit((ordinal,)) for ordinal in sorted(ordinals))


def _all_without(plan: Plan, ordinals: Collection[int]) -> tuple[Unit, ...]:
    return tuple(unit for unit in plan.units if not set(ordinals).intersection(unit.ordinals))


def _suspend(refused: Collection[int], problems: list[BaseException]) -> Step:
    """Leave the transaction open in its state: readers see what a store refuses to remove."""
    try:
        yield Suspend(tuple(sorted(refused)))
    except (TimelineError, LeaseLostError) as problem:
        problems.append(problem)


def _leave_in_doubt(
    plan: Plan,
    error: BaseException | None,
    published: Sequence[Unit],
    unknown: Sequence[Unit] = (),
    undone: Sequence[Unit] = (),
    problems: tuple[BaseException, ...] = (),
) -> Protocol:
    try:
        yield Record(TransactionState.IN_DOUBT, error)
    except TimelineError as problem:
        problems = (*problems, problem)  # It stays COMMITTING on the timeline, which recovery treats the same.
    return Verdict(
        TransactionState.IN_DOUBT,
        error,
        unknown=tuple(unknown),
        published=tuple(published),
        undone=tuple(undone),
        not_published=_all_but(plan, [*published, *undone, *unknown]),
        problems=problems,
    )


def _close(left: Sequence[str], problems: list[BaseException]) -> Step:
    try:
        yield Finalize(tuple(left))
    except (TimelineError, LeaseLostError) as problem:
        problems.append(problem)
