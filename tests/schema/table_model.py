"""A table as a dictionary of ids, and random changes of it as plain SQL: a model for real tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

#: Types of columns: as SQL, what each may become, and a value of it for a number.
TYPES = ("INT", "STRING", "FLOAT", "DATE")
WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE"}
NAMES = ("a", "b", "c", "d", "e f", "select")

#: Kind of step, three numbers that choose the column, its name and its place.
Step = tuple[str, int, int, int]
KINDS = ("insert", "insert", "add", "drop", "rename", "widen", "move", "overwrite")
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.tuples(st.sampled_from(KINDS), *[st.integers(0, 11)] * 3), min_size=8, max_size=8
)


def literal(kind: str, number: int) -> tuple[str, Any]:
    """A value of a type as SQL and as Spark gives it back: text of Python's."""
    if kind in ("INT", "BIGINT"):
        return str(number), str(number)
    if kind == "STRING":
        return f"'s{number}'", f"s{number}"
    if kind == "DATE":
        return f"DATE '2020-01-{number % 28 + 1:02}'", f"2020-01-{number % 28 + 1:02}"
    return f"CAST({number}.5 AS {kind})", f"{number}.5"


@dataclass
class Column:
    """A column: its id, which no other column of the table ever has, its name and type."""

    id: int
    name: str
    kind: str

    @property
    def quoted(self) -> str:
        return f"`{self.name}`"


@dataclass
class TableModel:
    """The columns in their order, and each row by the ids of its columns.

    Attributes
    ----------
    columns : list of Column
    rows : list of dict of int to str
        A row has no entry for a column in which it is NULL.
    """

    columns: list[Column] = field(default_factory=lambda: [Column(0, "a", "INT"), Column(1, "b", "STRING")])
    rows: list[dict[int, str]] = field(default_factory=list)
    highest_id: int = 1
    highest_value: int = 0

    def seen(self) -> list[tuple[str | None, ...]]:
        """The rows as a reader sees them."""
        return _ordered([tuple(row.get(column.id) for column in self.columns) for row in self.rows])

    def step(self, table: str, step: Step) -> tuple[str, TableModel] | None:
        """A statement, and the table that it makes of this one; None where there is no such change."""
        kind, which, name, place = step
        after = TableModel(
            [Column(c.id, c.name, c.kind) for c in self.columns], list(self.rows), self.highest_id, self.highest_value
        )
        column = after.columns[which % len(after.columns)]
        if kind in ("insert", "overwrite"):
            return after._written(table, column, overwrites=kind == "overwrite"), after
        alter = f"ALTER TABLE {table}"
        new = NAMES[name % len(NAMES)]
        if kind == "add":
            after.highest_id += 1
            added = Column(after.highest_id, new, TYPES[which % len(TYPES)])
            after.columns.append(added)
            return f"{alter} ADD COLUMN {added.quoted} {added.kind}", after
        if kind == "drop" and len(after.columns) > 1:
            after.columns.remove(column)
            return f"{alter} DROP COLUMN {column.quoted}", after
        if kind == "rename" and column.name != new:
            statement = f"{alter} RENAME COLUMN {column.quoted} TO `{new}`"
            column.name = new
            return statement, after
        if kind == "widen" and column.kind in WIDER:
            column.kind = WIDER[column.kind]
            return f"{alter} ALTER COLUMN {column.quoted} TYPE {column.kind}", after
        if kind == "move":
            return after._moved(alter, column, place), after
        return None

    def _moved(self, alter: str, column: Column, place: int) -> str:
        others = [other for other in self.columns if other is not column]
        at = place % (len(others) + 1)
        self.columns = [*others[:at], column, *others[at:]]
        where = f"AFTER {others[at - 1].quoted}" if at else "FIRST"
        return f"{alter} ALTER COLUMN {column.quoted} {where}"

    def _written(self, table: str, null: Column, *, overwrites: bool) -> str:
        """A row with a value in each column, and one with NULL in one of them."""
        if overwrites:
            self.rows = []
        texts = []
        for without in (None, null):
            self.highest_value += 1
            row, values = {}, []
            for column in self.columns:
                sql, value = literal(column.kind, self.highest_value)
                values.append("NULL" if column is without else sql)
                if column is not without:
                    row[column.id] = value
            self.rows.append(row)
            texts.append(f"({', '.join(values)})")
        return f"INSERT {'OVERWRITE' if overwrites else 'INTO'} {table} VALUES {', '.join(texts)}"


def as_text(rows: Sequence[Sequence[Any]]) -> list[tuple[str | None, ...]]:
    """Rows of a reader as the model has them."""
    return _ordered([tuple(None if value is None else str(value) for value in row) for row in rows])


def _ordered(rows: list[tuple[str | None, ...]]) -> list[tuple[str | None, ...]]:
    return sorted(rows, key=lambda row: [(value is not None, value or "") for value in row])
