"""The doors of ``spark.catalog``: what it shows inside a transaction, and what it changes.

PySpark's ``Catalog`` goes straight to the JVM. Here a name that means a staged table is replaced by its name in the
twophase catalog, which answers with the staged state, and what would take effect at once is refused as its SQL is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from twophase.spark.routing.ddl import Change
from twophase.spark.routing.targets import SESSION_CATALOG

if TYPE_CHECKING:
    from twophase.spark.routing.router import Original, Router

RouterOf = Callable[[Any], "Router | None"]
Door = Callable[..., Any]

#: Methods that look at a table, or at what Spark keeps of it.
_LOOKS = (
    *("getTable", "listColumns", "tableExists", "isCached", "cacheTable", "uncacheTable", "refreshTable"),
    *("getTableProperties", "getCreateTableString"),
)
#: Methods that tell what only a published table has.
_ABOUT_PUBLISHED = ("listPartitions", "analyzeTable")
#: Other methods that change something at once: the statement that says the same, and what it changes.
_CHANGES = {
    "truncateTable": ("TRUNCATE TABLE", "TABLE"),
    "createTable": ("CREATE TABLE", "TABLE"),
    "createExternalTable": ("CREATE TABLE", "TABLE"),
    "createDatabase": ("CREATE DATABASE", "DATABASE"),
    "dropDatabase": ("DROP DATABASE", "DATABASE"),
}


def doors(router_of: RouterOf) -> dict[tuple[Any, str], Door]:
    """The doors by class and method, as far as this version of PySpark has them."""
    from pyspark.sql.catalog import Catalog

    found: dict[str, Door] = {
        **{name: partial(_look, router_of) for name in _LOOKS},
        **{name: partial(_tell_published, router_of) for name in _ABOUT_PUBLISHED},
        **{name: partial(_change, router_of, *said) for name, said in _CHANGES.items()},
        "dropTable": partial(_drop_table, router_of),
        "recoverPartitions": partial(_recover_partitions, router_of),
        "listTables": partial(_list_tables, router_of),
    }
    return {(Catalog, name): door for name, door in found.items() if hasattr(Catalog, name)}


def _look(router_of: RouterOf, original: Original, catalog: Any, *args: Any, **kwargs: Any) -> Any:
    router = router_of(catalog._sparkSession)
    if router is None or not router.in_transaction():
        return original(catalog, *args, **kwargs)
    bound = inspect.signature(original).bind(catalog, *args, **kwargs)
    told = bound.arguments
    staged = router.staged_name(told["tableName"], told.get("dbName"))
    if staged is None:
        return original(catalog, *args, **kwargs)
    told.pop("dbName", None)
    told["tableName"] = staged
    return _as_session_table(router, original(*bound.args, **bound.kwargs))


def _as_session_table(router: Router, shown: Any) -> Any:
    """A ``Table`` under the name of the catalog in which it will be."""
    if getattr(shown, "catalog", None) == router.handle.session_catalog:
        return shown._replace(catalog=SESSION_CATALOG)
    return shown


def _tell_published(router_of: RouterOf, original: Original, catalog: Any, *args: Any, **kwargs: Any) -> Any:
    router = router_of(catalog._sparkSession)
    if router is not None and router.in_transaction():
        router.refuse_staged(inspect.signature(original).bind(catalog, *args, **kwargs).arguments["tableName"])
    return original(catalog, *args, **kwargs)


def _change(
    router_of: RouterOf, verb: str, kind: str, original: Original, catalog: Any, *args: Any, **kwargs: Any
) -> Any:
    router = router_of(catalog._sparkSession)
    if router is not None and router.in_transaction():
        router.refuse_change(Change(verb, kind, _named(router, original, catalog, *args, **kwargs)))
    return original(catalog, *args, **kwargs)


def _drop_table(router_of: RouterOf, original: Original, catalog: Any, *args: Any, **kwargs: Any) -> Any:
    run = partial(original, catalog, *args, **kwargs)
    router = router_of(catalog._sparkSession)
    parts = _named(router, original, catalog, *args, **kwargs) if router is not None else None
    if router is None or parts is None:
        return run()
    router.refuse_change(Change("DROP TABLE", "TABLE", parts))
    return router.ddl.dropping(run, [parts])


def _recover_partitions(router_of: RouterOf, original: Original, catalog: Any, *args: Any, **kwargs: Any) -> Any:
    router = router_of(catalog._sparkSession)
    parts = _named(router, original, catalog, *args, **kwargs) if router is not None else None
    if router is not None and parts is not None:
        router.refuse_change(Change("ALTER TABLE ... RECOVER PARTITIONS", "TABLE", parts))
        router.ddl.partitions_sought([parts])
    return original(catalog, *args, **kwargs)


def _named(router: Router, original: Original, catalog: Any, *args: Any, **kwargs: Any) -> tuple[str, ...] | None:
    """The parts of the name that a method was given; None where Spark will refuse it."""
    told = inspect.signature(original).bind(catalog, *args, **kwargs).arguments
    return router.parts(told["tableName"] if "tableName" in told else told["dbName"])


def _list_tables(
    router_of: RouterOf,
    original: Original,
    catalog: Any,
    dbName: str | None = None,  # noqa: N803
    pattern: str | None = None,
) -> Any:
    told = original(catalog, dbName, pattern)
    router = router_of(catalog._sparkSession)
    if router is None or not router.in_transaction():
        return told
    database, names = router.staged_database(None if dbName is None else router.parts(dbName))
    if not names:
        return told
    staged = [table for table in original(catalog, database, pattern) if table.name.lower() in names]
    published = [table for table in told if table.isTemporary or table.name.lower() not in names]
    return [*published, *(_as_session_table(router, table) for table in staged)]
