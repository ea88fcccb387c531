"""Lets the unprefixed names of an unchanged PySpark job reach the session's twophase catalog.

The few doors through which a job writes tables are wrapped once for the process: ``SparkSession.sql``,
``DataFrameWriter.saveAsTable`` and ``insertInto``, ``DataFrame.writeTo``, and for reads inside a transaction
``SparkSession.table`` and ``DataFrameReader.table``. A session that is not attached goes straight through.
"""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath, OverwriteScope, Purpose
from twophase.spark import writers
from twophase.spark.intent import intending
from twophase.spark.jvm_statements import StatementReader
from twophase.spark.rewrite import Args, Rewriter, Rewritten, Untellable, concerns_us
from twophase.spark.targets import Target, Targets

if TYPE_CHECKING:
    from twophase.spark.session import Handle

Original = Callable[..., Any]


class Router:
    """Routes the statements of one attached session.

    Parameters
    ----------
    handle : Handle
    """

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self.spark = handle.spark
        self.targets = Targets(handle)
        self.reader = StatementReader(handle.spark)
        self._rewriter = Rewriter(self.reader, self.targets, self._constant)

    # -- SQL -----------------------------------------------------------------------------------------------------

    def sql(self, original: Original, text: str, args: Args) -> Any:
        """``SparkSession.sql`` of one session, its keyword arguments put into the text already."""
        rewritten = self._rewritten(text, args) if concerns_us(text) else None
        if rewritten is None:
            return original(text, args)

        def run() -> Any:
            with self._grouped(rewritten):
                return original(rewritten.text, rewritten.args)

        return self.run(run, rewritten.scopes, instead=lambda: original(text, args))

    def _rewritten(self, text: str, args: Args) -> Rewritten | None:
        try:
            return self._rewriter.rewrite(text, args)
        except Untellable as problem:
            self.unprotected(str(problem))
            return None

    def _constant(self, expression: str, args: Args) -> Any:
        """The value of a constant expression; Spark computes it without a job."""
        return originals["SparkSession.sql"](self.handle.spark, f"SELECT {expression}", args).head()[0]

    @contextmanager
    def _grouped(self, rewritten: Rewritten) -> Iterator[None]:
        """One transaction around a statement that writes several tables."""
        from twophase.spark.session import transaction

        if rewritten.is_group and self.handle.current_transaction() is None:
            with transaction(self.handle.spark):
                yield
        else:
            yield

    # -- running -------------------------------------------------------------------------------------------------

    def run(
        self,
        run: Callable[[], Any],
        scopes: Mapping[ObjectPath, OverwriteScope] | None = None,
        *,
        options: Mapping[ObjectPath, Mapping[str, str]] | None = None,
        instead: Callable[[], Any],
    ) -> Any:
        """Run a routed statement; under ``preferred`` as Spark itself would, where our catalog cannot do it."""
        try:
            with intending(self.spark.sparkContext, scopes or {}, options):
                return run()
        except AtomicityNotSupportedError as error:
            self.unprotected(str(error), error)
        return instead()

    def resolve(self, name: Any, *, views: bool = False) -> Target | None:
        """The target that a name given to the DataFrame API means; None where it is none of ours."""
        parts = self.reader.parse_name(name) if isinstance(name, str) else None
        return self.targets.resolve(parts, views=views) if parts else None

    def offers(self, target: Target, purpose: Purpose) -> bool:
        """Whether the catalog can do it; where it cannot, the policy decides.

        Raises
        ------
        AtomicityNotSupportedError
        """
        if purpose in target.catalog.capabilities.purposes:
            return True
        self.unprotected(f"catalog {target.catalog.name} has no two-phase write for {purpose.value}")
        return False

    def stays_outside(self, name: str) -> None:
        """A write goes past us: no harm, unless a transaction is open."""
        self.handle.refuse_in_transaction(f"A write of {name}, which is no table of a twophase catalog,", name)

    def unprotected(self, problem: str, cause: BaseException | None = None) -> None:
        """Refuse a statement under ``required``; warn under ``preferred``.

        Raises
        ------
        AtomicityNotSupportedError
        """
        if self.handle.policy == "preferred":
            warnings.warn(f"A statement runs without twophase: {problem}.", RuntimeWarning, stacklevel=6)
        elif isinstance(cause, AtomicityNotSupportedError):
            raise cause
        else:
            raise AtomicityNotSupportedError(
                f"The statement cannot be made atomic, and nothing was started: {problem}.",
                hint="Name its table in plain words, or set spark.twophase.atomicity=preferred.",
            )


# -- the doors ---------------------------------------------------------------------------------------------------------

_lock = threading.RLock()
_routers: dict[str, Router] = {}
_known: WeakKeyDictionary[Any, tuple[int, Router | None]] = WeakKeyDictionary()
_generation = 0
#: What stood at the doors before us, by ``Class.method``.
originals: dict[str, Original] = {}


def install(handle: Handle) -> None:
    """Route the statements of an attached session. Idempotent."""
    with _lock:
        key = handle.jvm.session_id()
        if key not in _routers:
            _routers[key] = Router(handle)
            _forget()
        if not originals:
            for (owner, name), door in _doors().items():
                _wrap(owner, name, door)


def uninstall(handle: Handle) -> None:
    """Stop routing them; with the last session the doors are put back. Idempotent."""
    with _lock:
        _routers.pop(_key_of(handle), "")
        _forget()
        if not _routers:
            for (owner, name), _ in _doors().items():
                if f"{owner.__name__}.{name}" in originals:
                    setattr(owner, name, originals.pop(f"{owner.__name__}.{name}"))


def _key_of(handle: Handle) -> str:
    return next((key for key, router in _routers.items() if router.handle is handle), "")


def _forget() -> None:
    global _generation
    _generation += 1


def router_of(spark: Any) -> Router | None:
    """The router of a session; found once for each Python session object and change of the attached ones."""
    known = _known.get(spark)
    if known is None or known[0] != _generation:
        from twophase.spark.jvm import Jvm

        router = _routers.get(Jvm(spark).session_id()) if hasattr(spark, "_jsparkSession") else None
        known = _known[spark] = (_generation, router)
    return known[1]


def _wrap(owner: Any, name: str, door: Callable[..., Any]) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def routed(self: Any, *args: Any, **kwargs: Any) -> Any:
        return door(original, self, *args, **kwargs)

    originals[f"{owner.__name__}.{name}"] = original
    setattr(owner, name, routed)


def _sql(original: Original, spark: Any, sqlQuery: Any, args: Any = None, **kwargs: Any) -> Any:  # noqa: N803
    router = router_of(spark)
    if router is None or not isinstance(sqlQuery, str):
        return original(spark, sqlQuery, args, **kwargs)
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
        original(writer, name, format, mode, partitionBy, **options)
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
        original(writer, tableName, overwrite)
        return
    if overwrite is not None:
        writer.mode("overwrite" if overwrite else "append")
    writers.insert_into(router, writer, functools.partial(original, writer), tableName)


def _write_to(original: Original, df: Any, table: Any) -> Any:
    router = router_of(df.sparkSession)
    return original(df, table) if router is None else writers.RoutedWriter(router, df, table)


def _doors() -> dict[tuple[Any, str], Callable[..., Any]]:
    from pyspark.sql.classic.dataframe import DataFrame
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.session import SparkSession

    return {
        (SparkSession, "sql"): _sql,
        (DataFrameWriter, "saveAsTable"): _save_as_table,
        (DataFrameWriter, "insertInto"): _insert_into,
        (DataFrame, "writeTo"): _write_to,
    }
