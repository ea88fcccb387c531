"""Every name of Spark's JVM side that Spark does not promise to keep: the only names that a new version may break.

``attach`` looks up all of them (:func:`check`) and refuses, with each missing name and the version, before it changes
anything. The modules of ``twophase.spark.jvm`` and its Java sources use them, and no other names of this kind; a test
compares.

A class is listed with its members: methods (own or inherited), and fields after a dot. A name that exists only in some
of the supported versions is listed in :data:`SINCE`; the code that uses it works without it on the others.
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

#: The session and its parts.
_SESSION: Mapping[str, tuple[str, ...]] = {
    _SQL + "classic.SparkSession": ("sessionState", "sharedState", "sessionUUID", "expression"),
    _SQL + "classic.Dataset": ("ofRows", "queryExecution"),
    _SQL + "classic.DataFrameWriter": (
        *("source", "curmode", "extraOptions", "partitioningColumns", "partitioningColumns_$eq"),
        *("numBuckets", "bucketColumnNames", "sortColumnNames", "clusteringColumns"),
    ),
    _SQL + "internal.SessionState": (
        *("sqlParser", "catalog", "catalogManager", "conf", "executePlan", "newHadoopConf"),
        "newHadoopConfWithOptions",
    ),
    _SQL + "internal.SharedState": ("cacheManager",),
    _SQL + "errors.QueryCompilationErrors": (
        "invalidNameForTableOrDatabaseError",
        "createExternalTableWithoutLocationError",
    ),
    _SQL + "internal.HiveSerDe": ("sourceToSerDe",),
    _SQL + "execution.CacheManager": ("isEmpty", "uncacheTableOrView", "recacheByPlan", ".cachedData"),
    _SQL + "execution.CachedData": ("plan",),
    _SQL + "execution.CommandExecutionMode": ("SKIP",),
    _SQL + "execution.command.CommandUtils": ("updateTableStats",),
    _SQL + "execution.datasources.HadoopFsRelation": (
        *("location", "options", "schema", "fileFormat", ".location", ".options"),
        *("partitionSchema", "dataSchema", "bucketSpec", "sparkSession"),
    ),
    _SQL + "execution.QueryExecution": ("assertAnalyzed", "analyzed"),
    _SQL + "execution.datasources.FileFormat": (),
    _SQL + "execution.datasources.FileFormatWriter": ("write",),
    _SQL + "execution.datasources.FileFormatWriter$OutputSpec": (),
    _SQL + "execution.datasources.SQLHadoopMapReduceCommitProtocol": (),
    _SQL + "execution.datasources.v2.FileDataSourceV2": ("fallbackFileFormat",),
    _SQL + "execution.streaming.ManifestFileCommitProtocol": ("newTaskTempFile", "commitTask", "abortTask"),
    "org.apache.spark.internal.io.FileCommitProtocol": ("setupJob", "commitJob", "abortJob", "onTaskCommit"),
    "org.apache.spark.internal.io.FileCommitProtocol$TaskCommitMessage": ("obj",),
    _SQL + "execution.datasources.DataSource": ("lookupDataSource",),
    _SQL + "execution.datasources.v2.parquet.ParquetScanBuilder": (
        *("pruneColumns", "pushedDataFilters_$eq", "build"),
    ),
    _SQL + "execution.datasources.v2.FileScan": ("fileIndex",),
    _SQL + "execution.datasources.v2.DataSourceV2Relation": (
        *("create", "catalog", "identifier", "table", "productElement", "productArity", "makeCopy"),
    ),
    _SQL + "execution.datasources.v2.DataSourceV2ScanRelation": ("relation",),
    _SQL + "execution.columnar.InMemoryRelation": ("cacheBuilder",),
    _SQL + "execution.datasources.FileIndex": (
        *("inputFiles", "refresh", "sizeInBytes", "listFiles", "rootPaths", "partitionSchema", "metadataOpsTimeNs"),
    ),
    _SQL + "execution.datasources.InMemoryFileIndex": (),
    _SQL + "execution.datasources.FileStatusCache": ("getLeafFiles", "putLeafFiles", "invalidateAll"),
    _SQL + "execution.datasources.CatalogFileIndex": ("filterPartitions", "rootPaths", "sizeInBytes", "table"),
    _SQL + "execution.datasources.PartitioningAwareFileIndex": (
        *("partitionSpec", "leafFiles", "leafDirToChildrenFiles", "listFiles", "allFiles"),
        *(".parameters", ".userSpecifiedSchema"),
    ),
    _SQL + "SparkSession": (),
    _SQL + "execution.datasources.PartitionPath": (),
    _SQL + "execution.datasources.PartitionSpec": (),
    _SQL + "internal.connector.PredicateUtils": ("toV1",),
    _SQL + "sources.Filter": (),
    _SQL + "util.CaseInsensitiveStringMap": (),
    _SQL + "execution.datasources.v2.python.PythonInputPartition": (),
    _SQL + "execution.datasources.v2.python.PythonPartitionReaderFactory": (),
    _SQL + "execution.datasources.v2.python.UserDefinedPythonDataSource": (),
    "org.apache.spark.SparkContext": ("listenerBus", "statusTracker"),
    "org.apache.spark.SparkStatusTracker": ("getJobIdsForTag",),
    "org.apache.spark.scheduler.SparkListener": ("onJobStart", "onJobEnd", "onTaskEnd"),
    "org.apache.spark.scheduler.SparkListenerJobStart": ("jobId", "properties", "stageInfos"),
    "org.apache.spark.scheduler.SparkListenerJobEnd": ("jobId", "jobResult"),
    "org.apache.spark.scheduler.SparkListenerTaskEnd": ("stageId", "taskInfo"),
    "org.apache.spark.scheduler.JobFailed": ("exception",),
    "org.apache.spark.scheduler.StageInfo": ("stageId", "numTasks"),
    "org.apache.spark.scheduler.LiveListenerBus": ("addToQueue", "removeListener", "waitUntilEmpty"),
    "org.apache.spark.api.python.PythonUtils": ("toSeq", "toScalaMap"),
    "scala.runtime.ScalaRunTime": ("stringOf",),
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
        *("listPartitionNames", "getDefaultDBPath", "createDatabase", "getCachedTable", "databaseExists", "cacheTable"),
        *("isTemporaryFunction", "isPersistentFunction", "attachCatalogName"),
    ),
    _CATALYST + "catalog.ExternalCatalog": (
        *("listDatabases", "databaseExists", "getDatabase", "alterDatabase", "dropDatabase", "listFunctions"),
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
    _CATALYST + "catalog.ExternalCatalogEventListener": ("onEvent",),
    _CATALYST + "catalog.ExternalCatalogEvent": (),
    _CATALYST + "catalog.AlterTablePreEvent": ("database", "name", "kind"),
    _CATALYST + "catalog.AlterTableEvent": ("database", "name", "kind"),
    **{
        f"{_CATALYST}catalog.{name}": ("database", "name")
        for name in ("TableEvent", "CreateTablePreEvent", "CreateTableEvent", "DropTablePreEvent", "DropTableEvent")
    },
    _CATALYST + "catalog.RenameTablePreEvent": ("database", "name", "newName"),
    _CATALYST + "catalog.RenameTableEvent": ("database", "name", "newName"),
    **{
        f"{_CATALYST}catalog.{name}": ("database",)
        for name in ("DatabaseEvent", "DropDatabasePreEvent", "DropDatabaseEvent")
    },
    _CATALYST + "catalog.CatalogDatabase": ("locationUri", "description", "properties"),
    _CATALYST + "catalog.CatalogTable": (
        *("identifier", "tableType", "storage", "schema", "provider", "partitionColumnNames", "bucketSpec"),
        *("properties", "comment", "tracksPartitionsInCatalog", "stats", "copy", "productElementNames"),
    ),
    "org.apache.spark.sql.connector.expressions.ClusterByTransform": (),
    _CATALYST + "catalog.CatalogTableType": ("MANAGED", "EXTERNAL", "VIEW"),
    _CATALYST + "InternalRow": (),
    _CATALYST + "catalog.CatalogTablePartition": (
        *("spec", "storage", "parameters", "createTime", "lastAccessTime", "stats", "toRow"),
    ),
    "com.fasterxml.jackson.module.scala.DefaultScalaModule": (),
    "com.fasterxml.jackson.annotation.JsonIgnoreProperties$Value": ("forIgnoredProperties",),
    _CATALYST + "catalog.CatalogStorageFormat": (
        *("empty", "locationUri", "properties", "serde", "inputFormat", "outputFormat"),
    ),
    _CATALYST + "catalog.ExternalCatalogUtils": ("getPartitionPathString",),
    _CATALYST + "catalog.CatalogUtils": ("stringToURI", "URIToString"),
    _CATALYST + "catalog.BucketSpec": ("numBuckets", "bucketColumnNames", "sortColumnNames"),
    **{
        f"{_CATALYST}analysis.{name}Exception": ()
        for name in (
            *("TableAlreadyExists", "NoSuchTable", "NoSuchNamespace", "NamespaceAlreadyExists", "NonEmptyNamespace"),
        )
    },
}

#: Spark's parser and analyser, and the nodes of its plans. Members of a node that begin with a dot are constructor
#: arguments, which the rules on plans find by these names.
_PLANNING: Mapping[str, tuple[str, ...]] = {
    _CATALYST + "parser.ParserInterface": ("parsePlan", "parseMultipartIdentifier"),
    _CATALYST + "trees.Origin": ("startIndex", "sqlText"),
    _CATALYST + "analysis.Analyzer": ("hintResolutionRules", "extendedResolutionRules", "postHocResolutionRules"),
    _CATALYST + "analysis.AnalysisContext": ("get", "catalogAndNamespace", "relationCache"),
    _CATALYST + "rules.Rule": ("apply",),
    _CATALYST + "trees.TreeNode": (
        *("makeCopy", "productElementName", "getTagValue", "setTagValue", "unsetTagValue", "otherCopyArgs"),
    ),
    _CATALYST + "trees.TreeNodeTag": (),
    _CATALYST + "AliasIdentifier": (),
    _CATALYST + "analysis.NameParameterizedQuery": (),
    _CATALYST + "analysis.PosParameterizedQuery": (),
    _CATALYST + "analysis.UnresolvedIdentifier": (".nameParts",),
    _CATALYST + "analysis.UnresolvedRelation": (".multipartIdentifier", ".options"),
    _CATALYST + "analysis.UnresolvedTableOrView": (".multipartIdentifier",),
    _CATALYST + "analysis.UnresolvedTable": (".multipartIdentifier",),
    _PLANS + "LogicalPlan": (
        *("collectLeaves", "subqueriesAll", "mapChildren", "analyzed", "children", "output", "origin", "isStreaming"),
        "transformDownWithSubqueries",
    ),
    _PLANS + "Command": (),
    _PLANS + "ParsedStatement": (),
    _PLANS + "Project": ("projectList", "child"),
    _PLANS + "SubqueryAlias": ("child",),
    **{_PLANS + name: ("child",) for name in ("GlobalLimit", "LocalLimit", "Offset", "Sort")},
    _PLANS + "LocalRelation": ("data",),
    _CATALYST + "analysis.ResolvedInlineTable": ("rows",),
    _CATALYST + "analysis.UnresolvedInlineTable": ("rows",),
    _CATALYST + "analysis.UnresolvedAttribute": ("name",),
    _CATALYST + "expressions.NamedExpression": ("name", "exprId", "metadata"),
    _CATALYST + "expressions.AttributeReference": ("references",),
    _CATALYST + "expressions.Alias": ("child", "references"),
    _PLANS + "Union": ("children",),
    _PLANS + "Filter": (),
    _PLANS + "CreateTableAsSelect": (".name", ".partitioning", ".query", ".tableSpec", ".writeOptions"),
    _PLANS + "ReplaceTableAsSelect": (".name", ".partitioning", ".query", ".tableSpec", ".writeOptions"),
    _PLANS + "AddColumns": (".table", ".columnsToAdd"),
    **{_PLANS + name: (".table",) for name in ("DropColumns", "RenameColumn")},
    _PLANS + "AlterColumns": (".table", ".specs"),
    _PLANS + "AlterColumnSpec": (".column", ".newDataType", ".newNullability", ".newComment", ".newPosition"),
    _CATALYST + "analysis.ResolvedFieldName": (".field",),
    _CATALYST + "analysis.ResolvedTable": (".catalog",),
    _PLANS + "QualifiedColType": ("path", "position"),
    _PLANS + "UnresolvedTableSpec": (".provider", ".serde", ".properties"),
    _PLANS + "SerdeInfo": ("storedAs", "formatClasses", "serde", "serdeProperties"),
    _PLANS + "InsertIntoStatement": (
        *("userSpecifiedCols", ".table", ".query", ".partitionSpec", ".overwrite", ".ifPartitionNotExists"),
    ),
    _PLANS + "InsertIntoDir": (),
    _PLANS + "AppendData": ("byName", "byPosition", ".table"),
    _PLANS + "OverwriteByExpression": (".table",),
    _PLANS + "OverwritePartitionsDynamic": (".table", ".query", ".writeOptions"),
    _PLANS + "DeleteFromTable": ("table", "condition"),
    _CATALYST + "expressions.EqualNullSafe": (),
    _CATALYST + "expressions.Literal": ("TrueLiteral", "create"),
    _CATALYST + "expressions.Cast": ("eval",),
    _SQL + "connector.expressions.LiteralValue": ("value", "dataType"),
    _CATALYST + "expressions.Not": (),
    _CATALYST + "expressions.Attribute": ("withName", "name", "exprId", "metadata"),
    _CATALYST + "expressions.Expression": ("references", "transform", "transformDown"),
    _CATALYST + "expressions.SubqueryExpression": ("hasSubquery", "plan", "withNewPlan"),
    _CATALYST + "expressions.SubExprUtils": ("hasOuterReferences",),
    _SQL + "ExperimentalMethods": ("extraStrategies", "extraStrategies_$eq"),
    _SQL + "execution.SparkStrategy": (),
    _SQL + "execution.SparkPlan": ("children", "withNewChildren"),
    _SQL + "execution.FileSourceScanExec": (".dataFilters",),
    _SQL + "execution.datasources.FileSourceStrategy": ("apply",),
    _SQL + "internal.SQLConf": ("get", "getConfString", "fileCommitProtocolClass", "resolver"),
    _SQL + "execution.datasources.LogicalRelation": ("relation", "catalogTable", ".relation", ".catalogTable"),
    _CATALYST + "catalog.HiveTableRelation": ("tableMeta",),
    _CATALYST + "catalog.UnresolvedCatalogRelation": (),
    _SQL + "execution.datasources.FindDataSourceTable": ("apply",),
    _SQL + "execution.datasources.InsertIntoHadoopFsRelationCommand": (
        *("dynamicPartitionOverwrite", ".query", ".mode", ".catalogTable", ".staticPartitions", "run", "outputColumns"),
        *("outputPath", "ifPartitionNotExists", "partitionColumns", "bucketSpec", "fileFormat", "options", "fileIndex"),
        *("outputColumnNames", "basicWriteJobStatsTracker", "withNewChildInternal"),
    ),
}

#: Below a session with Hive support; always part of the PySpark wheel.
_HIVE: Mapping[str, tuple[str, ...]] = {
    _SQL + "hive.HiveExternalCatalog": (
        *("client", "tableMetaToTableProps", "restoreTableMetadata", "restorePartitionMetadata"),
    ),
    _SQL + "hive.client.HiveClient": (
        *("createTable", "getTable", "getConf", "getRawHiveTableOption", "getPartitionOption"),
    ),
    _SQL + "hive.client.RawHiveTable": ("toCatalogTable", "rawTable"),
    _SQL + "hive.client.HiveClientImpl": (
        *("msClient", "toHiveTable", "toHivePartition", "fromHivePartition", "withHiveState"),
        "convertHiveTableToCatalogTable",
    ),
    _HIVE_METASTORE + "IMetaStoreClient": ("getTable", "getPartitionsByNames", "alter_table", "alter_partitions"),
    _HIVE_METASTORE + "api.EnvironmentContext": ("putToProperties",),
    _SQL + "hive.execution.InsertIntoHiveTable": (".table", ".partition", ".query", ".overwrite"),
    _SQL + "execution.datasources.PreprocessTableInsertion": ("apply",),
    _SQL + "execution.datasources.DataSourceAnalysis": ("convertStaticPartitions",),
    _CATALYST + "types.DataTypeUtils": ("toAttributes",),
    _CATALYST + "util.ResolveDefaultColumns": ("analyze",),
    _CATALYST + "util.CharVarcharUtils": ("hasCharVarchar", "cleanAttrMetadata"),
    _SQL + "hive.execution.HiveOptions": ("fileFormat", "inputFormat", "outputFormat", "serde", "serdeProperties"),
}

NAMES: Mapping[str, tuple[str, ...]] = {**_SESSION, **_CATALOGS, **_PLANNING, **_HIVE}

#: Names of classes in earlier versions.
FORMERLY: Mapping[str, str] = {
    _SQL + "connector.catalog.DefaultCatalogManager": _SQL + "connector.catalog.CatalogManager",
}

#: Names that are used if they exist: the first version that has them, or the last.
SINCE: Mapping[str, str] = {
    _SQL + "connector.catalog.TableSummary": "4.2",
    _CATALYST + "parser.NamedParameterContext": "4.1",
    _CATALYST + "parser.PositionalParameterContext": "4.1",
    _CATALYST + "parser.ParserInterface.parsePlanWithParameters": "4.1",
    _PLANS + "InsertIntoStatement.replaceCriteriaOpt": "4.2",
    _PLANS + "InsertIntoStatement.withSchemaEvolution": "4.3",
    _SQL + "execution.columnar.CachedRDDBuilder.logicalPlan": "4.1",
    _CATALYST + "analysis.UnresolvedExecuteImmediate": "4.1",
    _CATALYST + "SqlScriptingContextManager": "4.1",
    _CATALYST + "analysis.ExecuteImmediateQuery": "until 4.0",
}

#: Versions whose names the tests have compared with this list.
COMPARED = ("4.0.5", "4.1.4", "4.2.1", "4.3.0")


def check(spark: Any, names: Mapping[str, tuple[str, ...]] | None = None) -> None:
    """Look up every private name, on a version that was never compared with the list (takes a second).

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
        A classic session.
    names : mapping of str to tuple of str, optional
        Classes and their members, looked up on every version; default: the list of this module.

    Raises
    ------
    ConfigurationError
        Some are missing: the error names all of them.
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
    # Scala prefixes members that are private to a class but used from another one with their owner's name.
    names |= {name.rpartition("$$")[2] for name in names}
    return names | {"." + name.rpartition("$$")[2] for name in re.findall(r"\.([\w$]+)$", fields, re.MULTILINE)}
