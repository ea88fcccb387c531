"""The command line: look at the timeline, recover, clean, check, and run SQL.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 in doubt. A write that failed changed nothing, but its command may have
done something before: statements ahead of the one that failed, of several -e without --together or of a script, stay,
and so does what `clean` had removed. All of it is listed, on failure too.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise, takewhile
from typing import Any

import click

from twophase.clean import clean as clean_up
from twophase.errors import ConfigurationError, TimelineError, TransactionInDoubt, TwoPhaseError
from twophase.output import Answer, ConsoleOutput, JsonOutput, Output
from twophase.records import TransactionRecord
from twophase.recovery import Recovered
from twophase.refusals import resolving_hint
from twophase.states import TransactionState
from twophase.timeline import Timeline

DONE, FAILED, IN_DOUBT = 0, 1, 3

_TIMELINE = "spark.twophase.timeline"
_ASSUMED = {"committed": TransactionState.COMPLETED, "rolled-back": TransactionState.ROLLED_BACK}


@dataclass
class Context:
    """What every command gets.

    Attributes
    ----------
    out : Output
    url : str or None
        Of the timeline.
    conf : dict
        Spark configuration.
    failed : list of TransactionRecord
        The transactions of the statement that failed.
    """

    out: Output
    url: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    failed: list[TransactionRecord] = field(default_factory=list)
    _handle: Any = None

    def timeline(self) -> Timeline:
        """The timeline alone, without Spark; it must be there already."""
        from twophase.spark.options import timeline_password

        conf = self._with_url()
        password = timeline_password(conf)
        return Timeline(conf.get(_TIMELINE) or self._default(), create=False, password=password)

    def _with_url(self) -> dict[str, str]:
        return self.conf if self.url is None else {**self.conf, _TIMELINE: self.url}

    def _default(self) -> str:
        from twophase.spark.options import default_timeline

        warehouse = self.conf.get("spark.sql.warehouse.dir", os.path.abspath("spark-warehouse"))
        return f"sqlite:///{default_timeline(warehouse)}"

    def session(self) -> Any:
        """A Spark session with its catalogs, attached."""
        from twophase.spark.session import cli_session

        self._handle = cli_session({"spark.ui.showConsoleProgress": "false", **self._with_url()})
        return self._handle

    def close(self) -> None:
        """Say what is left to say, and stop the session, if one was started."""
        try:
            self.out.close()
        finally:
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


def _common(function: Callable[..., None]) -> Callable[..., None]:
    """What is taken before and behind the name of a command, where the one behind counts if both are given."""
    for option in (
        click.option("--timeline", "url", metavar="URL", help="SQLAlchemy URL of the timeline."),
        click.option(
            "--conf", "-c", multiple=True, callback=_pairs, metavar="K=V", help="Spark configuration; repeatable."
        ),
        click.option("--output", type=click.Choice(["text", "json"]), help="For people (text) or for programs."),
    ):
        function = option(function)
    return function


def command(function: Callable[..., int | None]) -> click.Command:
    """A command with the options that all have, and with exit codes for errors."""

    @_common
    @functools.wraps(function)
    @click.pass_obj
    def run(
        before: dict[str, Any], /, output: str | None, conf: dict[str, str], url: str | None, **arguments: Any
    ) -> None:
        out = JsonOutput() if (output or before["output"]) == "json" else ConsoleOutput()
        context = Context(out, url or before["url"], {**before["conf"], **conf})
        try:
            code = function(context, **arguments)
        except (click.ClickException, click.Abort, click.exceptions.Exit):
            raise
        except (Exception, KeyboardInterrupt) as error:
            context.out.error(error, context.failed)
            sys.exit(IN_DOUBT if isinstance(error, TransactionInDoubt) else FAILED)
        finally:
            context.close()
        sys.exit(code or DONE)

    name = function.__name__.rstrip("_")
    return click.command(name, help=function.__doc__)(run)


class _Commands(click.Group):
    """Tells wrong usage as JSON, too, where JSON was asked for."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if not (standalone_mode and _asks_for_json(words)):
            return super().main(words, prog_name, complete_var, standalone_mode, **extra)
        try:
            sys.exit(super().main(words, prog_name, complete_var, standalone_mode=False, **extra))
        except (click.ClickException, click.Abort) as error:
            out = JsonOutput()
            out.error(error)
            out.close()
            sys.exit(error.exit_code if isinstance(error, click.ClickException) else FAILED)


