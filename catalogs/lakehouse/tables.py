"""Tables that are created without rows, and dropped, outside of transactions."""

from __future__ import annotations

import uuid
from collections.abc import Callable

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from twophase.catalogs.lakehouse import definitions, errors, housekeeping, layout, publishing, snapshots
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.store import Loaded
from twophase.errors import CatalogError, DatabaseNotExistError
from twophase.model import ObjectPath, TableDefinition
from twophase.redaction import logger
from twophase.schema import to_iceberg

_log = logger("twophase")


def create(lakehouse: Lakehouse, path: ObjectPath, definition: TableDefinition) -> bool:
    """Create a table without rows.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
        Checked.
    definition : TableDefinition

    Returns
    -------
    bool
        False if a table of that name exists.

    Raises
    ------
    CatalogError
        It cannot be defined so.
    AtomicityNotSupportedError
        It would be on an untested file system.
    DatabaseNotExistError
    """
    store = lakehouse.store
    lakehouse.require_tried(path, store.settings.warehouse)
    definitions.check(path, definition)
    schema = definitions.to_schema(path, definition)
    spec = definitions.to_spec(path, schema, definition.partitioning)
    if store.pointer(path) is not None:
        return False
    key = lakehouse.own_key()
    place = layout.Place(layout.table_location(store.settings.warehouse, path, key), key)
    order = definitions.to_sort_order(path, to_iceberg(schema), definition.properties)
    metadata = snapshots.new_metadata(
        place.location,
        to_iceberg(schema),
        spec,
        definitions.to_properties(definition),
        str(uuid.uuid4()),
        UNSORTED_SORT_ORDER if order is None else order,
    )
    return _register(lakehouse, path, place, metadata)


def _register(lakehouse: Lakehouse, path: ObjectPath, place: layout.Place, metadata: TableMetadata) -> bool:
    location = place.metadata_file(0)
    with errors.writing(path, location):
        publishing.stage_metadata(lakehouse.store, lakehouse.files, path, None, Loaded(location, metadata))
    try:
        made = lakehouse.store.swap(path, None, Loaded(location, metadata), ())
    except DatabaseNotExistError:
        place.remove(lakehouse.files)
        raise
    if not made:
        place.remove(lakehouse.files)
    return made


def drop(lakehouse: Lakehouse, path: ObjectPath, *, purge: bool) -> bool:
    """Drop a table.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
    purge : bool
        Whether its files are removed now.

    Returns
    -------
    bool
        False if there is none.

    Raises
    ------
    AtomicityNotSupportedError
        Files on an untested file system would be removed.
    """
    store = lakehouse.store
    try:
        pointer = store.pointer(path) if len(path.namespace) == 1 else None
    except errors.UnreadableMetadataError:
        if store.drop_unreadable(path):
            _log.warning("Table %s was dropped without a look at its metadata: its files stay.", path)
            return True
        return False
    if pointer is None:
        return False
    remove_files = _purge(lakehouse, path, pointer) if purge else None
    if not store.drop(path, pointer, readable(lakehouse, path, pointer)):
        return drop(lakehouse, path, purge=purge)  # Another writer has changed it meanwhile.
    if remove_files is not None:
        remove_files()
    return True


def _purge(lakehouse: Lakehouse, path: ObjectPath, pointer: str) -> Callable[[], None] | None:
    """A callback that removes the files of a table; None if its metadata cannot be read: the files are kept."""
    lakehouse.require_tried(path, pointer)
    try:
        return housekeeping.purge(lakehouse, path, Loaded(pointer, lakehouse.store.metadata(path, pointer)))
    except errors.UnreadableMetadataError as error:
        _log.warning("Table %s is dropped, and its files stay: %s", path, error)
        return None


def readable(lakehouse: Lakehouse, path: ObjectPath, pointer: str) -> Loaded | None:
    """Return a table to drop; None if its metadata cannot or must not be read: its files are kept.

    Parameters
    ----------
    lakehouse : Lakehouse
    path : ObjectPath
    pointer : str
        Location of its metadata.
    """
    try:
        lakehouse.require_tried(path, pointer)
        return Loaded(pointer, lakehouse.store.metadata(path, pointer))
    except CatalogError as error:
        _log.warning("Table %s is dropped without a look at it, and its files stay unlisted: %s", path, error)
        return None
