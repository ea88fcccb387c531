"""What the command line prints: for people with Rich, for programs as JSON."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from twophase.clean import Cleaned
from twophase.errors import TwoPhaseError
from twophase.records import TransactionRecord
from twophase.recovery import Recovered

_STYLES = {"COMPLETED": "green", "ROLLED_BACK": "yellow", "IN_DOUBT": "bold red", "COMMITTING": "cyan"}


class Output(ABC):
    """Where results go."""

    @abstractmethod
    def transactions(self, records: Sequence[TransactionRecord]) -> None:
        """A list of transactions."""

    @abstractmethod
    def transaction(self, record: TransactionRecord) -> None:
        """One transaction, in full."""

    @abstractmethod
    def recovered(self, results: Sequence[Recovered]) -> None:
        """What became of dead transactions."""

    @abstractmethod
    def cleaned(self, results: Sequence[Cleaned], *, dry_run: bool) -> None:
        """What was found and removed."""

    @abstractmethod
    def checked(self, checks: Mapping[str, Sequence[str]]) -> None:
        """Problems, by what was looked at."""

    @abstractmethod
    def statement(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], records: Sequence[Any]) -> None:
        """The result of a statement, and the transactions that it made."""

    @abstractmethod
    def error(self, error: BaseException) -> None:
        """Why a command failed."""


class JsonOutput(Output):
    """One JSON document for each command."""

    def transactions(self, records: Sequence[TransactionRecord]) -> None:
        _print_json({"transactions": [record.to_document() for record in records]})

    def transaction(self, record: TransactionRecord) -> None:
        _print_json(record.to_document())

    def recovered(self, results: Sequence[Recovered]) -> None:
        _print_json({"recovered": [result.to_document() for result in results]})

    def cleaned(self, results: Sequence[Cleaned], *, dry_run: bool) -> None:
        _print_json({"dry_run": dry_run, "residues": [result.to_document() for result in results]})

    def checked(self, checks: Mapping[str, Sequence[str]]) -> None:
        _print_json({"checks": {name: list(problems) for name, problems in checks.items()}})

    def statement(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], records: Sequence[Any]) -> None:
        _print_json(
            {
                "columns": list(columns),
                "rows": [list(row) for row in rows],
                "transactions": [record.to_document() for record in records],
            }
        )

    def error(self, error: BaseException) -> None:
        document: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
        if isinstance(error, TwoPhaseError):
            document |= {
                "message": error.message,
                "path": error.path,
                "transaction_id": error.transaction_id,
                "left_behind": list(error.left_behind),
                "hint": error.hint,
            }
        if notes := getattr(error, "__notes__", None):
            document["notes"] = list(notes)
        _print_json({"error": document})


class ConsoleOutput(Output):
    """Tables and sentences."""

    def __init__(self) -> None:
        # Outside a terminal nothing is cut off to a guessed width.
        self._console = Console(width=None if Console().is_terminal else 200)

    def transactions(self, records: Sequence[TransactionRecord]) -> None:
        table = _table("Transaction", "State", "Level", "Began", "Who", "Tables")
        for record in records:
            tables = "\n".join(f"{p.purpose.name} {p.name}" for p in record.participants)
            who = f"{record.user} {record.application}".strip()
            table.add_row(record.id, _state(record.state.value), _level(record), _time(record.created), who, tables)
        self._show(table, "The timeline is empty.")

    def transaction(self, record: TransactionRecord) -> None:
        facts = {
            "Transaction": record.id,
            "State": _state(record.state.value),
            "Level": _level(record),
            "Who": f"{record.user} {record.application}".strip(),
            "Where": f"{record.owner}",
            "Began": _time(record.created),
            "Decided": _time(record.decided),
            "Finished": _time(record.finished),
            "Error": record.error or "",
            "Left behind": "\n".join(record.left_behind),
        }
        table = Table.grid(padding=(0, 2))
        for name, value in facts.items():
            if value:
                table.add_row(name, value)
        self._console.print(table)
        participants = _table("#", "Table", "Purpose", "State", "Level")
        for p in record.participants:
            participants.add_row(str(p.ordinal), p.name, p.purpose.name, p.state.value, str(p.level or ""))
        self._show(participants, "It has no participants.")

    def recovered(self, results: Sequence[Recovered]) -> None:
        table = _table("Transaction", "Was", "Is", "Left behind", "Note")
        for r in results:
            notes = [*([r.note] if r.note else []), *r.account.words()]
            notes += [] if r.is_resolved else r.account.advice()
            left = "\n".join(r.left_behind)
            table.add_row(r.transaction_id, _state(r.found.value), _state(r.state.value), left, "\n".join(notes))
        self._show(table, "No dead transaction: nothing to recover.")

    def cleaned(self, results: Sequence[Cleaned], *, dry_run: bool) -> None:
        table = _table("Catalog", "Kind", "Where", "Size", "Transaction", "Done")
        for r in results:
            done = "removed" if r.removed else f"kept: {r.reason}" if r.reason else "would be removed"
            size = "" if r.residue.size < 0 else _bytes(r.residue.size)
            residue = r.residue
            table.add_row(r.catalog, residue.kind, residue.location, size, residue.transaction_id, done)
        self._show(table, "Nothing was left behind.")
        known = sum(r.residue.size for r in results if r.residue.size > 0 and (r.removed or (dry_run and not r.reason)))
        if known:
            self._console.print(f"{_bytes(known)} {'would be' if dry_run else 'were'} removed.")

    def checked(self, checks: Mapping[str, Sequence[str]]) -> None:
        for name, problems in checks.items():
            self._console.print(f"[green]ok[/]  {name}" if not problems else f"[bold red]bad[/] {name}")
            for problem in problems:
                self._console.print(f"      {problem}", markup=False)

    def statement(self, columns: Sequence[str], rows: Sequence[Sequence[Any]], records: Sequence[Any]) -> None:
        if columns:
            table = _table(*columns)
            for row in rows:
                table.add_row(*("NULL" if value is None else str(value) for value in row))
            self._console.print(table)
        for record in records:
            self._console.print(f"{_state(record.state.value)}, level {_level(record)}: transaction {record.id}")

    def error(self, error: BaseException) -> None:
        console = Console(stderr=True, width=self._console.width)
        console.print(f"{type(error).__name__}: {error}", style="red", markup=False)
        for note in getattr(error, "__notes__", ()):
            console.print(note, markup=False)

    def _show(self, table: Table, empty: str) -> None:
        self._console.print(table if table.row_count else empty)


def _print_json(document: Mapping[str, Any]) -> None:
    click.echo(json.dumps(document, indent=2, ensure_ascii=False, default=str))


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _state(name: str) -> str:
    style = _STYLES.get(name)
    return f"[{style}]{name}[/]" if style else name


def _level(record: TransactionRecord) -> str:
    return "" if record.level is None else str(int(record.level))


def _time(seconds: float | None) -> str:
    return (
        "" if seconds is None else datetime.fromtimestamp(seconds).astimezone().isoformat(sep=" ", timespec="seconds")
    )


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
