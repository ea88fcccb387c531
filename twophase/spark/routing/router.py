"""What becomes of each statement of one attached session.

A statement that writes a session table goes to the session's twophase catalog under the table's full name; one inside a
transaction reads what was staged there; everything else goes to Spark as it is.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from pyspark.errors import AnalysisException, PySparkException

from twophase.errors import AtomicityNotSupportedError, CatalogError, ConfigurationError
from twophase.model import ObjectPath, OverwriteScope, Purpose
from twophase.redaction import logger
from twophase.spark import live
from twophase.spark.cancellation import interruptible
from twophase.spark.intent import intending
from twophase.spark.jvm.statements import StatementReader, WriteNode
from twophase.spark.options import PREFER, hidden_database
from twophase.spark.routing import listings
from twophase.spark.routing.ddl import (
    Change,
    changes,
    row_change,
    sought_partitions,
    used_name,
)
from twophase.spark.routing.deletes import delete_by_rows
from twophase.spark.routing.ownership import Ownership
from twophase.spark.routing.reads import StagedReads
from twophase.spark.routing.rewrite import Args, Rewriter, Rewritten, Untellable, concerns_us
from twophase.spark.routing.spark_ddl import SparkDdl
from twophase.spark.routing.targets import SESSION_CATALOG, STAYS, Target, Targets, quoted
from twophase.spark.routing.tokens import leading_words

if TYPE_CHECKING:
    from twophase.spark.session import Handle

log = logger("twophase.spark")

Original = Callable[..., Any]

_NEVER = "UNSUPPORTED_FEATURE.TABLE_OPERATION"
_UNBOUND = "UNBOUND_SQL_PARAMETER"
#: Spark casts as ``spark.sql.storeAssignmentPolicy=LEGACY`` says for tables of its own session catalog only.
_LEGACY_POLICY = "_LEGACY_ERROR_TEMP_1000"
_LEGACY_SETTING = "spark.sql.storeAssignmentPolicy"
_LEGACY_WORDS = f"under {_LEGACY_SETTING}=LEGACY Spark casts rows of its own tables only"
_ANSI = f"Set {_LEGACY_SETTING}=ANSI, or write the casts"
#: A partition, bucket or sort column that is there twice, or not at all, as Spark tells it of other catalogs' tables.
_LAYOUTS = ("_LEGACY_ERROR_TEMP_3058", "_LEGACY_ERROR_TEMP_3060")
_NAMESPACES = ("DATABASE", "SCHEMA", "NAMESPACE")
#: How a statement begins that may find partitions below a directory, and a script in which one may.
_FINDS_PARTITIONS = (("ALTER",), ("MSCK",), ("REPAIR",), ("BEGIN",))
_OUTSIDE = {
    "empty": "CREATE TABLE",
    "insert": "INSERT into a table that twophase does not write,",
    "directory": "INSERT OVERWRITE DIRECTORY",
}


class Router:
    """Routes the statements of one attached session.

    Parameters
    ----------
    handle : Handle
    original_sql : callable
        ``SparkSession.sql`` as it was before us.
    """

    def __init__(self, handle: Handle, original_sql: Original) -> None:
        self._original_sql = original_sql
        self.handle = handle
        self.spark = handle.spark
        self.targets = Targets(handle)
        self.reader = StatementReader(handle.spark)
        self.ownership = Ownership(self.targets)
        self.ddl = SparkDdl(self.targets, handle.jvm)
        self._staged = StagedReads(self.reader, self.targets, handle, lambda *told: self.rewriter.plain_names(*told))
        self.rewriter = Rewriter(
            self.reader,
            self.targets,
            self.ownership,
            self._constant,
            outside=self._refuse_outside,
            told=self._refuse_told,
            reading=self._staged.rewrite,
        )

    # -- SQL -----------------------------------------------------------------------------------------------------

    def sql(self, original: Original, text: str, args: Args) -> Any:
        """``SparkSession.sql`` of one session, its keyword arguments put into the text already."""
        self.handle.catch_up()
        words = leading_words(text, 2)
        if self.in_transaction():
            return self._sql_inside(original, text, args)
        said = self._said(text, args) if words[:1] in (("EXECUTE",), ("EXPLAIN",), ("BEGIN",)) else text
        words = leading_words(said, 2)
        if words[:1] == ("USE",) or (words[:1] == ("CREATE",) and words[1:] and words[1] in _NAMESPACES):
            self._refuse_hidden_database(said)
        is_script = words[:1] == ("BEGIN",)
        if words[:1] in _FINDS_PARTITIONS and (words[0] != "ALTER" or _says(said, "partition")):
            self.ddl.partitions_sought(sought_partitions(said))
        run: Callable[[], Any] = lambda: self._sql(original, text, args)  # noqa: E731
        renames = (is_script or words == ("ALTER", "TABLE")) and _says(said, "rename")
        if words == ("DROP", "TABLE") or (is_script and _says(said, "drop")):
            drop = run
            run = lambda: self.ddl.dropping_said(drop, said)  # noqa: E731
        return self.ddl.renaming(run, said) if renames else run()

    def _refuse_hidden_database(self, text: str) -> None:
        """A database and a catalog of ours have one name: what is meant for one would go to the other."""
        # A metastore knows a database in small letters only.
        hidden = {name.lower() for name in self.handle.catalogs}
        if names := used_name(text):
            if len(names) == 1 and names[0].lower() in hidden and self.handle.jvm.is_database(names[0]):
                raise hidden_database(names[0])
            return
        made = changes(text)
        names = made.names if made else None
        if names and names[0].lower() == SESSION_CATALOG and names[-1].lower() in hidden and len(names) == 2:
            raise hidden_database(names[1])

    def _said(self, text: str, args: Args) -> str:
        """What an EXECUTE IMMEDIATE runs; of a script its text, and behind it what those in it run."""
        inner = self.rewriter.immediate_texts(text, args)
        if leading_words(text, 1) == ("BEGIN",):
            return "\n;\n".join((text, *inner))
        return inner[0] if inner else text

    def _sql(self, original: Original, text: str, args: Args) -> Any:
        rewritten = self._rewritten(text, args) if concerns_us(text) or "${" in text else None
        if rewritten is None:
            return self._or_delete(original, text, args)
        return self._run_sql(original, rewritten, text, args)

    def _or_delete(self, original: Original, text: str, args: Args) -> Any:
        """Run a statement; a DELETE that Spark cannot hand to a table of ours is run by its rows."""
        try:
            return original(text, args)
        except AnalysisException as error:
            words = leading_words(text, 2)
            if words != ("DELETE", "FROM") and not (words[:1] == ("WITH",) and "delete" in text.lower()):
                raise
            refused = error
        delete = delete_by_rows(self.handle, self.reader, text, args)
        if delete is None:
            raise refused
        self.run(delete, instead=None)
        return self.spark.range(0).select()

    def _sql_inside(self, original: Original, text: str, args: Args) -> Any:
        """A statement inside a transaction: it reads what was staged there, and nothing takes effect at once."""
        # Spark puts variables in before it parses: names in the text stand elsewhere then.
        text = self.reader.substituted(text) if "${" in text else text
        try:
            if listings.is_listing(text):
                return listings.show_tables(lambda said: original(said, args), text, self.staged_database)
            rewritten = self.rewriter.rewrite(text, args) or Rewritten(text, args)
            if rewritten.writes_nothing:
                return self.spark.range(0).select()
            rewritten = self._staged.rewrite(rewritten)
        except Untellable as problem:
            self.unprotected(str(problem), hint=problem.hint)
            return original(text, args)
        return self._run_sql(original, rewritten, text, args)

    def _run_sql(self, original: Original, rewritten: Rewritten, text: str, args: Args) -> Any:
        def run() -> Any:
            with self._grouped(rewritten):
                return self._execute(original, rewritten, text, args)

        if rewritten.is_script and rewritten.inserts and self._casts_by_legacy_policy():
            self.unprotected(f"it is a script with an INSERT, and {_LEGACY_WORDS}", hint=_ANSI)
            return original(text, args)
        if rewritten.text == text and not rewritten.is_group:
            # Spark finds our catalog by the name as it is written: there is no other way to run it.
            with interruptible(self.handle.tracker):
                return run()
        # In a script some statements may be published when one fails, in a transaction some targets may be staged.
        if not rewritten.is_script and not (rewritten.is_group and self.in_transaction()):
            return self.run(run, instead=lambda: original(text, args))
        try:
            return self.run(run, instead=None)
        except AtomicityNotSupportedError as error:
            error.add_note("What ran before it, in the same script or statement, stays, and was not run again.")
            raise

    def _execute(self, original: Original, rewritten: Rewritten, text: str, args: Args) -> Any:
        """Run a routed statement.

        Where Spark refuses the job's own text too, its error is raised: the names and positions in it are right, and
        it is of the class that the job may expect. It never replaces tables of its own catalog, so that says nothing.
        """
        try:
            return self._or_delete(original, rewritten.text, rewritten.args)
        except (AnalysisException, CatalogError) as error:
            if rewritten.is_script or rewritten.text == text or self.in_transaction() or _has_begun(error):
                raise
            refused = error
        try:
            plan = self._analysed(text, args)
        except PySparkException as error:
            # What Spark never does to such a table says nothing about this statement.
            raise (refused if error.getCondition() == _NEVER else error) from None
        except ConfigurationError:  # a Spark version that cannot tell
            raise refused from None
        insert = rewritten.insert
        wanted = plan and insert and (_lacks_columns(refused) or _needs_legacy_casts(refused))
        rows = self.reader.rows_of(plan) if wanted else None
        if rows is None or insert is None:
            raise refused
        self._insert(rows, *insert)
        return self.spark.range(0).select()

    def _analysed(self, text: str, args: Args) -> Any | None:
        """Spark's plan of a statement; of an EXECUTE IMMEDIATE that of the text in it, which nothing runs.

        Its USING binds what is not bound here: of such a text there is none.
        """
        if leading_words(text, 1) != ("EXECUTE",):
            return self.reader.analysed(text, args)
        try:
            texts = self.rewriter.immediate_texts(text, args)
            return self.reader.analysed(texts[0]) if texts else None
        except PySparkException as error:
            if error.getCondition() == _UNBOUND:
                return None
            raise

    def _insert(self, rows: Any, target: Target, scope: OverwriteScope | None) -> None:
        """Insert rows that Spark has completed: some of what it does for v1 tables it does for no others."""
        with intending(self.spark.sparkContext, {target.path: scope} if scope else {}):
            rows.write().insertInto(target.name)

    def insert_cast(
        self, insert: Callable[[], None], df: Any, target: Target, scope: OverwriteScope | None, *, by_name: bool
    ) -> None:
        """Run an insert of the DataFrame API; under the LEGACY policy with the casts of Spark's own tables.

        What Spark refuses of its own table, too, is told as it tells it there: with the table's own name.

        Parameters
        ----------
        insert : callable
            The insert.
        df : pyspark.sql.DataFrame
            Its rows.
        target : Target
        scope : OverwriteScope or None
            What it overwrites.
        by_name : bool
            Whether columns are found by name, and not by position.
        """
        try:
            insert()
            return
        except AnalysisException as error:
            if self.in_transaction() or not target.spliced:
                raise
            refused = error
        if not _needs_legacy_casts(refused):
            raise (refused if by_name else self._in_own_words(refused, df, target)) from None
        rows = self._cast(df if by_name else df.toDF(*map(str, range(len(df.columns)))), target, by_name)
        if rows is None:
            raise refused
        self._insert(rows, target, scope)

    def _in_own_words(self, refused: AnalysisException, df: Any, target: Target) -> AnalysisException:
        try:
            self._cast(df, target, by_name=False)
        except AnalysisException as error:
            if error.getCondition() == refused.getCondition():
                return error
        except Exception:
            log.debug("Spark was asked about an insert, and failed", exc_info=True)
        return refused

    def _cast(self, df: Any, target: Target, by_name: bool) -> Any | None:
        """The rows as Spark itself would write them into its own table."""
        view = f"twophase_{uuid.uuid4().hex}"
        df.createTempView(view)
        try:
            name = quoted(("spark_catalog", *target.path.to_document()))
            plan = self.reader.analysed(f"INSERT INTO {name} {'BY NAME ' if by_name else ''}TABLE {view}")
            return plan and self.reader.rows_of(plan)
        finally:
            self.spark.catalog.dropTempView(view)

    def _casts_by_legacy_policy(self) -> bool:
        return self.targets.names.setting(_LEGACY_SETTING).upper() == "LEGACY"

    def _refuse_told(self, text: str) -> None:
        if not self.in_transaction():
            return
        if change := changes(text) or row_change(text):
            self.refuse_change(change)
        # One that stands by itself never comes here.
        if listings.is_listing(text) and self._staged.any():
            problem = "a listing of tables in it would tell nothing of what this transaction has written"
            raise Untellable(problem, hint="Run the listing by itself")

    def refuse_change(self, change: Change) -> None:
        """Inside a transaction: refuse what changes the catalog past us, for it takes effect at once.

        Raises
        ------
        AtomicityNotSupportedError
        """
        if not self.in_transaction():
            return
        target = self.targets.resolve(change.names, views=True) if change.names else None
        if target is None:
            left_to_catalog = False
        elif target.spliced:
            left_to_catalog = change.object == "ROWS"  # Spark changes no rows of such a table, and says so itself.
        else:
            left_to_catalog = change.object in ("TABLE", "ROWS", *_NAMESPACES)
        if not left_to_catalog:
            is_table = target is not None and change.object not in _NAMESPACES
            path = target.path if target and is_table else quoted(change.names) if change.names else None
            self.handle.refuse_in_transaction(change.verb, path)

    def _refuse_outside(self, node: WriteNode) -> None:
        """A write that stays Spark's takes effect at once."""
        statement = _OUTSIDE.get(node.kind, "CREATE TABLE AS SELECT of a table that twophase does not write,")
        self.handle.refuse_in_transaction(statement, ".".join(node.parts or ()) or None)

    def in_transaction(self) -> bool:
        """Whether a ``with twophase.transaction(spark)`` is around this thread's statement."""
        return self.targets.in_transaction

    def reading(self, frame: Any) -> Any:
        """The DataFrame; the surrounding transaction, if any, knows from now on what it reads."""
        if self.in_transaction():
            live.note_reads(self.handle, frame)
        return frame

    def readable_name(self, name: Any) -> Any:
        """The name under which a table that the surrounding transaction staged is read."""
        self.handle.catch_up()
        if not self.in_transaction():
            return name
        parts = self.parts(name)
        if parts is None:
            return name
        try:
            self._staged.refuse_stale(parts)
        except Untellable as problem:
            self.unprotected(str(problem), hint=problem.hint)
        return self.staged_name(name) or name

    def staged_name(self, name: Any, database: Any = None) -> str | None:
        """The full name of a session table that the surrounding transaction staged; None for every other.

        Parameters
        ----------
        name : str
        database : str, optional
            Where it is told apart from the table's own name.
        """
        if not self.in_transaction():
            return None
        parts = self.parts(name) if database is None else (*(self.parts(database) or ()), str(name))
        target = self.targets.resolve(parts, views=True) if parts else None
        is_staged = target and target.spliced and self.targets.staged_definition(target) is not None
        return target.name if target and is_staged else None

    def refuse_staged(self, name: Any) -> None:
        """Refuse to tell what only a published table has of one that the surrounding transaction writes.

        Raises
        ------
        AtomicityNotSupportedError
        """
        if self.staged_name(name) is not None:
            problem = f"it would tell of {name} without what this transaction has written"
            self.unprotected(problem, hint="Call it after the transaction")

    def staged_database(self, parts: tuple[str, ...] | None) -> tuple[str, set[str]]:
        """A database of the session catalog as our catalog has it, and the tables that the transaction writes in it.

        Parameters
        ----------
        parts : tuple of str or None
            Its name; None for the current one.

        Returns
        -------
        tuple of str and set of str
            The full name, and those of the tables in lower case; none where it is no database of ours.
        """
        anything = "anything"
        target = self.targets.resolve((*(parts or ()), anything))
        if target is None or not target.spliced:
            return "", set()
        staged = live.staged_tables(self.handle, target.catalog, target.path.database)
        return quoted((target.catalog_name, *target.path.namespace)), {name.lower() for name in staged}

    def _rewritten(self, text: str, args: Args) -> Rewritten | None:
        try:
            return self.rewriter.rewrite(text, args)
        except Untellable as problem:
            self._refused_by_spark(text, args)
            self.unprotected(str(problem), hint=problem.hint)
            return None
        except AnalysisException as error:  # of an IDENTIFIER(...), which Spark refuses of a table in other words
            if error.getCondition() != _UNBOUND:
                self._refused_by_spark(text, args)
            raise

    def _refused_by_spark(self, text: str, args: Args) -> None:
        """Raise Spark's own error of a statement that would fail without us, too."""
        with suppress(ConfigurationError):  # a Spark version that cannot tell
            try:
                self.reader.analysed(text, args)
            except PySparkException as error:
                if error.getCondition() != _NEVER:
                    raise

    def _constant(self, expression: str, args: Args) -> Any:
        """The value of a constant expression; Spark computes it without a job."""
        found = self._original_sql(self.spark, f"SELECT {expression}", args)
        if not self.reader.is_constant(found):
            raise Untellable(f"the value of {expression} is no constant")
        return found.head()[0]

    @contextmanager
    def _grouped(self, rewritten: Rewritten) -> Iterator[None]:
        """One transaction around a statement that writes several tables."""
        if rewritten.is_group and self.handle.current_transaction() is None:
            with live.transaction(self.handle):
                yield
        else:
            yield

    # -- running -------------------------------------------------------------------------------------------------

    def run(
        self,
        run: Callable[[], Any],
        scopes: Mapping[ObjectPath, OverwriteScope] | None = None,
        *,
        options: Mapping[ObjectPath, Mapping[str, str]] | None = None,
        instead: Callable[[], Any] | None,
    ) -> Any:
        """Run a routed statement; under ``preferred`` as Spark itself would, where our catalog cannot do it.

        Parameters
        ----------
        run : callable
        scopes, options : mapping, optional
            What the write intends, by its target.
        instead : callable or None
            The statement as Spark would run it. None where there is no such way, because the name is that of our own
            catalog, or where a part of it may have run before the failure: nothing runs twice.
        """
        try:
            with interruptible(self.handle.tracker), intending(self.spark.sparkContext, scopes or {}, options):
                return run()
        except AtomicityNotSupportedError as error:
            if instead is None:
                raise
            self.unprotected(str(error), error)
        except AnalysisException as error:
            if instead is None or not _needs_legacy_casts(error):
                raise
            self.unprotected(_LEGACY_WORDS, hint=_ANSI)
        return instead()

    def create(self, run: Callable[[], Any], text: Callable[[], str | None]) -> None:
        """Run what makes a table; a layout that Spark refuses too is refused in Spark's own words.

        Parameters
        ----------
        run : callable
        text : callable
            The statement of SQL that says the same; None where there is none.
        """
        try:
            run()
        except (AnalysisException, CatalogError) as error:
            if self.in_transaction() or not _is_about_layout(error):
                raise
            refused: Exception = error
        else:
            return
        try:
            if said := text():
                self._refused_by_spark(said, None)
        except PySparkException as error:
            refused = error
        except Exception:
            log.debug("Spark was asked about a layout, and failed", exc_info=True)
        raise refused from None

    def parts(self, name: Any) -> tuple[str, ...] | None:
        """The parts of a name given to the DataFrame API; None where Spark will refuse it."""
        return self.reader.parse_name(name) if isinstance(name, str) else None

    def offers(self, target: Target, purpose: Purpose) -> bool:
        """Whether the catalog can do it; where it cannot, the policy decides.

        Raises
        ------
        AtomicityNotSupportedError
        """
        hindrance = self.targets.hindrance(target, purpose)
        if hindrance is None:
            return True
        problem, hint = hindrance
        self.unprotected(problem, hint=hint)
        return False

    def stays_outside(self, name: str) -> None:
        """A write goes past us: no harm, unless a transaction is open."""
        self.handle.refuse_in_transaction(f"A write of {name}, which is no table of a twophase catalog,", name)

    def refuse_stream(self, name: Any) -> None:
        """Refuse a streaming query into a table that moves: it would go on writing where the table was once.

        Raises
        ------
        AtomicityNotSupportedError
        """
        parts = self.parts(name)
        target = self.targets.resolve(parts, views=True) if parts else None
        facts = self.targets.existing(target) if target is not None and target.spliced else None
        if parts and target is not None and facts is not None and target.catalog.has_moved_files(target.path):
            self.unprotected(
                f"a streaming query never ends, so that there is no moment at which {quoted(parts)} could be published",
                hint="Write its batches with foreachBatch and insertInto",
            )

    def refuse_stream_of(self, name: Any) -> None:
        """Refuse a streaming read of a table that moves: it would go on looking where the table was once.

        Raises
        ------
        AtomicityNotSupportedError
        """
        parts = self.parts(name)
        target = self.targets.resolve(parts, views=True) if parts else None
        facts = self.targets.existing(target) if target is not None and target.spliced else None
        if not parts or target is None or not self.targets.can_write(target, facts) or facts is None:
            return
        if not target.catalog.moves_files(target.path):
            return
        if target.catalog.has_moved_files(target.path):
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
        if self.handle.policy == "preferred":
            warnings.warn(f"A statement runs without twophase: {problem}.", RuntimeWarning, stacklevel=6)
        elif isinstance(cause, AtomicityNotSupportedError):
            raise cause
        else:
            raise AtomicityNotSupportedError(
                f"The statement cannot be made atomic, and nothing was started: {problem}.",
                hint=f"{hint or 'Name its table in plain words'}, or {PREFER}.",
            )


def _says(text: str, word: str) -> bool:
    """Whether a word may be in a text: a look at all of it, for statements that are short or rare."""
    return word in text.lower()


def _has_begun(error: Exception) -> bool:
    """Whether an error came after the statement's transaction had begun: then it is no refusal of its text."""
    return isinstance(error, CatalogError) and error.transaction_id is not None


def _is_about_layout(error: Exception) -> bool:
    """Whether a new table's columns, partitions or buckets were refused, and nothing was begun."""
    if isinstance(error, AnalysisException):
        return error.getCondition() in _LAYOUTS
    return type(error) is CatalogError and not _has_begun(error)


def _needs_legacy_casts(error: Exception) -> bool:
    return isinstance(error, AnalysisException) and error.getCondition() == _LEGACY_POLICY


def _lacks_columns(error: Exception) -> bool:
    return (
        isinstance(error, AnalysisException) and error.getCondition() == "INCOMPATIBLE_DATA_FOR_TABLE.CANNOT_FIND_DATA"
    )
