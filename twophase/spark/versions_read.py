"""The versions of a table from which the rows of a DataFrame are read.

A DataFrame that was created before another writer's commit still reads the former version. Written back to the table
that it was read from, it would silently remove that writer's rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from twophase.catalog import Catalog
from twophase.model import ObjectPath
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.jvm.scans import scanned_tables


@dataclass(frozen=True)
class StateRead:
    """The version of a table that Spark reads.

    Attributes
    ----------
    name : str
        The table's name in the session.
    catalog : Catalog
    path : ObjectPath
    version : str
    """

    name: str
    catalog: Catalog
    path: ObjectPath
    version: str


#: By Spark's hash of the table, as Spark returns it as a Java object, and by catalog: each session has its own, and all
#: of them may read one version. For as long as any proxy of that version exists.
_states: WeakValueDictionary[tuple[int, int], StateRead] = WeakValueDictionary()


def remember(table_hash: int, state: StateRead) -> StateRead:
    """Remember the version of a table that is read, for as long as a caller keeps the result."""
    key = (table_hash, id(state.catalog))
    known = _states.get(key)
    if known == state:
        return known  # Shared: two proxies of one version have one hash, and the first may outlive the second.
    _states[key] = state
    return state


def version_read(jvm: Jvm, df: Any, catalog: Catalog, path: ObjectPath) -> str | None:
    """The version of a table that a DataFrame reads; of several a superseded one; None if it reads none."""
    target = catalog.canonical(path)
    states = (state for table in scanned_tables(jvm, df) if (state := _state(table, catalog)) is not None)
    versions = sorted({state.version for state in states if catalog.canonical(state.path) == target})
    if len(versions) < 2:
        return versions[0] if versions else None
    now = catalog.table_version(path)
    return next(version for version in versions if version != now)


def states_read(jvm: Jvm, df: Any, catalogs: Mapping[str, Catalog]) -> Iterator[tuple[Catalog, ObjectPath, str | None]]:
    """Each table of these catalogs that a DataFrame reads, and its version; None if that is unknown."""
    for table in scanned_tables(jvm, df):
        name = str(table.name())
        first, _, rest = name.partition(".")
        if (catalog := catalogs.get(first)) is None or not rest:
            continue
        state = _state(table, catalog)
        yield (
            (catalog, ObjectPath.of(*rest.split(".")), None) if state is None else (catalog, state.path, state.version)
        )


def _state(table: Any, catalog: Catalog) -> StateRead | None:
    state = _states.get((int(table.hashCode()), id(catalog)))
    return state if state is not None and str(table.name()) == state.name else None
