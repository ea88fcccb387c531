"""The tables of catalogs that a DataFrame reads, as its plan names them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError

from twophase.catalogs.hive.metastore import STAMP
from twophase.spark.jvm.bridge import Jvm, private_name
from twophase.spark.jvm.partitions import path_of
from twophase.spark.jvm.statements import catalog_table, option_text


@dataclass(frozen=True, slots=True)
class SessionTable:
    """A table of the session catalog as a plan reads it: where Spark found its files when it analysed the plan.

    Attributes
    ----------
    database, name : str
    location : str or None
        Hadoop path string.
    stamp : str or None
        The transaction that published what is there, as the metastore keeps it.
    """

    database: str
    name: str
    location: str | None
    stamp: str | None


def session_tables(jvm: Jvm, df: Any) -> list[SessionTable]:
    """Each table of the session catalog that is read: also in views, subqueries, and by what is cached."""
    if not hasattr(df, "_jdf"):
        return []
    with private_name("LogicalPlan.collectLeaves", jvm.spark):
        return [found for leaf in _leaves(df._jdf.queryExecution().analyzed()) for found in _session_table(leaf)]


def _session_table(leaf: Any) -> Iterator[SessionTable]:
    kind = _kind(leaf)
    table = catalog_table(kind, leaf) if kind in ("LogicalRelation", "HiveTableRelation") else None
    if table is not None:
        identifier, location = table.identifier(), option_text(table.storage().locationUri())
        yield SessionTable(
            str(option_text(identifier.database())),
            str(identifier.table()),
            None if location is None else path_of(location),
            option_text(table.properties().get(STAMP)),
        )


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
