"""Apache Iceberg tables, written by Spark and committed atomically by twophase."""

from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

__all__ = ["LakehouseCatalog"]
