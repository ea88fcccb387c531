"""The running statements of ``spark.sql``, for callbacks of Spark to find."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import functions

from twophase.catalogs.hive.layout import HIDDEN_PREFIX
from twophase.spark.afterwards import afterwards
from twophase.spark.attached import AttachedSession
from twophase.spark.blocks import WriteGroup
from twophase.spark.jvm import local_properties
from twophase.spark.jvm.local_properties import STATEMENT


@dataclass(frozen=True)
class Listing:
    """The tables of a ``SHOW TABLES`` inside a transaction, with those that it creates, without those that it drops.

    Attributes
    ----------
    database : str
        The database's full name in the twophase catalog, quoted.
    staged : set of str
        The tables in it that the transaction writes or drops, in lower case.
    pattern : str or None
    dropped : set of str
        Those that it drops.
    """

    database: str
    staged: set[str]
    pattern: str | None
    dropped: set[str] = field(default_factory=set)

    def complete(self, spark: Any, listed: Any) -> Any:
        """Spark's own list without hidden and dropped tables, followed by those that the transaction creates."""
        like = " LIKE '" + self.pattern.replace("\\", "\\\\").replace("'", "\\'") + "'" if self.pattern else ""
        ours = spark.sql(f"SHOW TABLES IN {self.database}{like}")
        name = functions.lower(listed.tableName)
        listed = listed.where(listed.isTemporary | ~(name.isin(self.dropped) | name.startswith(HIDDEN_PREFIX)))
        known = {row.tableName.lower() for row in listed.collect() if not row.isTemporary}
        return listed.union(ours.where(ours.tableName.isin(self.staged - known)))


@dataclass
class RunningStatement:
    """A running statement, and what callbacks find out about it.

    Attributes
    ----------
    session : AttachedSession
    group : WriteGroup or None
        Set if it may write several tables.
    listing : Listing or None
        Set for a ``SHOW TABLES``.
    """

    session: AttachedSession
    group: WriteGroup | None = None
    listing: Listing | None = None

    def completed(self, spark: Any, listed: Any) -> Any:
        """Spark's own list, followed by the tables that the transaction creates."""
        return self.listing.complete(spark, listed) if self.listing else listed


_statements: dict[str, RunningStatement] = {}


@contextmanager
def running_statement(session: AttachedSession) -> Iterator[RunningStatement]:
    """Register a statement that callbacks can find: Spark's thread carries its token."""
    context, token = session.spark.sparkContext, secrets.token_hex(8)
    statement = _statements[token] = RunningStatement(session)
    try:
        with afterwards(lambda: local_properties.put(context, STATEMENT, None)):
            local_properties.put(context, STATEMENT, token)
            yield statement
    finally:
        del _statements[token]


def running(session: AttachedSession) -> RunningStatement | None:
    """The ``spark.sql`` statement that the JVM thread of a callback runs, if any."""
    if not any(statement.session is session for statement in list(_statements.values())):
        return None
    found = _statements.get(local_properties.get(session.spark.sparkContext, STATEMENT) or "")
    return found if found is not None and found.session is session else None
