"""A Hive metastore below Spark's session catalog, accessed without Spark's public interfaces.

Spark's Hive client rebuilds a table from the parts that it knows, refuses columns that do not fit the existing ones,
and makes the metastore list the table's files at each change, however many there are. Operations that it does not
support use the connection below it, under its lock.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from py4j.protocol import Py4JJavaError

from twophase.catalogs.hive.stamps import STAMP, StampChangedError, fenced, is_stamp, no_stamp, unfenced
from twophase.catalogs.hive.tables import EXTERNAL, MANAGED, HiveTable
from twophase.spark.jvm import values
from twophase.spark.jvm.callbacks import JavaCallable
from twophase.spark.jvm.gateway import Jvm, private_name
from twophase.spark.jvm.java_sources import java_object
from twophase.spark.jvm.metastore import hive_catalog

_CONTEXT = "org.apache.hadoop.hive.metastore.api.EnvironmentContext"
_TABLE = "org.apache.hadoop.hive.metastore.api.Table"
#: Options of a call: do not list files, and (HIVE-26882) the value that a parameter of the table must still have; and
#: the metastore's error if it has another one.
_NOT_LOOKING, _KEY, _VALUE = "DO_NOT_UPDATE_STATS", "expected_parameter_key", "expected_parameter_value"
_OTHER_VALUE = "The table has been modified"
#: Errors if it cannot compare and set: always, if its settings disable direct SQL or the SQL of a condition is not
#: supported; or once, if its database refused it temporarily (a deadlock): seconds to wait.
_NO_CONDITION = ("Cannot update parameter with JDO", "SQL is not operational")
_SPEAKS_SQL = ("hive.metastore.try.direct.sql", "hive.metastore.try.direct.sql.ddl")
_WAITS = (0.1, 0.5)
#: How often a change that fits any state of a table is tried, in case others publish it meanwhile.
_ATTEMPTS = 5
#: Parameters of a table: Hive's for its last change; Spark's for a table whose partitions are managed by the metastore.
_CHANGED_AT, _TRACKED = "transient_lastDdlTime", "spark.sql.partitionProvider"
#: Spark's parameter for the format of a data source table.
_PROVIDER = "spark.sql.sources.provider"
#: Prefix of Spark's parameters for the schema of a data source table.
_SCHEMA = "spark.sql.sources.schema"
#: Hive's parameters for its files: their number, their size, and the statistics of their rows.
_FILES, _SIZE = "numFiles", "totalSize"
_COUNTED = ("numRows", "rawDataSize", "COLUMN_STATS_ACCURATE")
#: Prefix of Spark's parameters for its statistics.
_COUNTED_BY_SPARK = "spark.sql.statistics."
_COUNTED_BY_COLUMN = "spark.sql.statistics.colStats."
#: The columns of a table that Hive could not read, as Spark stores them.
_STAND_IN = [("col", "array<string>")]
#: Spark's setting for the location of a data source table, among those of its SerDe.
_PATH = "path"
#: The names that ``StoredTables.point`` needs.
_POINTING = {"copy": _PATH, "prefix": _COUNTED_BY_SPARK, "set_by_store": _CHANGED_AT, "size": _SIZE}
#: All partitions, where a number is required; and the number read per call: Derby, which the metastore asks for all of
#: them by their numbers in one statement, takes minutes to parse one with 20,000.
_ALL, _AT_ONCE = -1, 1000


def hive_tables(jvm: Jvm) -> HiveTables | None:
    """The tables below a Hive external catalog; None for the in-memory catalog."""
    unwrapped = hive_catalog(jvm)
    if unwrapped is None:
        return None
    with private_name("HiveExternalCatalog.client", jvm.spark):
        return HiveTables(jvm, unwrapped)


_PLACES = ("hive.metastore.uris", "hive.metastore.client.factory.class", "javax.jdo.option.ConnectionURL")


def hive_settings(spark: Any, client: Any) -> dict[str, str]:
    """The location of a Hive client's metastore: its services, its database, and Derby's home directory."""
    system = spark.sparkContext._jvm.java.lang.System.getProperty
    with private_name("HiveClient.getConf", spark):
        found = {key: str(client.getConf(key, "")) for key in _PLACES}
    return {**found, "derby.system.home": str(system("derby.system.home") or system("user.dir"))}


class HiveTables:
    """Tables as stored by the metastore itself, created and changed by its own calls.

    Each method runs under the lock of Spark's Hive client, whose connection serves one thread at a time, and raises the
    errors of the metastore.

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
        """Create a table from its stored form (a ``CatalogTable``), in one call."""
        with private_name("HiveClient.createTable", self._jvm.spark):
            self.client.createTable(table, False)

    def properties_of(self, table: Any, provider: str) -> dict[str, str]:
        """The properties of the Hive table in which Spark stores a data source table (a ``CatalogTable``)."""
        with private_name("HiveExternalCatalog.tableMetaToTableProps", self._jvm.spark):
            method = self._jvm.once(("properties",), lambda: _method(self._catalog, "tableMetaToTableProps", 1))
            arguments = values.array(self._jvm, "java.lang.Object", [table])
            return {**values.entries(self._jvm, method.invoke(self._catalog, arguments)), _PROVIDER: provider}

    def rename(
        self,
        database: str,
        name: str,
        new_name: str,
        kind: str | None,
        *,
        stamp: str | None = None,
        expected: str | None = None,
    ) -> None:
        """Rename a table and set its kind and stamp; no files move, as the metastore moves none of an external table.

        Parameters
        ----------
        database, name, new_name : str
        kind, stamp : str, optional
            As for :meth:`twophase.catalogs.hive.metastore.Metastore.rename_table`.
        expected : str, optional
            As in :attr:`.HiveTable.expected_stamp`; no call can demand that there is none: it is looked up just before.

        Raises
        ------
        StampChangedError
            It has another stamp; nothing was changed.
        """

        def call(store: Any) -> None:
            table, now = _still_as_expected(store, database, name, expected), expected if is_stamp(expected) else None
            before = str(table.getTableType()).removesuffix("_TABLE")
            if before == MANAGED:
                self._stored.become(table, EXTERNAL, _PATH)
                former = now
                if former is not None:  # A conditional call must change the stamp.
                    now = fenced(former)
                    table.putToParameters(STAMP, now)
                self._alter(store, database, name, table, expected=former)
            if kind or before == MANAGED:
                self._stored.become(table, kind or before, _PATH)
            if stamp is not None:
                self._stored.note(table, json.dumps({STAMP: stamp or None}), None)
            table.setTableName(new_name)
            self._alter(store, database, name, table, expected=now)

        self._run(call)

    def make_managed(self, database: str, name: str) -> None:
        """Make a table managed, so that a drop deletes its files."""
        self._change(database, name, lambda table: self._stored.become(table, MANAGED, _PATH))

    def point(
        self,
        wanted: HiveTable,
        files: int,
        size: int,
        *,
        expected: str | None,
        redefined: tuple[Any, Any] | None = None,
    ) -> None:
        """Give a table another location and stamp, with its file statistics: the metastore need not list the files.

        Parameters
        ----------
        wanted : HiveTable
            As just read from the metastore, with another location and stamp.
        files, size : int
            Number of files at the location, and their bytes; not stored for partitioned tables.
        expected : str, optional
            As in :attr:`.HiveTable.expected_stamp`.
        redefined : tuple, optional
            Its columns change as well: the table from :meth:`stored`, as which it must still be, and Spark's
            ``CatalogTable`` with the new columns.

        Raises
        ------
        StampChangedError
            The table is not as it was seen; nothing was changed.
        """
        noted = _pointed(wanted, files, size)
        if redefined is not None:
            noted |= self._schema_noted(*redefined)

        def call(store: Any) -> None:
            table = _still_as_expected(store, wanted.database, wanted.name, expected)
            if redefined is not None:
                self._require_seen(table, redefined[0])
            self._stored.place(table, str(wanted.location), _PATH)
            self._stored.note(table, json.dumps(noted), _COUNTED_BY_SPARK)
            if redefined is None:
                self._alter(store, wanted.database, wanted.name, table, expected=expected)
            else:
                self._alter_columns(store, table, redefined[1], needs=False, expected=expected)

        self._run(call)

    def point_as_read(self, reader: Any, wanted: HiveTable, files: int, size: int) -> Any | None:
        """Do what :meth:`point` does, in one call of the JVM, if the table is as it was read.

        Parameters
        ----------
        reader : py4j.java_gateway.JavaObject
            The ``HiveTables`` that has read it.
        wanted, files, size
            As for :meth:`point`.

        Returns
        -------
        py4j.java_gateway.JavaObject or None
            The holder of the table as it is then; None if nothing was changed.
        """
        stamp = wanted.extra["facts"]["properties"].get(STAMP)
        options = {} if stamp is None or not self._conditions else {_KEY: STAMP, _VALUE: stamp}
        facts = {
            **_POINTING,
            "location": str(wanted.location),
            "noted": _pointed(wanted, files, size),
            "options": {**options, _NOT_LOOKING: "true"},
            "options_without_size": options,
        }
        try:
            return reader.point(wanted.extra["found"], json.dumps(facts))
        except Py4JJavaError as error:
            if not any(words in str(error.java_exception) for words in (_OTHER_VALUE, *_NO_CONDITION)):
                raise
        return None

    def place(self, database: str, name: str, location: str, *, expected: str | None) -> None:
        """Give a partitioned table another location, without any other change."""
        self._change(database, name, lambda table: self._stored.place(table, location, _PATH), expected=expected)

    def set_option(self, database: str, name: str, key: str, value: str) -> None:
        """Set a storage property, and undo nothing that another writer has published meanwhile.

        Raises
        ------
        StampChangedError
            Others have published the table each time that it was tried.
        """

        def call(store: Any) -> None:
            table = store.getTable(database, name)
            table.getSd().getSerdeInfo().putToParameters(key, value)
            stamp = table.getParameters().get(STAMP)
            if stamp is not None:
                table.putToParameters(STAMP, fenced(stamp))
            self._alter(store, database, name, table, expected=stamp)

        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(StampChangedError):
                return self._run(call)
        return self._run(call)

    def _change(self, database: str, name: str, change: Callable[[Any], None], *, expected: str | None = None) -> None:
        def call(store: Any) -> None:
            table = _still_as_expected(store, database, name, expected)
            change(table)
            self._alter(store, database, name, table, expected=expected)

        self._run(call)

    def stored(self, database: str, name: str) -> Any:
        """A table as the metastore has it, for :meth:`redefine`."""
        return self._run(lambda store: store.getTable(database, name))

    def redefine(
        self,
        seen: Any,
        changes: Mapping[str, str | None],
        described: Any | None,
        *,
        needs: bool,
        has_others: bool = False,
    ) -> None:
        """Change parameters and columns of a table, if its place, columns and stamp are as they were seen.

        Parameters
        ----------
        seen : py4j.java_gateway.JavaObject
            From :meth:`stored`.
        changes : mapping of str to str or None
            Parameters, and None for those that are removed.
        described : py4j.java_gateway.JavaObject, optional
            Spark's ``CatalogTable`` with the new columns. Its schema in the parameters is replaced, too.
        needs : bool
            Whether the metastore must have the new columns; otherwise it keeps its own if it refuses them (it compares
            types by position) or does not have their types, since Spark has them in the parameters.
        has_others : bool
            Whether columns have other names or types, or are gone: then Spark's statistics of columns are dropped.

        Raises
        ------
        StampChangedError
            The table is not as it was seen; nothing was changed.
        """
        database, name = str(seen.getDbName()), str(seen.getTableName())
        stamp = self._seen(seen).get(STAMP)
        noted = dict(changes)
        if described is not None:
            noted |= self._schema_noted(seen, described)
        if stamp is not None and STAMP not in changes:
            noted[STAMP] = fenced(stamp)

        def call(store: Any) -> None:
            table = store.getTable(database, name)
            self._require_seen(table, seen)
            self._stored.note(table, json.dumps(noted), _COUNTED_BY_COLUMN if has_others else None)
            self._alter_columns(store, table, described, needs=needs, expected=stamp)

        self._run(call)

    def _schema_noted(self, seen: Any, described: Any) -> dict[str, str | None]:
        """The changes to the parameters in which Spark has the schema of a table."""
        now = self.properties_of(described, "")
        gone = {key: None for key in self._seen(seen) if key != STAMP}
        return {**gone, **{key: value for key, value in now.items() if key.startswith(_SCHEMA)}}

    def _require_seen(self, table: Any, seen: Any) -> None:
        if self._seen(table) != self._seen(seen) or not table.getSd().equals(seen.getSd()):
            raise StampChangedError(f"{seen.getDbName()}.{seen.getTableName()}")

    def _alter_columns(
        self, store: Any, table: Any, described: Any | None, *, needs: bool, expected: str | None
    ) -> None:
        """Change a table, and its columns to those of a ``CatalogTable``: see :meth:`redefine`."""
        database, name, before = str(table.getDbName()), str(table.getTableName()), table.getSd().getCols()
        if described is not None:
            columns = self._columns(described)
            if needs or self._stored.knows(columns):
                table.getSd().setCols(columns)
        try:
            self._alter(store, database, name, table, expected=expected)
        except Py4JJavaError as error:
            if described is None or needs or not _refused(error):
                raise
            table.getSd().setCols(before)
            self._alter(store, database, name, table, expected=expected)

    def has_former_columns(self, database: str, name: str, described: Any) -> bool:
        """Whether a metastore has data columns that are not those of Spark's ``CatalogTable``, nor Spark's stand-in."""
        stored = _names_and_types(self.stored(database, name).getSd().getCols())
        return stored not in (_names_and_types(self._columns(described)), _STAND_IN)

    def _seen(self, table: Any) -> dict[str, str]:
        """The parameters of a table with its stamp and the schema that Spark reads."""
        found = values.entries(self._jvm, table.getParameters())
        return {key: value for key, value in found.items() if key == STAMP or key.startswith(_SCHEMA)}

    def _columns(self, described: Any) -> Any:
        """The data columns of a ``CatalogTable``, as Spark stores them in the metastore."""
        with private_name("HiveClientImpl.toHiveTable", self._jvm.spark):
            method = self._jvm.once(("toHiveTable",), lambda: _method(self.client, "toHiveTable", 2))
        arguments = values.array(self._jvm, "java.lang.Object", [described, values.option(self._jvm, None)])
        return method.invoke(self.client, arguments).getTTable().getSd().getCols()

    def fence(self, database: str, name: str, stamp: str) -> None:
        """Change the stamp of a table, so that delayed calls which expect the stored one fail, if that is supported."""
        if not self._conditions:
            return

        def call(store: Any) -> None:
            table = store.getTable(database, name)
            noted = table.getParameters()
            stored = noted.get(STAMP)
            if stored is not None and unfenced(stored) == stamp:
                noted.put(STAMP, fenced(stored))
                self._alter_if(stored, store, database, name, table)

        # Another writer has published meanwhile, which is as good; or no call can name the stamp that it expects.
        with contextlib.suppress(StampChangedError, _NoConditionsError):
            self._run(call)

    def replace(
        self, wanted: HiveTable, template: str, *, at_once: bool, look: bool, expected: str | None = None
    ) -> None:
        """Give a table the columns, storage and properties of a template.

        Parameters
        ----------
        wanted : HiveTable
            Its ``database``, ``name``, ``kind`` and ``tracked`` are used.
        template : str
            A table of the same database.
        at_once : bool
            Whether the metastore accepts the columns in place of the existing ones. It compares types position by
            position; but it accepts a table without columns, and any columns in place of none.
        look : bool
            Whether the metastore must list the files, because the template's statistics are of other files.
        expected : str, optional
            As in :attr:`.HiveTable.expected_stamp`.
        """

        def call(store: Any) -> None:
            table = _still_as_expected(store, wanted.database, wanted.name, expected)
            self._stored.define(table, store.getTable(wanted.database, template))
            if not wanted.tracked:
                table.getParameters().remove(_TRACKED)
            self._stored.become(table, wanted.kind, _PATH)
            if not at_once:
                storage = table.getSd()
                columns = storage.getCols()
                storage.setCols(self._jvm.kind("java.util.ArrayList")())
                self._alter(store, wanted.database, wanted.name, table, expected=expected)
                storage.setCols(columns)
            now = expected if at_once or not is_stamp(expected) else wanted.stamp
            self._alter(store, wanted.database, wanted.name, table, look=look, expected=now)

        self._run(call)

    def place_partitions(self, database: str, name: str, partitions: Any) -> bool:
        """Change partitions in one call, with their file statistics: the metastore need not list the files of each.

        Parameters
        ----------
        database, name : str
        partitions : py4j.java_gateway.JavaObject
            A Java ``List`` of ``CatalogTablePartition``, whose parameters have the number and size of their files.

        Returns
        -------
        bool
            False if the metastore's client knows no such call; nothing was changed.
        """
        with private_name("HiveClientImpl.toHivePartition", self._jvm.spark):
            method = self._jvm.once(("toHivePartition",), lambda: _method(self.client, "toHivePartition", 2))

        def call(store: Any) -> bool:
            context = self._context(store, {_NOT_LOOKING: "true"})
            if context is not None:
                stored = self._stored.partitions(method, store.getTable(database, name), partitions, _CHANGED_AT)
                store.alter_partitions(database, name, stored, context)
            return context is not None

        return bool(self._run(call))

    def has_partitions(self, database: str, name: str) -> bool:
        """Whether a table has partitions, by the name of one."""
        return not self._run(lambda store: store.listPartitionNames(database, name, 1)).isEmpty()

    def partition_locations(self, database: str, name: str) -> list[str]:
        """The locations of all partitions of a table, as stored in the metastore, without the rest of each."""
        found = self._run(lambda store: _all_partitions(store, database, name))
        locations = self._jvm.once(("Locations",), lambda: java_object(self._jvm, "Locations"))
        return [location for partitions in found for location in values.to_json(self._jvm, locations.of(partitions))]

    @property
    def _stored(self) -> Any:
        return self._jvm.once(("StoredTables",), lambda: java_object(self._jvm, "StoredTables"))

    def _alter(
        self, store: Any, database: str, name: str, table: Any, *, look: bool = False, expected: str | None = None
    ) -> None:
        if not is_stamp(expected) or not self._conditions:
            self._alter_now(store, database, name, table, look=look)
        else:
            self._alter_expecting(str(expected), store, database, name, table, look=look)

    def _alter_expecting(
        self, expected: str, store: Any, database: str, name: str, table: Any, *, look: bool = False
    ) -> None:
        """Change a table that has this stamp; if the metastore cannot compare and set, after reading the stamp."""
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
        has_size = self._stored.without(table, _CHANGED_AT, _SIZE)  # The metastore sets the first if it is missing.
        # In formats that Hive does not support, the table was created without files: their size is determined now.
        facts = {} if look or not has_size else {_NOT_LOOKING: "true"}
        if expected is not None:
            facts |= {_KEY: STAMP, _VALUE: expected}
        context = self._context(store, facts) if facts else None
        if context is None:
            store.alter_table(database, name, table)
        else:
            store.alter_table_with_environmentContext(database, name, table, context)

    def _context(self, store: Any, facts: dict[str, str]) -> Any | None:
        """Options of a metastore call; None for the client of a Hive 2.0, which does not support them."""
        kind = self._jvm.once(("EnvironmentContext",), lambda: _kind_of_context(self._jvm, store))
        return None if kind is None else self._stored.context(kind, json.dumps(facts))

    def _run(self, call: Callable[[Any], Any]) -> Any:
        return _Locked(lambda: call(self._connection()))._run(self.client)

    def _connection(self) -> Any:
        """The metastore client in current use by Spark's Hive client; it reconnects and retries after an error."""
        with private_name("HiveClientImpl.msClient", self._jvm.spark):
            method = self._jvm.once(("msClient",), lambda: _method(self.client, "msClient", 0))
        return method.invoke(self.client, values.array(self._jvm, "java.lang.Object"))


