"""Which states of a table the rows of a DataFrame were read from.

A DataFrame that was made before another writer's commit still reads what was there then. Written back over the table
that it has read, it would take that writer's rows away, which nobody has seen.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from twophase.catalog import Catalog
from twophase.model import ObjectPath
from twophase.spark.jvm.bridge import Jvm, private_name

if TYPE_CHECKING:
    from twophase.spark.native.table import TableProxy

#: Tables that Spark reads, by the hash that it knows them by: a proxy comes back as a Java object.
_read: WeakValueDictionary[int, TableProxy] = WeakValueDictionary()


def remember(table: TableProxy) -> None:
    """Keep in mind what state of a table a proxy reads."""
    _read[table.hashCode()] = table


def version_read(jvm: Jvm, df: Any, catalog: Catalog, path: ObjectPath) -> str | None:
    """The state of a table that a DataFrame reads, of several one that is over; None where it reads none."""
    target = catalog.canonical(path)
    with private_name("QueryPlan.collectLeaves", jvm.spark):
        leaves = list(_leaves(df._jdf.queryExecution().analyzed()))
    tables = (found for leaf in leaves if (found := _proxy(leaf)) is not None)
    versions = sorted({t.version_read for t in tables if t.version_read is not None and t.is_of(catalog, target)})
    if len(versions) < 2:
        return versions[0] if versions else None
    now = catalog.table_version(path)
    return next(version for version in versions if version != now)


def _leaves(plan: Any) -> Iterator[Any]:
    """The relations of a plan, also of its subqueries and of what is cached of earlier plans."""
    for found in (plan, *_each(plan.subqueriesAll())):
        for leaf in _each(found.collectLeaves()):
            if _kind(leaf) == "InMemoryRelation":
                yield from _leaves(leaf.cacheBuilder().logicalPlan())
            else:
                yield leaf


def _each(found: Any) -> Iterator[Any]:
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _kind(leaf: Any) -> str:
    return str(leaf.getClass().getSimpleName())


def _proxy(leaf: Any) -> TableProxy | None:
    kind = _kind(leaf)
    if kind == "DataSourceV2ScanRelation":
        leaf, kind = leaf.relation(), "DataSourceV2Relation"
    if kind != "DataSourceV2Relation":
        return None
    table = leaf.table()
    found = _read.get(int(table.hashCode()))
    return found if found is not None and str(table.name()) == found.name() else None
