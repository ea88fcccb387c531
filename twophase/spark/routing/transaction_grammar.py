"""The grammar of the statements about transactions, none of which Spark's parser knows.

``BEGIN`` alone begins one of Spark's scripts, and is left to Spark, as is whatever only begins like one of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from twophase.model import Isolation
from twophase.spark.routing.statement_parser import StatementParser
from twophase.spark.routing.tokens import Kind, Token, place_of, tokens

#: First words of statements that are always ours, and first two words of those that may be.
_FIRST = frozenset(("COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE"))
_FIRST_TWO = frozenset(
    (
        ("BEGIN", "TRANSACTION"),
        ("BEGIN", "WORK"),
        ("BEGIN", "ATOMIC"),
        ("START", "TRANSACTION"),
        ("LOCK", "TABLE"),
        ("SET", "TRANSACTION"),
        ("SHOW", "TRANSACTIONS"),
        ("SHOW", "LOCKS"),
        ("SHOW", "SAVEPOINTS"),
        ("CREATE", "SAVEPOINT"),
        ("DROP", "SAVEPOINT"),
        ("RESTORE", "TO"),
        ("RESTORE", "TABLE"),
        ("RESTORE", "DATABASE"),
        ("RESTORE", "SCHEMA"),
    )
)
#: What follows ``SET TRANSACTION`` if that is the name of one of Spark's settings.
_OF_A_SETTING = frozenset(("=", ".", "-", ":", ";", ""))

_TERMS = (
    "[READ ONLY | READ WRITE] [ISOLATION LEVEL {READ COMMITTED | SNAPSHOT | SERIALIZABLE}] "
    "[ON CONFLICT {FIRST COMMITTER WINS | WAIT DIE | WOUND WAIT | FAIL}] [WAIT n SECONDS]"
)
_SYNTAX = {
    "BEGIN": f"{{BEGIN | START}} TRANSACTION {_TERMS}",
    "START": f"{{BEGIN | START}} TRANSACTION {_TERMS}",
    "COMMIT": "COMMIT [WORK | TRANSACTION]",
    "ROLLBACK": "ROLLBACK [WORK | TRANSACTION] [TO [SAVEPOINT] name]",
    "SAVEPOINT": "SAVEPOINT name",
    "RELEASE": "RELEASE [SAVEPOINT] name",
    "LOCK": "LOCK TABLE name [, ...] [IN {APPEND | WRITE} MODE] [NOWAIT]",
    "SET": f"SET TRANSACTION {_TERMS}",
    "SHOW": "SHOW {TRANSACTIONS | LOCKS | SAVEPOINTS}",
    "CREATE": "CREATE SAVEPOINT name FOR {DATABASE | TABLE} name [, [DATABASE | TABLE] name ...] "
    "[KEEP n {SECONDS | MINUTES | HOURS | DAYS | WEEKS}] [WITH COPIES]",
    "RESTORE": "RESTORE [{TABLE | DATABASE} name [, ...]] TO SAVEPOINT name [KEEP NEW TABLES]",
    "DROP": "DROP SAVEPOINT name",
}


@dataclass(frozen=True)
class Characteristics:
    """The characteristics that a statement gives a transaction; None: it does not say.

    Attributes
    ----------
    read_only : bool or None
    isolation : Isolation or None
    conflict : str or None
        The name of a conflict policy.
    wait : float or None
        Seconds.
    """

    read_only: bool | None = None
    isolation: Isolation | None = None
    conflict: str | None = None
    wait: float | None = None


@dataclass(frozen=True)
class Begin:
    """``BEGIN TRANSACTION``."""

    terms: Characteristics


@dataclass(frozen=True)
class BeginAtomic:
    """``BEGIN ATOMIC ... END``.

    Attributes
    ----------
    script : str
        The script as Spark knows it: the word is replaced by spaces, so that all positions stay.
    """

    script: str


@dataclass(frozen=True)
class Commit:
    """``COMMIT``."""


@dataclass(frozen=True)
class Rollback:
    """``ROLLBACK``.

    Attributes
    ----------
    savepoint : str or None
        Where it goes back to; None to the beginning.
    """

    savepoint: str | None = None


@dataclass(frozen=True)
class Savepoint:
    """``SAVEPOINT``."""

    name: str


@dataclass(frozen=True)
class Release:
    """``RELEASE SAVEPOINT``."""

    name: str


@dataclass(frozen=True)
class LockTable:
    """``LOCK TABLE``.

    Attributes
    ----------
    names : tuple of str
        As written.
    mode : str
        ``write`` or ``append``.
    nowait : bool
    """

    names: tuple[str, ...]
    mode: str = "write"
    nowait: bool = False


@dataclass(frozen=True)
class SetTransaction:
    """``SET TRANSACTION``."""

    terms: Characteristics


@dataclass(frozen=True)
class CreateSavepoint:
    """``CREATE SAVEPOINT``.

    Attributes
    ----------
    name : str
    databases, tables : tuple of str
        As written.
    keep_seconds : float or None
    copies : bool
    """

    name: str
    databases: tuple[str, ...] = ()
    tables: tuple[str, ...] = ()
    keep_seconds: float | None = None
    copies: bool = False


@dataclass(frozen=True)
class Restore:
    """``RESTORE ... TO SAVEPOINT``.

    Attributes
    ----------
    name : str
    databases, tables : tuple of str or None
        As written; None: everything.
    keep_new : bool
    """

    name: str
    databases: tuple[str, ...] | None = None
    tables: tuple[str, ...] | None = None
    keep_new: bool = False


@dataclass(frozen=True)
class DropSavepoint:
    """``DROP SAVEPOINT``."""

    name: str


@dataclass(frozen=True)
class Show:
    """``SHOW TRANSACTIONS``, ``SHOW LOCKS`` or ``SHOW SAVEPOINTS``."""

    what: str


TransactionStatement: TypeAlias = (
    Begin
    | BeginAtomic
    | Commit
    | Rollback
    | Savepoint
    | Release
    | LockTable
    | SetTransaction
    | Show
    | CreateSavepoint
    | Restore
    | DropSavepoint
)


def may_be_ours(words: tuple[str, ...]) -> bool:
    """Return whether a statement with these first two words, in upper case, may be about transactions."""
    return words in _FIRST_TWO or (bool(words) and words[0] in _FIRST)


def transaction_statement(text: str) -> TransactionStatement | None:
    """Parse a statement about transactions; None if it is another one.

    Raises
    ------
    TransactionStatementError
        It begins like one, and is none: the error says where, and what is allowed.
    """
    stream = tokens(text)
    first = next(stream, None)
    second = next(stream, None)
    words = tuple(token.word for token in (first, second) if token is not None)
    if first is None or not may_be_ours(words):
        return None
    rest = list(stream)
    follows = rest[0].word if rest else ""
    if (words[0] == "BEGIN" and follows == ":") or (words[0] == "SET" and follows in _OF_A_SETTING):
        return None  # A label of a script; a setting.
    if words[0] == "RESTORE" and not _names_savepoint([second, *rest]):
        return None  # Of a table format.
    if words == ("BEGIN", "ATOMIC") and second is not None:
        return BeginAtomic(text[: second.start] + " " * len("ATOMIC") + text[second.end :])
    parser = StatementParser(
        text, words[0], _SYNTAX[words[0]], [second, *rest] if words[0] in _FIRST and second is not None else rest
    )
    statement = _RULES[words[0]](parser, words)
    parser.end()
    return statement


def _names_savepoint(found: Sequence[Token | None]) -> bool:
    words = [token.word for token in found if token is not None]
    return ("TO", "SAVEPOINT") in pairwise(words)


def begins_script(words: Sequence[str]) -> bool:
    """Return whether a statement that begins with these words, in upper case, is a script, with semicolons inside."""
    if list(words[:1]) != ["BEGIN"] or len(words) == 1:
        return False
    return words[1] not in ("TRANSACTION", "WORK") or list(words[2:3]) == [":"]


def _characteristics(parser: StatementParser) -> Characteristics:
    """Read the characteristics of a transaction, each at most once, in any order."""
    said: dict[str, Any] = {}
    while True:
        token = parser.next
        word = token.word if token is not None else ""
        if word not in _CLAUSES:
            return Characteristics(**said)
        name, read = _CLAUSES[word]
        if name in said:
            raise parser.unexpected("each of READ, ISOLATION LEVEL, ON CONFLICT and WAIT at most once")
        parser.take()
        said[name] = read(parser)
        parser.accepts(",")


def _read_only(parser: StatementParser) -> bool:
    return parser.choice("ONLY", "WRITE") == "ONLY"


def _isolation(parser: StatementParser) -> Isolation:
    parser.expect("LEVEL")
    return Isolation(_joined(parser.choice("READ COMMITTED", "SNAPSHOT", "SERIALIZABLE")))


def _conflict(parser: StatementParser) -> str:
    parser.expect("CONFLICT")
    return _joined(parser.choice("FIRST COMMITTER WINS", "WAIT DIE", "WOUND WAIT", "FAIL"))


def _joined(phrase: str) -> str:
    return phrase.lower().replace(" ", "_")


def _wait(parser: StatementParser) -> float:
    seconds = parser.seconds()
    parser.choice("SECONDS", "SECOND")
    return seconds


_CLAUSES: dict[str, tuple[str, Callable[[StatementParser], object]]] = {
    "READ": ("read_only", _read_only),
    "ISOLATION": ("isolation", _isolation),
    "ON": ("conflict", _conflict),
    "WAIT": ("wait", _wait),
}


def _begin(parser: StatementParser, _words: tuple[str, ...]) -> Begin:
    terms = _characteristics(parser)
    parser.end("READ", "ISOLATION LEVEL", "ON CONFLICT", "WAIT")
    return Begin(terms)


def _set_transaction(parser: StatementParser, _words: tuple[str, ...]) -> SetTransaction:
    terms = _characteristics(parser)
    parser.end("READ", "ISOLATION LEVEL", "ON CONFLICT", "WAIT")
    return SetTransaction(terms)


def _commit(parser: StatementParser, _words: tuple[str, ...]) -> Commit:
    if not (parser.accepts("WORK") or parser.accepts("TRANSACTION")):
        parser.end("WORK", "TRANSACTION")
    return Commit()


def _rollback(parser: StatementParser, _words: tuple[str, ...]) -> Rollback:
    named = parser.accepts("WORK") or parser.accepts("TRANSACTION")
    if not parser.accepts("TO"):
        parser.end(*(() if named else ("WORK", "TRANSACTION")), "TO")
        return Rollback()
    parser.accepts("SAVEPOINT")
    return Rollback(parser.name("savepoint"))


def _savepoint(parser: StatementParser, _words: tuple[str, ...]) -> Savepoint:
    return Savepoint(parser.name("savepoint"))


def _release(parser: StatementParser, _words: tuple[str, ...]) -> Release:
    parser.accepts("SAVEPOINT")
    return Release(parser.name("savepoint"))


def _lock(parser: StatementParser, _words: tuple[str, ...]) -> LockTable:
    names = [parser.table()]
    while parser.accepts(","):
        names.append(parser.table())
    mode = "write"
    if parser.accepts("IN"):
        mode = parser.choice("APPEND", "WRITE").lower()
        parser.expect("MODE")
    nowait = parser.accepts("NOWAIT")
    if not nowait:
        parser.end(".", ",", "IN", "NOWAIT")
    return LockTable(tuple(names), mode, nowait)


def _show(_parser: StatementParser, words: tuple[str, ...]) -> Show:
    return Show(words[1])


def _create_savepoint(parser: StatementParser, _words: tuple[str, ...]) -> CreateSavepoint:
    name = parser.name("savepoint")
    parser.expect("FOR")
    databases, tables = _objects(parser, parser.choice("DATABASE", "SCHEMA", "TABLE"))
    keep = _keep(parser) if parser.accepts("KEEP") else None
    copies = parser.accepts("WITH", "COPIES")
    if not copies:
        parser.end(".", ",", *(() if keep else ("KEEP",)), "WITH COPIES")
    return CreateSavepoint(name, databases, tables, keep, copies)


def _objects(parser: StatementParser, kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Read databases and tables; one without a word is of the kind of the one before it."""
    found: list[tuple[bool, str]] = []
    while True:
        is_table = kind == "TABLE"
        found.append((is_table, parser.table("table" if is_table else "database")))
        if not parser.accepts(","):
            databases = tuple(name for is_table, name in found if not is_table)
            return databases, tuple(name for is_table, name in found if is_table)
        kind = next((word for word in ("DATABASE", "SCHEMA", "TABLE") if parser.accepts(word)), kind)


