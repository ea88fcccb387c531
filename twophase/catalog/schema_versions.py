"""Versions of a table's schema, as far as its store knows them."""

from __future__ import annotations

from dataclasses import dataclass

from twophase.schema import Schema


@dataclass(frozen=True)
class SchemaVersion:
    """One version of a table's schema; what is not known is None.

    Attributes
    ----------
    schema : Schema
        With the ids of its fields; ``schema.schema_id`` is the number of the version.
    since : float or None
        When it became the table's, in seconds since the epoch.
    commit : str or None
        The first commit that wrote with it, in the store's own terms: of an Iceberg table, a snapshot.
    transaction_id : str or None
        The transaction of twophase that made this commit.
    is_current : bool
    """

    schema: Schema
    since: float | None = None
    commit: str | None = None
    transaction_id: str | None = None
    is_current: bool = False
