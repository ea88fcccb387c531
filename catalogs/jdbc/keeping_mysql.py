"""What a replace keeps in MariaDB and MySQL: grants and views go by the name, and so stay by themselves."""

from __future__ import annotations

import re

from sqlalchemy.exc import DBAPIError

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.keeping import Keeper
from twophase.catalogs.jdbc.mysql import MySQL

_KEY = re.compile(r"^\s*((?:PRIMARY |UNIQUE |FULLTEXT |SPATIAL )?KEY .*?),?$")
_CONSTRAINT = re.compile(r"^\s*CONSTRAINT (`(?:[^`]|``)*`) (CHECK|FOREIGN KEY) (.*?),?$")
_COLUMN = re.compile(r"^\s*(`(?:[^`]|``)*`) ")
_NAME = re.compile(r"`((?:[^`]|``)*)`")

_DEFAULTS = """
SELECT COLUMN_NAME, COLUMN_DEFAULT, EXTRA FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND COLUMN_DEFAULT IS NOT NULL
"""
_TRIGGERS = (
    "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS "
    "WHERE EVENT_OBJECT_SCHEMA = :schema AND EVENT_OBJECT_TABLE = :name"
)
_REFERRING = """
SELECT CONSTRAINT_NAME, TABLE_NAME FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_SCHEMA = :schema AND REFERENCED_TABLE_NAME = :name AND TABLE_NAME <> :name
"""


class MySQLKeeper(Keeper):
    """Each DDL statement commits: what fails is lost, and what was done before it stays with the staging table."""

    def _of(self, sql: str) -> list[tuple[object, ...]]:
        return self.rows(sql, schema=self.old.database, name=self.old.name)

    def dependents(self) -> list[str]:
        return sorted(f"foreign key {key} of {table}" for key, table in self._of(_REFERRING))

    def defaults(self) -> dict[str, str]:
        assert isinstance(self.database, MySQL)
        found = {}
        for name, default, extra in self._of(_DEFAULTS):
            if name in self.columns and default != "NULL":
                found[str(name)] = self.database.default(self.connection, str(default), str(extra))
        return found

    def attempt(self, what: str, *statements: str) -> None:
        try:
            for statement in statements:
                self.database.run(self.connection, statement)
        except DBAPIError as error:
            self.lose(what, errors.reason(error, self.database.settings))

    def prepare(self) -> None:
        staging = self.database.name(self.staging)
        text = str(self.database.run(self.connection, f"SHOW CREATE TABLE {self.database.name(self.old)}").one()[1])
        for line in text.splitlines()[1:-1]:
            if key := _KEY.match(line):
                what = key[1].split(" (")[0]
                if self.survive(_names(key[1][key[1].index("(") :]), what):
                    self.attempt(what, f"ALTER TABLE {staging} ADD {key[1]}")
            elif constraint := _CONSTRAINT.match(line):
                self._constraint(staging, *constraint.groups())
        for line in text.splitlines()[1:-1]:
            column = _COLUMN.match(line)
            if column and "AUTO_INCREMENT" in line:
                self._auto_increment(staging, *_names(column[1]))
        for (name,) in self._of(_TRIGGERS):
            self.lose(f"trigger {name}", "it belongs to the old table")

    def _constraint(self, staging: str, name: str, kind: str, rest: str) -> None:
        what = f"constraint {name}"
        if kind == "FOREIGN KEY":
            self.lose(what, "its name is taken as long as the old table is there")
        else:
            self.attempt(what, f"ALTER TABLE {staging} ADD CONSTRAINT {name} {kind} {rest}")

    def _auto_increment(self, staging: str, name: str) -> None:
        what = f"AUTO_INCREMENT of column {name}"
        if self.survive([name], what):
            (kind,) = [c.type for c in self.database.columns(self.connection, self.old) if c.name == name]
            column = self.database.quote(name)
            self.attempt(what, f"ALTER TABLE {staging} MODIFY COLUMN {column} {kind} NOT NULL AUTO_INCREMENT")


def _names(text: str) -> list[str]:
    return [name.replace("``", "`") for name in _NAME.findall(text)]
