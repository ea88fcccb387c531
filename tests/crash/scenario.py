"""A scenario of a crash matrix: a transaction of one to three statements, and the tables before and after."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twophase.model import Isolation, OverwriteScope, Purpose

Row = tuple[object, ...]
Rows = list[Row]
#: Rows by table, None where there is no such table. A table is ``catalog.name``.
State = dict[str, Rows | None]

OLD: Rows = [(1, "a"), (2, "b")]
NEW: Rows = [(3, "b"), (4, "c")]


@dataclass(frozen=True)
class Statement:
    """One statement of a transaction."""

    table: str
    purpose: Purpose
    rows: tuple[Row, ...] = tuple(NEW)
    partitioned: bool = False
    overwrite: OverwriteScope | None = None
    #: It fails after its rows are written, and is discarded; the transaction goes on.
    fails: bool = False
    #: It runs after a savepoint, to which the transaction is rolled back before the next other statement.
    undone: bool = False
    #: LOCATION: the table is external, at a directory of the world.
    external: bool = False
    #: The table before it was not made by twophase.
    foreign: bool = False
    #: Its rows have another type than those before.
    schema_change: bool = False
    #: Each row comes in a file of its own.
    scattered: bool = False
    #: The table's own way to be appended to.
    append: str | None = None
    #: A later statement of the transaction creates the table that it drops.
    anew: bool = False
    #: A later statement of the transaction reads what it staged.
    read: bool = False
    #: Its rows and its definition are those that a savepoint keeps.
    restores: bool = False
    #: An earlier statement of the transaction has dropped the table's second column, as each ALTER TABLE here does.
    narrow: bool = False
    #: Its rows bring another column to the table, which is there behind so many others.
    brings: int = 0
    #: The name that the table gets: it is dropped by its former one.
    renames: str | None = None

    @property
    def catalog(self) -> str:
        return self.table.split(".")[0]

    @property
    def name(self) -> str:
        return self.table.split(".")[1]

    def applied(self, old: Rows | None) -> Rows | None:
        """The table's rows after it."""
        if self.fails or self.undone:
            return old
        if self.purpose.drops:
            return None
        if self.purpose.alters:
            return [row[:1] for row in old or []]
        rows: Rows = list(self.rows)
        if self.brings:
            at, width = self.brings, len(self.rows[0])
            old = [row if len(row) == width else (*row[:at], None, *row[at:]) for row in old or []]
        if self.purpose is Purpose.INSERT_INTO:
            return [*(old or []), *rows]
        if self.purpose is Purpose.INSERT_OVERWRITE and self.overwrite and self.partitioned:
            return [row for row in old or [] if not self._is_overwritten(row)] + rows
        return rows

    def _is_overwritten(self, row: Row) -> bool:
        assert self.overwrite is not None
        if self.overwrite.dynamic:
            return row[-1] in {new[-1] for new in self.rows}
        wanted = self.overwrite.static_partition
        return not wanted or str(row[-1]) == wanted["part"]


@dataclass(frozen=True)
class Scenario:
    """A transaction, the tables before it, and who interferes."""

    name: str
    statements: tuple[Statement, ...]
    #: Rows of tables that exist before; made by the statements' own catalog.
    before: Mapping[str, tuple[Row, ...]]
    #: Another writer creates this table after everything is prepared.
    other_writer: str | None = None
    #: What is published can be undone when a later publish is refused; else that may end in doubt.
    undone: bool = True
    #: The level of its transactions, and a table that it reads before its statements.
    isolation: Isolation = Isolation.READ_COMMITTED
    reads: str | None = None
    #: Another transaction, which begins with it, and commits when everything is written.
    rival: Statement | None = None
    #: Only one of the two can be published.
    conflicts: bool = False
    #: The rows that its transaction writes instead if they do conflict.
    merged: tuple[Row, ...] = ()
    #: The statements of an earlier transaction, which this one takes back: then ``before`` is what that one finds.
    undoes: tuple[Statement, ...] = ()

    @property
    def tables(self) -> list[str]:
        """All of its tables, and the rival's."""
        every = (*self.statements, *([self.rival] if self.rival else []))
        named = (table for s in every for table in (s.table, s.renames))
        return list(dict.fromkeys(table for table in (*named, self.other_writer) if table))

    def old(self) -> State:
        """All tables before the transaction."""
        state = {table: _rows(self.before.get(table)) for table in self.tables}
        return _applied(state, self.undoes)

    def outcomes(self) -> dict[frozenset[str], State]:
        """All tables by which of the two transactions were published."""
        assert self.rival
        old, table = self.old(), self.rival.table
        after_rival = {**old, table: _rows(tuple(self.rival.applied(old[table]) or ()))}
        states = {frozenset(): old, frozenset({"rival"}): after_rival, frozenset({"work"}): self.new(old)}
        both = {**self.new(after_rival), **({table: _rows(self.merged)} if self.merged else {})}
        return states if self.conflicts else {**states, frozenset({"rival", "work"}): both}

    def new(self, old: State | None = None) -> State:
        """All tables after it."""
        return _applied(self.old() if old is None else old, self.statements)

    def creates(self) -> bool:
        """Whether running it again on its own result must be refused: a table is there already, or there no more."""
        state = self.new()
        for s in self.statements:
            is_there = state[s.table] is not None
            if s.renames and state[s.renames] is not None:
                return True
            if not s.fails and (s.purpose.drops or s.purpose in (Purpose.CREATE_TABLE_AS, Purpose.CREATE_DATABASE)):
                if is_there != s.purpose.drops:
                    return True
                state[s.table] = None if s.purpose.drops else []
            if s.renames:
                state[s.renames] = []
        return False


def _applied(state: State, statements: tuple[Statement, ...]) -> State:
    state = dict(state)
    for statement in statements:
        if statement.renames:
            state[statement.renames] = state[statement.table]
        state[statement.table] = statement.applied(state[statement.table])
    return {table: None if rows is None else sorted(rows, key=repr) for table, rows in state.items()}


def _rows(rows: tuple[Row, ...] | None) -> Rows | None:
    return None if rows is None else sorted(rows, key=repr)


def named(scenarios: list[Scenario]) -> dict[str, Scenario]:
    """By name."""
    return {scenario.name: scenario for scenario in scenarios}
