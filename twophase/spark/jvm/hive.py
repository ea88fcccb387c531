"""A Hive metastore below Spark's session catalog, reached past Spark's promised interfaces.

Spark's Hive client makes a table anew out of what it knows of it, refuses columns that do not fit those that are there,
and has the metastore list the table's files at each change, however many they are. What it cannot do otherwise goes to
the connection below it, under its lock.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, ClassVar

from py4j.protocol import Py4JJavaError

from twophase.catalogs.hive.metastore import EXTERNAL, MANAGED, STAMP, HiveTable, StampChangedError, fenced, unfenced
from twophase.spark.jvm.bridge import Jvm, private_name
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.metastore import external_catalog

_CONTEXT = "org.apache.hadoop.hive.metastore.api.EnvironmentContext"
_TABLE = "org.apache.hadoop.hive.metastore.api.Table"
#: What it may say: not to list files, and (HIVE-26882) which value a parameter of the table must still have; and what
#: the metastore answers when it has another one.
_NOT_LOOKING, _KEY, _VALUE = "DO_NOT_UPDATE_STATS", "expected_parameter_key", "expected_parameter_value"
_OTHER_VALUE = "The table has been modified"
#: What it answers when it cannot compare and set: always where it speaks no SQL to its database (as its settings say)
#: or not that of a condition, and once where its database would not have it just then (a deadlock): seconds to wait.
_NO_CONDITION = ("Cannot update parameter with JDO", "SQL is not operational")
_SPEAKS_SQL = ("hive.metastore.try.direct.sql", "hive.metastore.try.direct.sql.ddl")
_WAITS = (0.1, 0.5)
#: Parameters of a table: Hive's for one whose files stay when it is dropped (beside the kind), and for its last change;
#: Spark's for one whose partitions are the metastore's.
_IS_EXTERNAL, _CHANGED_AT, _TRACKED = "EXTERNAL", "transient_lastDdlTime", "spark.sql.partitionProvider"
#: Spark's for the format of a data source table.
_PROVIDER = "spark.sql.sources.provider"
#: Hive's for its files: how many, how large, and what it has counted in them.
_FILES, _SIZE = "numFiles", "totalSize"
_COUNTED = ("numRows", "rawDataSize", "COLUMN_STATS_ACCURATE")
#: Spark's for what it has counted in them.
_COUNTED_BY_SPARK = "spark.sql.statistics."
#: Spark's for the location of a data source table, in the settings of its SerDe.
_PATH = "path"


def hive_tables(jvm: Jvm) -> HiveTables | None:
    """What is below a Hive external catalog; None for the catalog in memory."""
    with private_name("ExternalCatalogWithListener.unwrapped", jvm.spark):
        unwrapped = external_catalog(jvm.spark).unwrapped()
        if not str(unwrapped.getClass().getName()).endswith(".HiveExternalCatalog"):
            return None
    with private_name("HiveExternalCatalog.client", jvm.spark):
        return HiveTables(jvm, unwrapped)


_PLACES = ("hive.metastore.uris", "hive.metastore.client.factory.class", "javax.jdo.option.ConnectionURL")


def hive_settings(spark: Any, client: Any) -> dict[str, str]:
    """Where the metastore of a Hive client is: its services, its database, and Derby's home directory."""
    system = spark.sparkContext._jvm.java.lang.System.getProperty
    with private_name("HiveClient.getConf", spark):
        found = {key: str(client.getConf(key, "")) for key in _PLACES}
    return {**found, "derby.system.home": str(system("derby.system.home") or system("user.dir"))}


