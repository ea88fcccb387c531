"""Access to the JVM, through names that Spark does not promise to keep.

The list of these names is in :mod:`twophase.spark.jvm.private`; no module in here knows about transactions.
"""