def _asks_for_json(words: Sequence[str]) -> bool:
    given = [word.removeprefix("--output=") for word in words if word.startswith("--output=")]
    given += [value for word, value in pairwise(words) if word == "--output"]
    return "json" in given


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="twophase")
@_common
@click.pass_context
def main(context: click.Context, /, **options: Any) -> None:
    """All-or-nothing CREATE TABLE AS SELECT, REPLACE and INSERT for PySpark.

    Exit codes: 0 done; 1 failed; 2 wrong usage; 3 in doubt. A write that failed changed nothing; what the same command
    did before it stays, and is listed.
    """
    context.obj = {**options, "url": options["url"] or os.environ.get("TWOPHASE_TIMELINE")}


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
    this timeline that has ended is removed; the rest is listed. Where something cannot be removed, the others still
    are: it exits with 1, and the list says which.
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
        remedy = " Install Java 17 or newer, or let JAVA_HOME name it." if "JAVA_GATEWAY" in str(error) else ""
        checks["Spark session"] = [f"{error}{remedy}"]
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
    """Run SQL statements in a session of their own, each all-or-nothing.

    Without --together the first one that fails ends the command: those before it stay, and are listed, and those
    after it are not run. So it is with the statements of a script.
    """
    handle = context.session()
    if together:
        _run_together(context, handle, statements, limit)
        return
    for number, statement in enumerate(statements, 1):
        try:
            _run(context, handle, statement, limit)
        except BaseException as error:
            if len(statements) > 1:
                error.add_note(_place(number, len(statements)))
            raise


def _place(number: int, count: int) -> str:
    before = "" if number == 1 else " What those before it did stays."
    after = "" if number == count else " Those after it were not run."
    return f"This was statement {number} of {count}.{before}{after}"


def _run(context: Context, handle: Any, statement: str, limit: int) -> None:
    with _noting_failed(context, handle) as made:
        answer = _execute(handle, statement, limit)
    _tell(context, [answer], made)


def _run_together(context: Context, handle: Any, statements: Sequence[str], limit: int) -> None:
    from twophase.spark.session import transaction

    with _noting_failed(context, handle) as made, transaction(handle.spark):
        answers = [_execute(handle, statement, limit) for statement in statements]
    _tell(context, answers, made)


def _tell(context: Context, answers: Sequence[Answer], made: Callable[[], list[TransactionRecord]]) -> None:
    records: list[TransactionRecord] = []
    try:
        records = made()
    except TimelineError as error:
        error.add_note("What was to be run had ended well before this; only its transactions cannot be listed.")
        raise
    finally:
        context.out.statements(answers, records)


@contextmanager
def _noting_failed(context: Context, handle: Any) -> Iterator[Callable[[], list[TransactionRecord]]]:
    """Yields what tells the transactions that were made since, the oldest first; on failure they are noted."""
    line, name = handle.timeline, handle.coordinator.name
    before = {record.id for record in line.transactions(coordinator=name, limit=100)}

    def made() -> list[TransactionRecord]:
        limit, found = 100, line.transactions(coordinator=name, limit=100)
        while len(found) == limit and not any(record.id in before for record in found):
            limit *= 10
            found = line.transactions(coordinator=name, limit=limit)
        new = takewhile(lambda record: record.id not in before, found)
        return [record for record in new if record.owner.pid == os.getpid()][::-1]

    try:
        yield made
    except BaseException:
        with suppress(Exception):  # The statement's own error is the one to tell.
            context.failed = made()
        raise


def _execute(handle: Any, statement: str, limit: int) -> Answer:
    frame = handle.spark.sql(statement)
    # The command line shows rows to a person, and no more of them than asked for.
    return frame.columns, [tuple(row) for row in frame.limit(limit).collect()] if frame.columns else []


def _find(line: Timeline, transaction_id: str) -> TransactionRecord:
    record = line.transaction(transaction_id)
    if record is None and (end := line.how_ended(transaction_id)) is not None:
        raise ConfigurationError(
            f"Transaction {transaction_id} ended as {end.name}, longer ago than spark.twophase.timeline.retention: "
            f"the timeline {line.display_url} has forgotten the rest.",
        )
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
