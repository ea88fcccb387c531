"""The model in which :mod:`tests.core.schedules` runs the protocol: the timeline and the stores, as one value.

It is no stand-in for a timeline or a store (those are tested for real beside this). It says what each action does to
them, and checks what must hold at each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from twophase.errors import LeaseLostError, WriteConflictError
from twophase.model import Outcome
from twophase.protocol import actions
from twophase.protocol.actions import Action, Member, Plan, Reply, arrange
from twophase.protocol.states import ParticipantState, TransactionState

REQUESTED, INFLIGHT, COMMITTING, COMPLETED, ROLLED_BACK, IN_DOUBT = TransactionState
_DECIDED = (COMMITTING, IN_DOUBT)

#: Names of what must hold, each with its sentence.
INVARIANTS = {
    "decision": "nothing is published before the decision is durable",
    "staged": "what is decided is staged",
    "fence": "each publish follows a look at the lease: a process that has lost it publishes nothing",
    "reserved": "what is published is reserved, and only an external writer makes a publish fail that was prepared",
    "whole": "COMPLETED is recorded once all is published",
    "nothing": "of a transaction that is rolled back nothing is published",
    "outcome first": "nothing is removed before the outcome is recorded",
    "kept": "what is published is not removed",
    "acknowledged": "what was reported to the user stays true",
    "rows": "rows that a writer was told are there are there once, whoever wrote them",
    "progress": "some process can go on until all have ended",
    "end": "recovery ends each transaction, but where a store has refused what cannot be undone",
    "released": "a transaction that has ended holds no reservation and leaves nothing in silence",
    "stable": "another recovery changes nothing of what has ended",
}


class Violation(AssertionError):
    """An invariant does not hold.

    Parameters
    ----------
    name : str
        One of :data:`INVARIANTS`.
    text : str
    trace : sequence of str
        The steps that led there.
    """

    def __init__(self, name: str, text: str, trace: Sequence[str] = ()) -> None:
        super().__init__("\n".join([f"{INVARIANTS[name]} ({name}): {text}", *trace]))
        self.name, self.text, self.trace = name, text, tuple(trace)


# -- what is written --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Write:
    """One participant.

    Parameters
    ----------
    table : str
    catalog : str
        Its store.
    appends : bool
        Whether it adds rows to what is there at the publish; else it replaces what was there when it began.
    group : str, optional
        Those of one catalog and group are published in one step.
    can_undo : bool
    records : bool
        Whether its publish records ``COMPLETED`` in the same database transaction, where it is the only one.
    """

    table: str
    catalog: str = "store"
    appends: bool = False
    group: str | None = None
    can_undo: bool = True
    records: bool = False


# -- the state of everything ------------------------------------------------------------------------------------------


class Lease(Enum):
    """The lease of a transaction on the timeline."""

    HELD = "held"
    RAN_OUT = "ran out"
    GIVEN_UP = "given up"


class Row(NamedTuple):
    """A transaction on the timeline."""

    state: TransactionState = REQUESTED
    lease: Lease = Lease.HELD
    #: Whether it was ever taken over from an owner that was silent, but not seen to be gone.
    silent: bool = False
    finished: bool = False
    refused: frozenset[int] = frozenset()
    left_behind: bool = False
    #: The process that owns it; None once that one does not work on it.
    owner: int | None = None
    #: Whether another transaction has taken it over from a live owner.
    wounded: bool = False


class Process(NamedTuple):
    """A process that works on a transaction."""

    transaction: int
    #: Of :class:`Positions`.
    position: int
    #: Whether it bears the latest fencing number.
    owns: bool = True
    #: Whether it need not ask the timeline whether it still owns it: its lease cannot have run out.
    sure: bool = True


class Finder(NamedTuple):
    """A recovery that has read a transaction's row, and will take the transaction over unless that has changed."""

    transaction: int
    state: TransactionState
    certainly_dead: bool
    #: Whether the owner was only silent.
    silent: bool
    #: The lease that it must still have; None where its owner is gone, or is wounded.
    lease: Lease | None
    wounds: bool = False


#: The writers of a table, the first one first: what is undone is not in it.
History: TypeAlias = tuple[str, ...]
EXTERNAL = "x"


