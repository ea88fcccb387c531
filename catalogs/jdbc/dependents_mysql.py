"""Preserving in MariaDB and MySQL: grants and views refer to a table by name, and so need nothing."""

from __future__ import annotations

import re

from sqlalchemy.exc import DBAPIError

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.dependents import Preserver
from twophase.catalogs.jdbc.mysql import ON_UPDATE, MySQL
from twophase.model import ObjectPath

_KEY = re.compile(r"^\s*((?:PRIMARY |UNIQUE |FULLTEXT |SPATIAL )?KEY .*?),?$")
_CONSTRAINT = re.compile(r"^\s*CONSTRAINT (`(?:[^`]|``)*`) (CHECK|FOREIGN KEY) (.*?),?$")
_COLUMN = re.compile(r"^\s*(`(?:[^`]|``)*`) ")
_NAME = re.compile(r"`((?:[^`]|``)*)`")

_PARTITIONS = re.compile(r"^ ?(?:/\*!\d+ )?PARTITION BY", re.MULTILINE)
#: The invisible key that MySQL adds to a table without a primary key, if so configured.
_INVISIBLE = re.compile(r"^\s*`my_row_id` .* AUTO_INCREMENT /\*!80023 INVISIBLE \*/", re.MULTILINE)

#: Prefix of collations whose character set holds every text of Spark.
_WHOLE = "utf8mb4"

_DEFAULTS = """
SELECT COLUMN_NAME, DATA_TYPE, COLUMN_DEFAULT, EXTRA FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND COLUMN_DEFAULT IS NOT NULL
"""
_COLLATIONS = """
SELECT COLUMN_NAME, COLLATION_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND COLLATION_NAME IS NOT NULL
"""
_UPDATED = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND EXTRA LIKE '%on update%'
      AND coalesce(COLUMN_DEFAULT, 'NULL') = 'NULL'
"""
_TRIGGERS = (
    "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS "
    "WHERE EVENT_OBJECT_SCHEMA = :schema AND EVENT_OBJECT_TABLE = :name"
)
_REFERS = """
SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
WHERE CONSTRAINT_SCHEMA = :schema AND TABLE_NAME = :name
"""
_REFERRING = """
SELECT CONSTRAINT_NAME, TABLE_NAME FROM information_schema.KEY_COLUMN_USAGE
WHERE REFERENCED_TABLE_SCHEMA = :schema AND REFERENCED_TABLE_NAME = :name
      AND (TABLE_SCHEMA, TABLE_NAME) <> (:schema, :name)
"""


class MySQLPreserver(Preserver):
    """Preserver without rollback, as each DDL statement commits: what precedes a failed statement is not undone."""

    def _of(self, sql: str) -> list[tuple[object, ...]]:
        return self.rows(sql, schema=self.old.database, name=self.old.name)

    def dependents(self) -> list[str]:
        """Includes the table's own foreign keys: their names are taken as long as the old table exists."""
        return [
            *self.referring(),
            *sorted(f"foreign key {key}" for (key,) in self._of(_REFERS)),
            *sorted(f"trigger {name}" for (name,) in self._of(_TRIGGERS)),
        ]

    def referring(self) -> list[str]:
        return sorted(f"foreign key {key} of {table}" for key, table in self._of(_REFERRING))

    def attributes(self) -> dict[str, str]:
        assert isinstance(self.database, MySQL)
        found: dict[str, str] = {}
        for column, collation in self._collations(self.old).items():
            if column in self.columns and collation.startswith(_WHOLE):
                found[column] = f"COLLATE {collation} "
        for name, kind, default, extra in self._of(_DEFAULTS):
            if self.keeps_default(name) and default != "NULL":
                sql = self.database.default(self.connection, str(kind), str(default), str(extra))
                update = ON_UPDATE.search(str(extra))
                changing = f" {update[0]}" if update else ""
                found[str(name)] = f"{found.get(str(name), '')}DEFAULT {sql}{changing}"
        return found

    def attempt(self, what: str, *statements: str) -> None:
        try:
            for statement in statements:
                self.database.run(self.connection, statement)
        except DBAPIError as error:
            self.report_lost(what, errors.reason(error, self.database.settings))

    def prepare(self) -> None:
        staging = self.database.name(self.staging)
        text = self._definition(self.old)
        columns, _, options = text.rpartition("\n) ")
        if partitions := _PARTITIONS.search(options):
            self.attempt("partitioning", f"ALTER TABLE {staging} {options[partitions.start() :]}")
        hidden = _INVISIBLE.search(text)
        for line in columns.splitlines()[1:]:
            if key := _KEY.match(line):
                if not (hidden and key[1].startswith("PRIMARY")):
                    self._key(staging, key[1])
            elif constraint := _CONSTRAINT.match(line):
                self._constraint(staging, *constraint.groups())
        for line in columns.splitlines()[1:]:
            column = _COLUMN.match(line)
            if column and "AUTO_INCREMENT" in line and not _INVISIBLE.match(line):
                self._auto_increment(staging, *_names(column[1]))
        for name, _, default, _ in self._of(_DEFAULTS):
            if default != "NULL":
                self.survive([str(name)], f"default of column {name}")
        now = self._collations(self.staging)
        for name, collation in self._collations(self.old).items():
            if now.get(name, collation) != collation:
                why = "it does not hold every character" if name in self.columns else "the column has another type"
                self.report_lost(f"collation {collation} of column {name}", why)
        for (name,) in self._of(_UPDATED):
            self.report_lost(f"ON UPDATE of column {name}", "it has no default")

    def _collations(self, table: ObjectPath) -> dict[str, str]:
        found = self.rows(_COLLATIONS, schema=table.database, name=table.name)
        return {str(name): str(collation) for name, collation in found}

    def _definition(self, table: ObjectPath) -> str:
        return str(self.database.run(self.connection, f"SHOW CREATE TABLE {self.database.name(table)}").one()[1])

    def _key(self, staging: str, key: str) -> None:
        what = key.split(" (")[0]
        if self.survive(_names(key[key.index("(") :]), what):
            instead = key.startswith("PRIMARY") and _INVISIBLE.search(self._definition(self.staging))
            gone = "DROP PRIMARY KEY, DROP COLUMN my_row_id, " if instead else ""
            self.attempt(what, f"ALTER TABLE {staging} {gone}ADD {key}")

    def _constraint(self, staging: str, name: str, kind: str, rest: str) -> None:
        assert isinstance(self.database, MySQL)
        what = f"constraint {name}"
        if kind == "FOREIGN KEY":
            return  # A table with foreign keys is not replaced by another one.
        if self.database.is_mariadb(self.connection):
            self.attempt(what, f"ALTER TABLE {staging} ADD CONSTRAINT {name} {kind} {rest}")
        else:
            # In MySQL a name is unique in a database. Names that it generates follow the table's when that is renamed.
            self.attempt(what, f"ALTER TABLE {staging} ADD {kind} {rest}")
            if not re.fullmatch(re.escape(self.old.name) + r"_chk_\d+", _names(name)[0]):
                self.report_lost(f"name of constraint {name}", "it is taken as long as the old table is there")

    def _auto_increment(self, staging: str, name: str) -> None:
        what = f"AUTO_INCREMENT of column {name}"
        if self.survive([name], what):
            (kind,) = [c.type for c in self.database.columns(self.connection, self.old) if c.name == name]
            column = self.database.quote(name)
            self.attempt(what, f"ALTER TABLE {staging} MODIFY COLUMN {column} {kind} NOT NULL AUTO_INCREMENT")


def _names(text: str) -> list[str]:
    return [name.replace("``", "`") for name in _NAME.findall(text)]
