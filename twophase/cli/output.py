"""Output of the command line: for people with Rich, for programs as JSON."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from twophase.catalog.schema_versions import SchemaVersion
from twophase.errors import TwoPhaseError
from twophase.schema import Field, Schema
from twophase.schema import to_document as schema_document
from twophase.timeline.listings import lock_rows, savepoint_rows, size_text, transaction_rows
from twophase.timeline.records import TransactionRecord
from twophase.timeline.savepoints import SavepointRecord
from twophase.timeline.waits import Lock
from twophase.transactions.clean import Cleaned
from twophase.transactions.recovery import Recovered

#: The columns and rows of a statement; without columns for one that has no answer.
Answer = tuple[Sequence[str], Sequence[Sequence[Any]]]

_STYLES = {"COMPLETED": "green", "ROLLED_BACK": "yellow", "IN_DOUBT": "bold red", "COMMITTING": "cyan"}


class Output(ABC):
    """The receiver of results."""

    @abstractmethod
    def transactions(self, records: Sequence[TransactionRecord]) -> None:
        """A list of transactions."""

    @abstractmethod
    def transaction(self, record: TransactionRecord, locks: Sequence[Lock]) -> None:
        """One transaction, in full, with what it has locked and waits for."""

    @abstractmethod
    def locks(self, locks: Sequence[Lock], records: Mapping[str, TransactionRecord]) -> None:
        """Tables that transactions have locked or wait for, and these transactions by their ids."""

    @abstractmethod
    def savepoints(self, records: Sequence[SavepointRecord]) -> None:
        """Named savepoints."""

    @abstractmethod
    def schemas(self, table: str, versions: Sequence[SchemaVersion]) -> None:
        """The versions of a table's schema, the oldest first."""

    @abstractmethod
    def recovered(self, results: Sequence[Recovered]) -> None:
        """Results of the recovery of dead transactions."""

    @abstractmethod
    def cleaned(self, results: Sequence[Cleaned], *, dry_run: bool) -> None:
        """Leftovers that were found, and those that were removed."""

    @abstractmethod
    def checked(self, checks: Mapping[str, Sequence[str]]) -> None:
        """Problems, by what was looked at."""

    @abstractmethod
    def statements(self, answers: Sequence[Answer], records: Sequence[TransactionRecord]) -> None:
        """Answers of statements, and the transactions that they made together."""

    @abstractmethod
    def error(self, error: BaseException, records: Sequence[TransactionRecord] = ()) -> None:
        """Why a command failed, and how the transactions of the statement that failed ended."""

    @abstractmethod
    def close(self) -> None:
        """Nothing more is to be said."""


class JsonOutput(Output):
    """One JSON document for each command, whatever happens: it is printed at the end."""

    def __init__(self) -> None:
        self._document: dict[str, Any] = {}

    def transactions(self, records: Sequence[TransactionRecord]) -> None:
        self._document["transactions"] = _documents(records)

    def transaction(self, record: TransactionRecord, locks: Sequence[Lock]) -> None:
        self._document |= record.to_document() | {"locks": _documents(locks)}

    def locks(self, locks: Sequence[Lock], records: Mapping[str, TransactionRecord]) -> None:
        self._document["locks"] = _documents(locks)

    def savepoints(self, records: Sequence[SavepointRecord]) -> None:
        self._document["savepoints"] = _documents(records)

    def schemas(self, table: str, versions: Sequence[SchemaVersion]) -> None:
        self._document |= {"table": table, "schemas": [_schema(version) for version in versions]}

    def recovered(self, results: Sequence[Recovered]) -> None:
        self._document["recovered"] = _documents(results)

    def cleaned(self, results: Sequence[Cleaned], *, dry_run: bool) -> None:
        self._document |= {"dry_run": dry_run, "leftovers": _documents(results)}

    def checked(self, checks: Mapping[str, Sequence[str]]) -> None:
        self._document["checks"] = {name: list(problems) for name, problems in checks.items()}

    def statements(self, answers: Sequence[Answer], records: Sequence[TransactionRecord]) -> None:
        results = self._document.setdefault("results", [])
        for columns, rows in answers:
            results.append({"columns": columns, "rows": rows, "transactions": _documents(records)})

    def error(self, error: BaseException, records: Sequence[TransactionRecord] = ()) -> None:
        document: dict[str, Any] = {"kind": type(error).__name__, "message": str(error)}
        if isinstance(error, click.ClickException):
            document["message"] = error.format_message()
        if isinstance(error, click.UsageError) and error.ctx is not None:
            document["hint"] = error.ctx.get_usage()
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
        if records:
            document["transactions"] = _documents(records)
        self._document["error"] = document

    def close(self) -> None:
        if self._document:
            text = json.dumps(_plain(self._document), indent=2, ensure_ascii=False, allow_nan=False, default=str)
            click.echo(text)
            self._document = {}


