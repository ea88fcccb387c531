"""The statements about transactions, run: ``BEGIN TRANSACTION``, ``COMMIT``, ``SAVEPOINT``, ``RESTORE``, ..."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from twophase.catalog import Catalog
from twophase.errors import TransactionStatementError
from twophase.model import ObjectPath
from twophase.spark import active, blocks
from twophase.spark.attached import AttachedSession
from twophase.spark.begun import OpenTransaction, begun_here
from twophase.spark.routing.savepoints import NamedSavepoints
from twophase.spark.routing.tokens import Kind, tokens
from twophase.spark.routing.transaction_grammar import (
    Begin,
    Characteristics,
    Commit,
    CreateSavepoint,
    DropSavepoint,
    LockTable,
    Release,
    Restore,
    Rollback,
    Savepoint,
    SetTransaction,
    Show,
    TransactionStatement,
    may_be_ours,
    statements_within,
)
from twophase.spark.routing.words import leading_words
from twophase.timeline.listings import LOCKS, SAVEPOINTS, TRANSACTIONS, lock_rows, savepoint_rows, transaction_rows
from twophase.transactions.conflict_policy import conflict_policy
from twophase.transactions.transaction import Transaction

if TYPE_CHECKING:
    from pyspark.errors import ParseException

FindTable: TypeAlias = Callable[[str], tuple[Catalog, ObjectPath]]
#: Rows and their schema; None for a statement without an answer.
_Answer: TypeAlias = tuple[list[tuple[Any, ...]], str] | None
#: The most transactions that SHOW TRANSACTIONS lists.
_MOST = 1000


class TransactionStatements:
    """Runs the statements about transactions of one session.

    Parameters
    ----------
    session : AttachedSession
    find_table : callable
        Finds a table by the name that it has in the session.
    savepoints : NamedSavepoints
    """

    def __init__(self, session: AttachedSession, find_table: FindTable, savepoints: NamedSavepoints) -> None:
        self._session = session
        self._find_table = find_table
        self._savepoints = savepoints
        self._rules: dict[type, Callable[[Any], _Answer]] = {
            Begin: self._begin,
            Commit: self._commit,
            Rollback: self._rollback,
            Savepoint: self._savepoint,
            Release: self._release,
            LockTable: self._lock_table,
            SetTransaction: self._set_transaction,
            Show: self._show,
            CreateSavepoint: self._create_savepoint,
            Restore: self._restore,
            DropSavepoint: self._drop_savepoint,
        }

    def run(self, statement: TransactionStatement, args: Any) -> Any:
        """Run a statement, and return its answer.

        Returns
        -------
        pyspark.sql.DataFrame
            For ``BEGIN`` the transaction's id, for ``SHOW`` a list; otherwise empty.

        Raises
        ------
        TransactionStatementError
            It is not possible here.
        """
        if args:
            raise TransactionStatementError(
                "A statement about transactions takes no parameters: nothing was started.",
                hint="Say it without args.",
            )
        answer = self._rules[type(statement)](statement)
        spark = self._session.spark
        return spark.range(0).select() if answer is None else spark.createDataFrame(*answer)

    def terms(self, said: Characteristics) -> blocks.Terms:
        """The terms of a transaction by what a statement says of it."""
        return blocks.Terms(
            conflict=None if said.conflict is None else conflict_policy(said.conflict),
            wait=said.wait,
            find_table=self._find_table,
        )

    def _begin(self, statement: Begin) -> _Answer:
        said = statement.terms
        is_read_only, terms = bool(said.read_only), self.terms(said)
        begun = OpenTransaction(self._session, (), said.isolation, read_only=is_read_only, terms=terms)
        return [(begun.id,)], "transaction_id string"

    def _commit(self, _: Commit) -> None:
        begun_here(self._session, "COMMIT").commit()

    def _rollback(self, statement: Rollback) -> None:
        if statement.savepoint is None:
            begun_here(self._session, "ROLLBACK").rollback()
        else:
            self._around("ROLLBACK TO").rollback_to(statement.savepoint)

    def _savepoint(self, statement: Savepoint) -> None:
        self._around("SAVEPOINT").savepoint(statement.name)

    def _release(self, statement: Release) -> None:
        self._around("RELEASE").release(statement.name)

    def _around(self, words: str) -> Transaction:
        """Return the transaction around a statement, also that of a block that ends by itself."""
        around = active.to_join(self._session)
        return begun_here(self._session, words).transaction if around is None else around.transaction

    def _lock_table(self, statement: LockTable) -> None:
        transaction = self._around("LOCK TABLE")
        for table in [self._find_table(name) for name in statement.names]:
            transaction.lock(table, statement.mode, wait=0 if statement.nowait else None)

    def _set_transaction(self, statement: SetTransaction) -> None:
        said = statement.terms
        begun = begun_here(self._session, "SET TRANSACTION")
        begun.restart(said.isolation, self.terms(said), read_only=said.read_only)

    def _create_savepoint(self, statement: CreateSavepoint) -> _Answer:
        made = self._savepoints.create(
            statement.name,
            databases=statement.databases,
            tables=statement.tables,
            keep_seconds=statement.keep_seconds,
            copies=statement.copies,
        )
        return savepoint_rows([made]), SAVEPOINTS

    def _restore(self, statement: Restore) -> _Answer:
        chosen = (statement.databases, statement.tables)
        restored = self._savepoints.restore(
            statement.name, databases=chosen[0], tables=chosen[1], keep_new=statement.keep_new
        )
        return [(restored.id,)], "transaction_id string"

    def _drop_savepoint(self, statement: DropSavepoint) -> None:
        self._savepoints.drop(statement.name)

    def _show(self, statement: Show) -> _Answer:
        if statement.what == "SAVEPOINTS":
            return savepoint_rows(self._savepoints.all()), SAVEPOINTS
        timeline = self._session.coordinator.timeline
        if statement.what == "LOCKS":
            records = {record.id: record for record in timeline.transactions(open_only=True)}
            return lock_rows(timeline.locks(), records), LOCKS
        assert statement.what == "TRANSACTIONS", statement.what
        return transaction_rows(timeline.transactions(limit=_MOST)), TRANSACTIONS


def misplaced(text: str, error: ParseException) -> TransactionStatementError | None:
    """The error for a text that Spark could not parse, if a statement about transactions inside it is the reason.

    Parameters
    ----------
    text : str
        The statement, a script or an EXECUTE IMMEDIATE.
    error : ParseException
        Spark's own.
    """
    words = leading_words(text, 1)
    if words == ("BEGIN",) and [token.word for token in tokens(text) if token.word != ";"] == ["BEGIN"]:
        return TransactionStatementError(
            "BEGIN alone begins one of Spark's scripts: nothing was started.",
            hint="Write BEGIN TRANSACTION.",
        )
    if words == ("BEGIN",) and (within := next(statements_within(text), None)):
        return TransactionStatementError(
            f"{within} inside a script: nothing was started. A script runs within the transaction that is open, or is "
            "one itself.",
            hint="Say it outside of the script, or write BEGIN ATOMIC ... END: a script in one transaction.",
        )
    for run in _parsed(error) if words and words[0] in ("BEGIN", "EXECUTE") else ():
        found = leading_words(run, 2)
        if may_be_ours(found):
            return TransactionStatementError(
                f"{' '.join(found)} in EXECUTE IMMEDIATE: that statement was not started.",
                hint="Give it to spark.sql by itself.",
            )
    return None


def _parsed(error: ParseException) -> Iterator[str]:
    """The texts that Spark was parsing, or their beginning: Spark 4.0 has the text around an EXECUTE IMMEDIATE."""
    for context in error.getQueryContext() or ():
        yield context.fragment()
        yield from (token.text[1:-1] for token in tokens(context.fragment()) if token.kind is Kind.TEXT)
    yield (error.getMessageParameters() or {}).get("error", "").strip("'")
