"""Attaching twophase to a Spark session, and transactions over several statements."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeAlias

from twophase.catalog import Catalog
from twophase.config.settings import duration
from twophase.errors import ConfigurationError
from twophase.hooks.hook import JobStatusHook, checked
from twophase.model import Isolation, ObjectPath
from twophase.spark import blocks
from twophase.spark.begun import OpenTransaction
from twophase.spark.conflict_merging import Merge, checked_merge, resolve_conflicts
from twophase.spark.handle import Handle, attached, handle_of
from twophase.spark.jvm.gateway import Jvm
from twophase.spark.routing.patches import router_of
from twophase.spark.routing.router import Router
from twophase.transactions.conflict_policy import ConflictPolicy, conflict_policy
from twophase.transactions.transaction import Transaction

__all__ = ["Handle", "attach", "begin", "cli_session", "handle_of", "snapshot", "transaction"]

#: A conflict policy: its name, an object or a class.
Conflict: TypeAlias = ConflictPolicy | type[ConflictPolicy] | str


def attach(spark: Any = None, hooks: Iterable[JobStatusHook] = ()) -> Handle:
    """Make the statements of a Spark session atomic. Idempotent; costs no Spark job.

    Every catalog configured as ``spark.sql.catalog.<name> = twophase.<kind>`` (or ``package.module:Class``) becomes a
    native catalog of the session, and a Hive catalog over the session's own metastore serves unprefixed names. Dead
    transactions of this application are recovered. Called in Python's main thread, it lets a SIGTERM roll the running
    statements back before it takes effect; in other threads Python does not allow that.

    Sessions created from it, by ``newSession()`` and in ``foreachBatch``, are attached with it. Calling ``attach`` with
    such a session gives it the settings of its own configuration at that time, and it stays attached when the first one
    is detached.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession, optional
        A classic session; when None the active one, otherwise the application's.
    hooks : iterable of JobStatusHook
        Notified of every statement of this session; added to earlier hooks if it is already attached.

    Returns
    -------
    Handle

    Raises
    ------
    ConfigurationError
        A wrong option, catalog kind or Spark version, or a catalog with the name of a database; nothing was changed.
    TimelineError
        The timeline cannot be used; nothing was changed.
    """
    jvm = Jvm(_active_session() if spark is None else spark)
    return attached(jvm, checked(hooks))


@contextmanager
def transaction(
    spark: Any = None,
    hooks: Iterable[JobStatusHook] = (),
    *,
    isolation: Isolation | str | None = None,
    conflict: Conflict | None = None,
    wait: float | str | None = None,
    timeout: float | str | None = None,
    merge: Merge | Mapping[str, Merge] | None = None,
) -> Iterator[Transaction]:
    """Group statements: all are published at the end of the block, or none.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession, optional
        An attached session; the active one when None.
    hooks : iterable of JobStatusHook
        Notified of the statements in the block, in addition to those of the session.
    isolation : Isolation or str, optional
        What the block sees of other transactions: ``snapshot`` (the state at its beginning, in all tables and stores),
        ``serializable`` (and it is refused if anything that it has read is changed before its commit), or
        ``read_committed``; the option ``spark.twophase.isolation`` when None.
    conflict : str or ConflictPolicy or class, optional
        What becomes of the block if another transaction has reserved one of its tables: ``first_committer_wins``,
        ``wait_die``, ``wound_wait``, ``fail`` or a policy of your own; the option ``spark.twophase.conflict`` when
        None.
    wait : float or str, optional
        How long it waits for such a transaction, as ``"60s"`` or in seconds; ``spark.twophase.wait`` when None.
    timeout : float or str, optional
        How long the block may last; ``spark.twophase.transaction.timeout`` when None.
    merge : callable, or mapping of str to callable, optional
        ``merge(before, mine, theirs)`` is called at the end of the block, instead of a refusal, for each table that it
        has overwritten or replaced and that others have changed meanwhile: with its rows when the block began, as the
        block leaves them, and as the others have left them. The rows of the DataFrame that it returns become the
        table; when it returns None, the block is refused. It may also be a function for each of some tables, by name.

    Yields
    ------
    Transaction
        ``id``, ``state``, ``isolation``, ``snapshot``, and after the block ``level``; ``lock("table")`` reserves a
        table before a statement writes it.

    Raises
    ------
    ConfigurationError
        The session is not attached, or there is no such isolation level, conflict policy or duration.
    WriteConflictError
        In the block or at its end: another transaction has changed what this one writes (``serializable``: or has
        read); everything was rolled back. :func:`twophase.run` runs it again.
    SnapshotTooOldError
        In the block: a table has changed since it began, and its former state can no longer be read.
    WoundedError
        In the block or at its end: an older transaction has rolled it back, because it needed one of its tables.
    TransactionAborted
        A block inside another one; it lasted longer than its timeout; or, at the end of the block, everything was
        rolled back: because of a refusal, or because a statement was still being written in another thread.
    TransactionInDoubt
        At the end of the block: its outcome could not be determined.

    Examples
    --------
    >>> with twophase.transaction(spark, isolation="serializable") as tx:
    ...     spark.sql("CREATE TABLE a AS SELECT 1 AS id")
    ...     spark.sql("INSERT INTO b SELECT * FROM a")
    """
    with block(spark, hooks, isolation, conflict, wait, timeout, merge) as tx:
        yield tx


def block(
    spark: Any,
    hooks: Iterable[JobStatusHook],
    isolation: Isolation | str | None,
    conflict: Conflict | None,
    wait: float | str | None,
    timeout: float | str | None,
    merge: Merge | Mapping[str, Merge] | None = None,
    first_begun: float | None = None,
) -> AbstractContextManager[Transaction]:
    """Return the block of :func:`transaction`; as another attempt it is as old as the first one."""
    session = _handle(spark).session
    terms = replace(_terms(session.spark, conflict, wait, timeout, first_begun), merge=checked_merge(merge))
    return blocks.transaction(session, hooks, _isolation(isolation), terms=terms, at_end=resolve_conflicts)


def _terms(
    spark: Any,
    conflict: Conflict | None,
    wait: float | str | None,
    timeout: float | str | None,
    first_begun: float | None = None,
) -> blocks.Terms:
    return blocks.Terms(
        conflict=None if conflict is None else conflict_policy(conflict),
        wait=duration(wait, "wait"),
        timeout=duration(timeout, "timeout"),
        first_begun=first_begun,
        find_table=functools.partial(_find_table, spark),
    )


def _find_table(spark: Any, name: str) -> tuple[Catalog, ObjectPath]:
    router = router_of(spark)
    if router is None:
        raise ConfigurationError(f"{name} cannot be found: the session is no longer attached.")
    return router.find_table(name)


def begin(
    spark: Any = None,
    hooks: Iterable[JobStatusHook] = (),
    *,
    isolation: Isolation | str | None = None,
    conflict: Conflict | None = None,
    wait: float | str | None = None,
    timeout: float | str | None = None,
    read_only: bool = False,
) -> OpenTransaction:
    """Begin a transaction that the following statements join, until its ``commit()`` or ``rollback()``: for notebooks.

    It is ``BEGIN TRANSACTION`` in Python, and may be ended by ``COMMIT`` or ``ROLLBACK`` too. Where the statements are
    in one piece of code, ``with twophase.transaction(spark)`` is safer: no way out of it leaves it open. Statements of
    the same thread (in asyncio: task; in a notebook: kernel) join it. An error in one of them does not end it. When the
    thread, the task, the session or the interpreter ends before it does, it is rolled back.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession, optional
        An attached session; the active one when None.
    hooks : iterable of JobStatusHook
        Notified of the statements in it, in addition to those of the session.
    isolation : Isolation or str, optional
        As for :func:`twophase.transaction`.
    conflict : str or ConflictPolicy or class, optional
        As for :func:`twophase.transaction`.
    wait : float or str, optional
        As for :func:`twophase.transaction`.
    timeout : float or str, optional
        As for :func:`twophase.transaction`.
    read_only : bool
        Whether nothing can be written in it.

    Returns
    -------
    OpenTransaction

    Raises
    ------
    ConfigurationError
        The session is not attached, or there is no such isolation level, conflict policy or duration.
    TransactionAborted
        A transaction is open here already.

    Examples
    --------
    >>> tx = twophase.begin(spark)
    >>> spark.sql("INSERT INTO a SELECT 1")
    >>> spark.sql("INSERT INTO b SELECT 1")
    >>> tx.commit()
    """
    session = _handle(spark).session
    terms = _terms(session.spark, conflict, wait, timeout)
    return OpenTransaction(session, hooks, _isolation(isolation), read_only=read_only, terms=terms)


@contextmanager
def snapshot(spark: Any = None) -> Iterator[Transaction]:
    """Read several tables and stores as of one moment, also while others publish to them. Nothing can be written.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession, optional
        An attached session; the active one when None.

    Yields
    ------
    Transaction
        ``snapshot`` is the number of the last commit that it sees.

    Raises
    ------
    ConfigurationError
        The session is not attached.
    SnapshotTooOldError
        In the block: a table has changed since it began, and its former state can no longer be read.

    Examples
    --------
    >>> with twophase.snapshot(spark):
    ...     orders, items = spark.table("orders").count(), spark.table("lake.db.items").count()
    """
    with blocks.transaction(_handle(spark).session, (), Isolation.SNAPSHOT, read_only=True) as tx:
        tx.hold_snapshot()
        yield tx


def _handle(spark: Any) -> Handle:
    handle = handle_of(spark if spark is not None else _active_session())
    if handle is None:
        raise _not_attached()
    return handle


def attached_router(spark: Any = None) -> Router:
    """Return the router of an attached Spark session; of the active one when None.

    Raises
    ------
    ConfigurationError
        It is not attached.
    """
    router = router_of(_handle(spark).spark)
    if router is None:
        raise _not_attached()
    return router


def _not_attached() -> ConfigurationError:
    return ConfigurationError("This Spark session is not attached.", hint="Call twophase.attach(spark) first.")


def _isolation(level: Isolation | str | None) -> Isolation | None:
    try:
        return None if level is None else Isolation(level)
    except ValueError:
        known = ", ".join(known.value for known in Isolation)
        raise ConfigurationError(f"There is no isolation level {level!r}.", hint=f"Choose one of {known}.") from None


def cli_session(conf: Mapping[str, str], *, recovers: bool = True) -> Handle:
    """Create an attached Spark session for the command line.

    It has Hive support, like Spark's own shells: tables in memory would be lost at the end of the command.

    Parameters
    ----------
    conf : mapping of str to str
        Spark configuration, including ``spark.master`` unless that is the local machine.
    recovers : bool
        Whether dead transactions are recovered, as by :func:`attach`; otherwise the timeline is only read.
    """
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("twophase")
    defaults = {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.log.level": "ERROR",
        "spark.sql.catalogImplementation": "hive",
    }
    for key, value in {**defaults, **conf}.items():
        builder = builder.config(key, value)
    return attached(Jvm(builder.getOrCreate()), (), recovers=recovers)


def _active_session() -> Any:
    """The thread's active session, otherwise the application's."""
    from pyspark.errors import PySparkRuntimeError
    from pyspark.sql import SparkSession

    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        raise ConfigurationError(
            "There is no active Spark session.", hint="Pass one: twophase.attach(spark)."
        ) from None
