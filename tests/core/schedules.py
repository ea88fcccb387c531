"""All schedules of two transactions, of recoveries and of an external writer, with a fault at any step: an explorer.

The protocol runs over a model of the timeline and of the stores whose whole state is a value
(:mod:`tests.core.schedule_model`). From each state every process may take its next step, and within a budget one may
die, a reply may get lost, a lease may run out, a recovery may begin and an external writer may change a table. States
that were seen before are not entered again, so the search is exhaustive within its budget. What must hold is checked
in each state and at each step, and where nothing can happen any more, after the remaining recoveries, too.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.core.schedule_model import (
    COMPLETED,
    EXTERNAL,
    IN_DOUBT,
    INFLIGHT,
    REQUESTED,
    ROLLED_BACK,
    Fails,
    Finder,
    Lease,
    Look,
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
)
from tests.core.schedule_programs import Job, Positions, Program
from twophase.errors import TimelineError, WriteConflictError
from twophase.model import Outcome
from twophase.protocol import actions, machine
from twophase.protocol.actions import Action
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
