"""Choice of the class for a URL's database."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from twophase.catalogs.jdbc.database import Database
from twophase.catalogs.jdbc.generic import open_generic
from twophase.catalogs.jdbc.mysql import MySQL
from twophase.catalogs.jdbc.options import Settings
from twophase.catalogs.jdbc.postgresql import PostgreSQL
from twophase.catalogs.jdbc.sqlite import SQLite

_KNOWN: Mapping[str, Callable[[Settings], Database]] = {"postgresql": PostgreSQL, "sqlite": SQLite, "mysql": MySQL}


def open_database(settings: Settings) -> Database:
    """Make the object for the URL's database."""
    return _KNOWN.get(settings.parsed.get_backend_name(), open_generic)(settings)
