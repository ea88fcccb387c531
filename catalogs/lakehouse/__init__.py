"""Apache Iceberg tables, written by Spark and committed by twophase, all or nothing."""

from twophase.catalogs.lakehouse.catalog import LakehouseCatalog

__all__ = ["LakehouseCatalog"]