def _pointed(wanted: HiveTable, files: int, size: int) -> dict[str, str | None]:
    """The changes to the parameters of a table that gets another location and stamp."""
    noted: dict[str, str | None] = {**dict.fromkeys(_COUNTED), STAMP: wanted.stored_stamp}
    return noted if wanted.partition_columns else {**noted, _FILES: str(files), _SIZE: str(size)}


def _names_and_types(columns: Any) -> list[tuple[str, str]]:
    return [(str(column.getName()).lower(), str(column.getType())) for column in columns]


def _all_partitions(store: Any, database: str, name: str) -> list[Any]:
    """All partitions of a table, in lists; in a single list if their names changed during the reads."""
    names = store.listPartitionNames(database, name, _ALL)
    count = names.size()
    if count > _AT_ONCE:
        starts = range(0, count, _AT_ONCE)
        parts = [names.subList(start, min(start + _AT_ONCE, count)) for start in starts]
        found = [store.getPartitionsByNames(database, name, part) for part in parts]
        # A partition renamed meanwhile may have been missed under both of its names.
        complete = sum(partitions.size() for partitions in found) == count
        if complete and names.equals(store.listPartitionNames(database, name, _ALL)):
            return found
    return [store.listPartitions(database, name, _ALL)]


def _kind_of_context(jvm: Jvm, store: Any) -> Any | None:
    """The class ``EnvironmentContext`` of the metastore's client; None if it accepts none."""
    kind = store.getClass()
    load = kind.getClassLoader().loadClass  # The metastore's client may be of another version than Spark's.
    with private_name("EnvironmentContext", jvm.spark):
        made_of, text = load(_CONTEXT), load("java.lang.String")
        arguments = values.array(jvm, "java.lang.Class", [text, text, load(_TABLE), made_of])
        try:
            kind.getMethod("alter_table_with_environmentContext", arguments)
        except Py4JJavaError:  # NoSuchMethodException
            return None
    return made_of