class HiveTables:
    """Tables as the metastore itself has them, made and changed in its own calls.

    Each method runs under the lock of Spark's Hive client, whose connection serves one thread at a time, and its errors
    are those of the metastore.

    Parameters
    ----------
    jvm : Jvm
    catalog : py4j.java_gateway.JavaObject
        Spark's ``HiveExternalCatalog``.

    Attributes
    ----------
    client : py4j.java_gateway.JavaObject
        The ``HiveClient`` of the session.
    """

    def __init__(self, jvm: Jvm, catalog: Any) -> None:
        self._jvm = jvm
        self._catalog = catalog
        self.client = catalog.client()
        self._conditions = True

    def create(self, table: Any) -> None:
        """Make a table of what is to be kept of it (a ``CatalogTable``), in one call."""
        with private_name("HiveClient.createTable", self._jvm.spark):
            self.client.createTable(table, False)

    def properties_of(self, table: Any, provider: str) -> dict[str, str]:
        """What Spark keeps of a data source table (a ``CatalogTable``) in the properties of Hive's."""
        with private_name("HiveExternalCatalog.tableMetaToTableProps", self._jvm.spark):
            method = self._jvm.once(("properties",), lambda: _method(self._catalog, "tableMetaToTableProps", 1))
            arguments = self._jvm.array("java.lang.Object", [table])
            return {**self._jvm.entries(method.invoke(self._catalog, arguments)), _PROVIDER: provider}

    def rename(self, database: str, name: str, new_name: str, kind: str | None) -> None:
        """Rename a table and set its kind; no file moves, as the metastore moves none of an external table."""

        def call(store: Any) -> None:
            table = store.getTable(database, name)
            before = str(table.getTableType()).removesuffix("_TABLE")
            if before == MANAGED:
                _become(table, EXTERNAL)
                self._alter(store, database, name, table)
            if kind or before == MANAGED:
                _become(table, kind or before)
            table.setTableName(new_name)
            self._alter(store, database, name, table)

        self._run(call)

    def make_managed(self, database: str, name: str) -> None:
        """Let the files of a table go with it when it is dropped."""

        def call(store: Any) -> None:
            table = store.getTable(database, name)
            _become(table, MANAGED)
            self._alter(store, database, name, table)

        self._run(call)

    def point(self, wanted: HiveTable, files: int, size: int, *, expected: str | None) -> None:
        """Give a table another location and stamp; what the metastore has noted of its files is told, not looked up.

        Parameters
        ----------
        wanted : HiveTable
        files, size : int
            How many lie there, and their bytes; not for partitioned tables, of which the metastore notes neither.
        expected : str, optional
            The stamp that it must still have.
        """

        def call(store: Any) -> None:
            table = store.getTable(wanted.database, wanted.name)
            noted = table.getParameters()
            _set_location(table, str(wanted.location))
            for key in (*_COUNTED, *self._counted_by_spark(noted)):
                noted.remove(key)
            noted.put(STAMP, wanted.stamp)
            if not wanted.partition_columns:
                noted.put(_FILES, str(files))
                noted.put(_SIZE, str(size))
            self._alter(store, wanted.database, wanted.name, table, expected=expected)

        self._run(call)

    def place(self, database: str, name: str, location: str, *, expected: str | None) -> None:
        """Give a partitioned table another location, and change nothing else of it."""

        def call(store: Any) -> None:
            table = store.getTable(database, name)
            _set_location(table, location)
            self._alter(store, database, name, table, expected=expected)

        self._run(call)

    def fence(self, database: str, name: str, stamp: str) -> None:
        """Make the stamp of a table another one for whoever expects it as it is stored, where that can be."""
        if not self._conditions:
            return

        def call(store: Any) -> None:
            table = store.getTable(database, name)
            noted = table.getParameters()
            stored = noted.get(STAMP)
            if stored is not None and unfenced(stored) == stamp:
                noted.put(STAMP, fenced(stored))
                self._alter_if(stored, store, database, name, table)

        # Somebody has published meanwhile: that is as good. Or nobody's call names what it expects.
        with contextlib.suppress(StampChangedError, _NoConditionsError):
            self._run(call)

    def replace(
        self, wanted: HiveTable, template: str, *, at_once: bool, look: bool, expected: str | None = None
    ) -> None:
        """Give a table the columns, storage and properties of a template.

        Parameters
        ----------
        wanted : HiveTable
            Its ``database``, ``name``, ``kind`` and ``tracked`` are taken.
        template : str
            A table of the same database.
        at_once : bool
            Whether the metastore takes the columns beside those that are there. It compares types position by
            position, but it takes a table without columns; and against none, everything fits.
        look : bool
            Whether the metastore is to look at the files: the template's statistics are of others.
        expected : str, optional
            The stamp that the table must still have.
        """

        def call(store: Any) -> None:
            table = _redefined(store, wanted, template)
            if not at_once:
                storage = table.getSd()
                columns = storage.getCols()
                storage.setCols(self._jvm.kind("java.util.ArrayList")())
                self._alter(store, wanted.database, wanted.name, table, expected=expected)
                storage.setCols(columns)
            now = expected if at_once or expected is None else wanted.stamp
            self._alter(store, wanted.database, wanted.name, table, look=look, expected=now)

        self._run(call)

    def _counted_by_spark(self, noted: Any) -> list[str]:
        return [key for key in self._jvm.entries(noted) if key.startswith(_COUNTED_BY_SPARK)]

    def _alter(
        self, store: Any, database: str, name: str, table: Any, *, look: bool = False, expected: str | None = None
    ) -> None:
        if expected is None or not self._conditions:
            self._alter_now(store, database, name, table, look=look)
        else:
            self._alter_expecting(expected, store, database, name, table, look=look)

    def _alter_expecting(
        self, expected: str, store: Any, database: str, name: str, table: Any, *, look: bool = False
    ) -> None:
        """Change a table that carries this stamp; where the metastore cannot compare and set, after a look at it."""
        for wait in (*_WAITS, None):
            try:
                self._alter_if(expected, store, database, name, table, look=look)
                return
            except _NoConditionsError:
                if wait is None or _speaks_no_sql(store):
                    break
                time.sleep(wait)
        if store.getTable(database, name).getParameters().get(STAMP) != expected:
            raise StampChangedError(f"{database}.{name}")
        self._alter_now(store, database, name, table, look=look)
        self._conditions = False

    def _alter_if(self, expected: str, store: Any, database: str, name: str, table: Any, *, look: bool = False) -> None:
        """Change a table, by a call that names the stamp which it must have."""
        try:
            self._alter_now(store, database, name, table, look=look, expected=expected)
        except Py4JJavaError as error:
            answer = str(error.java_exception.getMessage())
            if _OTHER_VALUE in answer:
                raise StampChangedError(f"{database}.{name}") from error
            if any(words in answer for words in _NO_CONDITION):
                raise _NoConditionsError(f"{database}.{name}") from error
            raise

    def _alter_now(
        self, store: Any, database: str, name: str, table: Any, *, look: bool, expected: str | None = None
    ) -> None:
        noted = table.getParameters()
        noted.remove(_CHANGED_AT)  # The metastore sets it where it is missing.
        # In formats that Hive does not know, it was made over a place without files: these are sized now.
        facts = {} if look or _SIZE not in noted else {_NOT_LOOKING: "true"}
        if expected is not None:
            facts |= {_KEY: STAMP, _VALUE: expected}
        context = self._context(store, facts) if facts else None
        if context is None:
            store.alter_table(database, name, table)
        else:
            store.alter_table_with_environmentContext(database, name, table, context)

    def _context(self, store: Any, facts: dict[str, str]) -> Any | None:
        """What is said to the metastore beside the table; None for the client of a Hive 2.0, which cannot say it."""
        if _NOT_LOOKING in facts and len(facts) == 1:
            return self._jvm.once(("EnvironmentContext",), lambda: _context(self._jvm, store, facts))
        return _context(self._jvm, store, facts)

    def _run(self, call: Callable[[Any], None]) -> None:
        _Locked(lambda: call(self._connection()))._run(self.client)

    def _connection(self) -> Any:
        """The metastore's client, as Spark's has it now; it connects anew and tries again by itself after an error."""
        with private_name("HiveClientImpl.msClient", self._jvm.spark):
            method = self._jvm.once(("msClient",), lambda: _method(self.client, "msClient", 0))
        return method.invoke(self.client, self._jvm.array("java.lang.Object"))


