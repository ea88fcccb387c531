"""Runs the statements of ``twophase sql``: a script is split, and what they made is noted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import takewhile
from typing import Any

from twophase.cli.output import Answer, Output
from twophase.errors import TimelineError, TransactionAborted
from twophase.spark.begun import OpenTransaction, open_here
from twophase.spark.jvm.statements import StatementReader
from twophase.spark.routing.tokens import tokens
from twophase.spark.routing.transaction_grammar import BeginAtomic, begins_script, transaction_statement
from twophase.timeline.records import TransactionRecord


def split(text: str, parses: Callable[[str], bool]) -> Iterator[str]:
    """The statements of a text, which are separated by semicolons.

    Parameters
    ----------
    text : str
    parses : callable
        Whether Spark can parse a script: a script ends at the first semicolon at which it is one. What never is one is
        a single statement up to the end of the text, for which Spark will raise its error.
    """
    start: int | None = None
    words: list[str] = []
    for token in tokens(text):
        if token.word != ";":
            start = token.start if start is None else start
            words.append(token.word)
            continue
        if start is None or not _is_whole(text[start : token.start], words, parses):
            words += [token.word] * bool(words)
            continue
        yield text[start : token.start]
        start, words = None, []
    if start is not None:
        yield text[start:].rstrip()


def _is_whole(statement: str, words: Sequence[str], parses: Callable[[str], bool]) -> bool:
    if not begins_script(words):
        return True
    # Only where an END is: IF and LOOP have one, too, and labels.
    if "END" not in words[-2:]:
        return False
    atomic = transaction_statement(statement) if words[1:2] == ["ATOMIC"] else None
    return parses(atomic.script if isinstance(atomic, BeginAtomic) else statement)


class StatementRun:
    """Runs statements in one session.

    Parameters
    ----------
    out : Output
    handle : Handle
        Of the session.
    limit : int
        How many rows of an answer are shown.
    failed : list of TransactionRecord
        The transactions of the statement that failed are added to it.
    """

    def __init__(self, out: Output, handle: Any, limit: int, failed: list[TransactionRecord]) -> None:
        self._out = out
        self._handle = handle
        self._limit = limit
        self._failed = failed

    def statements(self, texts: Iterable[str]) -> list[str]:
        """The statements of some texts."""
        reader = StatementReader(self._handle.spark)
        return [found for text in texts for found in split(text, reader.is_in_grammar)]

    def each(self, statements: Sequence[str]) -> None:
        """Run one after the other, until one fails; a transaction that is open then is rolled back.

        Raises
        ------
        TransactionAborted
            A transaction was open at the end.
        """
        for number, statement in enumerate(statements, 1):
            try:
                self._run(statement)
            except BaseException as error:
                left_open = self._roll_back(error)
                if len(statements) > 1:
                    error.add_note(_place(number, len(statements), left_open))
                raise
        if (left_open := self._roll_back()) is not None:
            raise TransactionAborted(
                f"Transaction {left_open} was still open at the end of the statements, and was rolled back: nothing of "
                "it was published.",
                transaction_id=left_open,
                hint="End it with COMMIT.",
            )

    def together(self, statements: Sequence[str], **terms: Any) -> None:
        """Run all in one transaction.

        Parameters
        ----------
        statements : sequence of str
        **terms
            As for :func:`twophase.transaction`.
        """
        from twophase.spark.attach import transaction

        with self._noting_failed() as made, transaction(self._handle.spark, **terms):
            answers = [self._execute(statement) for statement in statements]
        self._print(answers, made)

    def _run(self, statement: str) -> None:
        with self._noting_failed() as made:
            answer = self._execute(statement)
        self._print([answer], made)

    def _execute(self, statement: str) -> Answer:
        frame = self._handle.spark.sql(statement)
        # The command line shows rows to a person, and no more of them than asked for.
        return frame.columns, [tuple(row) for row in frame.limit(self._limit).collect()] if frame.columns else []

    def _print(self, answers: Sequence[Answer], made: Callable[[], list[TransactionRecord]]) -> None:
        records: list[TransactionRecord] = []
        try:
            records = made()
        except TimelineError as error:
            error.add_note("What was to be run had ended well before this; only its transactions cannot be listed.")
            raise
        finally:
            self._out.statements(answers, records)

    def _open(self) -> OpenTransaction | None:
        return open_here(self._handle.session)

    def _roll_back(self, error: BaseException | None = None) -> str | None:
        """Roll back the transaction that is open, if any, and return its id; its record is one of those that failed."""
        begun = self._open()
        if begun is None:
            return None
        begun.abort(error)
        with suppress(TimelineError):
            if (record := self._handle.timeline.transaction(begun.id)) is not None:
                self._failed.append(record)
        return str(begun.id)

    @contextmanager
    def _noting_failed(self) -> Iterator[Callable[[], list[TransactionRecord]]]:
        """Yield a function that lists the transactions that have ended since, the oldest first.

        On failure they are noted.
        """
        line, name, begun = self._handle.timeline, self._handle.coordinator.name, self._open()
        before = {record.id for record in line.transactions(coordinator=name, limit=100)}

        def made() -> list[TransactionRecord]:
            limit, found = 100, line.transactions(coordinator=name, limit=100)
            while len(found) == limit and not any(record.id in before for record in found):
                limit *= 10
                found = line.transactions(coordinator=name, limit=limit)
            new = takewhile(lambda record: record.id not in before, found)
            made_here = [record for record in new if record.owner.pid == os.getpid()][::-1]
            return _with_ended(made_here, begun, self._open(), line)

        try:
            yield made
        except BaseException:
            with suppress(Exception):  # The statement's own error is the one to report.
                self._failed.extend(made())
            raise


def _with_ended(
    made: list[TransactionRecord], before: OpenTransaction | None, now: OpenTransaction | None, line: Any
) -> list[TransactionRecord]:
    """The transactions that a statement has made or ended: not one that is still open."""
    ended = [record for record in made if now is None or record.id != now.id]
    if before is not None and before is not now and before.id not in {record.id for record in ended}:
        record = line.transaction(before.id)
        ended += [] if record is None else [record]
    return ended


def _place(number: int, count: int, left_open: str | None) -> str:
    before = "" if number == 1 else " What those before it did stays."
    if left_open is not None:
        before = f" Transaction {left_open}, which was open, was rolled back; what had been committed before it stays."
    after = "" if number == count else " Those after it were not run."
    return f"This was statement {number} of {count}.{before}{after}"
