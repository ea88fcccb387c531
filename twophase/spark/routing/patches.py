"""Patches that route the unprefixed names of an unchanged PySpark job to the session's twophase catalog.

Rules on Spark's plans route statements (:mod:`twophase.spark.routing.plan_answers`). The context of a statement, and
facts that no plan contains, need a few patched methods of PySpark, which are wrapped once for the process:
``SparkSession.sql``, ``DataFrameWriter.saveAsTable`` and ``insertInto``, the writing ones of ``DataFrameWriterV2``,
``DataStreamWriter.toTable``; for reads inside a transaction ``SparkSession.table`` and ``DataFrameReader.table``; for
streaming ones ``DataStreamReader.table``; ``InheritableThread.start``; ``SparkContext.stop``; those that create
sessions from others (:mod:`twophase.spark.children`); and those of ``spark.catalog``
(:mod:`twophase.spark.routing.catalog_api`). Calls of a session that is not attached are passed through.
:mod:`twophase.spark.routing.router` decides how a statement of an attached one is run.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from weakref import WeakKeyDictionary

from twophase.spark import active, begun, children
from twophase.spark.attached import AttachedSession
from twophase.spark.routing import catalog_api, plan_answers
from twophase.spark.routing.router import READS, Original, Router
from twophase.spark.routing.save import insert_into, save_as_table
from twophase.spark.routing.words import leading_words
from twophase.spark.write_hints import carrying_hints, merges_schema

_lock = threading.RLock()
_routers: dict[str, Router] = {}
#: The methods of a ``DataFrameWriterV2`` that write.
_WRITES = ("create", "replace", "createOrReplace", "append", "overwrite", "overwritePartitions")
#: Attribute of a ``DataFrameWriterV2``.
_OPTIONS_GIVEN = "_twophase_options"
_known: WeakKeyDictionary[Any, tuple[int, Router | None]] = WeakKeyDictionary()
_generation = 0
#: The original method and its wrapper, by class and name.
_wrapped: dict[tuple[Any, str], tuple[Original, Original]] = {}


def install(session: AttachedSession, parent_of: children.ParentOf) -> None:
    """Route the statements of an attached session. Idempotent.

    Parameters
    ----------
    session : AttachedSession
    parent_of : callable
        Attaches the sessions that are created from an attached one; the same in every call.
    """
    with _lock:
        for (owner, name), patch in _patches(parent_of).items():
            if (owner, name) not in _wrapped:
                _wrap(owner, name, patch)
        key = session.jvm.session_id()
        if key not in _routers:
            router = _routers[key] = Router(session)
            session.state.rules = plan_answers.installed(router)
            _forget()


def uninstall(session: AttachedSession) -> None:
    """Stop routing the statements of a session; with the last session the methods are restored. Idempotent."""
    with _lock:
        _routers.pop(_key_of(session), None)
        if session.rules is not None:
            session.rules.uninstall()
            session.state.rules = None
        _forget()
        if _routers:
            return
        for (owner, name), (original, wrapper) in list(_wrapped.items()):
            # If another library has wrapped our wrapper since, it stays, and passes calls through.
            if getattr(owner, name) is wrapper:
                setattr(owner, name, original)
                del _wrapped[(owner, name)]


def _key_of(session: AttachedSession) -> str:
    return next((key for key, router in _routers.items() if router.session is session), "")


def _forget() -> None:
    global _generation
    _generation += 1
    _known.clear()  # A router holds its session.


def router_of(spark: Any) -> Router | None:
    """The router of a session; looked up once per Python session object and change of the attached sessions."""
    known = _known.get(spark)
    if known is None or known[0] != _generation:
        from twophase.spark.jvm.gateway import Jvm

        router = _routers.get(Jvm(spark).session_id()) if hasattr(spark, "_jsparkSession") else None
        known = _known[spark] = (_generation, router)
    return known[1]


def _wrap(owner: Any, name: str, patch: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    around = _AROUND.get(name, active.outside if name in children.CALLED_BY_SPARK else active.carried)

    @functools.wraps(original)
    def routed(self: Any, *args: Any, **kwargs: Any) -> Any:
        with around():
            return patch(original, self, *args, **kwargs)

    _wrapped[(owner, name)] = (original, routed)
    setattr(owner, name, routed)


def _unrouted(spark: Any, run: Callable[[], Any], *, writes: bool = True) -> Any:
    """Run a call of a session that is not attached; the attached ones see what it wrote."""
    try:
        return run()
    finally:
        for router in list(_routers.values()) if writes else ():
            if getattr(spark, "_sc", None) is router.spark.sparkContext:
                router.session.caches.fall_behind()


def _sql(original: Original, spark: Any, sqlQuery: Any, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803
    router = router_of(spark)
    if router is None or not isinstance(sqlQuery, str):
        writes = isinstance(sqlQuery, str) and READS.isdisjoint(leading_words(sqlQuery, 1))
        return _unrouted(spark, functools.partial(original, spark, sqlQuery, args, **kwargs), writes=writes)
    run = functools.partial(original, spark)
    if not kwargs:
        return router.sql(run, sqlQuery, args)
    from pyspark.sql.sql_formatter import SQLStringFormatter

    formatter = SQLStringFormatter(spark)
    try:
        return router.sql(run, formatter.format(sqlQuery, **kwargs), args)
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
        _unrouted(writer._spark, functools.partial(original, writer, name, format, mode, partitionBy, **options))
        return
    writer.mode(mode).options(**options)
    if partitionBy is not None:
        writer.partitionBy(partitionBy)
    if format is not None:
        writer.format(format)
    save_as_table(router, writer, functools.partial(original, writer), name)


def _insert_into(original: Original, writer: Any, tableName: Any, overwrite: Any = None) -> None:  # noqa: N803
    router = router_of(writer._spark)
    if router is None:
        _unrouted(writer._spark, functools.partial(original, writer, tableName, overwrite))
        return
    if overwrite is not None:
        writer.mode("overwrite" if overwrite else "append")
    insert_into(router, writer, functools.partial(original, writer), tableName)


def _write_to(original: Original, writer: Any, *args: Any) -> Any:
    """The final call of a ``DataFrameWriterV2``, which writes."""
    router = router_of(writer._spark)
    run = functools.partial(original, writer, *args)
    if router is None:
        return _unrouted(writer._spark, run)
    brings = merges_schema(getattr(writer, _OPTIONS_GIVEN, {}))
    with carrying_hints(router.spark.sparkContext, {}, brings_columns=True) if brings else nullcontext():
        return router.write(run)


def _option_v2(original: Original, writer: Any, key: Any, value: Any) -> Any:
    """Keep an option of a ``DataFrameWriterV2``, whose JVM side does not show them."""
    writer.__dict__.setdefault(_OPTIONS_GIVEN, {})[str(key)] = value
    return original(writer, key, value)


def _options_v2(original: Original, writer: Any, **options: Any) -> Any:
    writer.__dict__.setdefault(_OPTIONS_GIVEN, {}).update(options)
    return original(writer, **options)


def _to_table(original: Original, writer: Any, tableName: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
    router = router_of(writer._spark)
    if router is not None:
        active.refuse_in_transaction(router.session, "A streaming query", tableName)
        router.refuse_stream(tableName)
    return original(writer, tableName, *args, **kwargs)


def _table(original: Original, spark: Any, tableName: Any) -> Any:  # noqa: N803
    return _read_by_name(router_of(spark), functools.partial(original, spark, tableName))


def _read_table(original: Original, reader: Any, tableName: Any) -> Any:  # noqa: N803
    return _read_by_name(router_of(reader._spark), functools.partial(original, reader, tableName))


def _read_by_name(router: Router | None, read: Callable[[], Any]) -> Any:
    if router is None:
        return read()
    router.session.caches.catch_up()
    return router.reading(read)


def _read_stream(original: Original, reader: Any, tableName: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N803
    router = router_of(reader._spark)
    if router is not None:
        router.refuse_stream_of(tableName)
    return original(reader, tableName, *args, **kwargs)


def _start_thread(original: Original, thread: Any) -> None:
    original(thread)  # It inherits the local properties of Spark's thread.


def _stop(original: Original, context: Any) -> None:
    begun.leave_all_open(lambda session: session.spark.sparkContext is context, "Spark was stopped")
    original(context)


#: What else than a transaction is around a call, by its name.
_AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {"stop": nullcontext}


def _patches(parent_of: children.ParentOf) -> dict[tuple[Any, str], Callable[..., Any]]:
    from pyspark import InheritableThread, SparkContext
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter, DataFrameWriterV2
    from pyspark.sql.session import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    return {
        (SparkSession, "sql"): _sql,
        (SparkSession, "table"): _table,
        (DataFrameReader, "table"): _read_table,
        (DataFrameWriter, "saveAsTable"): _save_as_table,
        (DataFrameWriter, "insertInto"): _insert_into,
        **{(DataFrameWriterV2, name): _write_to for name in _WRITES},
        (DataFrameWriterV2, "option"): _option_v2,
        (DataFrameWriterV2, "options"): _options_v2,
        (DataStreamWriter, "toTable"): _to_table,
        (DataStreamReader, "table"): _read_stream,
        (InheritableThread, "start"): _start_thread,
        (SparkContext, "stop"): _stop,
        **children.patches(parent_of),
        **catalog_api.patches(router_of),
    }