class World(NamedTuple):
    """The state of the timeline, of the stores and of all processes: a value."""

    rows: tuple[Row, ...]
    #: The live ones by transaction, then the recoveries. One that has ended is what it reported, one that died None.
    processes: tuple[Process | Finder | TransactionState | None, ...]
    tables: tuple[History, ...]
    #: By transaction and ordinal: the history that it was staged on; None where nothing is staged.
    staged: tuple[tuple[History | None, ...], ...]
    published: frozenset[tuple[int, int]] = frozenset()
    #: Those of which readers see a part: their publish has failed, and is not undone yet.
    in_part: frozenset[tuple[int, int]] = frozenset()
    #: Table, transaction, and whether it only appends.
    reserved: frozenset[tuple[int, int, bool]] = frozenset()
    #: Tables that an external writer has changed.
    changed: tuple[int, ...] = ()
    disturbances: int = 0
    recoveries: int = 0


def put(values: tuple[Any, ...], place: int, value: Any) -> tuple[Any, ...]:
    return (*values[:place], value, *values[place + 1 :])


# -- answers ----------------------------------------------------------------------------------------------------------


class Raises(NamedTuple):
    """The action throws."""

    error: type[BaseException]


class Fails(NamedTuple):
    """The action is answered with a reply that bears an error."""

    error: type[BaseException]


# -- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Begin(Action):
    """Record the transaction and stage all that it writes."""


@dataclass(frozen=True)
class Renew(Action):
    """Prolong the lease, also where that was given up, and make sure that it is still ours."""


@dataclass(frozen=True)
class Look(Action):
    """Read the transaction's state from the timeline."""


@dataclass(frozen=True)
class LookWounded(Action):
    """Read from the timeline whether another transaction has wounded this one."""


def refused_member(member: Member) -> Member:
    return replace(member, state=ParticipantState.REFUSED)


#: A new state, and the answer to the one who acted.
_Effect: TypeAlias = tuple[World, Any]


