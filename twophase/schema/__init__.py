"""The shared rules of schema evolution: field ids, changes, promotion, merge, reconcile, history, conflict, partitions.

All catalogs follow them, so that a change of a table's schema means the same everywhere. The package depends on no
catalog and no Spark session. Sources: Flink FLIP-226, Hudi's InternalSchema and RFC-82, Iceberg's specification.
"""

from typing import TYPE_CHECKING

from twophase.schema.apply import apply_changes
from twophase.schema.changes import (
    AddField,
    AddPartitionKey,
    Change,
    ChangeComment,
    ChangeDefault,
    ChangeNullability,
    ChangeType,
    DropField,
    DropPartitionKey,
    MoveField,
    Position,
    RenameField,
    SetPrimaryKey,
    after,
    before,
    first,
    last,
)
from twophase.schema.conflict import (
    DEFAULT_STRATEGY,
    RebaseSchemaConflictResolutionStrategy,
    Resolution,
    SchemaConflictResolutionStrategy,
    SimpleSchemaConflictResolutionStrategy,
)
from twophase.schema.convert_arrow import assign_ids, bind_by_name, from_arrow, to_arrow, verify_file_schema
from twophase.schema.convert_iceberg import (
    from_iceberg,
    from_iceberg_document,
    to_iceberg,
    to_iceberg_document,
    to_iceberg_partition_spec,
)
from twophase.schema.convert_spark import from_spark, from_spark_types, to_spark
from twophase.schema.diff import diff
from twophase.schema.document import from_document, from_json, to_document, to_json
from twophase.schema.filters import FileFilter, file_filter, row_filter, row_filter_sql
from twophase.schema.history import SchemaHistory
from twophase.schema.history_directory import DirectoryHistoryStore
from twophase.schema.history_store import Fate, HistoryStore, Record
from twophase.schema.merge import describe, merge_schemas, plan_read
from twophase.schema.partitions import may_skip, partition_values, plan_partitioned_read
from twophase.schema.promotion import (
    POLICY_NAMES,
    Loss,
    PromotionPolicy,
    classify,
    matrix,
    promotion_policy,
)
from twophase.schema.read_field import Origin, ReadField
from twophase.schema.read_plan import ReadPlan
from twophase.schema.reconcile import EVOLVE, KEEP, STRICT, ReconcilePolicy, Reconciliation, reconcile
from twophase.schema.schema import Field, Kind, Schema

if TYPE_CHECKING:
    from twophase.schema.history_sql import SqlHistoryStore

__all__ = [
    "DEFAULT_STRATEGY",
    "EVOLVE",
    "KEEP",
    "POLICY_NAMES",
    "STRICT",
    "AddField",
    "AddPartitionKey",
    "Change",
    "ChangeComment",
    "ChangeDefault",
    "ChangeNullability",
    "ChangeType",
    "DirectoryHistoryStore",
    "DropField",
    "DropPartitionKey",
    "Fate",
    "Field",
    "FileFilter",
    "HistoryStore",
    "Kind",
    "Loss",
    "MoveField",
    "Origin",
    "Position",
    "PromotionPolicy",
    "ReadField",
    "ReadPlan",
    "RebaseSchemaConflictResolutionStrategy",
    "ReconcilePolicy",
    "Reconciliation",
    "Record",
    "RenameField",
    "Resolution",
    "Schema",
    "SchemaConflictResolutionStrategy",
    "SchemaHistory",
    "SetPrimaryKey",
    "SimpleSchemaConflictResolutionStrategy",
    "SqlHistoryStore",
    "after",
    "apply_changes",
    "assign_ids",
    "before",
    "bind_by_name",
    "classify",
    "describe",
    "diff",
    "file_filter",
    "first",
    "from_arrow",
    "from_document",
    "from_iceberg",
    "from_iceberg_document",
    "from_json",
    "from_spark",
    "from_spark_types",
    "last",
    "matrix",
    "may_skip",
    "merge_schemas",
    "partition_values",
    "plan_partitioned_read",
    "plan_read",
    "promotion_policy",
    "reconcile",
    "row_filter",
    "row_filter_sql",
    "to_arrow",
    "to_document",
    "to_iceberg",
    "to_iceberg_document",
    "to_iceberg_partition_spec",
    "to_json",
    "to_spark",
    "verify_file_schema",
]


def __getattr__(name: str) -> object:
    # SQLAlchemy is imported only if a history is stored in a database.
    if name == "SqlHistoryStore":
        from twophase.schema.history_sql import SqlHistoryStore

        return SqlHistoryStore
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
