"""Random blocks of a process, over four tables of values and two of a bank's accounts, and their record."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import TypeAlias

from tests.isolation.access import Access
from tests.isolation.history import Append, Operation, Read, Recorder, Sum
from twophase.errors import TransactionAborted, TransactionInDoubt

#: Each writer reads such a table, and writes it whole with its value at the end.
LISTS = ("a", "b")
#: An append of a value is an INSERT that reads nothing.
SETS = ("x", "y")
#: The bank: two accounts in each of two tables.
BANK = ("m", "n")
TABLES = (*LISTS, *SETS, *BANK)
OPENING = 50
TOTAL = 4 * OPENING

#: What blocks do, and how often in a hundred; the second and the last only read.
KINDS = {"mixed": 45, "reads": 15, "appends": 15, "transfer": 15, "audit": 10}

Accounts: TypeAlias = dict[int, int]
Step: TypeAlias = Callable[[], None]


#: The columns of each table.
COLUMNS = {
    **dict.fromkeys(LISTS, ("position", "value")),
    **dict.fromkeys(SETS, ("value",)),
    **dict.fromkeys(BANK, ("account", "balance")),
}
#: The rows of each table at first: lists and sets are empty, accounts have the same balance each.
FIRST: dict[str, list[tuple[int, ...]]] = {
    **{table: [] for table in (*LISTS, *SETS)},
    "m": [(0, OPENING), (1, OPENING)],
    "n": [(2, OPENING), (3, OPENING)],
}


def create(access: Access) -> None:
    """Make the tables."""
    access.create({table: (COLUMNS[table], FIRST[table]) for table in TABLES})


class Worker:
    """A process of the history: it runs one random block after the other.

    Parameters
    ----------
    access : Access
    recorder : Recorder
    process : str
    values : iterator of int
        Those that no other process writes.
    dice : Random
    isolation : str, optional
        The level of its blocks; the session's when None.
    """

    def __init__(
        self,
        access: Access,
        recorder: Recorder,
        process: str,
        values: count[int],
        dice: Random,
        isolation: str | None = None,
    ) -> None:
        self._access = access
        self._recorder = recorder
        self._process = process
        self._values = values
        self._dice = dice
        self._isolation = isolation

    def run(self) -> None:
        """Run a block, and record its operations and what became of it."""
        name = f"{self._process}-{next(self._values)}"
        block = _Open(name, self._recorder)
        self._recorder.write("invoke", name, process=self._process, time=time.monotonic())
        outcome, error = "ok", ""
        is_committing = False
        kind = self._dice.choices([*KINDS], [*KINDS.values()])[0]
        try:
            with self._access.transaction(self._isolation, reads=kind in ("reads", "audit")):
                for step in self._plan(kind, block):
                    step()
                is_committing = True
        except TransactionAborted as raised:
            outcome, error = "fail", _text(raised)
        except Exception as raised:
            in_doubt = is_committing or isinstance(raised, TransactionInDoubt)
            outcome, error = "info" if in_doubt else "fail", _text(raised)
        self._recorder.write(outcome, name, time=time.monotonic(), error=error)

    def look(self) -> None:
        """Read, outside of blocks, what is left at the end."""
        name = f"{self._process}-{next(self._values)}"
        block = _Open(name, self._recorder)
        self._recorder.write("invoke", name, process="final", time=time.monotonic(), final=True)
        self._access.refresh(TABLES)
        for table in (*LISTS, *SETS):
            self._read(block, [table])
        self._balances(block)
        self._recorder.write("ok", name, time=time.monotonic())

    # -- what a block does -------------------------------------------------------------------------------------------

    def _plan(self, kind: str, block: _Open) -> list[Step]:
        if kind == "reads":
            tables = self._shuffled((*LISTS, *SETS))
            return [lambda table=table: self._read(block, [table]) for table in tables]  # type: ignore[misc]
        if kind == "appends":
            tables = self._shuffled((*LISTS, *SETS))[: self._dice.randint(2, 3)]
            return [lambda table=table: self._append(block, table) for table in tables]  # type: ignore[misc]
        if kind == "transfer":
            return [lambda: self._transfer(block)]
        if kind == "audit":
            return [lambda: self._balances(block), lambda: self._read(block, self._some(2)), lambda: self._audit(block)]
        return [self._step(block) for _ in range(self._dice.randint(2, 4))]

    def _step(self, block: _Open) -> Step:
        if self._dice.random() < 0.5:
            tables = self._some(self._dice.choice((1, 1, 2)))
            return lambda: self._read(block, tables)
        table = self._some(1)[0]
        return lambda: self._append(block, table)

    def _some(self, number: int) -> list[str]:
        return self._shuffled((*LISTS, *SETS))[:number]

    def _shuffled(self, tables: Sequence[str]) -> list[str]:
        return self._dice.sample(tables, len(tables))

    def _read(self, block: _Open, tables: Sequence[str]) -> None:
        """Read some tables, in one statement."""
        for table, rows in self._access.rows(tables).items():
            values = [row[-1] for row in sorted(rows)]
            block.did(Read(table, tuple(values)))
            block.lists[table] = values

    def _append(self, block: _Open, table: str) -> None:
        value = next(self._values)
        if table in SETS:
            block.did(Append(table, value))
            self._access.insert(table, [(value,)])
            return
        # What was read before may be what is written back, as a program would that keeps it in variables.
        if table not in block.lists or self._dice.random() < 0.5:
            self._read(block, [table])
        block.lists[table].append(value)
        block.did(Append(table, value))
        self._access.overwrite(table, enumerate(block.lists[table]))

    # -- the bank ----------------------------------------------------------------------------------------------------

    def _balances(self, block: _Open) -> dict[str, Accounts]:
        """Read all accounts, in one statement or in two."""
        statements = [[*BANK]] if self._dice.random() < 0.5 else [["m"], ["n"]]
        found: dict[str, Accounts] = {}
        for tables in statements:
            found |= {table: {row[0]: row[1] for row in rows} for table, rows in self._access.rows(tables).items()}
        self._sum(block, found)
        return found

    def _audit(self, block: _Open) -> None:
        """Let the engine add them up."""
        block.did(Sum(self._access.total(BANK, "balance")))

    def _sum(self, block: _Open, accounts: Mapping[str, Accounts]) -> None:
        block.did(Sum(sum(balance for table in accounts.values() for balance in table.values())))

    def _transfer(self, block: _Open) -> None:
        accounts = self._balances(block)
        amount = self._dice.randint(1, 9)
        one, other = self._dice.choice(("m", "n")), self._dice.choice(("m", "n"))
        accounts[one][self._dice.choice([*accounts[one]])] -= amount
        accounts[other][self._dice.choice([*accounts[other]])] += amount
        for table in dict.fromkeys((one, other)):
            self._access.overwrite(table, accounts[table].items())
        self._sum(block, accounts)


@dataclass
class _Open:
    """A block that runs."""

    name: str
    recorder: Recorder
    #: What it has last read of each table, with its own values since.
    lists: dict[str, list[int]] = field(default_factory=dict)

    def did(self, operation: Operation) -> None:
        self.recorder.operation(self.name, operation)


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {str(error).strip()}"[:3000]
