"""Our catalogs as Spark's own: the Java interfaces of a catalog, a table and a write, answered over Py4J."""
