"""Tables of PostgreSQL, MariaDB/MySQL and SQLite, all or nothing."""

from twophase.catalogs.jdbc.catalog import JdbcCatalog

__all__ = ["JdbcCatalog"]
