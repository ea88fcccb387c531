"""The catalog tables that a DataFrame reads, as named in its plan."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from twophase.catalogs.hive.stamps import STAMP
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object
from twophase.spark.jvm.partitions import path_of


@dataclass(frozen=True, slots=True)
class SessionTable:
    """A table of the session catalog in a plan: the location of its files when Spark analysed the plan.

    Attributes
    ----------
    database, name : str
    location : str or None
        Hadoop path string.
    stamp : str or None
        The transaction that published this version, as recorded in the metastore.
    transaction_id : str or None
        The transaction that checks its files when the plan runs.
    files : callable
        The JVM's index of the files that the plan reads; None if they are listed only when it runs.
    """

    database: str
    name: str
    location: str | None
    stamp: str | None
    transaction_id: str | None
    files: Callable[[], Any]


def session_tables(jvm: Jvm, df: Any) -> list[SessionTable]:
    """Each table of the session catalog that is read: also in views, subqueries, and cached queries."""
    if not hasattr(df, "_jdf"):
        return []
    with private_name("LogicalPlan.collectLeaves", jvm.spark):
        scans = _scans(jvm)
        return [
            SessionTable(
                facts["database"],
                facts["name"],
                None if facts["location"] is None else path_of(facts["location"]),
                facts["stamp"],
                facts["transaction"],
                functools.partial(scans.files, df._jdf, place),
            )
            for place, facts in enumerate(json.loads(str(scans.tables(df._jdf, STAMP)))["tables"])
        ]


def lists_the_same(jvm: Jvm, files: Any) -> bool:
    """Return whether an index of files is up to date; afterwards it is.

    The partitions of a partitioned table are listed when the plan runs, from now on all of them again: cached listings
    may be older, which is not reported.
    """
    with private_name("FileIndex.inputFiles", jvm.spark):
        if _kind(files) not in ("InMemoryFileIndex", "LazyFileIndex"):
            files.refresh()
            return True
        before = _listed(jvm, files)
        files.refresh()
        return before == _listed(jvm, files)


def _listed(jvm: Jvm, files: Any) -> tuple[list[str], int]:
    """The names, and the total bytes. They are fetched as one text: each name would cost a call."""
    names = str(jvm.jvm.scala.runtime.ScalaRunTime.stringOf(files.inputFiles()))
    return sorted(names.removeprefix("Array(").removesuffix(")").split(", ")), int(files.sizeInBytes())


def scanned_tables(jvm: Jvm, df: Any) -> list[Any]:
    """Each Java ``Table`` of another catalog that is read: also in subqueries, and in cached earlier plans."""
    if not hasattr(df, "_jdf"):
        return []
    with private_name("LogicalPlan.collectLeaves", jvm.spark):
        found = _scans(jvm).sources(df._jdf)
        return [] if found is None else [found.get(place) for place in range(found.size())]


def empty_file(jvm: Jvm, scan: Any) -> str | None:
    """The location of a file without a single byte among those of a Java ``FileScan``; None if there is none."""
    with private_name("PartitioningAwareFileIndex.allFiles", jvm.spark):
        found = _scans(jvm).emptyFile(scan.fileIndex())
    return None if found is None else str(found)


def _scans(jvm: Jvm) -> Any:
    return jvm.once(("scans",), lambda: java_object(jvm, "Scans"))


def _kind(node: Any) -> str:
    return str(node.getClass().getSimpleName())
