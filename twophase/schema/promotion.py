"""Type promotion: a table of casts, and named policies that each allow a part of it.

Sources: Iceberg's table of type promotion (``exact``), Flink's implicit casts as FLIP-226 uses them (``implicit``,
``explicit``), Hudi's matrix of type changes (``hudi``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

import pyarrow as pa

from twophase.schema.errors import SchemaError, TypeChangeError
from twophase.schema.leaf import FAMILIES, family, type_name


class Loss(IntEnum):
    """The possible loss of a cast, in ascending order."""

    #: The same type.
    SAME = 0
    #: Exact, and all engines can read old files as the new type without a cast.
    EXACT = 1
    #: Exact, but readers must cast.
    WIDE = 2
    #: Never fails, but may round or change the form.
    ROUNDS = 3
    #: May fail on a value.
    MAY_FAIL = 4
    #: There is no such cast.
    IMPOSSIBLE = 5


_INTEGERS = {"byte": 3, "short": 5, "int": 10, "long": 19}
_FLOATS = ("float", "double")
_EXACT_IN_FLOAT = {"float": ("byte", "short"), "double": ("byte", "short", "int")}
_TO_STRING = frozenset(("boolean", *_INTEGERS, *_FLOATS, "decimal", "date", "timestamp", "timestamp_ntz", "time"))
_FROM_STRING = frozenset(("boolean", *_INTEGERS, *_FLOATS, "decimal", "date"))


@lru_cache(maxsize=65536)
def classify(old: pa.DataType, new: pa.DataType) -> Loss:
    """Classify the possible loss of a cast from the old type to the new one."""
    if old == new:
        return Loss.SAME
    source, target = family(old), family(new)
    if source is None or target is None:
        return Loss.IMPOSSIBLE
    if source == "null":
        return Loss.WIDE
    if source == target and source != "decimal":
        # Only the representation differs (large_string, the name of a time zone); the values are the same.
        return Loss.EXACT
    return _classify(source, target, old, new)


def _classify(source: str, target: str, old: pa.DataType, new: pa.DataType) -> Loss:
    if target == "string":
        return Loss.ROUNDS if source in _TO_STRING else _fails_if(source == "binary")
    if source == "string":
        return _fails_if(target in _FROM_STRING or target == "binary") if target != "binary" else Loss.ROUNDS
    if target == "decimal":
        return _to_decimal(source, old, new)
    if source == "decimal":
        return Loss.ROUNDS if target in _FLOATS else _fails_if(target in _INTEGERS)
    if source in _INTEGERS:
        return _from_integer(source, target)
    if source in _FLOATS:
        return _from_float(source, target)
    if (source, target) == ("date", "timestamp_ntz"):
        return Loss.WIDE
    return Loss.ROUNDS if (source, target) == ("timestamp_ntz", "date") else Loss.IMPOSSIBLE


def _fails_if(possible: bool) -> Loss:
    return Loss.MAY_FAIL if possible else Loss.IMPOSSIBLE


def _from_integer(source: str, target: str) -> Loss:
    if target in _INTEGERS:
        if _INTEGERS[target] < _INTEGERS[source]:
            return Loss.MAY_FAIL
        return Loss.EXACT if (source, target) == ("int", "long") else Loss.WIDE
    if target in _FLOATS:
        return Loss.WIDE if source in _EXACT_IN_FLOAT[target] else Loss.ROUNDS
    return Loss.IMPOSSIBLE


def _from_float(source: str, target: str) -> Loss:
    if target in _FLOATS:
        return Loss.EXACT if target == "double" else Loss.ROUNDS
    return _fails_if(target in _INTEGERS)


def _to_decimal(source: str, old: pa.DataType, new: pa.DataType) -> Loss:
    room = new.precision - new.scale
    if source in _INTEGERS:
        return Loss.WIDE if room >= _INTEGERS[source] and new.scale >= 0 else Loss.MAY_FAIL
    if source == "decimal":
        if room < old.precision - old.scale or new.scale < old.scale:
            return Loss.MAY_FAIL
        return Loss.EXACT if new.scale == old.scale else Loss.WIDE
    return _fails_if(source in _FLOATS)


#: Hudi's matrix of type changes, source family to target families.
HUDI_MATRIX: dict[str, frozenset[str]] = {
    "int": frozenset(("int", "long", "float", "double", "string", "decimal")),
    "long": frozenset(("long", "double", "string", "decimal")),
    "float": frozenset(("float", "double", "string", "decimal")),
    "double": frozenset(("double", "string", "decimal")),
    "decimal": frozenset(("string", "decimal")),
    "string": frozenset(("string", "decimal", "date")),
    "date": frozenset(("string", "date")),
}


def _exact(old: pa.DataType, new: pa.DataType) -> bool:
    return classify(old, new) <= Loss.EXACT


def _wide(old: pa.DataType, new: pa.DataType) -> bool:
    return classify(old, new) <= Loss.WIDE


def _implicit(old: pa.DataType, new: pa.DataType) -> bool:
    loss = classify(old, new)
    # Flink has no implicit cast to text, although it cannot fail for a number, nor from double to float.
    return loss <= Loss.WIDE or (
        loss is Loss.ROUNDS
        and family(new) not in ("string", "binary")
        and (family(old), family(new)) != ("double", "float")
    )


def _explicit(old: pa.DataType, new: pa.DataType) -> bool:
    return classify(old, new) < Loss.IMPOSSIBLE


def _hudi(old: pa.DataType, new: pa.DataType) -> bool:
    source, target = family(old), family(new)
    if source == target == "decimal":
        return classify(old, new) <= Loss.WIDE
    return old == new or target in HUDI_MATRIX.get(source or "", frozenset())


_RULES: dict[str, Callable[[pa.DataType, pa.DataType], bool]] = {
    "exact": _exact,
    "wide": _wide,
    "hudi": _hudi,
    "implicit": _implicit,
    "explicit": _explicit,
}

#: Names of the promotion policies.
POLICY_NAMES = tuple(_RULES)
#: The ways to handle a value that does not fit the new type.
CAST_FAILURES = ("error", "null")


@dataclass(frozen=True)
class PromotionPolicy:
    """A named rule for changes of type; created by :func:`promotion_policy`.

    Attributes
    ----------
    name : str
        ``exact``, ``wide``, ``hudi``, ``implicit`` or ``explicit``.
    on_cast_failure : str
        Handling of a value that does not fit the new type: ``error`` or ``null``.
    choices : tuple of str
        The policies that the user can choose instead, for errors.
    """

    name: str = "exact"
    on_cast_failure: str = "error"
    choices: tuple[str, ...] = field(default=POLICY_NAMES, compare=False, repr=False)

    def allows(self, old: pa.DataType, new: pa.DataType) -> bool:
        """Return True if a field of the old type may be changed to the new type.

        Parameters
        ----------
        old : pyarrow.DataType
            The type that the field has.
        new : pyarrow.DataType
            The requested type; the same type is always allowed.
        """
        return _RULES[self.name](old, new)

    def check(self, path: str, old: pa.DataType, new: pa.DataType) -> None:
        """Refuse a change that the policy does not allow.

        Parameters
        ----------
        path : str
            The field, for the error.
        old : pyarrow.DataType
            The type that the field has.
        new : pyarrow.DataType
            The requested type.

        Raises
        ------
        TypeChangeError
            It names both types, the changes that the policy allows, and the policies that allow this change.
        """
        if self.allows(old, new):
            return
        others = [name for name in self.choices if name != self.name and _RULES[name](old, new)]
        raise TypeChangeError(
            f"The type of {path} cannot change from {type_name(old)} to {type_name(new)} "
            f"under the policy {self.name!r}.",
            field_path=path,
            old_type=type_name(old),
            new_type=type_name(new),
            allowed=[
                *self._targets(old),
                *(f"policy {name!r}" for name in others),
                f"a new field of type {type_name(new)}",
            ],
        )

    def _targets(self, old: pa.DataType) -> Iterable[str]:
        names = [type_name(new) for new in _examples(old) if new != old and self.allows(old, new)]
        if names:
            yield f"{type_name(old)} to {' or '.join(names)}"


@lru_cache(maxsize=1024)
def _examples(old: pa.DataType) -> tuple[pa.DataType, ...]:
    """One type of each family; the decimal fits the old type."""
    scale = old.scale if family(old) == "decimal" else 0
    wider = pa.decimal128(38, scale) if 0 <= scale <= 38 else pa.decimal128(38, 0)
    plain = (pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), wider, pa.string())
    return (*plain, pa.date32(), pa.timestamp("us"))


#: The default policy: changes that all engines support.
EXACT = PromotionPolicy("exact")


def promotion_policy(
    name: str | PromotionPolicy, *, on_cast_failure: str = "error", choices: tuple[str, ...] = POLICY_NAMES
) -> PromotionPolicy:
    """Return a promotion policy by name.

    Parameters
    ----------
    name : str or PromotionPolicy
        ``exact`` (the default everywhere), ``wide`` (exact values, cast on read), ``hudi`` (Hudi's matrix),
        ``implicit`` (FLIP-226: casts that cannot fail) or ``explicit`` (all casts). A policy is returned unchanged.
    on_cast_failure : str
        Handling of a value that does not fit the new type: ``error`` or ``null``.
    choices : tuple of str
        The policies that the user can choose instead, for errors.

    Raises
    ------
    SchemaError
        There is no such policy or mode.
    """
    if isinstance(name, PromotionPolicy):
        return name
    if name not in _RULES:
        raise SchemaError(f"There is no promotion policy {name!r}.", allowed=POLICY_NAMES)
    if on_cast_failure not in CAST_FAILURES:
        raise SchemaError(f"on_cast_failure cannot be {on_cast_failure!r}.", allowed=CAST_FAILURES)
    return PromotionPolicy(name, on_cast_failure, choices)


def matrix(policy: str | PromotionPolicy) -> dict[str, dict[str, bool]]:
    """The policy as a table: source family, target family, allowed.

    The decimal has 38 digits, 18 of them after the decimal point.

    Parameters
    ----------
    policy : str or PromotionPolicy
        A policy or the name of one.
    """
    chosen = promotion_policy(policy)
    return {old: {new: chosen.allows(SAMPLE_TYPES[old], SAMPLE_TYPES[new]) for new in FAMILIES} for old in FAMILIES}


#: One type of each family, for tables of allowed changes.
SAMPLE_TYPES: dict[str, pa.DataType] = {
    "null": pa.null(),
    "boolean": pa.bool_(),
    "byte": pa.int8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "decimal": pa.decimal128(38, 18),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "time": pa.time64("us"),
}
