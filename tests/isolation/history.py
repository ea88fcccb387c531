"""What blocks did and saw: the record of a run, as JSON lines, and what the checker reads of it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Append:
    """One value, written into a table; no other operation of the history writes the same into it."""

    table: str
    value: int


@dataclass(frozen=True)
class Read:
    """All values of a table; in their order, where the table has one."""

    table: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Sum:
    """The balances of all accounts of the bank, added up."""

    total: int


Operation: TypeAlias = Append | Read | Sum
_NAMES: dict[type, str] = {Append: "append", Read: "read", Sum: "sum"}
_TYPES = {name: kind for kind, name in _NAMES.items()}


@dataclass(frozen=True)
class Block:
    """A transaction of the history.

    Parameters
    ----------
    name : str
    process : str
        Whose it is; each runs one block after the other.
    outcome : str
        What its process was told: ``ok``, ``fail``, or ``info`` where it has not learnt the end.
    operations : tuple of Append, Read or Sum
        In their order. Of an append that failed, and of those before a death, nobody may know whether they happened.
    began, ended : float
        On one clock for all processes; what is not over has no end.
    final : bool
        Whether it read what was left, after all others had ended and were recovered.
    error : str
        Why it failed.
    """

    name: str
    process: str
    outcome: str
    operations: tuple[Operation, ...]
    began: float = 0.0
    ended: float = math.inf
    final: bool = False
    error: str = field(default="", compare=False)


class Recorder:
    """Writes a process's part of a history; each line is on its way before the next step begins.

    Parameters
    ----------
    file : Path
        What is written survives the death of the process, not that of the machine.
    """

    def __init__(self, file: Path) -> None:
        self._file = file.open("a", buffering=1)

    def close(self) -> None:
        """End the record."""
        self._file.close()

    def write(self, event: str, block: str, **facts: Any) -> None:
        """Record that a block was invoked (``invoke``), did something (``op``), or how it ended."""
        self._file.write(json.dumps({"event": event, "block": block, **facts}) + "\n")

    def operation(self, block: str, operation: Operation) -> None:
        """Record an append before it is tried, or what a read has shown."""
        self.write("op", block, op=_NAMES[type(operation)], **vars(operation), time=time.monotonic())


def load(files: Iterable[Path]) -> list[Block]:
    """The blocks of a history, in the order in which they began."""
    blocks: dict[str, Block] = {}
    for facts in (facts for file in files for facts in _lines(file)):
        event, name = facts.pop("event"), facts.pop("block")
        if event == "invoke":
            blocks[name] = Block(name, facts["process"], "info", (), facts["time"], final=facts.get("final", False))
        elif event == "op":
            operations = (*blocks[name].operations, _operation(facts))
            blocks[name] = replace(blocks[name], operations=operations)
        else:
            ended = math.inf if event == "info" else facts["time"]
            blocks[name] = replace(blocks[name], outcome=event, ended=ended, error=facts.get("error", ""))
    return sorted(blocks.values(), key=lambda block: block.began)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    """Each whole line; a death may have cut the last one."""
    for line in file.read_text().split("\n")[:-1]:
        yield json.loads(line)


def _operation(facts: dict[str, Any]) -> Operation:
    kind, _ = _TYPES[facts.pop("op")], facts.pop("time")
    made = {key: tuple(value) if isinstance(value, list) else value for key, value in facts.items()}
    return kind(**made)  # type: ignore[no-any-return]
