"""What a replace keeps of the old table: grants, indexes, constraints, comments, collations, defaults, sequences.

Comments, collations and defaults go into the new table when it is made, indexes when it is filled, and the rest inside
the publish. What cannot be kept is named: in the log, and under ``lost`` in the participant's document.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.database import Database, Table
from twophase.redaction import logger

if TYPE_CHECKING:
    from twophase.catalogs.jdbc.participant import JdbcParticipant

_log = logger("twophase")


class Keeper(ABC):
    """Carries over what belongs to one table.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    database : Database
    old, staging : Table
    columns : set of str
        Names of the new table's columns that the old one had, with the same type.
    """

    def __init__(
        self, connection: sa.Connection, database: Database, old: Table, staging: Table, columns: frozenset[str]
    ) -> None:
        self.connection = connection
        self.database = database
        self.old = old
        self.staging = staging
        self.columns = columns
        self.lost: list[str] = []

    @abstractmethod
    def attributes(self) -> dict[str, str]:
        """SQL that follows a column's type: its collation and its default, where it has them."""

    @abstractmethod
    def prepare(self) -> None:
        """Carry over what can be done before the publish."""

    def before_drop(self) -> None:
        """Inside the publish, while the old table is there."""

    def after_rename(self) -> None:
        """Inside the publish, when the new table has its name."""

    @abstractmethod
    def dependents(self) -> list[str]:
        """What would break if the table were another one: ``view a``, ``foreign key b of c``."""

    # -- helpers -------------------------------------------------------------------------------------------------

    def attempt(self, what: str, *statements: str) -> None:
        """Run statements; where they fail, ``what`` is lost and nothing of them stays."""
        try:
            with self.connection.begin_nested():
                for statement in statements:
                    self.database.run(self.connection, statement)
        except DBAPIError as error:
            self.lose(what, errors.reason(error, self.database.settings))

    def lose(self, what: str, why: str) -> None:
        """Name what could not be kept."""
        self.lost.append(f"{what} ({why})")

    def survive(self, columns: list[str], what: str) -> bool:
        """Whether all these columns are in the new table; else ``what`` is lost."""
        missing = [name for name in columns if name not in self.columns]
        if missing:
            self.lose(what, f"column {missing[0]} is gone or has another type")
        return not missing

    def rows(self, sql: str, **values: object) -> list[tuple[object, ...]]:
        """Rows of the database's own catalog."""
        return [tuple(row) for row in self.connection.execute(sa.text(sql), values)]


def keeper(connection: sa.Connection, database: Database, old: Table, staging: Table, names: frozenset[str]) -> Keeper:
    """The keeper for a kind of database."""
    from twophase.catalogs.jdbc.keeping_generic import GenericKeeper
    from twophase.catalogs.jdbc.keeping_mysql import MySQLKeeper
    from twophase.catalogs.jdbc.keeping_postgresql import PostgreSQLKeeper
    from twophase.catalogs.jdbc.keeping_sqlite import SQLiteKeeper

    kinds: dict[str, Callable[..., Keeper]] = {
        "PostgreSQL": PostgreSQLKeeper,
        "SQLite": SQLiteKeeper,
        "MariaDB/MySQL": MySQLKeeper,
    }
    return kinds.get(database.title, GenericKeeper)(connection, database, old, staging, names)


def _of(member: JdbcParticipant, connection: sa.Connection) -> Keeper:
    database = member.store.database
    return keeper(connection, database, member.target, member.place.staging, frozenset(member.document.get("same", ())))


def with_attributes(member: JdbcParticipant, connection: sa.Connection) -> list[tuple[str, str]]:
    """The columns of the staging table; those that stay as they are have their collations and defaults."""
    clauses = [(str(name), str(clause)) for name, clause in member.document["clauses"]]
    if member.effect != "replace":
        return clauses
    kept = _of(member, connection).attributes()
    return [(name, f"{clause} {kept[name]}" if name in kept else clause) for name, clause in clauses]


def prepare(member: JdbcParticipant) -> None:
    """Carry over what can be done before the publish, and note what is lost."""
    with member.store.begin(member.home, path=member.path, transaction_id=member.transaction_id) as connection:
        work = _of(member, connection)
        work.prepare()
    member.document["lost"] = work.lost
    if work.lost:
        _log.warning("Replacing %s in %s does not keep: %s", member.path, member.transaction_id, "; ".join(work.lost))


def swap(member: JdbcParticipant, connection: sa.Connection, exchange: Callable[[], None]) -> None:
    """Drop the old table and rename the new one, by ``exchange``; what belongs to the name goes with it."""
    work = _of(member, connection)
    if found := work.dependents():
        raise member.conflict(f"meanwhile it was given what a new table would not have: {', '.join(found)}")
    work.before_drop()
    exchange()
    work.after_rename()
    member.document["lost"] = [*member.document.get("lost", ()), *work.lost]
    if work.lost:
        _log.warning("Replacing %s in %s does not keep: %s", member.path, member.transaction_id, "; ".join(work.lost))
