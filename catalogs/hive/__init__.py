"""Atomic writes to tables of a Hive metastore."""

from twophase.catalogs.hive.catalog import HiveCatalog

__all__ = ["HiveCatalog"]
