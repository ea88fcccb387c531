"""``DELETE FROM ... WHERE`` with a condition that Spark does not hand to a table: a function, a subquery.

The rows of each file that holds some of those to be deleted are written anew without them (copy on write, as Iceberg's
own integration does with Spark's row-level operations, which Python cannot offer).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import unquote

from pyspark.errors import PySparkException

from twophase.catalog import Catalog
from twophase.errors import CatalogError, ConfigurationError
from twophase.model import ObjectPath, OverwriteScope
from twophase.reading import Deletion, FileReader
from twophase.spark.jvm.deletes import Delete
from twophase.spark.native.delete import replace_rows
from twophase.spark.native.parquet import ParquetTable

if TYPE_CHECKING:
    from twophase.spark.jvm.statements import StatementReader
    from twophase.spark.routing.rewrite import Args
    from twophase.spark.session import Handle


_SCHEME = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]*:(//)?")


def delete_by_rows(handle: Handle, reader: StatementReader, text: str, args: Args) -> Callable[[], None] | None:
    """What runs a ``DELETE`` that Spark has refused.

    Parameters
    ----------
    handle : Handle
    reader : StatementReader
    text, args
        The statement.

    Returns
    -------
    callable or None
        None where the statement is something else, or Spark was right: then its own error is the one to tell.
    """
    try:
        plan = reader.analysed(text, args)
    except (PySparkException, ConfigurationError):
        return None
    if plan is None or str(plan.nodeName()) != "DeleteFromTable":
        return None
    statement = Delete(handle.jvm, plan)
    name, path = statement.target() or ("", None)
    catalog = handle.catalogs.get(name)
    if catalog is None or path is None or not statement.is_deterministic:
        return None
    return lambda: _delete(handle, catalog, path, statement)


def _delete(handle: Handle, catalog: Catalog, path: ObjectPath, statement: Delete) -> None:
    plan = catalog.plan_delete(path, [None])
    if plan.rewritten is None or plan.rewritten.files is None:
        return  # There are no rows.
    definition = catalog.load_table(path)
    shown = plan.rewritten.definition or definition

    def table(files: FileReader) -> ParquetTable:
        return ParquetTable(handle, catalog, path, shown, files)

    found = _among(path, plan, statement.files(table(plan.rewritten.files)))
    if found:
        kept = statement.kept(table(plan.rewritten.files.only(found)))
        replace_rows(handle, catalog, path, definition, OverwriteScope(files=found, version=plan.version), kept)


def _among(path: ObjectPath, plan: Deletion, names: list[str]) -> tuple[str, ...]:
    """The files of the plan that Spark has named: it encodes names, and knows one scheme for a file system."""
    known = {_without_scheme(file): file for file in plan.files}
    wanted = {_without_scheme(unquote(name)) for name in names}
    # Rows of a file that is passed over would stay.
    if strange := sorted(wanted - known.keys()):
        raise CatalogError(f"Rows of {path} cannot be deleted: Spark read them from {strange[0]}.", path=path)
    return tuple(known[name] for name in sorted(wanted))


def _without_scheme(name: str) -> str:
    return _SCHEME.sub("", name)
