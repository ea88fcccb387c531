"""The grammar of the changes of ``ALTER TABLE`` that Spark does not parse.

``ADD``, ``DROP`` and ``REPLACE PARTITION FIELD`` are the words of Iceberg's own extension of Spark's SQL.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from twophase.catalog import TableChange
from twophase.errors import CatalogError
from twophase.model import Transform
from twophase.spark.routing.statement_parser import StatementParser
from twophase.spark.routing.tokens import Kind, Token, tokens

_SYNTAX = (
    "ALTER TABLE name {ADD PARTITION FIELD transform [AS name] | DROP PARTITION FIELD {name | transform} | "
    "REPLACE PARTITION FIELD {name | transform} WITH transform [AS name]}, where a transform is a column, "
    "bucket(n, column), truncate(n, column), years(column), months(column), days(column) or hours(column)"
)
_VERBS = ("ADD", "DROP", "REPLACE")
#: More tokens than any name and the three words behind it have; a statement may be long.
_FIRST = 64


@dataclass(frozen=True)
class AlterTable:
    """An ``ALTER TABLE`` with one such change.

    Attributes
    ----------
    table : str
        As written.
    change : TableChange
    """

    table: str
    change: TableChange


def alter_table(text: str) -> AlterTable | None:
    """Parse a statement that begins with ``ALTER TABLE``; None if its change is another one.

    Raises
    ------
    CatalogError
        It changes a partition field, and is misspelled behind these words.
    """
    stream = tokens(text)
    rest = list(islice(stream, 2, 2 + _FIRST))
    behind = 1
    while behind < len(rest) and rest[behind].word == ".":
        behind += 2
    verb, *following = [token.word for token in rest[behind : behind + 3]] or [""]
    if verb not in _VERBS or following != ["PARTITION", "FIELD"]:
        return None
    parser = StatementParser(text, f"ALTER TABLE ... {verb}", _SYNTAX, [*rest, *stream], CatalogError)
    table = parser.table()
    parser.expect(verb, "PARTITION", "FIELD")
    return AlterTable(table, _change(parser, verb))


def _change(parser: StatementParser, verb: str) -> TableChange:
    first = _transform(parser)
    if verb == "DROP":
        parser.end()
        return TableChange("drop_partition_field", (), {"old": first})
    facts: dict[str, object] = {"new": first}
    if verb == "REPLACE":
        parser.expect("WITH")
        facts = {"old": first, "new": _transform(parser)}
    named = parser.accepts("AS")
    facts["name"] = parser.name("partition field") if named else None
    parser.end(*(() if named else ("AS",)))
    return TableChange(f"{verb.lower()}_partition_field", (), facts)


def _transform(parser: StatementParser) -> Transform:
    name = ".".join(_path(parser))
    if not parser.accepts("("):
        return Transform.identity(name)
    columns: list[str] = []
    numbers: list[int] = []
    while True:
        token = parser.next
        if token is not None and _is_whole(token):
            numbers.append(int(parser.take().text))
        else:
            columns.append(".".join(_path(parser)))
        if not parser.accepts(","):
            break
    parser.expect(")")
    return Transform(name.lower(), tuple(columns), tuple(numbers))


def _is_whole(token: Token) -> bool:
    return token.kind is Kind.NUMBER and token.text.isdigit()


def _path(parser: StatementParser) -> tuple[str, ...]:
    parts = [parser.name("column or transform")]
    while parser.accepts("."):
        parts.append(parser.name("column or transform"))
    return tuple(parts)
