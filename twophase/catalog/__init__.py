"""The interface that a catalog implements; plugin authors import it from here."""

from twophase.catalog.base import Catalog, TwoPhaseCatalogTable
from twophase.catalog.capabilities import (
    SupportsAlter,
    SupportsAlterDatabase,
    SupportsCleaning,
    SupportsColumnDefaults,
    SupportsDelete,
    SupportsEvolution,
    SupportsExternalChanges,
    SupportsGroupPublish,
    SupportsOpenSnapshots,
    SupportsReadOptions,
    SupportsRecordedPublish,
    SupportsRename,
    SupportsSavepoints,
    SupportsSchemaHistory,
    SupportsSchemaOnWrite,
    SupportsSnapshots,
    SupportsStagedAlter,
    SupportsStagedDrop,
    SupportsTimeTravel,
)
from twophase.catalog.reading import BatchReader, Deletion, FileReader, Filter, ParquetScan, ReadSource
from twophase.catalog.schema_versions import SchemaVersion
from twophase.catalog.services import Environment, Leftover, TableChange
from twophase.catalog.snapshots import Change, OpenSnapshot
from twophase.catalog.transactional import StagedRows, StoredTable, TransactionalCatalog

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
    "SupportsGroupPublish",
    "SupportsOpenSnapshots",
    "SupportsReadOptions",
    "SupportsRecordedPublish",
    "SupportsRename",
    "SupportsSavepoints",
    "SupportsSchemaHistory",
    "SupportsSchemaOnWrite",
    "SupportsSnapshots",
    "SupportsStagedAlter",
    "SupportsStagedDrop",
    "SupportsTimeTravel",
    "TableChange",
    "TransactionalCatalog",
    "TwoPhaseCatalogTable",
]
