"""Changes of tables in Spark's session catalog, by any code in any session.

Spark reports them synchronously, in the thread that makes the change, before and after it. ``java/TableChanges.java``
keeps all other events in the JVM, and those of twophase's changes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from twophase.redaction import logger
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object
from twophase.spark.jvm.metastore import external_catalog

log = logger("twophase.spark")

#: Called with the call that makes the change, the database and the name; around a rename with the new name too, and
#: around the drop of a database without a name.
Listener = Callable[..., None]
#: The events that are reported, by the names of Spark's classes.
_EVENTS = {
    "AlterTablePreEvent": "altering",
    "AlterTableEvent": "altered",
    "CreateTablePreEvent": "creating",
    "CreateTableEvent": "created",
    "DropTablePreEvent": "dropping",
    "DropTableEvent": "dropped",
    "RenameTablePreEvent": "renaming",
    "RenameTableEvent": "renamed",
    "DropDatabasePreEvent": "dropping_database",
    "DropDatabaseEvent": "database_dropped",
}
#: The kinds of events.
KINDS = tuple(_EVENTS.values())


@dataclass(frozen=True)
class CatalogCall:
    """A call of Spark's catalog that changes tables.

    Attributes
    ----------
    thread : int
        The JVM's thread that makes it.
    goes_on : callable
        Whether that thread is still in such a call; without an event after it, the change has failed.
    is_table : callable
        Whether a database has a table of a name, which is no view.
    """

    thread: int
    goes_on: Callable[[], bool] = field(compare=False)
    is_table: Callable[[str, str], bool] = field(compare=False)


class _Listener(JavaCallable):
    """The Python side: called by the thread that changes the catalog, which holds the lock of Spark's session catalog.

    Its calls to the JVM run in that thread as well. It must not wait for any other thread that could need that lock.
    """

    class Java:
        implements = ["java.util.function.BiConsumer"]

    def __init__(self, listeners: Mapping[str, Listener], java: Any) -> None:
        self._listeners = listeners
        self._java = java

    def accept(self, event: str, thread: int) -> None:
        try:
            name, *names = event.split("\n")
            if (listener := self._listeners.get(_EVENTS[name])) is not None:
                listener(CatalogCall(thread, lambda: self._java.isChanging(thread), self._java.isTable), *names)
        except Exception:  # The statement's own outcome counts.
            log.warning("A table that was changed by Spark could not be followed.", exc_info=True)


class TableListener:
    """Follows all changes of tables in an application, until it is closed.

    Parameters
    ----------
    jvm : Jvm
        JVM of any session of the application.
    listeners : mapping of str to callable
        By :data:`KINDS`; called with a :class:`CatalogCall` and the names.
    """

    def __init__(self, jvm: Jvm, listeners: Mapping[str, Listener]) -> None:
        self._jvm = jvm
        self._catalog = external_catalog(jvm.spark)
        self._listener = java_object(jvm, "TableChanges")
        self._listener.tell(_Listener(listeners, self._listener), self._catalog)
        with private_name("ExternalCatalogWithListener.addListener", jvm.spark):
            self._catalog.addListener(self._listener)

    def close(self) -> None:
        """Stop listening. Idempotent, and harmless if Spark has been stopped."""
        try:
            with private_name("ExternalCatalogWithListener.removeListener", self._jvm.spark):
                self._catalog.removeListener(self._listener)
        except Exception:
            log.debug("The listener of tables could not be removed; the JVM is probably gone", exc_info=True)


class OwnChanges:
    """Changes by twophase, which are not reported to any :class:`TableListener`.

    Parameters
    ----------
    jvm : Jvm
    catalog : py4j.java_gateway.JavaObject
        Spark's ``ExternalCatalog``.
    """

    def __init__(self, jvm: Jvm, catalog: Any) -> None:
        self._jvm = jvm
        self._catalog = catalog

    def create(self, table: Any) -> None:
        """Create a table, given as Spark's ``CatalogTable``."""
        self._java().create(self._catalog, table)

    def drop_database(self, database: str, *, cascade: bool) -> None:
        """Drop a database if it exists."""
        self._java().dropDatabase(self._catalog, database, cascade)

    def drop(self, database: str, name: str) -> None:
        """Drop a table if it exists; the files of a managed one are deleted with it."""
        self._java().drop(self._catalog, database, name)

    def rename(self, database: str, name: str, new_name: str) -> None:
        """Rename a table; the in-memory catalog moves the files of a managed one."""
        self._java().rename(self._catalog, database, name, new_name)

    def _java(self) -> Any:
        return self._jvm.once(("own changes",), lambda: java_object(self._jvm, "TableChanges$Own"))
