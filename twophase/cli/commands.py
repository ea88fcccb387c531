"""The command line: look at the timeline, recover, clean, check, and run SQL.

Exit codes: 0 done; 1 failed; 2 wrong usage; 3 in doubt. A write that failed changed nothing, but its command may have
done something before: statements ahead of the one that failed stay, unless they are in one transaction with it, and so
does what `clean` had removed. All of it is listed, on failure too.
"""

from __future__ import annotations

import functools
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TextIO

import click

from twophase.catalog import SupportsStorageReport
from twophase.cli.output import ConsoleOutput, JsonOutput, Output
from twophase.errors import ConfigurationError, TransactionInDoubt, TwoPhaseError
from twophase.model import Isolation
from twophase.protocol.states import TransactionState
from twophase.timeline.records import TransactionRecord
from twophase.timeline.timeline import Timeline
from twophase.transactions.clean import Cleaned
from twophase.transactions.clean import clean as clean_up
from twophase.transactions.failures import resolving_hint
from twophase.transactions.recovery import Recovered

DONE, FAILED, IN_DOUBT = 0, 1, 3

_TIMELINE = "spark.twophase.timeline"
_ASSUMED = {"committed": TransactionState.COMPLETED, "rolled-back": TransactionState.ROLLED_BACK}


@dataclass
class Context:
    """The options that every command takes.

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
        from twophase.spark.options import default_timeline, read_own, timeline_password
        from twophase.spark.spark_defaults import spark_defaults

        conf = {**spark_defaults(), **self._with_url()}
        read_own(conf)
        password = timeline_password(conf)
        url = conf.get(_TIMELINE)
        if not url:
            warehouse = conf.get("spark.sql.warehouse.dir", os.path.abspath("spark-warehouse"))
            url = f"sqlite:///{default_timeline(warehouse)}"
        return Timeline(url, create=False, password=password)

    def _with_url(self) -> dict[str, str]:
        return self.conf if self.url is None else {**self.conf, _TIMELINE: self.url}

    def session(self, *, recovers: bool = True) -> Any:
        """A Spark session with its catalogs, attached; it recovers dead transactions of its own name, if it may."""
        from twophase.spark.attach import cli_session

        conf = {"spark.ui.showConsoleProgress": "false", **self._with_url()}
        self._handle = cli_session(conf, recovers=recovers)
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
    """An option before or behind the name of a command; the one behind counts if both are given."""
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

    name = function.__name__.rstrip("_").replace("_", "-")
    return click.command(name, help=function.__doc__)(run)


class _Commands(click.Group):
    """Reports wrong usage as JSON, too, where JSON was asked for."""

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
    """Atomic CREATE TABLE AS SELECT, REPLACE and INSERT for PySpark.

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
    """Show one transaction: who, what, when, the level reached, what it has locked, its leftovers."""
    line = context.timeline()
    record = _find(line, transaction_id)
    locks = line.locks() if record.is_open else []
    context.out.transaction(record, [lock for lock in locks if lock.transaction_id == transaction_id])


@command
def locks(context: Context) -> None:
    """List what open transactions have locked, and which of them wait for which others, and since when."""
    line = context.timeline()
    context.out.locks(line.locks(), {record.id: record for record in line.transactions(open_only=True)})


