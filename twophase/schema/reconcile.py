"""Reconciliation of a write with its table: columns that the table adopts, and values that are cast or filled in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import count

import pyarrow as pa

from twophase.schema.apply import apply_changes
from twophase.schema.changes import AddField, Change, ChangeNullability, ChangeType, Position, after, before, first
from twophase.schema.convert_arrow import arrow_type, assign_ids
from twophase.schema.errors import IncompatibleWriteError
from twophase.schema.leaf import family
from twophase.schema.merge import plan_read
from twophase.schema.names import fold, format_path
from twophase.schema.promotion import EXACT, Loss, PromotionPolicy, classify, promotion_policy
from twophase.schema.read_field import ReadField
from twophase.schema.read_plan import ReadPlan
from twophase.schema.schema import Field, Kind, Schema


@dataclass(frozen=True)
class ReconcilePolicy:
    """The allowed differences between a write and its table.

    Parameters
    ----------
    missing : bool
        A column that is missing in the write gets its default, or NULL. It is never dropped.
    new : str
        ``add`` the column to the table, ``ignore`` it, or ``refuse`` the write.
    widen : bool
        The table adopts a wider type, if ``promotion`` allows it.
    cast : bool
        A value is cast to the table's type if the cast is lossless, or if ``promotion`` allows it.
    reorder : bool
        With matching by name, columns may be in any order.
    relax_not_null : bool
        A NOT NULL column becomes nullable if the incoming one is nullable. Otherwise it stays NOT NULL, and a NULL is
        an error at the write.
    promotion : PromotionPolicy
    """

    missing: bool = True
    new: str = "add"
    widen: bool = True
    cast: bool = True
    reorder: bool = True
    relax_not_null: bool = False
    promotion: PromotionPolicy = field(default_factory=lambda: EXACT)

    def __post_init__(self) -> None:
        object.__setattr__(self, "promotion", promotion_policy(self.promotion))
        if self.new not in ("add", "ignore", "refuse"):
            raise IncompatibleWriteError(f"new cannot be {self.new!r}.", allowed=("add", "ignore", "refuse"))


#: The table's schema follows the writes (the default).
EVOLVE = ReconcilePolicy()
#: The table keeps its schema; values are widened and missing columns filled in.
KEEP = ReconcilePolicy(new="refuse", widen=False)
#: The write must have exactly the table's columns, in the same order.
STRICT = ReconcilePolicy(missing=False, new="refuse", widen=False, cast=False, reorder=False)


@dataclass(frozen=True)
class Reconciliation:
    """The effect of a write on its table.

    Attributes
    ----------
    schema : Schema
        The table's schema after the write; the given object itself if nothing changes.
    changes : tuple of Change
        The changes that lead to it.
    plan : ReadPlan
        The conversion of incoming rows to rows of ``schema``, for PyArrow and for Spark.
    """

    schema: Schema
    changes: tuple[Change, ...]
    plan: ReadPlan


def reconcile(
    table: Schema,
    incoming: pa.Schema,
    policy: ReconcilePolicy = EVOLVE,
    *,
    by: str = "name",
    highest_field_id: int | None = None,
) -> Reconciliation:
    """Reconcile incoming columns with a table, at every level.

    Parameters
    ----------
    table : Schema
    incoming : pyarrow.Schema
        Schema of the rows to write. Its ids are ignored.
    policy : ReconcilePolicy
    by : str
        ``name`` (ignoring case) or ``position``; by position, additional columns are appended.
    highest_field_id : int, optional
        As in :func:`twophase.schema.apply_changes`.

    Raises
    ------
    IncompatibleWriteError
        The policy does not allow a difference; the error names it, both types, and the allowed alternatives.
    KeyFieldError
        The write would change the type of a key.
    """
    if by not in ("name", "position"):
        raise IncompatibleWriteError(f"Columns cannot be matched by {by!r}.", allowed=("name", "position"))
    # Only for the tree of the incoming columns; the ids are replaced below.
    rows = assign_ids(incoming)
    fitter = _Fitter(policy, by)
    fitter.siblings(rows.fields, table.fields, None, ())
    changes = tuple(fitter.changes)
    evolved = apply_changes(table, changes, promotion=policy.promotion, highest_field_id=highest_field_id)
    source = _bind(rows, evolved, by)
    plan = plan_read(source, evolved, on_cast_failure=policy.promotion.on_cast_failure)
    return Reconciliation(evolved, changes, replace(plan, fields=tuple(_filled(read) for read in plan.fields)))


Match = tuple[Field, Field | None]


def _match(incoming: Sequence[Field], present: Sequence[Field], by: str) -> list[Match]:
    if by == "position":
        return [(node, present[i] if i < len(present) else None) for i, node in enumerate(incoming)]
    named = {fold(node.name): node for node in present}
    return [(node, named.get(fold(node.name))) for node in incoming]


class _Fitter:
    """A collector of the changes to a table that a write requires."""

    def __init__(self, policy: ReconcilePolicy, by: str) -> None:
        self.policy = policy
        self.by = by
        self.changes: list[Change] = []

    def siblings(
        self, incoming: Sequence[Field], present: Sequence[Field], parent: Field | None, above: tuple[str, ...]
    ) -> None:
        matches = _match(incoming, present, self.by)
        self._check_order([old for _, old in matches if old is not None], present, above)
        previous: str | int | None = None
        for i, (new, old) in enumerate(matches):
            if old is not None:
                self.one(new, old, (*above, old.name))
                previous = old.id
            elif self._add(new, parent, self._place(previous, matches[i:]), above):
                previous = new.name
        found = {old.id for _, old in matches if old is not None}
        for old in present:
            if old.id not in found:
                self._missing(old, (*above, old.name))

    def one(self, new: Field, old: Field, path: tuple[str, ...]) -> None:
        if new.leaf is not None and family(new.leaf) == "null" and old.kind is not Kind.LEAF:
            self._nullability(new, old, path)
            return
        if new.kind is not old.kind:
            ways = (f"values of type {old.type_name}", "a new column of another name")
            raise self._refuse(f"comes as {new.type_name} and is {old.type_name} in the table", path, old, new, ways)
        if new.leaf is not None:
            self._leaf(new, old, path)
        else:
            self.siblings(new.children, old.children, old, path)
        self._nullability(new, old, path)

    def _check_order(self, found: Sequence[Field], present: Sequence[Field], above: tuple[str, ...]) -> None:
        ids = [node.id for node in found]
        wanted = set(ids)
        if self.policy.reorder or ids == [node.id for node in present if node.id in wanted]:
            return
        where = format_path(above) or "the table"
        raise IncompatibleWriteError(
            f"The columns of {where} come in another order: {', '.join(node.name for node in found)}.",
            field_path=format_path(above),
            old_type=", ".join(node.type_name for node in present),
            new_type=", ".join(node.type_name for node in found),
            allowed=("the table's order", "reorder=True"),
        )

    def _place(self, previous: str | int | None, following: Sequence[Match]) -> Position | None:
        """The position of a new column: after its predecessor, or before its successor."""
        if self.by == "position":
            return None
        if previous is not None:
            return after(previous)
        behind = next((old for _, old in following if old is not None), None)
        return first() if behind is None else before(behind.id)

    def _add(self, new: Field, parent: Field | None, place: Position | None, above: tuple[str, ...]) -> bool:
        """Add a column; return True if it was added."""
        path = (*above, new.name)
        if self.policy.new == "ignore":
            return False
        if self.policy.new == "refuse":
            raise self._refuse("is no column of the table", path, None, new, ("new='add'", "new='ignore'"))
        typed = self._typed(new, path)
        if typed is None:
            return False
        owner = None if parent is None else parent.id
        # It is always nullable, as existing rows have no value for it.
        self.changes.append(AddField((new.name,), arrow_type(typed), comment=new.comment, position=place, parent=owner))
        return True

    def _typed(self, new: Field, path: tuple[str, ...]) -> Field | None:
        """A new column without fields that are NULL in all rows and so have no type yet; None if nothing is left.

        Such a field is added by the write with its first value; a column of type null could not store one.

        Raises
        ------
        IncompatibleWriteError
            It cannot be left out without shifting other columns or losing the enclosing lists.
        """
        if new.leaf is not None:
            if family(new.leaf) != "null":
                return new
            if self.by == "name":
                return None
        elif new.kind is Kind.STRUCT:
            typed = [self._typed(child, (*path, child.name)) for child in new.children]
            kept = tuple(child for child in typed if child is not None)
            return replace(new, children=kept) if kept else None
        elif all(node.leaf is None or family(node.leaf) != "null" for node in new.walk()):
            return new
        ways = ("a cast to its type", *(() if self.by == "name" else ("by='name'",)))
        raise self._refuse("is new, and NULL in all rows, so that its type is not known", path, None, new, ways)

    def _missing(self, old: Field, path: tuple[str, ...]) -> None:
        if not self.policy.missing:
            raise self._refuse("is missing in the write", path, old, None, ("missing=True",))
        if old.nullable or old.write_default is not None:
            return
        if not self.policy.relax_not_null:
            raise self._refuse(
                "is NOT NULL without a default, and missing in the write", path, old, None, ("relax_not_null=True",)
            )
        self.changes.append(ChangeNullability(old.id, True))

    def _nullability(self, new: Field, old: Field, path: tuple[str, ...]) -> None:
        if new.nullable and not old.nullable and self.policy.relax_not_null and old.name != "key":
            self.changes.append(ChangeNullability(old.id, True))

    def _leaf(self, new: Field, old: Field, path: tuple[str, ...]) -> None:
        wanted = self._fit(new.leaf, old.leaf)
        if wanted is None:
            ways = [*(() if self.policy.widen else ("widen=True",)), *(() if self.policy.cast else ("cast=True",))]
            ways.append(f"values of type {old.type_name}")
            ways.extend(_policies(new.leaf, old.leaf, self.policy.promotion))
            raise self._refuse(f"comes as {new.type_name} and is {old.type_name} in the table", path, old, new, ways)
        if wanted != old.leaf:
            self.changes.append(ChangeType(old.id, wanted))

    def _fit(self, new: pa.DataType, old: pa.DataType) -> pa.DataType | None:
        """The type that the table will have; None if the write does not fit."""
        policy = self.policy
        if new == old:
            return old
        if policy.cast and classify(new, old) <= Loss.WIDE:
            return old
        wider = _common(new, old)
        if policy.widen and wider is not None and policy.promotion.allows(old, wider):
            return wider
        if policy.cast and policy.promotion.allows(new, old):
            return old
        return new if policy.widen and policy.promotion.allows(old, new) else None

    def _refuse(
        self, what: str, path: tuple[str, ...], old: Field | None, new: Field | None, ways: Iterable[str]
    ) -> IncompatibleWriteError:
        return IncompatibleWriteError(
            f"The column {format_path(path)} {what} (promotion policy {self.policy.promotion.name!r}).",
            field_path=format_path(path),
            old_type=None if old is None else old.type_name,
            new_type=None if new is None else new.type_name,
            allowed=ways,
        )


def _policies(new: pa.DataType, old: pa.DataType, current: PromotionPolicy) -> list[str]:
    policies = [promotion_policy(name) for name in current.choices if name not in ("exact", current.name)]
    return [f"policy {policy.name!r}" for policy in policies if policy.allows(old, new) or policy.allows(new, old)]


def _common(new: pa.DataType, old: pa.DataType) -> pa.DataType | None:
    """The narrowest lossless common type: the wider one, or, for two decimals, one that fits both."""
    if classify(old, new) <= Loss.WIDE:
        return new
    if family(new) == family(old) == "decimal":
        scale = max(new.scale, old.scale)
        precision = max(new.precision - new.scale, old.precision - old.scale) + scale
        return pa.decimal128(precision, scale) if precision <= 38 else None
    return None


def _bind(rows: Schema, table: Schema, by: str) -> Schema:
    """Assign the table's ids to incoming columns; columns that the table does not adopt get higher ids."""
    beyond = count(table.highest_field_id + 1)

    def siblings(incoming: Sequence[Field], present: Sequence[Field]) -> tuple[Field, ...]:
        bound = []
        for new, old in _match(incoming, present, by):
            children = siblings(new.children, old.children if old is not None else ())
            lost = old is None or (new.kind is not old.kind)
            number = next(beyond) if lost or old is None else old.id
            bound.append(replace(new, id=number, children=children))
        return tuple(bound)

    return Schema(siblings(rows.fields, table.fields))


def _filled(read: ReadField) -> ReadField:
    """Use the write default for missing values, not the initial default of existing rows."""
    if read.source is None:
        return replace(read, constant=read.field.write_default)
    if not read.children:
        return read
    return replace(read, children=tuple(_filled(child) for child in read.children))
