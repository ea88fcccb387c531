"""What a replace keeps in SQLite: views go by the name; indexes and triggers are made anew from their own text."""

from __future__ import annotations

import re

from twophase.catalogs.jdbc.keeping import Keeper

_MADE = (
    "SELECT type, name, sql FROM sqlite_master WHERE tbl_name = :name COLLATE NOCASE AND type IN ('index', 'trigger')"
)
#: What is no word of SQL in a definition: names, texts, comments.
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/""", re.DOTALL)
_WORD = re.compile(r"INTEGER\s+PRIMARY\s+KEY|\w+")
_DEFINITION = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name COLLATE NOCASE"
_DEFINED = "stands in the old table's definition"
_CLAUSES = {
    "INTEGER PRIMARY KEY": "primary key",
    "CHECK": "checks",
    "COLLATE": "collations",
    "AUTOINCREMENT": "AUTOINCREMENT",
}
_DEFAULTS = "SELECT name, dflt_value FROM pragma_table_info(:name) WHERE dflt_value IS NOT NULL"


class SQLiteKeeper(Keeper):
    """SQLite has no grants, and no sequences but the rows' own numbers."""

    _made: list[tuple[object, ...]]

    def dependents(self) -> list[str]:
        return []

    def attributes(self) -> dict[str, str]:
        found = self.rows(_DEFAULTS, name=self.old.name)
        return {str(name): f"DEFAULT ({sql})" for name, sql in found if name in self.columns}

    def prepare(self) -> None:
        for kind, name, sql in self.rows(_MADE, name=self.old.name):
            if sql is None:
                self.lose(f"{kind} {name}", "it belongs to a PRIMARY KEY or UNIQUE clause of the old table")
        for name, _ in self.rows(_DEFAULTS, name=self.old.name):
            self.survive([str(name)], f"default of column {name}")
        if self.rows("SELECT 1 FROM pragma_foreign_key_list(:name)", name=self.old.name):
            self.lose("foreign keys", _DEFINED)
        ((definition,),) = self.rows(_DEFINITION, name=self.old.name)
        words = set(_WORD.findall(_QUOTED.sub(" ", str(definition)).upper()))
        for word, what in _CLAUSES.items():
            if word in words:
                self.lose(what, _DEFINED)

    def before_drop(self) -> None:
        self._made = [row for row in self.rows(_MADE, name=self.old.name) if row[2] is not None]

    def after_rename(self) -> None:
        for kind, name, sql in self._made:
            self.attempt(f"{kind} {name}", str(sql))
