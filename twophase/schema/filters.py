"""Conversion of filters on the query's fields to filters on a file with an older schema.

A filter has PyArrow's form: ``(path, op, value)``, a list of them (all must hold), or a list of such lists (one must
hold). Ops: ``= == != < <= > >= in "not in" "is null" "is not null"``. A row is kept if the filter is true, not if it is
NULL.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from twophase.schema.cast_arrow import cast_scalar
from twophase.schema.convert_arrow import plain_type
from twophase.schema.defaults import as_default
from twophase.schema.errors import SchemaError
from twophase.schema.leaf import family
from twophase.schema.names import FieldPath, quote
from twophase.schema.plan_spark import literal, sql_type
from twophase.schema.promotion import Loss, classify
from twophase.schema.read_field import Origin, ReadField
from twophase.schema.read_plan import ReadPlan
from twophase.schema.schema import Field, Kind, Schema

Predicate = tuple[FieldPath, str, Any]
Filters = Sequence[Predicate] | Sequence[Sequence[Predicate]]

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": lambda left, right: left == right,
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_OPS = frozenset((*_COMPARE, "in", "not in", "is null", "is not null"))


@dataclass(frozen=True)
class FileFilter:
    """A filter on the file's own rows, before the projection to the query.

    Attributes
    ----------
    expression : pyarrow.compute.Expression, optional
        Expression over the file's columns; None: read all rows.
    never : bool
        No row of the file can pass, so it need not be opened.
    exact : bool
        Exactly the right rows pass; otherwise :func:`row_filter` must also be applied to the projected rows.
    """

    expression: pc.Expression | None
    never: bool
    exact: bool


#: The result for one predicate: a constant, an expression, or None if it cannot be decided on the file.
_Term = Any


def file_filter(plan: ReadPlan, filters: Filters) -> FileFilter:
    """Convert a filter on the query to one on the file, as far as the file's own columns can decide it.

    Renamed fields are matched under the file's name; for a field that is missing in the file, the default decides;
    literals for a widened field are compared in the file's type if they fit. Filters are never pushed through a lossy
    cast.

    Parameters
    ----------
    plan : ReadPlan
        The read plan of the file.
    filters : Filters
        One conjunction of ``(path, op, value)`` or several, of which one must hold; paths are the query's.

    Raises
    ------
    UnknownFieldError
        The query has no such field.
    SchemaError
        An op is unknown, or a field is below a list or map.
    """
    branches = [_all_of(plan, branch) for branch in _branches(filters)]
    if any(term is True for term, _ in branches):
        return FileFilter(None, False, all(exact for term, exact in branches if term is True))
    possible = [(term, exact) for term, exact in branches if term is not False]
    exact = all(exact for _, exact in possible)
    if not possible:
        return FileFilter(None, True, True)
    if any(term is None for term, _ in possible):
        return FileFilter(None, False, False)
    return FileFilter(reduce(or_, [term for term, _ in possible]), False, exact)


def row_filter(query: Schema, filters: Filters) -> pc.Expression:
    """The complete filter, for rows that have been projected to the query.

    Parameters
    ----------
    query : Schema
        Schema of the rows.
    filters : Filters
        One conjunction of ``(path, op, value)`` or several, of which one must hold; paths are the query's.
    """
    any_of: Any = None
    for branch in _branches(filters):
        all_of: Any = None
        for path, op, value in branch:
            node = _leaf_of(query, path)
            term = _expression(pc.field(*query.path_of(node.id)), op, _literals(query, node, op, value))
            all_of = term if all_of is None else all_of & term
        any_of = all_of if any_of is None else any_of | all_of
    return any_of


def row_filter_sql(query: Schema, filters: Filters) -> str:
    """The complete filter as Spark SQL, for rows that have been projected to the query.

    Spark itself pushes it through the plan's projection to the file: ``frame.selectExpr(*plan.spark_expressions())
    .where(row_filter_sql(plan.query, filters))``.

    Parameters
    ----------
    query : Schema
        Schema of the rows.
    filters : Filters
        One conjunction of ``(path, op, value)`` or several, of which one must hold; paths are the query's.

    Raises
    ------
    UnknownFieldError, SchemaError
        As :func:`file_filter`.
    """
    return " OR ".join(
        "(" + " AND ".join(_sql(query, *predicate) for predicate in branch) + ")" for branch in _branches(filters)
    )


def _sql(query: Schema, path: FieldPath, op: str, value: Any) -> str:
    node = _leaf_of(query, path)
    column = ".".join(quote(name) for name in query.path_of(node.id))
    literals = [f"CAST({literal(item)} AS {sql_type(node)})" for item in _literals(query, node, op, value)]
    if op in ("in", "not in"):
        return f"{column} {op.upper()} ({', '.join(literals)})"
    return f"{column} {op.upper()} {' '.join(literals)}".rstrip()


def _leaf_of(query: Schema, path: FieldPath) -> Field:
    node = query.find(path)
    if node.kind is Kind.LEAF and all(parent.kind is Kind.STRUCT for parent in query.ancestors(node.id)):
        return node
    raise SchemaError(
        f"A filter needs a leaf outside lists and maps, not {query.name_of(node.id)}.",
        field_path=query.name_of(node.id),
        old_type=node.type_name,
        new_type="a leaf",
        allowed=("a leaf of the table or of its structs", "the filter in the query itself"),
    )


def _branches(filters: Filters) -> list[list[Predicate]]:
    items: list[Any] = list(filters)
    if not items:
        raise SchemaError("The filter is empty.", allowed=("a list of (path, op, value)",))
    branches = [list(items)] if isinstance(items[0], tuple) else [list(branch) for branch in items]
    for _, op, _ in (predicate for branch in branches for predicate in branch):
        if op not in _OPS:
            raise SchemaError(f"There is no filter {op!r}.", allowed=sorted(_OPS))
    return branches


def _all_of(plan: ReadPlan, branch: Iterable[Predicate]) -> tuple[_Term, bool]:
    """The conjunction, and whether it is exact."""
    whole: Any = True
    exact = True
    for predicate in branch:
        term = _one(plan, *predicate)
        if term is False:
            return False, True
        if term is None:
            exact = False
        elif term is not True:
            whole = term if whole is True else whole & term
    if whole is True and not exact:
        return None, False
    return whole, exact


def _one(plan: ReadPlan, path: FieldPath, op: str, value: Any) -> _Term:
    node = _leaf_of(plan.query, path)
    above = plan.query.ancestors(node.id)
    read = plan.find(node.id)
    if read is None or read.source is None:
        return _without_source(plan, node, above, read, op, value)
    return _with_source(plan, read, op, _literals(plan.query, node, op, value))


def _without_source(
    plan: ReadPlan, node: Field, above: list[Field], read: ReadField | None, op: str, value: Any
) -> _Term:
    constant = None if read is None else read.constant
    if read is None or read.origin is not Origin.CONSTANT:
        holders = [plan.find(parent.id) for parent in above]
        # If the enclosing struct is NULL in a row, the field is NULL, too, whatever its default.
        if any(holder is None or holder.source is None for holder in holders):
            constant = None
        elif holders and constant is not None:
            return None if _holds(constant, op, _literals(plan.query, node, op, value)) or op == "is null" else False
    return _holds(constant, op, _literals(plan.query, node, op, value))


def _holds(constant: pa.Scalar | None, op: str, literals: list[pa.Scalar]) -> bool:
    if op in ("is null", "is not null"):
        return (constant is None) == (op == "is null")
    if constant is None:
        return False
    left, right = constant.as_py(), [literal.as_py() for literal in literals]
    if op in ("in", "not in"):
        return (left in right) == (op == "in")
    return bool(_COMPARE[op](left, right[0]))


def _with_source(plan: ReadPlan, read: ReadField, op: str, literals: list[pa.Scalar]) -> _Term:
    assert read.source is not None
    column = pc.field(*plan.file.path_of(read.source.id))
    losses = [classify(old, new) for old, new, _ in read.steps]
    worst = max(losses, default=Loss.SAME)
    if worst is Loss.MAY_FAIL:
        return None
    if op in ("is null", "is not null"):
        return _expression(column, op, literals)
    if worst is Loss.ROUNDS:
        return None
    if family(read.source.leaf) == "null":
        return False
    return _widened(column, read, op, literals)


def _widened(column: pc.Expression, read: ReadField, op: str, literals: list[pa.Scalar]) -> _Term:
    """Compare in the file's type if the literals fit, so that row group statistics can be used."""
    assert read.source is not None
    if not read.casts:
        return _expression(column, op, literals)
    narrow = [_narrow(literal, read.source.leaf) for literal in literals]
    if all(literal is not None for literal in narrow):
        return _expression(column, op, narrow)
    if op in ("=", "=="):
        return False
    return _expression(column.cast(plain_type(read.field)), op, literals)


