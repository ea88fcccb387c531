"""What the metastore of a session is asked and told, beneath Spark's promised interfaces.

Scala case classes made by the names of their fields, and the session's ``ExternalCatalog``; what is below it is in
:mod:`.hive`.
"""

from __future__ import annotations

from typing import Any

from twophase.model import quote
from twophase.spark.jvm.bridge import Jvm, private_name


class Draft:
    """All values of a case class, to make one instance or several of them.

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

    def draft(self, class_name: str, *first: Any, **changes: Any) -> Draft:
        """A case class from its first fields; the others get the changes, or Scala's own defaults.

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
