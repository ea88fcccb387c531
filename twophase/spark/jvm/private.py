"""Every name of Spark's JVM side that Spark does not promise to keep: the one list of what a new version may break.

``attach`` looks for all of them (:func:`check`) and refuses, with each missing name and the version, before it changes
anything. The modules ``jvm*`` use them, and no other names of this kind; a test compares.

A class stands with its members: methods (own or inherited), and fields after a dot. A name that only some of the
supported versions have stands in :data:`SINCE`; the code that uses it does without it on the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from twophase.errors import ConfigurationError

_SQL = "org.apache.spark.sql."
_CATALYST = _SQL + "catalyst."
_PLANS = _CATALYST + "plans.logical."
_HIVE_METASTORE = "org.apache.hadoop.hive.metastore."

#: The session and what hangs on it.
_SESSION: Mapping[str, tuple[str, ...]] = {
    _SQL + "classic.SparkSession": ("sessionState", "sharedState", "sessionUUID", "expression"),
    _SQL + "classic.Dataset": ("ofRows", "queryExecution"),
    _SQL + "classic.DataFrameWriter": (
        *("source", "curmode", "extraOptions", "partitioningColumns", "partitioningColumns_$eq"),
        *("numBuckets", "numBuckets_$eq", "bucketColumnNames", "bucketColumnNames_$eq"),
        *("sortColumnNames", "sortColumnNames_$eq", "clusteringColumns", "clusteringColumns_$eq"),
    ),
    _SQL + "internal.SessionState": (
        *("sqlParser", "catalog", "catalogManager", "conf", "executePlan", "newHadoopConf"),
    ),
    _SQL + "internal.SharedState": ("cacheManager",),
    _SQL + "internal.SQLConf": ("resolver",),
    _SQL + "errors.QueryCompilationErrors": (
        "invalidNameForTableOrDatabaseError",
        "createExternalTableWithoutLocationError",
    ),
    _SQL + "internal.VariableSubstitution": ("substitute",),
    _SQL + "internal.HiveSerDe": ("sourceToSerDe",),
    _SQL + "execution.CacheManager": ("isEmpty", "uncacheTableOrView", "recacheByPlan"),
    _SQL + "execution.CommandExecutionMode": ("SKIP",),
    _SQL + "execution.command.CommandUtils": ("updateTableStats",),
    _SQL + "execution.datasources.LogicalRelation": ("relation", ".relation"),
    _SQL + "execution.datasources.HadoopFsRelation": (
        *("location", "options", "schema", "fileFormat", ".location", ".options"),
    ),
    _SQL + "execution.QueryExecution": ("assertAnalyzed", "analyzed"),
    _SQL + "execution.datasources.DataSource": ("lookupDataSource",),
    _SQL + "execution.datasources.v2.parquet.ParquetScanBuilder": (
        *("pruneColumns", "pushedDataFilters_$eq", "build"),
    ),
    _SQL + "execution.datasources.v2.DataSourceV2Relation": (
        *("create", "catalog", "identifier", "table", "productElement", "productArity", "makeCopy"),
    ),
    _SQL + "execution.datasources.v2.DataSourceV2ScanRelation": ("relation",),
    _SQL + "execution.columnar.InMemoryRelation": ("cacheBuilder",),
    _SQL + "internal.connector.PredicateUtils": ("toV1",),
    _SQL + "sources.Filter": (),
    _SQL + "util.CaseInsensitiveStringMap": (),
    _SQL + "execution.datasources.v2.python.PythonInputPartition": (),
    _SQL + "execution.datasources.v2.python.PythonPartitionReaderFactory": (),
    _SQL + "execution.datasources.v2.python.UserDefinedPythonDataSource": (),
    "org.apache.spark.SparkContext": ("listenerBus", "statusTracker"),
    "org.apache.spark.SparkStatusTracker": ("getJobIdsForTag",),
    "org.apache.spark.scheduler.LiveListenerBus": ("addToQueue", "removeListener", "waitUntilEmpty"),
    "org.apache.spark.api.python.PythonUtils": ("toSeq", "toScalaMap"),
    "org.codehaus.janino.SimpleCompiler": ("cook", "getClassLoader"),
}

#: Catalogs, tables and the exceptions that Spark expects of a catalog.
_CATALOGS: Mapping[str, tuple[str, ...]] = {
    _SQL + "connector.catalog.CatalogManager": (
        *("currentCatalog", "setCurrentCatalog", "currentNamespace", "isCatalogRegistered"),
    ),
    _SQL + "connector.catalog.DefaultCatalogManager": (".catalogs",),
    _SQL + "connector.catalog.CatalogV2Util": ("structTypeToV2Columns", "v2ColumnsToStructType"),
    _SQL + "connector.catalog.V1Table": (),
    _CATALYST + "TableIdentifier": (),
    _CATALYST + "FunctionIdentifier": (),
    _CATALYST + "QualifiedTableName": (),
    _CATALYST + "catalog.SessionCatalog": (
        *("externalCatalog", "getTableMetadata", "refreshTable", "getCurrentDatabase", "getTempView"),
        *("listPartitionNames", "getDefaultDBPath", "createDatabase", "getCachedTable", "databaseExists"),
        *("isTemporaryFunction", "isPersistentFunction"),
    ),
    _CATALYST + "catalog.ExternalCatalog": (
        *("listDatabases", "databaseExists", "getDatabase", "alterDatabase", "dropDatabase"),
        *(
            "listTables",
            "tableExists",
            "getTable",
            "getTablesByName",
            "createTable",
            "alterTable",
            "alterTableDataSchema",
        ),
        *("renameTable", "dropTable", "listPartitions", "createPartitions", "alterPartitions", "dropPartitions"),
    ),
    _CATALYST + "catalog.ExternalCatalogWithListener": ("unwrapped", "addListener", "removeListener"),
    _CATALYST + "catalog.ExternalCatalogEventListener": (),
    _CATALYST + "catalog.DropTableEvent": ("database", "name"),
    _CATALYST + "catalog.RenameTableEvent": ("database", "name", "newName"),
    _CATALYST + "catalog.CatalogDatabase": ("locationUri", "description", "properties"),
    _CATALYST + "catalog.CatalogTable": (
        *("identifier", "tableType", "storage", "schema", "provider", "partitionColumnNames", "bucketSpec"),
        *("properties", "comment", "tracksPartitionsInCatalog", "copy", "productElementNames"),
    ),
    "org.apache.spark.sql.connector.expressions.ClusterByTransform": (),
    _CATALYST + "catalog.CatalogTableType": ("MANAGED", "EXTERNAL", "VIEW"),
    _CATALYST + "catalog.CatalogTablePartition": (
        *("spec", "storage", "parameters", "createTime", "lastAccessTime", "stats"),
    ),
    "com.fasterxml.jackson.module.scala.DefaultScalaModule": (),
    "com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value": ("forIgnoredProperties",),
    _CATALYST + "catalog.CatalogStorageFormat": (
        *("empty", "locationUri", "properties", "serde", "inputFormat", "outputFormat"),
    ),
    _CATALYST + "catalog.CatalogUtils": ("stringToURI", "URIToString"),
    _CATALYST + "catalog.BucketSpec": ("numBuckets", "bucketColumnNames", "sortColumnNames"),
    **{
        f"{_CATALYST}analysis.{name}Exception": ()
        for name in (
            *("TableAlreadyExists", "NoSuchTable", "NoSuchNamespace", "NamespaceAlreadyExists", "NonEmptyNamespace"),
        )
    },
}

#: Spark's parser and the nodes of its plans.
_PARSER: Mapping[str, tuple[str, ...]] = {
    _CATALYST + "parser.ParserInterface": ("parsePlan", "parseMultipartIdentifier"),
    _CATALYST + "trees.Origin": ("startIndex", "stopIndex", "sqlText"),
    _CATALYST + "analysis.NameParameterizedQuery": (),
    _CATALYST + "analysis.PosParameterizedQuery": (),
    _CATALYST + "analysis.UnresolvedIdentifier": ("nameParts",),
    _CATALYST + "analysis.UnresolvedRelation": ("multipartIdentifier", "options"),
    _CATALYST + "analysis.UnresolvedTableOrView": ("multipartIdentifier",),
    _CATALYST + "analysis.UnresolvedTable": ("multipartIdentifier",),
    _CATALYST + "analysis.PlanWithUnresolvedIdentifier": (),
    _PLANS + "CreateTableAsSelect": ("name", "tableSpec"),
    _PLANS + "ReplaceTableAsSelect": ("name", "tableSpec"),
    _PLANS + "CreateTable": ("name", "tableSpec"),
    _PLANS + "ReplaceTable": ("name", "tableSpec"),
    _PLANS + "UnresolvedTableSpec": ("provider", "serde"),
    _PLANS + "InsertIntoStatement": ("table", "partitionSpec", "overwrite", "ifPartitionNotExists"),
    _PLANS + "InsertIntoDir": (),
    _PLANS + "UnresolvedWith": ("child", "cteRelations"),
    _PLANS + "Union": ("children",),
    _PLANS + "DeleteFromTable": ("table", "condition"),
    _PLANS + "Filter": (),
    _PLANS + "LogicalPlan": ("collectLeaves", "subqueriesAll"),
    _CATALYST + "expressions.EqualNullSafe": (),
    _CATALYST + "expressions.Literal": ("TrueLiteral", "create"),
    _CATALYST + "expressions.Cast": ("eval",),
    _SQL + "connector.expressions.LiteralValue": ("productIterator",),
    _CATALYST + "expressions.Not": (),
    _PLANS + "CompoundBody": ("collection",),
    _PLANS + "SingleStatement": ("parsedPlan",),
    _PLANS + "IfElseStatement": ("conditions", "conditionalBodies", "elseBody"),
    _PLANS + "WhileStatement": ("condition", "body"),
    _PLANS + "RepeatStatement": ("condition", "body"),
    _PLANS + "LoopStatement": ("body",),
    _PLANS + "ForStatement": ("query", "body"),
    _PLANS + "SearchedCaseStatement": ("conditions", "conditionalBodies", "elseBody"),
    _PLANS + "SimpleCaseStatement": ("conditionalBodies", "elseBody"),
    _PLANS + "CacheTableAsSelect": ("plan",),
    _PLANS + "CreateView": ("query",),
    _PLANS + "AlterViewAs": ("query",),
    _SQL + "execution.command.DescribeQueryCommand": ("plan",),
    _SQL + "execution.command.ExplainCommand": ("logicalPlan",),
    _SQL + "execution.datasources.LogicalRelation": ("catalogTable",),
    _CATALYST + "catalog.HiveTableRelation": ("tableMeta",),
    _SQL + "execution.datasources.InsertIntoHadoopFsRelationCommand": ("query",),
}

#: Below a session with Hive support; the wheel of PySpark always holds it.
_HIVE: Mapping[str, tuple[str, ...]] = {
    _SQL + "hive.HiveExternalCatalog": ("client", "tableMetaToTableProps"),
    _SQL + "hive.client.HiveClient": ("createTable", "getTable", "getConf"),
    _SQL + "hive.client.HiveClientImpl": ("msClient", "withHiveState"),
    _HIVE_METASTORE + "IMetaStoreClient": ("getTable", "alter_table"),
    _HIVE_METASTORE + "api.EnvironmentContext": ("putToProperties",),
    _SQL + "hive.execution.HiveOptions": ("fileFormat", "inputFormat", "outputFormat", "serde", "serdeProperties"),
}

NAMES: Mapping[str, tuple[str, ...]] = {**_SESSION, **_CATALOGS, **_PARSER, **_HIVE}

#: What a class was called in earlier versions.
FORMERLY: Mapping[str, str] = {
    _SQL + "connector.catalog.DefaultCatalogManager": _SQL + "connector.catalog.CatalogManager",
}

#: What the code uses where it is there: from which version on, or until which.
SINCE: Mapping[str, str] = {
    _PLANS + "ExceptionHandler": "4.0",
    _PLANS + "UnresolvedInsert": "4.2",
    _SQL + "connector.catalog.TableSummary": "4.2",
    _CATALYST + "parser.NamedParameterContext": "4.1",
    _CATALYST + "parser.PositionalParameterContext": "4.1",
    _CATALYST + "parser.ParserInterface.parsePlanWithParameters": "4.1",
    _PLANS + "InsertIntoStatement.replaceCriteriaOpt": "4.2",
    _PLANS + "CompoundBody.handlers": "4.0",
    _SQL + "execution.columnar.CachedRDDBuilder.logicalPlan": "4.1",
    _CATALYST + "analysis.UnresolvedExecuteImmediate": "4.1",
    _CATALYST + "analysis.ExecuteImmediateQuery": "until 4.0",
}

#: Versions whose names the tests have compared with this list.
COMPARED = ("4.0.5", "4.3.0")


def check(spark: Any, names: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Look for every private name, on a version that nobody has compared with the list (it takes a second).

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.
    names : mapping of str to tuple of str, optional
        Classes to members, looked for on every version; default: the list of this module.

    Raises
    ------
    ConfigurationError
        Some are missing: all of them are named.
    """
    if names is None and spark.version in COMPARED:
        return
    missing = list(_missing(spark.sparkContext._jvm, NAMES if names is None else names))
    if missing:
        raise ConfigurationError(
            f"Spark {spark.version} lacks what twophase needs of it: {', '.join(sorted(missing))}.",
            hint="Use PySpark 4.0 to 4.3. Nothing was changed in the session.",
        )


