"""Differences between the versions of Spark (4.0 to 4.3) in its catalog interface, and in how it reads.

The connector distinguishes versions here, and nowhere else. The private names that only some versions
have are listed in :mod:`twophase.spark.jvm.private`.
"""

from __future__ import annotations

from typing import Any


def definition_facts(arguments: tuple[Any, ...]) -> tuple[Any, Any, Any]:
    """The columns, transforms and properties of a new table, from what Spark passes behind its name."""
    if len(arguments) == 1:  # TableInfo, Spark 4.1 and later
        info = arguments[0]
        return info.columns(), info.partitions(), info.properties()
    columns, transforms, properties = arguments
    return columns, transforms, properties


def is_for_writing(arguments: tuple[Any, ...]) -> bool:
    """Whether Spark intends to write a table, from what it passes to ``loadTable`` behind its name."""
    if not arguments or isinstance(arguments[0], (int, str)):  # or the state of a time travel, Spark 4.0
        return False
    first = arguments[0]
    if len(arguments) == 1:  # a set of privileges, Spark 4.0
        return not first.isEmpty()
    return not first.writePrivileges().isEmpty()  # a TableContext, Spark 4.1 and later


def time_travel(arguments: tuple[Any, ...]) -> dict[str, Any]:
    """The ``VERSION AS OF`` or ``TIMESTAMP AS OF`` of a read, for :meth:`Catalog.read_source_as_of`; empty if none."""
    if not arguments:
        return {}
    first = arguments[0]
    if isinstance(first, (int, str)):  # Spark 4.0
        return {"version": first} if isinstance(first, str) else {"timestamp": first}
    if len(arguments) == 1 or not first.timeTravel().isPresent():
        return {}
    travel = first.timeTravel().get()
    if str(travel.getClass().getSimpleName()) == "AsOfVersion":
        return {"version": str(travel.version())}
    return {"timestamp": int(travel.micros())}


def tells_empty_structs(spark: Any) -> bool:
    """Whether a struct whose read fields are all missing from a file is not read as NULL: Spark 4.3 and later."""
    return tuple(map(int, str(spark.version).split(".")[:2])) >= (4, 3)