class Model:
    """The timeline and the stores: what each action does to them.

    Parameters
    ----------
    transactions : sequence of sequence of Write
        What each of them writes, by ordinal.
    """

    def __init__(self, transactions: Sequence[Sequence[Write]]) -> None:
        self.writes = [list(writes) for writes in transactions]
        self.tables = sorted({(write.catalog, write.table) for writes in self.writes for write in writes})
        self.members = [
            [
                Member(n, write.catalog, (write.table,), ParticipantState.PREPARED, write.group, write.can_undo)
                for n, write in enumerate(writes)
            ]
            for writes in self.writes
        ]
        self.ordinals = [frozenset(range(len(writes))) for writes in self.writes]
        self._table = [[self.tables.index((w.catalog, w.table)) for w in writes] for writes in self.writes]
        self._perform: dict[type, Callable[[World, int, Any], _Effect]] = {
            kind: getattr(self, "_" + kind.__name__.lower())
            for kind in (
                *(Begin, Renew, Look, LookWounded, actions.Record, actions.MarkRefused, actions.Finalize),
                *(
                    actions.Suspend,
                    actions.Reserve,
                    actions.Prepare,
                    actions.Persist,
                    actions.Fence,
                    actions.Publish,
                    actions.AskOutcome,
                ),
                *(actions.Compensate, actions.Abort, actions.Cleanup),
            )
        }

    def plan(self, transaction: int, refused: frozenset[int]) -> Plan:
        return arrange(refused_member(m) if m.ordinal in refused else m for m in self.members[transaction])

    def perform(self, world: World, slot: int, action: Action) -> _Effect:
        return self._perform[type(action)](world, slot, action)

    def stamp(self, transaction: int, ordinal: int) -> str:
        return f"{'ab'[transaction]}{ordinal}"

    def table(self, transaction: int, ordinal: int) -> int:
        return self._table[transaction][ordinal]

    # -- the timeline -------------------------------------------------------------------------------------------------

    def _own(self, world: World, slot: int, **values: Any) -> World | None:
        """What the owner writes, which prolongs its lease; None where another process has taken it over."""
        process = world.processes[slot]
        assert isinstance(process, Process)
        row = world.rows[process.transaction]
        state = values.get("state")
        ended = state is not None and row.state.is_final and row.state is not state
        if not process.owns or row.finished or ended:
            return None
        lease = Lease.GIVEN_UP if state is IN_DOUBT else Lease.HELD
        return world._replace(
            rows=put(world.rows, process.transaction, row._replace(lease=lease, **values)),
            processes=world.processes if process.sure else put(world.processes, slot, process._replace(sure=True)),
        )

    def _lost(self, world: World, slot: int) -> _Effect:
        process = world.processes[slot]
        assert isinstance(process, Process)
        return world._replace(processes=put(world.processes, slot, process._replace(sure=False))), Raises(
            LeaseLostError
        )

    def _owned(self, world: World, slot: int, **values: Any) -> _Effect:
        after = self._own(world, slot, **values)
        return self._lost(world, slot) if after is None else (after, None)

    def _begin(self, world: World, slot: int, _: Begin) -> _Effect:
        row = Row(INFLIGHT, owner=slot)
        staged = tuple(world.tables[self.table(slot, n)] for n in sorted(self.ordinals[slot]))
        return world._replace(rows=put(world.rows, slot, row), staged=put(world.staged, slot, staged)), None

    def _renew(self, world: World, slot: int, _: Renew) -> _Effect:
        return self._owned(world, slot)

    def _look(self, world: World, slot: int, _: Look) -> _Effect:
        return world, self._row(world, slot)[1].state

    def _lookwounded(self, world: World, slot: int, _: LookWounded) -> _Effect:
        return world, self._row(world, slot)[1].wounded

    def _record(self, world: World, slot: int, action: actions.Record) -> _Effect:
        transaction, _ = self._row(world, slot)
        after = self._own(world, slot, state=action.state)
        if after is None:
            return self._lost(world, slot)
        published = {ordinal for t, ordinal in world.published if t == transaction}
        if action.state is COMMITTING:
            missing = [n for n in self.ordinals[transaction] if world.staged[transaction][n] is None]
            check("staged", not missing, "{} of transaction {} are not", missing, transaction)
        if action.state is COMPLETED:
            check("whole", published == self.ordinals[transaction], "only {} of {} are", published, transaction)
        if action.state is ROLLED_BACK:
            check("nothing", not published, "{} of {} are", published, transaction)
        return after, None

    def _markrefused(self, world: World, slot: int, action: actions.MarkRefused) -> _Effect:
        _, row = self._row(world, slot)
        return self._owned(world, slot, refused=row.refused | set(action.unit.ordinals))

    def _finalize(self, world: World, slot: int, action: actions.Finalize) -> _Effect:
        transaction, row = self._row(world, slot)
        after = self._own(world, slot, finished=True, left_behind=bool(action.left_behind))
        if after is None:
            return self._lost(world, slot)
        check("outcome first", row.state.is_final, "transaction {} is {}", transaction, row.state.name)
        seen = {ordinal for t, ordinal in world.in_part if t == transaction}
        check("nothing", not seen, "a part of {} of {} is", seen, transaction)
        return after._replace(reserved=frozenset(r for r in world.reserved if r[1] != transaction)), None

    def _suspend(self, world: World, slot: int, action: actions.Suspend) -> _Effect:
        transaction, row = self._row(world, slot)
        after = self._own(world, slot)
        if after is None:
            return self._lost(world, slot)
        check("outcome first", row.state is ROLLED_BACK, "transaction {} is {}", transaction, row.state.name)
        rows = put(after.rows, transaction, after.rows[transaction]._replace(lease=Lease.GIVEN_UP))
        kept = {self.table(transaction, ordinal) for ordinal in action.unfinished}
        reserved = frozenset(
            (k, t, shares and t != transaction) for k, t, shares in world.reserved if t != transaction or k in kept
        )
        return after._replace(rows=rows, reserved=reserved), None

    def holders(self, world: World, transaction: int, ordinal: int) -> list[int]:
        """The transactions that hold what excludes this one."""
        table, appends = self.table(transaction, ordinal), self.writes[transaction][ordinal].appends
        return [t for k, t, shares in world.reserved if k == table and t != transaction and not (shares and appends)]

    def _reserve(self, world: World, slot: int, action: actions.Reserve) -> _Effect:
        transaction, _ = self._row(world, slot)
        wanted = (
            self.table(transaction, action.ordinal),
            transaction,
            self.writes[transaction][action.ordinal].appends,
        )
        after = self._own(world, slot)
        return self._lost(world, slot) if after is None else (after._replace(reserved=world.reserved | {wanted}), None)

    def _fence(self, world: World, slot: int, _: Action) -> _Effect:
        process = world.processes[slot]
        assert isinstance(process, Process)
        return (world, None) if process.sure else self._owned(world, slot)

    def is_unchanged(self, row: Row, finder: Finder) -> bool:
        """Whether a transaction is as the one found it who wants to take it over now; none has done so since."""
        return row.state is finder.state and (finder.lease is None or row.lease is finder.lease)

    def wound(self, world: World, transaction: int) -> World:
        """Mark what is taken over from a live owner, which still believes that it holds its lease."""
        return world._replace(rows=put(world.rows, transaction, world.rows[transaction]._replace(wounded=True)))

    def take_over(self, world: World, slot: int, transaction: int, position: int, *, silent: bool) -> World:
        """Another process becomes the owner: what the others bear is no longer the latest fencing number."""
        row = world.rows[transaction]
        processes = tuple(self._fenced_off(process, transaction) for process in world.processes)
        taken = row._replace(owner=slot, lease=Lease.HELD, silent=row.silent or silent, finished=False)
        return world._replace(
            rows=put(world.rows, transaction, taken),
            processes=put(processes, slot, Process(transaction, position)),
        )

    def _fenced_off(self, process: Any, transaction: int) -> Any:
        if isinstance(process, Process) and process.transaction == transaction:
            return process._replace(owns=False)
        if isinstance(process, Finder) and process.transaction == transaction:
            return None  # Its compare-and-swap will fail.
        return process

    def _row(self, world: World, slot: int) -> tuple[int, Row]:
        process = world.processes[slot]
        assert isinstance(process, Process)
        return process.transaction, world.rows[process.transaction]

    # -- the stores ---------------------------------------------------------------------------------------------------

    def refuses(self, world: World, transaction: int, ordinal: int) -> bool:
        seen = world.staged[transaction][ordinal]
        if seen is None:
            return True
        return not self.writes[transaction][ordinal].appends and seen != world.tables[self.table(transaction, ordinal)]

    def _prepare(self, world: World, slot: int, action: actions.Prepare) -> _Effect:
        transaction, _ = self._row(world, slot)
        if self.refuses(world, transaction, action.ordinal):
            return world, Raises(WriteConflictError)
        return self._fence(world, slot, action)

    def _persist(self, world: World, slot: int, _: actions.Persist) -> _Effect:
        return world, None

    def _publish(self, world: World, slot: int, action: actions.Publish) -> _Effect:
        transaction, row = self._row(world, slot)
        missing = [n for n in action.unit.ordinals if (transaction, n) not in world.published]
        if not missing:
            return world, Reply()
        if any(self.refuses(world, transaction, n) for n in missing):
            self._check_refusal(world, slot, missing)
            return world, Fails(WriteConflictError)
        after = world
        if all(self.writes[transaction][n].records for n in self.ordinals[transaction]):
            recorded = self._own(world, slot, state=COMPLETED)
            if recorded is None:
                return self._lost(world, slot)[0], Fails(LeaseLostError)
            after = recorded
        check("decision", not row.state.is_undecided, "transaction {} is {}", transaction, row.state.name)
        check("nothing", row.state is not ROLLED_BACK, "transaction {} publishes {}", transaction, missing)
        for n in missing:
            check(
                "reserved",
                any(r[:2] == (self.table(transaction, n), transaction) for r in world.reserved),
                "{} is published and not reserved",
                self.stamp(transaction, n),
            )
            after = self._append(after, transaction, n)
        return after, Reply()

    def _append(self, world: World, transaction: int, ordinal: int) -> World:
        table = self.table(transaction, ordinal)
        history = (*world.tables[table], self.stamp(transaction, ordinal))
        return world._replace(
            tables=put(world.tables, table, history),
            staged=put(world.staged, transaction, put(world.staged[transaction], ordinal, None)),
            published=world.published | {(transaction, ordinal)},
            in_part=world.in_part - {(transaction, ordinal)},
        )

    def publish_in_part(self, world: World, slot: int, action: actions.Publish) -> World:
        """Fail in the middle: readers see a part, and the store says that it is not published."""
        transaction, _ = self._row(world, slot)
        shown = {
            (transaction, n)
            for n in action.unit.ordinals
            if (transaction, n) not in world.published and not self.refuses(world, transaction, n)
        }
        return world._replace(in_part=world.in_part | shown)

    def _check_refusal(self, world: World, slot: int, ordinals: Sequence[int]) -> None:
        """Of a transaction that is still ours."""
        process = world.processes[slot]
        assert isinstance(process, Process)
        for n in ordinals:
            seen, now = world.staged[process.transaction][n], world.tables[self.table(process.transaction, n)]
            if process.owns and seen is not None and seen != now:
                is_external = any(stamp.startswith(EXTERNAL) for stamp in now[len(seen) :])
                check("reserved", is_external, "{} was {} when it was prepared", now, seen)

    def _askoutcome(self, world: World, slot: int, action: actions.AskOutcome) -> _Effect:
        transaction, _ = self._row(world, slot)
        answers = {(transaction, n) in world.published for n in action.unit.ordinals}
        if len(answers) > 1:
            return world, Outcome.UNKNOWN
        return world, Outcome.PUBLISHED if answers == {True} else Outcome.NOT_PUBLISHED

    def _compensate(self, world: World, slot: int, action: actions.Compensate) -> _Effect:
        transaction, row = self._row(world, slot)
        going = [n for n in action.unit.ordinals if (transaction, n) in world.published]
        if not going:
            return world, Reply(undone=True)
        if not all(self.may_undo(world, transaction, n) for n in going):
            return world, Reply()
        check("kept", row.state in _DECIDED, "{} of {} are undone, which is {}", going, transaction, row.state.name)
        for n in going:
            world = self._undone(world, transaction, n)
        return world, Reply(undone=True)

    def may_undo(self, world: World, transaction: int, ordinal: int) -> bool:
        """Whether the table is still as this publish has left it."""
        is_last = world.tables[self.table(transaction, ordinal)][-1:] == (self.stamp(transaction, ordinal),)
        return is_last and self.writes[transaction][ordinal].can_undo

    def _undone(self, world: World, transaction: int, ordinal: int) -> World:
        table, stamp = self.table(transaction, ordinal), self.stamp(transaction, ordinal)
        before = world.tables[table][: world.tables[table].index(stamp)]
        return world._replace(
            tables=put(world.tables, table, before),
            staged=put(world.staged, transaction, put(world.staged[transaction], ordinal, before)),
            published=world.published - {(transaction, ordinal)},
        )

    def _abort(self, world: World, slot: int, action: actions.Abort) -> _Effect:
        transaction, row = self._row(world, slot)
        is_published = (transaction, action.ordinal) in world.published
        check("kept", not is_published, "{} is removed", self.stamp(transaction, action.ordinal))
        if world.staged[transaction][action.ordinal] is None:
            return world, Reply()
        may_go = row.state.is_undecided or row.state is ROLLED_BACK
        check("outcome first", may_go, "{} is, in {}", self.stamp(transaction, action.ordinal), row.state.name)
        staged = put(world.staged[transaction], action.ordinal, None)
        in_part = world.in_part - {(transaction, action.ordinal)}
        return world._replace(staged=put(world.staged, transaction, staged), in_part=in_part), Reply()

    def _cleanup(self, world: World, slot: int, action: actions.Cleanup) -> _Effect:
        transaction, row = self._row(world, slot)
        check("outcome first", row.state is COMPLETED, "cleaned up after {}, in {}", transaction, row.state.name)
        check("whole", (transaction, action.ordinal) in world.published, "cleaned up after what is not published")
        return world, Reply()


def check(name: str, holds: bool, text: str, *about: object) -> None:
    if not holds:
        raise Violation(name, text.format(*about))
