"""Definitions of columns in MariaDB and MySQL: parts of ``SHOW CREATE TABLE``, and what ``MODIFY COLUMN`` repeats."""

from __future__ import annotations

import re

#: Part of EXTRA for a column that the server changes at each UPDATE.
ON_UPDATE = re.compile(r"on update current_timestamp(\(\d*\))?", re.IGNORECASE)
#: The invisible key that MySQL adds to a table without a primary key, if so configured.
INVISIBLE_KEY = re.compile(r"^\s*`my_row_id` .* AUTO_INCREMENT /\*!80023 INVISIBLE \*/", re.MULTILINE)

#: Part of EXTRA for a column that the server computes.
_COMPUTED = re.compile(r"\b(VIRTUAL|STORED|PERSISTENT)\b", re.IGNORECASE)
#: A type of texts that does not say which.
_TEXT = re.compile(r"(?:(?:var)?char|\w*text|enum|set)\b(?!.*\b(?:collate|character|charset)\b)", re.IGNORECASE)
_LINE = re.compile(r"^\s*(`(?:[^`]|``)*`) ")
_NAME = re.compile(r"`((?:[^`]|``)*)`")
#: Parts of a definition that are no words of SQL.
_QUOTED = re.compile(r"'(?:[^'\\]|''|\\.)*'|`(?:[^`]|``)*`")
_CHECK = re.compile(r" CHECK (?=\()")


def names(text: str) -> list[str]:
    """The quoted names in a text of SQL."""
    return [name.replace("``", "`") for name in _NAME.findall(text)]


def blank(text: str) -> str:
    """A text of SQL, of the same length, without what is quoted."""
    return _QUOTED.sub(lambda found: " " * len(found[0]), text)


def column_lines(definition: str) -> dict[str, str]:
    """The lines of a table's definition that describe columns, by their names."""
    lines = [line.strip().removesuffix(",") for line in definition.splitlines()[1:] if not INVISIBLE_KEY.match(line)]
    return {names(found[1])[0]: line for line in lines if (found := _LINE.match(line))}


def check_of(line: str) -> str:
    """The condition of a column's own check, in parentheses; empty without one. In MySQL a check is the table's."""
    found = _CHECK.search(blank(line))
    return line[found.end() :] if found else ""


def check_kept(definition: str, column: str, new_name: str) -> list[str]:
    """The clause of a column's own check under the name that it gets, from the table's definition; none without one."""
    condition = check_of(column_lines(definition).get(column, ""))
    old, new = ("`" + name.replace("`", "``") + "`" for name in (column, new_name))
    return [f"CHECK {condition.replace(old, new)}"] if condition else []


def type_clauses(kind: str, null: str, extra: str, collation: str | None, expression: str | None) -> list[str]:
    """The clauses of a column's type: the collation that it had, whether it may be NULL, and how it is computed."""
    words = [kind, *([f"COLLATE {collation}"] if collation and _TEXT.match(kind) else [])]
    if not (computed := _COMPUTED.search(extra)):
        return [*words, null]
    # MariaDB takes no NULL for these.
    return [*words, f"GENERATED ALWAYS AS ({expression}) {computed[1]}", *([null] if null == "NOT NULL" else [])]
