"""The command line: look at the timeline, recover, clean, check, and run SQL.

Exit codes: 0 done; 1 failed, and nothing happened; 2 wrong usage; 3 in doubt.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import click

from twophase.clean import clean as clean_up
from twophase.errors import ConfigurationError, TransactionInDoubt, TwoPhaseError
from twophase.output import ConsoleOutput, JsonOutput, Output
from twophase.records import TransactionRecord
from twophase.recovery import Recovered
from twophase.states import TransactionState
from twophase.timeline import Timeline
from twophase.transactions import resolving_hint

DONE, FAILED, IN_DOUBT = 0, 1, 3

_TIMELINE = "spark.twophase.timeline"
_ASSUMED = {"committed": TransactionState.COMPLETED, "rolled-back": TransactionState.ROLLED_BACK}


@dataclass
class Context:
    """What every command gets."""

    out: Output
    url: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    _handle: Any = None

    def timeline(self) -> Timeline:
        """The timeline alone, without Spark; it must be there already."""
        return Timeline(self.url or self.conf.get(_TIMELINE) or self._default(), create=False)

    def _default(self) -> str:
        from twophase.spark.options import default_timeline

        warehouse = self.conf.get("spark.sql.warehouse.dir", os.path.abspath("spark-warehouse"))
        return f"sqlite:///{default_timeline(warehouse)}"

    def session(self) -> Any:
        """A Spark session with its catalogs, attached."""
        from twophase.spark.session import cli_session

        conf = {"spark.ui.showConsoleProgress": "false", **self.conf}
        self._handle = cli_session(conf if self.url is None else {**conf, _TIMELINE: self.url})
        return self._handle

    def close(self) -> None:
        """Stop the session, if one was started: nothing it says comes after the results."""
        if self._handle is not None:
            with suppress(Exception):
                self._handle.detach()
                self._handle.spark.stop()


def _pairs(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, sign, text = value.partition("=")
        if not sign or not key:
            raise click.BadParameter(f"{key!r} is not of the form key=value.")
        pairs[key.strip()] = text
    return pairs


def command(function: Callable[..., int | None]) -> click.Command:
    """A command with the options that all have, and with exit codes for errors."""

    @click.option("--output", type=click.Choice(["text", "json"]), default="text", help="For people or for programs.")
    @click.option(
        "--conf", "-c", multiple=True, callback=_pairs, metavar="K=V", help="Spark configuration; repeatable."
    )
    @click.option(
        "--timeline", "url", metavar="URL", envvar="TWOPHASE_TIMELINE", help="SQLAlchemy URL of the timeline."
    )
    @functools.wraps(function)
    def run(output: str, conf: dict[str, str], url: str | None, **arguments: Any) -> None:
        context = Context(JsonOutput() if output == "json" else ConsoleOutput(), url, conf)
        try:
            code = function(context, **arguments)
        except TransactionInDoubt as error:
            context.out.error(error)
            sys.exit(IN_DOUBT)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except Exception as error:
            context.out.error(error)
            sys.exit(FAILED)
        finally:
            context.close()
        sys.exit(code or DONE)

    name = function.__name__.rstrip("_")
    return click.command(name, help=function.__doc__)(run)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="twophase")
def main() -> None:
    """All-or-nothing CREATE TABLE AS SELECT, REPLACE and INSERT for PySpark.

    Exit codes: 0 done; 1 failed, and nothing happened; 3 in doubt.
    """


@click.option("--open", "open_only", is_flag=True, help="Only those with something left to do.")
@click.option("--limit", default=50, show_default=True, type=click.IntRange(1), help="At most so many.")
@command
def timeline(context: Context, open_only: bool, limit: int) -> None:
    """List transactions, the newest first."""
    context.out.transactions(context.timeline().transactions(open_only=open_only, limit=limit))


@click.argument("transaction_id", metavar="ID")
@command
def show(context: Context, transaction_id: str) -> None:
    """Show one transaction: who, what, when, the level reached, what was left behind."""
    context.out.transaction(_find(context.timeline(), transaction_id))


@click.argument("transaction_id", metavar="[ID]", required=False)
@click.option("--assume", type=click.Choice(list(_ASSUMED)), help="Your decision, where the stores cannot answer.")
@command
def recover(context: Context, transaction_id: str | None, assume: str | None) -> int:
    """Carry dead transactions to their end: all of the timeline, or the one with this ID.

    Live ones are never touched, and two recoveries at once are safe. A transaction in doubt is asked for again; where
    its store can never answer, look yourself, and end it with --assume.
    """
    if assume and not transaction_id:
        raise click.UsageError("--assume needs the ID of one transaction.")
    results = _recover(context, transaction_id, _ASSUMED[assume] if assume else None)
    context.out.recovered(results)
    if any(result.state is TransactionState.IN_DOUBT for result in results):
        return IN_DOUBT
    return DONE if all(result.is_resolved for result in results) else FAILED


def _recover(context: Context, transaction_id: str | None, assumed: TransactionState | None) -> list[Recovered]:
    line = context.timeline()
    if transaction_id is not None:
        before = [_find(line, transaction_id)]
    elif not (before := _dead(line)):
        return []  # Without starting Spark.
    coordinator = context.session().coordinator
    found: list[Recovered] = coordinator.recover(own_only=False, transaction_id=transaction_id, assume=assumed)
    # Attaching has recovered those of the command line's own.
    told = {result.transaction_id for result in found}
    return [*(_now(line, record) for record in before if record.id not in told), *found]


def _now(line: Timeline, before: TransactionRecord) -> Recovered:
    after = _find(line, before.id)
    return Recovered(before.id, before.state, after.state, after.left_behind, note=after.error)


def _dead(line: Timeline) -> list[TransactionRecord]:
    now = line.now()
    return [record for record in line.transactions(open_only=True) if record.is_dead(now)]


@click.option("--dry-run", is_flag=True, help="Only list, with sizes.")
@command
def clean(context: Context, dry_run: bool) -> int:
    """Remove what dead transactions left, and replaced versions past their retention.

    Dead transactions are recovered first, as by `twophase recover`. Only what carries the stamp of a transaction of
    this timeline that has ended is removed; the rest is listed.
    """
    handle = context.session()
    results = clean_up(handle.coordinator, handle.catalogs.values(), dry_run)
    context.out.cleaned(results, dry_run=dry_run)
    return FAILED if any(result.failed for result in results) else DONE


@command
def doctor(context: Context) -> int:
    """Check Python, Java, the timeline and every catalog; each problem comes with what to do."""
    checks: dict[str, list[str]] = {f"Python {platform.python_version()} on {platform.system()}": []}
    handle = None
    try:
        handle = context.session()
        checks[f"Spark {handle.spark.version}"] = []
    except Exception as error:
        checks["Spark session"] = [str(error)]
    if handle is not None:
        for catalog in handle.catalogs.values():
            checks[f"catalog {catalog.name}"] = catalog.check()
    checks.update(_check_timeline(context, handle))
    context.out.checked(checks)
    return FAILED if any(checks.values()) else DONE


def _check_timeline(context: Context, handle: Any) -> dict[str, list[str]]:
    try:
        line = context.timeline() if handle is None else handle.timeline
    except TwoPhaseError as error:
        return {"timeline": [str(error)]}
    problems = []
    for record in _dead(line):
        if record.state is TransactionState.IN_DOUBT:
            problems.append(f"Transaction {record.id} is in doubt. {resolving_hint(record.id, line)}")
        else:
            problems.append(f"Transaction {record.id} is dead in state {record.state.name}. Run: twophase recover")
    return {f"timeline {line.display_url}": problems}


@click.option("-e", "statements", multiple=True, required=True, metavar="SQL", help="A statement; repeatable.")
@click.option("--together", is_flag=True, help="All statements in one transaction: all or none.")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(0), help="Show at most so many rows.")
@command
def sql(context: Context, statements: Sequence[str], together: bool, limit: int) -> None:
    """Run SQL statements in a session of their own, each all-or-nothing."""
    handle = context.session()
    if not together:
        for statement in statements:
            _run(context, handle, statement, limit)
        return
    from twophase.spark.session import transaction

    with transaction(handle.spark) as tx:
        results = [_execute(handle, statement, limit) for statement in statements]
    for columns, rows in results:
        context.out.statement(columns, rows, [])
    if (record := handle.timeline.transaction(tx.id)) is not None:
        context.out.statement([], [], [record])


def _run(context: Context, handle: Any, statement: str, limit: int) -> None:
    line: Timeline = handle.timeline
    before = {record.id for record in line.transactions(limit=100)}
    columns, rows = _execute(handle, statement, limit)
    own = [r for r in line.transactions(limit=100, coordinator=handle.coordinator.name) if r.id not in before]
    context.out.statement(columns, rows, [record for record in own if record.owner.pid == os.getpid()])


def _execute(handle: Any, statement: str, limit: int) -> tuple[list[str], list[tuple[Any, ...]]]:
    frame = handle.spark.sql(statement)
    # The command line shows rows to a person, and no more of them than asked for.
    return frame.columns, [tuple(row) for row in frame.limit(limit).collect()] if frame.columns else []


def _find(line: Timeline, transaction_id: str) -> TransactionRecord:
    record = line.transaction(transaction_id)
    if record is None:
        raise ConfigurationError(
            f"There is no transaction {transaction_id} on the timeline {line.display_url}.",
            hint="List them with: twophase timeline",
        )
    return record


for _command in (timeline, show, recover, clean, doctor, sql):
    main.add_command(_command)

if __name__ == "__main__":
    main()
