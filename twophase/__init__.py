"""Atomic CREATE TABLE AS SELECT, REPLACE, saveAsTable and INSERT OVERWRITE for PySpark.

>>> import twophase
>>> twophase.attach(spark)

Names that need PySpark are imported on first use, so that a plugin can be imported quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog, Environment, Leftover, TableChange, TwoPhaseCatalogTable
from twophase.catalog.reading import BatchReader, Filter, ReadSource
from twophase.catalog.schema_versions import SchemaVersion
from twophase.catalog.transactional import StagedRows, StoredTable, TransactionalCatalog
from twophase.model import (
    BucketSpec,
    Capabilities,
    Isolation,
    Level,
    ObjectPath,
    Outcome,
    OverwriteScope,
    Purpose,
    TableDefinition,
    Transform,
    WriteContext,
)

if TYPE_CHECKING:
    from twophase.spark.attach import attach, begin, snapshot, transaction
    from twophase.spark.begun import OpenTransaction
    from twophase.spark.create_table_as import create_table_as
    from twophase.spark.named_savepoints import create_savepoint, drop_savepoint, restore, savepoints, undo
    from twophase.spark.run import run
    from twophase.spark.schema_history import schema_as_of, schema_history
    from twophase.transactions.conflict_policy import ConflictPolicy, Contender, Resolution
    from twophase.transactions.savepoints import Savepoint
    from twophase.transactions.transaction import Transaction, TransactionState

__version__ = "0.1.0"

__all__ = [
    "BatchReader",
    "BucketSpec",
    "Capabilities",
    "Catalog",
    "ConflictPolicy",
    "Contender",
    "Environment",
    "Filter",
    "Isolation",
    "Leftover",
    "Level",
    "ObjectPath",
    "OpenTransaction",
    "Outcome",
    "OverwriteScope",
    "Purpose",
    "ReadSource",
    "Resolution",
    "Savepoint",
    "SchemaVersion",
    "StagedRows",
    "StoredTable",
    "TableChange",
    "TableDefinition",
    "Transaction",
    "TransactionState",
    "TransactionalCatalog",
    "Transform",
    "TwoPhaseCatalogTable",
    "WriteContext",
    "attach",
    "begin",
    "create_savepoint",
    "create_table_as",
    "drop_savepoint",
    "restore",
    "run",
    "savepoints",
    "schema_as_of",
    "schema_history",
    "snapshot",
    "transaction",
    "undo",
]

_HOMES = {
    "OpenTransaction": "twophase.spark.begun",
    "attach": "twophase.spark.attach",
    "begin": "twophase.spark.attach",
    "create_savepoint": "twophase.spark.named_savepoints",
    "create_table_as": "twophase.spark.create_table_as",
    "drop_savepoint": "twophase.spark.named_savepoints",
    "restore": "twophase.spark.named_savepoints",
    "savepoints": "twophase.spark.named_savepoints",
    "run": "twophase.spark.run",
    "schema_as_of": "twophase.spark.schema_history",
    "schema_history": "twophase.spark.schema_history",
    "snapshot": "twophase.spark.attach",
    "transaction": "twophase.spark.attach",
    "undo": "twophase.spark.named_savepoints",
    "ConflictPolicy": "twophase.transactions.conflict_policy",
    "Contender": "twophase.transactions.conflict_policy",
    "Resolution": "twophase.transactions.conflict_policy",
    "Savepoint": "twophase.transactions.savepoints",
    "Transaction": "twophase.transactions.transaction",
    "TransactionState": "twophase.transactions.transaction",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
