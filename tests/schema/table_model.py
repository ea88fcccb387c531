"""A table as a dictionary of ids, and random changes of it as plain SQL: a model for real tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from hypothesis import strategies as st

#: Types of columns: as SQL, what each may become, and a value of it for a number.
TYPES = ("INT", "STRING", "FLOAT", "DATE")
WIDER = {"INT": "BIGINT", "FLOAT": "DOUBLE"}
NAMES = ("a", "b", "c", "d", "e f", "select")
#: Columns with fields: the type, the name below which its fields are, and how a query reads the first of its structs.
NESTED = {
    "STRUCT": ("STRUCT<{}>", "", ""),
    "ARRAY": ("ARRAY<STRUCT<{}>>", ".element", "[0]"),
    "MAP": ("MAP<STRING, STRUCT<{}>>", ".value", "['k0']"),
}

#: Kind of step, three numbers that choose the field, its name and its place; of ``beside`` also another writer's kind.
Step = tuple[str, int, int, int]
KINDS = ("insert", "insert", "add", "drop", "rename", "widen", "move", "overwrite")


def _steps(kinds: Sequence[str], number: int) -> st.SearchStrategy[list[Step]]:
    step = st.tuples(st.sampled_from(kinds), *[st.integers(0, 23)] * 3)
    return st.lists(step, min_size=number, max_size=number)


STEPS = _steps(KINDS, 8)
#: Those of which some are another writer's, beside a block that has staged rows.
STEPS_OF_TWO = _steps((*KINDS, "beside"), 8)
#: Those of a block.
BLOCK_STEPS = _steps((*KINDS, "savepoint", "savepoint", "rollback"), 10)


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
    """A column or a field below one: its id, which no other one of the table ever has, its name and type.

    Attributes
    ----------
    id : int
    name : str
    kind : str
        A type of SQL, or a key of ``NESTED``.
    fields : list of Column
        Those of its structs.
    """

    id: int
    name: str
    kind: str
    fields: list[Column] = field(default_factory=list)

    @property
    def quoted(self) -> str:
        return f"`{self.name}`"

    @property
    def type(self) -> str:
        """Its type in SQL."""
        if not self.fields:
            return self.kind
        return NESTED[self.kind][0].format(", ".join(f"{one.quoted}: {one.type}" for one in self.fields))

    def walk(self, path: str = "") -> Iterator[tuple[str, Column]]:
        """It and all fields below it, each with its path in an ``ALTER TABLE``."""
        yield path + self.quoted, self
        for one in self.fields:
            yield from one.walk(f"{path}{self.quoted}{NESTED[self.kind][1]}.")

    def seen(self, value: Any) -> Any:
        """A value as a reader sees it: text, and for a column with fields the tuples of its structs."""
        if not self.fields or value is None:
            return value
        structs = tuple(tuple(one.seen(struct.get(one.id)) for one in self.fields) for struct in value)
        return structs[0] if self.kind == "STRUCT" else structs

    def leaves(self, path: str = "") -> Iterator[tuple[str, Column, Callable[[Any], Any]]]:
        """The fields without others below them, each with the SQL that reads it and the same in Python."""
        expression = path + self.quoted
        if not self.fields:
            yield expression, self, lambda value: value
        for one in self.fields:
            for below, leaf, found in one.leaves(f"{expression}{NESTED[self.kind][2] if self.fields else ''}."):
                yield below, leaf, _of_first(one, found)

    def written(self, numbers: Iterator[int], null: int | None) -> tuple[str, Any]:
        """A new value as SQL and as the model has it; NULL for the field of a number."""
        if self.id == null and self.kind not in ("ARRAY", "MAP"):  # PyIceberg reads no NULL of lists of structs.
            return f"CAST(NULL AS {self.type})", None
        if not self.fields:
            return literal(self.kind, next(numbers))
        structs, texts = [], []
        for _ in range(1 if self.kind == "STRUCT" else 2):
            values = {one.id: one.written(numbers, null) for one in self.fields}
            structs.append({number: value for number, (_, value) in values.items()})
            texts.append(", ".join(f"'{one.name}', {values[one.id][0]}" for one in self.fields))
        made = [f"named_struct({text})" for text in texts]
        if self.kind == "STRUCT":
            return made[0], structs
        entries = [f"'k{i}', {text}" for i, text in enumerate(made)] if self.kind == "MAP" else made
        return f"{self.kind}({', '.join(entries)})", structs


def _of_first(one: Column, found: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else found(value[0].get(one.id))


def _names(columns: Sequence[Column]) -> list[Any]:
    return [(one.name, _names(one.fields)) for one in columns]


def nested_columns() -> list[Column]:
    """Columns with fields in a struct, a struct in it, the elements of a list and the values of a map."""
    deep = Column(4, "deep", "STRUCT", [Column(5, "a", "INT"), Column(6, "b", "STRING")])
    return [
        Column(0, "a", "INT"),
        Column(1, "s", "STRUCT", [Column(2, "a", "INT"), Column(3, "b", "STRING"), deep]),
        Column(7, "l", "ARRAY", [Column(8, "a", "INT"), Column(9, "b", "FLOAT")]),
        Column(10, "m", "MAP", [Column(11, "a", "INT"), Column(12, "b", "STRING")]),
    ]


@dataclass
class TableModel:
    """The columns in their order, and each row by the ids of its columns.

    Attributes
    ----------
    columns : list of Column
    rows : list of dict of int to Any
        A row has no entry, or None, for a column in which it is NULL; of one with fields it has a list of dictionaries
        by their ids, one for each of its structs.
    has_null_structs : bool
        Whether a struct may be NULL.
    """

    columns: list[Column] = field(default_factory=lambda: [Column(0, "a", "INT"), Column(1, "b", "STRING")])
    rows: list[dict[int, Any]] = field(default_factory=list)
    highest_id: int = 19
    highest_value: int = 0
    has_null_structs: bool = True

    def seen(self, kept: Sequence[bool] | None = None) -> list[tuple[Any, ...]]:
        """The rows as a reader sees them; or those of them that a filter keeps."""
        rows = [tuple(column.seen(row.get(column.id)) for column in self.columns) for row in self.rows]
        return ordered(rows if kept is None else [row for row, is_kept in zip(rows, kept, strict=True) if is_kept])

    def names(self) -> list[Any]:
        """The names of the columns, each with those of the fields below it."""
        return _names(self.columns)

    def leaves(self) -> list[tuple[str, str, list[Any]]]:
        """Each field without others below it: the SQL that reads it, its type, and its values."""
        return [
            (expression, leaf.kind, [found(row.get(column.id)) for row in self.rows])
            for column in self.columns
            for expression, leaf, found in column.leaves()
        ]

    def step(self, table: str, step: Step) -> tuple[str, TableModel] | None:
        """A statement, and the table that it makes of this one; None where there is no such change."""
        kind, which, name, place = step
        after = replace(self, columns=deepcopy(self.columns), rows=list(self.rows))
        fields = [found for column in after.columns for found in column.walk()]
        path, column = fields[which % len(fields)]
        if kind in ("insert", "overwrite"):
            return after._written(table, column, overwrites=kind == "overwrite"), after
        siblings = next((one.fields for _, one in fields if column in one.fields), after.columns)
        statement = after._altered(kind, path, column, siblings, (which, name, place))
        return None if statement is None else (f"ALTER TABLE {table} {statement}", after)

    def _altered(
        self, kind: str, path: str, column: Column, siblings: list[Column], numbers: tuple[int, int, int]
    ) -> str | None:
        which, name, place = numbers
        new = NAMES[name % len(NAMES)]
        if kind == "add":
            return self._added(new, which, place)
        if kind == "drop" and len(siblings) > 1:
            siblings.remove(column)
            return f"DROP COLUMN {path}"
        if kind == "rename" and column.name != new:
            column.name = new
            return f"RENAME COLUMN {path} TO `{new}`"
        if kind == "widen" and column.kind in WIDER:
            column.kind = WIDER[column.kind]
            return f"ALTER COLUMN {path} TYPE {column.kind}"
        if kind == "move":
            others = [other for other in siblings if other is not column]
            at = place % (len(others) + 1)
            siblings[:] = [*others[:at], column, *others[at:]]
            return f"ALTER COLUMN {path} {f'AFTER {others[at - 1].quoted}' if at else 'FIRST'}"
        return None

    def _added(self, name: str, which: int, place: int) -> str:
        """A new column, or where some have fields, a new field below one of them."""
        parents = [found for column in self.columns for found in column.walk() if found[1].fields]
        self.highest_id += 1
        added = Column(self.highest_id, name, TYPES[which % len(TYPES)])
        if not parents or place < 3:
            self.columns.append(added)
            return f"ADD COLUMN {added.quoted} {added.type}"
        path, parent = parents[place % len(parents)]
        parent.fields.append(added)
        return f"ADD COLUMN {path}{NESTED[parent.kind][1]}.{added.quoted} {added.type}"

    def _written(self, table: str, null: Column, *, overwrites: bool) -> str:
        """A row with a value in each field, and one with NULL in one of them."""
        if overwrites:
            self.rows = []
        texts = []
        for without in (None, null.id if self.has_null_structs or not null.fields else None):
            numbers = count(self.highest_value)
            values = {column.id: column.written(numbers, without) for column in self.columns}
            self.rows.append({number: value for number, (_, value) in values.items()})
            texts.append(f"({', '.join(sql for sql, _ in values.values())})")
            self.highest_value = next(numbers)
        return f"INSERT {'OVERWRITE' if overwrites else 'INTO'} {table} VALUES {', '.join(texts)}"


def as_text(rows: Sequence[Sequence[Any]]) -> list[tuple[Any, ...]]:
    """Rows of a reader as the model has them."""
    return ordered([tuple(_text(value) for value in row) for row in rows])


def _text(value: Any) -> Any:
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value)]
    if isinstance(value, (list, tuple)):
        return tuple(_text(one) for one in value)
    return None if value is None else str(value)


def ordered(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows in an order of their own."""
    return sorted(rows, key=repr)
