"""Dependent objects of the old table in a replace: carried over, before and inside the publish, or reported lost."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa

from twophase.catalogs.jdbc import defaults
from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.dependents import Preserver
from twophase.catalogs.jdbc.dependents_generic import GenericPreserver
from twophase.catalogs.jdbc.dependents_mysql import MySQLPreserver
from twophase.catalogs.jdbc.dependents_postgresql import PostgreSQLPreserver
from twophase.catalogs.jdbc.dependents_sqlite import SQLitePreserver
from twophase.catalogs.jdbc.member import Member
from twophase.errors import CatalogError
from twophase.model import ObjectPath
from twophase.redaction import logger

_log = logger("twophase")
_KINDS: dict[str, Callable[..., Preserver]] = {
    "PostgreSQL": PostgreSQLPreserver,
    "SQLite": SQLitePreserver,
    "MariaDB/MySQL": MySQLPreserver,
}


def preserver(
    connection: sa.Connection, database: Database, old: ObjectPath, staging: ObjectPath, names: frozenset[str]
) -> Preserver:
    """Make the preserver of a table's dependent objects for the kind of database."""
    return _KINDS.get(database.title, GenericPreserver)(connection, database, old, staging, names)


def _of(member: Member, connection: sa.Connection, table: ObjectPath | None = None) -> Preserver:
    same = frozenset(member.document.get("same", ()))
    work = preserver(connection, member.store.database, table or member.path, member.place.staging, same)
    if "definition" in member.document:  # Not of a DROP.
        work.redefaulted = defaults.redefaulted(member.definition)
    return work


def with_attributes(member: Member, connection: sa.Connection) -> list[tuple[str, str]]:
    """The columns of the staging table; unchanged columns keep their collations and defaults."""
    clauses = [(str(name), str(clause)) for name, clause in member.document["clauses"]]
    if not member.preserves:
        return clauses
    kept = _of(member, connection).attributes()
    return [(name, f"{clause} {kept[name]}" if name in kept else clause) for name, clause in clauses]


def prepare(member: Member) -> None:
    """Carry over what can be carried over before the publish, and record what is lost."""
    with member.store.begin(member.home, path=member.path, transaction_id=member.transaction_id) as connection:
        work = _of(member, connection)
        work.prepare()
    member.document["lost"] = work.lost
    if work.lost:
        _log.warning("Replacing %s in %s does not keep: %s", member.path, member.transaction_id, "; ".join(work.lost))


def check_alone(member: Member, connection: sa.Connection) -> Preserver:
    """Refuse the replace if the table got dependent objects, which would be lost, after the statement was planned.

    Raises
    ------
    WriteConflictError
    """
    work = _of(member, connection)
    if found := work.dependents():
        raise member.conflict(f"meanwhile it was given what a new table would not have: {', '.join(found)}")
    return work


def check_unreferred(member: Member, connection: sa.Connection, table: ObjectPath) -> None:
    """Refuse to drop a table to which others refer, by the name that it has before the publish.

    Raises
    ------
    CatalogError
    """
    if found := _of(member, connection, table).referring():
        raise CatalogError(
            f"{member.path} was not dropped: {', '.join(found)} refers to it.",
            path=member.path,
            transaction_id=member.transaction_id,
            hint="Drop that first.",
        )


def swap(member: Member, connection: sa.Connection, exchange: Callable[[], None]) -> None:
    """Drop the old table and rename the new one by ``exchange``; carry over what belongs to the name."""
    work, known = check_alone(member, connection), member.document.get("lost", ())
    work.lost.extend(known)
    work.before_drop()
    exchange()
    work.after_rename()
    member.document["lost"] = list(work.lost)
    if lost := work.lost[len(known) :]:
        _log.warning("Replacing %s in %s does not keep: %s", member.path, member.transaction_id, "; ".join(lost))
