"""The changes of type that a session table may see, by the catalog's options and the table's own properties."""

from __future__ import annotations

from collections.abc import Mapping

from twophase.catalogs.hive.schema.readers import NATIVE
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import HiveTable
from twophase.errors import ConfigurationError
from twophase.model import ObjectPath
from twophase.schema import PromotionPolicy, promotion_policy

#: Table properties that override the catalog's options, with their values.
_CHOICES: Mapping[str, tuple[str, ...]] = {
    "alter": ("native", "rewrite"),
    "promotion": ("exact", "wide", "implicit", "hudi", "explicit"),
    "on_cast_failure": ("error", "null"),
}


def of_rewrite(store: HiveStore, table: HiveTable, path: ObjectPath) -> PromotionPolicy | None:
    """Return the changes of type that a rewrite may make; None if the table is not to be rewritten.

    Raises
    ------
    ConfigurationError
        A property of the table has a value that it cannot have.
    """
    chosen = {name: _choice(store, table, path, name) for name in _CHOICES}
    if chosen["alter"] == "native":
        return None
    return promotion_policy(chosen["promotion"], on_cast_failure=chosen["on_cast_failure"])


def native(store: HiveStore, table: HiveTable, path: ObjectPath) -> PromotionPolicy:
    """Return the changes of type that may be made without a rewrite: those that keep each value, or fewer.

    Raises
    ------
    ConfigurationError
        As for :func:`of_rewrite`.
    """
    return promotion_policy("exact") if _choice(store, table, path, "promotion") == "exact" else NATIVE


def _choice(store: HiveStore, table: HiveTable, path: ObjectPath, name: str) -> str:
    value = table.properties.get(f"twophase.{name}", getattr(store.settings, name)).lower()
    if value not in _CHOICES[name]:
        raise ConfigurationError(
            f"{path} was not changed: its property twophase.{name} is {' or '.join(_CHOICES[name])}, not {value!r}.",
            path=path,
        )
    return str(value)
