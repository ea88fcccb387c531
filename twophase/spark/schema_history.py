"""The versions of a table's schema, of any table that an attached session knows."""

from __future__ import annotations

from typing import Any

from twophase.catalog.schema_versions import SchemaVersion
from twophase.errors import ConfigurationError
from twophase.spark.attach import attached_session
from twophase.spark.routing.patches import router_of
from twophase.spark.schema_versions import versions_of

__all__ = ["schema_history"]


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
    router = router_of(attached_session(spark))
    if router is None:
        raise ConfigurationError("This Spark session is not attached.", hint="Call twophase.attach(spark) first.")
    catalog, path = router.find_table(table)
    return versions_of(router.session, catalog, path)
