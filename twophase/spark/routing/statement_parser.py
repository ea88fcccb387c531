"""A parser of the statements that Spark's own does not know, by their tokens."""

from __future__ import annotations

from collections.abc import Callable

from twophase.errors import TransactionStatementError, TwoPhaseError
from twophase.spark.routing.tokens import Kind, Token, place_of


class StatementParser:
    """Reads the tokens behind the first words of a statement.

    Parameters
    ----------
    text : str
        The statement.
    first : str
        Its first words, for errors.
    syntax : str
        How it is written, for errors.
    rest : list of Token
        The tokens behind its first words.
    error : callable, optional
        The class of its errors.
    """

    def __init__(
        self,
        text: str,
        first: str,
        syntax: str,
        rest: list[Token],
        error: Callable[..., TwoPhaseError] = TransactionStatementError,
    ) -> None:
        self._text, self._first, self._syntax, self._rest = text, first, syntax, rest
        self._error = error
        self._position = 0

    @property
    def next(self) -> Token | None:
        return self._rest[self._position] if self._position < len(self._rest) else None

    def take(self) -> Token:
        token = self._rest[self._position]
        self._position += 1
        return token

    def accepts(self, *words: str) -> bool:
        """Take these words if they are the next ones."""
        following = self._rest[self._position : self._position + len(words)]
        if tuple(token.word for token in following) != words:
            return False
        self._position += len(words)
        return True

    def choice(self, *phrases: str) -> str:
        """Take one of several phrases."""
        for phrase in phrases:
            if self.accepts(*phrase.split()):
                return phrase
        # The first word that fits none: of READ COMITTED it is the second one.
        begun = [phrase.split() for phrase in phrases]
        while self.next is not None and (fitting := [p for p in begun if len(p) > 1 and p[0] == self.next.word]):
            begun = [p[1:] for p in fitting]
            self.take()
        raise self.unexpected(*(" ".join(p) for p in begun))

    def expect(self, *words: str) -> None:
        for word in words:
            if not self.accepts(word):
                raise self.unexpected(word)

    def end(self, *allowed: str) -> None:
        """Take semicolons, behind which nothing may follow."""
        while self.accepts(";"):
            allowed = ()
        if self.next is not None:
            raise self.unexpected(*allowed, "the end of the statement")

    def unexpected(self, *allowed: str) -> TwoPhaseError:
        token = self.next
        position = len(self._text.rstrip()) if token is None else token.start
        found = "the end of the statement" if token is None else token.text[:40]
        problem = f"{self._first} is followed by {found} where {_or(allowed)} is expected"
        if token is not None and (token.word in ("?", ":") or token.text == "{"):
            problem = f"{self._first} takes no parameters"
        return self._error(
            f"{problem} ({place_of(self._text, position)}): nothing was started.",
            hint=f"Its syntax is: {self._syntax}",
        )

    def name(self, what: str) -> str:
        """Take a name: a word, or anything in backquotes."""
        token = self.next
        if token is None or token.kind not in (Kind.WORD, Kind.NAME) or token.text == "``":
            raise self.unexpected(f"the name of a {what}")
        self.take()
        return token.text[1:-1].replace("``", "`") if token.kind is Kind.NAME else token.text

    def table(self, what: str = "table") -> str:
        """Take the name of a table or database, of one or several parts, and return it as written."""
        token = self.next
        self.name(what)
        end = self._rest[self._position - 1].end
        while self.accepts("."):
            self.name(what)
            end = self._rest[self._position - 1].end
        assert token is not None
        return self._text[token.start : end]

    def seconds(self) -> float:
        token = self.next
        if token is None or token.kind is not Kind.NUMBER:
            raise self.unexpected("a number of seconds")
        return float(self.take().text)


def _or(allowed: tuple[str, ...]) -> str:
    return allowed[0] if len(allowed) == 1 else f"{', '.join(allowed[:-1])} or {allowed[-1]}"