class ConsoleOutput(Output):
    """Tables and sentences."""

    def __init__(self) -> None:
        # Outside a terminal nothing is cut off to a guessed width. What is shown is the user's own: it holds no markup.
        self._width = None if Console().is_terminal else 200
        self._console = self._new_console()

    def _new_console(self, *, stderr: bool = False) -> Console:
        return Console(width=self._width, stderr=stderr, markup=False, emoji=False)

    def transactions(self, records: Sequence[TransactionRecord]) -> None:
        table = _table("Transaction", "State", "Level", "Began", "Who", "Tables")
        for transaction_id, name, level, began, user, application, _, written, wounded_by in transaction_rows(records):
            state = _state(name)
            if wounded_by is not None:
                state.append(f"\nwounded by {wounded_by}", "")
            who, tables = _who(user, application), "\n".join(written)
            table.add_row(transaction_id, state, level or "", _moment(began), who, tables)
        self._show(table, "The timeline is empty.")

    def transaction(self, record: TransactionRecord, locks: Sequence[Lock]) -> None:
        facts: dict[str, Text | str] = {
            "Transaction": record.id,
            "State": _state(record.state.value),
            "Level": _level(record),
            "Who": _who(record.user, record.application),
            "Where": f"{record.owner}",
            "Began": _time(record.created),
            "Decided": _time(record.decided),
            "Finished": _time(record.finished),
            "Isolation": _isolation(record),
            "Wounded by": record.wounded_by or "",
            "Undoes": record.undoes or "",
            "Locks": "\n".join(f"{lock.words} {lock.name}" for lock in locks if lock.since is None),
            "Waits for": "\n".join(_wait(lock) for lock in locks if lock.since is not None),
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
            participants.add_row(
                str(p.ordinal), p.name, p.purpose.name, p.state.value, "" if p.level is None else str(p.level)
            )
        self._show(participants, "It has no participants.")

    def locks(self, locks: Sequence[Lock], records: Mapping[str, TransactionRecord]) -> None:
        table = _table("Table", "Mode", "Transaction", "Who", "Began", "Held", "Waits for")
        for name, mode, transaction_id, user, application, began, since, waits_for in lock_rows(locks, records):
            held = "yes" if since is None else f"waits since {_moment(since)}"
            who, others = _who(user, application), "\n".join(waits_for)
            table.add_row(name, mode, transaction_id, who, _moment(began), held, others)
        self._show(table, "Nothing is locked.")

    def savepoints(self, records: Sequence[SavepointRecord]) -> None:
        table = _table("Savepoint", "State", "Created", "Expires", "Who", "Databases", "Tables")
        for name, state, created, expires, user, _, databases, tables in savepoint_rows(records):
            whole = "\n".join(databases)
            times = (_moment(created), "" if expires is None else _moment(expires))
            table.add_row(name, state, *times, user, whole, _some(tables))
        self._show(table, "There is no savepoint.")

    def schemas(self, table: str, versions: Sequence[SchemaVersion]) -> None:
        shown = _table("Version", "Since", "Commit", "Transaction", "Columns")
        for version in versions:
            number = f"{version.schema.schema_id}{' (now)' if version.is_current else ''}"
            columns = "\n".join(_column(version.schema, node) for node in version.schema.walk())
            shown.add_row(
                number, _time(version.since) or "unknown", version.commit or "", version.transaction_id or "", columns
            )
        self._show(shown, f"{table} has no schema.")

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
            size = "" if r.leftover.size < 0 else size_text(r.leftover.size)
            leftover = r.leftover
            table.add_row(r.catalog, leftover.kind, leftover.location, size, leftover.transaction_id, done)
        self._show(table, "There are no leftovers.")
        known = sum(
            r.leftover.size for r in results if r.leftover.size > 0 and (r.removed or (dry_run and not r.reason))
        )
        if known:
            self._console.print(f"{size_text(known)} {'would be' if dry_run else 'were'} removed.")

    def checked(self, checks: Mapping[str, Sequence[str]]) -> None:
        for name, problems in checks.items():
            self._console.print(Text.assemble(("bad", "bold red") if problems else ("ok ", "green"), " ", name))
            for problem in problems:
                self._console.print(f"      {problem}")

    def statements(self, answers: Sequence[Answer], records: Sequence[TransactionRecord]) -> None:
        for columns, rows in answers:
            if not columns:
                continue
            table = _table(*columns)
            for row in rows:
                table.add_row(*("NULL" if value is None else str(value) for value in row))
            self._console.print(table)
        _print_ends(self._console, records)

    def error(self, error: BaseException, records: Sequence[TransactionRecord] = ()) -> None:
        console = self._new_console(stderr=True)
        console.print(f"{type(error).__name__}: {error}", style="red")
        for note in getattr(error, "__notes__", ()):
            console.print(note)
        _print_ends(console, records)

    def close(self) -> None:
        pass

    def _show(self, table: Table, empty: str) -> None:
        self._console.print(table if table.row_count else empty)


def _documents(
    things: Iterable[TransactionRecord | Recovered | Cleaned | Lock | SavepointRecord],
) -> list[dict[str, Any]]:
    return [thing.to_document() for thing in things]


def _plain(value: Any) -> Any:
    """Convert a value for JSON: numbers that are none, and keys that are no text, become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else _text(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value


def _text(key: Any) -> str:
    plain = _plain(key)
    return plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False, default=str).strip('"')


def _print_ends(console: Console, records: Iterable[TransactionRecord]) -> None:
    for record in records:
        level = f", {_level(record)}" if record.level is not None else ""
        console.print(Text.assemble(_state(record.state.value), f"{level}: transaction {record.id}"))


def _schema(version: SchemaVersion) -> dict[str, Any]:
    """A version as a document: what is not known is null."""
    return {
        "since": version.since,
        "commit": version.commit,
        "transaction_id": version.transaction_id,
        "current": version.is_current,
        "schema": schema_document(version.schema),
    }


def _column(schema: Schema, node: Field) -> str:
    return f"{node.id} {schema.name_of(node.id)} {node.type_name}{'' if node.nullable else ' NOT NULL'}"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _state(name: str) -> Text:
    return Text(name, _STYLES.get(name, ""))


def _level(record: TransactionRecord) -> str:
    return "" if record.level is None else str(record.level)


def _isolation(record: TransactionRecord) -> str:
    return f"{record.isolation or ''}" + (f", snapshot {record.snapshot}" if record.snapshot is not None else "")


def _wait(lock: Lock) -> str:
    return f"{lock.words} {lock.name}, since {_time(lock.since)}, for {', '.join(lock.waits_for)}"


def _time(seconds: float | None) -> str:
    return "" if seconds is None else _moment(datetime.fromtimestamp(seconds))


def _moment(moment: datetime) -> str:
    return moment.astimezone().isoformat(sep=" ", timespec="seconds")


def _some(names: Sequence[str], most: int = 20) -> str:
    """Names one below another; of many, the first ones and how many there are."""
    more = [f"... {len(names)} in all"] if len(names) > most else []
    return "\n".join([*names[:most], *more])


def _who(user: str | None, application: str | None) -> str:
    return f"{user or ''} {application or ''}".strip()
