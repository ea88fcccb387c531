"""Spark's caches: the cached relation of a session table, and cached queries.

A DataFrame, a temporary view and a cached query hold the table's relation, with an index of its files. Spark itself
refreshes that index after an INSERT, which finds nothing if a new version is in another directory. So the relation
gets the index of the new version (``java/Relations.java``): one field is set, and a query that has already listed its
files keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JError

from twophase.model import quote
from twophase.redaction import logger
from twophase.spark.jvm import session_state, values
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object

log = logger("twophase.spark")

_CATALOG = "spark_catalog"


class TableCaches:
    """The relations and cached queries of one session."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def follow(self, database: str, name: str, *, statistics: bool = False, table: Any | None = None) -> None:
        """Move the session's relation of a table on to its current rows; if that fails, only new queries see them.

        Parameters
        ----------
        database, name : str
        statistics : bool
            Whether to update the table's statistics as Spark does after a write.
        table : Java ``CatalogTable``, optional
            The current entry of the table, if known: it is looked up only if more than its files has changed.
        """
        plan = self._kept(database, name)
        if statistics:
            self._update_statistics(table or session_state.session_table(self._jvm, database, name))
        if plan is None:
            session_state.forget_relation(self._jvm, database, name)
            return
        try:
            is_there = not statistics and table is not None and self._relations().refresh(plan, table)
            if (is_there or self._moved(plan, database, name)) and not nothing_cached(self._jvm):
                with private_name("CacheManager.recacheByPlan", self._jvm.spark):
                    # Spark finds entries with another relation of the same files: they would be filled from old ones.
                    self._relations().leadCached(self._jvm.session, plan)
                    cache_manager(self._jvm).recacheByPlan(self._jvm.session, plan)
        except Exception:
            log.warning("DataFrames made of %s.%s before do not show its new rows.", database, name, exc_info=True)
            session_state.forget_relation(self._jvm, database, name)

    def follow_files(self, database: str, name: str, found: Any) -> bool:
        """Do in one call what :meth:`follow` does after an INSERT without statistics, if no query is cached.

        Parameters
        ----------
        database, name : str
        found : py4j.java_gateway.JavaObject
            The holder of the table's current entry, from :meth:`PartitionTexts.table`.

        Returns
        -------
        bool
            False if there is more to do: :meth:`follow` does it.
        """
        try:
            return bool(self._relations().follow(self._jvm.session, database, name, found))
        except Exception:  # ``follow`` meets it again, and says what it means.
            return False

    def keeps_only(self, database: str, name: str) -> bool:
        """Return :meth:`keeps` if no query of the application is cached, otherwise False."""
        with private_name("CacheManager.isEmpty", self._jvm.spark):
            return bool(self._relations().keepsOnly(self._jvm.session, database, name))

    def keeps(self, database: str, name: str) -> bool:
        """Return whether the session caches a relation of the table: right after a write, one that follows it."""
        return self._kept(database, name) is not None

    def list_again(self, database: str, name: str) -> bool:
        """Let the session's relation of a table see the current files; return whether there is one."""
        plan = self._kept(database, name)
        if plan is None:
            return False
        try:
            with private_name("HadoopFsRelation.location", self._jvm.spark):
                plan.relation().location().refresh()
        except Exception:
            log.warning("The files of %s.%s could not be listed anew.", database, name, exc_info=True)
            session_state.forget_relation(self._jvm, database, name)
        return True

    def _kept(self, database: str, name: str) -> Any | None:
        """The session's relation of a table; None if it has not read the table since the last change."""
        with private_name("SessionCatalog.getCachedTable", self._jvm.spark):
            make = self._jvm.kind("org.apache.spark.sql.catalyst.QualifiedTableName")
            known = self._jvm.recent(("qualified", database, name), lambda: make(_CATALOG, database, name))
            return session_state.session_catalog(self._jvm).getCachedTable(known)

    def _update_statistics(self, table: Any) -> None:
        """Recalculate or remove the statistics of a ``CatalogTable``, as configured."""
        with private_name("CommandUtils.updateTableStats", self._jvm.spark):
            commands = self._jvm.kind("org.apache.spark.sql.execution.command.CommandUtils")
            commands.updateTableStats(self._jvm.session, table)

    def _moved(self, plan: Any, database: str, name: str) -> bool:
        """Give the old relation the files of the new one, and let the session cache the old one."""
        full_name = ".".join((_CATALOG, quote(database), quote(name)))
        with private_name("SessionCatalog.getCachedTable", self._jvm.spark):
            return bool(self._relations().move(self._jvm.session, plan, database, name, full_name))

    def _relations(self) -> Any:
        return self._jvm.once(("relations",), lambda: java_object(self._jvm, "Relations"))


def nothing_cached(jvm: Jvm) -> bool:
    """Return whether no query of the application is cached (then there is nothing to invalidate)."""
    with private_name("CacheManager.isEmpty", jvm.spark):
        return bool(cache_manager(jvm).isEmpty())


def uncache(jvm: Jvm, parts: Sequence[str], *, readers: bool = True) -> None:
    """Drop a cached table by its full name, and by default every cached query that reads it."""
    names = values.seq(jvm, parts)
    with private_name("CacheManager.uncacheTableOrView", jvm.spark):
        manager = cache_manager(jvm)
        try:
            manager.uncacheTableOrView(jvm.session, names, readers)
        except Py4JError:
            manager.uncacheTableOrView(jvm.session, names, readers, False)


def cache_manager(jvm: Jvm) -> Any:
    """The manager of the application's cached queries."""
    return jvm.once(("CacheManager",), lambda: jvm.session.sharedState().cacheManager())
