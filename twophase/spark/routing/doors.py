"""Lets the unprefixed names of an unchanged PySpark job reach the session's twophase catalog.

The few doors through which a job writes tables are wrapped once for the process: ``SparkSession.sql``,
``DataFrameWriter.saveAsTable`` and ``insertInto``, ``DataFrame.writeTo`` and ``mergeInto``,
``DataStreamWriter.toTable``; for reads inside a transaction ``SparkSession.table`` and ``DataFrameReader.table``; for
streaming ones ``DataStreamReader.table``; ``InheritableThread.start``; and those of ``spark.catalog``
(:mod:`twophase.spark.routing.catalog_api`). A session that is not attached goes straight through. What becomes of a
statement of an attached one is decided in :mod:`twophase.spark.routing.router`.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from twophase.spark import live
from twophase.spark.routing import catalog_api, writers
from twophase.spark.routing.ddl import Change
from twophase.spark.routing.router import Original, Router
from twophase.spark.routing.tokens import leading_words

if TYPE_CHECKING:
    from twophase.spark.session import Handle

_lock = threading.RLock()
_routers: dict[str, Router] = {}
#: How a statement begins that writes nothing.
_READS = tuple((word,) for word in ("SELECT", "SHOW", "DESCRIBE", "DESC", "EXPLAIN", "SET", "USE", "VALUES", "TABLE"))
_known: WeakKeyDictionary[Any, tuple[int, Router | None]] = WeakKeyDictionary()
_generation = 0
#: The method before us and our wrapper, by class and name.
_wrapped: dict[tuple[Any, str], tuple[Original, Original]] = {}


def install(handle: Handle) -> None:
    """Route the statements of an attached session. Idempotent."""
    with _lock:
        doors = _doors()
        for (owner, name), door in doors.items():
            if (owner, name) not in _wrapped:
                _wrap(owner, name, door)
        key = handle.jvm.session_id()
        if key not in _routers:
            _routers[key] = Router(handle, _wrapped[next(iter(doors))][0])
            _forget()


def uninstall(handle: Handle) -> None:
    """Stop routing them; with the last session the doors are put back. Idempotent."""
    with _lock:
        _routers.pop(_key_of(handle), None)
        _forget()
        if _routers:
            return
        for (owner, name), (original, wrapper) in list(_wrapped.items()):
            # Where somebody else has wrapped ours since, it stays, and goes straight through.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)
                del _wrapped[(owner, name)]


def _key_of(handle: Handle) -> str:
    return next((key for key, router in _routers.items() if router.handle is handle), "")


def _forget() -> None:
    global _generation
    _generation += 1


def router_of(spark: Any) -> Router | None:
    """The router of a session; found once for each Python session object and change of the attached ones."""
    known = _known.get(spark)
    if known is None or known[0] != _generation:
        from twophase.spark.jvm.bridge import Jvm

        router = _routers.get(Jvm(spark).session_id()) if hasattr(spark, "_jsparkSession") else None
        known = _known[spark] = (_generation, router)
    return known[1]


def _wrap(owner: Any, name: str, door: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def routed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with live.carried():
            return door(original, self, *args, **kwargs)

    _wrapped[(owner, name)] = (original, routed)
    setattr(owner, name, routed)


def _past_us(spark: Any, run: Callable[[], Any], *, writes: bool = True) -> Any:
    """A call of a session that is not attached: those that are see what it wrote."""
    try:
        return run()
    finally:
        for router in list(_routers.values()) if writes else ():
            if getattr(spark, "_sc", None) is router.spark.sparkContext:
                router.handle.fall_behind()


def _sql(original: Original, spark: Any, sqlQuery: Any, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803
    router = router_of(spark)
    if router is None or not isinstance(sqlQuery, str):
        told = isinstance(sqlQuery, str) and leading_words(sqlQuery, 1) not in _READS
        return _past_us(spark, functools.partial(original, spark, sqlQuery, args, **kwargs), writes=told)
    run = functools.partial(original, spark)
    if not kwargs:
        return router.reading(router.sql(run, sqlQuery, args))
    from pyspark.sql.sql_formatter import SQLStringFormatter

    formatter = SQLStringFormatter(spark)
    try:
        return router.reading(router.sql(run, formatter.format(sqlQuery, **kwargs), args))
    finally:
        formatter.clear()


def _save_as_table(
    original: Original,
    writer: Any,
    name: Any,
    format: Any = None,
    mode: Any = None,
    partitionBy: Any = None,  # noqa: N803
    **options: Any,
) -> None:
    router = router_of(writer._spark)
    if router is None:
        _past_us(writer._spark, functools.partial(original, writer, name, format, mode, partitionBy, **options))
        return
    writer.mode(mode).options(**options)
    if partitionBy is not None:
        writer.partitionBy(partitionBy)
    if format is not None:
        writer.format(format)
    writers.save_as_table(router, writer, functools.partial(original, writer), name)


def _insert_into(original: Original, writer: Any, tableName: Any, overwrite: Any = None) -> None:  # noqa: N803
    router = router_of(writer._spark)
    if router is None:
        _past_us(writer._spark, functools.partial(original, writer, tableName, overwrite))
        return
    if overwrite is not None:
        writer.mode("overwrite" if overwrite else "append")
    writers.insert_into(router, writer, functools.partial(original, writer), tableName)


def _write_to(original: Original, df: Any, table: Any) -> Any:
    router = router_of(df.sparkSession)
    return original(df, table) if router is None else writers.RoutedWriter(router, df, table)


def _merge_into(original: Original, df: Any, table: Any, *args: Any, **kwargs: Any) -> Any:
    router = router_of(df.sparkSession)
    if router is not None and router.in_transaction():
        router.refuse_change(Change("MERGE", "ROWS", router.parts(table)))
    return original(df, table, *args, **kwargs)


def _to_table(original: Original, writer: Any, tableName: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
    router = router_of(writer._spark)
    if router is not None:
        router.handle.refuse_in_transaction("A streaming query", tableName)
        router.refuse_stream(tableName)
    return original(writer, tableName, *args, **kwargs)


def _table(original: Original, spark: Any, tableName: Any) -> Any:  # noqa: N803
    router = router_of(spark)
    if router is None:
        return original(spark, tableName)
    return router.reading(original(spark, router.readable_name(tableName)))


def _read_table(original: Original, reader: Any, tableName: Any) -> Any:  # noqa: N803
    router = router_of(reader._spark)
    if router is None:
        return original(reader, tableName)
    return router.reading(original(reader, router.readable_name(tableName)))


def _read_stream(original: Original, reader: Any, tableName: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
    router = router_of(reader._spark)
    if router is not None:
        router.refuse_stream_of(tableName)
    return original(reader, tableName, *args, **kwargs)


def _start_thread(original: Original, thread: Any) -> None:
    original(thread)  # It takes along what Spark's thread carries.


def _doors() -> dict[tuple[Any, str], Callable[..., Any]]:
    from pyspark import InheritableThread
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.session import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    return {
        (SparkSession, "sql"): _sql,  # first: the routers need what stood there
        (SparkSession, "table"): _table,
        (DataFrameReader, "table"): _read_table,
        (DataFrameWriter, "saveAsTable"): _save_as_table,
        (DataFrameWriter, "insertInto"): _insert_into,
        (DataFrame, "writeTo"): _write_to,
        (DataFrame, "mergeInto"): _merge_into,
        (DataStreamWriter, "toTable"): _to_table,
        (DataStreamReader, "table"): _read_stream,
        (InheritableThread, "start"): _start_thread,
        **catalog_api.doors(router_of),
    }
