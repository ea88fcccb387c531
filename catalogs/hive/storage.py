"""The file systems of a catalog's databases: what each guarantees, and which levels follow."""

from __future__ import annotations

from twophase.catalogs.files import StorageKind, requirements, shown_file_system
from twophase.catalogs.hive.store import HiveStore


def described(store: HiveStore) -> list[str]:
    """Each file system on which a database has its tables by default, in one line."""
    found = {
        shown_file_system(location): (store.files.kind(location), requirements(location, store.environment))
        for location in _locations(store)
    }
    return [f"{name} is {kind}: {levels_on(kind)}{needed}" for name, (kind, needed) in sorted(found.items())]


def write_problems(store: HiveStore) -> list[str]:
    """Directories of databases in which no table can be written."""
    found = map(store.files.write_problem, sorted(_locations(store)))
    return [problem for problem in found if problem is not None]


def _locations(store: HiveStore) -> set[str]:
    found = map(store.metastore.database_location, store.metastore.list_databases())
    return {location for location in found if location}


def levels_on(kind: StorageKind) -> str:
    """The levels of the statements whose publish depends on the kind of storage."""
    one = "atomic" if kind.shows_whole_files else "reversible"
    if kind.hard_links:
        several = "atomic"
    else:
        several = "atomic by append=directory, else reversible" if kind.atomic_rename_directory else "reversible"
    location = "atomic" if kind.atomic_rename_directory else "refused"
    return (
        f"CREATE, REPLACE and INSERT OVERWRITE of a whole table atomic, CREATE with a LOCATION {location}; appends of "
        f"one file {one}, of several files {several}"
    )
