"""A world for the protocol to run in, without I/O: what is durable, what is staged, what is published.

It is no stand-in for a timeline or a store (those are tested for real beside this): it is the model that says what must
hold after each step, whatever fails, and it makes thousands of histories a second possible.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from twophase.errors import LeaseLostError, TimelineError, WriteConflictError
from twophase.model import Outcome
from twophase.protocol import actions, machine
from twophase.protocol.actions import Plan, Reply, Unit, Verdict
from twophase.protocol.states import TransactionState

#: What may happen at a step. "crash" ends the process; "interrupt" is Ctrl-C. A publish that fails "in part" has shown
#: some of its rows, and its store says that it is not published.
KINDS = (
    "error",
    "error_after",
    "error_in_part",
    "interrupt",
    "interrupt_after",
    "crash",
    "crash_after",
    "crash_in_part",
)


class Crash(BaseException):
    """The process is gone."""


@dataclass
class World:
    """One transaction of some participants, each a publish of its own."""

    count: int
    refused: int | None = None
    #: Those whose publish cannot be undone.
    fixed: frozenset[int] = frozenset()
    state: TransactionState = TransactionState.INFLIGHT
    marked_refused: set[int] = field(default_factory=set)
    closed: bool = False
    left_behind: tuple[str, ...] = ()
    fencing: int = 1
    staged: set[int] = field(default_factory=set)
    published: set[int] = field(default_factory=set)
    #: Those of which readers see a part.
    in_part: set[int] = field(default_factory=set)
    #: Those that readers see until they are removed: after a rollback, or after the publish.
    seen: frozenset[int] = frozenset()
    removed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.staged = set(range(self.count))

    def plan(self) -> Plan:
        units = tuple(Unit((n,), n not in self.fixed) for n in range(self.count))
        refused = tuple(units[n] for n in sorted(self.marked_refused))
        return Plan(units, refused=refused, seen_staged=self.seen, seen_dropped=self.seen)

    def check_at_rest(self) -> None:
        """What must hold once nothing is left to do."""
        assert self.closed
        assert self.state.is_final
        if self.state is TransactionState.COMPLETED:
            assert self.published == set(range(self.count)), "half published"
            assert not self.in_part, "published in part"
            assert self.seen <= self.removed, "ended, and readers see what is gone"
        else:
            assert not self.published | self.in_part, "rolled back, and something is visible"
            assert not self.staged & self.seen, "rolled back, and readers see what was staged"
            assert not self.staged or self.left_behind, "rolled back, and something was left in silence"


class Process:
    """Performs the protocol's actions in a world, with the fencing number that it was given.

    Parameters
    ----------
    world : World
    faults : dict
        From the number of a step, counted from 0, to one of :data:`KINDS`.
    """

    def __init__(self, world: World, faults: dict[int, str] | None = None) -> None:
        self.world = world
        self.fencing = world.fencing
        self.faults = dict(faults or {})
        self.steps = 0

    def run(self, steps: machine.Protocol) -> Verdict:
        """To the end, as :class:`twophase.transactions.driver.Driver` does."""
        walk = self.walk(steps)
        while True:
            try:
                next(walk)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def walk(self, steps: machine.Protocol) -> Iterator[actions.Action]:
        """Step by step; what was just performed is yielded."""
        reply: Any = None
        error: BaseException | None = None
        while True:
            try:
                action = steps.send(reply) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            reply = error = None
            try:
                reply = self._with_fault(action)
            except Crash:
                raise
            except BaseException as raised:
                error = raised
            yield action

    def _with_fault(self, action: actions.Action) -> Any:
        kind = self.faults.get(self.steps)
        self.steps += 1
        if isinstance(action, actions.Wait) and (kind or "").startswith("error"):
            kind = None
        before, after = not (kind or "_after").endswith("_after"), (kind or "").endswith("_after")
        if before:
            if (kind or "").endswith("_in_part") and isinstance(action, actions.Publish):
                self._publish_in_part(action)
            return self._fail(action, kind)
        reply = self._perform(action)
        return self._fail(action, kind) if after else reply

    def _fail(self, action: actions.Action, kind: str | None) -> Any:
        if (kind or "").startswith("crash"):
            raise Crash
        interrupted = (kind or "").startswith("interrupt")
        if isinstance(action, actions.Publish | actions.Abort | actions.Cleanup | actions.Compensate):
            return Reply(KeyboardInterrupt() if interrupted else ConnectionError("no answer"), ("staging",))
        if isinstance(action, actions.AskOutcome):
            return Outcome.UNKNOWN
        raise KeyboardInterrupt if interrupted else TimelineError("no answer from the timeline")

    def _perform(self, action: actions.Action) -> Any:
        name = "_" + type(action).__name__.lower()
        return getattr(self, name)(action)

    # -- the timeline -------------------------------------------------------------------------------------------------

    def _own(self) -> None:
        if self.fencing != self.world.fencing or self.world.closed:
            raise LeaseLostError("taken over")

    def _record(self, action: actions.Record) -> None:
        self._own()
        if self.world.state.is_final and action.state is not self.world.state:
            raise AssertionError(f"{self.world.state} became {action.state}")
        if action.state is TransactionState.COMPLETED:
            assert not self.world.in_part, "the end is recorded, and a part is visible"
        self.world.state = action.state

    def _markrefused(self, action: actions.MarkRefused) -> None:
        self._own()
        self.world.marked_refused |= set(action.unit.ordinals)

    def _finalize(self, action: actions.Finalize) -> None:
        self._own()
        assert self.world.state.is_final
        assert not self.world.in_part, "nothing is left to do, and a part is visible"
        self.world.left_behind = action.left_behind
        self.world.closed = True

    def _suspend(self, _: actions.Suspend) -> None:
        self._own()
        assert self.world.state.is_final

    def _fence(self, _: actions.Fence) -> None:
        self._own()

    def _wait(self, _: actions.Wait) -> None:
        pass

    def _persist(self, action: actions.Persist) -> None:
        assert self.world.state is TransactionState.INFLIGHT, "decided before it was durable"

    # -- the stores ---------------------------------------------------------------------------------------------------

    def _publish(self, action: actions.Publish) -> Reply:
        world, (number,) = self.world, action.unit.ordinals
        if number in world.published:
            return Reply()
        assert world.state not in (TransactionState.REQUESTED, TransactionState.INFLIGHT), "no decision record"
        if number == world.refused or number not in world.staged:
            return Reply(WriteConflictError("another writer was faster"))
        world.published.add(number)
        world.in_part.discard(number)
        return Reply()

    def _publish_in_part(self, action: actions.Publish) -> None:
        (number,) = action.unit.ordinals
        if number in self.world.staged and number not in self.world.published:
            self.world.in_part.add(number)

    def _askoutcome(self, action: actions.AskOutcome) -> Outcome:
        return Outcome.PUBLISHED if action.unit.ordinals[0] in self.world.published else Outcome.NOT_PUBLISHED

    def _compensate(self, action: actions.Compensate) -> Reply:
        if action.unit.ordinals[0] in self.world.fixed:
            return Reply()
        self.world.published.discard(action.unit.ordinals[0])
        return Reply(undone=True)

    def _abort(self, action: actions.Abort) -> Reply:
        assert action.ordinal not in self.world.published, "the files of a published table were removed"
        self.world.staged.discard(action.ordinal)
        self.world.in_part.discard(action.ordinal)
        return Reply()

    def _cleanup(self, action: actions.Cleanup) -> Reply:
        assert action.ordinal in self.world.published
        self.world.removed.add(action.ordinal)
        return Reply()


def live(world: World, faults: dict[int, str]) -> TransactionState | None:
    """A live commit as :class:`twophase.Transaction` runs it: what the user is told; None after a crash."""
    process = Process(world, faults)
    with suppress(Crash):
        try:
            return process.run(machine.commit(world.plan())).state
        except LeaseLostError:
            raise
        except (TimelineError, KeyboardInterrupt):
            try:
                again = machine.recover(world.state, world.plan(), certainly_dead=True)
                return process.run(again).state
            except (TimelineError, KeyboardInterrupt):
                return TransactionState.IN_DOUBT
    return None


def recover(world: World, faults: dict[int, str] | None = None, *, certainly_dead: bool = True) -> None:
    """One attempt of a recovery in a fresh process."""
    if world.closed:
        return
    world.fencing += 1
    with suppress(Crash, TimelineError, KeyboardInterrupt):
        Process(world, faults).run(machine.recover(world.state, world.plan(), certainly_dead=certainly_dead))


def settle(world: World) -> None:
    """Recover until nothing is left to do, or nothing can be done."""
    for _ in range(3):
        recover(world)
