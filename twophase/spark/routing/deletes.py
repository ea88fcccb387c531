"""``DELETE FROM ... WHERE`` with a condition that Spark does not pass to a table: a function, a subquery.

Each file that contains rows to delete is rewritten without them (copy on write, as in Iceberg's own integration with
Spark's row-level operations, which cannot be implemented in Python).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

from pyspark.errors import PySparkException

from twophase.catalog import Catalog, SupportsDelete
from twophase.catalog.capabilities import required
from twophase.catalog.reading import Deletion, FileReader
from twophase.errors import CatalogError, ConfigurationError
from twophase.model import ObjectPath, OverwriteScope
from twophase.spark.attached import AttachedSession
from twophase.spark.connector.delete import note_nothing_found, refuse_staged, replace_rows
from twophase.spark.connector.parquet import ParquetTable
from twophase.spark.errors import thrown_to_spark
from twophase.spark.jvm.deletes import Delete
from twophase.spark.jvm.statements import StatementReader
from twophase.spark.session_reads import note_reads
from twophase.spark.versions_read import states_read

_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//)?")


def delete_by_rows(
    session: AttachedSession, reader: StatementReader, text: str, args: Any
) -> Callable[[], None] | None:
    """Return a callable that runs a ``DELETE`` refused by Spark.

    Parameters
    ----------
    session : AttachedSession
    reader : StatementReader
    text, args
        The statement.

    Returns
    -------
    callable or None
        None if the statement is something else or Spark was right: Spark's own error is then raised.
    """
    try:
        plan = reader.analysed(text, args)
    except (PySparkException, ConfigurationError):
        return None
    if plan is None or str(plan.nodeName()) != "DeleteFromTable":
        return None
    statement = Delete(session.jvm, plan)
    name, path = statement.target() or ("", None)
    catalog = session.catalogs.get(name)
    if catalog is None or path is None or not statement.is_deterministic:
        return None
    return lambda: _delete(session, catalog, path, statement)


def _delete(session: AttachedSession, catalog: Catalog, path: ObjectPath, statement: Delete) -> None:
    refuse_staged(session, catalog, path, "deleted")
    plan = required(catalog, SupportsDelete, "cannot delete rows", path).plan_delete(path, [None])
    if plan.rewritten is None or plan.rewritten.files is None:
        note_nothing_found(session, catalog, path, plan)
        return  # There are no rows.
    statement.run_subqueries(partial(_in_one_state, session), thrown_to_spark)
    definition = catalog.load_table(path)
    shown = plan.rewritten.definition or definition

    def table(files: FileReader) -> ParquetTable:
        return ParquetTable(session, catalog, path, shown, files)

    found = _among(path, plan, statement.files(table(plan.rewritten.files)))
    if found:
        kept = statement.kept(table(plan.rewritten.files.only(found)))
        replace_rows(session, catalog, path, definition, OverwriteScope(files=found, version=plan.version), kept)
    else:
        note_nothing_found(session, catalog, path, plan)


def _in_one_state(session: AttachedSession, frame: Any, tables: int) -> Any:
    """Rows that stay the same when they are read again: where not all tables are read in one state, they are kept."""
    versions = [version for *_, version in states_read(session.jvm, frame, session.catalogs)]
    if None not in versions and len(versions) == tables:
        return frame
    note_reads(session, frame)
    return frame.localCheckpoint()


def _among(path: ObjectPath, plan: Deletion, names: list[str]) -> tuple[str, ...]:
    """The planned files that Spark has named: it encodes names, and uses one scheme for a file system."""
    known = {_without_scheme(file): file for file in plan.files}
    wanted = {_without_scheme(unquote(name)) for name in names}
    # Rows of a skipped file would not be deleted.
    if foreign := sorted(wanted - known.keys()):
        raise CatalogError(f"Rows of {path} cannot be deleted: Spark read them from {foreign[0]}.", path=path)
    return tuple(known[name] for name in sorted(wanted))


def _without_scheme(name: str) -> str:
    return _SCHEME.sub("", name)
