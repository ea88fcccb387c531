"""Preserving in SQLite: views refer to a table by name; indexes and triggers are created again from their own SQL."""

from __future__ import annotations

import re

from twophase.catalogs.jdbc.dependents import Preserver

_MADE = (
    "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :name COLLATE NOCASE AND type IN ('index', 'trigger')"
)
#: Parts of a definition that are not keywords: names, texts, comments.
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_WORD = re.compile(r"\w+")
_DEFINITION = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name COLLATE NOCASE"
_DEFINED = "is part of the old table's definition"
_CLAUSES = {
    "CHECK": "checks",
    "COLLATE": "collations",
    "AUTOINCREMENT": "AUTOINCREMENT",
    "CONFLICT": "ON CONFLICT clauses",
}
#: Words behind the columns.
_OPTIONS = {"WITHOUT": "WITHOUT ROWID", "STRICT": "STRICT"}
#: Tables with a foreign key to it, where the connection obeys those.
_REFERRING = (
    "SELECT DISTINCT other.name "
    "FROM pragma_foreign_keys AS obeyed, sqlite_master AS other, pragma_foreign_key_list(other.name) AS found "
    "WHERE obeyed.foreign_keys AND other.type = 'table' AND found.\"table\" = :name COLLATE NOCASE"
)
_COLUMNS = "SELECT name, pk > 0, hidden IN (2, 3) FROM pragma_table_xinfo(:name)"
_DEFAULTS = "SELECT name, dflt_value FROM pragma_table_info(:name) WHERE dflt_value IS NOT NULL"


class SQLitePreserver(Preserver):
    """Preserver for SQLite, which has no grants, and no sequences except the rows' own numbers."""

    _made: list[tuple[object, ...]]

    def dependents(self) -> list[str]:
        # DROP TABLE deletes a table's rows first, with those that refer to them.
        return [f"rows of table {name}, which refers to it," for (name,) in self.rows(_REFERRING, name=self.old.name)]

    def attributes(self) -> dict[str, str]:
        found = self.rows(_DEFAULTS, name=self.old.name)
        return {str(name): f"DEFAULT ({sql})" for name, sql in found if self.keeps_default(name)}

    def prepare(self) -> None:
        for kind, name, sql in self.rows(_MADE, name=self.old.name):
            if sql is None:
                self.report_lost(f"{kind} {name}", "it belongs to a PRIMARY KEY or UNIQUE clause of the old table")
        for name, _ in self.rows(_DEFAULTS, name=self.old.name):
            self.survive([str(name)], f"default of column {name}")
        if self.rows("SELECT 1 FROM pragma_foreign_key_list(:name)", name=self.old.name):
            self.report_lost("foreign keys", _DEFINED)
        for what in self.dependents():
            self.report_lost(what, "PRAGMA foreign_keys is on")
        for what in self._defined():
            self.report_lost(what, _DEFINED)

    def _defined(self) -> list[str]:
        """Return what only the old table's definition says."""
        columns = self.rows(_COLUMNS, name=self.old.name)
        found = ["primary key"] if any(is_key for _, is_key, _ in columns) else []
        found += [f"generated column {name}" for name, _, is_generated in columns if is_generated]
        ((definition,),) = self.rows(_DEFINITION, name=self.old.name)
        body, _, options = _QUOTED.sub(" ", str(definition)).upper().rpartition(")")
        for text, known in ((body, _CLAUSES), (options, _OPTIONS)):
            words = set(_WORD.findall(text))
            found += [what for word, what in known.items() if word in words]
        return found

    def before_drop(self) -> None:
        self._made = [row for row in self.rows(_MADE, name=self.old.name) if row[2] is not None]

    def after_rename(self) -> None:
        for kind, name, sql in self._made:
            self.attempt(f"{kind} {name}", str(sql))
