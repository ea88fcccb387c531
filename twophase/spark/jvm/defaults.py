"""The values of an insert that its store must compute, found in Spark's plan.

Spark fills in the omitted columns by a projection of its own, on top of the query: given values refer to the query
there, filled-in values to nothing. Of the word DEFAULT only a constant remains in the plan. So its position is read
again from the statement's text, and followed from there to the column of the table that it belongs to.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twophase.errors import CatalogError
from twophase.model import WAITING, quote
from twophase.spark.jvm.gateway import Jvm, private_name

_WORD = "default"
_INSERTS = ("InsertIntoStatement", "UnresolvedInsert")
_LIMITS = ("GlobalLimit", "LocalLimit", "Offset", "Sort")


def with_waiting(jvm: Jvm, df: Any, names: Sequence[str], computed: Collection[str], table: str) -> Any:
    """The rows of an insert; if some wait for their store, with an additional column that names their waiting columns.

    Parameters
    ----------
    jvm : Jvm
    df : pyspark.sql.DataFrame
        The DataFrame passed by Spark: all columns of the table, in its order.
    names : sequence of str
        Names of these columns.
    computed : collection of str
        The columns whose default is computed by the store.
    table : str
        For messages.

    Raises
    ------
    CatalogError
        The word DEFAULT occurs where it is unclear which values it is for.
    """
    with private_name("analysed plan of an insert", jvm.spark):
        plan = df._jdf.queryExecution().analyzed()
        whole = {name for name in _filled_in(plan, names) if name in computed}
        words = _words(jvm, plan, table)
        rows: list[frozenset[str]] | None = None
        if words is not None:
            found = words.columns(plan, names)
            if found is None:
                raise _unclear(table)
            if words.cells is None:
                whole |= found.keys() & computed
            else:
                columns = {name: place for name, place in found.items() if name in computed}
                rows = [frozenset(n for n, place in columns.items() if place in row) for row in words.cells]
    if rows and any(rows):
        return _marked_by_row(df, [whole | row for row in rows])
    return _marked(df, whole) if whole else df


def _marked(df: Any, waiting: Collection[str]) -> Any:
    from pyspark.sql import functions

    columns = [_null(df, name) if name in waiting else df[quote(name)] for name in df.columns]
    return df.select(*columns, functions.lit(_mark(waiting)).alias(WAITING))


def _marked_by_row(df: Any, rows: Sequence[Collection[str]]) -> Any:
    """Mark the rows of a VALUES clause, which keep their order."""
    from pyspark.sql import functions

    names = df.columns
    marks = functions.from_json(functions.lit(json.dumps([_mark(row) for row in rows])), "array<string>")
    numbered = df.coalesce(1).select("*", functions.get(marks, functions.monotonically_increasing_id()).alias(WAITING))
    columns = []
    for name in names:
        marks_of = sorted({str(_mark(row)) for row in rows if name in row})
        waits = functions.coalesce(numbered[WAITING].isin(marks_of), functions.lit(False))
        columns.append(functions.when(~waits, numbered[quote(name)]).alias(name))
    return numbered.select(*columns, WAITING)


def _null(df: Any, name: str) -> Any:
    from pyspark.sql import functions

    return functions.lit(None).cast(df.schema[name].dataType).alias(name)


def _mark(waiting: Collection[str]) -> str | None:
    return json.dumps(sorted(waiting), ensure_ascii=False) if waiting else None


# -- omitted columns ---------------------------------------------------------------------------------------------------


def _filled_in(plan: Any, names: Sequence[str]) -> Iterator[str]:
    """The columns filled in by Spark: the table's columns are marked in its projection, and in no other one."""
    if _is_completed(plan):
        items = _each(plan.projectList())
        yield from (name for name, item in zip(names, items, strict=True) if item.references().isEmpty())


def _is_completed(plan: Any) -> bool:
    return _kind(plan) == "Project" and any(map(_is_of_table, _each(plan.projectList())))


def _is_of_table(item: Any) -> bool:
    return bool(item.metadata().contains(WAITING))


# -- the word DEFAULT --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Words:
    """The positions of the word in a statement.

    Attributes
    ----------
    expected : tuple of str or None
        The columns that the statement names, in its order; None if it names none.
    count : int
        Number of occurrences in a SELECT, whose values apply to all rows.
    cells : tuple of set of int or None
        Positions of the word in each row of VALUES.
    """

    expected: tuple[str, ...] | None
    count: int = 0
    cells: tuple[frozenset[int], ...] | None = None

    def columns(self, plan: Any, names: Sequence[str]) -> dict[str, int] | None:
        """The table's columns that it is for, with their positions in the query; None if that is unclear."""
        ends = {name: _source(plan, number) for number, name in enumerate(names)}
        if self.cells is None:
            found = {n: end.place for n, end in ends.items() if end and end.is_word}
            is_clear = len(found) == self.count
        else:
            wanted = frozenset().union(*self.cells)
            found = {n: end.place for n, end in ends.items() if end and end.rows is not None and end.place in wanted}
            counts = {end.rows for end in ends.values() if end and end.rows is not None}
            is_clear = counts == {len(self.cells)} and sorted(found.values()) == sorted(wanted)
        expected = names if self.expected is None else self.expected
        folded = [name.lower() for name in expected]
        return found if is_clear and all(folded[place] == name.lower() for name, place in found.items()) else None


