"""All-or-nothing CREATE TABLE AS SELECT, REPLACE, saveAsTable and INSERT OVERWRITE for PySpark.

>>> import twophase
>>> twophase.attach(spark)

Names that need PySpark are imported when they are first used, so that a plugin is quick to import.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twophase.catalog import Catalog, Environment, Residue, TableChange, TwoPhaseCatalogTable
from twophase.model import (
    BucketSpec,
    Capabilities,
    Level,
    ObjectPath,
    Outcome,
    OverwriteScope,
    Purpose,
    TableDefinition,
    Transform,
    WriteContext,
)
from twophase.reading import ReadSource

if TYPE_CHECKING:
    from twophase.spark.frames import create_table_as
    from twophase.spark.session import attach, transaction
    from twophase.transactions import Transaction, TransactionState

__version__ = "0.1.0"

__all__ = [
    "BucketSpec",
    "Capabilities",
    "Catalog",
    "Environment",
    "Level",
    "ObjectPath",
    "Outcome",
    "OverwriteScope",
    "Purpose",
    "ReadSource",
    "Residue",
    "TableChange",
    "TableDefinition",
    "Transaction",
    "TransactionState",
    "Transform",
    "TwoPhaseCatalogTable",
    "WriteContext",
    "attach",
    "create_table_as",
    "transaction",
]

_HOMES = {
    "attach": "twophase.spark.session",
    "create_table_as": "twophase.spark.frames",
    "transaction": "twophase.spark.session",
    "Transaction": "twophase.transactions",
    "TransactionState": "twophase.transactions",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
