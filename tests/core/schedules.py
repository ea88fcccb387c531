"""All schedules of two transactions, of recoveries and of an external writer, with a fault at any step: an explorer.

The protocol runs over a model of the timeline and of the stores whose whole state is a value
(:mod:`tests.core.schedule_model`). From each state every process may take its next step, and within a budget one may
die, a reply may get lost, a lease may run out, a recovery may begin and an external writer may change a table. States
that were seen before are not entered again, so the search is exhaustive within its budget. What must hold is checked
in each state and at each step, and where nothing can happen any more, after the remaining recoveries, too.

The protocol's generators cannot be copied. A process is represented by the answers that it was given, which determine
what it does next.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from tests.core.schedule_model import (
    COMPLETED,
    EXTERNAL,
    IN_DOUBT,
    INFLIGHT,
    REQUESTED,
    ROLLED_BACK,
    Begin,
    Fails,
    Finder,
    Lease,
    Look,
    LookWounded,
    Model,
    Process,
    Raises,
    Renew,
    Row,
    Violation,
    World,
    Write,
    check,
    put,
    refused_member,
)
from twophase.errors import LeaseLostError, TimelineError, TransactionAborted, WriteConflictError
from twophase.model import Outcome
from twophase.protocol import actions, machine
from twophase.protocol.actions import Action, Member, Plan, Reply, Verdict, arrange
from twophase.protocol.states import TransactionState


@dataclass(frozen=True)
class Bounds:
    """How much may go wrong on one schedule.

    Parameters
    ----------
    disturbances : int
        Processes that die, errors, lost replies, interrupts, leases that run out, and waits that take too long.
    recoveries : int
        Processes that recover while others work; any number follows once nothing else is left to do.
    external : int
        Changes of a table by an external writer.
    attempts : int
        How often the protocol asks a store, and repeats a publish that must go through.
    wounds : bool
        Whether one that waits may take what it waits for from a live owner, as a recovery.
    """

    disturbances: int = 1
    recoveries: int = 1
    external: int = 1
    attempts: int = 1
    wounds: bool = False


# -- what a process runs -----------------------------------------------------------------------------------------------


def _given(steps: Generator[Action, Any, Any], answer: Any) -> Action:
    """Give an answer; the next action comes back."""
    if isinstance(answer, Raises):
        return steps.throw(answer.error("raised"))
    if isinstance(answer, Fails):
        return steps.send(Reply(answer.error("no answer"), ("staging",)))
    return steps.send(answer)


def _awake(steps: Generator[Action, Any, Any], action: Action) -> Action:
    """While it waits before another attempt, a process does nothing: that is no step of its own."""
    while isinstance(action, actions.Wait):
        action = steps.send(None)
    return action


Program: TypeAlias = Generator[Action, Any, Any]


#: What comes out of an action, Ctrl-C too; a generator that is not run on is left in peace.
_ERRORS = (Exception, KeyboardInterrupt)


class Job:
    """A live transaction, as :class:`twophase.transactions.transaction.Transaction` runs it.

    Parameters
    ----------
    members : sequence of Member
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = list(members)

    def plan(self) -> Plan:
        return arrange(self.members)

    def run(self) -> Generator[Action, Any, TransactionState]:
        """From the first statement to what is reported to the user."""
        yield Begin()
        try:
            yield from machine.prepare(self.members)
        except _ERRORS as error:
            return (yield from self.give_up(error))
        try:
            verdict: Verdict = yield from self.noting(machine.commit(self.plan()))
        except LeaseLostError:
            return (yield from self.fate())
        except _ERRORS:
            return (yield from self.carry_on())
        return verdict.state

    def give_up(self, error: BaseException) -> Generator[Action, Any, TransactionState]:
        """``Transaction._abort``."""
        with suppress(*_ERRORS):  # What is left is for a recovery.
            yield from machine.rollback(self.plan(), error)
        return ROLLED_BACK

    def carry_on(self) -> Generator[Action, Any, TransactionState]:
        """``Transaction._run_recovery``: something came in between two steps."""
        try:
            yield Renew()
            state = yield Look()
            steps = machine.recover(state, self.plan(), certainly_dead=True)
            verdict: Verdict = yield from self.noting(steps)
        except LeaseLostError:
            return (yield from self.fate())
        except _ERRORS:
            return IN_DOUBT
        return verdict.state

    def fate(self) -> Generator[Action, Any, TransactionState]:
        """``Transaction._fate``: another process has taken it over."""
        try:
            state: TransactionState = yield Look()
            wounded: bool = yield LookWounded()
        except _ERRORS:
            return IN_DOUBT
        if wounded:
            return (yield from self.give_up(LeaseLostError("wounded")))
        return state if state.is_final else IN_DOUBT

    def note(self, action: Action) -> None:
        """What this process knows once an action has worked."""
        if isinstance(action, actions.MarkRefused):
            self.members = [refused_member(m) if m.ordinal in action.unit.ordinals else m for m in self.members]

    def noting(self, steps: machine.Protocol) -> machine.Protocol:
        """Remember in this process, as the driver does, what a store has refused."""
        answer: Any = None
        error: BaseException | None = None
        while True:
            try:
                action = steps.send(answer) if error is None else steps.throw(error)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = error = None
            try:
                answer = yield action
            except _ERRORS as raised:
                error = raised
            else:
                self.note(action)