def _missing(jvm: Any, names: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for class_name, members in names.items():
        found = _class(jvm, class_name, loader) or _class(jvm, FORMERLY.get(class_name, class_name), loader)
        if found is None:
            yield class_name
            continue
        known = members_of(jvm, found) if members else set()
        yield from (f"{class_name}.{member.lstrip('.')}" for member in members if member not in known)


def _class(jvm: Any, class_name: str, loader: Any) -> Any | None:
    from py4j.protocol import Py4JJavaError

    try:
        return jvm.java.lang.Class.forName(class_name, False, loader)
    except Py4JJavaError:
        return None


def members_of(jvm: Any, found: Any) -> set[str]:
    """Names of all methods of a class, and of its own fields with a dot before them."""
    wrap = jvm.scala.collection.immutable.ArraySeq.unsafeWrapArray
    methods = [str(wrap(array).mkString("\n")) for array in (found.getMethods(), found.getDeclaredMethods())]
    fields = str(wrap(found.getDeclaredFields()).mkString("\n"))
    names = set(re.findall(r"\.([\w$]+)\(", "\n".join(methods)))
    # Scala prefixes what is private to a class but used from another with the name of its home.
    names |= {name.rpartition("$$")[2] for name in names}
    return names | {"." + name.rpartition("$$")[2] for name in re.findall(r"\.([\w$]+)$", fields, re.MULTILINE)}
