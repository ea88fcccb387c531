"""The types in Spark's table interfaces: schemas, identifiers, transforms, file tables and input partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from py4j.protocol import Py4JError

from twophase.model import quote
from twophase.schema.convert_spark import EXISTS_DEFAULT
from twophase.spark.jvm import column_defaults, values
from twophase.spark.jvm.gateway import CATALOG, Jvm, private_name
from twophase.spark.jvm.interpreter import own_python

_PYTHON_SOURCE = "org.apache.spark.sql.execution.datasources.v2.python."


def struct(jvm: Jvm, text: str) -> Any:
    """Spark's ``StructType`` from its JSON."""
    make = jvm.static("org.apache.spark.sql.types.DataType", "fromJson")
    return jvm.recent(("struct", text), lambda: make(text))


def columns(jvm: Jvm, text: str) -> Any:
    """``Column[]`` of the JSON of a ``StructType``."""
    found = _columns(jvm, struct(jvm, text))
    if EXISTS_DEFAULT in text and "char(" in text and jvm.once(("spoils defaults",), lambda: _spoils_defaults(jvm)):
        column_defaults.keep_parsable(jvm, text, found)
    return found


def _columns(jvm: Jvm, made: Any) -> Any:
    util, name = CATALOG + "CatalogV2Util", "structTypeToV2Columns"
    with private_name(f"CatalogV2Util.{name}", jvm.spark):
        more = jvm.once((name,), lambda: _default(jvm.kind(util), name, 2))
        return jvm.static(util, name)(made, *more)


def _spoils_defaults(jvm: Jvm) -> bool:
    """Whether this version of Spark writes the default of a VARCHAR column so that it cannot read it again."""
    written = jvm.static(CATALOG + "CatalogV2Util", "v2ColumnsToStructType")
    return "'r(4)" in str(written(_columns(jvm, struct(jvm, column_defaults.VARCHAR))).json())


def _default(kind: Any, method: str, index: int) -> tuple[Any, ...]:
    """Scala's own default of an argument that newer versions have added; empty if the argument does not exist."""
    try:
        return (getattr(kind, f"{method}$default${index}")(),)
    except Py4JError:
        return ()


def columns_json(jvm: Jvm, columns: Any) -> str:
    """JSON of the ``StructType`` that corresponds to ``Column[]``."""
    with private_name("CatalogV2Util.v2ColumnsToStructType", jvm.spark):
        struct = jvm.static(CATALOG + "CatalogV2Util", "v2ColumnsToStructType")(columns)
        text = str(struct.json())
    if EXISTS_DEFAULT in text:
        return column_defaults.with_parsable(text)
    jvm.remembered.put(("struct", text), struct)
    return text


def identifier(jvm: Jvm, namespace: Sequence[str], name: str) -> Any:
    """A v2 ``Identifier``."""
    return jvm.static(CATALOG + "Identifier", "of")(values.strings(jvm, namespace), name)


def capabilities(jvm: Jvm, *names: str) -> Any:
    """A set of ``TableCapability``."""
    return _enum_set(jvm, CATALOG + "TableCapability", names)


def catalog_capabilities(jvm: Jvm, *names: str) -> Any:
    """A set of ``TableCatalogCapability``."""
    return _enum_set(jvm, CATALOG + "TableCatalogCapability", names)


def _enum_set(jvm: Jvm, class_name: str, names: tuple[str, ...]) -> Any:
    kind = jvm.kind(class_name)
    return jvm.once(("set", class_name, *names), lambda: values.java_set(jvm, (kind.valueOf(name) for name in names)))


def transforms(jvm: Jvm, transforms: Sequence[tuple[str, Sequence[str], Sequence[Any]]]) -> Any:
    """A ``Transform[]`` from (name, columns in the syntax of Spark's parser, arguments)."""
    make = jvm.kind("org.apache.spark.sql.connector.expressions.Expressions")
    result = [_transform(jvm, make, *transform) for transform in transforms]
    return values.array(jvm, "org.apache.spark.sql.connector.expressions.Transform", result)


