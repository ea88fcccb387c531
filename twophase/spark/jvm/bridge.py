"""Every private or version-dependent name of Spark's JVM side, in one place.

Nothing else in the project names a Spark class or method that Spark does not promise to keep. Where a name is missing,
:class:`twophase.errors.ConfigurationError` says which one and on which Spark version, before anything happens.

Values cross Py4J as follows: Java arrays and sets are made here; schemas cross as Spark's own JSON; maps and case
classes as JSON, too, by Spark's own Jackson with its Scala module. Field by field, each would cost some calls.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JNetworkError

from twophase.errors import ConfigurationError
from twophase.model import quote
from twophase.spark.jvm import callbacks
from twophase.spark.jvm.interpreter import own_python

CATALOG = "org.apache.spark.sql.connector.catalog."
WRITE = "org.apache.spark.sql.connector.write."

_PYTHON_SOURCE = "org.apache.spark.sql.execution.datasources.v2.python."

#: As many values are remembered that the statement of just now may need again.
_MOST_RECENT = 32

#: Local properties that carry a statement's context through the JVM's thread.
TRANSACTION_PROPERTY = "twophase.transaction"
INTENT_PROPERTY = "twophase.intent"


@contextmanager
def private_name(name: str, spark: Any) -> Iterator[None]:
    """Turn the failure to find a private name of Spark into a :class:`ConfigurationError`."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

    try:
        yield
    except (Py4JJavaError, Py4JNetworkError):
        raise  # the name is there: Spark itself refused, or its JVM is gone
    except (Py4JError, AttributeError, TypeError) as error:
        raise ConfigurationError(
            f"Spark {spark.version} has no usable {name}, which twophase needs.",
            hint="Use PySpark 4.0 to 4.3 with a local (not a Connect) session.",
        ) from error


