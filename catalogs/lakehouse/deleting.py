"""The plan of a DELETE: the files that go, and those of which other rows are written anew."""

from __future__ import annotations

from collections.abc import Sequence

from twophase.catalog.reading import Deletion, Filter, ReadSource
from twophase.catalogs.lakehouse.lakehouse import Lakehouse
from twophase.catalogs.lakehouse.planning import check_writable, state_version
from twophase.catalogs.lakehouse.reading import ListedFiles, ManifestReader, State
from twophase.catalogs.lakehouse.snapshots import current_id
from twophase.catalogs.lakehouse.sources import source_of
from twophase.errors import CatalogError
from twophase.model import ObjectPath


def plan(lakehouse: Lakehouse, path: ObjectPath, conditions: Sequence[Filter | None]) -> Deletion:
    """Plan a DELETE of the current rows of a table.

    Raises
    ------
    TableNotExistError
    CatalogError
        Its files do not show which rows they hold, or another engine's format version forbids it.
    """
    loaded = lakehouse.load_to_write(path)
    if loaded is None:
        raise lakehouse.no_table(path)
    metadata = loaded.metadata
    check_writable(path, metadata)
    io = lakehouse.store.io(metadata.location)
    source = source_of(io, path, metadata, current_id(metadata), metadata.current_schema_id)
    if source.files is None:
        raise CatalogError(
            f"Rows of {path} cannot be deleted here: another engine has deleted some, or its files have no ids.",
            path=path,
            hint="Use the engine that did so, or let it rewrite the files first.",
        )
    state = State.of(io, path, metadata, current_id(metadata), metadata.schema())
    whole, part = ManifestReader(state).deletion(conditions)
    names = tuple(file.file_path for file in (*whole, *part))
    rewritten = ListedFiles(state, [file.file_path for file in part])
    left = ReadSource("parquet", definition=source.definition, files=rewritten) if part else None
    return Deletion(names, state_version(metadata), left)
