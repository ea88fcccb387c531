"""Inside a transaction: ``SHOW TABLES`` lists the tables that it makes, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twophase.spark.routing.rewrite import Untellable
from twophase.spark.routing.tokens import leading_words, name_at, splice, tokens

#: The database (None: the current one) as a twophase catalog has it, and the tables that are staged in it.
Find = Callable[[tuple[str, ...] | None], tuple[str, set[str]]]


def is_listing(text: str) -> bool:
    """Whether it is a ``SHOW TABLES`` or ``SHOW TABLE EXTENDED``."""
    return leading_words(text, 2) in (("SHOW", "TABLES"), ("SHOW", "TABLE"))


def show_tables(run: Callable[[str], Any], text: str, find: Find) -> Any:
    """Run a listing; behind what Spark tells stand the tables that the transaction makes.

    Parameters
    ----------
    run : callable
        Runs a text.
    text : str
    find : callable

    Raises
    ------
    Untellable
        It would describe a staged table as it was before.
    """
    stream = list(tokens(text))
    at = 3 if stream[1].is_word("TABLE") else 2
    place = name_at(stream, at + 1) if len(stream) > at + 1 and stream[at].is_word("IN", "FROM") else None
    if place is not None and place.names is None:
        return run(text)
    database, names = find(place.names if place else None)
    if names and stream[1].is_word("TABLE"):
        problem = "it would tell of the database's tables without what this transaction has written"
        raise Untellable(problem, hint="Ask SHOW TABLES and DESCRIBE TABLE")
    told = run(text)
    if not names:
        return told
    span = (place.start, place.stop, database) if place else (stream[1].stop, stream[1].stop, f" IN {database}")
    listed = run(splice(text, [span]))
    known = {row.tableName.lower() for row in told.collect() if not row.isTemporary}
    return told.union(listed.where(listed.tableName.isin(names - known)))