@dataclass(frozen=True)
class _Source:
    """The source of a column's values: a constant of a projection, or a position in the rows of VALUES."""

    place: int
    is_word: bool = False
    rows: int | None = None


def _source(plan: Any, place: int) -> _Source | None:
    """Follow a column down while its values are unchanged and no row is removed; None if it cannot be followed."""
    kind = _kind(plan)
    if kind == "Project":
        item = plan.projectList().apply(place)
        references, of_table = list(_each(item.references())), _is_of_table(item)
        if not references:
            return None if of_table else _Source(place, is_word=str(item.name()).lower() == _WORD)
        is_same = of_table or _kind(item) == "AttributeReference" or _is_renamed(item)  # Spark casts and checks it.
        return _source_of(plan.child(), references[0]) if is_same and len(references) == 1 else None
    if kind == "SubqueryAlias":
        return _source(plan.child(), place)
    if kind in _LIMITS:
        found = _source(plan.child(), place)
        return found if found and found.is_word else None
    if kind in ("LocalRelation", "ResolvedInlineTable"):
        return _Source(place, rows=int((plan.data() if kind == "LocalRelation" else plan.rows()).size()))
    return None


def _source_of(plan: Any, column: Any) -> _Source | None:
    ids = [output.exprId().id() for output in _each(plan.output())]
    wanted = column.exprId().id()
    return _source(plan, ids.index(wanted)) if wanted in ids else None


def _is_renamed(item: Any) -> bool:
    return _kind(item) == "Alias" and _kind(item.child()) == "AttributeReference"


def _words(jvm: Jvm, plan: Any, table: str) -> _Words | None:
    """The words of the statement that a plan belongs to; None if there are none."""
    origin = plan.origin()
    text = str(origin.sqlText().get()) if origin.sqlText().isDefined() else ""
    if _WORD not in text.lower():
        return None
    try:
        parsed = jvm.session.sessionState().sqlParser().parsePlan(text)
    except Exception as error:
        raise _unclear(table) from error
    inserts = list(_inserts(parsed))
    if len(inserts) > 1:
        start = origin.startIndex()
        inserts = [found for found in inserts if found.origin().startIndex() == start]
    if len(inserts) == 1:
        return _words_of(inserts[0], table)
    if inserts or _is_completed(plan) or "ExecuteImmediate" in _kind(parsed):
        raise _unclear(table)
    return None  # A query from which a DataFrame was created.


def _inserts(plan: Any) -> Iterator[Any]:
    if _kind(plan) in _INSERTS:
        yield plan
    elif _kind(plan) == "SingleStatement":  # Part of a script; its children are those of the plan in it.
        yield from _inserts(plan.parsedPlan())
    else:
        for child in _each(plan.children()):
            yield from _inserts(child)


def _words_of(insert: Any, table: str) -> _Words | None:
    columns = tuple(str(name) for name in _each(insert.userSpecifiedCols()))
    found = list(_standing(insert.query()))
    if len(found) > 1 or (found and any(_gives_name(insert.query()))):
        raise _unclear(table)
    return _Words(columns or None, **found[0]) if found else None


def _standing(query: Any) -> Iterator[Mapping[str, Any]]:
    kind = _kind(query)
    if kind == "Project":
        items = list(_each(query.projectList()))
        if count := sum(map(_is_word, items)):
            yield {"count": count}
    elif kind == "UnresolvedInlineTable":
        cells = tuple(frozenset(_places(row)) for row in _each(query.rows()))
        if any(cells):
            yield {"cells": cells}
    for child in _each(query.children()):
        yield from _standing(child)


def _gives_name(query: Any) -> Iterator[bool]:
    """Return whether a value of the statement has the word as its name: in the plan both look the same."""
    if _kind(query) == "Project":
        yield from (_kind(i) == "Alias" and str(i.name()).lower() == _WORD for i in _each(query.projectList()))
    for child in _each(query.children()):
        yield from _gives_name(child)


def _places(row: Any) -> Iterator[int]:
    if _WORD in str(row.toString()).lower():  # A single call for a row without the word.
        yield from (place for place, value in enumerate(_each(row)) if _is_word(value))


def _is_word(expression: Any) -> bool:
    return _kind(expression) == "UnresolvedAttribute" and str(expression.name()).lower() == _WORD


def _unclear(table: str) -> CatalogError:
    return CatalogError(
        f"For which values of {table} the word DEFAULT is written cannot be determined; nothing was started.",
        path=table,
        hint="Leave these columns out of the statement's list of columns, or give them by VALUES alone.",
    )


def _each(found: Any) -> Iterator[Any]:
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
