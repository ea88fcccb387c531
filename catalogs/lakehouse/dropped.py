"""Purge of a table that was dropped without PURGE, on request, and only if no other use of its files is found."""

from __future__ import annotations

from twophase.catalogs.files import base_name, join, normal, parent
from twophase.catalogs.lakehouse import reachable
from twophase.catalogs.lakehouse.errors import UnreadableMetadataError
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.store import Dropped, Loaded
from twophase.catalogs.location_identity import Identities
from twophase.errors import CatalogError

_METADATA = ".metadata.json"


def purge(lakehouse: Lakehouse, location: str) -> None:
    """Remove the files of a dropped table. Idempotent: after a crash it continues with the remaining files.

    Parameters
    ----------
    lakehouse : Lakehouse
    location : str
        The table's location, as recorded when it was dropped.

    Raises
    ------
    CatalogError
        The location does not, or not only, hold the dropped table, or this cannot be verified. Nothing was removed.
    """
    table = next((found for found in lakehouse.store.dropped() if found.location == location), None)
    if table is None:
        return
    loaded = _as_dropped(lakehouse, table)
    if loaded is not None:
        _require_unwritten(lakehouse, table, loaded)
        found = reachable.files_of(lakehouse.store, table.path, loaded, rest=True)
        _require_unused(lakehouse, table, set().union(*found))
        reachable.remove_table(lakehouse.files, table.path, location, found)
    lakehouse.store.forget_dropped(location)


def _as_dropped(lakehouse: Lakehouse, table: Dropped) -> Loaded | None:
    """The table at its last metadata file, which must still be that table's; None if no file is left."""
    if table.pointer is None or table.uuid is None:
        raise _kept(table, "what it was is not recorded, as an older version of twophase has dropped it")
    lakehouse.require_tried(table.path, table.pointer)
    try:
        metadata = lakehouse.store.metadata(table.path, table.pointer)
    except UnreadableMetadataError:
        if any(entry.is_file for entry in lakehouse.files.list(table.location)):
            raise
        return None
    if str(metadata.table_uuid) != table.uuid or metadata.location != table.location:
        raise _kept(table, f"{table.pointer} is of another table now")
    if not reachable.collects_garbage(metadata):
        raise _kept(table, "it says gc.enabled = false, so other tables may use its files")
    return Loaded(table.pointer, metadata)


def _require_unwritten(lakehouse: Lakehouse, table: Dropped, loaded: Loaded) -> None:
    """Refuse if there is an unknown metadata file: another catalog may have registered the table and changed it."""
    versions = reachable.versions_of(lakehouse.store, table.path, loaded)
    known = {base_name(file) for version in versions for file in version}
    directory = parent(loaded.location)
    there = (entry.name for entry in lakehouse.files.list(directory, recursive=False) if entry.is_file)
    if foreign := sorted(name for name in there if _METADATA in name and name[0] != "." and name not in known):
        raise _kept(
            table,
            f"{join(directory, foreign[0])} is no version of it that was known when it was dropped, so another catalog "
            "may have registered it and go on with it",
        )


def _require_unused(lakehouse: Lakehouse, table: Dropped, found: set[str]) -> None:
    """Refuse if a table of this Iceberg catalog needs any of the files, or cannot be read."""
    known = Identities()
    mine = {known.key(normal(file)) for file in found}
    for name, pointer in lakehouse.store.registered().items():
        try:
            other = Loaded(pointer, lakehouse.store.metadata(name, pointer))
            needed = set().union(*reachable.files_of(lakehouse.store, name, other))
        except UnreadableMetadataError as error:
            raise _kept(table, f"what the table {name} needs cannot be determined ({error.message})") from error
        if shared := next((file for file in needed if known.key(normal(file)) in mine), None):
            raise _kept(table, f"the table {name} needs {shared}")


def _kept(table: Dropped, why: str) -> CatalogError:
    return CatalogError(
        f"The files of {table.path}, which was dropped, were kept at {table.location}: {why}. Nothing was removed.",
        path=table.path,
        hint="To remove them all the same, register the table in a catalog, and drop it there with PURGE.",
    )
