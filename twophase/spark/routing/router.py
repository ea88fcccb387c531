"""The context in which the statements of one attached session run, and its policy.

Rules on Spark's plan route each statement (:mod:`twophase.spark.routing.plan_answers`), whichever API it was issued by.
Here is what no plan contains: Ctrl-C, one outcome for a multi-insert, the ``preferred`` policy, and Spark's own error
messages.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable
from typing import Any

from pyspark.errors import AnalysisException, ParseException, PySparkException

from twophase.catalog import Catalog, SupportsExternalChanges
from twophase.errors import AtomicityNotSupportedError, CatalogError, ConfigurationError
from twophase.model import ObjectPath, Purpose
from twophase.spark import active, blocks
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.catalog import change_table
from twophase.spark.execution.cancellation import interruptible
from twophase.spark.jvm import session_state
from twophase.spark.jvm.rules import PlanRules
from twophase.spark.jvm.statements import StatementReader
from twophase.spark.options import PREFER, hidden_database
from twophase.spark.routing.alter_table_grammar import alter_table
from twophase.spark.routing.commands import Change
from twophase.spark.routing.decide import Unsupported
from twophase.spark.routing.deletes import delete_by_rows
from twophase.spark.routing.ownership import Ownership
from twophase.spark.routing.savepoints import NamedSavepoints
from twophase.spark.routing.targets import SESSION_CATALOG, STAYS, Target, Targets, quoted
from twophase.spark.routing.transaction_grammar import BeginAtomic, Characteristics, may_be_ours, transaction_statement
from twophase.spark.routing.transaction_statements import TransactionStatements, misplaced
from twophase.spark.routing.words import leading_words
from twophase.spark.running import Listing, running, running_statement
from twophase.spark.session_reads import note_reads
from twophase.spark.staged import staged_tables

Original = Callable[..., Any]
Args = Any

#: Errors that say nothing about a statement: an operation that Spark's own catalog never does, an existing table.
_NO_ANSWER = ("UNSUPPORTED_FEATURE.TABLE_OPERATION", "TABLE_OR_VIEW_ALREADY_EXISTS")
#: An experimental analyser of Spark that runs only its own rules, and does not support writes.
_SINGLE_PASS = "spark.sql.analyzer.singlePassResolver."
# The words of a statement choose what is around it (Ctrl-C, one outcome, another attempt as stock Spark), never who
# runs it: that is decided by its plan, and a plan that needs more than is around it is refused.
#: First words of statements that write nothing.
READS = frozenset(("SELECT", "SHOW", "DESCRIBE", "DESC", "SET", "USE", "VALUES", "TABLE", "EXPLAIN", "CACHE"))
#: First words of the statements by which a setting is changed.
_SETS = frozenset(("SET", "RESET"))
#: Words in a statement that begins with its queries and writes.
_WRITES = re.compile("insert|delete|update|merge", re.IGNORECASE)
#: First words of statements that may write several tables.
_GROUPS = frozenset(("FROM", "WITH", "EXECUTE", "EXPLAIN"))


class Router:
    """Routes the statements of one attached session."""

    def __init__(self, session: AttachedSession) -> None:
        self.session = session
        self.spark = session.spark
        self.targets = Targets(session)
        self.reader = StatementReader(session.spark)
        self.ownership = Ownership(self.targets)
        self.savepoints = NamedSavepoints(session, self.find_table, self.find_database)
        self.statements = TransactionStatements(session, self.find_table, self.savepoints)

    # -- around a statement ----------------------------------------------------------------------------------------

    def sql(self, original: Original, text: str, args: Args) -> Any:
        """Run ``SparkSession.sql`` of one session, its keyword arguments already merged into the text."""
        self.session.caches.catch_up()
        words = leading_words(text, 2)
        if may_be_ours(words) and (ours := transaction_statement(text)) is not None:
            if not isinstance(ours, BeginAtomic):
                return self.statements.run(ours, args)
            with blocks.transaction(self.session, terms=self.statements.terms(Characteristics())):
                return self._sql(original, ours.script, args, ("BEGIN",))
        if words == ("ALTER", "TABLE") and (altered := alter_table(text)) is not None:
            parts = self.reader.parse_name(altered.table)
            target = self.targets.resolve(parts, views=True) if parts else None
            # Of other session tables Spark itself says what it says without twophase.
            if target is not None and (
                not target.via_session_catalog or self.targets.can_write(target, self.targets.existing(target))
            ):
                change_table(self.session, target.catalog, target.path, [altered.change])
                return self.spark.range(0).select()
        return self._sql(original, text, args, words)

    def _sql(self, original: Original, text: str, args: Args, words: tuple[str, ...]) -> Any:
        first = words[0] if words else ""

        def attempt() -> Any:
            try:
                return original(text, args)
            except ParseException as error:
                if (ours := misplaced(text, error)) is not None:
                    raise ours from error
                raise

        def run() -> Any:
            return attempt() if first in _SETS else self.reading(attempt)

        if words == ("SHOW", "TABLES") and self.in_transaction():
            with running_statement(self.session) as statement:
                listed = run()
            return statement.completed(self.spark, listed)
        if first in READS - _GROUPS or (first in ("WITH", "FROM") and not _WRITES.search(text)):
            return run()
        if first not in _GROUPS:
            return self._or_delete(words, text, args, run, is_script=first == "BEGIN")
        with running_statement(self.session) as statement, blocks.write_group(self.session) as statement.group:
            return self._or_delete(words, text, args, run, is_script=False)

    def _or_delete(
        self, words: tuple[str, ...], text: str, args: Args, run: Callable[[], Any], *, is_script: bool
    ) -> Any:
        """Run a statement; a DELETE that Spark cannot pass to a twophase table is run by rewriting files."""
        try:
            return self.write(run, is_script=is_script)
        except AnalysisException as error:
            if words != ("DELETE", "FROM") and not (words[:1] == ("WITH",) and "delete" in text.lower()):
                raise
            refused = error
        delete = delete_by_rows(self.session, self.reader, text, args)
        if delete is None:
            raise refused
        with interruptible(self.session.tracker):
            delete()
        return self.spark.range(0).select()

    def write(
        self, run: Callable[[], Any], *, is_script: bool = False, instead: Callable[[], Any] | None = None
    ) -> Any:
        """Run a call that may write; under ``preferred`` as stock Spark if our catalog does not support it.

        Parameters
        ----------
        run : callable
        is_script : bool
            Whether a part of it may have run before a failure: then it is not run again.
        instead : callable, optional
            The call that makes stock Spark do the same, if it is another one.
        """
        since = time.time()
        try:
            with interruptible(self.session.tracker):
                return run()
        except (AnalysisException, CatalogError, AtomicityNotSupportedError) as error:
            if _has_begun(error):
                raise
            refused: Exception = error
        was_routed = self._refused_by_spark(refused, since)
        if not isinstance(refused, AtomicityNotSupportedError):
            raise refused
        if is_script:
            refused.add_note("What ran before it, in the same script, stays, and was not run again.")
        if is_script or not (was_routed or instead):
            raise refused  # The job wrote the name of our own catalog.
        self.unprotected(str(refused), refused)
        with self.rules.off():
            return (instead or run)()

    def _refused_by_spark(self, refused: Exception, since: float) -> bool:
        """Raise Spark's own error for a statement routed since a time that was refused, if Spark refuses it, too.

        Returns
        -------
        bool
            Whether the statement was routed.
        """
        if self.in_transaction():
            return isinstance(refused, AtomicityNotSupportedError)
        try:
            return self.rules.analyze_routed(since)
        except ConfigurationError:  # a Spark version that cannot detect it
            return False
        except PySparkException as error:
            if error.getCondition() in _NO_ANSWER:
                return True
            raise error from None

    @property
    def rules(self) -> PlanRules:
        """The rules on the session's plans."""
        assert self.session.rules is not None  # an attached session has them
        return self.session.rules

    # -- several tables in one statement -----------------------------------------------------------------------------

    def group_writes(self, *, in_script: bool) -> None:
        """Note that the statement of the calling JVM thread writes several tables.

        Parameters
        ----------
        in_script : bool
            Whether it is a part of a script, also behind an ``EXECUTE IMMEDIATE``: later statements read its rows.

        Raises
        ------
        Unsupported
            It is not a ``spark.sql`` statement by itself, so that its end is unknown, and there is no block around it.
        """
        statement = running(self.session)
        if not in_script and statement is not None and statement.group is not None:
            statement.group.is_wanted = True
        elif not self.in_transaction():  # There its outcome is that of the block.
            raise Unsupported("it writes several tables with one outcome, inside a script")

    # -- inside a transaction --------------------------------------------------------------------------------------

    def in_transaction(self) -> bool:
        """Return whether this thread's statement runs inside ``with twophase.transaction(spark)``."""
        return self.targets.in_transaction

    def reading(self, read: Callable[[], Any]) -> Any:
        """Return the DataFrame of a call; its reads are recorded in the surrounding transaction, if any.

        Raises
        ------
        AtomicityNotSupportedError
            Spark may analyse it without twophase's rules.
        """
        if not self.in_transaction():
            return read()
        if self.rules.is_bypassed():
            problem = f"with {_SINGLE_PASS}* Spark reads a table without what this transaction has written"
            self.unprotected(problem, hint="Unset it")
        frame = read()
        note_reads(self.session, frame)
        return frame

    def refuse_change(self, change: Change, parts: tuple[str, ...], target: Target | None) -> None:
        """Refuse a change of the catalog outside twophase, which takes effect immediately.

        Raises
        ------
        AtomicityNotSupportedError
        """
        if target is None:
            left_to_catalog = False
        elif target.via_session_catalog:
            left_to_catalog = change.object == "ROWS"  # Spark changes no rows of such a table, and raises itself.
        else:
            left_to_catalog = change.object != "OTHER"
        if not left_to_catalog:
            is_table = target is not None and change.object != "NAMESPACE"
            path = target.path if target and is_table else quoted(parts) if parts else None
            active.refuse_in_transaction(self.session, change.verb, path)

    def refuse_hidden_database(self, parts: tuple[str, ...], *, creates: bool) -> None:
        """Refuse a database and a twophase catalog of one name: statements for one would reach the other.

        Raises
        ------
        ConfigurationError
        """
        # A metastore stores database names in lower case.
        hidden = {name.lower() for name in self.session.catalogs}
        names = tuple(part.lower() for part in parts)
        if creates:
            if len(names) == 2 and names[0] == SESSION_CATALOG and names[1] in hidden:
                raise hidden_database(parts[1])
        elif len(names) == 1 and names[0] in hidden and session_state.is_database(self.session.jvm, parts[0]):
            raise hidden_database(parts[0])

    def lists_tables(self, parts: tuple[str, ...], pattern: str | None, *, extended: bool) -> None:
        """Complete a listing, which does not contain the tables that the transaction creates.

        Raises
        ------
        Unsupported
            It does not run by itself, or would describe the former state of a staged table.
        """
        database, names, dropped = self.staged_database(parts or None)
        if not names:
            return
        if extended:
            problem = "it would show the database's tables without what this transaction has written"
            raise Unsupported(problem, "Ask SHOW TABLES and DESCRIBE TABLE")
        statement = running(self.session)
        if statement is None or statement.group is not None:  # It is behind EXECUTE IMMEDIATE, or in a script.
            problem = "a listing of tables in it would show nothing of what this transaction has written"
            raise Unsupported(problem, "Run the listing by itself")
        statement.listing = Listing(database, names, pattern, dropped)

    def staged_name(self, name: Any, database: Any = None) -> str | None:
        """The full name of a session table that the surrounding transaction has staged or drops; otherwise None.

        Parameters
        ----------
        name : str
        database : str, optional
            Its database, if the caller passes it separately.
        """
        if not self.in_transaction():
            return None
        parts = self.parts(name) if database is None else (*(self.parts(database) or ()), str(name))
        target = self.targets.resolve(parts, views=True) if parts else None
        if target is None or not target.via_session_catalog:
            return None
        return target.name if self.targets.is_staged(target) or self.targets.is_dropped(target) else None

    def refuse_staged(self, name: Any) -> None:
        """Refuse to describe a table that the surrounding transaction writes by facts of its published state.

        Raises
        ------
        AtomicityNotSupportedError
        """
        if self.staged_name(name) is not None:
            problem = f"it would show {name} without what this transaction has written"
            self.unprotected(problem, hint="Call it after the transaction")

    def staged_database(self, parts: tuple[str, ...] | None) -> tuple[str, set[str], set[str]]:
        """The name of a session catalog's database in our catalog, and its tables that the transaction changes.

        Parameters
        ----------
        parts : tuple of str or None
            Its name; None for the current one.

        Returns
        -------
        tuple of str and two sets of str
            The full name, and those of the tables in lower case: of those that it writes or drops, and only of those
            that it drops. Empty if it is not a database of ours.
        """
        anything = "anything"
        target = self.targets.resolve((*(parts or ()), anything))
        if target is None or not target.via_session_catalog:
            return "", set(), set()
        staged, dropped = (
            {name.lower() for name in staged_tables(self.session, target.catalog, target.path.database, dropped=drops)}
            for drops in (False, True)
        )
        return quoted((target.catalog_name, *target.path.namespace)), staged | dropped, dropped

    # -- names and policy ------------------------------------------------------------------------------------------

    def parts(self, name: Any) -> tuple[str, ...] | None:
        """The parts of a name given to the DataFrame API; None if Spark will refuse it."""
        return self.reader.parse_name(name) if isinstance(name, str) else None

    def find_table(self, name: str) -> tuple[Catalog, ObjectPath]:
        """The catalog and the path of the table that a name means.

        Raises
        ------
        ConfigurationError
            It is not the name of a table that twophase writes.
        """
        parts = self.reader.parse_name(name)
        target = self.targets.resolve(parts, views=True) if parts else None
        if target is None:
            raise ConfigurationError(f"{name} is not the name of a table that twophase writes.")
        return target.catalog, target.path

    def find_database(self, name: str) -> tuple[Catalog, str]:
        """The catalog and the name of the database that a name means.

        Raises
        ------
        ConfigurationError
            It is not the name of a database that twophase writes.
        """
        parts = self.reader.parse_name(name)
        target = self.targets.resolve((*parts, "t")) if parts else None
        if target is None or not target.path.namespace:
            raise ConfigurationError(f"{name} is not the name of a database that twophase writes.")
        return target.catalog, target.path.database

    def supports(self, target: Target, purpose: Purpose) -> bool:
        """Return whether the catalog supports a purpose; if it does not, the policy decides.

        Raises
        ------
        AtomicityNotSupportedError
        """
        unsupported_reason = self.targets.unsupported_reason(target, purpose)
        if unsupported_reason is None:
            return True
        problem, hint = unsupported_reason
        self.unprotected(problem, hint=hint)
        return False

    def stays_outside(self, name: str) -> None:
        """Allow a write outside twophase, unless a transaction is open."""
        active.refuse_in_transaction(self.session, f"A write of {name}, which is no table of a twophase catalog,", name)

    def refuse_stream(self, name: Any) -> None:
        """Refuse a streaming query into a table whose files move: it would go on writing to their old location.

        Raises
        ------
        AtomicityNotSupportedError
        """
        parts = self.parts(name)
        target = self.targets.resolve(parts, views=True) if parts else None
        facts = self.targets.existing(target) if target is not None and target.via_session_catalog else None
        if parts and target is not None and facts is not None and _has_moved_files(target):
            self.unprotected(
                f"a streaming query never ends, so that there is no moment at which {quoted(parts)} could be published",
                hint="Write its batches with foreachBatch and insertInto",
            )

    def refuse_stream_of(self, name: Any) -> None:
        """Refuse a streaming read of a table whose files move: it would go on reading from their old location.

        Raises
        ------
        AtomicityNotSupportedError
        """
        parts = self.parts(name)
        target = self.targets.resolve(parts, views=True) if parts else None
        facts = self.targets.existing(target) if target is not None and target.via_session_catalog else None
        if not parts or target is None or not self.targets.can_write(target, facts) or facts is None:
            return
        if not isinstance(target.catalog, SupportsExternalChanges) or not target.catalog.moves_files(target.path):
            return
        if _has_moved_files(target):
            self.unprotected(
                f"a streaming query reads files by their place, and each write of {quoted(parts)} moves them",
                hint=f"Before it is streamed, {STAYS}",
            )
        else:
            self.targets.streams.add(target)

    def unprotected(self, problem: str, cause: BaseException | None = None, *, hint: str | None = None) -> None:
        """Refuse a statement under ``required``; warn under ``preferred``.

        Raises
        ------
        AtomicityNotSupportedError
        """
        if self.session.policy == "preferred":
            warnings.warn(f"A statement runs without twophase: {problem}.", RuntimeWarning, stacklevel=6)
        elif isinstance(cause, AtomicityNotSupportedError):
            raise cause
        else:
            raise AtomicityNotSupportedError(
                f"The statement cannot be made atomic, and nothing was started: {problem}.",
                hint=f"{hint or 'Name its table in plain words'}, or {PREFER}.",
            )


def _has_begun(error: Exception) -> bool:
    """Return whether an error was raised after the statement's transaction had begun: then it is not a refusal."""
    return getattr(error, "transaction_id", None) is not None


def _has_moved_files(target: Target) -> bool:
    return isinstance(target.catalog, SupportsExternalChanges) and target.catalog.has_moved_files(target.path)
