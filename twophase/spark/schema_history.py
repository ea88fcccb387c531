"""The versions of a table's schema, and the one as of a commit, of any table that an attached session knows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twophase.catalog import Catalog, SupportsSchemaHistory
from twophase.catalog.schema_versions import SchemaVersion
from twophase.errors import ConfigurationError
from twophase.model import ObjectPath
from twophase.spark.attach import attached_router
from twophase.spark.routing.router import Router
from twophase.spark.schema_versions import versions_of
from twophase.timeline.timeline import Timeline

__all__ = ["schema_as_of", "schema_history"]


def schema_history(spark: Any, table: str) -> list[SchemaVersion]:
    """List the versions of a table's schema, the oldest first.

    An Iceberg table has all of them, each with the first commit that wrote with it. Of other tables the timeline has
    those since twophase first changed the schema, each with the commit that did; one that was changed by others is in
    the list without a commit. The first is made from what is there: files of a Parquet table may show earlier ones.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession or None
        An attached session; the active one when None.
    table : str
        Its name, as in SQL.

    Returns
    -------
    list of SchemaVersion

    Raises
    ------
    ConfigurationError
        The session is not attached, or this is not the name of a table that twophase writes.
    TableNotExistError
        There is no such table.

    Examples
    --------
    >>> [version.schema.schema_id for version in twophase.schema_history(spark, "lake.db.daily")]
    [0, 1, 2]
    """
    router, catalog, path = _find(spark, table)
    return versions_of(router.session, catalog, path)


def schema_as_of(spark: Any, table: str, commit: str | int) -> SchemaVersion:
    """Return the version of a table's schema as of a commit: the last one up to it.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession or None
        An attached session; the active one when None.
    table : str
        Its name, as in SQL.
    commit : str or int
        The id of a transaction; a snapshot of an Iceberg table; of other tables a commit number of the timeline.

    Returns
    -------
    SchemaVersion

    Raises
    ------
    ConfigurationError
        As of :func:`schema_history`; no schema is known as of this commit, which may not be committed or not be
        recorded any more.
    TableNotExistError
        There is no such table.

    Examples
    --------
    >>> twophase.schema_as_of(spark, "lake.db.daily", "nightly-20261127t020000-1a2b3c4d").schema.schema_id
    1
    """
    router, catalog, path = _find(spark, table)
    versions = versions_of(router.session, catalog, path)
    if isinstance(catalog, SupportsSchemaHistory):
        schema_id = catalog.schema_id_as_of(path, str(commit))
        found = next((version for version in versions if version.schema.schema_id == schema_id), None)
    else:
        found = _as_of(router.session.coordinator.timeline, versions, str(commit))
    if found is None:
        raise ConfigurationError(
            f"No schema of {table} is known as of {commit}.",
            path=str(path),
            hint=f"`twophase show-schema {table}` lists the versions and their commits.",
        )
    return found


def _find(spark: Any, table: str) -> tuple[Router, Catalog, ObjectPath]:
    router = attached_router(spark)
    return router, *router.find_table(table)


def _as_of(timeline: Timeline, versions: Sequence[SchemaVersion], commit: str) -> SchemaVersion | None:
    """The last version that was committed up to a commit; else, of those before any commit, the last one by its time.

    Of a version that others have made in between it is not known before which commit.
    """
    record = timeline.transaction(commit)
    began = next((version for version in versions if version.transaction_id == commit), None)
    if record is not None:
        number, time = record.number, record.decided
    elif began is not None:
        return began
    else:
        number, time = (int(commit), None) if commit.isdecimal() else (None, None)
    if number is None:
        return None
    committed = [version for version in versions if version.commit is not None]
    if up_to := [version for version in committed if int(version.commit or 0) <= number]:
        return up_to[-1]
    before = versions[: versions.index(committed[0])] if committed else versions
    return next((v for v in reversed(before) if v.since is None or time is None or v.since <= time), None)
