"""Named savepoints of an attached session, and the way back to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twophase.config.settings import duration
from twophase.hooks.hook import JobStatusHook
from twophase.spark.attach import attached_router
from twophase.spark.routing.savepoints import NamedSavepoints
from twophase.timeline.savepoints import SavepointRecord
from twophase.transactions.transaction import Transaction

__all__ = ["create_savepoint", "drop_savepoint", "restore", "savepoints", "undo"]


def create_savepoint(
    spark: Any,
    name: str,
    *,
    databases: str | Iterable[str] = (),
    tables: str | Iterable[str] = (),
    keep: float | str | None = None,
    copies: bool = False,
) -> SavepointRecord:
    """Keep the present state of tables in several stores, as of one moment, under a name.

    It is ``CREATE SAVEPOINT name FOR DATABASE ...``. No other transaction publishes to the tables while it is created,
    which takes seconds: session tables are kept by hard links, Iceberg tables by a tag. ``clean`` keeps what it needs.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession or None
        An attached session; the active one when None.
    name : str
        Unique on the timeline.
    databases : str or iterable of str
        Databases with all their tables.
    tables : str or iterable of str
    keep : float or str, optional
        How long, as ``"30d"`` or in seconds; until it is dropped when None. ``twophase clean`` removes it then.
    copies : bool
        Whether rows may be copied where a store cannot keep them otherwise, instead of refusing that.

    Returns
    -------
    SavepointRecord

    Raises
    ------
    ConfigurationError
        The session is not attached, the name is taken, or there is no such table; nothing was changed.
    AtomicityNotSupportedError
        The store of one of the tables cannot keep it; nothing was changed.
    WriteConflictError
        Another transaction publishes to one of them for too long, or a writer outside twophase changed it meanwhile.

    Examples
    --------
    >>> twophase.create_savepoint(spark, "before_backfill", databases=["sales", "lake.db"], keep="30d")
    """
    seconds = duration(keep, "keep")
    return _of(spark).create(
        name, databases=_several(databases), tables=_several(tables), keep_seconds=seconds, copies=copies
    )


def restore(
    spark: Any,
    name: str,
    *,
    databases: str | Iterable[str] | None = None,
    tables: str | Iterable[str] | None = None,
    keep_new: bool = False,
    hooks: Iterable[JobStatusHook] = (),
) -> Transaction:
    """Give tables the rows and the schema that a savepoint keeps, all in one transaction.

    It is ``RESTORE ... TO SAVEPOINT name``. Tables that were dropped since come back, and those that were made since in
    a restored database are dropped. The savepoint stays.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession or None
        An attached session; the active one when None.
    name : str
    databases : str or iterable of str, optional
    tables : str or iterable of str, optional
        Only these; everything in the savepoint when both are None.
    keep_new : bool
        Leave tables alone that were made since.
    hooks : iterable of JobStatusHook
        Notified of each table, in addition to those of the session.

    Returns
    -------
    Transaction

    Raises
    ------
    ConfigurationError
        There is no such savepoint, or it does not contain one of them; nothing was changed.
    CatalogError
        What it kept is no longer there; nothing was changed.
    TransactionAborted
        It was rolled back; nothing was changed.
    TransactionInDoubt
        Its outcome could not be determined.

    Examples
    --------
    >>> twophase.restore(spark, "before_backfill", databases="sales")
    """
    return _of(spark).restore(
        name,
        databases=None if databases is None else _several(databases),
        tables=None if tables is None else _several(tables),
        keep_new=keep_new,
        hooks=hooks,
    )


def savepoints(spark: Any = None) -> list[SavepointRecord]:
    """List the named savepoints on the timeline of a session, the newest first.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession, optional
        An attached session; the active one when None.

    Raises
    ------
    ConfigurationError
        The session is not attached.
    """
    return _of(spark).all()


def drop_savepoint(spark: Any, name: str) -> None:
    """Remove a named savepoint with what is kept for it; the tables are not changed.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession or None
        An attached session; the active one when None.
    name : str

    Raises
    ------
    ConfigurationError
        The session is not attached, or there is no such savepoint.
    TwoPhaseError
        A store could not remove what it keeps: the savepoint can no longer be used, and ``clean`` tries again.
    """
    _of(spark).drop(name)


def undo(spark: Any, transaction_id: str, *, hooks: Iterable[JobStatusHook] = ()) -> Transaction:
    """Take back one transaction, by another one on top of what is there, if nothing was built on it.

    The tables that it has written get the rows and the schema that they had before it, which are written anew; those
    that it has created are dropped. Possible as long as the former versions are there: ``clean`` removes them once
    ``spark.twophase.retention`` is over.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession or None
        An attached session; the active one when None.
    transaction_id : str
    hooks : iterable of JobStatusHook
        Notified of each table, in addition to those of the session.

    Returns
    -------
    Transaction

    Raises
    ------
    ConfigurationError
        There is no such transaction, it has published nothing, or others have changed its tables since; nothing was
        changed.
    CatalogError
        A former state of a table is no longer there; nothing was changed.
    TransactionAborted
        It was rolled back; nothing was changed.
    TransactionInDoubt
        Its outcome could not be determined.
    """
    return _of(spark).undo(transaction_id, hooks=hooks)


def _several(names: str | Iterable[str]) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _of(spark: Any) -> NamedSavepoints:
    return attached_router(spark).savepoints
