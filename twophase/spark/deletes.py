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
from twophase.model import ObjectPath
from twophase.reading import Deletion, FileReader
from twophase.spark.jvm_deletes import Delete
from twophase.spark.proxies_delete import replace_rows
from twophase.spark.proxies_parquet import ParquetTable

if TYPE_CHECKING:
    from twophase.spark.jvm_statements import StatementReader
    from twophase.spark.rewrite import Args
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
    except PySparkException:
        return None
    if plan is None or str(plan.nodeName()) != "DeleteFromTable":
        return None
    statement = Delete(handle.jvm, plan)
    catalog_name, *parts = (statement.target[0], *statement.target[1]) if statement.target else ("",)
    catalog = handle.catalogs.get(catalog_name)
    if catalog is None or not statement.is_deterministic:
        return None
    return lambda: _delete(handle, catalog, ObjectPath.of(*parts), statement)


def _delete(handle: Handle, catalog: Catalog, path: ObjectPath, statement: Delete) -> None:
    plan = catalog.plan_delete(path, [None])
    if plan.rewritten is None or plan.rewritten.files is None:
        return  # There are no rows.
    definition = plan.rewritten.definition or catalog.load_table(path)

    def table(files: FileReader) -> ParquetTable:
        return ParquetTable(handle, catalog, path, definition, files)

    found = _among(plan, statement.files(table(plan.rewritten.files)))
    if found:
        kept = statement.kept(table(plan.rewritten.files.only(found)))
        replace_rows(handle, catalog, path, found, plan.version, kept)


def _among(plan: Deletion, names: list[str]) -> tuple[str, ...]:
    """The files of the plan that Spark has named: it encodes names, and knows one scheme for a file system."""
    wanted = {_without_scheme(unquote(name)) for name in names}
    return tuple(file for file in plan.files if _without_scheme(file) in wanted)


def _without_scheme(name: str) -> str:
    return _SCHEME.sub("", name)
