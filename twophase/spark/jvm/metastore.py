"""Calls to the metastore of a session, below Spark's public interfaces.

Scala case classes created by the names of their fields, and the session's ``ExternalCatalog``; the layer below it is
in :mod:`.hive`.
"""

from __future__ import annotations

from typing import Any

from twophase.model import quote
from twophase.spark.jvm import session_state, tables, values
from twophase.spark.jvm.gateway import Jvm, private_name


class Draft:
    """All values of a case class, for creating one or more instances.

    Parameters
    ----------
    kind : py4j.java_gateway.JavaClass
    names : list of str
    values : list of object
    """

    def __init__(self, kind: Any, names: list[str], values: list[Any]) -> None:
        self._kind = kind
        self._names = names
        self._values = values

    def make(self, **changes: Any) -> Any:
        """An instance, with some fields changed."""
        values = list(self._values)
        for name, value in changes.items():
            values[self._names.index(name)] = value
        return self._kind(*values)


class CaseClasses:
    """Creates and copies Scala case classes by the names of their fields, whatever fields a version has added."""

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
            fields = instance.productIterator().toArray(values.any_tag(self._jvm))
            for place, value in zip(places, changes.values(), strict=True):
                fields[place] = value
            return self._constructor(kind, instance).newInstance(fields)

    def draft(self, class_name: str, *first: Any, **changes: Any) -> Draft:
        """A case class from its first fields; the others get the changes, or Scala's own defaults.

        The defaults are fetched once: one that differs each time must be among the changes.
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
            return Draft(kind, self._names[short], values)

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
    """The case classes of a session, with cached field names."""
    return jvm.once(("case classes",), lambda: CaseClasses(jvm))


def session_read_table(jvm: Jvm, database: str, name: str) -> Any:
    """The result of a named catalog's ``loadTable`` that makes Spark read a session table as usual.

    Outside the session catalog, Spark accepts no ``V1Table`` whose partitions are tracked by the metastore. Such a
    table is returned as a view of itself: its scan is Spark's own, with partitions from the metastore.
    """
    found = session_state.session_table(jvm, database, name)
    if not found.tracksPartitionsInCatalog():
        return tables.v1_table(jvm, found)
    view = case_classes(jvm).copy(
        found,
        tableType=session_state.table_type(jvm, "VIEW"),
        viewText=values.option(jvm, f"SELECT * FROM spark_catalog.{quote(database)}.{quote(name)}"),
        tracksPartitionsInCatalog=False,
    )
    return tables.v1_table(jvm, view)


def external_catalog(spark: Any) -> Any:
    """The ``ExternalCatalog`` of the session: in memory, or over a Hive metastore."""
    with private_name("SessionCatalog.externalCatalog", spark):
        return spark._jsparkSession.sessionState().catalog().externalCatalog()


def hive_catalog(jvm: Jvm) -> Any | None:
    """Spark's ``HiveExternalCatalog``; None for the in-memory catalog."""
    with private_name("ExternalCatalogWithListener.unwrapped", jvm.spark):
        unwrapped = external_catalog(jvm.spark).unwrapped()
        return unwrapped if str(unwrapped.getClass().getName()).endswith(".HiveExternalCatalog") else None
