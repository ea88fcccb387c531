"""Preserving, in a replace, grants, indexes, constraints, comments, collations, defaults and sequences of the table.

Comments, collations and defaults are set when the new table is created, indexes when it is filled, and the rest inside
the publish. Whatever cannot be preserved is reported in the log, and under ``lost`` in the participant's document.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.database import Database
from twophase.model import ObjectPath


class Preserver(ABC):
    """Base class for carrying over the dependent objects of one table.

    Parameters
    ----------
    connection : sqlalchemy.Connection
    database : Database
    old, staging : ObjectPath
    columns : set of str
        Names of the new table's columns that the old table had with the same type.
    """

    def __init__(
        self,
        connection: sa.Connection,
        database: Database,
        old: ObjectPath,
        staging: ObjectPath,
        columns: frozenset[str],
    ) -> None:
        self.connection = connection
        self.database = database
        self.old = old
        self.staging = staging
        self.columns = columns
        #: Those whose default is another one.
        self.redefaulted: frozenset[str] = frozenset()
        self.lost: list[str] = []

    @abstractmethod
    def attributes(self) -> dict[str, str]:
        """SQL that follows a column's type, for columns with a collation or default."""

    @abstractmethod
    def prepare(self) -> None:
        """Carry over what can be carried over before the publish."""

    def before_drop(self) -> None:
        """Hook inside the publish, while the old table still exists."""

    def after_rename(self) -> None:
        """Hook inside the publish, after the new table has been renamed to the target."""

    @abstractmethod
    def dependents(self) -> list[str]:
        """Return what would break if another table took the name: ``view a``, ``foreign key b of c``."""

    def referring(self) -> list[str]:
        """Return what would be broken without the table, where a database does not find that out itself in time."""
        return []

    def keeps_default(self, name: object) -> bool:
        """Whether a column of the new table gets the default that the old table's has."""
        return name in self.columns and name not in self.redefaulted

    # -- helpers -------------------------------------------------------------------------------------------------

    def attempt(self, what: str, *statements: str) -> None:
        """Run statements; if they fail, they are rolled back and ``what`` is reported lost."""
        try:
            with self.connection.begin_nested():
                for statement in statements:
                    self.database.run(self.connection, statement)
        except DBAPIError as error:
            self.report_lost(what, errors.reason(error, self.database.settings))

    def report_lost(self, what: str, why: str) -> None:
        """Report something that could not be preserved; its first reason counts."""
        if not any(text.startswith(f"{what} (") for text in self.lost):
            self.lost.append(f"{what} ({why})")

    def survive(self, columns: list[str], what: str) -> bool:
        """Whether all these columns are in the new table; if not, ``what`` is reported lost."""
        missing = [name for name in columns if name not in self.columns]
        if missing:
            self.report_lost(what, f"column {missing[0]} is gone or has another type")
        return not missing

    def rows(self, sql: str, **values: object) -> list[tuple[object, ...]]:
        """Query the database's system catalog."""
        return [tuple(row) for row in self.connection.execute(sa.text(sql), values)]