class _NoConditionsError(Exception):
    """The metastore did not compare and set; nothing was changed."""


def _speaks_no_sql(store: Any) -> bool:
    """Return whether a metastore's own settings exclude compare and set."""
    try:
        return any(str(store.getMetaConf(key)).lower() == "false" for key in _SPEAKS_SQL)
    except Py4JJavaError:  # It may not be Hive's own service.
        return False


def _refused(error: Py4JJavaError) -> bool:
    """Whether the metastore refuses a change of a table, and has changed nothing."""
    return bool(error.java_exception.getClass().getSimpleName() == "InvalidOperationException")


def _still_as_expected(store: Any, database: str, name: str, expected: str | None) -> Any:
    """A table as the metastore has it.

    Raises
    ------
    StampChangedError
        It should have no stamp, and has one or was made anew.
    """
    table = store.getTable(database, name)
    if expected is not None and not is_stamp(expected):
        unstamped = no_stamp(1000 * int(table.getCreateTime())) if expected else ""
        if table.getParameters().get(STAMP) is not None or unstamped != expected:
            raise StampChangedError(f"{database}.{name}")
    return table


class _Locked(JavaCallable):
    """A call under the lock of Spark's Hive client, in the thread from which Java calls back."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._result: Any = None
        self._error: BaseException | None = None

    def _run(self, client: Any) -> Any:
        client.withHiveState(self)
        if self._error is not None:
            raise self._error
        return self._result

    def apply(self) -> None:
        """Entry point of the Hive client."""
        try:
            self._result = self._call()
        except BaseException as error:  # Py4J would turn it into an error of its own, even an interrupt.
            self._error = error

    class Java:
        implements: ClassVar[list[str]] = ["scala.Function0"]


def _method(instance: Any, name: str, parameters: int) -> Any:
    for method in instance.getClass().getDeclaredMethods():
        if str(method.getName()).endswith(name) and method.getParameterCount() == parameters:
            method.setAccessible(True)
            return method
    raise AttributeError(name)
