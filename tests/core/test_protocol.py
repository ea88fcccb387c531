"""The protocol, stepped: every fault at every step, twice, and two processes at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core.world import KINDS, Crash, Process, World, live, recover, settle
from twophase.errors import LeaseLostError, TimelineError
from twophase.protocol import actions, machine
from twophase.protocol.actions import Member, Unit, arrange
from twophase.protocol.states import ParticipantState, TransactionState

COMPLETED, ROLLED_BACK, IN_DOUBT = (
    TransactionState.COMPLETED,
    TransactionState.ROLLED_BACK,
    TransactionState.IN_DOUBT,
)
quick_first_cases = True

#: More steps than any history of three participants has.
LONGEST = 40

shapes = pytest.mark.parametrize(
    ("count", "refused"),
    [(n, refused) for n in (2, 1, 3) for refused in (None, *range(n))],
    ids=lambda value: str(value),
)


def faults_of_a_run(count: int, refused: int | None) -> Iterator[dict[int, str]]:
    """Each kind of fault at each step that a live commit has."""
    for number in range(LONGEST):
        world = World(count, refused)
        process = Process(world, {number: "error"})
        with suppress(TimelineError):
            process.run(machine.commit(world.plan()))
        if process.steps <= number:
            return
        yield from ({number: kind} for kind in KINDS)


def check_promise(world: World, told: TransactionState | None, ended: TransactionState) -> None:
    """What the user was told stays true."""
    if told is COMPLETED:
        assert ended is COMPLETED
    if told is ROLLED_BACK:
        assert ended is ROLLED_BACK


@shapes
def test_without_a_fault_all_or_nothing_is_published(count: int, refused: int | None) -> None:
    world = World(count, refused)
    told = live(world, {})
    assert told is (COMPLETED if refused is None else ROLLED_BACK)
    world.check_at_rest()


@shapes
def test_any_fault_at_any_step_ends_in_all_or_nothing(count: int, refused: int | None) -> None:
    tried = 0
    for faults in faults_of_a_run(count, refused):
        world = World(count, refused)
        told = live(world, faults)
        settle(world)
        world.check_at_rest()
        check_promise(world, told, world.state)
        tried += 1
    assert tried >= 5 * len(KINDS)


@shapes
def test_any_fault_of_the_recovery_after_any_fault_ends_in_all_or_nothing(count: int, refused: int | None) -> None:
    for first, second, kind in itertools.product(faults_of_a_run(count, refused), range(12), KINDS):
        world = World(count, refused)
        told = live(world, first)
        recover(world, {second: kind})
        settle(world)
        world.check_at_rest()
        check_promise(world, told, world.state)


@settings(max_examples=500, deadline=None)
@given(
    shape=st.sampled_from([(n, refused) for n in (1, 2, 3) for refused in (None, *range(n))]),
    runs=st.lists(st.dictionaries(st.integers(0, LONGEST), st.sampled_from(KINDS), max_size=6), min_size=1, max_size=5),
)
def test_any_number_of_faults_in_any_number_of_attempts(
    shape: tuple[int, int | None], runs: list[dict[int, str]]
) -> None:
    world = World(*shape)
    told = live(world, runs[0])
    for faults in runs[1:]:
        recover(world, faults)
    settle(world)
    world.check_at_rest()
    check_promise(world, told, world.state)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_crash_before_the_decision_is_rolled_back(count: int) -> None:
    world = World(count)
    assert live(world, {0: "crash"}) is None
    settle(world)
    assert world.state is ROLLED_BACK


def test_a_single_publish_is_the_decision_so_a_killed_statement_can_run_again() -> None:
    world = World(1)
    live(world, {1: "crash_after"})  # right after the decision
    assert world.state is TransactionState.COMMITTING
    settle(world)
    assert world.state is ROLLED_BACK
    world.check_at_rest()


def test_with_several_publishes_the_decision_binds() -> None:
    world = World(2)
    live(world, {1: "crash_after"})  # right after the decision
    settle(world)
    assert world.state is COMPLETED
    world.check_at_rest()


@pytest.mark.parametrize("count", [1, 2])
def test_what_the_disk_does_not_take_is_never_decided(count: int) -> None:
    world = World(count)
    assert live(world, {0: "error"}) is ROLLED_BACK
    world.check_at_rest()


def test_a_publish_whose_reply_was_lost_is_not_taken_for_failed() -> None:
    world = World(1)
    publish = 3  # Persist, Record, Fence, Publish
    assert live(world, {publish: "error_after"}) is COMPLETED
    world.check_at_rest()


def test_an_outcome_that_cannot_be_learned_touches_nothing_and_is_asked_again() -> None:
    world = World(1)
    publish, asked = 3, range(4, 4 + 2 * machine.ATTEMPTS - 1)  # a wait between two questions
    told = live(world, {publish: "error_after", **dict.fromkeys(asked, "error")})
    assert told is IN_DOUBT
    assert world.staged == {0}
    recover(world, dict.fromkeys(range(2 * machine.ATTEMPTS - 1), "error"))
    assert world.state is IN_DOUBT
    settle(world)
    assert world.state is COMPLETED


#: Publish, of a live commit of one: Persist, Record and Fence come before it; AskOutcome and Record after it.
PUBLISH = 3
UNDO = range(PUBLISH + 3, PUBLISH + 2 + 2 * machine.ATTEMPTS)


def test_a_publish_that_cannot_be_undone_now_stays_open_until_it_is_undone() -> None:
    world = World(1)
    told = live(world, {PUBLISH: "error_in_part", **dict.fromkeys(UNDO, "error")})
    assert (told, world.state, world.in_part, world.closed) == (IN_DOUBT, ROLLED_BACK, {0}, False)
    recover(world, dict.fromkeys(range(LONGEST), "error"))
    assert (world.state, world.in_part, world.closed) == (ROLLED_BACK, {0}, False)
    settle(world)
    world.check_at_rest()


def test_an_undo_that_works_in_the_end_is_a_rollback() -> None:
    world = World(1)
    assert live(world, {PUBLISH: "error_in_part", **dict.fromkeys(UNDO[:-1], "error")}) is ROLLED_BACK
    world.check_at_rest()


ALL, ONE = frozenset({0, 1, 2}), frozenset({0})
#: Its cleanup, after the record of its end, and the waits between the attempts.
CLEANUP = range(PUBLISH + 2, PUBLISH + 1 + 2 * machine.ATTEMPTS)


@pytest.mark.promise("in-doubt", "a dropped database that its store refuses to drop stays open until it is dropped")
def test_what_readers_see_until_the_end_stays_open_until_it_is_removed() -> None:
    world = World(1, seen=ONE)
    verdict = Process(world, dict.fromkeys(CLEANUP, "error")).run(machine.commit(world.plan()))
    assert (verdict.state, numbers(verdict.unfinished), str(verdict.error)) == (IN_DOUBT, {0}, "no answer")
    recover(world, dict.fromkeys(range(LONGEST), "error"))
    assert (world.state, world.removed, world.closed) == (COMPLETED, set(), False)
    settle(world)
    world.check_at_rest()


@pytest.mark.parametrize("kind", ["error", "error_after"])
def test_what_readers_see_until_the_end_is_reported_where_the_end_is_not_recorded(kind: str) -> None:
    world = World(2, seen=ONE)
    verdict = Process(world, {PUBLISH + 3: kind}).run(machine.commit(world.plan()))
    assert (verdict.state, numbers(verdict.published), numbers(verdict.unfinished)) == (IN_DOUBT, {1}, {0})
    settle(world)
    assert world.state is COMPLETED
    world.check_at_rest()


def test_what_readers_see_until_the_end_is_removed_by_another_attempt() -> None:
    world = World(1, seen=ONE)
    assert live(world, dict.fromkeys(CLEANUP[:-1], "error")) is COMPLETED
    world.check_at_rest()


def test_what_readers_see_before_the_publish_stays_open_until_it_is_removed() -> None:
    world = World(1, seen=ONE)
    assert live(world, dict.fromkeys((0, *range(2, 1 + 2 * machine.ATTEMPTS)), "error")) is IN_DOUBT
    assert (world.state, world.staged, world.closed) == (ROLLED_BACK, {0}, False)
    settle(world)
    world.check_at_rest()


@shapes
def test_any_two_faults_end_it_only_when_readers_see_nothing_of_it(count: int, refused: int | None) -> None:
    for first, second, kind in itertools.product(faults_of_a_run(count, refused), range(12), KINDS):
        world = World(count, refused, seen=ALL & set(range(count)))
        told = live(world, first)
        recover(world, {second: kind})
        settle(world)
        world.check_at_rest()
        check_promise(world, told, world.state)


@pytest.mark.parametrize("found", [COMPLETED, ROLLED_BACK])
def test_an_operator_ends_what_cannot_be_removed(found: TransactionState) -> None:
    world = World(1, seen=ONE, state=found)
    world.published = {0} if found is COMPLETED else set()
    assert Process(world, {0: "error"}).run(machine.assume(world.plan(), found, found)).state is found
    assert world.closed and world.left_behind


def numbers(units: Sequence[Unit]) -> set[int]:
    return {number for unit in units for number in unit.ordinals}


@pytest.mark.parametrize("refused", [1, 2])
def test_a_late_refusal_that_cannot_be_undone_is_in_doubt_with_all_kept(refused: int) -> None:
    world = World(3, refused, fixed=ALL)
    assert live(world, {}) is IN_DOUBT
    settle(world)
    assert world.state is IN_DOUBT
    assert world.published == set(range(refused))
    assert world.staged == {0, 1, 2}


@pytest.mark.parametrize("refused", [1, 2])
def test_what_is_known_of_each_is_told_where_it_ends_half(refused: int) -> None:
    world = World(3, refused, fixed=ALL)
    verdict = Process(world).run(machine.commit(world.plan()))
    assert numbers(verdict.published) == set(range(refused))
    assert numbers(verdict.not_published) == set(range(refused, 3))
    assert not verdict.unknown


@pytest.mark.parametrize("fixed", [ALL, frozenset({0}), frozenset({1})])
def test_a_half_transaction_is_completed_once_nothing_is_in_its_way(fixed: frozenset[int]) -> None:
    world = World(3, refused=2, fixed=fixed)
    assert live(world, {}) is IN_DOUBT
    recover(world)
    assert world.state is IN_DOUBT
    world.refused = None
    recover(world)
    assert world.state is COMPLETED
    world.check_at_rest()


@pytest.mark.parametrize("kind", KINDS)
def test_any_fault_while_a_half_transaction_is_completed_leaves_nothing_half(kind: str) -> None:
    for number in range(LONGEST):
        world = World(3, refused=2, fixed=frozenset({0}))
        live(world, {})
        world.refused = None
        recover(world, {number: kind})
        settle(world)
        assert world.state is COMPLETED
        world.check_at_rest()


def test_what_was_undone_stays_so_while_the_refusal_lasts() -> None:
    """No recovery shows rows that the next one takes away."""
    world = World(3, refused=2, fixed=frozenset({0}))
    verdict = Process(world).run(machine.commit(world.plan()))
    assert (numbers(verdict.published), numbers(verdict.undone), numbers(verdict.not_published)) == ({0}, {1}, {2})
    for _ in range(2):
        world.fencing += 1
        again = machine.recover(world.state, world.plan(), certainly_dead=True)
        tried = [a for a in Process(world).walk(again) if isinstance(a, actions.Publish)]
        assert [action.unit.ordinals for action in tried] == [(2,)]
        assert world.published == {0}


def test_what_was_published_after_all_is_not_undone_by_the_next_recovery() -> None:
    """Its end may have been reported, although the timeline did not take the record."""
    world = World(3, refused=2, fixed=frozenset({0}))
    live(world, {})
    world.refused = None
    world.fencing += 1
    first = Process(world).walk(machine.recover(world.state, world.plan(), certainly_dead=True))
    while world.published != ALL:
        next(first)
    world.fencing += 1
    again = Process(world).walk(machine.recover(world.state, world.plan(), certainly_dead=True))
    assert not [action for action in again if isinstance(action, actions.Compensate)]
    assert world.state is COMPLETED
    world.check_at_rest()


def test_one_that_cannot_be_undone_does_no_harm_where_it_comes_last() -> None:
    for refused in range(3):
        world = World(3, refused, fixed=frozenset({2}))
        assert live(world, {}) is ROLLED_BACK
        world.check_at_rest()


@pytest.mark.parametrize("state", [COMPLETED, ROLLED_BACK])
@pytest.mark.parametrize("refused", [1, 2])
def test_an_operator_can_always_end_it(refused: int, state: TransactionState) -> None:
    world = World(3, refused, fixed=ALL)
    live(world, {})
    world.fencing += 1
    verdict = Process(world).run(machine.assume(world.plan(), world.state, state))
    assert world.closed
    assert world.state is verdict.state is state
    assert numbers(verdict.published) == world.published != set()
    assert numbers(verdict.not_published) == ALL - world.published != set()
    assert not verdict.unknown


@pytest.mark.promise("killed-driver", "what was decided longer ago than versions are kept is never undone")
def test_what_was_decided_long_ago_is_completed_where_it_can_be_and_never_undone() -> None:
    """A timeline from a backup: what one store says not to know may have been published, replaced and cleaned since."""
    for published in (set(), {0}, {0, 1}, {1}):
        world = World(2, refused=1, state=TransactionState.COMMITTING, published=set(published))
        plan = replace(world.plan(), may_undo=False)
        verdict = Process(world).run(machine.recover(world.state, plan, certainly_dead=True))
        assert published <= world.published
        assert verdict.state is {(): IN_DOUBT, (0,): IN_DOUBT}.get(tuple(published), COMPLETED)


# -- two processes at once --------------------------------------------------------------------------------------------


def interleave(world: World, steps: machine.Protocol, pause: int, resume: int, *, certainly_dead: bool) -> None:
    """One process stops after some steps, a recovery takes over and goes some steps, then the first one wakes up."""
    sleeper = Process(world).walk(steps)
    if not advance(sleeper, pause) or world.closed:
        return
    world.fencing += 1
    recovery = Process(world).walk(machine.recover(world.state, world.plan(), certainly_dead=certainly_dead))
    alive = advance(recovery, resume)
    advance(sleeper, LONGEST)
    if alive:
        advance(recovery, LONGEST)


def advance(walk: Iterator[actions.Action], steps: int) -> bool:
    """Go some steps; whether it goes on after them."""
    try:
        for _ in range(steps):
            next(walk)
    except (StopIteration, LeaseLostError, Crash):
        return False
    return True


@pytest.mark.parametrize(("count", "refused"), [(1, None), (1, 0), (2, None), (2, 0), (2, 1), (3, 2)])
def test_an_owner_that_wakes_up_in_the_middle_of_its_recovery_does_no_harm(count: int, refused: int | None) -> None:
    for pause, resume in itertools.product(range(LONGEST // 2), repeat=2):
        world = World(count, refused)
        interleave(world, machine.commit(world.plan()), pause, resume, certainly_dead=False)
        settle(world)
        world.check_at_rest()


@pytest.mark.parametrize("count", [1, 2])
def test_a_writer_that_lost_its_lease_before_its_end_does_not_say_that_it_completed(count: int) -> None:
    world = World(count)
    writer = Process(world).walk(machine.commit(world.plan()))
    assert advance(writer, 1 + 2 * count)  # Record, and for each a Fence and a Publish
    world.fencing += 1  # The one that took over may have rolled back what was not yet to be seen.
    with pytest.raises(LeaseLostError):
        list(writer)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_an_owner_that_gives_up_while_it_is_recovered_does_no_harm(count: int) -> None:
    for pause, resume in itertools.product(range(LONGEST // 2), repeat=2):
        world = World(count)
        interleave(world, machine.rollback(world.plan()), pause, resume, certainly_dead=False)
        settle(world)
        assert world.state is ROLLED_BACK
        world.check_at_rest()


@pytest.mark.parametrize(("count", "refused"), [(1, None), (2, None), (2, 1), (3, 2)])
@pytest.mark.parametrize("state", [TransactionState.INFLIGHT, TransactionState.COMMITTING])
def test_two_recoveries_at_once_are_safe(count: int, refused: int | None, state: TransactionState) -> None:
    """The one that lost the lease publishes or removes at most what the other does, too."""
    for pause, resume in itertools.product(range(LONGEST // 2), repeat=2):
        world = World(count, refused, state=state)
        first = machine.recover(state, world.plan(), certainly_dead=True)
        interleave(world, first, pause, resume, certainly_dead=False)
        settle(world)
        world.check_at_rest()


# -- what is published, and in which order ----------------------------------------------------------------------------


def member(
    ordinal: int,
    catalog: str,
    *path: str,
    state: str = "prepared",
    group: str | None = None,
    can_undo: bool = True,
) -> Member:
    return Member(ordinal, catalog, path, ParticipantState(state), group, can_undo)


def test_participants_are_published_by_catalog_path_and_ordinal() -> None:
    plan = arrange([member(0, "b", "x"), member(1, "a", "z"), member(2, "a", "y")])
    assert plan.units == (Unit((2,)), Unit((1,)), Unit((0,)))


def test_a_group_is_one_publish_at_the_place_of_its_first() -> None:
    members = [
        member(0, "b", "x", group="g"),
        member(1, "a", "z", group="g"),
        member(2, "b", "a", group="g"),
        member(3, "a", "y"),
    ]
    assert arrange(members).units == (Unit((3,)), Unit((1,)), Unit((2, 0)))


def test_what_cannot_be_undone_is_published_last_whatever_its_name() -> None:
    members = [
        member(0, "a", "x", can_undo=False),
        member(1, "b", "y", group="g"),
        member(2, "b", "z", group="g", can_undo=False),
        member(3, "c", "x"),
        member(4, "b", "x"),
    ]
    units = (Unit((4,)), Unit((3,)), Unit((0,), False), Unit((1, 2), False))
    for shuffled in itertools.permutations(members):
        assert arrange(shuffled).units == units


@pytest.mark.parametrize(
    ("can_undo", "level"),
    [([False], 3), ([True, True], 2), ([True, False], 2), ([False, False], 1), ([True, False, False], 1)],
)
def test_two_publishes_that_cannot_be_undone_are_level_one(can_undo: list[bool], level: int) -> None:
    plan = arrange([member(n, "a", str(n), can_undo=can) for n, can in enumerate(can_undo)])
    assert plan.level == level


def test_those_that_were_refused_are_known_by_their_publish() -> None:
    members = [member(0, "a", "x"), member(1, "b", "x", state="refused", group="g"), member(2, "b", "y", group="g")]
    assert arrange(members).refused == (Unit((1, 2)),)


def test_what_an_operator_has_given_up_is_only_removed() -> None:
    plan = arrange([member(0, "a", "x", state="published"), member(1, "a", "y", state="aborted")])
    assert (plan.units, plan.superseded) == ((Unit((0,)),), (1,))


def test_what_a_later_statement_replaced_is_only_removed() -> None:
    plan = arrange(
        [member(0, "a", "x", state="superseded"), member(1, "a", "x"), member(2, "a", "y", state="discarded")]
    )
    assert plan.units == (Unit((1,)),)
    assert plan.superseded == (0,)
    assert plan.ordinals == [1, 0]


def test_the_last_statement_is_undone_first() -> None:
    world = World(3)
    done = list(Process(world).walk(machine.rollback(world.plan())))
    assert [action.ordinal for action in done if isinstance(action, actions.Abort)] == [2, 1, 0]


def test_all_tables_are_reserved_in_one_order_before_any_is_validated() -> None:
    members = [member(4, "b", "x"), member(5, "a", "z"), member(6, "a", "y")]
    reserved = [actions.Reserve(number) for number in (6, 5, 4)]
    assert list(machine.prepare(members)) == [*reserved, *(actions.Prepare(number) for number in (4, 5, 6))]


def test_nothing_is_reserved_while_a_transaction_goes_on() -> None:
    assert list(machine.prepare_alone(4)) == [actions.Prepare(4)]
