"""Which states of a table the rows of a DataFrame were read from.

A DataFrame that was made before another writer's commit still reads what was there then. Written back over the table
that it has read, it would take that writer's rows away, which nobody has seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from twophase.catalog import Catalog
from twophase.model import ObjectPath
from twophase.spark.jvm.bridge import Jvm
from twophase.spark.jvm.scans import scanned_tables

if TYPE_CHECKING:
    from twophase.spark.native.table import TableProxy

#: Tables that Spark reads, by the hash that it knows them by: a proxy comes back as a Java object.
_read: WeakValueDictionary[int, TableProxy] = WeakValueDictionary()


def remember(table: TableProxy) -> None:
    """Keep in mind what state of a table a proxy reads."""
    _read[table.hashCode()] = table


def _is_table(proxy: TableProxy, catalog: Catalog, path: ObjectPath) -> bool:
    """Whether a proxy is the table of a canonical path; no method of it, as Java may call each of those."""
    return proxy._catalog is catalog and catalog.canonical(proxy._path) == path


def version_read(jvm: Jvm, df: Any, catalog: Catalog, path: ObjectPath) -> str | None:
    """The state of a table that a DataFrame reads, of several one that is over; None where it reads none."""
    target = catalog.canonical(path)
    tables = (found for table in scanned_tables(jvm, df) if (found := _proxy(table)) is not None)
    versions = sorted({t.version_read for t in tables if t.version_read is not None and _is_table(t, catalog, target)})
    if len(versions) < 2:
        return versions[0] if versions else None
    now = catalog.table_version(path)
    return next(version for version in versions if version != now)


def _proxy(table: Any) -> TableProxy | None:
    found = _read.get(int(table.hashCode()))
    return found if found is not None and str(table.name()) == found.name() else None
