"""The state of a session: its configuration, its session catalog and its catalog manager."""

from __future__ import annotations

from typing import Any

from twophase.spark.jvm import values
from twophase.spark.jvm.gateway import Jvm, private_name


def settings(jvm: Jvm) -> dict[str, str]:
    """The session's configuration (PySpark's own API takes two calls for each setting, and an exception)."""
    return values.entries(jvm, jvm.session.conf().getAllAsJava())


def catalogs(jvm: Jvm) -> Any:
    """The catalog manager's private map from catalog name to plugin: a mutable Scala map."""
    with private_name("CatalogManager.catalogs", jvm.spark):
        manager = jvm.session.sessionState().catalogManager()
        fields = [f for f in manager.getClass().getDeclaredFields() if str(f.getName()).endswith("catalogs")]
        if not fields:
            raise AttributeError("catalogs")
        fields[0].setAccessible(True)
        return fields[0].get(manager)


def is_database(jvm: Jvm, name: str) -> bool:
    """Return whether the session catalog has a database of this name."""
    with private_name("SessionCatalog.databaseExists", jvm.spark):
        return bool(session_catalog(jvm).databaseExists(name))


def use_session_catalog(jvm: Jvm) -> None:
    """Make ``spark_catalog`` the current catalog."""
    with private_name("CatalogManager.setCurrentCatalog", jvm.spark):
        jvm.session.sessionState().catalogManager().setCurrentCatalog("spark_catalog")


def session_table(jvm: Jvm, database: str, name: str) -> Any:
    """``CatalogTable`` of a table of Spark's own session catalog."""
    with private_name("SessionCatalog.getTableMetadata", jvm.spark):
        return session_catalog(jvm).getTableMetadata(table_identifier(jvm, database, name))


def table_identifier(jvm: Jvm, database: str, name: str) -> Any:
    """A v1 ``TableIdentifier``."""
    make = jvm.kind("org.apache.spark.sql.catalyst.TableIdentifier")
    return jvm.recent(("table", database, name), lambda: make(name, values.option(jvm, database)))


def table_type(jvm: Jvm, name: str) -> Any:
    """One of the kinds of a session table: ``MANAGED``, ``EXTERNAL`` or ``VIEW``."""
    kind = "org.apache.spark.sql.catalyst.catalog.CatalogTableType"
    return jvm.once((kind, name), lambda: getattr(jvm.kind(kind), name)())


def forget_relation(jvm: Jvm, database: str, name: str) -> None:
    """Make the session resolve a session table again."""
    with private_name("SessionCatalog.refreshTable", jvm.spark):
        session_catalog(jvm).refreshTable(table_identifier(jvm, database, name))


def session_catalog(jvm: Jvm) -> Any:
    """Spark's own catalog of the session."""
    return jvm.once(("SessionCatalog",), lambda: jvm.session.sessionState().catalog())


def set_unless_set(jvm: Jvm, key: str, value: str) -> bool:
    """Set a setting of the session, unless its user has; return whether it was set."""
    if jvm.session.sessionState().conf().contains(key):
        return False
    jvm.spark.conf.set(key, value)
    return True


def hadoop_setting(jvm: Jvm, key: str) -> str | None:
    """A setting of Hadoop, as a job of the session would have it; None if it is not set."""
    with private_name("SessionState.newHadoopConf", jvm.spark):
        found = jvm.session.sessionState().newHadoopConf().get(key)
    return None if found is None else str(found)
