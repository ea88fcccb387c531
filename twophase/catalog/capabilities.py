"""Optional interfaces of a catalog, like the ``Supports...`` mix-ins of Spark's connectors; found by ``isinstance``.

Each extends :class:`~twophase.catalog.base.Catalog`, as Spark's ``StagingTableCatalog`` extends ``TableCatalog``:
``class MyCatalog(SupportsDelete, SupportsGroupPublish)``. An operation that a catalog does not implement is refused.
"""

from __future__ import annotations

from typing import TypeVar

from twophase.catalog.base import Catalog
from twophase.catalog.housekeeping import SupportsCleaning, SupportsExternalChanges, SupportsStorageReport
from twophase.catalog.kept_states import SupportsSavepoints
from twophase.catalog.schema_changes import (
    MERGE_SCHEMA,
    MERGES_SCHEMA,
    SupportsAlter,
    SupportsAlterDatabase,
    SupportsColumnDefaults,
    SupportsEvolution,
    SupportsFieldIds,
    SupportsRename,
    SupportsRewrite,
    SupportsSchemaHistory,
    SupportsSchemaOnWrite,
    accepts_any_schema,
    merges_always,
)
from twophase.catalog.staged_changes import (
    SupportsDelete,
    SupportsGroupPublish,
    SupportsRecordedPublish,
    SupportsStagedAlter,
    SupportsStagedDatabases,
    SupportsStagedDrop,
    SupportsStagedRename,
)
from twophase.catalog.versioned_reads import (
    SupportsOpenSnapshots,
    SupportsReadOptions,
    SupportsSnapshots,
    SupportsTimeTravel,
)
from twophase.errors import AtomicityNotSupportedError

__all__ = [
    "MERGES_SCHEMA",
    "MERGE_SCHEMA",
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
    "accepts_any_schema",
    "interfaces",
    "merges_always",
    "required",
]

_Interface = TypeVar("_Interface")


def required(catalog: Catalog, interface: type[_Interface], problem: str, path: object) -> _Interface:
    """Return the catalog, typed as an optional interface, or raise if it does not implement it.

    Parameters
    ----------
    catalog : Catalog
    interface : type
        An interface of this module.
    problem : str
        The limitation of a catalog without it, as a verb and its object: ``cannot rename tables``.
    path : object
        The requested table or database.

    Raises
    ------
    AtomicityNotSupportedError
        The catalog does not implement the interface.
    """
    if isinstance(catalog, interface):
        return catalog
    raise AtomicityNotSupportedError(f"Catalog {catalog.name} {problem}.", path=path)


def interfaces() -> list[type[Catalog]]:
    """Return all optional interfaces."""
    return [found for name, found in globals().items() if name.startswith("Supports")]
