"""Sort orders: as text in a table property, as Iceberg's own objects, and as Spark SQL for sorting the rows of a file.

Iceberg's ``ALTER TABLE ... WRITE ORDERED BY`` belongs to its SQL extension. The property ``sort-order`` has the name
and the syntax with which Iceberg's Spark integration shows it: ``customer, days(at) DESC NULLS LAST``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

from pyiceberg.exceptions import ValidationError
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update import AddSortOrderUpdate, SetDefaultSortOrderUpdate, TableUpdate
from pyiceberg.transforms import IdentityTransform, TimeTransform, Transform, TruncateTransform, parse_transform

from twophase.catalogs.lakehouse.transforms import TIMES, sort_key
from twophase.errors import CatalogError
from twophase.model import ObjectPath, quote

SORT_ORDER = "sort-order"
_TERM = r"(?P<word>\w+)\((?P<arguments>[^()]*)\)|(?P<column>(?:`(?:[^`]|``)+`|\w+)(?:\.(?:`(?:[^`]|``)+`|\w+))*)"
_FIELD = re.compile(
    rf"\s*(?:{_TERM})(?:\s+(?P<direction>ASC|DESC))?(?:\s+NULLS\s+(?P<nulls>FIRST|LAST))?\s*(?:,|$)", re.IGNORECASE
)
_PART = re.compile(r"`((?:[^`]|``)+)`|(\w+)")


@dataclass(frozen=True)
class SortKey:
    """One key by which rows are sorted.

    Attributes
    ----------
    expression : str
        Spark SQL over the table's columns.
    ascending, nulls_first : bool
    """

    expression: str
    ascending: bool
    nulls_first: bool


# -- parsing -----------------------------------------------------------------------------------------------------------


def parse(path: ObjectPath, schema: IcebergSchema, text: str) -> SortOrder:
    """Parse the sort order in a property.

    Raises
    ------
    CatalogError
        It cannot be parsed, or names an unknown column or one that cannot be sorted.
    """
    order = SortOrder(*_fields(path, schema, text))
    try:
        order.check_compatible(schema)
    except ValidationError as error:
        raise _wrong(path, text, str(error)) from error
    if keys(schema, order) is None:
        raise _wrong(path, text, "Spark cannot sort by one of its transforms")
    return order


def _fields(path: ObjectPath, schema: IcebergSchema, text: str) -> Iterator[SortField]:
    position = 0
    while position < len(text) or position == 0:
        found = _FIELD.match(text, position)
        if found is None:
            raise _wrong(path, text, f"it cannot be read from {text[position:].strip()[:40]!r} on")
        transform, column = _term(path, text, found)
        direction = SortDirection.DESC if (found["direction"] or "").upper() == "DESC" else SortDirection.ASC
        # As in Spark and Iceberg, NULL is the lowest value.
        first = direction is SortDirection.ASC if found["nulls"] is None else found["nulls"].upper() == "FIRST"
        yield SortField(
            source_id=_source(path, schema, text, column),
            transform=transform,
            direction=direction,
            null_order=NullOrder.NULLS_FIRST if first else NullOrder.NULLS_LAST,
        )
        position = found.end()
        if text[:position].rstrip().endswith(",") and not text[position:].strip():
            raise _wrong(path, text, "it ends with a comma")


def _term(path: ObjectPath, text: str, found: re.Match[str]) -> tuple[Transform[Any, Any], str]:
    if found["column"]:
        return IdentityTransform(), found["column"]
    word = found["word"].lower()
    arguments = [argument.strip() for argument in found["arguments"].split(",")]
    if word.removesuffix("s") in TIMES and len(arguments) == 1:
        return parse_transform(word.removesuffix("s")), arguments[0]
    numbers = [argument for argument in arguments if argument.isdigit()]
    names = [argument for argument in arguments if not argument.isdigit()]
    if word == "truncate" and len(numbers) == len(names) == 1 and int(numbers[0]):
        return TruncateTransform(int(numbers[0])), names[0]
    raise _wrong(path, text, f"there is no {found[0].strip().rstrip(',')}")


def _source(path: ObjectPath, schema: IcebergSchema, text: str, column: str) -> int:
    parts = [(quoted or plain).replace("``", "`") for quoted, plain in _PART.findall(column)]
    try:
        return int(schema.find_field(".".join(parts), case_sensitive=False).field_id)
    except ValueError:
        known = ", ".join(field.name for field in schema.fields)
        raise _wrong(path, text, f"there is no column {column}", f"Columns: {known}.") from None


def _wrong(path: ObjectPath, text: str, why: str, hint: str | None = None) -> CatalogError:
    said = hint or "Write it as: a, days(b) DESC NULLS LAST. Transforms: years, months, days, hours, truncate(n, text)."
    return CatalogError(f"{path} cannot have the sort order {text!r}: {why}.", path=path, hint=said)


# -- as text -----------------------------------------------------------------------------------------------------------


def describe(schema: IcebergSchema, order: SortOrder) -> str | None:
    """A sort order as text; None if there is none, or if the schema does not have its columns."""
    if order.is_unsorted or any(field.source_id not in schema.field_ids for field in order.fields):
        return None
    return ", ".join(_described(schema, field) for field in order.fields)


def _described(schema: IcebergSchema, field: SortField) -> str:
    name = schema.find_column_name(field.source_id) or ""
    column = name if re.fullmatch(r"[\w.]+", name) else quote(name)
    if isinstance(field.transform, TimeTransform):
        column = f"{field.transform}s({column})"
    elif isinstance(field.transform, TruncateTransform):
        column = f"truncate({field.transform.width}, {column})"
    elif not isinstance(field.transform, IdentityTransform):
        column = f"{field.transform}({column})"
    return f"{column} {field.direction} {field.null_order}"


# -- of tables ---------------------------------------------------------------------------------------------------------


def chosen(metadata: TableMetadata, schema: IcebergSchema, order: SortOrder | None) -> SortOrder:
    """The sort order of a changed table, with its id; for None, the current one, if its columns still exist."""
    if order is None:
        kept = metadata.sort_order()
        gone = any(field.source_id not in schema.field_ids for field in kept.fields)
        order = UNSORTED_SORT_ORDER if gone else kept
    known = next((old for old in metadata.sort_orders if old.fields == order.fields), None)
    if known is not None:
        return known
    taken = {old.order_id for old in metadata.sort_orders}
    return SortOrder(*order.fields, order_id=0 if order.is_unsorted else next(n for n in count(1) if n not in taken))


def updates(metadata: TableMetadata, schema: IcebergSchema, order: SortOrder | None) -> list[TableUpdate]:
    """The changes that set the sort order of a table; None as in :func:`chosen`."""
    found = chosen(metadata, schema, order)
    if found.order_id == metadata.default_sort_order_id:
        return []
    known = any(old.order_id == found.order_id for old in metadata.sort_orders)
    added: list[TableUpdate] = [] if known else [AddSortOrderUpdate(sort_order=found)]
    return [*added, SetDefaultSortOrderUpdate(sort_order_id=found.order_id)]


def keys(schema: IcebergSchema, order: SortOrder) -> list[SortKey] | None:
    """The keys by which Spark sorts the rows of each file; None if it cannot."""
    found = []
    for field in order.fields:
        expression = sort_key(schema, field.source_id, field.transform)
        if expression is None:
            return None
        is_ascending = field.direction is SortDirection.ASC
        found.append(SortKey(expression, is_ascending, field.null_order is NullOrder.NULLS_FIRST))
    return found
