"""What the metastore of a session is asked and told, beneath Spark's promised interfaces: a part of :mod:`.jvm`.

Scala case classes made by the names of their fields, the session's ``ExternalCatalog``, and the Hive client below it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from twophase.model import quote
from twophase.spark.jvm import Jvm, private_name


class CaseClasses:
    """Makes and copies Scala case classes by the names of their fields, whatever the version added to them."""

    def __init__(self, jvm: Jvm) -> None:
        self._jvm = jvm
        self._names: dict[str, list[str]] = {}
        self._defaults: dict[str, list[Any]] = {}
        self._constructors: dict[str, Any] = {}

    def copy(self, instance: Any, **changes: Any) -> Any:
        """A copy of a case class's instance with some fields changed."""
        with private_name(f"case class with {', '.join(changes)}", self._jvm.spark):
            kind = str(instance.productPrefix())
            places = self._places(kind, instance, changes)
            values = instance.productIterator().toArray(self._jvm.any_tag())
            for place, value in zip(places, changes.values(), strict=True):
                values[place] = value
            return self._constructor(kind, instance).newInstance(values)

    def new(self, class_name: str, *first: Any, **changes: Any) -> Any:
        """An instance of a case class from its first fields; the others get the changes, or Scala's own defaults.

        The defaults are asked for once: one that is not the same each time must be among the changes.
        """
        kind = self._jvm.kind(class_name)
        with private_name(f"case class {class_name}", self._jvm.spark):
            if class_name not in self._defaults:
                self._defaults[class_name] = self._ask_defaults(kind, len(first))
            values = [*first, *self._defaults[class_name]]
            short = class_name.rpartition(".")[2]
            seed = kind(*values) if short not in self._names else None
            for place, value in zip(self._places(short, seed, changes), changes.values(), strict=True):
                values[place] = value
            return kind(*values)

    @staticmethod
    def _ask_defaults(kind: Any, first: int) -> list[Any]:
        width = max(c.getParameterCount() for c in kind._java_lang_class.getConstructors())
        return [getattr(kind, f"apply$default${index}")() for index in range(first + 1, width + 1)]

    def _places(self, kind: str, instance: Any, changes: dict[str, Any]) -> list[int]:
        if kind not in self._names:
            names = instance.productElementNames().toSeq()
            self._names[kind] = [str(names.apply(index)) for index in range(names.size())]
        if unknown := set(changes) - set(self._names[kind]):
            raise AttributeError(f"no fields {unknown}")
        return [self._names[kind].index(name) for name in changes]

    def _constructor(self, kind: str, instance: Any) -> Any:
        if kind not in self._constructors:
            found = instance.getClass().getConstructors()
            self._constructors[kind] = max(found, key=lambda constructor: constructor.getParameterCount())
        return self._constructors[kind]


def case_classes(jvm: Jvm) -> CaseClasses:
    """Those of a session, which remember the fields that they have asked for."""
    found: CaseClasses = jvm.once(("case classes",), lambda: CaseClasses(jvm))
    return found


def session_read_table(jvm: Jvm, database: str, name: str) -> Any:
    """What a named catalog's ``loadTable`` answers so that Spark reads a session table as ever.

    Outside the session catalog, Spark takes no ``V1Table`` whose partitions the metastore tracks. Such a table is
    answered as a view of itself: its scan is Spark's own, with partitions from the metastore.
    """
    found = jvm.session_table(database, name)
    if not found.tracksPartitionsInCatalog():
        return jvm.v1_table(found)
    view = case_classes(jvm).copy(
        found,
        tableType=jvm.table_type("VIEW"),
        viewText=jvm.option(f"SELECT * FROM spark_catalog.{quote(database)}.{quote(name)}"),
        tracksPartitionsInCatalog=False,
    )
    return jvm.v1_table(view)


def external_catalog(spark: Any) -> Any:
    """The ``ExternalCatalog`` of the session: in memory, or over a Hive metastore."""
    with private_name("SessionCatalog.externalCatalog", spark):
        return spark._jsparkSession.sessionState().catalog().externalCatalog()


def hive_client(spark: Any) -> Any | None:
    """The ``HiveClient`` below a Hive external catalog; None for the catalog in memory."""
    with private_name("ExternalCatalogWithListener.unwrapped", spark):
        unwrapped = external_catalog(spark).unwrapped()
        if not str(unwrapped.getClass().getName()).endswith(".HiveExternalCatalog"):
            return None
    with private_name("HiveExternalCatalog.client", spark):
        return unwrapped.client()


def hive_settings(spark: Any, client: Any) -> dict[str, str]:
    """Where the metastore of a Hive client is: its services, its database, and Derby's home directory."""
    system = spark.sparkContext._jvm.java.lang.System.getProperty
    with private_name("HiveClient.getConf", spark):
        found = {key: str(client.getConf(key, "")) for key in ("hive.metastore.uris", "javax.jdo.option.ConnectionURL")}
    return {**found, "derby.system.home": str(system("derby.system.home") or system("user.dir"))}


def hive_alter_without_columns(spark: Any, client: Any, raw: Any) -> None:
    """``alter_table`` of a raw Hive table with an empty list of data columns, which the Hive client itself refuses.

    The metastore compares the types of columns position by position with those that are there; against an empty
    list everything fits.
    """
    jvm = spark.sparkContext._jvm
    with private_name("HiveClientImpl.toHiveTable", spark):
        make = _method(client, "toHiveTable", 2)
        arguments = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 2)
        arguments[0] = raw
        arguments[1] = jvm.scala.Option.apply(None)
        table = make.invoke(client, arguments).getTTable()
        table.getSd().setCols(jvm.java.util.ArrayList())
    with private_name("HiveClientImpl.msClient", spark):
        found = _method(client, "msClient", 0)
        found.setAccessible(True)
        store = found.invoke(client, spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 0))
    with private_name("HiveClientImpl.withHiveState", spark):
        _Locked(lambda: store.alter_table(table.getDbName(), table.getTableName(), table)).run(client)


class _Locked:
    """A call to the metastore under the lock of Spark's Hive client: its connection serves one thread at a time."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._error: Exception | None = None

    def run(self, client: Any) -> None:
        client.withHiveState(self)
        if self._error is not None:
            raise self._error

    def apply(self) -> None:
        """What the Hive client runs."""
        try:
            self._call()
        except Exception as error:  # Java would make an error of Py4J's of it.
            self._error = error

    class Java:
        implements: ClassVar[list[str]] = ["scala.Function0"]


def _method(instance: Any, name: str, parameters: int) -> Any:
    for method in instance.getClass().getDeclaredMethods():
        if str(method.getName()).endswith(name) and method.getParameterCount() == parameters:
            return method
    raise AttributeError(name)