class Position(NamedTuple):
    """Where a process is."""

    program: Any
    answers: tuple[Any, ...]
    #: What it does next; None at its end.
    action: Action | None
    #: What it has just done.
    before: Action | None
    #: At its end: what it reports.
    end: TransactionState | None = None


class Positions:
    """All positions of all processes, by number: found by running the program again with the same answers.

    Parameters
    ----------
    start : callable
        From the name of a program to a fresh run of it.
    """

    def __init__(self, start: Callable[[Any], Program]) -> None:
        self._start = start
        self._known: list[Position] = []
        self._next: dict[tuple[Any, Any], int] = {}

    def __getitem__(self, number: int) -> Position:
        return self._known[number]

    def begin(self, program: Any) -> int:
        number = self._next.get((program, None))
        return self._add((program, None), program, (), None) if number is None else number

    def after(self, number: int, answer: Any) -> int:
        known = self._next.get((number, answer))
        if known is not None:
            return known
        here = self._known[number]
        return self._add((number, answer), here.program, (*here.answers, answer), here.action)

    def _add(self, key: tuple[Any, Any], program: Any, answers: tuple[Any, ...], before: Action | None) -> int:
        action, end = self._replayed(program, answers)
        self._known.append(Position(program, answers, action, before, end))
        self._next[key] = len(self._known) - 1
        return self._next[key]

    def _replayed(self, program: Any, answers: tuple[Any, ...]) -> tuple[Action | None, TransactionState | None]:
        steps = self._start(program)
        try:
            action = _awake(steps, next(steps))
            for answer in answers:
                action = _awake(steps, _given(steps, answer))
        except StopIteration as end:
            return None, end.value if isinstance(end.value, TransactionState) else end.value.state
        except (TimelineError, TransactionAborted, KeyboardInterrupt):
            return None, None  # A recovery that comes to nothing.
        return action, None


# -- the explorer -----------------------------------------------------------------------------------------------------

#: What may go wrong at a step: without its effect, and with it.
_BROKEN: dict[type, tuple[tuple[Any, bool], ...]] = {
    **dict.fromkeys(
        (actions.Record, actions.MarkRefused, actions.Finalize, actions.Suspend, actions.Reserve),
        tuple((Raises(error), effect) for error in (TimelineError, KeyboardInterrupt) for effect in (False, True)),
    ),
    actions.Publish: ((Fails(ConnectionError), False), (Fails(ConnectionError), True)),
    actions.Compensate: ((Fails(ConnectionError), False), (Fails(ConnectionError), True)),
    actions.Abort: ((Fails(ConnectionError), False),),
    actions.AskOutcome: ((Outcome.UNKNOWN, False),),
    actions.Prepare: ((Raises(WriteConflictError), False), (Raises(KeyboardInterrupt), False)),
    actions.Persist: ((Raises(OSError), False), (Raises(KeyboardInterrupt), False)),
    actions.Fence: ((Raises(KeyboardInterrupt), False),),
    Renew: ((Raises(TimelineError), False), (Raises(KeyboardInterrupt), True)),
    Look: ((Raises(TimelineError), False),),
}
#: A look at the timeline, where the lease may have run out.
_UNREACHED = (Raises(TimelineError), False)

