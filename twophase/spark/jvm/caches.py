"""What Spark keeps of a session table, and how it learns of new rows: a part of :mod:`twophase.spark.jvm.bridge`.

A DataFrame, a temporary view and a cached query hold the table's relation, with an index of its files. Spark itself
refreshes that index after an INSERT, which finds nothing where a new version lies in another directory. So the relation
gets the index of the new version: one field is set, and a query that has listed its files already keeps them.
"""

from __future__ import annotations

from typing import Any

from twophase.model import quote
from twophase.redaction import logger
from twophase.spark.jvm.bridge import Jvm, private_name

log = logger("twophase.spark")

_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"
_CATALOG = "spark_catalog"


class TableCaches:
    """The relations and cached queries of one session.

    Parameters
    ----------
    jvm : Jvm
    """

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm

    def follow(self, database: str, name: str, *, statistics: bool = False) -> None:
        """Lead what was made of a table before to its rows of now; where that cannot be, new queries only.

        Parameters
        ----------
        database, name : str
        statistics : bool
            Whether to do with the table's statistics what Spark does after a write.
        """
        plan = self._kept(database, name)
        if statistics:
            self._update_statistics(database, name)
        else:
            self._jvm.forget_relation(database, name)
        if plan is None:
            return
        try:
            if self._moved(plan, database, name) and not self._jvm.nothing_cached():
                with private_name("CacheManager.recacheByPlan", self._jvm.spark):
                    self._jvm.cache_manager().recacheByPlan(self._jvm.session, plan)
        except Exception:
            log.warning("DataFrames made of %s.%s before do not show its new rows.", database, name, exc_info=True)
            self._jvm.forget_relation(database, name)

    def keeps(self, database: str, name: str) -> bool:
        """Whether the session keeps a relation of the table: right after a write, one that follows it."""
        return self._kept(database, name) is not None

    def list_again(self, database: str, name: str) -> bool:
        """Let the session's relation of a table see the files that are there now; whether there is one."""
        plan = self._kept(database, name)
        if plan is None:
            return False
        try:
            with private_name("HadoopFsRelation.location", self._jvm.spark):
                plan.relation().location().refresh()
        except Exception:
            log.warning("The files of %s.%s could not be listed anew.", database, name, exc_info=True)
            self._jvm.forget_relation(database, name)
        return True

    def _kept(self, database: str, name: str) -> Any | None:
        """The session's relation of a table; None where it has not read it since it last changed."""
        with private_name("SessionCatalog.getCachedTable", self._jvm.spark):
            make = self._jvm.kind("org.apache.spark.sql.catalyst.QualifiedTableName")
            known = self._jvm.recent(("qualified", database, name), lambda: make(_CATALOG, database, name))
            return self._jvm.session_catalog().getCachedTable(known)

    def _update_statistics(self, database: str, name: str) -> None:
        """Size them anew or remove them, as configured; the session looks at the table anew in any case."""
        with private_name("CommandUtils.updateTableStats", self._jvm.spark):
            commands = self._jvm.kind("org.apache.spark.sql.execution.command.CommandUtils")
            commands.updateTableStats(self._jvm.session, self._jvm.session_table(database, name))

    def _moved(self, plan: Any, database: str, name: str) -> bool:
        """Give the old relation what the new one reads, and let the session keep the old one."""
        self._jvm.session.table(".".join((_CATALOG, quote(database), quote(name))))
        now = self._kept(database, name)
        if now is None:
            return False
        with private_name("HadoopFsRelation.location", self._jvm.spark):
            old, new = plan.relation(), now.relation()
            if not self._alike(old, new):
                return False
            for field in ("location", "options"):
                _set(old, field, getattr(new, field)())
            _set(now, "relation", old)
        return True

    @staticmethod
    def _alike(old: Any, new: Any) -> bool:
        """Whether two relations read files of one kind and the same columns."""
        kinds = {str(relation.getClass().getName()) for relation in (old, new)}
        formats = (
            {str(relation.fileFormat().getClass().getName()) for relation in (old, new)} if kinds == {_FILES} else {}
        )
        return len(formats) == 1 and bool(old.schema().equals(new.schema()))


def _set(instance: Any, name: str, value: Any) -> None:
    field = instance.getClass().getDeclaredField(name)
    field.setAccessible(True)
    field.set(instance, value)