class Jvm:
    """The JVM of one Spark session.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.

    Raises
    ------
    ConfigurationError
        A Spark Connect session, or a Spark version without the private names that are needed.
    """

    def __init__(self, spark: Any) -> None:
        if not hasattr(spark, "_jsparkSession"):
            raise ConfigurationError(
                "twophase.attach needs a classic Spark session; this one is a Spark Connect client.",
                hint="Over Spark Connect use twophase.create_table_as(df, catalog, path).",
            )
        self.spark = spark
        self.session = spark._jsparkSession
        self.gateway = spark.sparkContext._gateway
        self.jvm = spark.sparkContext._jvm
        self._kept: dict[tuple[str, ...], Any] = {}
        self._recent: dict[tuple[str, ...], Any] = {}

    def once(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """A value that never changes, fetched once: each call over Py4J counts in a statement of a few rows."""
        if key not in self._kept:
            self._kept[key] = make()
        return self._kept[key]

    def recent(self, key: tuple[str, ...], make: Callable[[], Any]) -> Any:
        """A value that never changes, of which there is no end: the last few are remembered."""
        found = self._recent.get(key)
        if found is None:
            found = make()
            self._remember(key, found)
        return found

    def _remember(self, key: tuple[str, ...], value: Any) -> None:
        if len(self._recent) >= _MOST_RECENT:
            self._recent = {}
        self._recent[key] = value

    def settings(self) -> dict[str, str]:
        """The session's configuration (PySpark's own way takes two calls for each setting, and an exception)."""
        return self.entries(self.session.conf().getAllAsJava())

    def kind(self, class_name: str) -> Any:
        """A class named from the root (each dot of its name would cost a call at each use)."""
        return self.once((class_name,), lambda: functools.reduce(getattr, class_name.split("."), self.jvm))

    def static(self, class_name: str, member: str) -> Any:
        """A static method (each look at a class for one costs a call)."""
        return self.once((class_name, member), lambda: getattr(self.kind(class_name), member))

    # -- callbacks -----------------------------------------------------------------------------------------------

    def start_callbacks(self) -> None:
        """Let the JVM call Python objects, and Java exceptions that these raise reach Spark as they are."""
        with private_name("Py4J callback server", self.spark):
            callbacks.start(self.gateway)
            callbacks.propagate_exceptions(self.gateway)

    # -- the session ---------------------------------------------------------------------------------------------

    def is_alive(self) -> bool:
        """Whether the application still runs."""
        context = self.spark.sparkContext
        try:
            return context._jsc is not None and not context._jsc.sc().isStopped()
        except (Py4JNetworkError, OSError):  # the JVM has died
            return False

    def session_id(self) -> str:
        """What tells this JVM session from others."""
        with private_name("SparkSession.sessionUUID", self.spark):
            return str(self.session.sessionUUID())

    def catalogs(self) -> Any:
        """The catalog manager's private map from catalog name to plugin: a mutable Scala map."""
        with private_name("CatalogManager.catalogs", self.spark):
            manager = self.session.sessionState().catalogManager()
            fields = [f for f in manager.getClass().getDeclaredFields() if str(f.getName()).endswith("catalogs")]
            if not fields:
                raise AttributeError("catalogs")
            fields[0].setAccessible(True)
            return fields[0].get(manager)

    def is_database(self, name: str) -> bool:
        """Whether the session catalog has a database of this name."""
        with private_name("SessionCatalog.databaseExists", self.spark):
            return bool(self.session_catalog().databaseExists(name))

    def use_session_catalog(self) -> None:
        """Make ``spark_catalog`` the current catalog."""
        with private_name("CatalogManager.setCurrentCatalog", self.spark):
            self.session.sessionState().catalogManager().setCurrentCatalog("spark_catalog")

    def local_property(self, name: str) -> str | None:
        """A local property of the statement's thread; in a callback that is the thread of the user's call."""
        value = self.spark.sparkContext.getLocalProperty(name)
        return None if value is None else str(value)

    # -- collections ---------------------------------------------------------------------------------------------

    def array(self, class_name: str, items: Sequence[Any] = ()) -> Any:
        """A Java array of a class named from the root (``java.lang.String``)."""
        if not items:
            return self.once(("empty", class_name), lambda: self.gateway.new_array(self.kind(class_name), 0))
        array = self.gateway.new_array(self.kind(class_name), len(items))
        for index, item in enumerate(items):
            array[index] = item
        return array

    def strings(self, items: Sequence[str]) -> Any:
        """A ``String[]``."""
        return self.array("java.lang.String", items)

    def string_arrays(self, rows: Sequence[Sequence[str]]) -> Any:
        """A ``String[][]``."""
        array = self.gateway.new_array(self.kind("java.lang.String"), len(rows), 1)
        for index, row in enumerate(rows):
            array[index] = self.strings(row)
        return array

    def map(self, entries: Mapping[str, str]) -> Any:
        """A ``java.util.Map``."""
        return self.from_json("java.util.HashMap", dict(entries))

    def entries(self, java_map: Any) -> dict[str, str]:
        """The texts of a Java or Scala map, in one call whatever its size (an iterator takes several an entry)."""
        found: dict[str, str] = self.to_json(java_map)
        return found

    def to_json(self, value: Any) -> Any:
        """A case class, a map or a sequence of them as JSON has it."""
        with private_name("Jackson's ObjectMapper", self.spark):
            text = str(self._mapper().writeValueAsString(value))
        return json.loads(text)

    def from_json(self, kind: Any, value: Any) -> Any:
        """What JSON says, as an instance of a class.

        Parameters
        ----------
        kind : str or py4j.java_gateway.JavaObject
            The name of a class, or Jackson's own description of one.
        value : object
            Whatever JSON can say.
        """
        if isinstance(kind, str):
            name = kind
            kind = self.once(("class", name), lambda: self.static("java.lang.Class", "forName")(name))
        text = json.dumps(value)
        with private_name("Jackson's ObjectMapper", self.spark):
            return self._mapper().readValue(text, kind)

    def list_kind(self, class_name: str) -> Any:
        """The description of a list of a class's instances, for :meth:`from_json`."""

        def make() -> Any:
            types, of = self._mapper().getTypeFactory(), self.static("java.lang.Class", "forName")
            return types.constructCollectionType(of("java.util.ArrayList"), of(class_name))

        return self.once(("list", class_name), make)

    def _mapper(self) -> Any:
        return self.once(("ObjectMapper with Scala",), self.new_mapper)

    def new_mapper(self) -> Any:
        """Jackson's, which knows Scala's classes."""
        mapper = self.kind("com.fasterxml.jackson.databind.ObjectMapper")()
        mapper.registerModule(self.kind("com.fasterxml.jackson.module.scala.DefaultScalaModule")())
        return mapper

    def parts(self, strings: Any) -> tuple[str, ...]:
        """The texts of a ``String[]`` (a namespace); Python's own way takes two calls for each one."""
        return tuple(self.to_json(strings))

    def option(self, value: Any | None) -> Any:
        """A Scala ``Option``; Python's None is the empty one."""
        if value is None:
            return self.once(("scala.None",), lambda: self.kind("scala.Option").empty())
        return self.static("scala.Option", "apply")(value)

    def seq(self, items: Sequence[Any]) -> Any:
        """A Scala ``Seq``."""
        to_seq = self.static("org.apache.spark.api.python.PythonUtils", "toSeq")
        return to_seq(list(items)) if items else self.once(("scala.Nil",), lambda: to_seq([]))

    def scala_map(self, entries: Mapping[str, str]) -> Any:
        """An immutable Scala ``Map``."""
        to_map = self.static("org.apache.spark.api.python.PythonUtils", "toScalaMap")
        return to_map(dict(entries)) if entries else self.once(("scala.Map.empty",), lambda: to_map({}))

    def any_tag(self) -> Any:
        """Scala's ``ClassTag[Any]``: an array of it holds values of all kinds."""
        return self.once(("ClassTag.Any",), lambda: self.kind("scala.reflect.ClassTag").Any())

    def set(self, items: Iterable[Any] = ()) -> Any:
        """A ``java.util.Set``."""
        result = self.kind("java.util.HashSet")()
        for item in items:
            result.add(item)
        return result

    # -- schemas and tables --------------------------------------------------------------------------------------

    def struct(self, text: str) -> Any:
        """Spark's ``StructType`` from its JSON."""
        make = self.static("org.apache.spark.sql.types.DataType", "fromJson")
        return self.recent(("struct", text), lambda: make(text))

    def columns(self, struct: Any) -> Any:
        """``Column[]`` of a ``StructType``."""
        util = self.kind(CATALOG + "CatalogV2Util")
        with private_name("CatalogV2Util.structTypeToV2Columns", self.spark):
            more = self.once(("structTypeToV2Columns",), lambda: self._default(util, "structTypeToV2Columns", 2))
            return util.structTypeToV2Columns(struct, *more)

    @staticmethod
    def _default(kind: Any, method: str, index: int) -> tuple[Any, ...]:
        """Scala's own default of an argument that newer versions have added; nothing where it is not there."""
        try:
            return (getattr(kind, f"{method}$default${index}")(),)
        except _py4j_error():
            return ()

    def columns_json(self, columns: Any) -> str:
        """JSON of the ``StructType`` that ``Column[]`` stands for."""
        with private_name("CatalogV2Util.v2ColumnsToStructType", self.spark):
            struct = self.static(CATALOG + "CatalogV2Util", "v2ColumnsToStructType")(columns)
            text = str(struct.json())
        self._remember(("struct", text), struct)
        return text

    def identifier(self, namespace: Sequence[str], name: str) -> Any:
        """A v2 ``Identifier``."""
        return self.static(CATALOG + "Identifier", "of")(self.strings(namespace), name)

    def capabilities(self, *names: str) -> Any:
        """A set of ``TableCapability``."""
        return self._enum_set(CATALOG + "TableCapability", names)

    def _enum_set(self, class_name: str, names: tuple[str, ...]) -> Any:
        kind = self.kind(class_name)
        return self.once((class_name, *names), lambda: self.set(kind.valueOf(name) for name in names))

    def transforms(self, transforms: Sequence[tuple[str, Sequence[str], Sequence[Any]]]) -> Any:
        """A ``Transform[]`` from (name, columns as Spark's parser reads them, arguments)."""
        make = self.kind("org.apache.spark.sql.connector.expressions.Expressions")
        result = [self._transform(make, *transform) for transform in transforms]
        return self.array("org.apache.spark.sql.connector.expressions.Transform", result)

    def _transform(self, make: Any, name: str, columns: Sequence[str], arguments: Sequence[Any]) -> Any:
        if name == "identity":
            return make.identity(columns[0])
        if name == "bucket":
            return make.bucket(int(arguments[0]), self.strings(columns))
        if name in ("years", "months", "days", "hours"):
            return getattr(make, name)(columns[0])
        if name == "cluster_by":
            paths = [make.column(".".join(map(quote, path))) for path in arguments]
            with private_name("ClusterByTransform", self.spark):
                return self.kind("org.apache.spark.sql.connector.expressions.ClusterByTransform")(self.seq(paths))
        parts = [make.literal(argument) for argument in arguments] + [make.column(column) for column in columns]
        return make.apply(name, self.array("org.apache.spark.sql.connector.expressions.Expression", parts))

    def session_table(self, database: str, name: str) -> Any:
        """``CatalogTable`` of a table of Spark's own session catalog."""
        with private_name("SessionCatalog.getTableMetadata", self.spark):
            return self.session_catalog().getTableMetadata(self.table_identifier(database, name))

    def table_identifier(self, database: str, name: str) -> Any:
        """A v1 ``TableIdentifier``."""
        make = self.kind("org.apache.spark.sql.catalyst.TableIdentifier")
        return self.recent(("table", database, name), lambda: make(name, self.option(database)))

    def table_type(self, name: str) -> Any:
        """One of the kinds of a session table: ``MANAGED``, ``EXTERNAL`` or ``VIEW``."""
        kind = "org.apache.spark.sql.catalyst.catalog.CatalogTableType"
        return self.once((kind, name), lambda: getattr(self.kind(kind), name)())

    def v1_table(self, catalog_table: Any) -> Any:
        """A ``V1Table`` over a ``CatalogTable``."""
        with private_name("V1Table", self.spark):
            return self.kind(CATALOG + "V1Table")(catalog_table)

    def file_table(self, provider: str, location: str, schema_json: str, options: Mapping[str, str]) -> Any:
        """Spark's own file table (vectorised readers, partition values in directory names) over a location.

        Raises
        ------
        ConfigurationError
            The format has no file table of this kind.
        """
        # ``__globPaths__``: brackets and stars in the location are not patterns.
        return self.file_source(provider, schema_json, {**options, "path": location, "__globPaths__": "false"})

    def file_source(self, provider: str, schema_json: str, facts: Mapping[str, str]) -> Any:
        """Spark's own file table of a format.

        Parameters
        ----------
        provider : str
        schema_json : str
        facts : mapping of str to str
            Options of the source, and where the files are.

        Raises
        ------
        ConfigurationError
            The format has no file table of this kind.
        """
        with private_name(f"file source {provider}", self.spark):
            source = getattr(
                getattr(self.jvm, "org.apache.spark.sql.execution.datasources.DataSource$"), "MODULE$"
            ).lookupDataSource(provider, self.session.sessionState().conf())
            no_transforms = self.array("org.apache.spark.sql.connector.expressions.Transform")
            provider_object = source.getDeclaredConstructor(self.array("java.lang.Class")).newInstance(
                self.array("java.lang.Object")
            )
            return provider_object.getTable(self.struct(schema_json), no_transforms, self.map(facts))

    def batch_partitions(self, parts: Sequence[bytes]) -> Any:
        """``InputPartition[]`` of pickled parts, as Spark's own sources in Python have them."""
        with private_name("PythonInputPartition", self.spark):
            kind = self.kind(_PYTHON_SOURCE + "PythonInputPartition")
            found = [kind(index, bytearray(part)) for index, part in enumerate(parts)]
            return self.array("org.apache.spark.sql.connector.read.InputPartition", found)

    def batch_reader_factory(self, function: Callable[..., Any], struct: Any) -> Any:
        """What runs a Python function over a pickled part on an executor, and takes its Arrow batches."""
        from pyspark.serializers import CloudPickleSerializer
        from pyspark.sql.types import _parse_datatype_json_string
        from pyspark.sql.udf import _wrap_function

        with private_name("PythonPartitionReaderFactory", self.spark):
            returned = _parse_datatype_json_string(str(struct.json()))
            pickled = bytearray(CloudPickleSerializer().dumps((function, returned)))
            with own_python(self.spark):
                wrapped = _wrap_function(self.spark.sparkContext, function)
            source = self.kind(_PYTHON_SOURCE + "UserDefinedPythonDataSource")(wrapped)
            none = self.kind("scala.Option").empty()
            factory = self.kind(_PYTHON_SOURCE + "PythonPartitionReaderFactory")
            width = factory._java_lang_class.getConstructors()[0].getParameterCount()
            return factory(source, pickled, struct, *[none] * (width - 3))

    def columnar_support(self, mode: str) -> Any:
        """One of ``Scan.ColumnarSupportMode``."""
        return self.kind("org.apache.spark.sql.connector.read.Scan$ColumnarSupportMode").valueOf(mode)

    def table_summaries(self, identifiers: Sequence[Any]) -> Any:
        """``TableSummary[]`` (Spark 4.2 and later)."""
        kind = self.kind(CATALOG + "TableSummary")
        return self.array(
            "org.apache.spark.sql.connector.catalog.TableSummary",
            [kind.of(identifier, kind.MANAGED_TABLE_TYPE) for identifier in identifiers],
        )

    # -- caches --------------------------------------------------------------------------------------------------

    def forget_relation(self, database: str, name: str) -> None:
        """Make the session look at a session table anew."""
        with private_name("SessionCatalog.refreshTable", self.spark):
            self.session_catalog().refreshTable(self.table_identifier(database, name))

    def nothing_cached(self) -> bool:
        """Whether no query of the application is cached (then there is nothing to invalidate)."""
        with private_name("CacheManager.isEmpty", self.spark):
            return bool(self.cache_manager().isEmpty())

    def uncache(self, parts: Sequence[str]) -> None:
        """Drop every cached query that reads a table, by the table's full name."""
        names = self.seq(parts)
        with private_name("CacheManager.uncacheTableOrView", self.spark):
            manager = self.cache_manager()
            try:
                manager.uncacheTableOrView(self.session, names, True)
            except _py4j_error():
                manager.uncacheTableOrView(self.session, names, True, False)

    def session_catalog(self) -> Any:
        """Spark's own catalog of the session."""
        return self.once(("SessionCatalog",), lambda: self.session.sessionState().catalog())

    def cache_manager(self) -> Any:
        """What keeps the cached queries of the application."""
        return self.once(("CacheManager",), lambda: self.session.sharedState().cacheManager())

    # -- exceptions ----------------------------------------------------------------------------------------------

    def exception(self, kind: str, *arguments: Any) -> Any:
        """One of ``org.apache.spark.sql.catalyst.analysis``'s exceptions, from an identifier or a namespace."""
        return self.kind(f"org.apache.spark.sql.catalyst.analysis.{kind}")(*arguments)

    def invalid_name(self, name: str) -> Any:
        """Spark's exception for the name of a table or database with other characters than it allows."""
        from pyspark.errors import PySparkException

        with private_name("QueryCompilationErrors.invalidNameForTableOrDatabaseError", self.spark):
            errors = self.kind("org.apache.spark.sql.errors.QueryCompilationErrors")
            try:
                return errors.invalidNameForTableOrDatabaseError(name)
            except PySparkException:  # Spark parses the name for its text, and cannot parse each
                return errors.invalidNameForTableOrDatabaseError(quote(name))

    def missing_location(self) -> Any:
        """Spark's exception for an external table without a place."""
        with private_name("QueryCompilationErrors.createExternalTableWithoutLocationError", self.spark):
            errors = self.kind("org.apache.spark.sql.errors.QueryCompilationErrors")
            return errors.createExternalTableWithoutLocationError()

    def runtime_exception(self, message: str) -> Any:
        """A plain ``RuntimeException``."""
        return self.kind("java.lang.RuntimeException")(message)

    # -- DataFrames ----------------------------------------------------------------------------------------------

    def data_frame(self, dataset: Any) -> Any:
        """The Python DataFrame of a Java ``Dataset``."""
        from pyspark.sql.classic.dataframe import DataFrame

        return DataFrame(dataset, self.spark)

    def frame_of(self, plan: Any) -> Any:
        """The DataFrame of a logical plan."""
        with private_name("Dataset.ofRows", self.spark):
            return self.data_frame(self.kind("org.apache.spark.sql.classic.Dataset").ofRows(self.session, plan))


def _py4j_error() -> type[Exception]:
    from py4j.protocol import Py4JError

    return Py4JError
