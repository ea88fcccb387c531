"""The interface that a catalog implements; plugin authors import it from here.

The optional ones are called ``Supports...``, like the mix-ins of Spark's connectors, and are found by ``isinstance``.
Each extends :class:`~twophase.catalog.base.Catalog`, as Spark's ``StagingTableCatalog`` extends ``TableCatalog``:
``class MyCatalog(SupportsDelete, SupportsGroupPublish)``. An operation that a catalog does not implement is refused.
"""

from twophase.catalog.base import Catalog, TwoPhaseCatalogTable
from twophase.catalog.housekeeping import SupportsCleaning, SupportsExternalChanges, SupportsStorageReport
from twophase.catalog.kept_states import SupportsSavepoints
from twophase.catalog.reading import BatchReader, Deletion, FileReader, Filter, ParquetScan, ReadSource
from twophase.catalog.schema_changes import (
    SupportsAlter,
    SupportsAlterDatabase,
    SupportsColumnDefaults,
    SupportsEvolution,
    SupportsFieldIds,
    SupportsRename,
    SupportsRewrite,
    SupportsSchemaHistory,
    SupportsSchemaOnWrite,
)
from twophase.catalog.schema_versions import SchemaChange, SchemaVersion, TableSchema
from twophase.catalog.services import Environment, Leftover, Rewrite, TableChange
from twophase.catalog.snapshots import Change, OpenSnapshot
from twophase.catalog.staged_changes import (
    SupportsDelete,
    SupportsGroupPublish,
    SupportsRecordedPublish,
    SupportsStagedAlter,
    SupportsStagedDatabases,
    SupportsStagedDrop,
    SupportsStagedRename,
)
from twophase.catalog.transactional import StagedRows, StoredTable, TransactionalCatalog
from twophase.catalog.versioned_reads import (
    SupportsOpenSnapshots,
    SupportsReadOptions,
    SupportsSnapshots,
    SupportsTimeTravel,
)

__all__ = [
    "BatchReader",
    "Catalog",
    "Change",
    "Deletion",
    "Environment",
    "FileReader",
    "Filter",
    "Leftover",
    "OpenSnapshot",
    "ParquetScan",
    "ReadSource",
    "Rewrite",
    "SchemaChange",
    "SchemaVersion",
    "StagedRows",
    "StoredTable",
    "SupportsAlter",
    "SupportsAlterDatabase",
    "SupportsCleaning",
    "SupportsColumnDefaults",
    "SupportsDelete",
    "SupportsEvolution",
    "SupportsExternalChanges",
    "SupportsFieldIds",
    "SupportsGroupPublish",
    "SupportsOpenSnapshots",
    "SupportsReadOptions",
    "SupportsRecordedPublish",
    "SupportsRename",
    "SupportsRewrite",
    "SupportsSavepoints",
    "SupportsSchemaHistory",
    "SupportsSchemaOnWrite",
    "SupportsSnapshots",
    "SupportsStagedAlter",
    "SupportsStagedDatabases",
    "SupportsStagedDrop",
    "SupportsStagedRename",
    "SupportsStorageReport",
    "SupportsTimeTravel",
    "TableChange",
    "TableSchema",
    "TransactionalCatalog",
    "TwoPhaseCatalogTable",
]
