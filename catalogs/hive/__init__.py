"""Tables of a Hive metastore, all or nothing."""

from twophase.catalogs.hive.catalog import HiveCatalog

__all__ = ["HiveCatalog"]
