"""Our catalogs as native Spark catalogs: the Java interfaces of a catalog, a table and a write, served over Py4J."""
