"""The patches of ``spark.catalog``: its reads and changes inside a transaction.

PySpark's ``Catalog`` calls the JVM directly. Here a name that means a staged table is replaced by its name in the
twophase catalog, which returns the staged state. A change that would take effect immediately is refused, like its SQL.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from twophase.catalogs.hive.layout import HIDDEN_PREFIX
from twophase.spark.routing.router import Original, Router
from twophase.spark.routing.targets import SESSION_CATALOG
from twophase.spark.running import running_statement

RouterOf = Callable[[Any], Router | None]
Patch = Callable[..., Any]

#: Methods that read a table or Spark's cached state of it.
_LOOKS = (
    *("getTable", "listColumns", "tableExists", "isCached", "cacheTable", "uncacheTable", "refreshTable"),
    *("getTableProperties", "getCreateTableString"),
)
#: Methods whose result exists for published tables only.
_ABOUT_PUBLISHED = ("listPartitions", "analyzeTable")


def patches(router_of: RouterOf) -> dict[tuple[Any, str], Patch]:
    """The patches by class and method, limited to the methods of this version of PySpark."""
    from pyspark.sql.catalog import Catalog

    by_name: dict[str, Patch] = {
        **{name: partial(_look, router_of) for name in _LOOKS},
        **{name: partial(_refuse_staged, router_of) for name in _ABOUT_PUBLISHED},
        "listTables": partial(_list_tables, router_of),
    }
    return {(Catalog, name): patch for name, patch in by_name.items() if hasattr(Catalog, name)}


def _look(router_of: RouterOf, original: Original, catalog: Any, *args: Any, **kwargs: Any) -> Any:
    router = router_of(catalog._sparkSession)
    if router is None or not router.in_transaction():
        return original(catalog, *args, **kwargs)
    bound = inspect.signature(original).bind(catalog, *args, **kwargs)
    arguments = bound.arguments
    staged = router.staged_name(arguments["tableName"], arguments.get("dbName"))
    if staged is None:
        return original(catalog, *args, **kwargs)
    arguments.pop("dbName", None)
    arguments["tableName"] = staged
    return _as_session_table(router, original(*bound.args, **bound.kwargs))


def _as_session_table(router: Router, shown: Any) -> Any:
    """A ``Table`` under the name of the catalog that it will belong to."""
    if getattr(shown, "catalog", None) == router.session.catalogs.session_name:
        return shown._replace(catalog=SESSION_CATALOG)
    return shown


def _refuse_staged(router_of: RouterOf, original: Original, catalog: Any, *args: Any, **kwargs: Any) -> Any:
    router = router_of(catalog._sparkSession)
    if router is not None and router.in_transaction():
        router.refuse_staged(inspect.signature(original).bind(catalog, *args, **kwargs).arguments["tableName"])
    return original(catalog, *args, **kwargs)


def _list_tables(
    router_of: RouterOf,
    original: Original,
    catalog: Any,
    dbName: str | None = None,  # noqa: N803
    pattern: str | None = None,
) -> Any:
    router = router_of(catalog._sparkSession)
    if router is None or not router.in_transaction():
        return original(catalog, dbName, pattern)
    with running_statement(router.session) as statement:
        listed = original(catalog, dbName, pattern)
    if statement.listing is None:
        return listed
    names = statement.listing.staged
    staged = [table for table in original(catalog, statement.listing.database, pattern) if table.name.lower() in names]
    published = [table for table in listed if table.isTemporary or not _is_left_out(table.name.lower(), names)]
    return [*published, *(_as_session_table(router, table) for table in staged)]


def _is_left_out(name: str, staged: Collection[str]) -> bool:
    return name in staged or name.startswith(HIDDEN_PREFIX)
