"""Handling of Spark's commands inside a transaction: a table of the nodes that its parser makes.

A command that changes a catalog or rows takes effect immediately, so it is refused. Unknown nodes are refused, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """A statement that takes effect immediately.

    Attributes
    ----------
    verb : str
        The statement as the user knows it: ``DROP TABLE``.
    object : str
        The kind of object that it changes: ``TABLE``, ``EMPTY`` (a table created without rows), ``ROWS``,
        ``NAMESPACE`` or ``OTHER``.
    """

    verb: str
    object: str


#: Prefixes of nodes that change nothing.
_LOOKS = ("Describe", "Show", "Explain", "List", "StreamingExplain")
#: Allowed nodes: settings, variables, caches, resources, statistics, scripts and their parts.
_ALLOWED = frozenset(
    (
        *("SetCommand", "ResetCommand", "SetCatalogAndNamespace", "SetCatalogCommand", "SetNamespaceCommand"),
        *("SetPathCommand", "CreateVariable", "SetVariable", "DropVariable", "CacheTable", "CacheTableAsSelect"),
        *("UncacheTable", "ClearCacheCommand", "RefreshTable", "RefreshFunction", "RefreshResource"),
        *("RefreshTableCommand", "RefreshFunctionCommand", "AddJarsCommand", "AddFilesCommand", "AddArchivesCommand"),
        *("CompoundBody", "CommandResult", "NoopCommand", "UnresolvedExecuteImmediate", "ExecuteImmediateQuery"),
        *("DeclareCursor", "OpenCursor", "FetchCursor", "CloseCursor", "CreateTempViewUsing", "DropTempViewCommand"),
        *("AnalyzeTable", "AnalyzeColumn", "AnalyzeTables", "SingleStatement"),
        # Views are allowed: one over tables that this transaction creates is refused when it reads them.
        *("CreateView", "CreateViewCommand", "AlterViewAs", "AlterViewAsCommand", "DropView", "SetViewProperties"),
        *("UnsetViewProperties", "AlterViewSchemaBinding", "CreateMetricView", "CreateMetricViewCommand"),
        # Nodes that Spark runs inside a statement which has been checked as a whole, and writes to a path.
        *("InsertIntoHadoopFsRelationCommand", "SaveIntoDataSourceCommand", "InsertIntoDataSourceCommand"),
        *("InsertIntoHiveTable", "SetTempVariable"),
    )
)
#: Nodes of a ``saveAsTable`` that appends to a twophase table, or that Spark itself refuses.
SAVES = ("SaveAsV1TableCommand", "CreateTable")
#: ``TRUNCATE TABLE`` of a table that only Spark writes; one of a twophase table is staged.
TRUNCATE = Change("TRUNCATE TABLE", "OTHER")
#: ``DROP TABLE`` of a table that no twophase catalog can drop as a part of a transaction.
DROP = Change("DROP TABLE", "TABLE")
_FUNCTIONS = (
    *("CreateFunction", "CreateFunctionCommand", "CreateUserDefinedFunction", "CreateUserDefinedFunctionCommand"),
    *("CreateSQLFunctionCommand", "DropFunction", "DropFunctionCommand"),
)
_CHANGES: dict[str, Change] = {
    "CreateTable": Change("CREATE TABLE", "EMPTY"),
    "ReplaceTable": Change("CREATE TABLE", "EMPTY"),
    "CreateTableLike": Change("CREATE TABLE LIKE", "TABLE"),
    "CreateTableLikeCommand": Change("CREATE TABLE LIKE", "TABLE"),
    "DropTable": DROP,
    "TruncateTable": TRUNCATE,
    "TruncatePartition": TRUNCATE,
    "LoadData": Change("LOAD DATA", "TABLE"),
    "RepairTable": Change("MSCK TABLE", "TABLE"),
    "CommentOnTable": Change("COMMENT TABLE", "TABLE"),
    "CommentOnColumn": Change("COMMENT ON COLUMN", "TABLE"),
    "RenameTable": Change("ALTER TABLE", "TABLE"),
    "CreateNamespace": Change("CREATE DATABASE", "NAMESPACE"),
    "DropNamespace": Change("DROP DATABASE", "NAMESPACE"),
    "SetNamespaceProperties": Change("ALTER DATABASE", "NAMESPACE"),
    "UnsetNamespacePropertiesCommand": Change("ALTER DATABASE", "NAMESPACE"),
    "SetNamespaceLocation": Change("ALTER DATABASE", "NAMESPACE"),
    "CommentOnNamespace": Change("COMMENT DATABASE", "NAMESPACE"),
    "DeleteFromTable": Change("DELETE", "ROWS"),
    "UpdateTable": Change("UPDATE", "ROWS"),
    "MergeIntoTable": Change("MERGE", "ROWS"),
    "Call": Change("CALL", "OTHER"),
    "ExternalCommandExecutor": Change("A command of another system", "OTHER"),
    "InsertIntoDir": Change("INSERT OVERWRITE DIRECTORY", "OTHER"),
    **dict.fromkeys(
        (
            *("AddColumns", "AlterColumns", "AlterColumn", "ReplaceColumns", "DropColumns", "RenameColumn"),
            *("AddPartitions", "DropPartitions", "RenamePartitions", "RecoverPartitions", "SetTableProperties"),
            *("UnsetTableProperties", "SetTableLocation", "SetTableSerDeProperties", "AlterTableClusterBy"),
            *("AlterTableCollation", "AddConstraint", "AddCheckConstraint", "DropConstraint", "SetTableCollation"),
        ),
        Change("ALTER TABLE", "TABLE"),
    ),
    **dict.fromkeys(_FUNCTIONS, Change("CREATE or DROP FUNCTION", "OTHER")),
}


def change_of(node: str, *, temporary: bool) -> Change | None:
    """The change that a command makes; None if it changes nothing but the session.

    Parameters
    ----------
    node : str
        The name of the plan's node.
    temporary : bool
        Whether it creates an object that ends with the session.
    """
    if node in _ALLOWED or node.startswith(_LOOKS) or (temporary and node in _FUNCTIONS):
        return None
    return _CHANGES.get(node) or Change(f"Spark's command {node}", "OTHER")
