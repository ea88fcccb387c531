"""The tables of catalogs that a DataFrame reads, as its plan names them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError

from twophase.spark.jvm.bridge import Jvm, private_name


def scanned_tables(jvm: Jvm, df: Any) -> Iterator[Any]:
    """Each Java ``Table`` that is read: also in subqueries, and by what is cached of earlier plans."""
    with private_name("LogicalPlan.collectLeaves", jvm.spark):
        for leaf in _leaves(df._jdf.queryExecution().analyzed()):
            relation = leaf.relation() if _kind(leaf) == "DataSourceV2ScanRelation" else leaf
            if _kind(relation) == "DataSourceV2Relation":
                yield relation.table()


def _leaves(plan: Any) -> Iterator[Any]:
    for found in (plan, *_each(plan.subqueriesAll())):
        for leaf in _each(found.collectLeaves()):
            yield from _cached(leaf) if _kind(leaf) == "InMemoryRelation" else (leaf,)


def _cached(relation: Any) -> list[Any]:
    try:
        return list(_leaves(relation.cacheBuilder().logicalPlan()))
    except Py4JError:  # Not every version keeps it.
        return []


def _each(found: Any) -> Iterator[Any]:
    iterator = found.iterator()
    while iterator.hasNext():
        yield iterator.next()


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
