"""What a process of the explorer (:mod:`tests.core.schedules`) runs: the protocol, as a transaction runs it.

The protocol's generators cannot be copied. A process is represented by the answers that it was given, which determine
what it does next.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeAlias

from tests.core.schedule_model import (
    IN_DOUBT,
    ROLLED_BACK,
    Begin,
    Fails,
    Look,
    LookWounded,
    Raises,
    Renew,
    refused_member,
)
from twophase.errors import LeaseLostError, TimelineError, TransactionAborted
from twophase.protocol import actions, machine
from twophase.protocol.actions import Action, Member, Plan, Reply, Verdict, arrange
from twophase.protocol.states import TransactionState


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
