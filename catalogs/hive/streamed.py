"""A table that a streaming query of Spark writes: readers see the files that the query's log lists, and no others."""

from __future__ import annotations

from twophase.catalogs.files import join, refuse_untried
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.definitions import SERDE_PROVIDER
from twophase.catalogs.hive.store import HiveStore
from twophase.catalogs.hive.tables import HiveTable
from twophase.errors import AtomicityNotSupportedError
from twophase.model import ObjectPath

#: Directory of the log, which the query makes when it begins, and leaves.
_LOG = "_spark_metadata"


def refuse(store: HiveStore, path: ObjectPath, table: HiveTable) -> None:
    """Refuse an insert into a table that a streaming query writes: its rows, or the query's next ones, would be hidden.

    A table whose directory is a version of ours takes no such query, and Hive's tables are read without a log.

    Raises
    ------
    AtomicityNotSupportedError
    """
    location = str(table.location)
    if table.provider == SERDE_PROVIDER or layout.is_in_version(location):
        return
    refuse_untried(path, location, environment=store.environment)  # Before it is looked at.
    if not store.files.exists(join(location, _LOG)):
        return
    raise AtomicityNotSupportedError(
        f"{path} was not written: a streaming query writes it, or has done so, and left {_LOG} in {location}. Spark "
        "shows only the files that are listed there, and a query that still runs would go on writing there after the "
        "table has moved. Nothing was started.",
        path=path,
        hint="Write the query's batches with foreachBatch and insertInto. If the query has ended for good, make the "
        "table anew: CREATE OR REPLACE TABLE ... AS SELECT * FROM it.",
    )