def _narrow(literal: pa.Scalar, old: pa.DataType) -> pa.Scalar | None:
    """The literal in the file's type; None if that type has no equal value."""
    if classify(literal.type, old) is Loss.IMPOSSIBLE:
        # There is no cast back, as from a timestamp to the date from which it was widened.
        return None
    narrow = cast_scalar(literal, old, "null", "literal")
    back = cast_scalar(narrow, literal.type, "null", "literal")
    return narrow if back is not None and back.as_py() == literal.as_py() else None


def _literals(schema: Schema, node: Field, op: str, value: Any) -> list[pa.Scalar]:
    if op in ("is null", "is not null"):
        return []
    values = list(value) if op in ("in", "not in") else [value]
    path = schema.name_of(node.id)
    literals = [as_default(item, node.leaf, path) for item in values]
    if any(literal is None for literal in literals):
        raise SchemaError(
            f"The filter on {path} compares with NULL.",
            field_path=path,
            old_type=node.type_name,
            new_type="null",
            allowed=("'is null'", "'is not null'"),
        )
    return literals


def _expression(column: pc.Expression, op: str, literals: list[Any]) -> pc.Expression:
    if op == "is null":
        return column.is_null()
    if op == "is not null":
        return column.is_valid()
    if op == "in":
        return column.isin(pa.array([literal.as_py() for literal in literals], literals[0].type)) & column.is_valid()
    if op == "not in":
        return ~column.isin(pa.array([literal.as_py() for literal in literals], literals[0].type)) & column.is_valid()
    return _COMPARE[op](column, literals[0])
