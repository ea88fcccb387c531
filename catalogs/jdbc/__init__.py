"""Atomic writes to tables of PostgreSQL, MariaDB/MySQL and SQLite."""

from twophase.catalogs.jdbc.catalog import JdbcCatalog

__all__ = ["JdbcCatalog"]