def _context(jvm: Jvm, store: Any, facts: dict[str, str]) -> Any | None:
    kind = store.getClass()
    load = kind.getClassLoader().loadClass  # The metastore's client may be of another version than Spark's.
    with private_name("EnvironmentContext", jvm.spark):
        made_of, text = load(_CONTEXT), load("java.lang.String")
        arguments = jvm.array("java.lang.Class", [text, text, load(_TABLE), made_of])
        try:
            kind.getMethod("alter_table_with_environmentContext", arguments)
        except Py4JJavaError:  # NoSuchMethodException
            return None
        context = made_of.newInstance()
        for key, value in facts.items():
            context.putToProperties(key, value)
    return context


class _NoConditionsError(Exception):
    """The metastore did not compare and set; nothing was changed."""


def _speaks_no_sql(store: Any) -> bool:
    """Whether a metastore's own settings say that it never compares and sets."""
    try:
        return any(str(store.getMetaConf(key)).lower() == "false" for key in _SPEAKS_SQL)
    except Py4JJavaError:  # Not Hive's own service, perhaps.
        return False


def _set_location(table: Any, location: str) -> None:
    """Where the metastore has a table, and Spark where it keeps that for itself."""
    storage = table.getSd()
    storage.setLocation(location)
    settings = storage.getSerdeInfo().getParameters()
    if settings.get(_PATH) is not None:
        settings.put(_PATH, location)


def _become(table: Any, kind: str) -> None:
    """Set the kind, and Hive's location where Spark has it: a drop of a managed table then finds the files."""
    table.setTableType(f"{kind}_TABLE")
    if kind == EXTERNAL:
        table.putToParameters(_IS_EXTERNAL, "TRUE")
        return
    table.getParameters().remove(_IS_EXTERNAL)
    storage = table.getSd()
    path = storage.getSerdeInfo().getParameters().get(_PATH)
    if path is not None:
        storage.setLocation(path)


def _redefined(store: Any, wanted: HiveTable, template: str) -> Any:
    """The table that is there, with all that a template says."""
    table, new = (store.getTable(wanted.database, name) for name in (wanted.name, template))
    table.setSd(new.getSd())
    table.setParameters(new.getParameters())
    table.setPartitionKeys(new.getPartitionKeys())
    table.setCreateTime(new.getCreateTime())
    table.setOwner(new.getOwner())
    if not wanted.tracked:
        table.getParameters().remove(_TRACKED)
    _become(table, wanted.kind)
    return table


class _Locked(JavaCallable):
    """A call under the lock of Spark's Hive client, and in the thread that Java calls back from."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._error: BaseException | None = None

    def _run(self, client: Any) -> None:
        client.withHiveState(self)
        if self._error is not None:
            raise self._error

    def apply(self) -> None:
        """What the Hive client runs."""
        try:
            self._call()
        except BaseException as error:  # Java would make an error of Py4J's of it, of an interrupt, too.
            self._error = error

    class Java:
        implements: ClassVar[list[str]] = ["scala.Function0"]


def _method(instance: Any, name: str, parameters: int) -> Any:
    for method in instance.getClass().getDeclaredMethods():
        if str(method.getName()).endswith(name) and method.getParameterCount() == parameters:
            method.setAccessible(True)
            return method
    raise AttributeError(name)