#: How many recoveries work at one time.
RECOVERIES = 2

_Step: TypeAlias = tuple[tuple[Any, ...], World]


@dataclass
class Explored:
    """How far it came.

    Attributes
    ----------
    states, steps, schedules : int
        Different states; steps between them; ways from the beginning to an end.
    ends : int
        States in which nothing can happen any more.
    """

    states: int = 0
    steps: int = 0
    schedules: int = 0
    ends: int = 0

    def __str__(self) -> str:
        return (
            f"All schedules of the protocol: {self.schedules:.3g} schedules of {self.states:,} states and "
            f"{self.steps:,} steps, {self.ends:,} ends"
        )

    def __iadd__(self, other: Explored) -> Explored:
        self.states += other.states
        self.steps += other.steps
        self.schedules += other.schedules
        self.ends += other.ends
        return self


class Explorer:
    """Goes through all schedules.

    Parameters
    ----------
    transactions : sequence of sequence of Write
        Two of them.
    bounds : Bounds
    model : type of Model
    job : type of Job
    """

    def __init__(
        self,
        transactions: Sequence[Sequence[Write]],
        bounds: Bounds,
        *,
        model: type[Model] = Model,
        job: type[Job] = Job,
    ) -> None:
        self.model = model(transactions)
        self.bounds = bounds
        self._job = job
        self.positions = Positions(self._program)
        self._ended: set[World] = set()

    def _program(self, name: Any) -> Program:
        kind, transaction, *found = name
        if kind == "live":
            return self._job(self.model.members[transaction]).run()
        state, refused, certain = found
        return machine.recover(state, self.model.plan(transaction, refused), certainly_dead=certain)

    def start(self) -> World:
        live = tuple(Process(n, self.positions.begin(("live", n))) for n in range(len(self.model.writes)))
        return World(
            rows=(Row(),) * len(live),
            processes=(*live, *[None] * RECOVERIES),
            tables=((),) * len(self.model.tables),
            staged=tuple((None,) * len(writes) for writes in self.model.writes),
            disturbances=self.bounds.disturbances,
            recoveries=self.bounds.recoveries,
        )

    # -- what can happen ----------------------------------------------------------------------------------------------

    def successors(self, world: World) -> Iterator[_Step]:
        for slot, process in enumerate(world.processes):
            if isinstance(process, Process):
                yield from self._steps(world, slot, process)
            elif isinstance(process, Finder):
                yield (slot, "takes over", process), self._taking_over(world, slot, process)
        if world.recoveries:
            yield from self._recoveries(world._replace(recoveries=world.recoveries - 1))
        if len(world.changed) < self.bounds.external:
            yield from self._changes(world)
        if world.disturbances:
            yield from self._silences(world._replace(disturbances=world.disturbances - 1))

    def _steps(self, world: World, slot: int, process: Process) -> Iterator[_Step]:
        position = self.positions[process.position]
        action = position.action
        assert action is not None
        if isinstance(action, actions.Publish):
            check("fence", isinstance(position.before, actions.Fence), "{} publishes {}", slot, action.unit)
        label = (slot, action)
        waits = self._waits(world, slot, action)
        if waits and not self._stuck(world, process, action):
            after = None
        else:
            after, answer = self.model.perform(world, slot, action)
            answer = Raises(WriteConflictError) if waits else answer
            yield label, self._answered(world if waits else after, slot, answer)
        if not world.disturbances:
            return
        less = world._replace(disturbances=world.disturbances - 1)
        yield (slot, "dies"), self._ends(less, slot, None)
        if waits:
            yield (*label, "waits too long"), self._answered(less, slot, Raises(WriteConflictError))
            return
        assert after is not None
        with_effect = after._replace(disturbances=less.disturbances)
        if isinstance(action, actions.Publish):
            shown = self.model.publish_in_part(less, slot, action)
            if shown != less:
                yield (*label, "in part"), self._answered(shown, slot, Fails(ConnectionError))
        for error, effect in self._faults(process, action):
            yield (*label, error, effect), self._answered(with_effect if effect else less, slot, error)

    def _faults(self, process: Process, action: Action) -> Iterator[tuple[Any, bool]]:
        if isinstance(action, actions.Fence) and not process.sure:
            yield _UNREACHED
        for error, effect in _BROKEN.get(type(action), ()):
            # A signal ends a recovery, as a death does.
            if error != Raises(KeyboardInterrupt) or self.positions[process.position].program[0] == "live":
                yield error, effect

    def _waits(self, world: World, slot: int, action: Action) -> bool:
        process = world.processes[slot]
        if not isinstance(action, actions.Reserve) or not isinstance(process, Process) or not process.owns:
            return False
        return bool(self.model.holders(world, process.transaction, action.ordinal))

    def _stuck(self, world: World, process: Process, action: Action) -> bool:
        """Whether it waits for what nobody works on, and what a recovery could not end."""
        assert isinstance(action, actions.Reserve)
        holders = self.model.holders(world, process.transaction, action.ordinal)
        return any(world.rows[t].state is IN_DOUBT and world.rows[t].owner is None for t in holders)

    def _answered(self, world: World, slot: int, answer: Any) -> World:
        process = world.processes[slot]
        assert isinstance(process, Process)
        number = self.positions.after(process.position, answer)
        position = self.positions[number]
        if position.action is None:
            return self._ends(world, slot, position.end if slot < len(self.model.writes) else None)
        return world._replace(processes=put(world.processes, slot, process._replace(position=number)))

    def _ends(self, world: World, slot: int, reported: TransactionState | None) -> World:
        process = world.processes[slot]
        assert isinstance(process, Process)
        row = world.rows[process.transaction]
        rows = world.rows
        if row.owner == slot:
            rows = put(rows, process.transaction, row._replace(owner=None))
        return world._replace(rows=rows, processes=put(world.processes, slot, reported))

    def _recoveries(self, world: World) -> Iterator[_Step]:
        slot = next((n for n in self._slots() if world.processes[n] is None), None)
        if slot is None:
            return
        for transaction, row in enumerate(world.rows):
            if row.finished or row.state is REQUESTED:
                continue
            for finder in self._deaths(world, transaction, row):
                yield (slot, "finds", finder), world._replace(processes=put(world.processes, slot, finder))

    def _slots(self) -> range:
        return range(len(self.model.writes), len(self.model.writes) + RECOVERIES)

    def _deaths(self, world: World, transaction: int, row: Row) -> Iterator[Finder]:
        """How it may be taken over."""
        if self.bounds.wounds and row.state is INFLIGHT and self._is_waited_for(world, transaction):
            yield Finder(transaction, row.state, False, True, None, wounds=True)
        if row.lease is Lease.RAN_OUT:
            yield Finder(transaction, row.state, False, True, row.lease)  # Seen from another machine, where it was.
        if row.owner is None or row.lease is Lease.GIVEN_UP:
            lease = Lease.GIVEN_UP if row.lease is Lease.GIVEN_UP else None
            if row.silent:
                yield Finder(transaction, row.state, False, False, lease)
            others = any(isinstance(p, Process) and p.transaction == transaction for p in world.processes)
            if not row.silent or not others:  # After an hour, the silent one does not wake up any more.
                yield Finder(transaction, row.state, True, False, lease)

    def _taking_over(self, world: World, slot: int, finder: Finder) -> World:
        if not self.model.is_unchanged(world.rows[finder.transaction], finder):
            return world._replace(processes=put(world.processes, slot, None))
        if finder.wounds:
            world = self.model.wound(world, finder.transaction)
        certain, silent = finder.certainly_dead, finder.silent
        return self.recovering(world, slot, finder.transaction, certain=certain, silent=silent)

    def recovering(self, world: World, slot: int, transaction: int, *, certain: bool, silent: bool) -> World:
        row = world.rows[transaction]
        position = self.positions.begin(("recover", transaction, row.state, row.refused, certain))
        return self.model.take_over(world, slot, transaction, position, silent=silent)

    def _is_waited_for(self, world: World, transaction: int) -> bool:
        for slot, process in enumerate(world.processes[: len(self.model.writes)]):
            action = self.positions[process.position].action if isinstance(process, Process) else None
            if action is not None and self._waits(world, slot, action):
                assert isinstance(process, Process) and isinstance(action, actions.Reserve)
                if transaction in self.model.holders(world, process.transaction, action.ordinal):
                    return True
        return False

    def _changes(self, world: World) -> Iterator[_Step]:
        stamp = f"{EXTERNAL}{len(world.changed)}"
        for table, history in enumerate(world.tables):
            tables = put(world.tables, table, (*history, stamp))
            after = world._replace(tables=tables, changed=(*world.changed, table))
            yield ("an external writer changes", self.model.tables[table]), after

    def _silences(self, world: World) -> Iterator[_Step]:
        for transaction, row in enumerate(world.rows):
            if row.state is REQUESTED or row.finished or row.lease is not Lease.HELD:
                continue
            processes = tuple(
                p._replace(sure=False) if isinstance(p, Process) and p.transaction == transaction else p
                for p in world.processes
            )
            rows = put(world.rows, transaction, row._replace(lease=Lease.RAN_OUT))
            yield ("lease runs out", transaction), world._replace(rows=rows, processes=processes)

    # -- going through all of it --------------------------------------------------------------------------------------

    def run(self) -> Explored:
        """All of it.

        Raises
        ------
        Violation
            With the steps that led there.
        """
        before, machine.ATTEMPTS = machine.ATTEMPTS, self.bounds.attempts
        gc.disable()  # All that is made here stays: looking through it costs a fifth of the time.
        try:
            return self._search()
        finally:
            gc.enable()
            machine.ATTEMPTS = before

    def _search(self) -> Explored:
        explored = Explored()
        ways: dict[World, int] = {}
        start = self.start()
        path: list[tuple[Any, World, Iterator[_Step], list[int]]] = [("", start, self.successors(start), [0, 0])]
        try:
            while path:
                _, world, steps, found = path[-1]
                step = next(steps, None)
                if step is not None:
                    explored.steps += 1
                    found[1] += 1
                    known = ways.get(step[1])
                    if known is not None:
                        found[0] += known
                        continue
                    path.append((*step, self.successors(step[1]), [0, 0]))
                    self._check_state(step[1])
                    continue
                if not found[1]:
                    explored.ends += 1
                    self._check_end(world)
                    found[0] = 1
                ways[world] = found[0]
                path.pop()
                if path:
                    path[-1][3][0] += found[0]
        except Violation as violation:
            trace = [self._words(entry[0]) for entry in path[1:]]
            raise Violation(violation.name, violation.text, [*trace, f"in {path[-1][1]}"]) from None
        explored.states, explored.schedules = len(ways), ways[start]
        return explored

    def _words(self, label: tuple[Any, ...]) -> str:
        who = f"process {label[0]}" if isinstance(label[0], int) else label[0]
        return " ".join([who, *(str(part) for part in label[1:])])

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _check_state(self, world: World) -> None:
        for table, history in enumerate(world.tables):
            check("rows", len(set(history)) == len(history), "{} in {}", history, self.model.tables[table])
        for number, table in enumerate(world.changed):
            check("rows", f"{EXTERNAL}{number}" in world.tables[table], "those of an external writer: {}", world)
        for transaction, writes in enumerate(self.model.writes):
            reported = world.processes[transaction]
            if isinstance(reported, Process) or reported is None:
                continue
            state = world.rows[transaction].state
            if reported is COMPLETED:
                check("acknowledged", state is not ROLLED_BACK, "{} is not COMPLETED", transaction)
                for ordinal in range(len(writes)):
                    history = world.tables[self.model.table(transaction, ordinal)]
                    check("rows", self.model.stamp(transaction, ordinal) in history, "{}: {}", history, transaction)
            if reported is ROLLED_BACK:
                visible = any(t == transaction for t, _ in world.published)
                check("acknowledged", state is not COMPLETED and not visible, "{} is not ROLLED_BACK", transaction)

    def _check_end(self, world: World) -> None:
        """After all recoveries that are still needed."""
        settled = self._settled(world)
        if settled in self._ended:
            return
        self._ended.add(settled)
        for slot, process in enumerate(settled.processes):
            check("progress", not isinstance(process, Process), "process {} waits for ever", slot)
        for transaction, row in enumerate(settled.rows):
            if row.finished:
                self._check_ended(settled, transaction, row)
            elif row.state is not REQUESTED:
                self._check_doubt(settled, transaction, row)
        self._check_state(settled)
        self._check_stable(settled)

    def _check_ended(self, world: World, transaction: int, row: Row) -> None:
        published = {ordinal for t, ordinal in world.published if t == transaction}
        if row.state is COMPLETED:
            check("whole", published == self.model.ordinals[transaction], "only {} of {} are", published, transaction)
        else:
            check("nothing", row.state is ROLLED_BACK and not published, "{} of {} are", published, transaction)
        shown = [ordinal for t, ordinal in world.in_part if t == transaction]
        check("nothing", not shown, "a part of {} of {} is", shown, transaction)
        held = [r for r in world.reserved if r[1] == transaction]
        check("released", not held, "{} holds {}", transaction, held)
        staged = [n for n, seen in enumerate(world.staged[transaction]) if seen is not None]
        check("released", not staged or row.left_behind, "{} of {} are left in silence", staged, transaction)

    def _check_doubt(self, world: World, transaction: int, row: Row) -> None:
        published = {ordinal for t, ordinal in world.published if t == transaction}
        # The first of those that are published is in the way of undoing; or all were undone but one that was changed.
        fixed = any(not self.model.may_undo(world, transaction, ordinal) for ordinal in published)
        refused = any(self.model.refuses(world, transaction, n) for n in row.refused - published)
        check(
            "end", row.state is IN_DOUBT and fixed and refused, "{} is {}, {} is published", transaction, row, published
        )

    def _check_stable(self, world: World) -> None:
        for transaction, row in enumerate(world.rows):
            if row.state is REQUESTED:
                continue
            again = self._to_its_end(self._taken_over(world, transaction), self._slots()[0])
            same = again._replace(rows=world.rows)
            if row.left_behind:
                same = same._replace(staged=world.staged)
            ended = again.rows[transaction]
            is_same = same == world and (ended.state, ended.finished) == (row.state, row.finished)
            check("stable", is_same, "transaction {} in {} becomes {}", transaction, world, again)

    def _settled(self, world: World) -> World:
        """All that can still go on goes on, without a fault, and what is dead is recovered."""
        for _ in range(8):
            before = world
            for slot in range(len(world.processes)):
                world = self._to_its_end(world, slot)
            for transaction, row in enumerate(world.rows):
                owned = row.owner is not None and isinstance(world.processes[row.owner], Process)
                if not (row.finished or row.state is REQUESTED or owned):
                    world = self._to_its_end(self._taken_over(world, transaction), self._slots()[0])
            if world == before:
                break
        return world

    def _taken_over(self, world: World, transaction: int) -> World:
        return self.recovering(world, self._slots()[0], transaction, certain=True, silent=False)

    def _to_its_end(self, world: World, slot: int) -> World:
        while isinstance(process := world.processes[slot], Process):
            action = self.positions[process.position].action
            assert action is not None
            if not self._waits(world, slot, action):
                world, answer = self.model.perform(world, slot, action)
            elif self._stuck(world, process, action):
                answer = Raises(WriteConflictError)
            else:
                return world
            world = self._answered(world, slot, answer)
            self._check_state(world)
        return world