_UNITS = {"SECOND": 1.0, "MINUTE": 60.0, "HOUR": 3600.0, "DAY": 86_400.0, "WEEK": 604_800.0}


def _keep(parser: StatementParser) -> float:
    token = parser.next
    if token is None or token.kind is not Kind.NUMBER:
        raise parser.unexpected("a number of days")
    number = float(parser.take().text)
    return number * _UNITS[parser.choice(*(f"{unit}S" for unit in _UNITS), *_UNITS).removesuffix("S")]


def _restore(parser: StatementParser, words: tuple[str, ...]) -> Restore:
    databases, tables = (None, None) if words[1] == "TO" else _objects(parser, words[1])
    if words[1] != "TO":
        parser.expect("TO")
    parser.expect("SAVEPOINT")
    name = parser.name("savepoint")
    keep_new = parser.accepts("KEEP", "NEW", "TABLES")
    if not keep_new:
        parser.end("KEEP NEW TABLES")
    return Restore(name, databases, tables, keep_new)


def _drop_savepoint(parser: StatementParser, _words: tuple[str, ...]) -> DropSavepoint:
    return DropSavepoint(parser.name("savepoint"))


_RULES: dict[str, Callable[[StatementParser, tuple[str, ...]], TransactionStatement]] = {
    "BEGIN": _begin,
    "START": _begin,
    "COMMIT": _commit,
    "ROLLBACK": _rollback,
    "SAVEPOINT": _savepoint,
    "RELEASE": _release,
    "LOCK": _lock,
    "SET": _set_transaction,
    "SHOW": _show,
    "CREATE": _create_savepoint,
    "RESTORE": _restore,
    "DROP": _drop_savepoint,
}

#: Behind these a statement of a script begins.
_BEFORE_STATEMENTS = frozenset((";", "BEGIN", "ATOMIC", "THEN", "ELSE", "DO", "LOOP", "REPEAT", ":"))

_BEHIND_VALUES = frozenset(("WHEN", "ELSE", "END", ".", "(", "+", "-", "*", "/", "=", "<", ">"))


def statements_within(script: str) -> Iterator[str]:
    """The words with which statements about transactions begin inside a script, where they are not allowed."""
    found = list(tokens(script))
    following = [*found[2:], None, None]
    for before, token, after, further in zip(found, found[1:], following, following[1:], strict=False):
        words = (token.word,) if after is None else (token.word, after.word)
        is_value = before.word in ("THEN", "ELSE") and words[-1] in _BEHIND_VALUES  # of a CASE
        is_setting = words == ("SET", "TRANSACTION") and further is not None and further.word in _OF_A_SETTING
        if before.word in _BEFORE_STATEMENTS and may_be_ours(words) and words[1:] != (":",):
            if is_value or is_setting:
                continue
            phrase = words[0] if words[0] in _FIRST else " ".join(words)
            yield f"{phrase} ({place_of(script, token.start)})"
