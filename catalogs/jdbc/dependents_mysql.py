"""Preserving in MariaDB and MySQL: grants and views refer to a table by name, and so need nothing."""

from __future__ import annotations

import re

from sqlalchemy.exc import DBAPIError

from twophase.catalogs.jdbc import errors
from twophase.catalogs.jdbc.defined_mysql import (
    INVISIBLE_KEY,
    ON_UPDATE,
    blank,
    check_of,
    column_lines,
    names,
)
from twophase.catalogs.jdbc.dependents import Preserver
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.model import ObjectPath

_KEY = re.compile(r"^\s*((?:(?:PRIMARY |UNIQUE |FULLTEXT |SPATIAL |VECTOR )?KEY|PERIOD FOR) .*?),?$")
_CONSTRAINT = re.compile(r"^\s*CONSTRAINT (`(?:[^`]|``)*`) (CHECK|FOREIGN KEY) (.*?),?$")
#: What a column may be, beside what a method of its own carries over.
_COLUMN_WORDS = re.compile(r"\b(GENERATED|INVISIBLE|COMPRESSED)\b")
_OPTION = re.compile(r"((?:DATA |INDEX |DEFAULT )?(?:\w+|`\w+`))=('(?:[^'\\]|''|\\.)*'|\S+)")
#: Options that are carried over elsewhere, or are those of the columns.
_OTHER_OPTIONS = ("AUTO_INCREMENT", "COMMENT", "DEFAULT CHARSET", "COLLATE")
#: Those that a table has for good.
_FIXED_OPTIONS = {"ENGINE", "DATA DIRECTORY", "INDEX DIRECTORY"}
_COUNTER = re.compile(r"AUTO_INCREMENT=\d+")

_PARTITIONS = re.compile(r"^ ?(?:/\*!\d+ )?PARTITION BY", re.MULTILINE)

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
_HIDDEN = """
SELECT COLUMN_NAME FROM information_schema.COLUMNS
WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND EXTRA LIKE '%INVISIBLE%'
"""
_VERSIONED = """
SELECT 'its history' FROM information_schema.TABLES
WHERE TABLE_SCHEMA = :schema AND TABLE_NAME = :name AND TABLE_TYPE = 'SYSTEM VERSIONED'
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
            *(str(history) for (history,) in self._of(_VERSIONED)),
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
        hidden = {str(name) for (name,) in self._of(_HIDDEN)}
        if self.columns - hidden:  # A table needs a column that is not.
            found |= {name: f"{found.get(name, '')} INVISIBLE" for name in self.columns & hidden}
        return found

    def attempt(self, what: str, *statements: str) -> None:
        try:
            for statement in statements:
                self.database.run(self.connection, statement)
        except DBAPIError as error:
            self.report_lost(what, errors.reason(error, self.database.settings))

    def prepare(self) -> None:
        staging = self.database.name(self.staging)
        text = self._shown(self.old)
        columns, _, options = text.rpartition("\n) ")
        if partitions := _PARTITIONS.search(options):
            self.attempt("partitioning", f"ALTER TABLE {staging} {options[partitions.start() :]}")
        hidden = INVISIBLE_KEY.search(text)
        for line in columns.splitlines()[1:]:
            if key := _KEY.match(line):
                if not (hidden and key[1].startswith("PRIMARY")):
                    self._key(staging, key[1])
            elif constraint := _CONSTRAINT.match(line):
                self._constraint(staging, *constraint.groups())
        for name, line in column_lines(columns).items():
            if "AUTO_INCREMENT" in blank(line):
                counter = _COUNTER.search(blank(options))
                self._auto_increment(staging, name, f", {counter[0]}" if counter else "")
        self._columns(staging, columns)
        self._options(staging, options)
        for found, _, default, _ in self._of(_DEFAULTS):
            if default != "NULL":
                self.survive([str(found)], f"default of column {found}")
        now = self._collations(self.staging)
        for name, collation in self._collations(self.old).items():
            if now.get(name, collation) != collation:
                why = "it does not hold every character" if name in self.columns else "the column has another type"
                self.report_lost(f"collation {collation} of column {name}", why)
        for (found,) in self._of(_UPDATED):
            self.report_lost(f"ON UPDATE of column {found}", "it has no default")

    def _collations(self, table: ObjectPath) -> dict[str, str]:
        found = self.rows(_COLLATIONS, schema=table.database, name=table.name)
        return {str(name): str(collation) for name, collation in found}

    def _shown(self, table: ObjectPath) -> str:
        assert isinstance(self.database, MySQL)
        return self.database.definition(self.connection, table)

    def _key(self, staging: str, key: str) -> None:
        what = key.split(" (")[0]
        if self.survive(names(key[key.index("(") :]), what):
            instead = key.startswith("PRIMARY") and INVISIBLE_KEY.search(self._shown(self.staging))
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
            if not re.fullmatch(re.escape(self.old.name) + r"_chk_\d+", names(name)[0]):
                self.report_lost(f"name of constraint {name}", "it is taken as long as the old table is there")

    def _columns(self, staging: str, definition: str) -> None:
        """Carry over checks of columns, which MariaDB shows with them; report what else the new ones are not."""
        old = column_lines(definition)
        for name, line in old.items():
            if condition := check_of(line):
                self._check(staging, name, condition)
        now = column_lines(self._shown(self.staging))
        for name, line in old.items():
            for word in _COLUMN_WORDS.findall(blank(line)):
                if word not in blank(now.get(name, "")):
                    what = f"generated column {name}" if word == "GENERATED" else f"{word} of column {name}"
                    self.report_lost(what, "the new column is an ordinary one")

    def _check(self, staging: str, name: str, condition: str) -> None:
        what = f"check of column {name}"
        if not self.survive([name, *names(condition)], what):
            return
        # The server does not look at the rows when a column gets a check.
        if self.database.run(self.connection, f"SELECT 1 FROM {staging} WHERE NOT {condition} LIMIT 1").first():
            self.report_lost(what, "the new rows violate it")
            return
        now = column_lines(self._shown(self.staging))[name]
        self.attempt(what, f"ALTER TABLE {staging} MODIFY COLUMN {now} CHECK {condition}")

    def _options(self, staging: str, options: str) -> None:
        now = _options(self._shown(self.staging).rpartition("\n) ")[2])
        lost = {name: value for name, value in _options(options).items() if now.get(name) != value}
        for name in _FIXED_OPTIONS & lost.keys():
            self.report_lost(name, f"it was {lost.pop(name)}")
        if lost:
            said = " ".join(f"{name}={value}" for name, value in lost.items())
            self.attempt(f"options {', '.join(lost)}", f"ALTER TABLE {staging} {said}")

    def _auto_increment(self, staging: str, name: str, counter: str) -> None:
        what = f"AUTO_INCREMENT of column {name}"
        if self.survive([name], what):
            assert isinstance(self.database, MySQL)
            (kind,) = [c.type for c in self.database.columns(self.connection, self.old) if c.name == name]
            now = self.database.redefined(self.connection, self.staging, name, kind, null="NOT NULL")
            column = self.database.quote(name)
            self.attempt(what, f"ALTER TABLE {staging} MODIFY COLUMN {column} {now} AUTO_INCREMENT{counter}")


def _options(text: str) -> dict[str, str]:
    """The options of a table, from what follows its columns."""
    partitions = _PARTITIONS.search(text)
    plain = re.sub(r"/\*!\d+ | \*/", "", text[: partitions.start()] if partitions else text)
    return {name: value for name, value in _OPTION.findall(plain) if name not in _OTHER_OPTIONS}
