"""The shared parts of a lakehouse catalog: the Iceberg catalog, file access, and the environment of the session."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from twophase.catalog import Catalog, Environment
from twophase.catalogs.files import Files, refuse_untried
from twophase.catalogs.lakehouse.store import Loaded, Store
from twophase.errors import TableNotExistError
from twophase.model import ObjectPath


@dataclass(frozen=True)
class Lakehouse:
    """The parts of a catalog that participants, table changes and housekeeping need.

    Attributes
    ----------
    name : str
        Name of the catalog in the session.
    store : Store
    files : Files
    environment : Environment
    """

    name: str
    store: Store
    files: Files
    environment: Environment

    def require(self, path: ObjectPath) -> Loaded:
        """Load an existing table.

        Raises
        ------
        TableNotExistError
        CatalogError
            Its metadata file is missing or damaged.
        """
        found = self.store.load(path) if len(path.namespace) == 1 else None
        if found is None:
            raise self.no_table(path)
        return found

    def load_to_write(self, path: ObjectPath) -> Loaded | None:
        """Load a table for writing; nothing is read or written before its file system is known to be allowed.

        Raises
        ------
        AtomicityNotSupportedError
            The table, or the directory of records, is on an untested file system.
        CatalogError
            Its metadata file is missing or damaged.
        """
        pointer = self.store.pointer(path) if len(path.namespace) == 1 else None
        self.require_tried(path, pointer or self.store.settings.warehouse)
        return None if pointer is None else Loaded(pointer, self.store.metadata(path, pointer))

    def require_tried(self, path: ObjectPath, place: str) -> None:
        """Refuse a table that is located, or recorded, on an untested file system, unless an option allows it.

        Raises
        ------
        AtomicityNotSupportedError
        """
        refuse_untried(path, place, self.store.records_at, environment=self.environment)

    def no_table(self, path: ObjectPath) -> TableNotExistError:
        """The error for a table that does not exist."""
        return TableNotExistError.of(path, self.name)

    def own_key(self) -> str:
        """A random key for files that do not belong to a participant."""
        return secrets.token_hex(12)


class LakehouseBase(Catalog):
    """Base of the lakehouse catalog: the part that its participants need."""

    lakehouse: Lakehouse