@click.argument("transaction_id", metavar="[ID]", required=False)
@click.option("--assume", type=click.Choice(list(_ASSUMED)), help="Your decision, where the stores cannot answer.")
@command
def recover(context: Context, transaction_id: str | None, assume: str | None) -> int:
    """Carry dead transactions to their end: all of the timeline, or the one with this ID.

    Live ones are never touched, and two concurrent recoveries are safe. A transaction in doubt is asked for again;
    where its store can never answer, look yourself, and end it with --assume.
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
        _find(line, transaction_id)
    elif not _dead(line):
        return []  # Without starting Spark.
    coordinator = context.session(recovers=False).coordinator
    found: list[Recovered] = coordinator.recover(own_only=False, transaction_id=transaction_id, assume=assumed)
    return found


def _dead(line: Timeline) -> list[TransactionRecord]:
    now = line.now()
    return [record for record in line.transactions(open_only=True) if record.is_dead(now)]


@click.option("--dry-run", is_flag=True, help="Only list, with sizes.")
@click.option(
    "--purge-dropped",
    multiple=True,
    metavar="CATALOG.DB.TABLE",
    help="Also remove the files of this table, which was dropped without PURGE; repeatable.",
)
@command
def clean(context: Context, dry_run: bool, purge_dropped: Sequence[str]) -> int:
    """Remove what dead transactions left, and replaced versions past their retention.

    Dead transactions are recovered first, as by `twophase recover`. Only what carries the stamp of a transaction of
    this timeline that has ended is removed; the rest is listed. Where something cannot be removed, the others still
    are: it exits with 1, and the list says which.

    The files of a table that was dropped without PURGE go only with --purge-dropped: whether a catalog elsewhere has
    registered it you must know yourself. What shows that something else uses them keeps them.
    """
    handle = context.session(recovers=False)
    results = clean_up(handle.coordinator, handle.catalogs.values(), dry_run, purge_dropped)
    context.out.cleaned(results, dry_run=dry_run)
    _require_found(purge_dropped, results)
    return FAILED if any(result.failed for result in results) else DONE


def _require_found(purge_dropped: Sequence[str], results: Sequence[Cleaned]) -> None:
    known = sorted({result.leftover.dropped for result in results if result.leftover.dropped is not None})
    if unknown := [name for name in purge_dropped if name not in known]:
        raise ConfigurationError(
            f"No table {unknown[0]} is known that was dropped without PURGE, longer ago than spark.twophase.retention, "
            "and whose files are still there.",
            hint=f"These are: {', '.join(known)}." if known else "There is none at all.",
        )


@command
def savepoints(context: Context) -> None:
    """List named savepoints, the newest first."""
    context.out.savepoints(context.timeline().savepoints())


@click.argument("table")
@click.option("--as-of", metavar="COMMIT", help="Only the last version up to a transaction, snapshot or commit number.")
@command
def show_schema(context: Context, table: str, as_of: str | None) -> None:
    """List the versions of the schema of a TABLE, the oldest first, with the first commit of each.

    An Iceberg table has all of them. Of others the timeline has those since twophase first changed the schema.
    """
    from twophase.spark.schema_history import schema_as_of, schema_history

    spark = context.session(recovers=False).spark
    context.out.schemas(table, schema_history(spark, table) if as_of is None else [schema_as_of(spark, table, as_of)])


@click.argument("name")
@click.option("--database", "databases", multiple=True, metavar="NAME", help="With all its tables; repeatable.")
@click.option("--table", "tables", multiple=True, metavar="NAME", help="One table; repeatable.")
@click.option("--keep", metavar="TIME", help="How long, as 30d; until it is dropped if not given.")
@click.option("--copies", is_flag=True, help="Copy rows where a store cannot keep them otherwise.")
@command
def create_savepoint(
    context: Context, name: str, databases: Sequence[str], tables: Sequence[str], keep: str | None, copies: bool
) -> None:
    """Keep the present state of tables, as of one moment, under a NAME.

    No other transaction publishes to them meanwhile. What is kept survives clean, replaced rows, changed schemas and
    dropped tables.
    """
    from twophase.spark import named_savepoints as named

    if not databases and not tables:
        raise click.UsageError("Say what to keep, with --database or --table.")
    spark = context.session().spark
    made = named.create_savepoint(spark, name, databases=databases, tables=tables, keep=keep, copies=copies)
    context.out.savepoints([made])


@click.argument("name")
@command
def drop_savepoint(context: Context, name: str) -> None:
    """Remove the savepoint with this NAME, and what is kept for it; the tables are not changed."""
    from twophase.spark import named_savepoints as named

    spark = context.session().spark
    named.drop_savepoint(spark, name)
    context.out.savepoints(named.savepoints(spark))


@click.argument("name")
@click.option("--database", "databases", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--table", "tables", multiple=True, metavar="NAME", help="Only this one; repeatable.")
@click.option("--keep-new", is_flag=True, help="Leave tables alone that were made since, instead of dropping them.")
@command
def restore(context: Context, name: str, databases: Sequence[str], tables: Sequence[str], keep_new: bool) -> None:
    """Give tables the rows and the schema that the savepoint with this NAME keeps, all or none.

    Tables that were dropped since come back, and those made since in a restored database are dropped. Without
    --database and --table everything in the savepoint is restored.
    """
    from twophase.spark import named_savepoints as named

    handle = context.session()
    some = bool(databases or tables)
    chosen = (databases, tables) if some else (None, None)
    restored = named.restore(handle.spark, name, databases=chosen[0], tables=chosen[1], keep_new=keep_new)
    context.out.transaction(_find(handle.timeline, restored.id), [])


@click.argument("transaction_id", metavar="ID")
@command
def undo(context: Context, transaction_id: str) -> None:
    """Take back the transaction with this ID, by another one, if nothing was built on it.

    Its tables get the rows and the schema of before, as long as the former versions are there; those that it has
    created are dropped.
    """
    from twophase.spark import named_savepoints as named

    handle = context.session()
    undone = named.undo(handle.spark, transaction_id)
    context.out.transaction(_find(handle.timeline, undone.id), [])


@command
def doctor(context: Context) -> int:
    """Check Python, Java, the timeline and every catalog; each problem comes with what to do."""
    checks: dict[str, list[str]] = {f"Python {platform.python_version()} on {platform.system()}": []}
    handle = None
    try:
        handle = context.session(recovers=False)
        checks[f"Spark {handle.spark.version}"] = []
    except Exception as error:
        remedy = " Install Java 17 or newer, or let JAVA_HOME name it." if "JAVA_GATEWAY" in str(error) else ""
        checks["Spark session"] = [f"{error}{remedy}"]
    if handle is not None:
        for catalog in handle.catalogs.values():
            checks[f"catalog {catalog.name}"] = catalog.check()
            if isinstance(catalog, SupportsStorageReport) and not checks[f"catalog {catalog.name}"]:
                checks |= {f"storage of {catalog.name}: {line}": [] for line in catalog.storage()}
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


@click.option("-e", "statements", multiple=True, metavar="SQL", help="Statements, separated by semicolons; repeatable.")
@click.option(
    "-f", "--file", metavar="FILE", type=click.File("r", encoding="utf-8"), help="A file of statements; - for stdin."
)
@click.option("--together", is_flag=True, help="All statements in one transaction: all or none.")
@click.option("--isolation", type=click.Choice([level.value for level in Isolation]), help="Of --together.")
@click.option("--conflict", metavar="POLICY", help="Of --together: wound_wait, or as in spark.twophase.conflict.")
@click.option("--wait", metavar="TIME", help="Of --together: how long it waits for other transactions, as 60s.")
@click.option("--limit", default=1000, show_default=True, type=click.IntRange(0), help="Show at most so many rows.")
@command
def sql(
    context: Context, statements: Sequence[str], file: TextIO | None, together: bool, limit: int, **terms: str | None
) -> None:
    """Run SQL statements in a session of their own, each atomic.

    BEGIN TRANSACTION and COMMIT between them make one transaction of several. Without, and without --together, the
    first one that fails ends the command: those before it stay, and are listed, and those after it are not run. So it
    is with the statements of a script, unless it begins with BEGIN ATOMIC. A transaction that is open at the end is
    rolled back, and the command has failed.
    """
    from twophase.cli.statements import StatementRun

    texts = [*statements, *([] if file is None else [file.read()])]
    if not texts:
        raise click.UsageError("Give statements, with -e or --file.")
    chosen = {name: value for name, value in terms.items() if value is not None}
    if chosen and not together:
        raise click.UsageError(f"--{min(chosen)} belongs to --together. In SQL, BEGIN TRANSACTION says it.")
    handle = context.session()
    run = StatementRun(context.out, handle, limit, context.failed)
    if together:
        run.together(run.statements(texts), **chosen)
    else:
        run.each(run.statements(texts))


@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Address to listen on.")
@click.option("--port", default=8088, show_default=True, type=click.IntRange(0, 65_535), help="Port; 0: any free one.")
@click.option("--allow-host", multiple=True, metavar="NAME", help="Another name by which browsers may ask; repeatable.")
@click.option("--refresh", default=5, show_default=True, type=click.IntRange(1), help="Seconds between two looks.")
@click.option("--leftovers", is_flag=True, help="Also search the stores for leftovers, by a session with the catalogs.")
@command
def ui(context: Context, host: str, port: int, allow_host: Sequence[str], refresh: int, leftovers: bool) -> None:
    """Show the timeline on web pages, until Ctrl-C: transactions, locks and waits, what is in doubt, leftovers.

    The pages only read, and need no session; with --leftovers they show what `twophase clean --dry-run` lists. There is
    no login: whoever reaches the address sees the names of tables and users. So it listens on this machine only, unless
    --host says otherwise, and answers no browser that asks for another host than these.
    """
    from twophase.cli.pages import serve

    search = None
    if leftovers:
        handle = context.session(recovers=False)

        def search() -> Sequence[Cleaned]:
            return clean_up(handle.coordinator, handle.catalogs.values(), dry_run=True)

    serve(context.timeline(), search, host, port, allow_host, refresh)


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


for _command in (
    *(timeline, show, locks, recover, clean, doctor, sql, ui),
    *(savepoints, create_savepoint, drop_savepoint, restore, undo, show_schema),
):
    main.add_command(_command)