def _transform(jvm: Jvm, make: Any, name: str, columns: Sequence[str], arguments: Sequence[Any]) -> Any:
    if name == "identity":
        return make.identity(columns[0])
    if name == "bucket":
        return make.bucket(int(arguments[0]), values.strings(jvm, columns))
    if name in ("years", "months", "days", "hours"):
        return getattr(make, name)(columns[0])
    if name == "cluster_by":
        paths = [make.column(".".join(map(quote, path))) for path in arguments]
        with private_name("ClusterByTransform", jvm.spark):
            return jvm.kind("org.apache.spark.sql.connector.expressions.ClusterByTransform")(values.seq(jvm, paths))
    parts = [make.literal(argument) for argument in arguments] + [make.column(column) for column in columns]
    return make.apply(name, values.array(jvm, "org.apache.spark.sql.connector.expressions.Expression", parts))


def v1_table(jvm: Jvm, catalog_table: Any) -> Any:
    """A ``V1Table`` over a ``CatalogTable``."""
    with private_name("V1Table", jvm.spark):
        return jvm.kind(CATALOG + "V1Table")(catalog_table)


def file_table(jvm: Jvm, provider: str, location: str, schema_json: str, options: Mapping[str, str]) -> Any:
    """Spark's own file table (vectorised readers, partition values in directory names) over a location.

    Raises
    ------
    ConfigurationError
        The format does not support this kind of file table.
    """
    # ``__globPaths__``: brackets and stars in the location are not patterns.
    return file_source(jvm, provider, schema_json, {**options, "path": location, "__globPaths__": "false"})


def file_source(jvm: Jvm, provider: str, schema_json: str, facts: Mapping[str, str]) -> Any:
    """Spark's own file table of a format.

    Parameters
    ----------
    provider : str
    schema_json : str
    facts : mapping of str to str
        Options of the source, and the location of the files.

    Raises
    ------
    ConfigurationError
        The format does not support this kind of file table.
    """
    with private_name(f"file source {provider}", jvm.spark):
        source = getattr(
            getattr(jvm.jvm, "org.apache.spark.sql.execution.datasources.DataSource$"), "MODULE$"
        ).lookupDataSource(provider, jvm.session.sessionState().conf())
        no_transforms = values.array(jvm, "org.apache.spark.sql.connector.expressions.Transform")
        provider_object = source.getDeclaredConstructor(values.array(jvm, "java.lang.Class")).newInstance(
            values.array(jvm, "java.lang.Object")
        )
        return provider_object.getTable(struct(jvm, schema_json), no_transforms, values.java_map(jvm, facts))


def batch_partitions(jvm: Jvm, parts: Sequence[bytes]) -> Any:
    """``InputPartition[]`` of pickled parts, as in Spark's own Python data sources."""
    with private_name("PythonInputPartition", jvm.spark):
        kind = jvm.kind(_PYTHON_SOURCE + "PythonInputPartition")
        found = [kind(index, bytearray(part)) for index, part in enumerate(parts)]
        return values.array(jvm, "org.apache.spark.sql.connector.read.InputPartition", found)


def batch_reader_factory(jvm: Jvm, function: Callable[..., Any], struct: Any) -> Any:
    """The factory that runs a Python function over a pickled part on an executor, and reads its Arrow batches."""
    from pyspark.serializers import CloudPickleSerializer
    from pyspark.sql.types import _parse_datatype_json_string
    from pyspark.sql.udf import _wrap_function

    with private_name("PythonPartitionReaderFactory", jvm.spark):
        returned = _parse_datatype_json_string(str(struct.json()))
        pickled = bytearray(CloudPickleSerializer().dumps((function, returned)))
        with own_python(jvm.spark):
            wrapped = _wrap_function(jvm.spark.sparkContext, function)
        source = jvm.kind(_PYTHON_SOURCE + "UserDefinedPythonDataSource")(wrapped)
        none = jvm.kind("scala.Option").empty()
        factory = jvm.kind(_PYTHON_SOURCE + "PythonPartitionReaderFactory")
        width = factory._java_lang_class.getConstructors()[0].getParameterCount()
        return factory(source, pickled, struct, *[none] * (width - 3))


def columnar_support(jvm: Jvm, mode: str) -> Any:
    """One of ``Scan.ColumnarSupportMode``."""
    return jvm.kind("org.apache.spark.sql.connector.read.Scan$ColumnarSupportMode").valueOf(mode)


def table_summaries(jvm: Jvm, identifiers: Sequence[Any]) -> Any:
    """``TableSummary[]`` (Spark 4.2 and later)."""
    kind = jvm.kind(CATALOG + "TableSummary")
    return values.array(
        jvm,
        "org.apache.spark.sql.connector.catalog.TableSummary",
        [kind.of(identifier, kind.MANAGED_TABLE_TYPE) for identifier in identifiers],
    )
